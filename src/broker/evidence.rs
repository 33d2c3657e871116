//! What there is to be seen of a tree that could not be proved gone, for whoever has to solve it.

use std::time::SystemTime;

use schemars::JsonSchema;
use serde::Serialize;

use super::status::ms;
use crate::core::survivor::{Means, Reason};
use crate::events::timestamp;
use crate::ownership::{Owner, Survivor};
use crate::supervisor::{Slot, SlotView, Unproved};

/// An instance in `cleanup_failed`: since when it is, is its `since`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Evidence {
    /// Times that its tree was killed and looked at, one under way included.
    pub attempts: u32,
    /// When the last of them began.
    pub last_attempt_at: String,
    /// Null while one is under way.
    pub next_attempt_in_ms: Option<u64>,
    /// By what its processes were to be ended.
    pub means: String,
    /// How much is left, as far as it can be told.
    pub finding: String,
    /// The command that looks again at once.
    pub command: String,
}

/// A process that is still there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct SurvivorSeen {
    pub pid: u32,
    /// Whether the pid is one of Windows.
    pub windows: bool,
    /// Clock ticks after boot: with the pid it names one process.
    pub start_time: u64,
    /// The name that the process gave itself.
    pub name: String,
    /// One letter, as in `ps`: `D` waits for a device, `Z` is dead.
    pub state: String,
    /// Whom it runs as; null when it is gone.
    pub uid: Option<u32>,
    /// Why it is still there: gone, unreaped, foreign, frozen, device, dying, on_windows or unknown.
    pub reason: String,
    /// The same in words, and what to do.
    pub explanation: String,
}

impl SurvivorSeen {
    /// As the last sweep found it, with what can be seen of it now.
    pub(super) fn look(survivor: &Survivor) -> Self {
        // A pid of Windows means somebody else here.
        let facts = if survivor.windows { None } else { survivor.facts() };
        let reason = if survivor.windows { Reason::OnWindows } else { Reason::of(facts) };
        Self {
            pid: survivor.pid,
            windows: survivor.windows,
            start_time: survivor.start_time,
            name: survivor.comm.clone(),
            state: facts.map_or(survivor.state, |facts| facts.state).into(),
            uid: facts.map(|facts| facts.uid),
            reason: reason.as_str().to_owned(),
            explanation: reason.to_string(),
        }
    }
}

impl Evidence {
    /// `None` unless the slot is in `cleanup_failed`.
    pub(super) fn of(slot: &Slot, view: &SlotView, keeper_is_lost: bool) -> Option<Self> {
        let Unproved { attempts, last, next } = view.unproved?;
        let (has_cgroup, has_windows) = match view.owner {
            None | Some(Owner::Keeper) => (false, false),
            Some(Owner::KeeperAndCgroup) => (true, false),
            Some(Owner::KeeperAndWindows) => (false, true),
            Some(Owner::KeeperCgroupAndWindows) => (true, true),
        };
        let finding = match (view.survivors.len(), &view.cleanup_reason) {
            (0, Some(reason)) => reason.clone(),
            (0, None) => {
                "no process was named: the last attempt got no answer in time, or what is left cannot be seen from here"
                    .to_owned()
            }
            (1, None) => "1 process is left".to_owned(),
            (1, Some(reason)) => format!("1 process is left; {reason}"),
            (many, None) => format!("{many} processes are left"),
            (many, Some(reason)) => format!("{many} processes are left; {reason}"),
        };
        Some(Self {
            attempts,
            last_attempt_at: timestamp(SystemTime::now() - last),
            next_attempt_in_ms: next.map(ms),
            means: Means { keeper_is_lost, has_cgroup, has_windows }.to_string(),
            finding,
            command: format!("lazy-mcp recover {slot}"),
        })
    }
}
