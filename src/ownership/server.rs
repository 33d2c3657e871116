//! Executing the server: the keeper's child, in its own session, with nothing of ours but its three pipes.

use std::ffi::CString;
use std::fs::File;
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl;
use nix::sys::signal::{SigSet, Signal};
use nix::unistd::{ForkResult, Pid, chdir, dup2_stderr, dup2_stdin, dup2_stdout, execve, fork, getppid, setsid};

use super::pidfd::PidFd;
use super::process_table::ProcessId;
use super::wire::SpawnFailure;
use crate::core::launch::Launch;

/// The server's ends of its pipes: blocking, and nobody else's once it runs.
#[derive(Debug)]
pub(super) struct Stdio3 {
    pub stdin: OwnedFd,
    pub stdout: OwnedFd,
    pub stderr: OwnedFd,
}

/// A server that was executed.
#[derive(Debug)]
pub(super) struct Spawned {
    pub root: ProcessId,
    /// Why it is not in its cgroup.
    pub refusal: Option<io::Error>,
}

/// What lies between fork and exec is a few system calls; a machine that swaps takes a second for them. A child that was
/// stopped in this moment takes for ever, and the keeper must not wait with it. Less than the broker waits for a keeper.
const EXECUTES_WITHIN: Duration = Duration::from_secs(8);

/// Executes `launch`, in the cgroup whose `cgroup.procs` is given, if the kernel lets it in. The caller is the only
/// thread of its process and reaps the child, also one that was not executed.
///
/// # Errors
/// What kept it from being executed, with the kernel's words.
pub(super) fn spawn(
    launch: &Launch,
    stdio: Stdio3,
    cgroup_procs: Option<File>,
) -> Result<Spawned, (SpawnFailure, String)> {
    if let Err(error) = std::fs::read_dir(&launch.cwd).map(drop) {
        return Err((SpawnFailure::CwdMissing, error.to_string()));
    }
    let other = |error: io::Error| (SpawnFailure::Other, error.to_string());
    let image = Image::of(launch).map_err(other)?;
    let (news, teller) = io::pipe().map_err(other)?;
    let child = Child { image, cwd: &launch.cwd, stdio, cgroup_procs, teller, keeper: nix::unistd::getpid() };
    let pid = fork_into(child).map_err(|errno| refused(errno, &launch.program))?;
    let root = ProcessId::of(pid).ok_or_else(|| other(io::Error::other("/proc is not readable")))?;
    match hear(news, Instant::now() + EXECUTES_WITHIN) {
        Heard { failure: None, refusal, is_whole: true } => Ok(Spawned { root, refusal }),
        Heard { failure: Some(errno), .. } => Err(refused(errno, &launch.program)),
        Heard { is_whole: false, .. } => {
            if let Some(pinned) = PidFd::of(root) {
                // Failed: it is dead, or it is somebody else's by now, and the sweep says which.
                let _ = pinned.signal(Signal::SIGKILL);
            }
            let within = EXECUTES_WITHIN.as_secs();
            Err((SpawnFailure::Other, format!("it did not come to be executed within {within} s; was it stopped?")))
        }
    }
}

/// A program as execve(2) takes it.
struct Image {
    program: CString,
    argv: Vec<CString>,
    env: Vec<CString>,
}

impl Image {
    fn of(launch: &Launch) -> io::Result<Self> {
        let program = CString::new(launch.program.as_os_str().as_bytes())?;
        let args = launch.args.iter().map(|arg| CString::new(arg.as_bytes()));
        let argv = std::iter::once(Ok(program.clone())).chain(args).collect::<Result<_, _>>()?;
        let env = launch.env.iter().map(|(name, value)| CString::new(format!("{name}={value}")));
        Ok(Self { argv, env: env.collect::<Result<_, _>>()?, program })
    }
}

/// Everything that the child needs between fork and exec.
struct Child<'a> {
    image: Image,
    cwd: &'a Path,
    stdio: Stdio3,
    cgroup_procs: Option<File>,
    /// Takes what did not succeed. Closed by the exec.
    teller: PipeWriter,
    keeper: Pid,
}

/// What the child has to say: its kind and the number of the error.
const RECORD_BYTES: usize = 5;
/// It is not in its cgroup, and goes on.
const NO_CGROUP: u8 = 0;
/// It cannot be executed, and ends.
const NOT_EXECUTED: u8 = 1;

impl Child<'_> {
    /// Comes back only if that failed. Not by execvp(3), which gives a file that is no program to `/bin/sh`, so that a
    /// wrong download becomes a script.
    fn become_the_server(&mut self) -> Errno {
        if let Err(errno) = self.prepare() {
            return errno;
        }
        let Err(errno) = execve(&self.image.program, &self.image.argv, &self.image.env);
        errno
    }

    fn prepare(&mut self) -> nix::Result<()> {
        if let Some(procs) = &mut self.cgroup_procs
            && let Err(error) = procs.write_all(b"0")
        {
            // Without it the keeper owns the server alone, which is no reason not to run it.
            tell(&mut self.teller, NO_CGROUP, error.raw_os_error().unwrap_or(0));
        }
        dup2_stdin(&self.stdio.stdin)?;
        dup2_stdout(&self.stdio.stdout)?;
        dup2_stderr(&self.stdio.stderr)?;
        chdir(self.cwd)?;
        setsid()?;
        forget_the_keeper()?;
        // Killed with its keeper: then the tree has no owner until the broker adopts it.
        prctl::set_pdeathsig(Signal::SIGKILL)?;
        if getppid() == self.keeper { Ok(()) } else { Err(Errno::ESRCH) }
    }
}

#[expect(unsafe_code, reason = "nothing else starts a process that is not waited for")]
fn fork_into(mut child: Child<'_>) -> Result<u32, Errno> {
    // SAFETY: the keeper has one thread, so after the fork no lock, the allocator's included, is held by another.
    match unsafe { fork() }? {
        ForkResult::Parent { child } => Ok(child.as_raw().unsigned_abs()),
        ForkResult::Child => {
            let errno = child.become_the_server();
            tell(&mut child.teller, NOT_EXECUTED, errno as i32);
            // SAFETY: ends the process at once. The keeper's own destructors and buffers are not this child's to run.
            unsafe { libc::_exit(127) }
        }
    }
}

fn tell(teller: &mut PipeWriter, kind: u8, errno: i32) {
    let mut record = [kind; RECORD_BYTES];
    record[1..].copy_from_slice(&errno.to_ne_bytes());
    // Failed: the keeper is gone, and with it this process in a moment.
    let _ = teller.write_all(&record);
}

/// What a child has told on its way to exec.
#[derive(Default)]
struct Heard {
    refusal: Option<io::Error>,
    failure: Option<Errno>,
    /// Whether it came to its end, either way.
    is_whole: bool,
}

fn hear(mut news: PipeReader, until: Instant) -> Heard {
    let mut heard = Heard::default();
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
        match poll(&mut [PollFd::new(news.as_fd(), PollFlags::POLLIN)], timeout) {
            Ok(0) => return heard,
            Ok(_) => {}
            Err(_) if left.is_zero() => return heard,
            Err(_) => continue,
        }
        let mut record = [0; RECORD_BYTES];
        // Records are written as wholes, being shorter than what a pipe takes at once (pipe(7), PIPE_BUF).
        if news.read_exact(&mut record).is_err() {
            heard.is_whole = true;
            return heard;
        }
        let [kind, errno @ ..] = record;
        let errno = Errno::from_raw(i32::from_ne_bytes(errno));
        match kind {
            NO_CGROUP => heard.refusal = Some(errno.into()),
            _ => heard.failure = Some(errno),
        }
    }
}

/// Default signals, none blocked, no descriptor of ours beyond the three: also none that the broker got from its own
/// parent.
#[expect(unsafe_code, reason = "neither std nor nix resets what it does not know")]
fn forget_the_keeper() -> nix::Result<()> {
    // The kernel's own structure, all zero: the default action. Not through libc, which refuses the two signals (32, 33)
    // that it takes for itself, although glibc's posix_spawn(3) leaves them ignored in the keeper. The array is longer
    // than any architecture's structure; 8 is the size of a set of signals, on all of Linux but MIPS.
    let default = [0_u64; 8];
    for signal in 1..=64 {
        // SAFETY: the kernel only reads from the pointer, and writes nothing to a null one. KILL and STOP are refused.
        unsafe { libc::syscall(libc::SYS_rt_sigaction, signal, default.as_ptr(), std::ptr::null::<u64>(), 8) };
    }
    SigSet::empty().thread_set_mask()?;
    // Not now: a failed exec is told through one of them.
    close_others(CloseWhen::AtExec);
    Ok(())
}

#[derive(Clone, Copy, Debug)]
pub(super) enum CloseWhen {
    /// Only while this process has opened nothing itself.
    Now,
    AtExec,
}

/// Closes all descriptors but the first three, those included that the broker got from its own parent.
#[expect(unsafe_code, reason = "neither std nor nix knows close_range")]
pub(super) fn close_others(when: CloseWhen) {
    let flags = match when {
        CloseWhen::Now => 0,
        CloseWhen::AtExec => libc::CLOSE_RANGE_CLOEXEC,
    };
    // SAFETY: takes three integers; nobody holds a descriptor that it closes. A kernel before 5.11 refuses; then only
    // what the broker opened itself is closed, which is close-on-exec.
    unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, flags) };
}

fn refused(errno: Errno, program: &Path) -> (SpawnFailure, String) {
    (classify(errno, program), io::Error::from(errno).to_string())
}

fn classify(errno: Errno, program: &Path) -> SpawnFailure {
    match errno {
        Errno::ENOENT if program.exists() => SpawnFailure::InterpreterNotFound,
        Errno::ENOENT | Errno::ENOTDIR => SpawnFailure::NotFound,
        Errno::EACCES | Errno::EPERM => SpawnFailure::PermissionDenied,
        Errno::ENOEXEC => SpawnFailure::ExecFormat,
        Errno::E2BIG => SpawnFailure::TooLarge,
        Errno::EAGAIN | Errno::ENOMEM | Errno::EMFILE | Errno::ENFILE => SpawnFailure::NoResources,
        _ => SpawnFailure::Other,
    }
}
