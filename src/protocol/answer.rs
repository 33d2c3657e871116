//! The answer of a server on its way to a client: the payload in place, and between eras what each adds to the other's.

use std::ops::Range;

use bytes::Bytes;

use super::call::parse_text;
use super::envelope::{self, Message};
use super::error::{INVALID_PARAMS, RESOURCE_NOT_FOUND};
use super::raw::{Pieces, entries, members, object, replaced, span};
use super::version::Era;

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

    /// From the line of a response; `None` if it is none.
    pub fn read(line: &Bytes) -> Option<Self> {
        match parse_text(line).ok()? {
            (text, Message::Response { id, answer }) => Some(Self::new(line, text, id, answer)),
            _ => None,
        }
    }

    /// The whole response, as it came.
    pub fn line(&self) -> &Bytes {
        &self.line
    }

    /// Whether the response has members that JSON-RPC gives no meaning. Told by the quotes around the two values that it
    /// has, because nearly none has others and the values may be long.
    pub fn has_strangers(&self) -> bool {
        /// Of `"jsonrpc":"2.0"` and the keys of the two values.
        const QUOTES: usize = 8;
        let (first, second) =
            if self.id.start < self.payload.start { (&self.id, &self.payload) } else { (&self.payload, &self.id) };
        let around = [0..first.start, first.end..second.start, second.end..self.line.len()];
        around.into_iter().flat_map(|span| &self.line[span]).filter(|byte| **byte == b'"').count() != QUOTES
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
    pub fn error_code(&self, passage: Passage) -> Option<i64> {
        let [code] = members(self.payload(), ["code"]).ok().filter(|_| self.is_error)?;
        let code = code?.parse().ok()?;
        Some(passage.translated(code).unwrap_or(code))
    }

    /// The answer for the client: its own id, the payload that a policy rewrote or the very bytes that came. What the
    /// client's era demands and the server's does not know is put in, and the reverse.
    pub fn reply(&self, id: &Bytes, payload: Option<String>, passage: Passage) -> Pieces {
        let payload = match payload {
            Some(new) => Bytes::from(new),
            None => self.line.slice(self.payload.clone()),
        };
        let payload = match passage {
            _ if self.is_error => with_code(payload, passage),
            Passage { client: Era::Legacy, server: Era::Modern, .. } => without_hints(payload),
            _ => payload,
        };
        let (era, is_read) = (passage.client, passage.is_read);
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

/// Between whom an answer goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Passage {
    pub client: Era,
    pub server: Era,
    /// Of a resource: the one result besides lists that says how long it may be kept.
    pub is_read: bool,
}

impl Passage {
    /// The code for a resource that is not there is another in each era, and the old one must not be sent in the modern
    /// (2026-07-28, `basic`, Error codes).
    fn translated(self, code: i64) -> Option<i64> {
        match (self.client, self.server, code) {
            (Era::Modern, _, RESOURCE_NOT_FOUND) => Some(INVALID_PARAMS),
            (Era::Legacy, Era::Modern, INVALID_PARAMS) if self.is_read => Some(RESOURCE_NOT_FOUND),
            _ => None,
        }
    }
}

fn with_code(error: Bytes, passage: Passage) -> Bytes {
    let text = std::str::from_utf8(&error).unwrap_or_default();
    let Ok([Some(code)]) = members(text, ["code"]) else { return error };
    match code.parse().ok().and_then(|code| passage.translated(code)) {
        Some(other) => replaced(&error, &mut [(span(text, code), other.to_string().as_bytes())]).into(),
        None => error,
    }
}

/// A modern result as the legacy era knows results: what was added to it since is taken out, the rest keeps its spelling.
fn without_hints(result: Bytes) -> Bytes {
    const ADDED: [&str; 3] = ["resultType", "ttlMs", "cacheScope"];
    let text = std::str::from_utf8(&result).unwrap_or_default();
    if !matches!(members(text, ADDED), Ok(found) if found.iter().any(Option::is_some)) {
        return result;
    }
    let kept = entries(text).unwrap_or_default().into_iter().filter(|(key, _)| !ADDED.contains(&&**key));
    object(kept).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::call::parse_text;
    use crate::protocol::envelope::Message;

    #[track_caller]
    fn reply(line: &str, payload: Option<&str>, era: Era, expected: &str) {
        let line = Bytes::copy_from_slice(line.as_bytes());
        let (text, message) = parse_text(&line).unwrap();
        let Message::Response { id, answer } = message else { panic!("not a response") };
        let reply = Answer::new(&line, text, id, answer).reply(
            &Bytes::from_static(b"\"me\""),
            payload.map(str::to_owned),
            Passage { client: era, server: Era::Legacy, is_read: false },
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
    fn each_era_hears_its_own_codes_and_hints() {
        let crossed = |line: &'static str, client, is_read| {
            let line = Bytes::from_static(line.as_bytes());
            let (text, message) = parse_text(&line).unwrap();
            let Message::Response { id, answer } = message else { panic!("not a response") };
            let server = if client == Era::Modern { Era::Legacy } else { Era::Modern };
            let reply =
                Answer::new(&line, text, id, answer).reply(&id_of_client(), None, Passage { client, server, is_read });
            String::from_utf8(reply.joined().to_vec()).unwrap()
        };
        let gone = r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32002,"message":"m"}}"#;
        assert_eq!(
            crossed(gone, Era::Modern, true),
            r#"{"jsonrpc":"2.0","id":9,"error":{"code":-32602,"message":"m"}}"#
        );
        let gone = r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"m"}}"#;
        assert_eq!(
            crossed(gone, Era::Legacy, true),
            r#"{"jsonrpc":"2.0","id":9,"error":{"code":-32002,"message":"m"}}"#
        );
        assert_eq!(
            crossed(gone, Era::Legacy, false),
            r#"{"jsonrpc":"2.0","id":9,"error":{"code":-32602,"message":"m"}}"#
        );
        let read = r#"{"jsonrpc":"2.0","id":1,"result":{"contents":[ 1.0 ],"ttlMs":5,"cacheScope":"public","resultType":"complete"}}"#;
        assert_eq!(crossed(read, Era::Legacy, true), r#"{"jsonrpc":"2.0","id":9,"result":{"contents":[ 1.0 ]}}"#);
        let read = r#"{"jsonrpc":"2.0","id":1,"result":{"contents":[]}}"#;
        let hinted = r#"{"jsonrpc":"2.0","id":9,"result":{"resultType":"complete","ttlMs":0,"cacheScope":"private","contents":[]}}"#;
        assert_eq!(crossed(read, Era::Modern, true), hinted);
    }

    fn id_of_client() -> Bytes {
        Bytes::from_static(b"9")
    }
}
