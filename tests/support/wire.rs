//! An answer in one line, for snapshots: what clients rely on, without what nobody promised.
//!
//! Keys are sorted, and the words of an error are masked: clients go by codes. So is a session id.

use serde_json::{Map, Value};

use super::http::Response;

/// `STATUS [HEADER: VALUE]… MESSAGE…`, a message a line.
pub fn render(response: &Response) -> String {
    let mut lines = vec![response.status.to_string()];
    for name in ["content-type", "mcp-session-id", "allow"] {
        let Some(value) = response.header(name) else { continue };
        let value = if name == "mcp-session-id" { "[id]" } else { value };
        lines.push(format!("{name}: {value}"));
    }
    if !response.body.is_empty() {
        lines.extend(response.messages().iter().map(|message| render_message(message)));
    }
    lines.join("\n")
}

/// One JSON-RPC message; text that is not one is shown as it is.
pub fn render_message(message: &str) -> String {
    match serde_json::from_str::<Value>(message) {
        Ok(mut value) => {
            mask(&mut value);
            sorted(value).to_string()
        }
        Err(_) => format!("{message:?}"),
    }
}

fn mask(message: &mut Value) {
    let Some(error) = message.get_mut("error").and_then(Value::as_object_mut) else { return };
    if let Some(text) = error.get_mut("message") {
        *text = "[words]".into();
    }
    // What is added for people is free; the versions are for programs.
    if let Some(data) = error.get("data").filter(|data| data.get("supported").is_none()) {
        assert!(!data.is_array(), "error data is an object or text: {data}");
        error.remove("data");
    }
}

fn sorted(value: Value) -> Value {
    match value {
        Value::Object(map) => {
            let mut members: Vec<(String, Value)> = map.into_iter().collect();
            members.sort_by(|a, b| a.0.cmp(&b.0));
            Value::Object(members.into_iter().map(|(key, value)| (key, sorted(value))).collect::<Map<_, _>>())
        }
        Value::Array(items) => Value::Array(items.into_iter().map(sorted).collect()),
        plain => plain,
    }
}
