//! Clients that open with `initialize`: 2024-11-05 to 2025-11-25.

use std::sync::Arc;

use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, Response};
use bytes::Bytes;

use super::body::ready;
use super::post::{Accepts, accepts, one};
use super::relay::{Asked, relay};
use super::replay::{EventId, Kind};
use super::respond::{self, Refusal, SESSION_ID};
use super::serve::{Front, Mounted};
use super::session::Session;
use super::stream::{Changed, News};
use crate::broker::Client;
use crate::protocol::call::{CallRequest, cancelled_request};
use crate::protocol::envelope::Message;
use crate::protocol::error::RpcError;
use crate::protocol::raw::{members, string};
use crate::protocol::version::{ASSUMED_LEGACY, Era, LEGACY, MODERN, negotiate};
use crate::supervisor::{InstanceKey, ScopeKey};

pub(super) async fn answer(
    front: &Arc<Front>,
    mounted: &Mounted,
    headers: &HeaderMap,
    accepts: Accepts,
    body: &Bytes,
    text: &str,
    message: Message<'_>,
) -> Result<Response<Body>, Refusal> {
    if let Message::Request { id, method, params } = &message
        && method == "initialize"
    {
        return initialize(front, mounted, accepts, id, *params);
    }
    check_version(headers, Some(&message))?;
    let session = session(front, mounted, headers)?;
    match message {
        Message::Request { id, method, params } => match &*method {
            "ping" => Ok(one(format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{}}}}"#).into(), accepts)),
            "logging/setLevel" => {
                let key = instance(mounted, &session);
                let set = front.broker.set_log_level(&mounted.backend, &key, &session.recipient, params);
                Ok(done(set, id, accepts))
            }
            "resources/subscribe" | "resources/unsubscribe" => {
                let (key, recipient) = (instance(mounted, &session), &session.recipient);
                let set = match CallRequest::parse(body, text, id, &method, params) {
                    Ok(request) => front.broker.subscribe(&mounted.backend, &key, recipient, &method, &request).await,
                    Err(error) => Err(error),
                };
                Ok(done(set, id, accepts))
            }
            other => {
                let client = Client {
                    key: session.id,
                    scope: scope(mounted, &session),
                    era: Era::Legacy,
                    hears: accepts.events,
                    recipient: Some(session.recipient.clone()),
                };
                let asked = Asked { accepts, body, text, id, method: other, params };
                let answer = relay(front, mounted, client, asked, Some(session.hold())).await;
                Ok(answer.unwrap_or_else(|error| respond::rpc_error(&error, id)))
            }
        },
        Message::Notification { method, params } => {
            let key = instance(mounted, &session);
            match (&*method, cancelled_request(params)) {
                ("notifications/cancelled", Some(request)) => {
                    front.broker.cancel(&key, session.id, Some(request), "the client cancelled the request");
                }
                (method, _) => front.broker.notify(&key, method, body),
            }
            Ok(respond::accepted())
        }
        // Of a question that nobody asks any more it is too late, and harmless.
        Message::Response { id, answer } => {
            front.broker.answered(&instance(mounted, &session), session.id, body, text, id, answer);
            Ok(respond::accepted())
        }
    }
}

fn instance(mounted: &Mounted, session: &Session) -> InstanceKey {
    InstanceKey { backend: mounted.backend.name.clone(), scope: scope(mounted, session) }
}

/// The answer to a request that has nothing to tell.
fn done(outcome: Result<(), RpcError>, id: &str, accepts: Accepts) -> Response<Body> {
    match outcome {
        Ok(()) => one(format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{}}}}"#).into(), accepts),
        Err(error) => respond::rpc_error(&error, id),
    }
}

/// GET: a stream for what is not the answer to a request; with `Last-Event-ID`, the rest of the stream of that event.
///
/// Of a call's stream that has no rest, 405 is the answer: it is what a GET without a stream is to be answered
/// (2025-11-25, `transports`, Listening for Messages), and where the SDKs for TypeScript and Rust give up and the one for
/// Python fails the request. With any other status the Rust one tries for ever; with a stream for news, they would hold
/// one more for each call that ended in an error: the TypeScript one comes back for more after those. A stream for news
/// that nobody knows any more is another one.
pub(super) fn open_stream(
    front: &Arc<Front>,
    mounted: &Mounted,
    headers: &HeaderMap,
) -> Result<Response<Body>, Refusal> {
    check_stream_version(headers)?;
    if !accepts(headers).is_some_and(|accepts| accepts.events) {
        return Err(Refusal::NotAcceptable);
    }
    let session = session(front, mounted, headers)?;
    let last_event = headers.get("last-event-id").and_then(|id| id.to_str().ok()?.parse::<EventId>().ok());
    let resumed = last_event.map(|id| (id.kind, front.replays.come_back(&session, id)));
    let reader = match resumed {
        Some((Kind::Call, rest)) => return Ok(respond::events(rest.ok_or(Refusal::NothingToResume)?.into_body(true))),
        Some((Kind::Listening, rest)) => rest,
        None => None,
    };
    let place = session.streams.take().ok_or(Refusal::TooManyStreams)?;
    let reader = reader.unwrap_or_else(|| front.replays.begin(Kind::Listening, &session));
    let news = News {
        broker: front.broker.clone(),
        backend: mounted.backend.name.clone(),
        revisions: front.broker.revisions(),
        known: mounted.backend.surface.digests(),
        ended: Some(session.ended.clone()),
        shutdown: front.shutdown.clone(),
        greeting: None,
        changed: Changed::legacy(),
        farewell: None,
        mail: Some(session.recipient.open()),
        listening: None,
        subscription: None,
        place,
        reader: Some(reader),
    };
    Ok(respond::events(news.into_body()))
}

/// DELETE: the session is over, and with it what it alone used.
pub(super) fn end_session(
    front: &Arc<Front>,
    mounted: &Mounted,
    headers: &HeaderMap,
) -> Result<Response<Body>, Refusal> {
    check_stream_version(headers)?;
    let session = session(front, mounted, headers)?;
    if let Err(e) = front.sessions.end(&session) {
        // It is over all the same, but a restarted broker would take the id back.
        tracing::warn!(error = %e, "failed to remember an ended session");
    }
    front.replays.forget(session.id);
    front.broker.end_session(&session.backend, session.id);
    Ok(respond::no_content())
}

fn initialize(
    front: &Arc<Front>,
    mounted: &Mounted,
    accepts: Accepts,
    id: &str,
    params: Option<&str>,
) -> Result<Response<Body>, Refusal> {
    let bad = |why: String| Refusal::BadRequest(RpcError::invalid_params(why), Some(id.to_owned()));
    let params = params.ok_or_else(|| bad("initialize needs `params`".into()))?;
    let [version, capabilities] = members(params, ["protocolVersion", "capabilities"])
        .map_err(|e| bad(format!("`params` of initialize: {e}")))?;
    let version = version.and_then(string).ok_or_else(|| bad("`params.protocolVersion` must be a string".into()))?;
    let version = negotiate(&version);
    let backend = &mounted.backend;
    let session = front
        .sessions
        .begin(&backend.name, version, capabilities.unwrap_or("{}"))
        .map_err(|e| bad(format!("no session could be made: {e}")))?;
    let mut response = one(ready(id, &backend.surface.initialize(version)), accepts);
    let header = HeaderValue::from_str(&session).expect("a session id is base64url");
    response.headers_mut().insert(SESSION_ID, header);
    Ok(response)
}

/// What keys the instance: the session comes before any named key (`docs/architecture.md`, Scope).
fn scope(mounted: &Mounted, session: &Session) -> ScopeKey {
    if mounted.backend.is_shared() { ScopeKey::Shared } else { ScopeKey::Session(session.id) }
}

fn session(front: &Front, mounted: &Mounted, headers: &HeaderMap) -> Result<Arc<Session>, Refusal> {
    let token = headers.get(SESSION_ID).ok_or(Refusal::NoSession)?;
    let token = token.to_str().map_err(|_| Refusal::SessionNotFound)?;
    front.sessions.find(&mounted.backend.name, token).ok_or(Refusal::SessionNotFound)
}

/// A version header must name a version that `initialize` can agree on; without one, 2025-03-26 is meant.
fn check_version(headers: &HeaderMap, message: Option<&Message<'_>>) -> Result<(), Refusal> {
    let version = headers.get("mcp-protocol-version").map_or(ASSUMED_LEGACY.as_bytes(), HeaderValue::as_bytes);
    if LEGACY.iter().any(|known| known.as_bytes() == version) {
        return Ok(());
    }
    let id = match message {
        Some(Message::Request { id, .. }) => Some((*id).to_owned()),
        _ => None,
    };
    Err(Refusal::BadRequest(respond::unsupported_version(&String::from_utf8_lossy(version)), id))
}

/// GET and DELETE belong to sessions, which the modern version does not have.
fn check_stream_version(headers: &HeaderMap) -> Result<(), Refusal> {
    match headers.get("mcp-protocol-version") {
        Some(version) if version.as_bytes() == MODERN.as_bytes() => Err(Refusal::MethodNotAllowed("POST")),
        _ => check_version(headers, None),
    }
}
