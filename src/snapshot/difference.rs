//! What a revision changes against the one before, for whoever publishes it and for whoever only wants to know.

use std::collections::BTreeSet;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::Serialize;

use super::{Backend, Snapshot};
use crate::config::ServerConfig;
use crate::core::digest::Digest;
use crate::core::limits::TreeLimit;

/// What becomes of a backend with a revision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// Nothing that it depends on is another.
    Unchanged,
    /// The same processes under other rules: policy, catalog, limits of time.
    Live,
    /// Its processes are started differently, or shared by others: instances are replaced.
    Launch,
    /// The configuration did not name it.
    Added,
    /// The configuration does not name it any more.
    Removed,
    Disabled,
    Enabled,
}

/// One backend of two revisions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendDifference {
    pub name: String,
    pub change: Change,
    /// `None` where it is not served.
    pub fingerprint_before: Option<Digest>,
    pub fingerprint_after: Option<Digest>,
    /// Names of tools that clients see now and did not before, in order.
    pub tools_added: Vec<String>,
    pub tools_removed: Vec<String>,
}

/// What a configuration says that only a start of the broker brings into force.
#[derive(Clone, Debug)]
pub struct AtStart {
    server: ServerConfig,
    /// Keys of limits that some backend has: the kernel is prepared for them before anything runs.
    limits: BTreeSet<&'static str>,
}

impl AtStart {
    pub fn of(snapshot: &Snapshot) -> Self {
        let limits = snapshot.backends.values().flat_map(|backend| backend.plan.config.ownership.limits.each());
        let key = |limit| match limit {
            TreeLimit::Memory { .. } => "memory_max_mb",
            TreeLimit::Pids { .. } => "pids_max",
        };
        Self { server: snapshot.config.server.clone(), limits: limits.map(key).collect() }
    }

    /// The keys of the configuration, as the file names them, for which `next` would need a start.
    pub fn needs_restart(&self, next: &Self) -> Vec<&'static str> {
        let (ours, theirs) = (&self.server, &next.server);
        let keys = [
            ("listen", ours.listen != theirs.listen),
            ("state_dir", ours.state_dir != theirs.state_dir),
            ("worker_threads", ours.worker_threads != theirs.worker_threads),
        ];
        let changed = keys.into_iter().filter_map(|(key, is_another)| is_another.then_some(key));
        changed.chain(next.limits.difference(&self.limits).copied()).collect()
    }
}

/// Every backend that either revision names, in the order of names. Those that neither serves are unchanged.
pub fn differences(before: &Snapshot, after: &Snapshot) -> Vec<BackendDifference> {
    let names: BTreeSet<&String> = before.config.backends.keys().chain(after.config.backends.keys()).collect();
    names.into_iter().map(|name| difference(name, before, after)).collect()
}

fn difference(name: &str, before: &Snapshot, after: &Snapshot) -> BackendDifference {
    let (old, new) = (before.backend(name), after.backend(name));
    let is_named = |snapshot: &Snapshot| snapshot.config.backends.contains_key(name);
    let change = match (old, new) {
        (None, None) => Change::Unchanged,
        (None, Some(_)) if is_named(before) => Change::Enabled,
        (None, Some(_)) => Change::Added,
        (Some(_), None) if is_named(after) => Change::Disabled,
        (Some(_), None) => Change::Removed,
        (Some(old), Some(new)) if old.fingerprint != new.fingerprint => Change::Launch,
        (Some(old), Some(new)) if is_same(old, new) => Change::Unchanged,
        (Some(_), Some(_)) => Change::Live,
    };
    let tools = |backend: Option<&Arc<Backend>>| -> BTreeSet<String> {
        backend.into_iter().flat_map(|backend| backend.tool_names().map(str::to_owned)).collect()
    };
    let (tools_before, tools_after) = (tools(old), tools(new));
    BackendDifference {
        name: name.to_owned(),
        change,
        fingerprint_before: old.map(|backend| backend.fingerprint),
        fingerprint_after: new.map(|backend| backend.fingerprint),
        tools_added: tools_after.difference(&tools_before).cloned().collect(),
        tools_removed: tools_before.difference(&tools_after).cloned().collect(),
    }
}

/// Of the same processes: whether they go on under the very rules that they had. A variable that it does not use makes
/// no difference.
fn is_same(old: &Arc<Backend>, new: &Arc<Backend>) -> bool {
    Arc::ptr_eq(old, new)
        || old.plan.config == new.plan.config
            && old.plan.limits == new.plan.limits
            && old.plan.link == new.plan.link
            && old.catalog.digest == new.catalog.digest
            && (&old.policy.path, old.policy.digest) == (&new.policy.path, new.policy.digest)
}
