//! Requests that are answered alike in both eras: lists from the snapshot, what the broker keeps, and everything else by a
//! server.

use std::sync::Arc;

use axum::body::Body;
use axum::http::Response;
use bytes::Bytes;

use super::body::ready;
use super::post::{Accepts, answer_call, made, one};
use super::resources::Kept;
use super::serve::{Front, Mounted};
use super::session::Hold;
use crate::broker::Client;
use crate::protocol::call::CallRequest;
use crate::protocol::error::RpcError;
use crate::protocol::raw::members;

/// A request, as its era has let it in.
pub(super) struct Asked<'a> {
    pub accepts: Accepts,
    pub body: &'a Bytes,
    /// The body, and the parts of it.
    pub text: &'a str,
    pub id: &'a str,
    pub method: &'a str,
    pub params: Option<&'a str>,
}

/// The answer; an error is one of the protocol, and how it is sent is a matter of the era.
pub(super) async fn relay(
    front: &Arc<Front>,
    mounted: &Mounted,
    client: Client,
    asked: Asked<'_>,
    hold: Option<Hold>,
) -> Result<Response<Body>, RpcError> {
    let Asked { accepts, body, text, id, method, params } = asked;
    if let Some(kept) = Kept::asked(mounted, method, params) {
        let answer = kept?.answer(front, mounted, client.scope, client.era).await?;
        return Ok(made(id, &answer, accepts));
    }
    if let Some(list) = mounted.backend.surface.list(method) {
        first_page(params)?;
        return Ok(one(ready(id, list.answer(client.era)), accepts));
    }
    if is_known_to_the_broker(method) {
        return Err(RpcError::method_not_found(method));
    }
    let request = CallRequest::parse(body, text, id, method, params)?;
    let call = front.broker.call(&mounted.backend, client, request)?;
    Ok(answer_call(front, call, accepts, hold).await)
}

/// Methods of the protocol that are the broker's to answer: where it has no answer, nobody has. What only looks unknown
/// to it may be known to a server.
fn is_known_to_the_broker(method: &str) -> bool {
    const OF_THE_PROTOCOL: [&str; 13] = [
        "initialize",
        "ping",
        "server/discover",
        "logging/setLevel",
        "tools/list",
        "prompts/list",
        "resources/list",
        "resources/templates/list",
        "resources/subscribe",
        "resources/unsubscribe",
        "subscriptions/listen",
        "sampling/createMessage",
        "elicitation/create",
    ];
    OF_THE_PROTOCOL.contains(&method) || method == "roots/list" || method.starts_with("tasks/")
}

/// Lists are one page, so any cursor is one that was never given out.
pub(super) fn first_page(params: Option<&str>) -> Result<(), RpcError> {
    match params.map(|params| members(params, ["cursor"])) {
        None | Some(Ok([None | Some("null")])) => Ok(()),
        Some(Ok([Some(_)])) => Err(RpcError::invalid_params("Invalid cursor: this list has one page")),
        Some(Err(e)) => Err(RpcError::invalid_params(format!("`params`: {e}"))),
    }
}
