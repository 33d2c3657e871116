//! Clients whose requests carry their own metadata: 2026-07-28.

use std::sync::Arc;

use axum::body::Body;
use axum::http::{HeaderMap, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde_json::Value;

use super::body::ready;
use super::legacy::first_page;
use super::post::{Accepts, answer_call, made, one};
use super::resources::Asked;
use super::respond::{self, Refusal};
use super::serve::{Front, Mounted};
use super::stream::News;
use crate::broker::{Client, PolicyFailed, RequestFacts};
use crate::protocol::call::CallRequest;
use crate::protocol::envelope::Message;
use crate::protocol::error::{HEADER_MISMATCH, RpcError, shown};
use crate::protocol::raw::{entries, members, string};
use crate::protocol::version::{Era, MODERN, meta};
use crate::supervisor::ScopeKey;

pub(super) async fn answer(
    front: &Arc<Front>,
    mounted: &Mounted,
    headers: &HeaderMap,
    accepts: Accepts,
    body: &Bytes,
    text: &str,
    message: Message<'_>,
) -> Result<Response<Body>, Refusal> {
    let (id, method, params) = match message {
        Message::Request { id, method, params } => (id, method, params),
        // Cancellation is the closing of a stream, so no notification of a modern client means anything here; and
        // clients do not post responses.
        Message::Notification { .. } | Message::Response { .. } => return Ok(respond::accepted()),
    };
    // Before anything else, so that a client of both eras falls back whatever it asks.
    let scope = match mounted.scope_without_session() {
        Some(scope) => scope,
        None => scope_by_policy(front, mounted, headers, id, &method, params).await?,
    };
    let bad = |error| Refusal::BadRequest(error, Some(id.to_owned()));
    check_metadata(headers, params).map_err(bad)?;
    check_header(headers, "mcp-method", &method).map_err(bad)?;
    let surface = &mounted.backend.surface;
    Ok(match &*method {
        "server/discover" => one(ready(id, &surface.discover), accepts),
        "tools/list" => match first_page(params) {
            Ok(()) => one(ready(id, &surface.tools_modern), accepts),
            Err(error) => respond::rpc_error(&error, id),
        },
        "tools/call" => match CallRequest::parse(body, text, id, params) {
            Ok(request) => {
                check_header(headers, "mcp-name", &request.tool).map_err(bad)?;
                let client = Client { key: front.lone_client(), scope, era: Era::Modern };
                match front.broker.call(&mounted.backend, client, request) {
                    Ok(call) => answer_call(call, accepts, None).await,
                    Err(error) => respond::rpc_error(&error, id),
                }
            }
            Err(error) => respond::rpc_error(&error, id),
        },
        "subscriptions/listen" => listen(front, mounted, accepts, id, params)?,
        other => {
            let Some(asked) = Asked::parse(mounted, other, params) else {
                return Err(Refusal::NoSuchMethod(other.to_owned(), id.to_owned()));
            };
            if let Ok(Asked::Read { uri }) = &asked {
                check_header(headers, "mcp-name", uri).map_err(bad)?;
            }
            let answer = match asked {
                Ok(asked) => asked.answer(front, mounted, scope, Era::Modern).await,
                Err(error) => Err(error),
            };
            match answer {
                Ok(rest) => made(id, &rest, accepts),
                Err(error) => respond::rpc_error(&error, id),
            }
        }
    })
}

/// The scope key that the policy makes of a request that names none.
async fn scope_by_policy(
    front: &Front,
    mounted: &Mounted,
    headers: &HeaderMap,
    id: &str,
    method: &str,
    params: Option<&str>,
) -> Result<ScopeKey, Refusal> {
    let facts = || RequestFacts {
        method: method.to_owned(),
        tool: params.filter(|_| method == "tools/call").and_then(|params| {
            let [name] = members(params, ["name"]).ok()?;
            name.and_then(string).map(|name| name.into_owned())
        }),
        meta: params.and_then(own_meta),
        headers: headers_for_policies(headers),
    };
    match front.broker.scope_by_policy(&mounted.backend, facts).await {
        Ok(Some(scope)) => Ok(scope),
        Ok(None) => Err(Refusal::NeedsSession(id.to_owned())),
        Err(PolicyFailed) => Err(Refusal::PolicyFailed(mounted.backend.name.to_string(), id.to_owned())),
    }
}

/// `_meta` without what the protocol puts there: the client's name must not become a key.
fn own_meta(params: &str) -> Option<String> {
    let [meta_object] = members(params, ["_meta"]).ok()?;
    let own = entries(meta_object?).ok()?.into_iter().filter(|(key, _)| !key.starts_with(meta::PREFIX));
    let own: Vec<String> = own.map(|(key, value)| format!("{}:{value}", Value::from(key.into_owned()))).collect();
    Some(format!("{{{}}}", own.join(",")))
}

/// Those that are about the work; no credential, no connection, no program is in them.
fn headers_for_policies(headers: &HeaderMap) -> Vec<(String, String)> {
    let is_shown = |name: &str| {
        (name.starts_with("lazy-mcp-") || name.starts_with("mcp-")) && name != respond::SESSION_ID.as_str()
    };
    let names = headers.keys().map(|name| name.as_str()).filter(|name| is_shown(name));
    let text = |name: &str| {
        // A header that occurs twice is one list (RFC 9110, section 5.3).
        let values = headers.get_all(name).iter().map(|value| value.to_str().map(str::to_owned));
        values.collect::<Result<Vec<_>, _>>().ok().map(|values| values.join(", "))
    };
    names.filter_map(|name| Some((name.to_owned(), text(name)?))).collect()
}

/// The metadata that each request must carry, and the header that must agree with it (2026-07-28, `basic` and
/// `transports/streamable-http`, Request metadata and Headers).
fn check_metadata(headers: &HeaderMap, params: Option<&str>) -> Result<(), RpcError> {
    let malformed = |e: serde_json::Error| RpcError::invalid_params(format!("`params`: {e}"));
    let [meta_object] = params.map_or(Ok([None]), |params| members(params, ["_meta"])).map_err(malformed)?;
    let lacks = |key| RpcError::invalid_params(format!("`_meta` lacks \"{key}\""));
    let meta_object = meta_object.ok_or_else(|| lacks(meta::PROTOCOL_VERSION))?;
    let [version, capabilities] =
        members(meta_object, [meta::PROTOCOL_VERSION, meta::CLIENT_CAPABILITIES]).map_err(malformed)?;
    let version = version.and_then(string).ok_or_else(|| lacks(meta::PROTOCOL_VERSION))?;
    check_header(headers, "mcp-protocol-version", &version)?;
    if version != MODERN {
        return Err(respond::unsupported_version(&version));
    }
    match capabilities {
        Some(capabilities) if capabilities.starts_with('{') => Ok(()),
        _ => Err(lacks(meta::CLIENT_CAPABILITIES)),
    }
}

/// A header must be there and say what the body says.
fn check_header(headers: &HeaderMap, name: &str, expected: &str) -> Result<(), RpcError> {
    let mismatch = |why: String| RpcError::new(HEADER_MISMATCH, why);
    let Some(value) = headers.get(name) else {
        return Err(mismatch(format!("Header mismatch: {name} is missing")));
    };
    let value = value.to_str().ok().and_then(decoded);
    match value {
        Some(value) if value == expected => Ok(()),
        _ => Err(mismatch(format!("Header mismatch: {name} does not say '{}' as the body does", shown(expected)))),
    }
}

/// A header value, which is base64 between `=?base64?` and `?=` where it could not be sent as it is.
fn decoded(value: &str) -> Option<String> {
    match value.strip_prefix("=?base64?").and_then(|rest| rest.strip_suffix("?=")) {
        Some(encoded) => String::from_utf8(STANDARD.decode(encoded).ok()?).ok(),
        None => Some(value.to_owned()),
    }
}

/// A stream of changes. Held open it costs a few hundred bytes; it starts no server and keeps none awake.
fn listen(
    front: &Arc<Front>,
    mounted: &Mounted,
    accepts: Accepts,
    id: &str,
    params: Option<&str>,
) -> Result<Response<Body>, Refusal> {
    if !accepts.events {
        return Err(Refusal::NotAcceptable);
    }
    let wants_tools = wants_tools_changed(params).map_err(|error| Refusal::BadRequest(error, Some(id.to_owned())))?;
    let place = front.listeners.take().ok_or(Refusal::TooManyStreams)?;
    let agreed = if wants_tools { r#"{"toolsListChanged":true}"# } else { "{}" };
    let of_stream = format!(r#""_meta":{{"{}":{id}}}"#, meta::SUBSCRIPTION_ID);
    let notice = |method: &str, params: &str| {
        format!(r#"{{"jsonrpc":"2.0","method":"{method}","params":{{{params}{of_stream}}}}}"#)
    };
    let news = News {
        broker: front.broker.clone(),
        backend: mounted.backend.name.clone(),
        revisions: front.broker.revisions(),
        known: mounted.backend.surface.tools_digest,
        ended: None,
        shutdown: front.shutdown.clone(),
        greeting: Some(notice("notifications/subscriptions/acknowledged", &format!(r#""notifications":{agreed},"#))),
        tools_changed: wants_tools.then(|| notice("notifications/tools/list_changed", "")),
        farewell: Some(format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"resultType":"complete",{of_stream}}}}}"#)),
        place,
        hold: None,
    };
    Ok(respond::events(news.into_body()))
}

fn wants_tools_changed(params: Option<&str>) -> Result<bool, RpcError> {
    let malformed =
        |e: serde_json::Error| RpcError::invalid_params(format!("`notifications` of the subscription: {e}"));
    let [filter] = params.map_or(Ok([None]), |params| members(params, ["notifications"])).map_err(malformed)?;
    let filter = filter.ok_or_else(|| RpcError::invalid_params("a subscription needs `notifications`"))?;
    let [tools] = members(filter, ["toolsListChanged"]).map_err(malformed)?;
    Ok(tools == Some("true"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_say_what_the_body_says() {
        let mut headers = HeaderMap::new();
        assert_eq!(check_header(&headers, "mcp-name", "a").unwrap_err().code, -32020);
        headers.insert("mcp-name", "a".parse().unwrap());
        assert!(check_header(&headers, "mcp-name", "a").is_ok());
        assert!(check_header(&headers, "mcp-name", "A").is_err());
        headers.insert("mcp-name", "=?base64?w6Q=?=".parse().unwrap());
        assert!(check_header(&headers, "mcp-name", "ä").is_ok());
        headers.insert("mcp-name", "=?base64?***?=".parse().unwrap());
        assert!(check_header(&headers, "mcp-name", "ä").is_err());
    }
}
