//! JSON-RPC errors and the bodies that carry them.

use serde_json::{Value, json};

use super::version::Era;

/// A protocol fault as it goes into the `error` member of a response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RpcError {
    pub code: i64,
    pub message: String,
    /// Boxed, because hardly any error has it and all are moved about.
    pub data: Option<Box<Value>>,
}

/// `-32700`…`-32600` are JSON-RPC 2.0's own.
pub const PARSE_ERROR: i64 = -32700;
pub const INVALID_REQUEST: i64 = -32600;
pub const METHOD_NOT_FOUND: i64 = -32601;
pub const INVALID_PARAMS: i64 = -32602;
pub const INTERNAL_ERROR: i64 = -32603;
/// What clients take as "initialize again", together with HTTP 404 (recorded with Claude Code and the SDKs).
pub const SESSION_NOT_FOUND: i64 = -32001;
/// MCP up to 2025-11-25, `server/resources`, Error handling; 2026-07-28 has `INVALID_PARAMS` instead and forbids this.
pub const RESOURCE_NOT_FOUND: i64 = -32002;
/// MCP 2026-07-28, `basic`, Error codes.
pub const HEADER_MISMATCH: i64 = -32020;
pub const MISSING_CAPABILITY: i64 = -32021;
pub const UNSUPPORTED_VERSION: i64 = -32022;

impl RpcError {
    pub fn new(code: i64, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), data: None }
    }

    pub fn with_data(self, data: Value) -> Self {
        Self { data: Some(Box::new(data)), ..self }
    }

    pub fn parse_error(why: &str) -> Self {
        Self::new(PARSE_ERROR, format!("Parse error: {why}"))
    }

    pub fn invalid_request(why: &str) -> Self {
        Self::new(INVALID_REQUEST, format!("Invalid request: {why}"))
    }

    pub fn method_not_found(method: &str) -> Self {
        Self::new(METHOD_NOT_FOUND, format!("Method not found: {}", shown(method)))
    }

    pub fn invalid_params(why: impl Into<String>) -> Self {
        Self::new(INVALID_PARAMS, why)
    }

    pub fn resource_not_found(uri: &str, era: Era) -> Self {
        let code = match era {
            Era::Legacy => RESOURCE_NOT_FOUND,
            Era::Modern => INVALID_PARAMS,
        };
        Self::new(code, "Resource not found").with_data(json!({"uri": uri}))
    }

    /// The `error` member as JSON.
    pub fn to_json(&self) -> String {
        let mut object = serde_json::Map::new();
        object.insert("code".into(), self.code.into());
        object.insert("message".into(), self.message.clone().into());
        if let Some(data) = &self.data {
            object.insert("data".into(), (**data).clone());
        }
        Value::Object(object).to_string()
    }

    /// A whole response; `id` is raw JSON, `null` where none could be read.
    pub fn response(&self, id: Option<&str>) -> String {
        format!(r#"{{"jsonrpc":"2.0","id":{},"error":{}}}"#, id.unwrap_or("null"), self.to_json())
    }
}

/// A name that a client sent, cut to what fits into a sentence.
pub fn shown(name: &str) -> String {
    const SHOWN_CHARS_MAX: usize = 64;
    let mut cut: String = name.chars().take(SHOWN_CHARS_MAX).collect();
    if cut.len() < name.len() {
        cut.push('…');
    }
    cut
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_response_names_the_id_it_answers() {
        let error = RpcError::method_not_found("a\"b");
        assert_eq!(
            error.response(Some("\"x\"")),
            r#"{"jsonrpc":"2.0","id":"x","error":{"code":-32601,"message":"Method not found: a\"b"}}"#
        );
        assert!(error.response(None).contains(r#""id":null"#));
    }

    #[test]
    fn long_names_are_cut() {
        assert_eq!(shown(&"x".repeat(100)).chars().count(), 65);
    }
}
