//! From files to a snapshot: everything is read and checked, and every fault is told, not only the first.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::value::RawValue;

use super::Snapshot;
use super::backend::{Backend, Tool};
use super::mirrored::mirrored;
use super::offers::Offers;
use super::review::Reviewed;
use super::surface::Surface;
use crate::catalog::{self, Catalog, CatalogTool};
use crate::config::{self, BackendConfig, Config, Deadlines, Package, Switches};
use crate::core::diagnostic::{Diagnostic, Diagnostics, suggestion};
use crate::core::lifecycle::{Limits, OverdueRule};
use crate::link::LinkLimits;
use crate::policy::{self, InputSchema, OnCancel, OutputSchema, Policy, ToolPlan};
use crate::protocol::raw::{entries, members};
use crate::review::ReviewLock;
use crate::supervisor::Plan;

/// Sweeps that may answer "busy" before an operator is told; with the sweep's own rounds inside each.
const SWEEPS_MAX: u8 = 3;
/// However short a stop is to be, killing and proving has this long: it takes some tens of milliseconds, but the answer
/// of a keeper that hangs comes 3 s later, that of a slow disk another second, and a proof that is not waited for would be
/// a false alarm.
const SWEEP_MIN: Duration = Duration::from_secs(6);
/// The same where Windows is asked as well: PowerShell takes a second or two to load, and is run three times when there is
/// somebody to end.
const SWEEP_MIN_WITH_WINDOWS: Duration = Duration::from_secs(21);
/// A tree that cannot be proved empty is looked at again after this, then after twice that, up to the maximum.
const CLEANUP_RETRY: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(300));
/// A backend that fails again and again is left alone for this long, doubling up to the maximum.
const BACKOFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// A generation that was ready for this long has shown that it works.
const STABLE_AFTER: Duration = Duration::from_secs(30);

/// Builds the first revision. A faulty configuration hides no faults of the files that it names. Where the configuration
/// asks for it, what nobody accepted is a fault too.
pub fn build(path: &Path) -> Result<Snapshot, Diagnostics> {
    match build_on(path, None, &Switches::new()) {
        Ok(snapshot) => snapshot.reviewed(),
        Err(mut faults) => {
            ReviewLock::read(&ReviewLock::path_for(path)).err().into_iter().for_each(|found| faults.extend(found));
            Err(faults)
        }
    }
}

/// Builds the revision after `previous` from the same configuration file. What has not changed is taken over from it:
/// a file is read and compared, and verified, parsed or compiled only when it is another.
pub fn rebuild(previous: &Snapshot, switches: &Switches) -> Result<Snapshot, Diagnostics> {
    rebuild_unreviewed(previous, switches)?.reviewed()
}

/// As [`rebuild`], whatever was accepted: for those who want to accept.
pub fn rebuild_unreviewed(previous: &Snapshot, switches: &Switches) -> Result<Snapshot, Diagnostics> {
    build_on(&previous.config.path, Some(previous), switches)
}

/// The revision after `previous` with one of its backends enabled or disabled and everything else as it is served,
/// whatever the files say by now: to disable must not depend on a file that somebody is editing.
pub fn switched(previous: &Snapshot, name: &str, enabled: bool) -> Result<Snapshot, Diagnostics> {
    let mut next = Snapshot { revision: previous.revision + 1, ..previous.clone() };
    if let Some(backend) = next.config.backends.get_mut(name) {
        backend.enabled = enabled;
    }
    match next.config.backends.get(name).filter(|_| enabled) {
        Some(backend) => {
            let built = build_on_known(&next.config, name, backend, previous.backends.get(name))?;
            next.backends.insert(name.to_owned(), built);
            next.reviewed_anew(name)
        }
        None => {
            next.backends.remove(name);
            next.reviewed.forget(name);
            Ok(next)
        }
    }
}

fn build_on(path: &Path, previous: Option<&Snapshot>, switches: &Switches) -> Result<Snapshot, Diagnostics> {
    let (config, mut faults) = config::read(path, switches);
    let Some(config) = config else { return Err(faults) };
    let mut backends = BTreeMap::new();
    let has_files = |backend: &BackendConfig| backend.catalog.is_file() && backend.policy.is_file();
    // A file that is missing was told of already.
    for (name, backend) in config.backends.iter().filter(|(_, backend)| backend.enabled && has_files(backend)) {
        match build_on_known(&config, name, backend, previous.and_then(|previous| previous.backend(name))) {
            Ok(built) => {
                backends.insert(name.clone(), built);
            }
            Err(found) => faults.extend(found),
        }
    }
    let revision = previous.map_or(1, |previous| previous.revision + 1);
    faults.into_result(Snapshot { revision, config, backends, reviewed: Reviewed::default() })
}

/// What is built of a backend depends on its catalog, its policy and these alone.
fn is_same(known: &Backend, config: &Config, backend: &BackendConfig) -> bool {
    let plan = &known.plan;
    plan.config == *backend
        && plan.vars == config.vars
        && plan.limits.drain == config.server.drain
        && plan.link.frame_len_max == config.server.frame_bytes_max
}

/// One backend from its files, whatever is wrong with others.
pub fn build_backend(config: &Config, name: &str, backend: &BackendConfig) -> Result<Arc<Backend>, Diagnostics> {
    build_on_known(config, name, backend, None)
}

/// The known one itself where nothing has changed.
fn build_on_known(
    config: &Config,
    name: &str,
    backend: &BackendConfig,
    known: Option<&Arc<Backend>>,
) -> Result<Arc<Backend>, Diagnostics> {
    let known_catalog = known.map(|known| &known.catalog).filter(|known| known.path == backend.catalog);
    let known_catalog = known_catalog.filter(|known| known.is_current());
    let known_policy = known.map(|known| &known.policy).filter(|known| known.path == backend.policy);
    let known_policy = known_policy.filter(|known| known.is_current());
    if let (Some(known), Some(_), Some(_)) = (known, known_catalog, known_policy)
        && is_same(known, config, backend)
    {
        return Ok(known.clone());
    }
    let catalog =
        known_catalog.map_or_else(|| catalog::load(&backend.catalog).map(Arc::new), |known| Ok(known.clone()));
    let policy = known_policy.map_or_else(|| policy::load(&backend.policy), |known| Ok(known.clone()));
    let (catalog, policy) = match (catalog, policy) {
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
    let visible: Vec<_> = visible_tools(&catalog, &policy).collect();
    let definitions: Vec<_> = visible.iter().map(|tool| &*tool.raw).collect();
    let offers = Offers::of(&catalog);
    let surface = Surface::new(&catalog, &offers, &definitions, policy.links_media());
    let for_all = policy.plan_for_all();
    let tools: HashMap<String, Tool> =
        visible.iter().map(|tool| (tool.name.clone(), built_tool(&policy, &tool.name, &tool.raw))).collect();
    let scope = match policy.scope {
        policy::Scope::Session => "session",
        policy::Scope::Singleton => "singleton",
    };
    let fingerprint = backend.fingerprint(&config.vars, scope, &catalog.package, &catalog.version);
    let plan = Plan {
        backend: name.clone(),
        fingerprint,
        is_shared: policy.scope == policy::Scope::Singleton,
        config: backend.clone(),
        vars: config.vars.clone(),
        catalog: catalog.clone(),
        limits: limits(&policy, backend, config.server.drain),
        link: LinkLimits { frame_len_max: config.server.frame_bytes_max },
    };
    let built = Backend {
        name,
        plan: Arc::new(plan),
        catalog,
        policy,
        fingerprint,
        surface,
        offers,
        for_all: Arc::new(for_all),
        tools,
    };
    faults.into_result(Arc::new(built))
}

fn built_tool(policy: &Policy, name: &str, raw: &RawValue) -> Tool {
    let plan = policy.plan(name);
    let schema = || members(raw.get(), ["inputSchema"]).ok()?[0].map(|schema| Arc::new(InputSchema::new(schema)));
    let schema = if plan.has_on_call() { schema() } else { None };
    let (output, mirrored) = (OutputSchema::of_tool(raw).map(Arc::new), mirrored(raw.get()).into());
    Tool { plan: Arc::new(plan), schema, output, mirrored }
}

/// The tools that clients see, in the server's order.
fn visible_tools<'c>(catalog: &'c Catalog, policy: &Policy) -> impl Iterator<Item = &'c CatalogTool> {
    catalog.enabled().filter(|tool| policy.shows(&tool.name) && !needs_task(&tool.raw))
}

/// A tool that answers with a task alone cannot be called through the broker, which relays none.
pub(super) fn needs_task(tool: &RawValue) -> bool {
    let execution = members(tool.get(), ["execution"]).ok().and_then(|[execution]| execution);
    let support = execution.and_then(|execution| members(execution, ["taskSupport"]).ok()?[0]);
    support == Some(r#""required""#)
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
    let mut check = |field: &str, of: fn(&ToolPlan) -> Option<Duration>| {
        let longest = tools.iter().filter_map(|tool| Some((of(&policy.plan(tool))?, tool))).max();
        let Some((longest, tool)) = longest.filter(|(longest, _)| *longest > ceiling) else { return };
        let (longest, ceiling) = (longest.as_secs_f64(), ceiling.as_secs_f64());
        let message = format!(
            "{field} of '{tool}' is {longest}, over call_seconds = {ceiling} of [backends.{}.deadlines]; raise that or lower this",
            backend.name
        );
        faults.push(Diagnostic::new(&policy.path, None, message));
    };
    check("deadline_seconds", |plan| plan.deadline);
    check("progress_extends_to_seconds", |plan| plan.progress_ceiling);
    let useless = tools.iter().find(|tool| {
        let plan = policy.plan(tool);
        plan.progress_ceiling.is_some_and(|ceiling| plan.deadline.is_none_or(|deadline| ceiling <= deadline))
    });
    if let Some(tool) = useless {
        let message = format!(
            "progress_extends_to_seconds of '{tool}' extends nothing: it must be over the deadline_seconds of the tool, which must be there"
        );
        faults.push(Diagnostic::new(&policy.path, None, message));
    }
}

fn check_probe(catalog: &Catalog, policy: &Policy, config: &Config, backend: &BackendConfig, faults: &mut Diagnostics) {
    let Some(probe) = &backend.probe else { return };
    let visible: Vec<&str> = visible_tools(catalog, policy).map(|tool| &*tool.name).collect();
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
            OnCancel::Keep { grace } => OverdueRule::Keep { grace },
        },
    }
}
