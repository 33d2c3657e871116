//! What the broker shows of itself. Wakes nothing.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::endings::backend_names;
use super::{Context, Nothing, to_json};
use crate::broker::Fault;
use crate::core::diagnostic::suggestion;
use crate::events::Event;
use crate::protocol::error::shown;

pub(super) const BROKER_STATUS: &str = "All that /status says: the broker, totals, every backend with its instances, \
and for an instance in cleanup_failed which processes are left, why, and what was tried. Wakes nothing.";
pub(super) const LIST_BACKENDS: &str =
    "The configured backends, one line each: where they are served, who shares them, how much runs. Wakes nothing.";
pub(super) const INSPECT_BACKEND: &str =
    "One backend as /status shows it, and the names of the tools that clients see. Wakes nothing.";

pub(super) const RECENT_EVENTS: &str = "What happened, oldest first, as /events tells it: starts, stops, proofs, \
failures, reloads. after is the number of the last event known; one above the newest is of an earlier broker, and is \
taken as 0. Wakes nothing.";

/// Events in one answer, unless the asker wants fewer.
const EVENTS_MAX: usize = 200;

/// The document of `/status`.
#[derive(Debug, Serialize)]
#[serde(transparent)]
pub(super) struct Status(Value);

impl JsonSchema for Status {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Status".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "object",
            "properties": {
                "broker": {"type": "object"},
                "totals": {"type": "object", "additionalProperties": {"type": "integer"}},
                "backends": {"type": "array", "items": {"type": "object"}},
            },
            "required": ["broker", "totals", "backends"],
        })
    }
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Backends {
    backends: Vec<BackendLine>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct BackendLine {
    name: String,
    /// The path of its URL.
    mount: String,
    enabled: bool,
    /// Who shares an instance; null when it is disabled.
    scope: Option<String>,
    /// Tools that clients see.
    tools: u64,
    /// Instances that are not stopped.
    live_instances: usize,
    /// Those of them that could not be proved gone.
    cleanup_failed: usize,
    active_calls: u64,
    queued_calls: u64,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct BackendName {
    /// As the configuration names it.
    pub backend: String,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Inspected {
    /// Its entry in `/status`.
    backend: serde_json::Map<String, Value>,
    /// Tools that clients see, sorted.
    tool_names: Vec<String>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct WhichEvents {
    /// Only events with a higher number, from the oldest on; without it the newest. Numbers begin anew with each broker,
    /// so one above the newest counts as 0.
    #[serde(default)]
    after: Option<u64>,
    /// At most so many; 200 without it, and never more.
    #[serde(default)]
    #[schemars(range(min = 1))]
    limit: Option<usize>,
    /// Only those of this backend.
    #[serde(default)]
    backend: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Events {
    /// Each with `number`, `at`, `event` and what belongs to it.
    events: Vec<serde_json::Map<String, Value>>,
    /// Events that were forgotten before they could be asked for.
    missed: u64,
    /// To be asked after next time.
    last: u64,
}

pub(super) async fn recent_events(context: Context, which: WhichEvents) -> Result<Events, Fault> {
    let WhichEvents { after, limit, backend } = which;
    let limit = limit.unwrap_or(EVENTS_MAX).clamp(1, EVENTS_MAX);
    let log = &context.broker.events;
    // Of the broker before this one: whoever asks would see nothing until as much has happened again.
    let after = after.map(|number| if number > log.newest() { 0 } else { number });
    let batch = log.after(after.unwrap_or(0));
    if let Some(name) = &backend {
        // One that is not configured any more has its events all the same.
        let has_events =
            || log.after(0).events.iter().any(|event| event.what.backend().is_some_and(|of| **of == **name));
        let snapshot = context.broker.snapshot();
        if !snapshot.config.backends.contains_key(name) && !has_events() {
            return Err(unknown(&context, name));
        }
    }
    let newest = batch.events.last().map_or(after.unwrap_or(0), |event| event.number);
    let is_meant = |event: &&Event| backend.is_none() || event.what.backend().map(|name| &**name) == backend.as_deref();
    let meant: Vec<&Event> = batch.events.iter().filter(is_meant).collect();
    let (first, is_cut) = match after {
        None => (meant.len().saturating_sub(limit), false),
        Some(_) => (0, meant.len() > limit),
    };
    let shown = &meant[first..meant.len().min(first + limit)];
    let last = if is_cut { shown.last().map_or(newest, |event| event.number) } else { newest };
    let events = shown.iter().map(|event| to_json(event).as_object_mut().map(std::mem::take).unwrap_or_default());
    Ok(Events { events: events.collect(), missed: if after.is_some() { batch.missed } else { 0 }, last })
}

pub(super) async fn broker_status(context: Context, _: Nothing) -> Result<Status, Fault> {
    Ok(Status(context.broker.status(context.front).await))
}

pub(super) async fn list_backends(context: Context, _: Nothing) -> Result<Backends, Fault> {
    let status = context.broker.status(context.front).await;
    let backends = status["backends"].as_array().into_iter().flatten().map(BackendLine::of).collect();
    Ok(Backends { backends })
}

pub(super) async fn inspect_backend(context: Context, name: BackendName) -> Result<Inspected, Fault> {
    let BackendName { backend: name } = name;
    let snapshot = context.broker.snapshot();
    let status = context.broker.status(context.front.clone()).await;
    let mut entries = status["backends"].as_array().into_iter().flatten().filter_map(Value::as_object);
    let backend =
        entries.find(|entry| entry["name"] == name.as_str()).cloned().ok_or_else(|| unknown(&context, &name))?;
    let tools = snapshot.backend(&name).into_iter().flat_map(|backend| backend.tool_names());
    let mut tool_names: Vec<String> = tools.map(str::to_owned).collect();
    tool_names.sort_unstable();
    Ok(Inspected { backend, tool_names })
}

pub(super) fn unknown(context: &Context, name: &str) -> Fault {
    let known = backend_names(&context.broker);
    let hint = suggestion(name, known.iter().map(String::as_str));
    Fault::new("no_such_backend", format!("there is no backend '{}'{hint}", shown(name)))
}

impl BackendLine {
    fn of(entry: &Value) -> Self {
        let text = |key: &str| entry[key].as_str().map(str::to_owned);
        let instances = || entry["instances"].as_array().into_iter().flatten();
        let in_state = |is_meant: fn(&str) -> bool| {
            instances().filter(|instance| instance["state"].as_str().is_some_and(is_meant)).count()
        };
        let sum = |key: &str| instances().filter_map(|instance| instance[key].as_u64()).sum();
        Self {
            name: text("name").unwrap_or_default(),
            mount: text("mount").unwrap_or_default(),
            enabled: entry["enabled"] == true,
            scope: text("scope"),
            tools: entry["catalog"]["tools"].as_u64().unwrap_or_default(),
            live_instances: in_state(|state| state != "stopped"),
            cleanup_failed: in_state(|state| state == "cleanup_failed"),
            active_calls: sum("active"),
            queued_calls: sum("queued"),
        }
    }
}
