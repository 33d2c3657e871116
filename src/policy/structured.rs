//! A `structuredContent` that a policy has changed, against the `outputSchema` that clients hold it against.
//!
//! A tool with an `outputSchema` must answer with a structure that fits it (MCP 2025-06-18 to 2026-07-28, `server/tools`,
//! Output schema), and clients throw away the whole result where it is wrong or missing. The one exception is a result
//! with `isError`, so that is what such a result becomes: its texts still reach the model, with a sentence before them
//! that says what is missing and why.

use std::borrow::Cow;

use serde_json::json;

use super::output_schema::{OutputSchema, Unfit};
use crate::protocol::raw::{entries, members, object};

/// A result that can be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fitting {
    pub payload: String,
    /// Why its structure was taken out.
    pub unfit: Option<Unfit>,
}

/// `after` is the result that the policy of `backend` made of `before`. A structure that was not changed is not looked
/// at, whatever the server put there; nor is one of a result that is an error already.
///
/// # Errors
/// One of the two is no JSON object. The result must not be sent.
pub fn fitting(
    schema: &OutputSchema,
    backend: &str,
    before: &str,
    after: String,
) -> Result<Fitting, serde_json::Error> {
    let [was] = members(before, ["structuredContent"])?;
    let [is, is_error] = members(&after, ["structuredContent", "isError"])?;
    if is == was || is_error == Some("true") {
        return Ok(Fitting { payload: after, unfit: None });
    }
    match is.map_or(Err(Unfit::Differs), |is| schema.check(is)) {
        Ok(()) => Ok(Fitting { payload: after, unfit: None }),
        Err(unfit) => Ok(Fitting { payload: without_structure(&after, backend)?, unfit: Some(unfit) }),
    }
}

/// The members that stay keep their spelling.
fn without_structure(result: &str, backend: &str) -> Result<String, serde_json::Error> {
    let text = format!(
        "The tool ran. Its structured result was taken out, because the policy of '{backend}' changed it and what was left did not fit the tool's output schema. Texts of the result follow, if it has any."
    );
    let note = json!({"type": "text", "text": text}).to_string();
    let error = json!({"code": "policy_failed", "backend": backend}).to_string();
    let (mut content, mut meta, mut others) = (None, None, Vec::new());
    for (key, value) in entries(result)? {
        match &*key {
            "content" => content = Some(value),
            "_meta" => meta = Some(value),
            "structuredContent" | "isError" => {}
            _ => others.push((key, value)),
        }
    }
    let content = format!("[{note}{}", rest_of(content, '[', "]"));
    let meta = format!(r#"{{"lazy-mcp/error":{error}{}"#, rest_of(meta, '{', "}"));
    let made = [("content", &*content), ("isError", "true"), ("_meta", &*meta)];
    let made = made.map(|(key, value)| (Cow::Borrowed(key), value));
    Ok(object(others.into_iter().chain(made)))
}

/// What a list or object holds, to be appended to another one, with its end.
fn rest_of<'a>(list: Option<&'a str>, open: char, end: &'a str) -> Cow<'a, str> {
    let inner = list.and_then(|list| list.strip_prefix(open)).map(str::trim_start);
    match inner {
        Some(inner) if inner != end => format!(",{inner}").into(),
        _ => end.into(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[track_caller]
    fn check(result: &str, expected: &str) {
        let made = without_structure(result, "x").unwrap();
        serde_json::from_str::<Value>(&made).unwrap();
        let note = r#"{"type":"text","text":"The tool ran. Its structured result was taken out, because the policy of 'x' changed it and what was left did not fit the tool's output schema. Texts of the result follow, if it has any."}"#;
        let error = r#""lazy-mcp/error":{"code":"policy_failed","backend":"x"}"#;
        assert_eq!(made, expected.replace("NOTE", note).replace("ERROR", error));
    }

    #[test]
    fn the_structure_goes_and_the_rest_stays() {
        check("{}", r#"{"content":[NOTE],"isError":true,"_meta":{ERROR}}"#);
        check(
            r#"{"structuredContent":{"a":1},"x":1e2,"content":[ {"type":"text","text":"\u0061"} ],"isError":false,"_meta":{ "k":[ ]}}"#,
            r#"{"x":1e2,"content":[NOTE,{"type":"text","text":"\u0061"} ],"isError":true,"_meta":{ERROR,"k":[ ]}}"#,
        );
        check(
            r#"{"content":[ ],"_meta":{},"resultType":"complete"}"#,
            r#"{"resultType":"complete","content":[NOTE],"isError":true,"_meta":{ERROR}}"#,
        );
        check(r#"{"content":null,"_meta":1}"#, r#"{"content":[NOTE],"isError":true,"_meta":{ERROR}}"#);
    }
}
