//! `conformance-mcp`: the server that MCP's conformance suite asks for, with everything a server can offer.
//!
//! The names of tools, prompts and resources are the suite's (`@modelcontextprotocol/conformance`, pinned in `run.py`);
//! what stands behind them is ours. It speaks both eras, over stdio and, with `--http`, over Streamable HTTP, so that
//! the same server can be judged alone and behind the broker: what it loses there is the broker's loss.
//!
//! It is on `rmcp` where the scripted `fixture-mcp` is on bytes: that one is to misbehave, this one to be exemplary.
//! The tasks extension is left out, because the broker offers no tasks.

#![expect(deprecated, reason = "sampling, roots and logging go in 2027, and the suite asks for them until then")]

mod completion;
mod content;
mod exchange;
mod forms;
mod http;
mod input_required;
mod news;
mod prompts;
mod reports;
mod resources;
mod sealed;
mod stdio;
mod tools;

use std::borrow::Cow;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use clap::Parser;
use rmcp::model::{
    CacheScope, CallToolRequestParams, CallToolResponse, CompleteRequestParams, CompleteResult, GetPromptRequestParams,
    GetPromptResponse, Implementation, ListPromptsResult, ListResourceTemplatesResult, ListResourcesResult,
    ListToolsResult, PaginatedRequestParams, ProtocolVersion, ReadResourceRequestParams, ReadResourceResponse,
    ServerCapabilities, ServerConfig, SetLevelRequestMethod, SetLevelRequestParams, SubscribeRequestParams,
    SubscriptionFilter, Tool, UnsubscribeRequestParams,
};
use rmcp::service::{RequestContext, SubscriptionContext};
use rmcp::{ErrorData, RoleServer, ServerHandler};
use tokio::sync::broadcast::Receiver;
use tokio_util::sync::CancellationToken;

use crate::news::{Change, News};
use crate::reports::Threshold;

#[derive(Parser)]
#[command(about = "Server for MCP's conformance suite, over stdio unless told otherwise")]
struct Args {
    /// Serves Streamable HTTP at this loopback address, under /mcp; the first line of stdout has the URL.
    #[arg(long)]
    http: Option<SocketAddr>,
    /// Over stdio: speaks in one manner alone, as most servers do.
    #[arg(long)]
    only: Option<Manner>,
    /// Ends after this long: a failed test leaves nothing for good.
    #[arg(long, default_value_t = 600)]
    lifetime_seconds: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Manner {
    Legacy,
    Modern,
}

/// How long clients may keep a list. Milliseconds.
const LIST_TTL_MS: u64 = 60_000;

/// One client's view: a session, one modern request, or all that stdin says.
struct Server {
    only: Option<Manner>,
    news: Arc<News>,
    threshold: Threshold,
    /// Of subscriptions that are about to be acknowledged, in the order of their requests.
    expectant: Mutex<VecDeque<Receiver<Change>>>,
    /// Cancelled when nobody will hear an answer any more.
    gone: CancellationToken,
}

type Context = RequestContext<RoleServer>;

/// What a handler returns.
type Answer<T> = Result<T, ErrorData>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let args = Args::parse();
    let lifetime = Duration::from_secs(args.lifetime_seconds);
    match tokio::time::timeout(lifetime, serve(&args)).await {
        Ok(Ok(())) => ExitCode::SUCCESS,
        Ok(Err(error)) => {
            eprintln!("failed to serve: {error:#}");
            ExitCode::FAILURE
        }
        Err(_) => ExitCode::from(99),
    }
}

async fn serve(args: &Args) -> anyhow::Result<()> {
    let news = Arc::new(News::default());
    match args.http {
        Some(address) => http::serve(address, news).await,
        None => stdio::serve(news, args.only).await,
    }
}

impl Server {
    fn new(news: Arc<News>, gone: CancellationToken) -> Self {
        Self { only: None, news, threshold: Threshold::default(), expectant: Mutex::default(), gone }
    }

    /// What `work` comes to, if there is somebody to tell it to.
    async fn while_wanted<T>(&self, work: impl Future<Output = Answer<T>>) -> Answer<T> {
        tokio::select! {
            // First, so that what needs no waiting is answered though stdin ended behind its request.
            biased;
            answer = work => answer,
            // The work is dropped wherever it waits: it holds nothing that has to be given back.
            () = self.gone.cancelled() => Err(ErrorData::internal_error("the client is gone", None)),
        }
    }
}

/// Whether this request is of 2026-07-28 or later: no sessions, and nothing is asked of the client but in results.
fn is_modern(context: &Context) -> bool {
    context.protocol_version().is_some_and(|version| version >= ProtocolVersion::V_2026_07_28)
}

impl ServerHandler for Server {
    fn supported_protocol_versions(&self) -> Cow<'static, [ProtocolVersion]> {
        const MODERN: ProtocolVersion = ProtocolVersion::V_2026_07_28;
        let all = ProtocolVersion::KNOWN_VERSIONS.iter();
        match self.only {
            None => Cow::Borrowed(ProtocolVersion::KNOWN_VERSIONS),
            Some(Manner::Legacy) => all.filter(|version| **version < MODERN).cloned().collect(),
            Some(Manner::Modern) => all.filter(|version| **version >= MODERN).cloned().collect(),
        }
    }

    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder()
            .enable_completions()
            .enable_logging()
            .enable_prompts()
            .enable_prompts_list_changed()
            .enable_resources()
            .enable_resources_subscribe()
            .enable_tools()
            .enable_tool_list_changed()
            .build();
        ServerConfig::new(capabilities)
            .with_server_info(Implementation::new("conformance-mcp", "1.0.0"))
            .with_instructions("Everything that a server of MCP can offer, for its conformance suite.")
    }

    async fn list_tools(&self, _: Option<PaginatedRequestParams>, _: Context) -> Answer<ListToolsResult> {
        let list = ListToolsResult::with_all_items(tools::all());
        Ok(list.with_ttl_ms(LIST_TTL_MS).with_cache_scope(CacheScope::Public))
    }

    /// By this `rmcp` compares `Mcp-Param-…` headers with the arguments.
    fn get_tool(&self, name: &str) -> Option<Tool> {
        tools::all().into_iter().find(|tool| tool.name == name)
    }

    async fn call_tool(&self, call: CallToolRequestParams, context: Context) -> Answer<CallToolResponse> {
        self.while_wanted(tools::call(self, call, &context)).await
    }

    async fn list_prompts(&self, _: Option<PaginatedRequestParams>, _: Context) -> Answer<ListPromptsResult> {
        let list = ListPromptsResult::with_all_items(prompts::all());
        Ok(list.with_ttl_ms(LIST_TTL_MS).with_cache_scope(CacheScope::Public))
    }

    async fn get_prompt(&self, wanted: GetPromptRequestParams, context: Context) -> Answer<GetPromptResponse> {
        self.while_wanted(prompts::get(wanted, &context)).await
    }

    async fn list_resources(&self, _: Option<PaginatedRequestParams>, _: Context) -> Answer<ListResourcesResult> {
        let list = ListResourcesResult::with_all_items(resources::all());
        Ok(list.with_ttl_ms(LIST_TTL_MS).with_cache_scope(CacheScope::Public))
    }

    async fn list_resource_templates(
        &self,
        _: Option<PaginatedRequestParams>,
        _: Context,
    ) -> Answer<ListResourceTemplatesResult> {
        let list = ListResourceTemplatesResult::with_all_items(resources::templates());
        Ok(list.with_ttl_ms(LIST_TTL_MS).with_cache_scope(CacheScope::Public))
    }

    async fn read_resource(&self, wanted: ReadResourceRequestParams, _: Context) -> Answer<ReadResourceResponse> {
        resources::read(&wanted.uri, &self.news).map(Into::into)
    }

    async fn complete(&self, wanted: CompleteRequestParams, _: Context) -> Answer<CompleteResult> {
        completion::complete(&wanted)
    }

    async fn set_level(&self, wanted: SetLevelRequestParams, context: Context) -> Answer<()> {
        if is_modern(&context) {
            return Err(ErrorData::method_not_found::<SetLevelRequestMethod>());
        }
        self.threshold.set(wanted.level);
        Ok(())
    }

    async fn subscribe(&self, wanted: SubscribeRequestParams, context: Context) -> Answer<()> {
        resources::watched(&wanted.uri)?;
        self.news.subscribe(wanted.uri, context.peer);
        Ok(())
    }

    async fn unsubscribe(&self, wanted: UnsubscribeRequestParams, context: Context) -> Answer<()> {
        self.news.unsubscribe(&wanted.uri, &context.peer);
        Ok(())
    }

    /// Listening begins here and not in `listen`, which comes after the acknowledgement: a client that has read that
    /// may cause a change at once.
    fn accepted_subscription_filter(&self, requested: &SubscriptionFilter) -> Option<SubscriptionFilter> {
        self.expectant.lock().unwrap_or_else(PoisonError::into_inner).push_back(self.news.follow());
        Some(requested.clone())
    }

    async fn listen(&self, subscription: SubscriptionContext) -> Answer<()> {
        let earliest = self.expectant.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        let changes = earliest.unwrap_or_else(|| self.news.follow());
        let told = async {
            news::tell(&subscription, changes).await;
            Ok(())
        };
        self.while_wanted(told).await
    }
}
