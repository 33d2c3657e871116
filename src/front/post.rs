//! A POST: one JSON-RPC message, of either era.

use std::sync::Arc;

use axum::body::Body;
use axum::http::header::{ACCEPT, CONTENT_TYPE};
use axum::http::{HeaderMap, Request, Response};
use bytes::Bytes;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};

use super::respond::{self, Refusal};
use super::serve::{Front, Mounted};
use super::session::Hold;
use super::{body, legacy, modern, resume, stream};
use crate::broker::{Call, CallEvent};
use crate::protocol::call::parse_text;
use crate::protocol::envelope::Message;
use crate::protocol::raw::{Pieces, members, string};
use crate::protocol::version::{MODERN, meta};

/// What the client takes as an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Accepts {
    pub json: bool,
    pub events: bool,
}

pub(super) async fn answer(
    front: &Arc<Front>,
    mounted: Mounted,
    request: Request<Body>,
) -> Result<Response<Body>, Refusal> {
    let (head, body) = request.into_parts();
    let headers = &head.headers;
    if !has_json(headers) {
        return Err(Refusal::WrongContentType);
    }
    let accepts = accepts(headers).ok_or(Refusal::NotAcceptable)?;
    let body = read(body, mounted.snapshot.config.server.body_bytes_max).await?;
    let (text, message) = parse_text(&body).map_err(|fault| Refusal::NotAMessage(fault.error, fault.id))?;
    if is_modern(headers, &message) {
        return modern::answer(front, &mounted, headers, accepts, &body, text, message).await;
    }
    legacy::answer(front, &mounted, headers, accepts, &body, text, message).await
}

/// The answer to a call: plain JSON if nothing has to be said before the result, else a stream.
/// A session's client, which is told by `hold`, can come back to the stream.
pub(super) async fn answer_call(front: &Front, mut call: Call, accepts: Accepts, hold: Option<Hold>) -> Response<Body> {
    loop {
        match call.next().await {
            CallEvent::Ended(reply) => {
                let id = call.id();
                let status = respond::status(reply.error_code(), call.era());
                let message = respond::reply(reply, &String::from_utf8_lossy(&id), &call.backend().name, call.era());
                let mut response = one(message, accepts);
                *response.status_mut() = status;
                return response;
            }
            CallEvent::Notice(message) if accepts.events => {
                return respond::events(streamed(front, call, Some(message), hold));
            }
            CallEvent::Quiet if accepts.events => return respond::events(streamed(front, call, None, hold)),
            // A client that takes no stream gets the result alone.
            CallEvent::Notice(_) | CallEvent::Quiet => {}
        }
    }
}

fn streamed(front: &Front, call: Call, first: Option<Bytes>, hold: Option<Hold>) -> Body {
    match hold {
        Some(hold) => resume::of_call(front, call, first, hold),
        None => stream::of_call(call, first),
    }
}

/// One message, in the form that the client takes.
pub(super) fn one(message: Pieces, accepts: Accepts) -> Response<Body> {
    if accepts.json { respond::message(message) } else { respond::events(stream::of_message(message)) }
}

/// The same for a ready answer of the broker's own, `rest` from behind the id on. However large, it is not copied.
pub(super) fn made(id: &str, rest: &Bytes, accepts: Accepts) -> Response<Body> {
    let message = body::ready(id, rest);
    if accepts.json { respond::message(message) } else { respond::events(body::of_event(message)) }
}

pub(super) async fn read(body: Body, max: usize) -> Result<Bytes, Refusal> {
    match Limited::new(body, max).collect().await {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(e) if e.is::<LengthLimitError>() => Err(Refusal::BodyTooLarge(max)),
        Err(_) => Err(Refusal::BodyUnreadable),
    }
}

/// A request is modern if its metadata or its headers say so. `initialize` is the legacy way in, whatever its headers
/// say; only one with the metadata of the modern era is a request for what that era does not have.
fn is_modern(headers: &HeaderMap, message: &Message<'_>) -> bool {
    let (method, params) = match message {
        Message::Request { method, params, .. } | Message::Notification { method, params } => (method, *params),
        Message::Response { .. } => return false,
    };
    let header_says =
        |name: &str, value: &str| headers.get(name).is_some_and(|found| found.as_bytes() == value.as_bytes());
    if method != "initialize" && (header_says("mcp-protocol-version", MODERN) || method == "server/discover") {
        return true;
    }
    let Some(Ok([Some(meta_object)])) = params.map(|params| members(params, ["_meta"])) else { return false };
    matches!(members(meta_object, [meta::PROTOCOL_VERSION]), Ok([Some(version)]) if string(version).is_some())
}

pub(super) fn has_json(headers: &HeaderMap) -> bool {
    headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).is_some_and(is_json_type)
}

fn is_json_type(value: &str) -> bool {
    let kind = value.split(';').next().unwrap_or_default().trim();
    kind.eq_ignore_ascii_case("application/json")
}

/// `None` if neither form is acceptable. A client that says nothing takes JSON.
pub(super) fn accepts(headers: &HeaderMap) -> Option<Accepts> {
    let mut accepts = Accepts { json: false, events: false };
    let mut values = headers.get_all(ACCEPT).iter().peekable();
    if values.peek().is_none() {
        return Some(Accepts { json: true, events: false });
    }
    for range in values.filter_map(|value| value.to_str().ok()).flat_map(|value| value.split(',')) {
        match range.split(';').next().unwrap_or_default().trim().to_ascii_lowercase().as_str() {
            "application/json" | "application/*" => accepts.json = true,
            "text/event-stream" | "text/*" => accepts.events = true,
            "*/*" => accepts = Accepts { json: true, events: true },
            _ => {}
        }
    }
    (accepts.json || accepts.events).then_some(accepts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(accept: Option<&str>, expected: Option<(bool, bool)>) {
        let mut headers = HeaderMap::new();
        if let Some(accept) = accept {
            headers.insert(ACCEPT, accept.parse().unwrap());
        }
        assert_eq!(accepts(&headers), expected.map(|(json, events)| Accepts { json, events }), "{accept:?}");
    }

    #[test]
    fn what_clients_accept() {
        check(Some("application/json, text/event-stream"), Some((true, true)));
        check(Some("Text/Event-Stream;q=0.5"), Some((false, true)));
        check(Some("*/*"), Some((true, true)));
        check(Some("text/html"), None);
        check(None, Some((true, false)));
    }

    #[test]
    fn content_types() {
        assert!(is_json_type("application/json; charset=utf-8") && is_json_type("Application/JSON"));
        assert!(!is_json_type("text/plain") && !is_json_type("application/jsonx"));
    }
}
