//! A new revision while the broker runs: built whole from the files, checked whole, and then published, or not at all.
//!
//! One writer at a time. What is wrong with the files changes nothing but what is said of the last reload.

mod report;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime};

use tokio::sync::watch;
use tokio_util::task::TaskTracker;

use super::Broker;
use crate::core::admission::AdmissionLimits;
use crate::core::diagnostic::{Diagnostic, Diagnostics};
use crate::events::What;
use crate::ownership::drop_clean_pages;
use crate::snapshot::{self, AtStart, BackendDifference, Change, Signature, Snapshot, Switches, differences};
use crate::supervisor::{Handover, NotPublished};
use crate::telemetry;

pub use report::ReloadReport;
use report::{BackendReport, ErrorReport};

/// How a reload is meant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReloadOptions {
    /// Says what would change, and changes nothing.
    pub dry_run: bool,
    /// Records policies and catalogs as accepted, if they can be served.
    pub accept: bool,
}

/// What came of the last reload, or of the start. An operator's word on one backend reads the files of no other, so it
/// says nothing of them.
#[derive(Clone, Debug)]
pub struct LastReload {
    pub at: SystemTime,
    /// None when it was published.
    pub errors: Vec<ErrorReport>,
}

/// What reloads have in common.
#[derive(Debug)]
pub(super) struct Reloads {
    revision: watch::Sender<u64>,
    started_with: AtStart,
    /// Numbers those who ask.
    asked: AtomicU64,
    writer: tokio::sync::Mutex<Writer>,
    last: Mutex<LastReload>,
    /// What an operator has said of backends; bounded by the configuration.
    switches: Mutex<Switches>,
    tasks: TaskTracker,
}

/// What the one who publishes knows.
#[derive(Debug, Default)]
struct Writer {
    /// The last full reload: it read the files after the asker of this number had come, and all before.
    answered: Option<(u64, ReloadReport)>,
}

/// What became of what runs, by backend.
type Handovers = BTreeMap<Arc<str>, Handover>;

/// A revision that could be published.
struct Candidate {
    snapshot: Arc<Snapshot>,
    differences: Vec<BackendDifference>,
}

impl Reloads {
    pub fn new(snapshot: &Snapshot) -> Self {
        Self {
            revision: watch::Sender::new(snapshot.revision),
            started_with: AtStart::of(snapshot),
            asked: AtomicU64::new(0),
            writer: tokio::sync::Mutex::default(),
            last: Mutex::new(LastReload { at: SystemTime::now(), errors: Vec::new() }),
            switches: Mutex::default(),
            tasks: TaskTracker::new(),
        }
    }

    pub fn revisions(&self) -> watch::Receiver<u64> {
        self.revision.subscribe()
    }

    pub fn last(&self) -> LastReload {
        lock(&self.last).clone()
    }

    /// What an operator has said of a backend since the start.
    pub fn switch_of(&self, backend: &str) -> Option<bool> {
        lock(&self.switches).get(backend).copied()
    }
}

impl Broker {
    /// Reads all files again, and serves what they say if nothing is wrong with them. When it returns, the next request
    /// sees the new revision; what it replaces may still be on its way out.
    ///
    /// Reloads follow one another. Those that are asked for while one is under way are answered by one that reads the
    /// files after them. Cancelled, it goes on.
    pub async fn reload(self: &Arc<Self>, options: ReloadOptions) -> ReloadReport {
        let broker = self.clone();
        let ticket = self.reloads.asked.fetch_add(1, Ordering::SeqCst) + 1;
        let reload = self.reloads.tasks.spawn(async move {
            let mut writer = broker.reloads.writer.lock().await;
            let is_plain = options == ReloadOptions::default();
            if let Some((covered, report)) = &writer.answered
                && is_plain
                && *covered >= ticket
            {
                return report.clone();
            }
            let covers = broker.reloads.asked.load(Ordering::SeqCst);
            let report = broker.reload_alone(options).await;
            if is_plain {
                writer.answered = Some((covers, report.clone()));
            }
            report
        });
        reload.await.unwrap_or_else(|error| self.refused(&failed(&self.snapshot(), error), false, Instant::now()))
    }

    /// Serves a backend or stops serving it until the broker restarts, whatever its file says. Done already, it does
    /// nothing. Cancelled, it goes on.
    pub async fn switch(self: &Arc<Self>, name: &str, enabled: bool) -> ReloadReport {
        let (broker, name) = (self.clone(), name.to_owned());
        let switch = self.reloads.tasks.spawn(async move {
            let _writer = broker.reloads.writer.lock().await;
            let begun = Instant::now();
            let before = broker.snapshot();
            if before.backend(&name).is_some() == enabled {
                let same = Candidate { differences: differences(&before, &before), snapshot: before };
                return broker.foreseen(&same, false, begun);
            }
            let (previous, switched) = (before.clone(), name.clone());
            let built = blocking(&before, move || snapshot::switched(&previous, &switched, enabled)).await;
            let report = broker.publish_or_refuse(&before, built, begun);
            if report.ok {
                broker.reloads.set_switch(&name, enabled);
                let backend = name.into();
                tracing::info!(%backend, enabled, "switched by an operator");
                broker.events.record(match enabled {
                    true => What::BackendEnabled { backend },
                    false => What::BackendDisabled { backend },
                });
            }
            report
        });
        switch.await.unwrap_or_else(|error| self.refused(&failed(&self.snapshot(), error), false, Instant::now()))
    }

    /// By the one writer.
    async fn reload_alone(self: &Arc<Self>, options: ReloadOptions) -> ReloadReport {
        let begun = Instant::now();
        let before = self.snapshot();
        let (previous, switches) = (before.clone(), lock(&self.reloads.switches).clone());
        let built = blocking(&before, move || match options {
            ReloadOptions { accept: false, .. } => snapshot::rebuild(&previous, &switches),
            ReloadOptions { dry_run: true, .. } => snapshot::rebuild_unreviewed(&previous, &switches),
            ReloadOptions { dry_run: false, .. } => {
                let built = snapshot::rebuild_unreviewed(&previous, &switches)?;
                let backends = built.backends.values().map(|backend| &**backend);
                snapshot::accept(&built.config.path, backends, &Signature::now(None, None))?;
                built.reviewed()
            }
        });
        let built = built.await;
        match (built, options.dry_run) {
            (Ok(built), true) => self.foreseen(&Candidate::new(&before, built), true, begun),
            (Err(faults), true) => self.refused(&faults, true, begun),
            (built, false) => {
                let report = self.publish_or_refuse(&before, built, begun);
                self.reloads.note(report.errors.clone());
                report
            }
        }
    }

    fn publish_or_refuse(
        &self,
        before: &Snapshot,
        built: Result<Snapshot, Diagnostics>,
        begun: Instant,
    ) -> ReloadReport {
        let published = built.and_then(|built| {
            let candidate = Candidate::new(before, built);
            let shutting_down =
                |error| Diagnostics::from(Diagnostic::new(&before.config.path, None, format!("{error}")));
            let handovers = self.publish(&candidate.snapshot).map_err(shutting_down)?;
            Ok(self.report(&candidate, handovers, false, begun))
        });
        match published {
            Ok(report) => {
                let changed = report.changed();
                tracing::info!(revision = report.revision, changed, took_ms = report.took_ms, "reloaded");
                if !report.needs_restart.is_empty() {
                    let keys = report.needs_restart.join(", ");
                    tracing::warn!(%keys, "take effect with the next start of the broker");
                }
                self.events.record(What::ReloadDone { revision: report.revision, changed });
                if changed > 0 {
                    // What only a build touches is not needed until the next one.
                    self.reloads.tasks.spawn_blocking(drop_clean_pages);
                }
                report
            }
            Err(faults) => {
                let report = self.refused(&faults, false, begun);
                for fault in faults.iter() {
                    let (file, line) = (fault.file.display(), fault.line);
                    tracing::error!(%file, line, "reload refused: {}", fault.message);
                }
                self.events.record(What::ReloadRejected { revision: report.revision, errors: report.errors.len() });
                report
            }
        }
    }

    /// The one place where a revision comes into force.
    fn publish(&self, snapshot: &Arc<Snapshot>) -> Result<Handovers, NotPublished> {
        let (server, revision) = (&snapshot.config.server, snapshot.revision);
        let handovers = self.supervisor.publish(&snapshot.plans())?;
        lock(&self.reloads.switches).retain(|name, _| snapshot.config.backends.contains_key(name));
        self.snapshot.store(snapshot.clone());
        let (live_max, starts_max) = (server.live_instances_max, server.concurrent_starts_max);
        self.supervisor.set_limits(AdmissionLimits { live_max, starts_max });
        telemetry::set_level(&server.log);
        self.reloads.revision.send_replace(revision);
        Ok(handovers)
    }

    /// What a candidate would change.
    fn foreseen(&self, candidate: &Candidate, dry_run: bool, begun: Instant) -> ReloadReport {
        let handovers = self.supervisor.foresee(&candidate.snapshot.plans());
        self.report(candidate, handovers, dry_run, begun)
    }

    fn report(&self, candidate: &Candidate, mut handovers: Handovers, dry_run: bool, begun: Instant) -> ReloadReport {
        let Candidate { snapshot, differences } = candidate;
        let backends = differences.iter().map(|difference| {
            let handover = handovers.remove(&*difference.name).unwrap_or_default();
            BackendReport::new(difference, handover)
        });
        let report = ReloadReport {
            dry_run,
            revision: if dry_run { self.snapshot().revision } else { snapshot.revision },
            backends: backends.collect(),
            needs_restart: self.reloads.started_with.needs_restart(&AtStart::of(snapshot)),
            ..ReloadReport::of(snapshot)
        };
        report.took(begun)
    }

    /// Nothing changes: the revision that is served goes on.
    fn refused(&self, faults: &Diagnostics, dry_run: bool, begun: Instant) -> ReloadReport {
        let errors = faults.iter().map(ErrorReport::of).collect();
        ReloadReport { ok: false, dry_run, errors, ..ReloadReport::of(&self.snapshot()) }.took(begun)
    }
}

impl Reloads {
    fn note(&self, errors: Vec<ErrorReport>) {
        *lock(&self.last) = LastReload { at: SystemTime::now(), errors };
    }

    fn set_switch(&self, name: &str, enabled: bool) {
        lock(&self.switches).insert(name.to_owned(), enabled);
    }
}

impl Candidate {
    fn new(before: &Snapshot, snapshot: Snapshot) -> Self {
        Self { differences: differences(before, &snapshot), snapshot: Arc::new(snapshot) }
    }
}

impl ReloadReport {
    fn changed(&self) -> usize {
        self.backends.iter().filter(|backend| backend.change != Change::Unchanged).count()
    }
}

/// Reading, verifying and compiling is not for the threads that relay.
async fn blocking(
    before: &Snapshot,
    build: impl FnOnce() -> Result<Snapshot, Diagnostics> + Send + 'static,
) -> Result<Snapshot, Diagnostics> {
    tokio::task::spawn_blocking(build).await.unwrap_or_else(|error| Err(failed(before, error)))
}

fn failed(before: &Snapshot, error: impl std::fmt::Display) -> Diagnostics {
    Diagnostic::new(&before.config.path, None, format!("the reload itself failed: {error}")).into()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
