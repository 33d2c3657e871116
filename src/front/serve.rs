//! The listener, and the way from a path to what answers it.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::{Method, Request, Response};
use axum::serve::ListenerExt as _;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::places::Places;
use super::respond::{Refusal, refusal};
use super::resume::Replays;
use super::session::Sessions;
use super::{AdminToken, admin, guard, legacy, pages, post};
use crate::broker::Broker;
use crate::core::scope_key::is_scope_key;
use crate::snapshot::{Backend, Snapshot};
use crate::supervisor::ScopeKey;

/// What every request is answered with.
#[derive(Debug)]
pub struct Front {
    pub broker: Arc<Broker>,
    pub sessions: Sessions,
    pub(super) admin_token: AdminToken,
    /// Ends streams that would else keep a shutdown waiting.
    pub shutdown: CancellationToken,
    /// Requests whose answer has not begun. Each may hold a body in memory.
    pub(super) requests: Places,
    /// Streams of clients without a session that wait for news.
    pub(super) listeners: Places,
    /// Streams that sessions can come back to.
    pub replays: Arc<Replays>,
    lone_clients: AtomicU64,
}

/// Requests under way at the same time. Each call that waits is one; more than the queues of many backends hold.
const REQUESTS_MAX: usize = 4096;
/// Listening streams of clients without a session. A client holds one for each backend.
const LISTENERS_MAX: usize = 1024;

impl Front {
    pub fn new(broker: Arc<Broker>, sessions: Sessions, admin_token: AdminToken, shutdown: CancellationToken) -> Self {
        let (requests, listeners) = (Places::new(REQUESTS_MAX), Places::new(LISTENERS_MAX));
        let (replays, lone_clients) = (Arc::new(Replays::new()), AtomicU64::new(0));
        Self { broker, sessions, admin_token, shutdown, requests, listeners, replays, lone_clients }
    }

    /// A client key for a request without a session: never that of a session, whose keys are random in 128 bits.
    pub(super) fn lone_client(&self) -> u128 {
        u128::from(self.lone_clients.fetch_add(1, Ordering::Relaxed))
    }
}

/// Binds the address. It is loopback: the configuration is refused otherwise.
pub async fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    TcpListener::bind(address).await
}

/// Serves until shutdown, then lets requests under way come to their end. Cancelling it drops them.
pub async fn serve(listener: TcpListener, front: Arc<Front>) -> io::Result<()> {
    let shutdown = front.shutdown.clone();
    let app = Router::new().fallback(answer).with_state(front);
    let listener = listener.tap_io(|stream| {
        // Small answers must not wait for each other. A socket that refuses is slower, not wrong.
        let _ = stream.set_nodelay(true);
    });
    axum::serve(listener, app).with_graceful_shutdown(shutdown.cancelled_owned()).await
}

/// A backend's URL: the backend and the scope key in it.
pub(super) struct Mounted {
    pub snapshot: Arc<Snapshot>,
    pub backend: Arc<Backend>,
    /// The key that the URL or the header names.
    pub named: Option<Arc<str>>,
}

impl Mounted {
    /// What a request without a session is scoped by, if anything.
    pub fn scope_without_session(&self) -> Option<ScopeKey> {
        match (self.backend.is_shared(), &self.named) {
            (true, _) => Some(ScopeKey::Shared),
            (false, Some(name)) => Some(ScopeKey::Named(name.clone())),
            (false, None) => None,
        }
    }
}

async fn answer(State(front): State<Arc<Front>>, request: Request<Body>) -> Response<Body> {
    match route(&front, request).await {
        Ok(response) => response,
        Err(refused) => refusal(refused),
    }
}

async fn route(front: &Arc<Front>, request: Request<Body>) -> Result<Response<Body>, Refusal> {
    guard::check(request.headers(), request.uri()).map_err(Refusal::Foreign)?;
    if request.uri().path() == admin::PATH {
        let _place = front.requests.take().ok_or(Refusal::TooManyRequests)?;
        return admin::answer(front, request).await;
    }
    let Some((name, key)) = mount_of(request.uri().path()) else {
        return pages::answer(front, &request.into_parts().0).await;
    };
    let _place = front.requests.take().ok_or(Refusal::TooManyRequests)?;
    let snapshot = front.broker.snapshot();
    let backend = snapshot.backend(name).cloned().ok_or_else(|| Refusal::NoSuchBackend(name.to_owned()))?;
    let header = request.headers().get("lazy-mcp-scope");
    let named = match (key, header) {
        (Some(key), _) => Some(key),
        (None, Some(header)) => Some(header.to_str().map_err(|_| Refusal::BadScopeKey)?),
        (None, None) => None,
    };
    if named.is_some_and(|key| !is_scope_key(key.as_bytes())) {
        return Err(Refusal::BadScopeKey);
    }
    let mounted = Mounted { snapshot, backend, named: named.map(Arc::from) };
    match *request.method() {
        Method::POST => post::answer(front, mounted, request).await,
        Method::GET => legacy::open_stream(front, &mounted, request.headers()),
        Method::DELETE => legacy::end_session(front, &mounted, request.headers()),
        _ => Err(Refusal::MethodNotAllowed("POST, GET, DELETE")),
    }
}

/// `/{backend}/mcp` and `/{backend}/s/{key}/mcp`.
fn mount_of(path: &str) -> Option<(&str, Option<&str>)> {
    let inner = path.strip_prefix('/')?.strip_suffix("/mcp")?;
    match inner.split_once('/') {
        None => Some((inner, None)),
        Some((backend, rest)) => rest.strip_prefix("s/").map(|key| (backend, Some(key))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_backends() {
        assert_eq!(mount_of("/playwright/mcp"), Some(("playwright", None)));
        assert_eq!(mount_of("/playwright/s/my-key/mcp"), Some(("playwright", Some("my-key"))));
        for path in ["/mcp", "/", "/status", "/playwright", "/playwright/x/mcp", "/playwright/mcp/"] {
            assert_eq!(mount_of(path), None, "{path}");
        }
    }
}
