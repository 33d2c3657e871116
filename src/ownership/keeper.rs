//! `lazy-mcp keeper`: the small process that owns one generation's tree.
//!
//! The broker starts it with the control socket as its stdin and nothing else: no arguments, and no environment
//! but the marker of its generation. It is a
//! child subreaper, so whatever forks below it and loses its parent comes back to it, and when `waitpid` says ECHILD
//! nothing of the tree exists any more. It has one thread and no runtime.
//!
//! **Invariant:** it never exits while it has a child. With the control socket at EOF the broker is gone; then it
//! sweeps until nothing is left.

mod control;

use std::io;
use std::os::fd::AsFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};

use self::control::Control;
use super::cgroup::{Cgroup, Level, LimitWatch};
use super::pidfd::{PidFd, nix_pid};
use super::process_table::{Process, ProcessId, ProcessTable};
use super::server::{self, CloseWhen, Spawned, close_others};
use super::sweep::{Claim, Hunt};
use super::windows::{self, WindowsSide, WindowsSweep};
use super::wire::{Exit, Order, Report, survivors};
use crate::core::launch::Launch;

/// A killed tree is mostly gone within this; then it is passed over again.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
/// What was killed through its cgroup gets this long to die before `/proc` is passed over as well. A browser's memory
/// takes some tens of milliseconds to be given back.
const CGROUP_PAUSE: Duration = Duration::from_millis(100);
/// No signal tells that a cgroup is not populated any more, so while that is waited for it is asked.
const CGROUP_TICK: Duration = Duration::from_millis(1);
/// Between passes over a tree that does not go: it waits for a device, or runs as somebody else.
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// One go at a Windows side when nobody waits for it.
const WINDOWS_BUDGET: Duration = Duration::from_secs(30);
/// After a go that proved nothing, doubling up to the second: each costs Windows a program of 100 MB.
const WINDOWS_PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// A keeper without a broker asks Windows for this long; what it could not prove is in the journal.
const WINDOWS_ALONE: Duration = Duration::from_secs(600);

/// Runs until the tree is empty and the broker knows or is gone.
pub fn main() -> ExitCode {
    let Ok(mut keeper) = Keeper::new() else { return ExitCode::FAILURE };
    // A bug must not free the tree: whatever happens, the last act is the sweep.
    let _ = catch_unwind(AssertUnwindSafe(|| keeper.serve()));
    loop {
        match catch_unwind(AssertUnwindSafe(|| keeper.sweep(None))) {
            Ok(Ok(Report::Empty { .. })) => return ExitCode::SUCCESS,
            // No child is left, and Windows has not said anything in all that time: the next broker asks it.
            Ok(Ok(_)) => return ExitCode::FAILURE,
            Ok(Err(_)) | Err(_) => {}
        }
    }
}

struct Keeper {
    control: Control,
    /// Readable when a child has died.
    deaths: SignalFd,
    root: Option<ProcessId>,
    root_exit: Option<Exit>,
    /// Where the server was put. This process stays outside, so that it can see the end.
    cgroup: Option<Cgroup>,
    /// Its limits that have not been reached.
    limits: Vec<LimitWatch>,
    /// What the server may have started on Windows, until that is proved gone.
    windows: Option<WindowsSide>,
}

/// Whether the kernel still knows a child of ours.
#[derive(PartialEq, Eq)]
enum Children {
    Some,
    /// ECHILD: the proof.
    None,
}

impl Keeper {
    fn new() -> io::Result<Self> {
        prctl::set_name(c"lazy-mcp-keeper")?;
        prctl::set_child_subreaper(true)?;
        // Out of the broker's session: what the terminal sends is the broker's to handle. Fails for a session leader.
        let _ = nix::unistd::setsid();
        // Neither a file system nor somebody's terminal is held for longer than the broker itself holds it.
        let _ = nix::unistd::chdir("/");
        close_others(CloseWhen::Now);
        SigSet::all().thread_block()?;
        let deaths = SignalFd::with_flags(&Signal::SIGCHLD.into(), SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
        Ok(Self {
            control: Control::from_stdin()?,
            deaths,
            root: None,
            root_exit: None,
            cgroup: None,
            limits: Vec::new(),
            windows: None,
        })
    }

    /// Returns when nothing more is to be said: the tree is empty, or the broker is gone.
    fn serve(&mut self) -> io::Result<()> {
        loop {
            while let Some(order) = self.control.next_order()? {
                match order {
                    Order::Start { launch, cgroup, windows } => {
                        let report = self.start(&launch, cgroup)?;
                        // A server that was not executed has started nothing there.
                        self.windows = windows.filter(|_| matches!(report, Report::Spawned { .. })).map(|side| *side);
                        self.control.report(&report)?;
                        if matches!(report, Report::SpawnFailed { .. }) {
                            return Ok(());
                        }
                        // From here on there is little to do, for hours maybe.
                        super::footprint::drop_clean_pages();
                    }
                    Order::Terminate => self.terminate(),
                    Order::Sweep { budget_ms } => {
                        let report = self.sweep(Some(Duration::from_millis(budget_ms)))?;
                        self.control.report(&report)?;
                        if matches!(report, Report::Empty { .. }) {
                            return Ok(());
                        }
                        // It may be long until the next one.
                        super::footprint::drop_clean_pages();
                    }
                }
            }
            let mut awaited = vec![PollFd::new(self.control.fd(), PollFlags::POLLIN), self.death_poll()];
            awaited.extend(self.limits.iter().map(|limit| PollFd::new(limit.fd(), PollFlags::POLLPRI)));
            match poll(&mut awaited, PollTimeout::NONE) {
                Ok(_) | Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno.into()),
            }
            let has_order = awaited[0].any().unwrap_or(false);
            self.look_at_limits();
            self.reap();
            if has_order && !self.control.receive()? {
                return Ok(());
            }
        }
    }

    /// Executes the server, in a cgroup of its own if one was ordered and can be had.
    fn start(&mut self, launch: &Launch, cgroup: Option<Cgroup>) -> io::Result<Report> {
        let stdio = self.control.take_stdio()?;
        let (procs, no_cgroup) = match cgroup.as_ref().map(Cgroup::create) {
            Some(Ok(procs)) => (Some(procs), None),
            Some(Err(error)) => (None, Some(error)),
            None => (None, None),
        };
        self.cgroup = cgroup.filter(|_| procs.is_some());
        let (limits, limit_refusal) = self.cgroup.as_ref().map(Cgroup::limit).unwrap_or_default();
        self.limits = limits;
        let Spawned { root, refusal } = match server::spawn(launch, stdio, procs) {
            Ok(spawned) => spawned,
            Err((failure, message)) => return Ok(Report::SpawnFailed { failure, message }),
        };
        self.root = Some(root);
        if refusal.is_some()
            && let Some(cgroup) = self.cgroup.take()
        {
            // Empty: nobody was let in. Failed: it stays behind, and is in nobody's way.
            let _ = cgroup.remove();
            self.limits.clear();
        }
        let cgroup_refusal = no_cgroup.or(refusal).map(|error| error.to_string());
        Ok(Report::Spawned { root, cgroup_refusal, limit_refusal })
    }

    /// Tells of each limit that was reached, once. A look also arms the next poll.
    fn look_at_limits(&mut self) {
        let control = &mut self.control;
        self.limits.retain(|watch| {
            let level = watch.look();
            if level == Level::Over {
                // Failed: the broker is gone, and the next receive says so.
                let _ = control.report(&Report::OverLimit { limit: watch.limit });
            }
            level == Level::Within
        });
    }

    /// SIGTERM to the root's session: npx, sh and node get it each, because a wrapper does not pass it on.
    /// What has left that session (a browser) is left to them: they close it with its profile written, while a
    /// SIGTERM to every renderer makes a crash of an orderly end.
    fn terminate(&self) {
        let (Some(root), Ok(table)) = (self.root, ProcessTable::read()) else { return };
        for process in table.descendants(std::process::id()) {
            if process.session == root.pid
                && let Some(pinned) = PidFd::of(process.id())
            {
                // Failed: it is gone, or runs as somebody else; the sweep says which.
                let _ = pinned.signal(Signal::SIGTERM);
            }
        }
    }

    /// The Linux side, then the Windows side, which nobody on the first can add to any more; without a budget it goes on
    /// until both are proved empty.
    fn sweep(&mut self, budget: Option<Duration>) -> io::Result<Report> {
        let started = Instant::now();
        let left = || budget.map(|budget| budget.saturating_sub(started.elapsed()));
        let mut report = self.sweep_linux(budget)?;
        let mut pause = WINDOWS_PAUSES.0;
        while let (Report::Empty { killed, took_us }, Some(side)) = (&mut report, &self.windows) {
            match windows::sweep(side, left().unwrap_or(WINDOWS_BUDGET)) {
                WindowsSweep::Empty { terminated } => {
                    *killed += terminated;
                    self.windows = None;
                }
                WindowsSweep::Busy { survivors, reason } if budget.is_some() || started.elapsed() > WINDOWS_ALONE => {
                    return Ok(Report::Busy { survivors, reason: Some(reason) });
                }
                WindowsSweep::Busy { .. } => {
                    super::footprint::drop_clean_pages();
                    self.reap_for(pause);
                    pause = (pause * 2).min(WINDOWS_PAUSES.1);
                }
            }
            // What asked Windows may have left processes, as any program may. They count as nobody's who had to be killed:
            // nothing of the generation was left.
            match self.sweep_linux(left())? {
                Report::Empty { .. } => *took_us = micros(started.elapsed()),
                busy => return Ok(busy),
            }
        }
        Ok(report)
    }

    /// Kills all below this process and in the cgroup, and reaps it; without a budget it goes on until both are empty.
    fn sweep_linux(&mut self, budget: Option<Duration>) -> io::Result<Report> {
        let started = Instant::now();
        let me = std::process::id();
        let mut hunt =
            Hunt::new(|process: &Process| if process.ppid == me { Claim::Member } else { Claim::AsItsParent });
        let mut pause = FIRST_PAUSE;
        let in_cgroup = self.kill_cgroup();
        if !in_cgroup.is_empty() {
            hunt.count_in(in_cgroup);
            self.wait_until(Self::is_depopulated, CGROUP_PAUSE);
            // Mostly that was all, and the last of them is a zombie in a moment. What has moved out is hunted.
            self.wait_until(Self::is_empty, FIRST_PAUSE);
        }
        while !self.is_empty() {
            let members = hunt.round(|| {
                self.reap();
            });
            // Who has come back, or was put there from outside.
            hunt.count_in(self.kill_cgroup());
            if !self.wait_until(Self::is_empty, pause) && budget.is_some_and(|budget| started.elapsed() >= budget) {
                let mut left = members?;
                Cgroup::hold(self.cgroup.as_ref(), &mut left);
                return Ok(Report::Busy { survivors: survivors(left), reason: None });
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
        let took = started.elapsed();
        if let Some(cgroup) = self.cgroup.take() {
            // Failed: an empty directory stays, which holds nothing.
            let _ = cgroup.remove();
        }
        Ok(Report::Empty { killed: hunt.killed(), took_us: micros(took) })
    }

    /// Both proofs. The second is asked for only after the first.
    fn is_empty(&mut self) -> bool {
        self.reap() == Children::None && !self.cgroup.as_ref().is_some_and(Cgroup::is_populated)
    }

    fn is_depopulated(&mut self) -> bool {
        self.reap();
        !self.cgroup.as_ref().is_some_and(Cgroup::is_populated)
    }

    fn kill_cgroup(&self) -> Vec<ProcessId> {
        self.cgroup.as_ref().map(Cgroup::kill).unwrap_or_default()
    }

    /// Reaps as they die, at most for `pause`; whether it came to that. What is waited for reaps.
    fn wait_until(&mut self, is_so: fn(&mut Self) -> bool, pause: Duration) -> bool {
        let until = Instant::now() + pause;
        loop {
            let mut left = until.saturating_duration_since(Instant::now());
            if is_so(self) {
                return true;
            }
            if left.is_zero() {
                return false;
            }
            if self.cgroup.is_some() {
                // Less often, the longer it lasts already.
                left = left.min(CGROUP_TICK.max(pause / 50));
            }
            // Rounded up to whole milliseconds, so that the rest of a pause is not a busy loop.
            let left = PollTimeout::try_from(left + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX);
            // Failed: as good as a wakeup.
            let _ = poll(&mut [self.death_poll()], left);
        }
    }

    fn reap_for(&mut self, pause: Duration) {
        self.wait_until(
            |keeper| {
                keeper.reap();
                false
            },
            pause,
        );
    }

    /// Takes all that is dead, and tells of the root once.
    fn reap(&mut self) -> Children {
        while let Ok(Some(_)) = self.deaths.read_signal() {}
        loop {
            let (pid, exit) = match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::Exited(pid, code)) => (pid, Exit::Code(code)),
                Ok(WaitStatus::Signaled(pid, signal, _)) => (pid, Exit::Signal(signal as i32)),
                Ok(WaitStatus::StillAlive) => return Children::Some,
                Err(Errno::ECHILD) => return Children::None,
                // Stops are not asked for, so the rest is an interruption.
                Ok(_) | Err(_) => continue,
            };
            // Once: after that the pid may come again.
            if self.root_exit.is_none() && self.root.is_some_and(|root| nix_pid(root.pid) == pid) {
                self.root_exit = Some(exit);
                // The kernel counts before it kills, so if this was its doing it is to be seen by now.
                self.look_at_limits();
                // Failed: the broker is gone, and the next receive says so.
                let _ = self.control.report(&Report::RootExited { exit });
            }
        }
    }

    fn death_poll(&self) -> PollFd<'_> {
        PollFd::new(self.deaths.as_fd(), PollFlags::POLLIN)
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
