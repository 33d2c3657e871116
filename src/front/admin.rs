//! `/admin/mcp`: the broker's own MCP server, for whoever has the token of the state directory. Both eras, by `rmcp`.
//!
//! Responsible for the token, and for tools as MCP has them; what they do is `broker::admin`.
//!
//! Without sessions: each POST stands alone, so there is nothing to bound, to expire or to take over a restart, and of
//! `rmcp` nothing lives between two requests. The tools have no news to tell that would need a stream.

mod bearer;

use std::sync::Arc;

use axum::body::Body;
use axum::http::header::{ACCEPT, CONTENT_TYPE};
use axum::http::{HeaderValue, Method, Request, Response};
use http_body_util::BodyExt as _;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, Implementation, ListToolsResult, MetaObject,
    PaginatedRequestParams, ServerCapabilities, ServerConfig, Tool, ToolAnnotations,
};
use rmcp::service::RequestContext;
use rmcp::transport::streamable_http_server::session::never::NeverSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use rmcp::{ErrorData, RoleServer, ServerHandler};
use serde_json::json;

use super::respond::{self, Refusal};
use super::serve::Front;
use super::{pages, post};
use crate::broker::Fault;
use crate::broker::admin::{self, Context, Effect};
use crate::core::diagnostic::suggestion;
use crate::protocol::call::parse_text;
use crate::protocol::envelope::Message;
use crate::protocol::error::shown;

pub use bearer::AdminToken;
pub(super) use bearer::Unauthorized;

pub(super) const PATH: &str = "/admin/mcp";

/// Larger than any request that the tools take.
const BODY_BYTES_MAX: usize = 64 * 1024;

/// `rmcp` asks for both forms, and answers these tools in the first.
const BOTH_FORMS: HeaderValue = HeaderValue::from_static("application/json, text/event-stream");

const INSTRUCTIONS: &str = "The lazy-mcp broker itself: what it serves, what runs, and what could not be proved gone. \
An instance in cleanup_failed refuses calls; broker_status says which processes are left and why, recover_instance \
looks again.";

pub(super) async fn answer(front: &Arc<Front>, request: Request<Body>) -> Result<Response<Body>, Refusal> {
    front.admin_token.check(request.headers()).map_err(Refusal::Unauthorized)?;
    if request.method() != Method::POST {
        return Err(Refusal::MethodNotAllowed("POST"));
    }
    let (mut head, body) = request.into_parts();
    if !post::has_json(&head.headers) {
        return Err(Refusal::WrongContentType);
    }
    if !post::accepts(&head.headers).is_some_and(|accepts| accepts.json) {
        return Err(Refusal::NotAcceptable);
    }
    head.headers.insert(ACCEPT, BOTH_FORMS);
    let body = post::read(body, BODY_BYTES_MAX).await?;
    // What is no message at all is told as on every other URL.
    let (_, message) = parse_text(&body).map_err(|fault| Refusal::NotAMessage(fault.error, fault.id))?;
    let id = match message {
        Message::Request { id, .. } => Some(id.to_owned()),
        _ => None,
    };
    let server = Server(front.clone());
    let config = StreamableHttpServerConfig::default()
        // The front has checked both, for every URL alike.
        .disable_allowed_hosts()
        .disable_allowed_origins()
        .with_legacy_session_mode(false)
        .with_json_response(true)
        .with_max_request_body_bytes(BODY_BYTES_MAX)
        .with_cancellation_token(front.shutdown.child_token());
    let service =
        StreamableHttpService::new(move || Ok(server.clone()), Arc::new(NeverSessionManager::default()), config);
    let response = service.handle(Request::from_parts(head, Body::from(body))).await;
    let is_json = response.headers().get(CONTENT_TYPE).is_some_and(|kind| kind == "application/json");
    if response.status().is_success() || is_json {
        return Ok(response.map(Body::new));
    }
    // A sentence of rmcp's, which becomes an error of JSON-RPC as every other one.
    let (status, body) = (response.status(), response.into_body().collect().await);
    let why = body.map(|body| String::from_utf8_lossy(&body.to_bytes()).into_owned()).unwrap_or_default();
    Ok(respond::refused_by_rmcp(status, &why, id.as_deref()))
}

/// One request's view of the broker.
#[derive(Clone)]
struct Server(Arc<Front>);

impl ServerHandler for Server {
    fn get_info(&self) -> ServerConfig {
        let own = Implementation::new("lazy-mcp-broker", env!("CARGO_PKG_VERSION"));
        let capabilities = ServerCapabilities::builder().enable_tools().build();
        ServerConfig::new(capabilities).with_server_info(own).with_instructions(INSTRUCTIONS)
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(admin::tools().iter().map(described).collect()))
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        admin::tool(name).map(described)
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let Some(tool) = admin::tool(&request.name) else {
            let hint = suggestion(&request.name, admin::tools().iter().map(|tool| tool.name));
            return Err(ErrorData::invalid_params(format!("Unknown tool: {}{hint}", shown(&request.name)), None));
        };
        let asked = Context { broker: self.0.broker.clone(), front: pages::counts(&self.0) };
        let running = tool.run(asked, request.arguments.unwrap_or_default());
        let result = tokio::select! {
            result = running => result,
            // Whoever asked is gone, or the broker is about to be. What was ordered goes on.
            () = context.ct.cancelled() => Err(Fault::cancelled()),
        };
        Ok(result.map_or_else(|fault| failed(&fault), CallToolResult::structured).into())
    }
}

fn described(tool: &admin::Tool) -> Tool {
    let (is_look, ends) = (tool.effect == Effect::None, tool.effect == Effect::Ends);
    let hints = ToolAnnotations::new().read_only(is_look).destructive(ends).open_world(false);
    Tool::new(tool.name, tool.description, tool.input_schema())
        .with_title(tool.title)
        .with_raw_output_schema(Arc::new(tool.output_schema()))
        .with_annotations(hints.idempotent(true))
}

/// What whoever asked can do something about: as a failed call of a backend says it.
fn failed(fault: &Fault) -> CallToolResult {
    let mut meta = MetaObject::default();
    meta.0.insert("lazy-mcp/error".into(), json!({"code": fault.code}));
    let mut result = CallToolResult::error(vec![ContentBlock::text(fault.text.clone())]);
    result.meta = Some(meta);
    result
}
