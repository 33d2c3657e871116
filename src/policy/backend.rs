//! `broker.backend { … }`: the answer of a policy file.

use std::collections::BTreeMap;
use std::time::Duration;

use super::arguments::ArgumentRules;
use super::constructors::{Built, mention, mentions};
use super::fields::{Fields, shown};
use super::frozen::{DriftRule, OnCancel, QueueRules, Scope, ToolRules, ToolSettings, ToolsAndRule};
use super::hooks::Declarations;
use super::results::PlacedRule;

/// The version of the policy language.
const API: u32 = 1;

/// What other systems put beside a policy, and where it belongs here.
const ELSEWHERE: [&str; 6] = ["launch", "command", "args", "env", "name", "catalog"];

const DAY_SECONDS: f64 = 86_400.0;
const QUEUE_LEN_MAX: u32 = 10_000;
const CONCURRENCY_MAX: u32 = 1_024;

/// A policy without its files.
#[derive(Clone, Debug)]
pub(super) struct Backend {
    pub scope: Scope,
    pub idle_timeout: Duration,
    pub queue: QueueRules,
    pub max_concurrency: u32,
    pub on_cancel: OnCancel,
    pub drift: DriftRule,
    pub tools: ToolRules,
    pub results: Vec<ToolsAndRule>,
    pub hooks: Declarations,
    /// Each call of a hook gets a machine of its own.
    pub isolate: bool,
}

pub(super) fn read(fields: &mut Fields<'_>) -> Option<Backend> {
    let api = fields.whole("api", 0..=u32::MAX);
    if let Some(api) = fields.require("api", api).filter(|api| *api != API) {
        fields.fault_of("api", format!("is {api}, but this broker supports {API} only"));
    }
    refuse_what_is_not_here(fields);
    let scope = fields.choice("scope", &[("session", Scope::Session), ("singleton", Scope::Singleton)]);
    let hooks = Declarations::read(fields);
    let scope = scope_with_key(fields, scope, &hooks);
    let isolate = fields.flag("isolate").unwrap_or(false);
    let idle_timeout = fields.seconds("idle_timeout_seconds", 0.0..=DAY_SECONDS);
    let queue = fields.table("queue", queue);
    let max_concurrency = fields.whole("max_concurrency", 1..=CONCURRENCY_MAX);
    let on_cancel = fields.table("on_cancel", on_cancel);
    let (drift, tools) = fields.table("tools", tools).unwrap_or_default();
    let results = results(fields);
    Some(Backend {
        scope: scope?,
        idle_timeout: idle_timeout.unwrap_or(Duration::from_secs(120)),
        queue: queue.unwrap_or_default(),
        max_concurrency: max_concurrency.unwrap_or(1),
        on_cancel: on_cancel.unwrap_or(OnCancel::RECYCLE),
        drift,
        tools,
        results,
        hooks,
        isolate,
    })
}

fn refuse_what_is_not_here(fields: &mut Fields<'_>) {
    for field in ELSEWHERE {
        if fields.take_foreign(field) {
            fields.fault_of(field, "does not belong into a policy: processes are configured in broker.toml");
        }
    }
}

/// A key that a hook makes means instances of their own, so `scope` need not be said again.
fn scope_with_key(fields: &mut Fields<'_>, scope: Option<Scope>, hooks: &Declarations) -> Option<Scope> {
    match (scope, hooks.has_scope_key()) {
        (Some(Scope::Singleton), true) => {
            fields.fault_of("scope_key", "has no meaning with scope \"singleton\"");
            None
        }
        (None, true) => Some(Scope::Session),
        (scope, _) => fields.require("scope", scope),
    }
}

impl Default for QueueRules {
    fn default() -> Self {
        Self { len_max: 32, wait: Duration::from_secs(60) }
    }
}

fn queue(fields: &mut Fields<'_>) -> QueueRules {
    let default = QueueRules::default();
    QueueRules {
        len_max: fields.whole("limit", 1..=QUEUE_LEN_MAX).map_or(default.len_max, |limit| limit as usize),
        wait: fields.seconds("wait_seconds", 1.0..=3_600.0).unwrap_or(default.wait),
    }
}

fn on_cancel(fields: &mut Fields<'_>) -> OnCancel {
    let grace = fields.seconds("grace_seconds", 0.0..=60.0);
    let recycle = fields.choice("action", &[("recycle", true), ("keep", false)]);
    let grace = grace.unwrap_or(OnCancel::GRACE);
    match fields.require("action", recycle) {
        Some(true) => OnCancel::Recycle { grace },
        Some(false) | None => OnCancel::Keep { grace },
    }
}

fn tools(fields: &mut Fields<'_>) -> (DriftRule, ToolRules) {
    let drift = fields.choice("drift", &[("refuse", DriftRule::Refuse), ("warn", DriftRule::Warn)]);
    let allow = mentions(fields, "allow");
    let exclude = mentions(fields, "exclude").unwrap_or_default();
    let mut settings = Vec::new();
    settings_of_tools(fields, &mut settings);
    settings.sort_by_key(|settings| settings.tools.pattern.specificity());
    (drift.unwrap_or_default(), ToolRules { allow, exclude, settings })
}

impl Default for DriftRule {
    /// A tool that changed since its review is not called.
    fn default() -> Self {
        Self::Refuse
    }
}

fn settings_of_tools(fields: &mut Fields<'_>, settings: &mut Vec<ToolSettings>) {
    fields.entries("settings", |name, entry| {
        let deadline = entry.seconds("deadline_seconds", 0.1..=DAY_SECONDS);
        let progress_ceiling = entry.seconds("progress_extends_to_seconds", 0.1..=DAY_SECONDS);
        let arguments = entry.table("arguments", arguments).unwrap_or_default();
        let mut place = entry.own_place();
        place.name = "tools.settings".to_owned();
        if let Some(tools) = mention(entry, place, name) {
            settings.push(ToolSettings { tools, deadline, progress_ceiling, arguments });
        }
    });
}

fn arguments(fields: &mut Fields<'_>) -> ArgumentRules {
    let mut rules = BTreeMap::new();
    for (name, value) in fields.take_all() {
        match Built::of(&value) {
            Some(Built::Argument(mut rule)) => {
                rule.at = Some(format!("{}:{}", fields.file().display(), fields.place(&name).line).into());
                rules.insert(name, rule);
            }
            Some(Built::Faulty) => {}
            _ => {
                let got = shown(&value);
                fields.fault_of(&name, format!("must be an argument rule such as broker.url_rule, got {got}"));
            }
        }
    }
    ArgumentRules::new(rules)
}

fn results(fields: &mut Fields<'_>) -> Vec<ToolsAndRule> {
    let mut rules = Vec::new();
    for (place, value) in fields.list("results").unwrap_or_default() {
        match Built::of(&value) {
            Some(Built::Result { tools, rule }) => {
                let place = format!("{}:{}", fields.file().display(), place.line).into();
                rules.push(ToolsAndRule { tools, placed: PlacedRule { place, rule } });
            }
            Some(Built::Faulty) => {}
            _ => {
                let got = shown(&value);
                fields.fault(&place, format!("must be a result rule such as broker.redact_keys, got {got}"));
            }
        }
    }
    rules
}
