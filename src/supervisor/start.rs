//! Bringing up a generation: from its number to a running server with a link; and why that failed, as an operator and
//! a model read it.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::registry::Services;
use super::slot::Slot;
use super::windows::windows_side;
use crate::config::{InstanceContext, Surroundings};
use crate::core::generation::Generation;
use crate::core::launch::Launch;
use crate::core::limits::{TreeLimit, TreeLimits};
use crate::link::{Link, Streams};
use crate::ownership::journal::Entry;
use crate::ownership::{self, InstanceDir, KeptFiles, Marker, Owners, Remains, Tree};

/// A server that runs, and the conversation with it.
#[derive(Clone, Debug)]
pub(super) struct Started {
    pub tree: Tree,
    pub link: Link,
    pub limits: Limits,
    pub kept: Arc<KeptFiles>,
}

/// A server that does not run.
#[derive(Debug)]
pub(super) struct NotStarted {
    pub failure: StartFailure,
    /// What of the start is not proved gone; `None` when nothing is left.
    pub remains: Option<Remains>,
}

/// The limits of a generation, and whether they hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    pub asked: TreeLimits,
    /// `None` when all of them hold.
    pub refusal: Option<Arc<str>>,
}

/// What a generation leaves on disk while it may have processes; erased after the proof.
#[derive(Debug, Default)]
pub(super) struct Footprint {
    dir: Option<InstanceDir>,
    kept: Option<Arc<KeptFiles>>,
    entry: Option<Entry>,
}

impl Footprint {
    /// Removes it all. What cannot be removed is logged; it is found and removed at the next start.
    pub async fn erase(self) {
        let erased = tokio::task::spawn_blocking(move || {
            // A result may still be on its way through a policy: what it would keep would stay.
            if let Some(kept) = self.kept {
                kept.close();
            }
            // The entry last: with it the next broker finds the directory.
            self.dir.map_or(Ok(()), InstanceDir::remove).map_err(|e| e.to_string())?;
            self.entry.map_or(Ok(()), Entry::proved).map_err(|e| e.to_string())
        });
        match erased.await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(%error, "failed to remove what a generation left on disk"),
            Err(error) => tracing::error!(%error, "removing what a generation left on disk"),
        }
    }
}

/// Starts the server of a generation. Everything that could be left behind is in the journal before it exists, and
/// in the footprint, whatever comes of the start. Cancelled, it leaves a tree that sweeps itself.
pub(super) async fn bring_up(
    slot: &Arc<Slot>,
    services: &Arc<Services>,
    generation: Generation,
) -> (Footprint, Result<Started, NotStarted>) {
    let (mut footprint, prepared) = {
        let (slot, services) = (slot.clone(), services.clone());
        // Aside, because a directory on a dead mount would else stop every other backend with this one.
        let prepared = tokio::task::spawn_blocking(move || {
            let mut footprint = Footprint::default();
            let prepared = prepare(&slot, &services, generation, &mut footprint);
            (footprint, prepared)
        });
        prepared.await.unwrap_or_else(|e| (Footprint::default(), Err(spawn_failed(format!("prepare the start: {e}")))))
    };
    let started = match prepared {
        Ok(prepared) => start(slot, services, prepared, &mut footprint).await,
        Err(cause) => Err((cause, None)),
    };
    let not_started =
        |(cause, remains)| NotStarted { failure: StartFailure::new(generation, cause, Vec::new()), remains };
    (footprint, started.map_err(not_started))
}

/// A start with everything in place but the process.
struct Prepared {
    launch: Launch,
    limits: Limits,
    kept: Arc<KeptFiles>,
    owners: Owners,
}

/// Notes the generation, makes its directory, and fills in its command. Blocks on the file system.
fn prepare(
    slot: &Slot,
    services: &Services,
    generation: Generation,
    footprint: &mut Footprint,
) -> Result<Prepared, StartCause> {
    let plan = slot.plan();
    let (backend, number) = (&*slot.key.backend, generation.number());
    let asked = plan.config.ownership.limits;
    let limits = Limits { asked, refusal: services.why_unlimited(asked).map(Arc::from) };
    let surroundings = Surroundings::of_this_process();
    let marker = Marker::of(backend, &slot.id, number).ok_or_else(|| spawn_failed("make a marker of its name"))?;
    let owners = Owners {
        cgroup: services
            .cgroups
            .as_ref()
            .ok()
            .map(|cgroups| cgroups.of(&slot.id, number).limited(cgroups.attainable(asked))),
        windows: windows_side(&plan.config, &plan.vars, &surroundings, marker.clone())
            .map_err(|e| StartCause::Resolve(e.to_string()))?,
    };
    let entry = services.journal.begin(backend, &slot.id, number, owners.cgroup.as_ref()).map_err(spawn_failed)?;
    let entry = footprint.entry.insert(entry);
    if owners.windows.is_some() {
        services.journal.with_windows(entry, &marker).map_err(spawn_failed)?;
    }
    let dir = InstanceDir::create(&services.journal.instances(), &slot.id, number).map_err(spawn_failed)?;
    let dir = footprint.dir.insert(dir);
    let kept = footprint.kept.insert(Arc::new(KeptFiles::beside(dir))).clone();
    let context = InstanceContext {
        instance_id: slot.id.clone(),
        generation: number,
        instance_dir: dir.path().to_owned(),
        scope_key_hash: slot.key.scope_key_hash(),
        marker: marker.to_string(),
    };
    let launch =
        plan.config.resolve(&plan.vars, &context, &surroundings).map_err(|e| StartCause::Resolve(e.to_string()))?;
    Ok(Prepared { launch, owners, limits, kept })
}

async fn start(
    slot: &Slot,
    services: &Services,
    prepared: Prepared,
    footprint: &mut Footprint,
) -> Result<Started, (StartCause, Option<Remains>)> {
    let Prepared { launch, owners, mut limits, kept } = prepared;
    let started = ownership::start(owners, &services.keeper, &launch, &services.tracker).await;
    let started = started.map_err(|failed| (spawn_failed(failed.error), failed.remains))?;
    if let Some(entry) = &mut footprint.entry
        && let Err(e) = entry.started(started.tree.keeper(), started.tree.root())
    {
        // The tree is owned all the same; a next broker would have to find it by its marker alone.
        tracing::warn!(slot = %slot, error = %e, "failed to write the journal");
    }
    limits.refusal = limits.refusal.or_else(|| started.tree.limit_refusal().cloned());
    if let Some(reason) = &limits.refusal {
        tracing::warn!(slot = %slot, %reason, "runs without the limits that were asked for");
    }
    let streams = Streams { stdin: started.pipes.stdin, stdout: started.pipes.stdout, stderr: started.pipes.stderr };
    let listener = services.audience.listener(&slot.key);
    let link = Link::open(streams, slot.plan().link, listener, &services.tracker);
    Ok(Started { tree: started.tree, link, limits, kept })
}

fn spawn_failed(error: impl fmt::Display) -> StartCause {
    StartCause::Spawn(format!("failed to {error}"))
}

/// The last failed start of a slot; every call that waited for it is told the same.
#[derive(Clone, Debug)]
pub struct StartFailure {
    pub at: SystemTime,
    pub generation: u64,
    pub cause: StartCause,
    /// What the server last wrote to stderr, credentials taken out.
    pub stderr: Vec<String>,
}

#[derive(Clone, Debug)]
pub enum StartCause {
    /// The command could not be made out: a program, a variable or a secret is missing. Says what to do.
    Resolve(String),
    /// The process could not be created.
    Spawn(String),
    /// The process ended before it had answered.
    Exited(String),
    /// The process went over a limit before it had answered.
    OverLimit(TreeLimit),
    /// The answer was not one.
    Handshake(String),
    /// There was no answer in time.
    TimedOut(Duration),
}

/// Lines of stderr that a sentence quotes; status has them all.
const QUOTED_LINES: usize = 3;

impl StartFailure {
    pub(super) fn new(generation: Generation, cause: StartCause, stderr: Vec<String>) -> Self {
        Self { at: SystemTime::now(), generation: generation.number(), cause, stderr }
    }

    /// One word for status and metrics.
    pub fn kind(&self) -> &'static str {
        match self.cause {
            StartCause::Resolve(_) => "resolve",
            StartCause::Spawn(_) => "spawn",
            StartCause::Exited(_) => "exited",
            StartCause::OverLimit(_) => "over_limit",
            StartCause::Handshake(_) => "handshake",
            StartCause::TimedOut(_) => "timed_out",
        }
    }
}

impl fmt::Display for StartCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Resolve(why) | Self::Spawn(why) => f.write_str(why),
            Self::Exited(how) => write!(f, "the server {how} before it had answered `initialize`"),
            Self::OverLimit(limit) => write!(
                f,
                "the server went over its limit of {limit} and was ended before it had answered `initialize`; raise that if it needs more"
            ),
            Self::Handshake(why) => write!(f, "the server could not be greeted: {why}"),
            Self::TimedOut(limit) => write!(f, "no answer to `initialize` within {} s", limit.as_secs_f64()),
        }
    }
}

/// The cause, and what the server said last: for whoever made the call. Status and logs have the cause alone, because
/// what a server writes is not ours to keep.
impl fmt::Display for StartFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.cause)?;
        let quoted = &self.stderr[self.stderr.len().saturating_sub(QUOTED_LINES)..];
        if !quoted.is_empty() {
            write!(f, "; last lines of its stderr: {}", quoted.join(" | "))?;
        }
        Ok(())
    }
}
