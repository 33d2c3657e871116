//! A JSON-RPC message, looked at one level deep.

use std::borrow::Cow;

use super::error::RpcError;
use super::raw::{entries, members, string};

/// One message. All fields are raw JSON out of the text it was read from, but for the method, which is decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message<'a> {
    Request { id: &'a str, method: Cow<'a, str>, params: Option<&'a str> },
    Notification { method: Cow<'a, str>, params: Option<&'a str> },
    Response { id: &'a str, answer: Answer<'a> },
}

/// What a response holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer<'a> {
    Result(&'a str),
    Error(&'a str),
}

/// Why a text is no message. Carries the id where one could be read, so that the sender can be answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotAMessage {
    pub error: RpcError,
    pub id: Option<String>,
}

impl NotAMessage {
    fn new(error: RpcError, id: Option<&str>) -> Self {
        Self { error, id: id.map(str::to_owned) }
    }
}

/// Reads one message.
///
/// Malformed JSON is `-32700`; an array (batches left the protocol with 2025-06-18), another kind of value and an
/// object that is no JSON-RPC 2.0 message are `-32600`.
pub fn parse(text: &str) -> Result<Message<'_>, NotAMessage> {
    let trimmed = text.trim_start_matches([' ', '\t', '\r', '\n']);
    let found = match members(text, ["jsonrpc", "id", "method", "params", "result", "error"]) {
        Ok(found) => found,
        Err(e) if e.is_data() && trimmed.starts_with('[') => {
            return Err(NotAMessage::new(
                RpcError::invalid_request("batches are not supported: send one message"),
                None,
            ));
        }
        Err(e) if e.is_data() => {
            return Err(NotAMessage::new(RpcError::invalid_request(&format!("not a JSON-RPC message: {e}")), None));
        }
        Err(e) => return Err(NotAMessage::new(RpcError::parse_error(&e.to_string()), None)),
    };
    let [jsonrpc, id, method, params, result, error] = found;
    let id = match id {
        Some(id) if is_id(id) => Some(id),
        Some("null") if error.is_some() => None,
        Some(_) => {
            let why = "the id of a message is a string or an integer";
            return Err(NotAMessage::new(RpcError::invalid_request(why), None));
        }
        None => None,
    };
    let invalid = |why: &str| NotAMessage::new(RpcError::invalid_request(why), id);
    if jsonrpc.and_then(string).as_deref() != Some("2.0") {
        return Err(invalid("member `jsonrpc` must be \"2.0\""));
    }
    if params.is_some_and(|params| !params.starts_with(['{', '['])) {
        return Err(invalid("`params` must be an object"));
    }
    match (method, id, result, error) {
        (Some(method), id, None, None) => {
            let method = string(method).ok_or_else(|| invalid("`method` must be a string"))?;
            Ok(match id {
                Some(id) => Message::Request { id, method, params },
                None => Message::Notification { method, params },
            })
        }
        (None, Some(id), Some(result), None) => Ok(Message::Response { id, answer: Answer::Result(result) }),
        (None, Some(id), None, Some(error)) => Ok(Message::Response { id, answer: Answer::Error(error) }),
        (None, None, None, Some(error)) => Ok(Message::Response { id: "null", answer: Answer::Error(error) }),
        _ => Err(invalid("neither a request, a notification nor a response")),
    }
}

/// The members of a message that JSON-RPC gives no meaning in one of its kind, in their order: decoded keys and raw
/// values, slices of `text`.
///
/// # Errors
/// `text` is not the object that `message` was read from.
pub fn strangers<'a>(text: &'a str, message: &Message<'_>) -> Result<Vec<(Cow<'a, str>, &'a str)>, serde_json::Error> {
    let known = match message {
        Message::Request { .. } | Message::Notification { .. } => &["jsonrpc", "id", "method", "params"][..],
        Message::Response { answer: Answer::Result(_), .. } => &["jsonrpc", "id", "result"],
        Message::Response { answer: Answer::Error(_), .. } => &["jsonrpc", "id", "error"],
    };
    Ok(entries(text)?.into_iter().filter(|(key, _)| !known.contains(&&**key)).collect())
}

/// Strings and integers are ids; null, fractions, booleans and structures are not (MCP `basic`, Requests).
fn is_id(raw: &str) -> bool {
    match raw.as_bytes() {
        [b'"', ..] => true,
        [b'-', digits @ ..] | digits => !digits.is_empty() && digits.iter().all(u8::is_ascii_digit),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: Message<'_>) {
        assert_eq!(parse(text).unwrap(), expected);
    }

    #[track_caller]
    fn fails(text: &str, code: i64, id: Option<&str>) {
        let fault = parse(text).unwrap_err();
        assert_eq!((fault.error.code, fault.id.as_deref()), (code, id), "{text}: {}", fault.error.message);
    }

    #[test]
    fn the_three_kinds() {
        check(
            r#"{"jsonrpc":"2.0","id":"a\u0062","method":"x","params":{"k":1e2}}"#,
            Message::Request { id: r#""a\u0062""#, method: "x".into(), params: Some(r#"{"k":1e2}"#) },
        );
        check(r#"{"method":"n","jsonrpc":"2.0"}"#, Message::Notification { method: "n".into(), params: None });
        check(r#"{"result":{},"jsonrpc":"2.0","id":-7}"#, Message::Response { id: "-7", answer: Answer::Result("{}") });
        check(
            r#"{"jsonrpc":"2.0","id":null,"error":{"code":1}}"#,
            Message::Response { id: "null", answer: Answer::Error(r#"{"code":1}"#) },
        );
    }

    #[test]
    fn faults_have_the_code_of_their_kind() {
        fails("{", -32700, None);
        fails("", -32700, None);
        fails("[{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"x\"}]", -32600, None);
        fails("3", -32600, None);
        fails(r#"{"jsonrpc":"1.0","id":1,"method":"x"}"#, -32600, Some("1"));
        fails(r#"{"jsonrpc":"2.0","id":null,"method":"x"}"#, -32600, None);
        fails(r#"{"jsonrpc":"2.0","id":1.5,"method":"x"}"#, -32600, None);
        fails(r#"{"jsonrpc":"2.0","id":1,"id":2,"method":"x"}"#, -32600, None);
        fails(r#"{"jsonrpc":"2.0","id":1,"method":"x","params":3}"#, -32600, Some("1"));
        fails(r#"{"jsonrpc":"2.0","id":1,"result":{},"error":{}}"#, -32600, Some("1"));
        fails(r#"{"jsonrpc":"2.0","id":1}"#, -32600, Some("1"));
    }
}
