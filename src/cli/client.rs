//! The command line as a client of a running broker.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use reqwest::StatusCode;
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

/// A conversation with the broker itself, as its operator. End it with `close`.
pub(super) struct Admin {
    running: RunningService<RoleClient, ()>,
}

impl Admin {
    /// `token` is the file that the broker made in its state directory.
    pub async fn open(base: &str, token: &Path) -> anyhow::Result<Self> {
        // Told apart from a broker that does not know us.
        status(base).await?;
        let shown = token.display();
        let known = std::fs::read_to_string(token).map_err(|e| {
            let hint = "run as the user of the broker, or name the token of this broker with --token-file";
            Failure::new(Exit::NotSo, format!("failed to read the broker's token in `{shown}`: {e}; {hint}"))
        })?;
        let url = format!("{base}/admin/mcp");
        // What `rmcp` says of a 401 is about OAuth.
        let asked = http()?.get(&url).timeout(PAGE_TIMEOUT).bearer_auth(known.trim()).send().await;
        match asked.map_err(|e| not_reached(base, &root_cause(&e)))?.status() {
            StatusCode::UNAUTHORIZED => {
                let why =
                    format!("the broker at {base} refuses the token in `{shown}`; name its own with --token-file");
                return Err(Failure::new(Exit::NotSo, why).into());
            }
            StatusCode::METHOD_NOT_ALLOWED => {}
            other => return Err(not_reached(base, &format!("{url} answers {other}, so it is another version"))),
        }
        let config = StreamableHttpClientTransportConfig::with_uri(url).auth_header(known.trim());
        let transport = StreamableHttpClientTransport::with_client(http()?, config);
        let running = ().serve(transport).await.map_err(|e| not_reached(base, &format!("no session with it: {e}")))?;
        Ok(Self { running })
    }

    /// Asks for one thing; what comes back is structured.
    pub async fn ask(&self, tool: &'static str, arguments: serde_json::Map<String, Value>) -> anyhow::Result<Value> {
        let params = CallToolRequestParams::new(tool).with_arguments(arguments);
        let result = self.running.call_tool(params).await.context("the connection to the broker broke")?;
        if result.is_error == Some(true) {
            let said = result.content.iter().find_map(|block| Some(block.as_text()?.text.clone()));
            return Err(Failure::new(Exit::NotSo, said.unwrap_or_else(|| format!("{tool} failed"))).into());
        }
        result.structured_content.context("the broker's answer has no content")
    }

    pub async fn close(self) {
        // An error means that the connection is gone already.
        let _ = self.running.cancel().await;
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
    let response = http()?.get(&url).send().await.map_err(|e| not_reached(base, &root_cause(&e)))?;
    match response.status() {
        StatusCode::OK => Ok(response),
        busy @ (StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) => {
            let said: Option<Value> = response.json().await.ok();
            let said = said.as_ref().and_then(|said| said["error"]["message"].as_str());
            let why = said.map_or_else(|| busy.to_string(), str::to_owned);
            Err(Failure::new(Exit::NotSo, format!("the broker at {base} refuses /events: {why}")).into())
        }
        other => Err(not_reached(base, &format!("{url} answers {other}, so it is another version"))),
    }
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
