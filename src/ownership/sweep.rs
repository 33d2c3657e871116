//! Killing a tree that may fork while it is being killed: stop all of it first, then kill what stands still.
//!
//! Responsible for choosing and signalling; who belongs is the caller's [`Claim`], and so is the proof of emptiness.
//! Shared by the keeper, by the broker for the orphans of a lost keeper, and by the sweep of leftovers.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use super::pidfd::PidFd;
use super::process_table::{Process, ProcessId, children, visit};

/// A tree that still forks after so many passes loses its children by SIGKILL first and is passed over again.
const FREEZE_PASSES_MAX: usize = 64;
/// Dashes between two passes.
const DASHES_MAX: usize = 64;

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
    /// Whom the kernel was asked to kill as members of the tree's cgroup.
    listed: BTreeSet<ProcessId>,
    /// Members met in any pass, dead ones included.
    met: BTreeSet<ProcessId>,
}

impl<C: FnMut(&Process) -> Claim> Hunt<C> {
    pub fn new(claim: C) -> Self {
        Self { claim, stopped: BTreeSet::new(), killed: BTreeSet::new(), listed: BTreeSet::new(), met: BTreeSet::new() }
    }

    /// Different members that were met so far, dead ones included. While it grows, somebody lives who gives birth to
    /// them, also when no pass sees him.
    pub fn met(&self) -> usize {
        self.met.len()
    }

    /// Different processes that were sent SIGKILL so far, by pidfd or by cgroup.
    pub fn killed(&self) -> usize {
        self.killed.union(&self.listed).count()
    }

    /// Counts those that were killed through their cgroup. One that has left it in that very moment still lives, so from
    /// here on they are members wherever they are, and are signalled as any other.
    pub fn count_in(&mut self, listed: Vec<ProcessId>) {
        self.listed.extend(listed);
    }

    /// Stops until a pass meets nobody new, dead or alive, then kills; returns the members that the last pass saw, zombies
    /// included. To have stopped nobody new is not enough: of a tree that forks all the time a pass may see the dead alone.
    /// `between` runs after each pass, so that a caller who is their parent can reap.
    ///
    /// # Errors
    /// `/proc` is not readable.
    pub fn round(&mut self, mut between: impl FnMut()) -> io::Result<Vec<Process>> {
        for _ in 0..FREEZE_PASSES_MAX {
            let known = self.met();
            self.pass(Signal::SIGSTOP)?;
            between();
            if self.met() == known {
                break;
            }
            self.dash(&mut between);
        }
        let members = self.pass(Signal::SIGKILL)?;
        between();
        Ok(members)
    }

    /// Stops what comes to this process as its subreaper, without looking at the rest of the machine: a process that
    /// forks and exits all the time outruns a pass over hundreds of others.
    fn dash(&mut self, between: &mut impl FnMut()) {
        for _ in 0..DASHES_MAX {
            let known = self.met();
            between();
            for pid in children(std::process::id()) {
                if let Some(process) = Process::read(pid)
                    && self.claim(&process) == Claim::Member
                {
                    self.strike(process, &mut BTreeMap::new(), Signal::SIGSTOP);
                }
            }
            if self.met() == known {
                break;
            }
        }
    }

    /// Strikes while it reads: a process that forks and exits all the time is gone by the end of a pass.
    fn pass(&mut self, signal: Signal) -> io::Result<Vec<Process>> {
        let mut family = BTreeMap::new();
        let mut members = Vec::new();
        let mut others = Vec::new();
        visit(|process| match self.claim(&process) {
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

    /// What was one of the tree stays one of it, also when its parent has died since.
    fn claim(&mut self, process: &Process) -> Claim {
        match (self.claim)(process) {
            Claim::AsItsParent if self.stopped.contains(&process.id()) || self.listed.contains(&process.id()) => {
                Claim::Member
            }
            claim => claim,
        }
    }

    /// Signals a member that has not had this signal yet, and counts it into the family.
    fn strike(&mut self, process: Process, family: &mut BTreeMap<u32, u64>, signal: Signal) -> Process {
        family.insert(process.pid, process.start_time);
        self.met.insert(process.id());
        // A second SIGKILL adds nothing, and a second SIGSTOP neither: only a member could send SIGCONT.
        if !self.struck(signal).contains(&process.id())
            && let Ok(pinned) = PidFd::open(process.pid)
            && self.is_still_member(&process, family)
            && pinned.signal(signal).is_ok()
            // Threads of it may live on behind a dead first one, so it is signalled, but it is nobody new.
            && !process.is_zombie()
        {
            self.struck(signal).insert(process.id());
        }
        // Not pinned or not signalled: it is gone, or runs as somebody else and is reported as a survivor.
        process
    }

    fn struck(&mut self, signal: Signal) -> &mut BTreeSet<ProcessId> {
        match signal {
            Signal::SIGSTOP => &mut self.stopped,
            _ => &mut self.killed,
        }
    }

    /// Asked after the process was pinned: from then on its pid means the pinned process, or a signal reaches nobody.
    fn is_still_member(&mut self, process: &Process, family: &BTreeMap<u32, u64>) -> bool {
        let Some(now) = Process::read(process.pid).filter(|now| now.start_time == process.start_time) else {
            return false;
        };
        match self.claim(&now) {
            Claim::Member => true,
            Claim::Spared => false,
            // The parent's pid must not have come to somebody else since it was seen.
            Claim::AsItsParent => {
                let parent = Process::read(now.ppid);
                parent.is_some_and(|parent| family.get(&parent.pid) == Some(&parent.start_time))
            }
        }
    }
}

/// What one round left, for a caller who has no ECHILD as proof.
pub(super) struct Round {
    pub left: Vec<Process>,
    /// Different members met in this and earlier rounds.
    pub met: usize,
    /// Whether the cgroup has processes, also such as cannot be seen from here.
    pub is_populated: bool,
    /// Different processes killed in this and earlier rounds.
    pub killed: usize,
}

#[derive(Debug)]
pub(super) enum Outcome {
    Empty { killed: usize },
    Busy { left: Vec<Process> },
}

/// Between two rounds; most processes are dead within the first.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// A pass can miss a process that was born behind the reader. If it stays it is in the next one; if it goes on to a
/// child and dies, it is met dead there. So a round is quiet only when it meets nobody new, dead or alive.
const QUIET_ROUNDS: usize = 2;

/// Goes round until nobody is found any more. For the broker: rounds run beside the runtime, since they read all of
/// `/proc`. Cancelling ends it after the round that runs.
pub(super) async fn hunt_down(
    budget: Duration,
    mut round: impl FnMut() -> io::Result<Round> + Send + 'static,
) -> Outcome {
    let started = Instant::now();
    let mut pause = FIRST_PAUSE;
    let mut quiet_rounds = 0;
    let mut met = 0;
    loop {
        let running = tokio::task::spawn_blocking(move || {
            let done = round();
            (round, done)
        });
        // Failed: the round has panicked or the runtime is ending. Nothing is proved.
        let Ok((next, done)) = running.await else { return Outcome::Busy { left: Vec::new() } };
        round = next;
        quiet_rounds = match &done {
            Ok(done) if done.left.is_empty() && !done.is_populated && done.met == met => quiet_rounds + 1,
            _ => 0,
        };
        let has_met = done.as_ref().is_ok_and(|done| done.met != met);
        met = done.as_ref().map_or(met, |done| done.met);
        match done {
            Ok(done) if quiet_rounds == QUIET_ROUNDS => return Outcome::Empty { killed: done.killed },
            _ if quiet_rounds > 0 || started.elapsed() < budget => {}
            done => return Outcome::Busy { left: done.map(|done| done.left).unwrap_or_default() },
        }
        tokio::time::sleep(pause).await;
        // Who is new was born since the round before, and gives birth again.
        pause = if has_met { FIRST_PAUSE } else { (pause * 2).min(LONGEST_PAUSE) };
    }
}
