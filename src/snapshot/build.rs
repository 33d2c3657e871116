//! From files to a snapshot: everything is read and checked, and every fault is told, not only the first.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::Snapshot;
use super::backend::{Backend, Tool};
use super::output_schema::OutputSchema;
use super::surface::Surface;
use crate::catalog::{self, Catalog, CatalogTool};
use crate::config::{self, BackendConfig, Config, Deadlines, Package};
use crate::core::diagnostic::{Diagnostic, Diagnostics, suggestion};
use crate::core::lifecycle::{Limits, OverdueRule};
use crate::link::LinkLimits;
use crate::policy::{self, OnCancel, Policy};
use crate::protocol::raw::{entries, members};
use crate::supervisor::Plan;

/// Sweeps that may answer "busy" before an operator is told; with the sweep's own rounds inside each.
const SWEEPS_MAX: u8 = 3;
/// However short a stop is to be, killing and proving has this long: it takes some tens of milliseconds, but the answer
/// of a keeper that hangs comes 3 s later, and a proof that is not waited for would be a false alarm.
const SWEEP_MIN: Duration = Duration::from_secs(5);
/// The same where Windows is asked as well: PowerShell takes a second or two to load, and is run three times when there is
/// somebody to end.
const SWEEP_MIN_WITH_WINDOWS: Duration = Duration::from_secs(20);
/// A tree that cannot be proved empty is looked at again after this, then after twice that, up to the maximum.
const CLEANUP_RETRY: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(300));
/// A backend that fails again and again is left alone for this long, doubling up to the maximum.
const BACKOFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// A generation that was ready for this long has shown that it works.
const STABLE_AFTER: Duration = Duration::from_secs(30);

/// Builds the first revision. A faulty configuration hides no faults of the files that it names.
pub fn build(path: &Path) -> Result<Snapshot, Diagnostics> {
    let (config, mut faults) = config::read(path);
    let Some(config) = config else { return Err(faults) };
    let mut backends = BTreeMap::new();
    let has_files = |backend: &BackendConfig| backend.catalog.is_file() && backend.policy.is_file();
    // A file that is missing was told of already.
    for (name, backend) in config.backends.iter().filter(|(_, backend)| backend.enabled && has_files(backend)) {
        match build_backend(&config, name, backend) {
            Ok(built) => {
                backends.insert(name.clone(), Arc::new(built));
            }
            Err(found) => faults.extend(found),
        }
    }
    faults.into_result(Snapshot { revision: 1, config, backends })
}

fn build_backend(config: &Config, name: &str, backend: &BackendConfig) -> Result<Backend, Diagnostics> {
    let (catalog, policy) = match (catalog::load(&backend.catalog), policy::load(&backend.policy)) {
        (Ok(catalog), Ok(policy)) => (catalog, policy),
        (catalog, policy) => {
            let mut faults = Diagnostics::default();
            catalog.err().into_iter().chain(policy.err()).for_each(|found| faults.extend(found));
            return Err(faults);
        }
    };
    let mut faults = Diagnostics::default();
    check_package(&catalog, backend, &mut faults);
    let names: Vec<&str> = catalog.tools().iter().map(|tool| &*tool.name).collect();
    policy.check_names(&names).into_iter().for_each(|fault| faults.push(fault));
    let taken: HashMap<&str, Vec<String>> =
        catalog.tools().iter().filter_map(|tool| Some((&*tool.name, arguments_of(&tool.raw)?))).collect();
    let takes = |tool: &str| taken.get(tool).map(Vec::as_slice);
    policy.check_arguments(&names, takes).into_iter().for_each(|fault| faults.push(fault));
    check_deadlines(&policy, &names, backend, &mut faults);
    check_probe(&catalog, &policy, config, backend, &mut faults);
    let name: Arc<str> = name.into();
    let catalog = Arc::new(catalog);
    let visible: Vec<_> = catalog.enabled().filter(|tool| policy.shows(&tool.name)).collect();
    let definitions: Vec<_> = visible.iter().map(|tool| &*tool.raw).collect();
    let surface = Surface::new(&catalog, &definitions, &capabilities(&policy));
    let tool = |tool: &CatalogTool| Tool {
        plan: Arc::new(policy.plan(&tool.name)),
        output: OutputSchema::of_tool(&tool.raw).map(Arc::new),
    };
    let tools: HashMap<String, Tool> = visible.iter().map(|entry| (entry.name.clone(), tool(entry))).collect();
    let scope = match policy.scope {
        policy::Scope::Session => "session",
        policy::Scope::Singleton => "singleton",
    };
    let fingerprint = backend.fingerprint(&config.vars, scope, &catalog.package, &catalog.version);
    let plan = Plan {
        backend: name.clone(),
        config: backend.clone(),
        vars: config.vars.clone(),
        catalog: catalog.clone(),
        limits: limits(&policy, backend, config.server.drain),
        link: LinkLimits { frame_len_max: config.server.frame_bytes_max },
    };
    faults.into_result(Backend { name, plan: Arc::new(plan), catalog, policy, fingerprint, surface, tools })
}

/// Only what the broker relays, or serves itself, is offered.
fn capabilities(policy: &Policy) -> Value {
    // Lists do not change while it runs, but clients are told that they may keep a stream open for it, and that stream
    // is there.
    let mut capabilities = json!({"tools": {"listChanged": true}});
    if policy.links_media() {
        capabilities["resources"] = json!({});
    }
    capabilities
}

/// A catalog must be of the very package that the configuration starts.
fn check_package(catalog: &Catalog, backend: &BackendConfig, faults: &mut Diagnostics) {
    let Some(Package { name, version }) = backend.package() else { return };
    if let Err(wrong) = catalog.check_package(&name, &version) {
        faults.push(Diagnostic::new(&catalog.path, None, wrong.to_string()));
    }
}

/// The arguments that a tool's schema names; `None` if it allows others or does not say.
fn arguments_of(tool: &RawValue) -> Option<Vec<String>> {
    let [schema] = members(tool.get(), ["inputSchema"]).ok()?;
    let [properties, additional] = members(schema?, ["properties", "additionalProperties"]).ok()?;
    let is_open = additional.is_some_and(|additional| additional != "false");
    let names = entries(properties?).ok()?.into_iter().map(|(name, _)| name.into_owned());
    (!is_open).then(|| names.collect())
}

/// A deadline over the ceiling would be cut without a word.
fn check_deadlines(policy: &Policy, tools: &[&str], backend: &BackendConfig, faults: &mut Diagnostics) {
    let ceiling = backend.deadlines.call;
    let longest = tools.iter().filter_map(|tool| Some((policy.plan(tool).deadline?, tool))).max();
    if let Some((deadline, tool)) = longest.filter(|(deadline, _)| *deadline > ceiling) {
        let (deadline, ceiling) = (deadline.as_secs_f64(), ceiling.as_secs_f64());
        faults.push(Diagnostic::new(
            &policy.path,
            None,
            format!(
                "deadline_seconds of '{tool}' is {deadline}, over call_seconds = {ceiling} of [backends.{}.deadlines]; raise that or lower this",
                backend.name
            ),
        ));
    }
}

fn check_probe(catalog: &Catalog, policy: &Policy, config: &Config, backend: &BackendConfig, faults: &mut Diagnostics) {
    let Some(probe) = &backend.probe else { return };
    let visible: Vec<&str> = catalog.enabled().map(|tool| &*tool.name).filter(|tool| policy.shows(tool)).collect();
    if !visible.contains(&&*probe.tool) {
        let hint = suggestion(&probe.tool, visible);
        let message = format!(
            "'tool' in [backends.{}.probe] names '{}', which clients do not see{hint}",
            backend.name, probe.tool
        );
        faults.push(Diagnostic::new(&config.path, None, message));
    }
}

fn limits(policy: &Policy, backend: &BackendConfig, drain: Duration) -> Limits {
    let Deadlines { start, stop, polite, .. } = backend.deadlines;
    let sweep_min = if backend.ownership.windows { SWEEP_MIN_WITH_WINDOWS } else { SWEEP_MIN };
    // What is left of a stop is shared by asking with a signal and by killing.
    let after_polite = stop.saturating_sub(polite);
    let terminate = after_polite / 3;
    Limits {
        queue_len_max: policy.queue.len_max,
        leases_max: policy.max_concurrency,
        start,
        idle: policy.idle_timeout,
        drain,
        polite,
        terminate,
        sweep: (after_polite - terminate).max(sweep_min),
        sweeps_max: SWEEPS_MAX,
        cleanup_retry_min: CLEANUP_RETRY.0,
        cleanup_retry_max: CLEANUP_RETRY.1,
        backoff_min: BACKOFF.0,
        backoff_max: BACKOFF.1,
        stable_after: STABLE_AFTER,
        overdue: match policy.on_cancel {
            OnCancel::Recycle { grace } => OverdueRule::Recycle { grace },
            OnCancel::Keep => OverdueRule::Keep,
        },
    }
}
