//! Killing a tree that may fork while it is being killed: stop all of it first, then kill what stands still.
//!
//! Responsible for choosing and signalling; who belongs is the caller's [`Claim`], and so is the proof of emptiness.
//! Shared by the keeper, by the broker for the orphans of a lost keeper, and by the sweep of leftovers.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use nix::errno::Errno;
use nix::sys::signal::Signal;

use super::pidfd::PidFd;
use super::process_table::{Process, ProcessId, visit};

/// A tree that still forks after so many passes loses its children by SIGKILL first and is passed over again.
const FREEZE_PASSES_MAX: usize = 64;

/// What the caller knows of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Claim {
    /// It is one of the tree, whatever its parent is.
    Member,
    /// It must live, and its parent says nothing about it.
    Spared,
    /// It is one of the tree if its parent is.
    AsItsParent,
}

/// One tree's sweep, over as many rounds as it takes.
#[derive(Debug)]
pub(super) struct Hunt<C> {
    claim: C,
    stopped: BTreeSet<ProcessId>,
    killed: BTreeSet<ProcessId>,
}

impl<C: FnMut(&Process) -> Claim> Hunt<C> {
    pub fn new(claim: C) -> Self {
        Self { claim, stopped: BTreeSet::new(), killed: BTreeSet::new() }
    }

    /// Different processes that were sent SIGKILL so far.
    pub fn killed(&self) -> usize {
        self.killed.len()
    }

    /// Stops until a pass finds nobody new, then kills; returns the members that the last pass saw, zombies included.
    /// `between` runs after each pass, so that a caller who is their parent can reap.
    ///
    /// # Errors
    /// `/proc` is not readable.
    pub fn round(&mut self, mut between: impl FnMut()) -> io::Result<Vec<Process>> {
        for _ in 0..FREEZE_PASSES_MAX {
            let known = self.stopped.len();
            self.pass(Signal::SIGSTOP)?;
            between();
            if self.stopped.len() == known {
                break;
            }
        }
        let members = self.pass(Signal::SIGKILL)?;
        between();
        Ok(members)
    }

    /// Strikes while it reads: a process that forks and exits all the time is gone by the end of a pass.
    fn pass(&mut self, signal: Signal) -> io::Result<Vec<Process>> {
        let mut family = BTreeMap::new();
        let mut members = Vec::new();
        let mut others = Vec::new();
        visit(|process| match (self.claim)(&process) {
            Claim::Spared => {}
            Claim::Member => members.push(self.strike(process, &mut family, signal)),
            Claim::AsItsParent if family.contains_key(&process.ppid) => {
                members.push(self.strike(process, &mut family, signal));
            }
            Claim::AsItsParent => others.push(process),
        })?;
        // After the pids have wrapped, a child may stand before its parent.
        loop {
            let (related, unrelated): (Vec<Process>, Vec<Process>) =
                others.into_iter().partition(|process| family.contains_key(&process.ppid));
            others = unrelated;
            if related.is_empty() {
                return Ok(members);
            }
            members.extend(related.into_iter().map(|process| self.strike(process, &mut family, signal)));
        }
    }

    fn strike(&mut self, process: Process, family: &mut BTreeMap<u32, u64>, signal: Signal) -> Process {
        family.insert(process.pid, process.start_time);
        let done = match signal {
            Signal::SIGSTOP => &mut self.stopped,
            _ => &mut self.killed,
        };
        // A second SIGKILL adds nothing, and a second SIGSTOP neither: only a member could send SIGCONT.
        if done.contains(&process.id()) {
            return process;
        }
        let Ok(pinned) = PidFd::open(process.pid) else { return process };
        // From here on the pid means the pinned process, or the signal reaches nobody.
        let Some(now) = Process::read(process.pid) else { return process };
        let is_member = now.start_time == process.start_time
            && match (self.claim)(&now) {
                Claim::Member => true,
                Claim::Spared => false,
                // The parent's pid must not have come to somebody else since it was seen.
                Claim::AsItsParent => {
                    let parent = Process::read(now.ppid);
                    parent.is_some_and(|parent| family.get(&parent.pid) == Some(&parent.start_time))
                }
            };
        if is_member {
            match pinned.signal(signal) {
                Ok(()) => {
                    done.insert(process.id());
                }
                // Reaped in between: nothing to do. Not allowed: it is reported as a survivor.
                Err(error) => debug_assert!(matches!(
                    error.raw_os_error().map(Errno::from_raw),
                    Some(Errno::ESRCH | Errno::EPERM)
                )),
            }
        }
        process
    }
}
