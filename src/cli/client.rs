//! The command line as a client of a running broker.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use rmcp::model::{CallToolRequestParams, CallToolResult};
use rmcp::service::{RoleClient, RunningService};
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::transport::streamable_http_client::StreamableHttpClientTransportConfig;
use rmcp::{ServiceError, ServiceExt as _};
use serde_json::Value;

use crate::core::diagnostic::suggestion;
use crate::exit::{Exit, Failure};

/// A page is answered from memory; more than this means that nobody is there.
const PAGE_TIMEOUT: Duration = Duration::from_secs(5);

/// The end of a session ends its instance; that is waited for at most this long, a little over a whole stop.
const STOP_WAIT: Duration = Duration::from_secs(15);
/// Between two looks.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// A session with one backend. End it with `close`.
pub(super) struct Session {
    base: String,
    backend: String,
    running: RunningService<RoleClient, ()>,
}

impl Session {
    pub async fn open(base: &str, backend: &str) -> anyhow::Result<Self> {
        check_served(base, backend).await?;
        let config = StreamableHttpClientTransportConfig::with_uri(format!("{base}/{backend}/mcp"));
        let transport = StreamableHttpClientTransport::with_client(http()?, config);
        let running =
            ().serve(transport).await.map_err(|e| not_reached(base, &format!("no session with `{backend}`: {e}")))?;
        Ok(Self { base: base.to_owned(), backend: backend.to_owned(), running })
    }

    /// Calls a tool. An error of the protocol (an unknown tool) is an error; a tool's own is a result.
    pub async fn call(&self, tool: &str, arguments: serde_json::Map<String, Value>) -> anyhow::Result<CallToolResult> {
        let params = CallToolRequestParams::new(tool.to_owned()).with_arguments(arguments);
        self.running.call_tool(params).await.map_err(|e| match e {
            ServiceError::McpError(error) => Failure::new(Exit::NotSo, format!("refused: {}", error.message)).into(),
            other => anyhow::Error::from(other).context("the connection to the broker broke"),
        })
    }

    /// Ends the session; with a session-scoped backend its instance too, and waits until that is gone.
    pub async fn close(self) {
        // An error means that the connection is gone already.
        let _ = self.running.cancel().await;
        until_stopped(&self.base, |name| name == self.backend).await;
    }
}

/// Waits, within bounds, until no instance of these backends is on its way out.
pub(super) async fn until_stopped(base: &str, is_meant: impl Fn(&str) -> bool) {
    let begun = Instant::now();
    while begun.elapsed() < STOP_WAIT {
        let Ok(status) = status(base).await else { return };
        let backends = status["backends"].as_array().into_iter().flatten();
        let meant = backends.filter(|backend| backend["name"].as_str().is_some_and(&is_meant));
        let mut instances = meant.flat_map(|backend| backend["instances"].as_array().into_iter().flatten());
        if !instances.any(|instance| matches!(instance["state"].as_str(), Some("stopping" | "draining"))) {
            return;
        }
        tokio::time::sleep(LOOK_INTERVAL).await;
    }
}

/// `/status` of the broker at `base`.
pub(super) async fn status(base: &str) -> anyhow::Result<Value> {
    let response = http()?.get(format!("{base}/status")).timeout(PAGE_TIMEOUT).send().await;
    let response = response.map_err(|e| not_reached(base, &root_cause(&e)))?;
    let is_ok = response.status().is_success();
    let text = response.text().await.context("read /status")?;
    let status = serde_json::from_str(&text).ok().filter(|status: &Value| is_ok && status["broker"]["pid"].is_u64());
    status.ok_or_else(|| not_reached(base, "what answers there is no lazy-mcp broker"))
}

/// `/events` of the broker at `base`: the history, and with `follow` what comes.
pub(super) async fn events(base: &str, follow: bool) -> anyhow::Result<reqwest::Response> {
    // So that what is no broker is told as such.
    status(base).await?;
    let url = if follow { format!("{base}/events") } else { format!("{base}/events?follow=0") };
    http()?.get(url).send().await.map_err(|e| not_reached(base, &root_cause(&e)))
}

/// A wrong name is told as such, with the nearest one, rather than as a page that was not found.
async fn check_served(base: &str, backend: &str) -> anyhow::Result<()> {
    let status = status(base).await?;
    let backends = status["backends"].as_array().map(Vec::as_slice).unwrap_or_default();
    let served = backends.iter().filter(|known| known["enabled"] == true).filter_map(|known| known["name"].as_str());
    let served: Vec<&str> = served.collect();
    if served.contains(&backend) {
        return Ok(());
    }
    let hint = suggestion(backend, served);
    Err(Failure::new(Exit::Usage, format!("no backend '{backend}' is served at {base}{hint}")).into())
}

fn http() -> anyhow::Result<reqwest::Client> {
    // Loopback is never behind a proxy, whatever the environment says.
    reqwest::Client::builder().no_proxy().build().context("make an HTTP client")
}

/// `connection refused` says more than the layers above it.
fn root_cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    cause.to_string()
}

fn not_reached(base: &str, why: &str) -> anyhow::Error {
    let message =
        format!("no broker reached at {base}: {why}; start one with `lazy-mcp serve`, or name another with --url");
    Failure::new(Exit::NotReached, message).into()
}
