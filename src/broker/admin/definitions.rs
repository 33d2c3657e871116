//! Tools of backends as their catalogs have them, and what a policy would make of a call. Wakes nothing.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::Context;
use super::looks::unknown;
use crate::broker::Fault;
use crate::catalog::CatalogTool;
use crate::core::diagnostic::suggestion;
use crate::policy::{CallFacts, DriftRule};
use crate::protocol::error::shown;
use crate::snapshot::{Backend, CallExplained};

pub(super) const LIST: &str = "The tools of a backend's catalog, in the server's order, each with whether clients see \
it and if not why. query looks into names and descriptions. Wakes nothing.";
pub(super) const GET: &str = "One tool of a backend's catalog: its definition as the server gave it, whether clients \
see it and if not why, and what holds for its calls. Wakes nothing.";
pub(super) const EXPLAIN: &str = "What the policy of a backend says of a call with these arguments: whether it would \
be sent, with which arguments and until when. Nothing is sent and nothing is started.";

/// Tools in one answer, unless the asker wants fewer.
const LIMIT_MAX: usize = 200;
/// Characters of a description in a list.
const DESCRIPTION_CHARS: usize = 200;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Which {
    /// As the configuration names it.
    backend: String,
    /// Only tools with this text in their name or description, in any case.
    #[serde(default)]
    query: Option<String>,
    /// At most so many; 200 without it, and never more.
    #[serde(default)]
    #[schemars(range(min = 1))]
    limit: Option<usize>,
    /// `next_cursor` of the answer to go on behind.
    #[serde(default)]
    cursor: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Listed {
    backend: String,
    /// Tools that fit the query, on all pages.
    total: usize,
    tools: Vec<ToolLine>,
    /// There are more behind it; null at the end.
    next_cursor: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct ToolLine {
    name: String,
    title: Option<String>,
    /// Its beginning.
    description: Option<String>,
    #[serde(flatten)]
    visibility: Visibility,
}

/// Whether clients see a tool.
#[derive(Debug, Serialize, JsonSchema)]
struct Visibility {
    visible: bool,
    /// Why not; null if it is visible.
    hidden_because: Option<String>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ToolName {
    /// As the configuration names it.
    backend: String,
    /// As the server names it.
    tool: String,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Described {
    backend: String,
    #[serde(flatten)]
    visibility: Visibility,
    /// The definition.
    tool: Map<String, Value>,
    /// The same as clients get it, byte for byte.
    raw: String,
    /// Of the definition, as the catalog records it.
    digest: String,
    /// From the arrival of a call to its answer.
    deadline_seconds: f64,
    /// `refuse` or `warn`: what becomes of a call when the running server defines the tool differently.
    drift: &'static str,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Asked {
    /// As the configuration names it.
    backend: String,
    /// As the server names it.
    tool: String,
    /// As a client would send them; none without it.
    #[serde(default)]
    arguments: Option<Map<String, Value>>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Explained {
    backend: String,
    tool: String,
    decision: Judgement,
    /// Why it is denied or unknown; null if it would be sent.
    reason: Option<String>,
    /// What would be sent; null if nothing would.
    arguments: Option<Value>,
    /// From the arrival of the call to its answer.
    deadline_seconds: f64,
    /// What denied or rewrote it: a place in a file, or a field.
    rule: Option<String>,
    /// Steps that a hook took.
    steps: u32,
    /// The policy that decided: its file and its digest, imports included.
    policy: String,
    policy_digest: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Judgement {
    /// It would be sent as it is.
    Allow,
    /// It would be sent with other arguments.
    Rewrite,
    Deny,
    /// Clients do not see the tool, so a call of it is an error of the protocol.
    UnknownTool,
}

pub(super) async fn list_tools(context: Context, which: Which) -> Result<Listed, Fault> {
    let backend = served(&context, &which.backend)?;
    let query = which.query.as_deref().map(str::to_lowercase);
    let fits = |line: &ToolLine| query.as_deref().is_none_or(|query| line.mentions(query));
    let lines: Vec<ToolLine> =
        backend.catalog.tools().iter().map(|tool| ToolLine::of(&backend, tool)).filter(fits).collect();
    let total = lines.len();
    let first = match &which.cursor {
        None => 0,
        Some(cursor) => {
            let at = lines.iter().position(|line| line.name == *cursor);
            1 + at
                .ok_or_else(|| Fault::new("invalid_arguments", "cursor: not one of an answer to the same question"))?
        }
    };
    let limit = which.limit.unwrap_or(LIMIT_MAX).clamp(1, LIMIT_MAX);
    let is_last = total <= first + limit;
    let tools: Vec<ToolLine> = lines.into_iter().skip(first).take(limit).collect();
    let next_cursor = tools.last().filter(|_| !is_last).map(|line| line.name.clone());
    let tools = tools.into_iter().map(ToolLine::shortened).collect();
    Ok(Listed { backend: which.backend, total, tools, next_cursor })
}

pub(super) async fn get_tool(context: Context, which: ToolName) -> Result<Described, Fault> {
    let backend = served(&context, &which.backend)?;
    let tool = known(&backend, &which.tool)?;
    Ok(Described {
        backend: which.backend,
        visibility: Visibility::of(&backend, tool),
        tool: serde_json::from_str(tool.raw.get()).unwrap_or_default(),
        raw: tool.raw.get().to_owned(),
        digest: tool.digest.to_string(),
        deadline_seconds: deadline_seconds(&backend, &tool.name),
        drift: match backend.policy.drift {
            DriftRule::Refuse => "refuse",
            DriftRule::Warn => "warn",
        },
    })
}

pub(super) async fn explain_policy(context: Context, asked: Asked) -> Result<Explained, Fault> {
    let Asked { backend: name, tool, arguments } = asked;
    let backend = served(&context, &name)?;
    known(&backend, &tool)?;
    let arguments = arguments.map(|arguments| Value::Object(arguments).to_string());
    let call = CallFacts { tool: tool.clone(), arguments, ..CallFacts::default() };
    let (judge, deadline_seconds) = (backend.clone(), deadline_seconds(&backend, &tool));
    // A hook is waited for.
    let explained = tokio::task::spawn_blocking(move || judge.explain(call, None)).await;
    let explained =
        explained.map_err(|_| Fault::new("unavailable", "the call could not be judged; the log says why"))?;
    let decision = match &explained.call {
        _ if !explained.visible => Judgement::UnknownTool,
        CallExplained { allowed: false, .. } => Judgement::Deny,
        CallExplained { rewritten: true, .. } => Judgement::Rewrite,
        _ => Judgement::Allow,
    };
    let CallExplained { reason, arguments, deadline_seconds: of_call, rule, steps, .. } = explained.call;
    Ok(Explained {
        backend: name,
        tool,
        decision,
        reason: explained.hidden_because.or(reason),
        arguments: arguments.and_then(|arguments| serde_json::from_str(&arguments).ok()),
        deadline_seconds: of_call.unwrap_or(deadline_seconds),
        rule,
        steps,
        policy: explained.policy,
        policy_digest: explained.policy_digest,
    })
}

fn deadline_seconds(backend: &Backend, tool: &str) -> f64 {
    let ceiling = backend.call_max();
    backend.policy.plan(tool).deadline.map_or(ceiling, |deadline| deadline.min(ceiling)).as_secs_f64()
}

fn served(context: &Context, name: &str) -> Result<Arc<Backend>, Fault> {
    let snapshot = context.broker.snapshot();
    if let Some(backend) = snapshot.backend(name) {
        return Ok(backend.clone());
    }
    if snapshot.config.backends.contains_key(name) {
        let why = format!("'{}' is disabled, so its catalog is not loaded; enable_backend serves it", shown(name));
        return Err(Fault::new("unavailable", why));
    }
    Err(unknown(context, name))
}

fn known<'b>(backend: &'b Backend, tool: &str) -> Result<&'b CatalogTool, Fault> {
    backend.catalog.tool(tool).ok_or_else(|| {
        let hint = suggestion(tool, backend.catalog.tools().iter().map(|known| &*known.name));
        let why = format!("the catalog of '{}' has no tool '{}'{hint}", backend.name, shown(tool));
        Fault::new("no_such_tool", why)
    })
}

impl ToolLine {
    fn of(backend: &Backend, tool: &CatalogTool) -> Self {
        #[derive(Default, Deserialize)]
        struct Words {
            title: Option<String>,
            description: Option<String>,
        }
        let words: Words = read(&tool.raw).unwrap_or_default();
        let Words { title, description } = words;
        Self { name: tool.name.clone(), title, description, visibility: Visibility::of(backend, tool) }
    }

    fn mentions(&self, query: &str) -> bool {
        let texts = [Some(&self.name), self.title.as_ref(), self.description.as_ref()];
        texts.into_iter().flatten().any(|text| text.to_lowercase().contains(query))
    }

    fn shortened(mut self) -> Self {
        if let Some(description) = &mut self.description
            && let Some((end, _)) = description.char_indices().nth(DESCRIPTION_CHARS)
        {
            description.truncate(end);
            description.push('…');
        }
        self
    }
}

/// Words of a definition that some server may have spelled oddly.
fn read<'a, T: Deserialize<'a>>(raw: &'a RawValue) -> Option<T> {
    serde_json::from_str(raw.get()).ok()
}

impl Visibility {
    fn of(backend: &Backend, tool: &CatalogTool) -> Self {
        let hidden_because = backend.why_hidden(&tool.name);
        Self { visible: hidden_because.is_none(), hidden_because }
    }
}
