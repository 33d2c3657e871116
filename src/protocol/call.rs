//! A request on its way to a server, and the answer on its way back: spans found once, spliced once.

use std::borrow::Cow;
use std::ops::Range;

use bytes::Bytes;

use super::envelope::{self, Message};
use super::error::{INVALID_PARAMS, RESOURCE_NOT_FOUND, RpcError};
use super::raw::{self, Pieces, entries, members, replaced, span};
use super::version::{Era, meta};

/// A client's request that is for a server, with the spans of what is looked at or replaced.
#[derive(Clone, Debug)]
pub struct CallRequest {
    body: Bytes,
    id: Range<usize>,
    params: Option<Range<usize>>,
    /// `null` included, which stands for none but takes the place of what a policy puts there.
    arguments: Option<Range<usize>>,
    meta: Option<Range<usize>>,
    token: Option<Range<usize>>,
    pub subject: Subject,
}

/// What a request is about; names are decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    Tool(String),
    Prompt(String),
    /// `resources/read` of an address.
    Resource(String),
    /// `completion/complete` for a prompt of this name, or for an address or its template.
    Completion(CompletionOf),
    /// A method that the broker knows nothing about.
    Other(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CompletionOf {
    Prompt(String),
    Resource(String),
}

impl Subject {
    /// The member of `params` that says what a request of this method is about.
    fn key(method: &str) -> Option<&'static str> {
        match method {
            "tools/call" | "prompts/get" => Some("name"),
            "resources/read" => Some("uri"),
            "completion/complete" => Some("ref"),
            _ => None,
        }
    }

    /// `value` is the raw member [`Self::key`].
    fn new(method: &str, value: Option<&str>) -> Result<Self, RpcError> {
        let text = || {
            let text = value.and_then(raw::string).map(Cow::into_owned);
            let key = Self::key(method).unwrap_or_default();
            text.ok_or_else(|| RpcError::invalid_params(format!("`params.{key}` of {method} must be a string")))
        };
        match method {
            "tools/call" => text().map(Self::Tool),
            "prompts/get" => text().map(Self::Prompt),
            "resources/read" => text().map(Self::Resource),
            "completion/complete" => CompletionOf::parse(value.unwrap_or("{}")).map(Self::Completion),
            other => Ok(Self::Other(other.to_owned())),
        }
    }
}

impl CompletionOf {
    fn parse(of: &str) -> Result<Self, RpcError> {
        let text = |raw: Option<&str>| raw.and_then(raw::string).map(Cow::into_owned);
        let [kind, name, uri] = members(of, ["type", "name", "uri"]).unwrap_or_default();
        let of = match text(kind).as_deref() {
            Some("ref/prompt") => text(name).map(Self::Prompt),
            Some("ref/resource") => text(uri).map(Self::Resource),
            _ => None,
        };
        of.ok_or_else(|| {
            RpcError::invalid_params("`params.ref` of completion/complete must name a prompt or a resource")
        })
    }
}

impl CallRequest {
    /// Looks into `params` of the request in `body`, whose id, method and params were found by `envelope::parse`.
    pub fn parse(body: &Bytes, text: &str, id: &str, method: &str, params: Option<&str>) -> Result<Self, RpcError> {
        let malformed = |e| RpcError::invalid_params(format!("`params` of {method}: {e}"));
        let object = params.filter(|params| params.starts_with('{'));
        let [about, arguments, meta] = match (object, Subject::key(method)) {
            // Read once: arguments may be long.
            (Some(params), Some(key)) => members(params, [key, "arguments", "_meta"]).map_err(malformed)?,
            (Some(params), None) => [None, None, members(params, ["_meta"]).map_err(malformed)?[0]],
            (None, Some(key)) => {
                return Err(RpcError::invalid_params(format!("{method} needs `params` with a `{key}`")));
            }
            (None, None) => [None; 3],
        };
        let subject = Subject::new(method, about)?;
        // The arguments of others are nothing that policies have rules for.
        let arguments = arguments.filter(|_| matches!(subject, Subject::Tool(_)));
        if arguments.is_some_and(|arguments| !arguments.starts_with('{') && arguments != "null") {
            return Err(RpcError::invalid_params("`params.arguments` of tools/call must be an object"));
        }
        let meta = meta.filter(|meta| *meta != "null");
        let token = match meta {
            Some(meta) => {
                members(meta, ["progressToken"]).map_err(|e| RpcError::invalid_params(format!("`_meta`: {e}")))?[0]
            }
            None => None,
        };
        let token = token.filter(|token| *token != "null");
        if token.is_some_and(|token| !token.starts_with('"') && token.parse::<f64>().is_err()) {
            return Err(RpcError::invalid_params("`_meta.progressToken` must be a string or a number"));
        }
        Ok(Self {
            body: body.clone(),
            id: span(text, id),
            params: params.map(|params| span(text, params)),
            arguments: arguments.map(|arguments| span(text, arguments)),
            meta: meta.map(|meta| span(text, meta)),
            token: token.map(|token| span(text, token)),
            subject,
        })
    }

    /// The tool that is called, if one is.
    pub fn tool(&self) -> Option<&str> {
        match &self.subject {
            Subject::Tool(name) => Some(name),
            _ => None,
        }
    }

    /// Whether it reads a resource: the one result besides lists that says how long it may be kept.
    pub fn is_read(&self) -> bool {
        matches!(self.subject, Subject::Resource(_))
    }

    /// What the request is called where an operator reads of it: the tool, else the method. Names and addresses of
    /// others are the client's own words.
    pub fn label(&self) -> &str {
        match &self.subject {
            Subject::Tool(name) => name,
            Subject::Prompt(_) => "prompts/get",
            Subject::Resource(_) => "resources/read",
            Subject::Completion(_) => "completion/complete",
            Subject::Other(method) => method,
        }
    }

    /// The client's id, raw.
    pub fn id(&self) -> Bytes {
        self.body.slice(self.id.clone())
    }

    /// The client's progress token, raw, if it wants progress.
    pub fn token(&self) -> Option<Bytes> {
        self.token.clone().map(|token| self.body.slice(token))
    }

    /// The raw arguments object, if there is one.
    pub fn arguments(&self) -> Option<&str> {
        self.arguments.clone().map(|arguments| self.text(arguments)).filter(|arguments| *arguments != "null")
    }

    /// The raw metadata object, if there is one.
    pub fn meta(&self) -> Option<&str> {
        self.meta.clone().map(|meta| self.text(meta))
    }

    /// The line for the server: the broker's id for the client's, also as progress token; the arguments a policy
    /// rewrote; for a modern client, without the protocol's own metadata, which a legacy server does not know.
    /// Everything else is byte for byte what the client sent.
    pub fn upstream_line(&self, upstream_id: u64, arguments: Option<&str>, era: Era) -> Vec<u8> {
        let id = upstream_id.to_string();
        let inserted;
        let rebuilt;
        let mut edits: Vec<(Range<usize>, &[u8])> = Vec::with_capacity(4);
        edits.push((self.id.clone(), id.as_bytes()));
        match (arguments, &self.arguments) {
            (Some(new), Some(old)) => edits.push((old.clone(), new.as_bytes())),
            (Some(new), None) => {
                inserted = format!(r#""arguments":{new},"#);
                let start = self.params.as_ref().map_or(0, |params| params.start + 1);
                edits.push((start..start, inserted.as_bytes()));
            }
            (None, _) => {}
        }
        match (era, &self.meta) {
            (Era::Modern, Some(meta)) => {
                rebuilt = without_protocol_keys(self.text(meta.clone()), &id);
                edits.push((meta.clone(), rebuilt.as_bytes()));
            }
            _ => edits.extend(self.token.clone().map(|token| (token, id.as_bytes()))),
        }
        one_line(replaced(&self.body, &mut edits))
    }

    fn text(&self, span: Range<usize>) -> &str {
        std::str::from_utf8(&self.body[span]).expect("the body was checked to be UTF-8 before it was parsed")
    }
}

/// `_meta` without the keys of the protocol itself, with the progress token replaced.
fn without_protocol_keys(meta_object: &str, token: &str) -> String {
    let kept: Vec<String> = entries(meta_object)
        .unwrap_or_default()
        .into_iter()
        .filter(|(key, _)| !key.starts_with(meta::PREFIX))
        .map(|(key, value)| {
            let value = if key == "progressToken" { token } else { value };
            format!("{}:{value}", serde_json::Value::from(key.into_owned()))
        })
        .collect();
    format!("{{{}}}", kept.join(","))
}

/// Ends the message with a line feed and has none inside: between JSON tokens a space means the same.
pub fn one_line(mut message: Vec<u8>) -> Vec<u8> {
    for byte in &mut message {
        if matches!(byte, b'\n' | b'\r') {
            *byte = b' ';
        }
    }
    message.push(b'\n');
    message
}

/// A server's answer: the line as it came, and where its id and its payload are.
#[derive(Clone, Debug)]
pub struct Answer {
    line: Bytes,
    id: Range<usize>,
    payload: Range<usize>,
    /// Whether the payload is an `error`.
    pub is_error: bool,
}

impl Answer {
    /// From a parsed response; `line` is the text that `id` and `answer` are slices of.
    pub fn new(line: &Bytes, text: &str, id: &str, answer: envelope::Answer<'_>) -> Self {
        let (payload, is_error) = match answer {
            envelope::Answer::Result(result) => (result, false),
            envelope::Answer::Error(error) => (error, true),
        };
        Self { line: line.clone(), id: span(text, id), payload: span(text, payload), is_error }
    }

    /// The raw `result` or `error`.
    pub fn payload(&self) -> &str {
        std::str::from_utf8(&self.line[self.payload.clone()]).expect("the line was checked to be UTF-8 when parsed")
    }

    /// The same bytes, shared.
    pub fn payload_bytes(&self) -> Bytes {
        self.line.slice(self.payload.clone())
    }

    /// The code that the client is told, if it is an error.
    pub fn error_code(&self, era: Era) -> Option<i64> {
        let [code] = members(self.payload(), ["code"]).ok().filter(|_| self.is_error)?;
        match code?.parse().ok()? {
            RESOURCE_NOT_FOUND if era == Era::Modern => Some(INVALID_PARAMS),
            code => Some(code),
        }
    }

    /// The answer for the client: its own id, the payload that a policy rewrote or the very bytes that came. What the
    /// client's era demands and the server's does not know is put in; `is_read`: also how long it may be kept.
    pub fn reply(&self, id: &Bytes, payload: Option<String>, era: Era, is_read: bool) -> Pieces {
        let payload = match payload {
            Some(new) => Bytes::from(new),
            None => self.line.slice(self.payload.clone()),
        };
        let payload = match era {
            Era::Modern if self.is_error => with_modern_code(payload),
            _ => payload,
        };
        let marks_complete = era == Era::Modern && !self.is_error && lacks_result_type(&payload);
        let mut pieces = Pieces::default();
        let mut at = 0;
        let mut spans = [(&self.id, false), (&self.payload, true)];
        spans.sort_by_key(|(span, _)| span.start);
        for (span, is_payload) in spans {
            let before = self.line.slice(at..span.start);
            at = span.end;
            match (is_payload, marks_complete) {
                (false, _) => {
                    pieces.push(before);
                    pieces.push(id.clone());
                }
                (true, false) => {
                    pieces.push(before);
                    pieces.push(payload.clone());
                }
                (true, true) => {
                    pieces.push(joined(&before, complete_prefix(&payload, is_read)));
                    pieces.push(payload.slice(1..));
                }
            }
        }
        pieces.push(self.line.slice(at..));
        pieces
    }
}

fn joined(a: &[u8], b: &[u8]) -> Bytes {
    [a, b].concat().into()
}

/// Each modern result says that it is one (2026-07-28, `basic`, Result type); legacy servers do not.
fn lacks_result_type(result: &[u8]) -> bool {
    let text = std::str::from_utf8(result).unwrap_or_default();
    matches!(members(text, ["resultType"]), Ok([None]))
}

/// What a server does not say of how long a resource may be kept is taken for "not at all, and by nobody else".
fn complete_prefix(result: &[u8], is_read: bool) -> &'static [u8] {
    let is_empty = result[1..].iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'}');
    match (is_empty, is_read) {
        (true, _) => br#"{"resultType":"complete""#,
        (false, false) => br#"{"resultType":"complete","#,
        (false, true) => br#"{"resultType":"complete","ttlMs":0,"cacheScope":"private","#,
    }
}

/// The code for a resource that is not there is another in the modern era, where the old one must not be sent
/// (2026-07-28, `basic`, Error codes).
fn with_modern_code(error: Bytes) -> Bytes {
    let text = std::str::from_utf8(&error).unwrap_or_default();
    match members(text, ["code"]) {
        Ok([Some(code)]) if code.parse() == Ok(RESOURCE_NOT_FOUND) => {
            let modern = INVALID_PARAMS.to_string();
            replaced(&error, &mut [(span(text, code), modern.as_bytes())]).into()
        }
        _ => error,
    }
}

/// A progress notification of a server, to be sent on with the caller's token.
#[derive(Clone, Debug)]
pub struct Progress {
    line: Bytes,
    token: Range<usize>,
    /// Which call it is about: the broker's id, which went out as the token.
    pub upstream_id: u64,
}

impl Progress {
    /// `None` if the token is not one of ours.
    pub fn parse(line: &Bytes, text: &str, params: Option<&str>) -> Option<Self> {
        let [token] = members(params?, ["progressToken"]).ok()?;
        let token = token?;
        Some(Self { line: line.clone(), token: span(text, token), upstream_id: token.parse().ok()? })
    }

    pub fn with_token(&self, token: &[u8]) -> Bytes {
        replaced(&self.line, &mut [(self.token.clone(), token)]).into()
    }
}

/// The id that a `notifications/cancelled` is about, raw.
pub fn cancelled_request(params: Option<&str>) -> Option<&str> {
    let [id] = members(params?, ["requestId"]).ok()?;
    id
}

/// Whether two raw ids are the same id, however they are spelled.
pub fn same_id(a: &[u8], b: &str) -> bool {
    a == b.as_bytes()
        || match (std::str::from_utf8(a).ok().and_then(raw::string), raw::string(b)) {
            (Some(a), Some(b)) => a == b,
            _ => false,
        }
}

/// Reads a message that is known to have been a whole line or body.
pub fn parse_text(bytes: &[u8]) -> Result<(&str, Message<'_>), envelope::NotAMessage> {
    let text = std::str::from_utf8(bytes)
        .map_err(|e| envelope::NotAMessage { error: RpcError::parse_error(&e.to_string()), id: None })?;
    Ok((text, envelope::parse(text)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(body: &str) -> Result<CallRequest, RpcError> {
        let body = Bytes::copy_from_slice(body.as_bytes());
        let (text, message) = parse_text(&body).unwrap();
        let Message::Request { id, method, params } = message else { panic!("not a request") };
        CallRequest::parse(&body, text, id, &method, params)
    }

    #[track_caller]
    fn upstream(body: &str, arguments: Option<&str>, era: Era, expected: &str) {
        let line = request(body).unwrap().upstream_line(42, arguments, era);
        assert_eq!(String::from_utf8(line).unwrap(), format!("{expected}\n"));
    }

    #[test]
    fn only_id_and_token_change_on_the_way_to_a_server() {
        upstream(
            r#"{ "x":1E2,"id" : "a", "method":"tools/call","params":{"_meta":{"k":1.0,"progressToken":"t"},"name":"n","arguments":{"a":[ 1 ]}},"jsonrpc":"2.0"}"#,
            None,
            Era::Legacy,
            r#"{ "x":1E2,"id" : 42, "method":"tools/call","params":{"_meta":{"k":1.0,"progressToken":42},"name":"n","arguments":{"a":[ 1 ]}},"jsonrpc":"2.0"}"#,
        );
    }

    #[test]
    fn line_feeds_between_tokens_become_spaces() {
        upstream(
            "{\"jsonrpc\":\"2.0\",\r\n\"id\":1,\"method\":\"tools/call\",\"params\":{\"name\":\"a\\nb\"}}",
            None,
            Era::Legacy,
            "{\"jsonrpc\":\"2.0\",  \"id\":42,\"method\":\"tools/call\",\"params\":{\"name\":\"a\\nb\"}}",
        );
    }

    #[test]
    fn modern_metadata_stays_at_the_broker() {
        upstream(
            r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"n","_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","traceparent":"00-1","progressToken":9}}}"#,
            None,
            Era::Modern,
            r#"{"jsonrpc":"2.0","id":42,"method":"tools/call","params":{"name":"n","_meta":{"traceparent":"00-1","progressToken":42}}}"#,
        );
    }

    #[test]
    fn rewritten_arguments_take_their_place() {
        let body = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"n"}}"#;
        let expected = r#"{"jsonrpc":"2.0","id":42,"method":"tools/call","params":{"arguments":{"d":1},"name":"n"}}"#;
        upstream(body, Some(r#"{"d":1}"#), Era::Legacy, expected);
        let body = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"arguments":{},"name":"n"}}"#;
        upstream(body, Some(r#"{"d":1}"#), Era::Legacy, expected);
        let body = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"arguments":null,"name":"n"}}"#;
        upstream(body, Some(r#"{"d":1}"#), Era::Legacy, expected);
    }

    #[test]
    fn null_stands_for_nothing() {
        let body =
            r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"n","arguments":null,"_meta":null}}"#;
        let call = request(body).unwrap();
        assert_eq!((call.arguments(), call.token()), (None, None));
        upstream(body, None, Era::Modern, &body.replace("\"id\":1", "\"id\":42"));
    }

    #[test]
    fn malformed_params_are_named() {
        let call = |params: &str| request(&format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call"{params}}}"#));
        for params in [
            "",
            r#","params":[]"#,
            r#","params":{}"#,
            r#","params":{"name":1}"#,
            r#","params":{"name":"n","arguments":[]}"#,
            r#","params":{"name":"n","_meta":3}"#,
            r#","params":{"name":"n","_meta":{"progressToken":{}}}"#,
        ] {
            assert_eq!(call(params).unwrap_err().code, -32602, "{params}");
        }
        assert_eq!(call(r#","params":{"name":"n","arguments":null}"#).unwrap().arguments(), None);
    }

    #[track_caller]
    fn reply(line: &str, payload: Option<&str>, era: Era, expected: &str) {
        let line = Bytes::copy_from_slice(line.as_bytes());
        let (text, message) = parse_text(&line).unwrap();
        let Message::Response { id, answer } = message else { panic!("not a response") };
        let reply = Answer::new(&line, text, id, answer).reply(
            &Bytes::from_static(b"\"me\""),
            payload.map(str::to_owned),
            era,
            false,
        );
        assert_eq!(std::str::from_utf8(&reply.joined()).unwrap(), expected);
    }

    #[test]
    fn an_answer_keeps_its_bytes_but_the_id() {
        reply(
            r#"{"result":{"v": 1e2 , "u":"\u0041"},"jsonrpc":"2.0", "id":42 ,"extra":0}"#,
            None,
            Era::Legacy,
            r#"{"result":{"v": 1e2 , "u":"\u0041"},"jsonrpc":"2.0", "id":"me" ,"extra":0}"#,
        );
        reply(
            r#"{"jsonrpc":"2.0","id":42,"result":{"v":1}}"#,
            Some(r#"{"w":2}"#),
            Era::Legacy,
            r#"{"jsonrpc":"2.0","id":"me","result":{"w":2}}"#,
        );
    }

    #[test]
    fn modern_results_are_marked_complete_once() {
        reply(
            r#"{"result":{ },"jsonrpc":"2.0","id":42}"#,
            None,
            Era::Modern,
            r#"{"result":{"resultType":"complete" },"jsonrpc":"2.0","id":"me"}"#,
        );
        reply(
            r#"{"id":42,"result":{"a":1},"jsonrpc":"2.0"}"#,
            None,
            Era::Modern,
            r#"{"id":"me","result":{"resultType":"complete","a":1},"jsonrpc":"2.0"}"#,
        );
        let marked = r#"{"id":"me","result":{"resultType":"input_required"},"jsonrpc":"2.0"}"#;
        reply(&marked.replace("\"me\"", "42"), None, Era::Modern, marked);
        let error = r#"{"id":"me","error":{"code":1,"message":"x"},"jsonrpc":"2.0"}"#;
        reply(&error.replace("\"me\"", "42"), None, Era::Modern, error);
    }

    #[test]
    fn progress_carries_the_callers_token() {
        let line = Bytes::from_static(
            br#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":42,"progress":1.0}}"#,
        );
        let (text, message) = parse_text(&line).unwrap();
        let Message::Notification { params, .. } = message else { panic!("not a notification") };
        let progress = Progress::parse(&line, text, params).unwrap();
        assert_eq!(progress.upstream_id, 42);
        assert_eq!(
            progress.with_token(b"\"t\""),
            r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"t","progress":1.0}}"#
        );
        let foreign = r#"{"progressToken":"x"}"#;
        assert!(Progress::parse(&Bytes::from_static(foreign.as_bytes()), foreign, Some(foreign)).is_none());
    }

    #[test]
    fn ids_are_compared_by_value() {
        assert!(same_id(b"7", "7") && same_id(br#""a""#, r#""\u0061""#));
        assert!(!same_id(b"7", r#""7""#));
    }
}
