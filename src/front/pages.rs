//! `/health`, `/ready`, `/status`, `/metrics` and `/events`: what they say is so, and none of them wakes anything.

use std::sync::Arc;

use axum::body::Body;
use axum::http::request::Parts;
use axum::http::{Method, Response, StatusCode};

use serde_json::{Value, json};

use super::respond::{self, Refusal};
use super::serve::Front;

const TEXT: &str = "text/plain; charset=utf-8";
const JSON: &str = "application/json";
const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

pub(super) async fn answer(front: &Arc<Front>, request: &Parts) -> Result<Response<Body>, Refusal> {
    let (method, path) = (&request.method, request.uri.path());
    let is_page = matches!(path, "/" | "/health" | "/ready" | "/status" | "/metrics" | "/events");
    if !is_page {
        return Err(Refusal::NoSuchPath);
    }
    if method != Method::GET && method != Method::HEAD {
        return Err(Refusal::MethodNotAllowed("GET, HEAD"));
    }
    Ok(match path {
        "/health" => respond::page(StatusCode::OK, TEXT, "alive\n"),
        "/ready" => ready(front),
        "/events" => super::events::answer(front, request)?,
        "/metrics" => {
            let text = front.broker.metrics(front.sessions.len()).await;
            respond::page(StatusCode::OK, OPENMETRICS, text)
        }
        "/" => respond::page(StatusCode::OK, TEXT, mounts(front)),
        _ => {
            let status = front.broker.status(counts(front)).await;
            respond::page(StatusCode::OK, JSON, status.to_string())
        }
    })
}

/// What the front adds to the totals of the status.
pub(super) fn counts(front: &Front) -> Value {
    let resumable = front.replays.occupancy();
    json!({
        "sessions": front.sessions.len(), "sessions_max": front.sessions.max(),
        "listening": front.listeners.taken(), "requests": front.requests.taken(),
        "resumable_streams": resumable.streams, "resumable_streams_max": resumable.streams_max,
        "resumable_bytes": resumable.bytes, "resumable_bytes_max": resumable.bytes_max,
    })
}

/// Where a browser lands.
fn mounts(front: &Front) -> String {
    let snapshot = front.broker.snapshot();
    let mounts: String = snapshot.backends.values().map(|backend| format!("  {}\n", backend.mount())).collect();
    format!(
        "lazy-mcp {}: MCP servers at\n{mounts}See /status, /ready, /health, /events and /metrics.\n",
        env!("CARGO_PKG_VERSION")
    )
}

/// Ready: configuration, catalogs and policies are valid, leftovers of an earlier broker are proved gone, and the
/// supervisor runs. Says nothing of whether the servers themselves would work: that takes a call (`lazy-mcp probe`).
fn ready(front: &Front) -> Response<Body> {
    let reasons = front.broker.readiness.reasons();
    if reasons.is_empty() {
        respond::page(StatusCode::OK, TEXT, "ready\n")
    } else {
        let text = format!("not ready\n{}\n", reasons.join("\n"));
        respond::page(StatusCode::SERVICE_UNAVAILABLE, TEXT, text)
    }
}
