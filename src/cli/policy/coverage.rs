//! Which tools and rules tests reached.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::super::check::counted;
use crate::config::Config;
use crate::policy::testing::{Seen, TestOutcome};
use crate::snapshot::build_backend;

/// Of each enabled backend whose files can be read.
pub(super) struct Coverage(BTreeMap<String, Reached>);

struct Reached {
    tools: usize,
    /// Visible tools that no test asked about.
    untested: Vec<String>,
    /// Places of rules that denied or changed nothing in any test.
    idle_rules: Vec<String>,
}

impl Coverage {
    pub fn of(config: &Config, outcomes: &[TestOutcome]) -> Self {
        let backends = config.enabled().filter_map(|backend| {
            let built = build_backend(config, &backend.name, backend).ok()?;
            let seen: Vec<&Seen> =
                outcomes.iter().flat_map(|outcome| &outcome.seen).filter(|seen| seen.backend == backend.name).collect();
            let asked: BTreeSet<&str> = seen.iter().map(|seen| seen.tool.as_str()).collect();
            let hit: BTreeSet<&str> = seen.iter().flat_map(|seen| &seen.reached).map(String::as_str).collect();
            let mut untested: Vec<String> =
                built.tool_names().filter(|tool| !asked.contains(tool)).map(str::to_owned).collect();
            untested.sort();
            let rules = built.policy.rule_names();
            let idle_rules = rules.into_iter().filter(|rule| !hit.contains(rule.as_str())).collect();
            Some((backend.name.clone(), Reached { tools: built.tool_count(), untested, idle_rules }))
        });
        Self(backends.collect())
    }

    pub fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for (name, reached) in &self.0 {
            let tested = reached.tools - reached.untested.len();
            lines.push(format!("{name}: {tested} of {} tested", counted(reached.tools, "tool")));
            if !reached.untested.is_empty() {
                lines.push(format!("  no test asks about: {}", reached.untested.join(", ")));
            }
            if !reached.idle_rules.is_empty() {
                lines.push(format!("  never decided: {}", reached.idle_rules.join(", ")));
            }
        }
        lines
    }

    pub fn to_json(&self) -> Value {
        let backends = self.0.iter().map(|(name, reached)| {
            json!({
                "name": name, "tools": reached.tools, "untested": reached.untested, "idle_rules": reached.idle_rules,
            })
        });
        backends.collect()
    }
}
