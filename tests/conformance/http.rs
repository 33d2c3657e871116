//! The same server over Streamable HTTP, for a run without the broker.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::ensure;
use axum::Router;
use rmcp::transport::streamable_http_server::session::local::{LocalSessionManager, SessionConfig};
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::Server;
use crate::news::News;

const ORIGINS: [&str; 3] = ["http://127.0.0.1:*", "http://localhost:*", "http://[::1]:*"];

/// Serves until the process ends; says the URL on stdout once it can be asked.
#[expect(clippy::print_stdout, reason = "whoever starts this has to learn the port")]
pub async fn serve(address: SocketAddr, news: Arc<News>) -> anyhow::Result<()> {
    ensure!(address.ip().is_loopback(), "{address} is not a loopback address");
    let listener = TcpListener::bind(address).await?;
    let url = format!("http://{}/mcp", listener.local_addr()?);
    let mut sessions = LocalSessionManager::default();
    // By default a session that is quiet for long ends under a call that is still at work.
    let mut of_a_session = SessionConfig::default();
    of_a_session.keep_alive = None;
    sessions.session_config = of_a_session;
    let config = StreamableHttpServerConfig::default().with_allowed_origins(ORIGINS);
    // Who goes away is told to a handler by `rmcp`, if at all; nothing ends everything here but the process.
    let server = move || Ok(Server::new(news.clone(), CancellationToken::new()));
    let service = StreamableHttpService::new(server, Arc::new(sessions), config);
    println!("{url}");
    axum::serve(listener, Router::new().route_service("/mcp", service)).await?;
    Ok(())
}
