//! A backend as one revision has it: what it is, what clients see of it, what its policy says.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::mirrored::Mirrored;
use super::offers::Offers;
use super::surface::Surface;
use crate::catalog::Catalog;
use crate::core::digest::Digest;
use crate::policy::{InputSchema, OutputSchema, Policy, Scope, ToolPlan};
use crate::supervisor::Plan;

/// One mounted backend.
#[derive(Debug)]
pub struct Backend {
    pub name: Arc<str>,
    pub plan: Arc<Plan>,
    pub catalog: Arc<Catalog>,
    pub policy: Policy,
    pub fingerprint: Digest,
    pub surface: Surface,
    pub offers: Offers,
    /// What holds for requests that are no calls of tools.
    pub for_all: Arc<ToolPlan>,
    pub(super) tools: HashMap<String, Tool>,
}

/// A tool that clients see, with everything a call of it needs.
#[derive(Clone, Debug)]
pub struct Tool {
    pub plan: Arc<ToolPlan>,
    /// What a hook may make of its arguments; only where one can.
    pub schema: Option<Arc<InputSchema>>,
    /// What its structured results are held against; `None` if it does not say.
    pub output: Option<Arc<OutputSchema>>,
    /// Arguments that headers repeat; of few tools any.
    pub mirrored: Arc<[Mirrored]>,
}

impl Backend {
    /// One instance for everyone.
    pub fn is_shared(&self) -> bool {
        self.policy.scope == Scope::Singleton
    }

    pub fn scope_name(&self) -> &'static str {
        if self.is_shared() { "singleton" } else { "session" }
    }

    /// The path of its URL.
    pub fn mount(&self) -> String {
        format!("/{}/mcp", self.name)
    }

    /// A visible tool. An excluded one is as unknown as one that does not exist: hiding alone would not be enough.
    pub fn tool(&self, name: &str) -> Option<&Tool> {
        self.tools.get(name)
    }

    /// Names of the visible tools, in no order.
    pub fn tool_names(&self) -> impl Iterator<Item = &str> {
        self.tools.keys().map(String::as_str)
    }

    pub fn tool_count(&self) -> usize {
        self.tools.len()
    }

    /// Tools of the catalog that clients do not see, by the catalog or by the policy.
    pub fn excluded_count(&self) -> usize {
        self.catalog.tools().len() - self.tools.len()
    }

    /// Whether the broker has resources of its own for it: what its policy takes out of results.
    pub fn keeps_media(&self) -> bool {
        self.policy.links_media()
    }

    /// The longest that any call may take, from its arrival to its answer.
    pub fn call_max(&self) -> Duration {
        self.plan.config.deadlines.call
    }
}
