//! What an earlier broker left: found by the journal, killed, proved gone.
//!
//! A keeper whose broker died sweeps by itself, so mostly there is nothing to do but to see its end. If it was killed
//! as well, its tree went to init; then it is found by start times and by the marker in the environment, which not all
//! of a browser's processes show, but their parents do; and by its cgroup, where it had one.
//!
//! What runs on Windows outlives all of these, the boot of a WSL included, and is found by its marker.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::{Journal, JournalError, Record, at, journal_dir, remove};
use crate::ownership::MARKER_VARIABLES;
use crate::ownership::cgroup::Cgroup;
use crate::ownership::children::sweep_windows;
use crate::ownership::instance_dir::InstanceDir;
use crate::ownership::process_table::{Process, ProcessId};
use crate::ownership::sweep::{Claim, Hunt, Outcome, Round, hunt_down};
use crate::ownership::tree::Sweep;
use crate::ownership::windows::{Marker, Powershell, WindowsSide, WindowsSweep};
use crate::ownership::wire::survivors;

/// A keeper without a broker is left this long to end by itself before it is taken for hung.
const KEEPER_GRACE: Duration = Duration::from_secs(1);
/// Linux takes no more for arguments and environment together (execve(2)).
const ENVIRON_BYTES_MAX: u64 = 2 << 20;

/// A generation of an earlier broker, and what came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leftover {
    pub record: Record,
    pub sweep: Sweep,
}

/// What a sweep of leftovers may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeftoversBudget {
    /// For what runs here, all together.
    pub here: Duration,
    /// For each side on Windows, whatever the others took: one question may take 15 s, and is worth nothing without its
    /// answer. `None`: they have what the rest has left.
    pub windows_each: Option<Duration>,
}

impl LeftoversBudget {
    /// For everything together.
    pub fn whole(budget: Duration) -> Self {
        Self { here: budget, windows_each: None }
    }

    fn for_windows(self) -> Duration {
        self.windows_each.unwrap_or(self.here)
    }

    fn spend_here(&mut self, took: Duration) {
        self.here = self.here.saturating_sub(took);
    }

    fn spend_on_windows(&mut self, took: Duration) {
        if self.windows_each.is_none() {
            self.spend_here(took);
        }
    }
}

impl Journal {
    /// Generations of brokers that are dead. Blocks on the file system.
    ///
    /// # Errors
    /// The journal is not readable. A file in it that is no record is removed: it says nothing of any process.
    pub fn leftovers(&self) -> Result<Vec<Record>, JournalError> {
        Ok(self.left_files()?.into_iter().map(|(_, record)| record).collect())
    }

    /// Kills what is left of them, and proves it; what is proved leaves the journal, with its instance directory.
    /// `powershell_of` is how Windows is asked for a backend, or why it cannot be; it is
    /// called only for generations with a Windows side.
    ///
    /// # Errors
    /// The journal is not readable.
    pub async fn sweep_leftovers(
        &self,
        mut budget: LeftoversBudget,
        powershell_of: impl Fn(&str) -> Result<Powershell, String>,
    ) -> Result<Vec<Leftover>, JournalError> {
        let mut swept = Vec::new();
        for (path, record) in self.left_files()? {
            let sweep = self.sweep_one(&record, &mut budget, &powershell_of).await;
            if matches!(sweep, Sweep::Empty { .. }) {
                self.forget(&path, &record)?;
            }
            swept.push(Leftover { record, sweep });
        }
        Ok(swept)
    }

    fn left_files(&self) -> Result<Vec<(PathBuf, Record)>, JournalError> {
        let dir = journal_dir(&self.state_dir);
        let mut found = Vec::new();
        for entry in fs::read_dir(&dir).map_err(at(&dir))? {
            let path = entry.map_err(at(&dir))?.path();
            match path.extension().and_then(|extension| extension.to_str()) {
                Some("json") => {}
                // Its writer died in the middle of it, and no keeper was started.
                Some("new") => {
                    remove(&path)?;
                    continue;
                }
                _ => continue,
            }
            match fs::read(&path).map(|bytes| serde_json::from_slice::<Record>(&bytes)) {
                Ok(Ok(record)) if self.is_left(&record) => found.push((path, record)),
                Ok(Ok(_)) => {}
                Ok(Err(_)) => {
                    tracing::warn!(path = %path.display(), "removed from the journal: not a record");
                    remove(&path)?;
                }
                Err(error) => return Err(at(&path)(error)),
            }
        }
        Ok(found)
    }

    fn is_left(&self, record: &Record) -> bool {
        record.boot_id != self.boot_id || record.broker != self.broker && !record.broker.is_alive()
    }

    async fn sweep_one(
        &self,
        record: &Record,
        budget: &mut LeftoversBudget,
        powershell_of: impl Fn(&str) -> Result<Powershell, String>,
    ) -> Sweep {
        let started = Instant::now();
        let killed = if record.boot_id == self.boot_id {
            let hunted = hunt_down(budget.here, leftover_rounds(record, self.cgroup_of(record))).await;
            budget.spend_here(started.elapsed());
            match hunted {
                Outcome::Empty { killed } => killed,
                Outcome::Busy { left } => return Sweep::Busy { survivors: survivors(left), reason: None },
            }
        } else {
            // No process outlives its boot, whatever pids the record names.
            0
        };
        let Some(marker) = self.windows_marker_of(record) else {
            return Sweep::Empty { killed, took: started.elapsed() };
        };
        let powershell = match powershell_of(&record.backend) {
            Ok(powershell) => powershell,
            Err(reason) => return Sweep::Busy { survivors: Vec::new(), reason: Some(reason) },
        };
        let asked = Instant::now();
        let swept = sweep_windows(WindowsSide { marker, powershell }, budget.for_windows()).await;
        budget.spend_on_windows(asked.elapsed());
        match swept {
            WindowsSweep::Empty { terminated } => Sweep::Empty { killed: killed + terminated, took: started.elapsed() },
            WindowsSweep::Busy { survivors, reason } => Sweep::Busy { survivors, reason: Some(reason) },
        }
    }

    /// `None` when there is no Windows side, or the marker is not one that this installation has noted.
    fn windows_marker_of(&self, record: &Record) -> Option<Marker> {
        let Record { backend, instance, generation, windows, .. } = record;
        let seal = windows.as_ref()?;
        let marker = Marker::of(backend, instance, *generation).filter(|marker| self.seal(marker) == *seal);
        if marker.is_none() {
            tracing::warn!(backend, generation, "left alone: a journal entry with a marker that is not ours");
        }
        marker
    }

    /// `None` as well when this very process runs in it: started from inside a server of the broker before, it is a
    /// part of that tree that must live.
    fn cgroup_of(&self, record: &Record) -> Option<Cgroup> {
        let Record { instance, generation, cgroup, .. } = record;
        let cgroup = Cgroup::recorded(cgroup.as_deref()?, &self.installation, instance, *generation)?;
        let lineage = lineage();
        let is_ours =
            record.boot_id == self.boot_id && !cgroup.processes().iter().any(|process| lineage.contains(&process.id()));
        is_ours.then_some(cgroup)
    }

    fn forget(&self, path: &Path, record: &Record) -> Result<(), JournalError> {
        let Record { backend, instance, generation, .. } = record;
        if let Some(dir) = InstanceDir::find(&self.instances(), instance, *generation)
            && let Err(error) = dir.remove()
        {
            // Files that stay keep nobody from starting.
            tracing::warn!(backend, generation, %error, "instance directory of an earlier broker stays");
        }
        if let Some(cgroup) = self.cgroup_of(record)
            && let Err(error) = cgroup.remove()
        {
            tracing::warn!(backend, generation, %error, "the empty cgroup of an earlier broker stays");
        }
        remove(path)
    }
}

fn leftover_rounds(record: &Record, cgroup: Option<Cgroup>) -> impl FnMut() -> std::io::Result<Round> + Send + 'static {
    let started = Instant::now();
    let keeper = record.keeper;
    let known: Vec<ProcessId> = record.root.into_iter().collect();
    let marker = EnvMarker::of(record);
    let spared = lineage();
    let mut hunt = Hunt::new(move |process: &Process| {
        let id = process.id();
        if spared.contains(&id) {
            Claim::Spared
        } else if Some(id) == keeper {
            // Its tree goes first, so that it can reap and end by itself.
            if started.elapsed() < KEEPER_GRACE { Claim::Spared } else { Claim::Member }
        } else if known.contains(&id) || keeper.is_some_and(|keeper| is_child(process, keeper)) || marker.is_on(process)
        {
            Claim::Member
        } else {
            Claim::AsItsParent
        }
    });
    move || {
        hunt.count_in(cgroup.as_ref().map(Cgroup::kill).unwrap_or_default());
        let mut left = hunt.round(|| {})?;
        left.extend(keeper.and_then(|keeper| Process::read(keeper.pid).filter(|now| now.id() == keeper)));
        // A zombie is dead; reaping it is its parent's business, which is not us.
        left.retain(|process| process.id().is_alive());
        let is_populated = Cgroup::hold(cgroup.as_ref(), &mut left);
        Ok(Round { left, met: hunt.met(), is_populated, killed: hunt.killed() })
    }
}

fn is_child(process: &Process, keeper: ProcessId) -> bool {
    process.ppid == keeper.pid && ProcessId::of(keeper.pid) == Some(keeper)
}

/// This process and its ancestors: a broker may well be started from inside a server of the one before.
fn lineage() -> BTreeSet<ProcessId> {
    let mut lineage = BTreeSet::new();
    let mut next = Process::read(std::process::id());
    while let Some(process) = next.filter(|process| lineage.insert(process.id())) {
        next = Process::read(process.ppid);
    }
    lineage
}

/// The two environment variables that every server gets.
struct EnvMarker([Vec<u8>; 2]);

impl EnvMarker {
    fn of(record: &Record) -> Self {
        let [instance, generation] = MARKER_VARIABLES;
        Self([
            format!("{instance}={}", record.instance).into_bytes(),
            format!("{generation}={}", record.generation).into_bytes(),
        ])
    }

    /// Whether the process was executed with both. Not readable (somebody else's, or gone): no.
    fn is_on(&self, process: &Process) -> bool {
        let mut environ = Vec::new();
        let read = File::open(format!("/proc/{}/environ", process.pid))
            .and_then(|file| file.take(ENVIRON_BYTES_MAX).read_to_end(&mut environ));
        let has = |pair: &Vec<u8>| environ.split(|byte| *byte == 0).any(|entry| entry == pair);
        read.is_ok() && self.0.iter().all(has)
    }
}
