//! The broker's children: those that it started itself, and the orphans of a lost keeper that came to it.
//!
//! The broker is a child subreaper, so when a keeper is killed its tree comes to the broker. Then every child that the
//! broker did not start itself is an orphan, and is swept here.
//!
//! **Invariant:** every process that the broker starts is started by [`spawn`], or by [`spawn_waited_for`] for a thread
//! that waits for it; others are taken for orphans.

use std::collections::BTreeSet;
use std::io;
use std::process::ExitStatus;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nix::sys::prctl;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use tokio::process::{Child, Command};
use tokio::sync::Semaphore;

use super::cgroup::Cgroup;
use super::pidfd::{PidFd, nix_pid};
use super::process_table::{self, Process, ProcessId, children};
use super::sweep::{Claim, Hunt, Outcome, Round, hunt_down};
use super::windows::{self, WindowsSide, WindowsSweep};
use super::wire::survivors;

/// One list a process, as the kernel's list of children is. Not held over a spawn, which may hang for as long as the file
/// system does that the program is on, while whoever sweeps or reaps needs it.
static STARTED: Mutex<Started> = Mutex::new(Started { children: BTreeSet::new(), under_way: Vec::new() });

struct Started {
    children: BTreeSet<ProcessId>,
    /// When each spawn that is under way began, in clock ticks after boot: a child that is not older may be its, and is
    /// in no list yet.
    under_way: Vec<u64>,
}

/// A child of this process, for a sweep of orphans.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kin {
    /// Started here, or come here on other ways before.
    Own,
    Orphan,
    /// An orphan, or what a spawn under way has made so far. It is not touched, and while it is there nothing is proved.
    Unknown,
}

/// Questions to Windows at the same time. Each has a thread, which hangs for as long as the exec of its program does; the
/// runtime has some hundreds, and needs them for files and sweeps.
static ASKING: Semaphore = Semaphore::const_new(16);

/// What the answer of a sweep may take beyond its budget (`windows::sweep`), and some.
const ASKING_GRACE: Duration = Duration::from_secs(1);

/// What the programs that ask Windows leave behind is killed and dead within this.
const HELPERS_BUDGET: Duration = Duration::from_millis(500);

/// Lets the orphans of a killed keeper come to this process (prctl(2), PR_SET_CHILD_SUBREAPER). Done by each start of a
/// tree as well; early, it tells an operator of a kernel that refuses.
///
/// # Errors
/// The kernel is older than 3.4 or a sandbox forbids it.
pub fn become_subreaper() -> io::Result<()> {
    Ok(prctl::set_child_subreaper(true)?)
}

/// A child that the broker started itself.
#[derive(Debug)]
pub(super) struct OwnChild {
    child: Child,
    id: ProcessId,
}

/// Starts a child that is no orphan.
pub(super) fn spawn(command: &mut Command) -> io::Result<OwnChild> {
    let under_way = UnderWay::begin();
    let child = command.spawn()?;
    // It is ours and not reaped, so it is in the table even if it is dead by now.
    let id = child.id().and_then(ProcessId::of).ok_or_else(|| io::Error::other("/proc is not readable"))?;
    under_way.end(id);
    Ok(OwnChild { child, id })
}

/// Starts a child that is no orphan either, and is waited for where it was started; whoever does so says [`forget`] after
/// that. Also for a keeper, which has no use for the list.
pub(super) fn spawn_waited_for(command: &mut std::process::Command) -> io::Result<(std::process::Child, ProcessId)> {
    let under_way = UnderWay::begin();
    let child = command.spawn()?;
    let id = ProcessId::of(child.id()).ok_or_else(|| io::Error::other("/proc is not readable"))?;
    under_way.end(id);
    Ok((child, id))
}

/// A spawn between fork and exec; without an end, one that failed and has left no child.
struct UnderWay(u64);

impl UnderWay {
    fn begin() -> Self {
        // Not readable: then any child may be its.
        let since = process_table::ticks_since_boot().unwrap_or(0);
        started().under_way.push(since);
        Self(since)
    }

    fn end(self, child: ProcessId) {
        // In the list before it is not under way any more, so that it is never taken for an orphan.
        started().children.insert(child);
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let under_way = &mut started().under_way;
        if let Some(at) = under_way.iter().position(|since| *since == self.0) {
            under_way.swap_remove(at);
        }
    }
}

/// It is reaped, or given up: from here on it is an orphan if it is anything.
pub(super) fn forget(id: ProcessId) {
    started().children.remove(&id);
}

impl OwnChild {
    pub fn id(&self) -> ProcessId {
        self.id
    }

    /// Waits for its end and reaps it; `None` when somebody else has. Cancelling loses nothing.
    pub async fn reaped(&mut self) -> Option<ExitStatus> {
        let exit = self.child.wait().await.ok();
        started().children.remove(&self.id);
        exit
    }

    pub fn kill(&self) {
        if let Some(pinned) = PidFd::of(self.id) {
            // Failed: it is dead.
            let _ = pinned.signal(nix::sys::signal::Signal::SIGKILL);
        }
    }
}

fn started() -> MutexGuard<'static, Started> {
    STARTED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Kills and reaps the orphans that are not older than `since` (clock ticks after boot: the start of the lost keeper).
/// Children that came to this process on other ways before are left alone. Who is in the keeper's cgroup is killed too,
/// whosever child it is. So is a `keeper` that was killed and does not die, with all that is below it; to reap it is left
/// to whoever started it.
pub(super) async fn sweep_orphans(
    since: u64,
    keeper: Option<ProcessId>,
    cgroup: Option<Cgroup>,
    budget: Duration,
) -> Outcome {
    let me = std::process::id();
    let is_keeper = move |process: &Process| keeper == Some(process.id());
    let mut hunt = Hunt::new(move |process: &Process| {
        if is_keeper(process) {
            Claim::Member
        } else if process.ppid != me {
            Claim::AsItsParent
        } else if kin(process, since) == Kin::Orphan {
            Claim::Member
        } else {
            Claim::Spared
        }
    });
    // Those count as met, though most of them were met by no pass.
    let mut reaped = 0;
    hunt_down(budget, move || {
        hunt.count_in(cgroup.as_ref().map(Cgroup::kill).unwrap_or_default());
        // Without it the dead of a tree that always forks soon outnumber what can be read while it forks once.
        let mut left = hunt.round(|| reaped += reap_orphans(since))?;
        left.retain(|process| match Process::read(process.pid) {
            Some(now) if now.start_time != process.start_time => false,
            Some(now) if now.ppid == me && !is_keeper(&now) => !is_reaped(now.pid),
            Some(_) => true,
            None => false,
        });
        // Whom the round has spared because nobody knew, or may have.
        let unproved = children_of(me).filter(|child| kin(child, since) != Kin::Own);
        let seen: BTreeSet<ProcessId> = left.iter().map(Process::id).collect();
        left.extend(unproved.filter(|child| !seen.contains(&child.id())));
        let is_populated = Cgroup::hold(cgroup.as_ref(), &mut left);
        Ok(Round { left, met: hunt.met() + reaped, is_populated, killed: hunt.killed() })
    })
    .await
}

/// Sweeps a Windows side for which there is no keeper, beside the runtime; then whatever the programs that asked have
/// left of themselves.
pub(super) async fn sweep_windows(side: WindowsSide, budget: Duration) -> WindowsSweep {
    let Some(since) = process_table::ticks_since_boot() else {
        return WindowsSweep::Busy { survivors: Vec::new(), reason: "`/proc/uptime` is not readable".to_owned() };
    };
    let asked = async {
        // Of a semaphore that is never closed.
        let permit = ASKING.acquire().await.ok();
        let asking = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            windows::sweep(&side, budget)
        });
        asking.await
    };
    let Ok(swept) = tokio::time::timeout(budget + ASKING_GRACE, asked).await else {
        // It is on its way to exec still, or so many others are. What comes of it is nobody's answer.
        let reason = format!("Windows could not be asked within {:.1} s", (budget + ASKING_GRACE).as_secs_f64());
        return WindowsSweep::Busy { survivors: Vec::new(), reason };
    };
    match (swept, sweep_orphans(since, None, None, HELPERS_BUDGET).await) {
        (Ok(swept), Outcome::Empty { .. }) => swept,
        (Ok(WindowsSweep::Busy { survivors, reason }), _) => WindowsSweep::Busy { survivors, reason },
        (Ok(WindowsSweep::Empty { .. }), Outcome::Busy { left }) => WindowsSweep::Busy {
            survivors: survivors(left),
            reason: "the program that asked Windows has left processes".to_owned(),
        },
        // It has panicked, or the runtime is ending.
        (Err(_), _) => {
            WindowsSweep::Busy { survivors: Vec::new(), reason: "Windows was not asked to the end".to_owned() }
        }
    }
}

/// Of a child of this process: whether it came here by the death of a keeper that started then.
fn kin(child: &Process, since: u64) -> Kin {
    let started = started();
    if child.start_time < since || started.children.contains(&child.id()) {
        Kin::Own
    } else if started.under_way.iter().any(|begin| child.start_time >= *begin) {
        Kin::Unknown
    } else {
        Kin::Orphan
    }
}

fn children_of(parent: u32) -> impl Iterator<Item = Process> {
    children(parent).into_iter().filter_map(Process::read).filter(move |process| process.ppid == parent)
}

/// Reaps the orphans that are dead by now; how many.
fn reap_orphans(since: u64) -> usize {
    let me = std::process::id();
    let dead = children_of(me).filter(|process| process.is_zombie() && kin(process, since) == Kin::Orphan);
    dead.filter(|process| is_reaped(process.pid)).count()
}

/// Reaps this orphan if it is dead. By its own pid: a `waitpid` for any child would take the keepers from the runtime.
fn is_reaped(orphan: u32) -> bool {
    !matches!(waitpid(nix_pid(orphan), Some(WaitPidFlag::WNOHANG)), Ok(WaitStatus::StillAlive))
}
