//! A request on its way to a server, and the answer on its way back: spans found once, spliced once.

use std::borrow::Cow;
use std::ops::Range;

use bytes::Bytes;

use super::envelope::{self, Message};
use super::error::RpcError;
use super::logging::LogLevel;
use super::raw::{self, entries, members, object, replaced, span};
pub use super::subject::{CompletionOf, Subject};
use super::version::{MODERN, meta};

/// A client's request that is for a server, with the spans of what is looked at or replaced.
#[derive(Clone, Debug)]
pub struct CallRequest {
    body: Bytes,
    id: Range<usize>,
    params: Option<Range<usize>>,
    /// `null` included, which stands for none but takes the place of what a policy puts there.
    arguments: Option<Range<usize>>,
    /// The same of metadata.
    meta: Option<Range<usize>>,
    token: Option<Range<usize>>,
    /// What a request that is asked again brings along: the state, decoded, and the answers.
    state: Option<String>,
    input_responses: Option<Range<usize>>,
    pub subject: Subject,
}

impl CallRequest {
    /// Looks into `params` of the request in `body`, whose id, method and params were found by `envelope::parse`.
    pub fn parse(body: &Bytes, text: &str, id: &str, method: &str, params: Option<&str>) -> Result<Self, RpcError> {
        let malformed = |e| RpcError::invalid_params(format!("`params` of {method}: {e}"));
        let object = params.filter(|params| params.starts_with('{'));
        let [about, arguments, meta, state, responses] = match (object, Subject::key(method)) {
            // Read once: arguments may be long.
            (Some(params), Some(key)) => {
                members(params, [key, "arguments", "_meta", "requestState", "inputResponses"]).map_err(malformed)?
            }
            (Some(params), None) => [None, None, members(params, ["_meta"]).map_err(malformed)?[0], None, None],
            (None, Some(key)) => {
                return Err(RpcError::invalid_params(format!("{method} needs `params` with a `{key}`")));
            }
            (None, None) => [None; 5],
        };
        let subject = Subject::new(method, about)?;
        // The arguments of others are nothing that policies have rules for.
        let arguments = arguments.filter(|_| matches!(subject, Subject::Tool(_)));
        if arguments.is_some_and(|arguments| !arguments.starts_with('{') && arguments != "null") {
            return Err(RpcError::invalid_params("`params.arguments` of tools/call must be an object"));
        }
        let token = match meta.filter(|meta| *meta != "null") {
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
            state: state.and_then(raw::string).map(Cow::into_owned),
            input_responses: responses.map(|responses| span(text, responses)),
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

    /// The raw params, if there are any.
    pub fn params(&self) -> Option<&str> {
        self.params.clone().map(|params| self.text(params))
    }

    /// The raw arguments object, if there is one.
    pub fn arguments(&self) -> Option<&str> {
        self.arguments.clone().map(|arguments| self.text(arguments)).filter(|arguments| *arguments != "null")
    }

    /// What a modern client declares with the request, raw.
    pub fn capabilities(&self) -> Option<&str> {
        let [capabilities] = members(self.meta()?, [meta::CLIENT_CAPABILITIES]).ok()?;
        capabilities
    }

    /// The state that a result gave the client, if the request follows one.
    pub fn state(&self) -> Option<&str> {
        self.state.as_deref()
    }

    /// The raw answers to what that result asked.
    pub fn input_responses(&self) -> Option<&str> {
        self.input_responses.clone().map(|responses| self.text(responses))
    }

    /// The raw metadata object, if there is one.
    pub fn meta(&self) -> Option<&str> {
        self.meta.clone().map(|meta| self.text(meta)).filter(|meta| *meta != "null")
    }

    /// The line for the server: the broker's id for the client's, also as progress token; the arguments that a policy
    /// rewrote; between eras, the metadata that the server's knows. Everything else is byte for byte what the client sent.
    pub fn upstream_line(&self, upstream_id: u64, outbound: Outbound<'_>) -> Vec<u8> {
        let id = upstream_id.to_string();
        let (inserted, rebuilt, added);
        let mut edits: Vec<(Range<usize>, &[u8])> = Vec::with_capacity(4);
        edits.push((self.id.clone(), id.as_bytes()));
        let start = self.params.as_ref().map_or(0, |params| params.start + 1);
        match (outbound.arguments, &self.arguments) {
            (Some(new), Some(old)) => edits.push((old.clone(), new.as_bytes())),
            (Some(new), None) => {
                inserted = format!(r#""arguments":{new},"#);
                edits.push((start..start, inserted.as_bytes()));
            }
            (None, _) => {}
        }
        let token = self.token.clone().map(|token| (token, id.as_bytes()));
        match (outbound.crossing, &self.meta) {
            (Crossing::None, _) => edits.extend(token),
            (Crossing::ToLegacy, Some(meta)) if self.text(meta.clone()) != "null" => {
                rebuilt = without_protocol_keys(self.text(meta.clone()), &id);
                edits.push((meta.clone(), rebuilt.as_bytes()));
            }
            (Crossing::ToLegacy, _) => {}
            (Crossing::ToModern(metadata), Some(meta)) if self.text(meta.clone()) == "null" => {
                added = format!("{{{metadata}}}");
                edits.push((meta.clone(), added.as_bytes()));
            }
            (Crossing::ToModern(metadata), Some(meta)) => {
                added = format!("{metadata}{}", if self.is_empty_object(meta) { "" } else { "," });
                edits.push((meta.start + 1..meta.start + 1, added.as_bytes()));
                edits.extend(token);
            }
            // A list has no place for metadata. What a server makes of that is its own affair.
            (Crossing::ToModern(_), None)
                if self.params.clone().is_some_and(|params| self.text(params).starts_with('[')) => {}
            (Crossing::ToModern(metadata), None) => {
                let joined = if outbound.extra.is_empty() { "" } else { "," };
                let members = format!(r#""_meta":{{{metadata}}}{joined}{}"#, outbound.extra);
                added = match &self.params {
                    Some(params) if self.is_empty_object(params) => members,
                    Some(_) => format!("{members},"),
                    None => format!(r#""params":{{{members}}},"#),
                };
                // Without params: first in the message, which has other members.
                let at = if self.params.is_some() { start } else { self.opening() };
                edits.push((at..at, added.as_bytes()));
            }
        }
        // Where metadata was put in as a whole it is in there already.
        let is_apart = !outbound.extra.is_empty() && self.meta.is_some();
        let extra = format!("{},", outbound.extra);
        if is_apart {
            edits.push((start..start, extra.as_bytes()));
        }
        one_line(replaced(&self.body, &mut edits))
    }

    fn is_empty_object(&self, object: &Range<usize>) -> bool {
        self.text(object.start + 1..object.end).trim_start().starts_with('}')
    }

    /// Behind the brace that opens the message.
    fn opening(&self) -> usize {
        memchr::memchr(b'{', &self.body).map_or(0, |at| at + 1)
    }

    fn text(&self, span: Range<usize>) -> &str {
        std::str::from_utf8(&self.body[span]).expect("the body was checked to be UTF-8 before it was parsed")
    }
}

/// How a request is sent on.
#[derive(Clone, Copy, Debug, Default)]
pub struct Outbound<'a> {
    /// The arguments as a policy rewrote them.
    pub arguments: Option<&'a str>,
    pub crossing: Crossing<'a>,
    /// Members for the params of a request that is asked again: `"a":1,"b":2`.
    pub extra: &'a str,
}

/// What a request has to have done to it between the eras of client and server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Crossing<'a> {
    #[default]
    None,
    /// The protocol's own metadata stays behind.
    ToLegacy,
    /// It is put in: the members of `_meta`.
    ToModern(&'a str),
}

/// The members of `_meta` that a modern server wants of each request.
pub fn modern_metadata(capabilities: &str, logs: Option<LogLevel>) -> String {
    let logs = logs.map(|level| format!(r#","{}":"{}""#, meta::LOG_LEVEL, level.name())).unwrap_or_default();
    format!(
        r#""{}":"{MODERN}","{}":{{"name":"lazy-mcp-broker","version":"{}"}},"{}":{capabilities}{logs}"#,
        meta::PROTOCOL_VERSION,
        meta::CLIENT_INFO,
        env!("CARGO_PKG_VERSION"),
        meta::CLIENT_CAPABILITIES
    )
}

/// `_meta` without the keys of the protocol itself, with the progress token replaced.
fn without_protocol_keys(meta_object: &str, token: &str) -> String {
    let kept = entries(meta_object).unwrap_or_default().into_iter().filter(|(key, _)| !key.starts_with(meta::PREFIX));
    object(kept.map(|(key, value)| if key == "progressToken" { (key, token) } else { (key, value) }))
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
    use crate::protocol::version::Era;

    fn request(body: &str) -> Result<CallRequest, RpcError> {
        let body = Bytes::copy_from_slice(body.as_bytes());
        let (text, message) = parse_text(&body).unwrap();
        let Message::Request { id, method, params } = message else { panic!("not a request") };
        CallRequest::parse(&body, text, id, &method, params)
    }

    #[track_caller]
    fn upstream(body: &str, arguments: Option<&str>, era: Era, expected: &str) {
        let crossing = if era == Era::Modern { Crossing::ToLegacy } else { Crossing::None };
        let line = request(body).unwrap().upstream_line(42, Outbound { arguments, crossing, extra: "" });
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
    fn metadata_is_put_in_for_a_modern_server() {
        let sent = |request_body: &str, extra: &str| {
            let outbound = Outbound { arguments: None, crossing: Crossing::ToModern(r#""k":1"#), extra };
            String::from_utf8(request(request_body).unwrap().upstream_line(42, outbound)).unwrap()
        };
        for (body, expected) in [
            (
                r#"{"jsonrpc":"2.0","id":1,"method":"x/y"}"#,
                r#"{"params":{"_meta":{"k":1}},"jsonrpc":"2.0","id":42,"method":"x/y"}"#,
            ),
            (
                r#"{"jsonrpc":"2.0","id":1,"method":"x/y","params":{}}"#,
                r#"{"jsonrpc":"2.0","id":42,"method":"x/y","params":{"_meta":{"k":1}}}"#,
            ),
            (
                r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"n"}}"#,
                r#"{"jsonrpc":"2.0","id":42,"method":"tools/call","params":{"_meta":{"k":1},"name":"n"}}"#,
            ),
            (
                r#"{"jsonrpc":"2.0","id":1,"method":"x/y","params":{"_meta":{"progressToken":5}}}"#,
                r#"{"jsonrpc":"2.0","id":42,"method":"x/y","params":{"_meta":{"k":1,"progressToken":42}}}"#,
            ),
            (
                r#"{"jsonrpc":"2.0","id":1,"method":"x/y","params":{"_meta":null,"a":1}}"#,
                r#"{"jsonrpc":"2.0","id":42,"method":"x/y","params":{"_meta":{"k":1},"a":1}}"#,
            ),
            (
                r#"{"jsonrpc":"2.0","id":1,"method":"x/y","params":{"_meta":{ }}}"#,
                r#"{"jsonrpc":"2.0","id":42,"method":"x/y","params":{"_meta":{"k":1 }}}"#,
            ),
        ] {
            assert_eq!(sent(body, ""), format!("{expected}\n"));
        }
        let again =
            sent(r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"n"}}"#, r#""requestState":"s""#);
        let expected = r#"{"jsonrpc":"2.0","id":42,"method":"tools/call","params":{"requestState":"s","_meta":{"k":1},"name":"n"}}"#;
        assert_eq!(
            again,
            format!("{expected}\n")
                .replace(r#""requestState":"s","_meta":{"k":1}"#, r#""_meta":{"k":1},"requestState":"s""#)
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
