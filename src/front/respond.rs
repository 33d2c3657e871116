//! The one place that chooses a status: everything the broker says over HTTP is made here.

use axum::body::Body;
use axum::http::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, WWW_AUTHENTICATE};
use axum::http::{HeaderName, HeaderValue, Response, StatusCode};
use bytes::Bytes;
use serde_json::json;

use super::admin::Unauthorized;
use super::body;
use super::guard::Foreign;
use crate::broker::Reply;
use crate::protocol::error::{
    HEADER_MISMATCH, INTERNAL_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND, MISSING_CAPABILITY, RpcError,
    SESSION_NOT_FOUND, UNSUPPORTED_VERSION, shown,
};
use crate::protocol::raw::Pieces;
use crate::protocol::version::{Era, supported};

pub(super) const SESSION_ID: HeaderName = HeaderName::from_static("mcp-session-id");
const ACCEL_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");
const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// A request that is turned away, with everything its answer needs.
#[derive(Debug)]
pub(super) enum Refusal {
    Foreign(Foreign),
    Unauthorized(Unauthorized),
    NoSuchPath,
    NoSuchBackend(String),
    BadScopeKey,
    MethodNotAllowed(&'static str),
    NotAcceptable,
    WrongContentType,
    BodyTooLarge(usize),
    BodyUnreadable,
    /// Nothing that could be read as a message.
    NotAMessage(RpcError, Option<String>),
    NoSession,
    SessionNotFound,
    /// A header that contradicts the body or the protocol (400).
    BadRequest(RpcError, Option<String>),
    /// Modern: an unknown method (404).
    NoSuchMethod(String, String),
    /// What a client that speaks both eras takes as "use `initialize`" (recorded with the clients of 2026).
    NeedsSession(String),
    /// The backend whose policy came to no scope key, and the request's id.
    PolicyFailed(String, String),
    TooManyStreams,
    TooManyRequests,
    /// A GET for the rest of a call's stream of which there is none.
    NothingToResume,
}

pub(super) fn refusal(refusal: Refusal) -> Response<Body> {
    use StatusCode as S;
    let invalid = |why: String| RpcError::invalid_request(&why);
    let (status, error, id) = match refusal {
        Refusal::Foreign(Foreign(why)) => (S::FORBIDDEN, RpcError::new(-32600, why), None),
        Refusal::Unauthorized(why) => return unauthorized(why),
        Refusal::NoSuchPath => (S::NOT_FOUND, invalid("no such path; backends are at /{backend}/mcp".into()), None),
        Refusal::NoSuchBackend(name) => {
            (S::NOT_FOUND, invalid(format!("no backend '{}' is served here; see /status", shown(&name))), None)
        }
        Refusal::BadScopeKey => {
            let why = "a scope key is 1 to 64 letters, digits, '.', '_', '~' or '-'";
            (S::BAD_REQUEST, invalid(why.into()), None)
        }
        Refusal::MethodNotAllowed(allowed) => {
            return not_allowed(&invalid(format!("method not allowed; allowed: {allowed}")), allowed);
        }
        Refusal::NothingToResume => {
            let why = "nothing more can be told of the stream of this Last-Event-ID: it is over, or not kept any more";
            return not_allowed(&invalid(why.into()), "POST, DELETE");
        }
        Refusal::NotAcceptable => {
            (S::NOT_ACCEPTABLE, invalid("the answer is application/json or text/event-stream; accept one".into()), None)
        }
        Refusal::WrongContentType => {
            (S::UNSUPPORTED_MEDIA_TYPE, invalid("Content-Type must be application/json".into()), None)
        }
        Refusal::BodyTooLarge(max) => (S::PAYLOAD_TOO_LARGE, invalid(format!("the body is over {max} bytes")), None),
        Refusal::BodyUnreadable => (S::BAD_REQUEST, invalid("the body ended early".into()), None),
        Refusal::NotAMessage(error, id) | Refusal::BadRequest(error, id) => (S::BAD_REQUEST, error, id),
        Refusal::NoSession => {
            (S::BAD_REQUEST, invalid("header Mcp-Session-Id is missing; send `initialize` first".into()), None)
        }
        Refusal::SessionNotFound => {
            let error = RpcError::new(SESSION_NOT_FOUND, "Session not found; send `initialize` again");
            (S::NOT_FOUND, error, None)
        }
        Refusal::NoSuchMethod(method, id) => (S::NOT_FOUND, RpcError::method_not_found(&method), Some(id)),
        Refusal::NeedsSession(id) => {
            let error = RpcError::new(
                METHOD_NOT_FOUND,
                "Method not found: this server needs a session; send `initialize`, or name a scope key in the URL or the Lazy-Mcp-Scope header",
            );
            (S::BAD_REQUEST, error, Some(id))
        }
        Refusal::PolicyFailed(backend, id) => {
            let why = format!("the policy of '{backend}' failed on this request, so it was refused");
            let facts = json!({"lazy-mcp/error": {"code": "policy_failed", "backend": backend}});
            (S::INTERNAL_SERVER_ERROR, RpcError::new(INTERNAL_ERROR, why).with_data(facts), Some(id))
        }
        Refusal::TooManyRequests => {
            (S::SERVICE_UNAVAILABLE, invalid("the broker has too many requests under way; try again".into()), None)
        }
        Refusal::TooManyStreams => (S::TOO_MANY_REQUESTS, invalid("too many streams are open; close one".into()), None),
    };
    error_response(status, &error, id.as_deref())
}

fn not_allowed(error: &RpcError, allowed: &'static str) -> Response<Body> {
    let mut response = error_response(StatusCode::METHOD_NOT_ALLOWED, error, None);
    response.headers_mut().insert(ALLOW, HeaderValue::from_static(allowed));
    response
}

/// RFC 6750, section 3.
fn unauthorized(why: Unauthorized) -> Response<Body> {
    let (challenge, said) = match why {
        Unauthorized::NoToken => (
            "Bearer realm=\"lazy-mcp\"",
            "Authorization must be `Bearer` and the content of admin.token in the state_dir",
        ),
        Unauthorized::WrongToken => (
            "Bearer realm=\"lazy-mcp\", error=\"invalid_token\"",
            "the token is not the content of admin.token in the state_dir of this broker",
        ),
    };
    let error = RpcError::new(INVALID_REQUEST, format!("Unauthorized: {said}"));
    let mut response = error_response(StatusCode::UNAUTHORIZED, &error, None);
    response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static(challenge));
    response
}

/// A refusal that `rmcp` chose, in words of its own.
pub(super) fn refused_by_rmcp(status: StatusCode, why: &str, id: Option<&str>) -> Response<Body> {
    error_response(status, &RpcError::invalid_request(why), id)
}

fn error_response(status: StatusCode, error: &RpcError, id: Option<&str>) -> Response<Body> {
    let mut response = json(Body::from(error.response(id)));
    *response.status_mut() = status;
    response
}

/// The versions that an `UnsupportedProtocolVersion` error offers.
pub(super) fn unsupported_version(requested: &str) -> RpcError {
    let supported: Vec<&str> = supported().collect();
    RpcError::new(UNSUPPORTED_VERSION, "Unsupported protocol version")
        .with_data(json!({"supported": supported, "requested": shown(requested)}))
}

/// 200 with one JSON message.
pub(super) fn message(pieces: Pieces) -> Response<Body> {
    json(body::of_pieces(pieces))
}

/// 200 with a JSON-RPC error: the way of legacy, where other statuses are about the session.
pub(super) fn rpc_error(error: &RpcError, id: &str) -> Response<Body> {
    json(Body::from(error.response(Some(id))))
}

/// The status of an answer that is one message. Only the modern era has others than 200 for errors: of a method that
/// nobody knows, and of what the request lacked (2026-07-28, `transports/streamable-http`).
pub(super) fn status(error: Option<i64>, era: Era) -> StatusCode {
    match (era, error) {
        (Era::Modern, Some(METHOD_NOT_FOUND)) => StatusCode::NOT_FOUND,
        (Era::Modern, Some(HEADER_MISMATCH | MISSING_CAPABILITY | UNSUPPORTED_VERSION)) => StatusCode::BAD_REQUEST,
        _ => StatusCode::OK,
    }
}

/// How a call ended, as one message.
pub(super) fn reply(reply: Reply, id: &str, backend: &str, era: Era) -> Pieces {
    match reply {
        Reply::Answer { message, .. } => message,
        Reply::Fault(fault) => {
            tracing::info!(backend, code = fault.code, "call failed");
            fault.response(id, backend, era).into()
        }
        Reply::Error(error) => error.response(Some(id)).into(),
    }
}

/// 202 without a body: a notification or response was taken.
pub(super) fn accepted() -> Response<Body> {
    empty(StatusCode::ACCEPTED)
}

pub(super) fn no_content() -> Response<Body> {
    empty(StatusCode::NO_CONTENT)
}

fn empty(status: StatusCode) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = status;
    response
}

/// 200 with an event stream, not to be buffered by anything between.
pub(super) fn events(stream: Body) -> Response<Body> {
    let mut response = Response::new(stream);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(ACCEL_BUFFERING, HeaderValue::from_static("no"));
    response
}

/// A page for people and scripts.
pub(super) fn page(status: StatusCode, content_type: &'static str, text: impl Into<Bytes>) -> Response<Body> {
    let mut response = Response::new(Body::from(text.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

fn json(body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    response.headers_mut().insert(CONTENT_TYPE, JSON);
    response
}
