//! One run of `powershell.exe`: a request on its stdin, the answer from its stdout, within a time and a size.

use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl;
use nix::sys::signal::{SigSet, Signal};

use super::{WindowsSide, contract};
use crate::ownership::children;
use crate::ownership::pidfd::{PidFd, nix_pid};
use crate::ownership::process_table::ProcessId;

/// Bytes of an answer: 256 processes of 100 bytes each, and much room.
const ANSWER_BYTES_MAX: usize = 1 << 20;
/// A healthy one takes a second or two, most of it to load; one that takes this long hangs.
const RUN_MAX: Duration = Duration::from_secs(15);
/// How long a killed one may take to be dead. Part of the second that a keeper has beyond its budget.
const DEATH_GRACE: Duration = Duration::from_millis(500);
const READ_BYTES: usize = 16 << 10;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum HelperError {
    #[error("`{program}` could not be started: {source}")]
    Start { program: PathBuf, source: io::Error },
    #[error("{name} did not answer within {:.1} s", .after.as_secs_f64())]
    TimedOut { name: String, after: Duration },
    #[error("{name} answered more than {ANSWER_BYTES_MAX} bytes")]
    TooLong { name: String },
    #[error("{name} ended with {status} instead of an answer")]
    Failed { name: String, status: ExitStatus },
    #[error("{name} could not be listened to: {source}")]
    Read { name: String, source: io::Error },
    #[error("{name} was killed and is not dead")]
    Stuck { name: String },
}

/// What it answered, if it ended by itself, well and in time. Either way nothing of its process group goes on.
///
/// # Errors
/// What kept it from answering.
pub(super) fn ask(side: &WindowsSide, request: &[u8], deadline: Instant) -> Result<Vec<u8>, HelperError> {
    let name = name(side);
    let mut helper = Helper::start(side)?;
    let answer = helper.converse(&name, request, deadline);
    match (answer, helper.end()) {
        (Err(error), Some(_)) => Err(error),
        (Ok(answer), Some(status)) if status.success() => Ok(answer),
        (Ok(_), Some(status)) => Err(HelperError::Failed { name, status }),
        (_, None) => Err(HelperError::Stuck { name }),
    }
}

/// The program as messages call it.
pub(super) fn name(side: &WindowsSide) -> String {
    let program = side.powershell.program();
    program.file_name().unwrap_or(program.as_os_str()).to_string_lossy().into_owned()
}

struct Helper {
    child: Child,
    id: ProcessId,
    /// Readable when it is dead, which it tells without reaping.
    pinned: PidFd,
}

impl Helper {
    fn start(side: &WindowsSide) -> Result<Self, HelperError> {
        let program = side.powershell.program();
        let mut command = Command::new(program);
        command.args(contract::arguments()).env_clear().envs(side.powershell.env()).envs(side.marker.env());
        // A directory that Windows has itself, because it looks at the others over the network, and complains.
        command.current_dir(program.parent().unwrap_or("/".as_ref()));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        set_apart(&mut command);
        let failed = |source| HelperError::Start { program: program.to_owned(), source };
        let (mut child, id) = children::spawn_waited_for(&mut command).map_err(failed)?;
        match PidFd::open(id.pid) {
            Ok(pinned) => Ok(Self { child, id, pinned }),
            Err(error) => {
                // No descriptor left for it. It is our child and not reaped, so its number means it still.
                let _ = child.kill().and_then(|()| child.wait());
                children::forget(id);
                Err(failed(error))
            }
        }
    }

    /// Says the request and hears the answer until the process is dead. The end of its stdout is not waited for: a child
    /// of it may hold that open.
    fn converse(&mut self, name: &str, request: &[u8], deadline: Instant) -> Result<Vec<u8>, HelperError> {
        let begun = Instant::now();
        let deadline = deadline.min(begun + RUN_MAX);
        let failed = |source| HelperError::Read { name: name.to_owned(), source };
        let (mut stdin, mut stdout) = (self.child.stdin.take(), self.child.stdout.take());
        stdin.as_ref().map_or(Ok(()), never_block).map_err(failed)?;
        stdout.as_ref().map_or(Ok(()), never_block).map_err(failed)?;
        let (mut unsaid, mut answer) = (request, Vec::new());
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let is_dead = self.wait(stdin.as_ref(), stdout.as_ref(), left).map_err(failed)?;
            // Closed when all is said: that is how the script knows.
            if stdin.as_mut().is_some_and(|stdin| !say(stdin, &mut unsaid)) {
                stdin = None;
            }
            if stdout.as_mut().is_some_and(|stdout| !hear(stdout, &mut answer)) {
                stdout = None;
            }
            if answer.len() > ANSWER_BYTES_MAX {
                return Err(HelperError::TooLong { name: name.to_owned() });
            }
            if is_dead {
                return Ok(answer);
            }
            if left.is_zero() {
                return Err(HelperError::TimedOut { name: name.to_owned(), after: begun.elapsed() });
            }
        }
    }

    /// Waits until there is something to do; whether the process is dead.
    fn wait(&self, stdin: Option<&ChildStdin>, stdout: Option<&ChildStdout>, left: Duration) -> io::Result<bool> {
        let mut awaited = vec![PollFd::new(self.pinned.as_fd(), PollFlags::POLLIN)];
        awaited.extend(stdin.map(|stdin| PollFd::new(stdin.as_fd(), PollFlags::POLLOUT)));
        awaited.extend(stdout.map(|stdout| PollFd::new(stdout.as_fd(), PollFlags::POLLIN)));
        // Rounded up, so that the rest of the time is not a busy loop.
        let left = PollTimeout::try_from(left + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX);
        match poll(&mut awaited, left) {
            Ok(_) => Ok(awaited[0].any().unwrap_or(false)),
            Err(Errno::EINTR) => Ok(false),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Kills what is left of its group, and reaps it; how it ended, or `None` when it does not die.
    fn end(mut self) -> Option<ExitStatus> {
        kill_group(&self.child);
        let until = Instant::now() + DEATH_GRACE;
        let is_dead = loop {
            let left = until.saturating_duration_since(Instant::now());
            match self.wait(None, None, left) {
                Ok(true) => break true,
                Ok(false) if !left.is_zero() => {}
                Ok(false) | Err(_) => break false,
            }
        };
        let status = if is_dead { self.child.wait().ok() } else { None };
        // Dead, or from here on an orphan like any other, which whoever sweeps next hunts and reaps.
        children::forget(self.id);
        status
    }
}

/// In a session, and so a group, of its own, with nothing blocked, and dead when the thread that waits for it is.
#[expect(unsafe_code, reason = "what runs between fork and exec")]
fn set_apart(command: &mut Command) {
    let parent = nix::unistd::getpid();
    let apart = move || -> io::Result<()> {
        nix::unistd::setsid()?;
        // A keeper blocks all signals, and std passes that on.
        SigSet::empty().thread_set_mask()?;
        prctl::set_pdeathsig(Signal::SIGKILL)?;
        if nix::unistd::getppid() != parent {
            return Err(Errno::ESRCH.into());
        }
        Ok(())
    };
    // SAFETY: these are bare system calls on integers, which are allowed after a fork of a process with threads
    // (signal-safety(7)); nothing is allocated.
    unsafe { command.pre_exec(apart) };
}

/// SIGKILL to the group that its leader has made for itself.
///
/// A group is no way to own processes, which may leave it, but here it is a safe way to be rid of those that have not:
/// the leader is our child and not reaped, so nobody else's process or group can have its number. Who has left is an
/// orphan of the keeper or the broker, and is swept as such.
#[expect(clippy::disallowed_methods, reason = "the number cannot be anybody else's, as said above")]
fn kill_group(leader: &Child) {
    // Failed: nobody is left in it.
    let _ = nix::sys::signal::killpg(nix_pid(leader.id()), Signal::SIGKILL);
}

fn never_block(pipe: &impl AsFd) -> io::Result<()> {
    fcntl(pipe, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
    Ok(())
}

/// Writes what fits; whether there is more to say and somebody to hear it.
fn say(stdin: &mut ChildStdin, unsaid: &mut &[u8]) -> bool {
    while !unsaid.is_empty() {
        match stdin.write(unsaid) {
            Ok(len) => *unsaid = &unsaid[len..],
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return error.kind() == ErrorKind::WouldBlock,
        }
    }
    false
}

/// Reads what has come, and stops when it is too much; whether there may be more.
fn hear(stdout: &mut ChildStdout, answer: &mut Vec<u8>) -> bool {
    let mut bytes = [0; READ_BYTES];
    while answer.len() <= ANSWER_BYTES_MAX {
        match stdout.read(&mut bytes) {
            Ok(0) => return false,
            Ok(len) => answer.extend_from_slice(&bytes[..len]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return error.kind() == ErrorKind::WouldBlock,
        }
    }
    true
}
