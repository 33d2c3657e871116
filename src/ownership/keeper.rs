//! `lazy-mcp keeper`: the small process that owns one generation's tree.
//!
//! The broker starts it with the control socket as its stdin and nothing else: no arguments, no environment. It is a
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
use super::pidfd::{PidFd, nix_pid};
use super::process_table::{Process, ProcessId, ProcessTable};
use super::server::{self, CloseWhen, close_others};
use super::sweep::{Claim, Hunt};
use super::wire::{Exit, Order, Report, survivors};

/// A killed tree is mostly gone within this; then it is passed over again.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
/// Between passes over a tree that does not go: it waits for a device, or runs as somebody else.
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// Runs until the tree is empty and the broker knows or is gone.
pub fn main() -> ExitCode {
    let Ok(mut keeper) = Keeper::new() else { return ExitCode::FAILURE };
    // A bug must not free the tree: whatever happens, the last act is the sweep.
    let _ = catch_unwind(AssertUnwindSafe(|| keeper.serve()));
    while !matches!(catch_unwind(AssertUnwindSafe(|| keeper.sweep(None))), Ok(Ok(_))) {}
    ExitCode::SUCCESS
}

struct Keeper {
    control: Control,
    /// Readable when a child has died.
    deaths: SignalFd,
    root: Option<ProcessId>,
    root_exit: Option<Exit>,
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
        Ok(Self { control: Control::from_stdin()?, deaths, root: None, root_exit: None })
    }

    /// Returns when nothing more is to be said: the tree is empty, or the broker is gone.
    fn serve(&mut self) -> io::Result<()> {
        loop {
            while let Some(order) = self.control.next_order()? {
                match order {
                    Order::Start { launch } => match server::spawn(&launch, self.control.take_stdio()?) {
                        Ok(root) => {
                            self.root = Some(root);
                            self.control.report(&Report::Spawned { root })?;
                            // From here on there is little to do, for hours maybe.
                            super::footprint::drop_clean_pages();
                        }
                        Err((failure, message)) => {
                            return self.control.report(&Report::SpawnFailed { failure, message });
                        }
                    },
                    Order::Terminate => self.terminate(),
                    Order::Sweep { budget_ms } => {
                        let report = self.sweep(Some(Duration::from_millis(budget_ms)))?;
                        self.control.report(&report)?;
                        if matches!(report, Report::Empty { .. }) {
                            return Ok(());
                        }
                    }
                }
            }
            let (orders, deaths) = (PollFd::new(self.control.fd(), PollFlags::POLLIN), self.death_poll());
            let mut awaited = [orders, deaths];
            match poll(&mut awaited, PollTimeout::NONE) {
                Ok(_) | Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno.into()),
            }
            let has_order = awaited[0].any().unwrap_or(false);
            self.reap();
            if has_order && !self.control.receive()? {
                return Ok(());
            }
        }
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

    /// Kills all below this process and reaps it; without a budget it goes on until ECHILD.
    fn sweep(&mut self, budget: Option<Duration>) -> io::Result<Report> {
        let started = Instant::now();
        let me = std::process::id();
        let mut hunt =
            Hunt::new(|process: &Process| if process.ppid == me { Claim::Member } else { Claim::AsItsParent });
        let mut pause = FIRST_PAUSE;
        while self.reap() == Children::Some {
            let members = hunt.round(|| {
                self.reap();
            });
            if self.wait_for_the_last(pause) == Children::Some
                && budget.is_some_and(|budget| started.elapsed() >= budget)
            {
                return Ok(Report::Busy { survivors: survivors(members?) });
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
        let took_us = u64::try_from(started.elapsed().as_micros()).unwrap_or(u64::MAX);
        Ok(Report::Empty { killed: hunt.killed(), took_us })
    }

    /// Reaps as they die, at most for `pause`.
    fn wait_for_the_last(&mut self, pause: Duration) -> Children {
        let until = Instant::now() + pause;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if self.reap() == Children::None {
                return Children::None;
            }
            if left.is_zero() {
                return Children::Some;
            }
            // Rounded up to whole milliseconds, so that the rest of a pause is not a busy loop.
            let left = PollTimeout::try_from(left + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX);
            // Failed: as good as a wakeup.
            let _ = poll(&mut [self.death_poll()], left);
        }
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
                // Failed: the broker is gone, and the next receive says so.
                let _ = self.control.report(&Report::RootExited { exit });
            }
        }
    }

    fn death_poll(&self) -> PollFd<'_> {
        PollFd::new(self.deaths.as_fd(), PollFlags::POLLIN)
    }
}
