//! Clients whose requests carry their own metadata: 2026-07-28.

use std::sync::Arc;

use axum::body::Body;
use axum::http::{HeaderMap, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde_json::Value;

use super::body::ready;
use super::post::{Accepts, one};
use super::relay::{Asked, relay};
use super::respond::{self, Refusal};
use super::serve::{Front, Mounted};
use super::stream::{Changed, News};
use crate::broker::{Client, Listening, PolicyFailed, RequestFacts};
use crate::protocol::envelope::Message;
use crate::protocol::error::{HEADER_MISMATCH, METHOD_NOT_FOUND, RpcError, shown};
use crate::protocol::raw::{entries, members, object, string};
use crate::protocol::version::{Era, MODERN, meta};
use crate::snapshot::{Backend, Tool};
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
    Ok(match &*method {
        "server/discover" => one(ready(id, &mounted.backend.surface.discover), accepts),
        "subscriptions/listen" => listen(front, mounted, scope, accepts, id, params)?,
        other => {
            if let Some(name) = named(other, params) {
                check_header(headers, "mcp-name", &name).map_err(bad)?;
                let tool = mounted.backend.tool(&name).filter(|_| other == "tools/call");
                check_mirrored(headers, tool, params).map_err(bad)?;
            }
            // Without a stream it hears nothing on the way, but it can be asked: that ends its request.
            let client = Client { key: front.lone_client(), scope, era: Era::Modern, hears: true, recipient: None };
            let asked = Asked { accepts, body, text, id, method: other, params };
            match relay(front, mounted, client, asked, None).await {
                Ok(answer) => answer,
                Err(error) if error.code == METHOD_NOT_FOUND => {
                    return Err(Refusal::NoSuchMethod(other.to_owned(), id.to_owned()));
                }
                Err(error) => respond::rpc_error(&error, id),
            }
        }
    })
}

/// What the header `Mcp-Name` has to repeat of a request (2026-07-28, `transports/streamable-http`, Headers).
fn named(method: &str, params: Option<&str>) -> Option<String> {
    let key = match method {
        "tools/call" | "prompts/get" => "name",
        "resources/read" => "uri",
        _ => return None,
    };
    let [name] = members(params?, [key]).ok()?;
    name.and_then(string).map(|name| name.into_owned())
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
    Some(object(own))
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

/// Headers that repeat arguments, of the few tools that have such.
fn check_mirrored(headers: &HeaderMap, tool: Option<&Tool>, params: Option<&str>) -> Result<(), RpcError> {
    let Some(mirrored) = tool.map(|tool| &tool.mirrored).filter(|mirrored| !mirrored.is_empty()) else { return Ok(()) };
    let arguments = params.and_then(|params| members(params, ["arguments"]).ok()?[0]);
    for mirrored in mirrored.iter() {
        match mirrored.expected(arguments) {
            Some(expected) => check_header(headers, &mirrored.header, &expected)?,
            None if headers.contains_key(&mirrored.header) => {
                let why = format!("Header mismatch: {} is there, and its argument is not", mirrored.header);
                return Err(RpcError::new(HEADER_MISMATCH, why));
            }
            None => {}
        }
    }
    Ok(())
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
    scope: ScopeKey,
    accepts: Accepts,
    id: &str,
    params: Option<&str>,
) -> Result<Response<Body>, Refusal> {
    if !accepts.events {
        return Err(Refusal::NotAcceptable);
    }
    let wanted = Wanted::parse(params).map_err(|error| Refusal::BadRequest(error, Some(id.to_owned())))?;
    let place = front.listeners.take().ok_or(Refusal::TooManyStreams)?;
    let mut agreed = wanted.agreed(&mounted.backend);
    let listening = (!agreed.subscriptions.is_empty()).then(|| {
        let instance = InstanceKey { backend: mounted.backend.name.clone(), scope };
        front.broker.listen(instance, front.lone_client(), &agreed.subscriptions)
    });
    agreed.subscriptions = listening.as_ref().map(Listening::agreed).unwrap_or_default();
    let of_stream = format!(r#""_meta":{{"{}":{id}}}"#, meta::SUBSCRIPTION_ID);
    let notice = |method: &str, params: &str| {
        format!(r#"{{"jsonrpc":"2.0","method":"{method}","params":{{{params}{of_stream}}}}}"#)
    };
    let news = News {
        broker: front.broker.clone(),
        backend: mounted.backend.name.clone(),
        revisions: front.broker.revisions(),
        known: mounted.backend.surface.digests(),
        ended: None,
        shutdown: front.shutdown.clone(),
        greeting: Some(notice(
            "notifications/subscriptions/acknowledged",
            &format!(r#""notifications":{},"#, agreed.shown()),
        )),
        changed: Changed {
            tools: agreed.tools.then(|| notice("notifications/tools/list_changed", "")),
            prompts: agreed.prompts.then(|| notice("notifications/prompts/list_changed", "")),
            resources: agreed.resources.then(|| notice("notifications/resources/list_changed", "")),
        },
        farewell: Some(format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"resultType":"complete",{of_stream}}}}}"#)),
        mail: listening.as_ref().map(|listening| listening.recipient.open()),
        listening,
        subscription: Some(id.to_owned()),
        place,
        reader: None,
    };
    Ok(respond::events(news.into_body()))
}

/// What a stream is to tell of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Wanted {
    tools: bool,
    prompts: bool,
    resources: bool,
    /// Addresses of single resources.
    subscriptions: Vec<String>,
}

impl Wanted {
    fn parse(params: Option<&str>) -> Result<Self, RpcError> {
        let malformed =
            |e: serde_json::Error| RpcError::invalid_params(format!("`notifications` of the subscription: {e}"));
        let [filter] = params.map_or(Ok([None]), |params| members(params, ["notifications"])).map_err(malformed)?;
        let filter = filter.ok_or_else(|| RpcError::invalid_params("a subscription needs `notifications`"))?;
        let [tools, prompts, resources, subscriptions] = members(
            filter,
            ["toolsListChanged", "promptsListChanged", "resourcesListChanged", "resourceSubscriptions"],
        )
        .map_err(malformed)?;
        let [tools, prompts, resources] = [tools, prompts, resources].map(|flag| flag == Some("true"));
        let subscriptions = subscriptions.filter(|raw| *raw != "null").map(serde_json::from_str).transpose();
        let subscriptions = subscriptions.map_err(malformed)?.unwrap_or_default();
        Ok(Self { tools, prompts, resources, subscriptions })
    }

    /// What the backend does not offer is left out (2026-07-28, `basic/patterns/subscriptions`).
    fn agreed(self, backend: &Backend) -> Self {
        let offered = backend.surface.digests();
        Self {
            tools: self.tools,
            prompts: self.prompts && offered.prompts.is_some(),
            resources: self.resources && offered.resources.is_some() && backend.offers.resources,
            subscriptions: if backend.offers.subscriptions { self.subscriptions } else { Vec::new() },
        }
    }

    /// As the acknowledgement names it.
    fn shown(&self) -> String {
        let flags = [
            ("toolsListChanged", self.tools),
            ("promptsListChanged", self.prompts),
            ("resourcesListChanged", self.resources),
        ];
        let flags = flags.into_iter().filter(|(_, is_agreed)| *is_agreed);
        let mut agreed: Vec<String> = flags.map(|(name, _)| format!(r#""{name}":true"#)).collect();
        if !self.subscriptions.is_empty() {
            agreed.push(format!(r#""resourceSubscriptions":{}"#, Value::from(self.subscriptions.as_slice())));
        }
        format!("{{{}}}", agreed.join(","))
    }
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
