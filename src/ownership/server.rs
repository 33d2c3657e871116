//! Executing the server: the keeper's child, in its own session, with nothing of ours but its three pipes.

use std::ffi::CString;
use std::fs::File;
use std::io::{self, PipeWriter, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use nix::errno::Errno;
use nix::libc;
use nix::sys::prctl;
use nix::sys::signal::{SigSet, Signal};

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

/// Executes `launch`, in the cgroup whose `cgroup.procs` is given, if the kernel lets it in. The caller is the only
/// thread of its process and reaps the child.
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
    let (mut refused, refusal) = io::pipe().map_err(other)?;
    let mut command = Command::new(&launch.program);
    command.current_dir(&launch.cwd).stdin(stdio.stdin).stdout(stdio.stdout).stderr(Stdio::from(stdio.stderr));
    execute(&mut command, image, cgroup_procs.map(|procs| Door { procs, refusal }));
    // The handle is dropped unreaped: the keeper waits for all its children in one place.
    let child = command.spawn().map_err(|error| (classify(&error, &launch.program), error.to_string()))?;
    // With it goes our copy of the pipe's end; the child's is closed by its exec.
    drop(command);
    let mut errno = [0; 4];
    let refusal =
        refused.read_exact(&mut errno).is_ok().then(|| io::Error::from_raw_os_error(i32::from_ne_bytes(errno)));
    let root = ProcessId::of(child.id()).ok_or_else(|| other(io::Error::other("/proc is not readable")))?;
    Ok(Spawned { root, refusal })
}

/// The way into a cgroup, for a process that has forked and not executed yet.
struct Door {
    procs: File,
    /// Takes the number of the error.
    refusal: PipeWriter,
}

impl Door {
    /// Without it the keeper owns the server alone, which is no reason not to run it.
    fn enter(&mut self) {
        if let Err(error) = self.procs.write_all(b"0") {
            // Failed: the keeper is gone, and with it this process in a moment.
            let _ = self.refusal.write_all(&error.raw_os_error().unwrap_or(0).to_ne_bytes());
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

/// Lets the child execute the image itself. `Command` would do so by execvp(3), which gives a file that is no program
/// to `/bin/sh`, so that a wrong download becomes a script.
#[expect(unsafe_code, reason = "what runs between fork and exec")]
fn execute(command: &mut Command, image: Image, mut door: Option<Door>) {
    let keeper = nix::unistd::getpid();
    let become_the_server = move || -> io::Result<()> {
        if let Some(door) = &mut door {
            door.enter();
        }
        nix::unistd::setsid()?;
        forget_the_keeper()?;
        // Killed with its keeper: then the tree has no owner until the broker adopts it.
        prctl::set_pdeathsig(Signal::SIGKILL)?;
        if nix::unistd::getppid() != keeper {
            return Err(Errno::ESRCH.into());
        }
        let Err(errno) = nix::unistd::execve(&image.program, &image.argv, &image.env);
        Err(errno.into())
    };
    // SAFETY: the keeper has one thread, so after the fork no lock, the allocator's included, is held by another.
    unsafe { command.pre_exec(become_the_server) };
}

/// Default signals, none blocked, no descriptor of ours beyond the three: also none that the broker got from its own
/// parent.
#[expect(unsafe_code, reason = "neither std nor nix resets what it does not know")]
fn forget_the_keeper() -> io::Result<()> {
    // The kernel's own structure, all zero: the default action. Not through libc, which refuses the two signals (32, 33)
    // that it takes for itself, although glibc's posix_spawn(3) leaves them ignored in the keeper. The array is longer
    // than any architecture's structure; 8 is the size of a set of signals, on all of Linux but MIPS.
    let default = [0_u64; 8];
    for signal in 1..=64 {
        // SAFETY: the kernel only reads from the pointer, and writes nothing to a null one. KILL and STOP are refused.
        unsafe { libc::syscall(libc::SYS_rt_sigaction, signal, default.as_ptr(), std::ptr::null::<u64>(), 8) };
    }
    SigSet::empty().thread_set_mask()?;
    // Not now: `Command` reports a failed exec through one of them.
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

fn classify(error: &io::Error, program: &Path) -> SpawnFailure {
    match Errno::from_raw(error.raw_os_error().unwrap_or(0)) {
        Errno::ENOENT if program.exists() => SpawnFailure::InterpreterNotFound,
        Errno::ENOENT | Errno::ENOTDIR => SpawnFailure::NotFound,
        Errno::EACCES | Errno::EPERM => SpawnFailure::PermissionDenied,
        Errno::ENOEXEC => SpawnFailure::ExecFormat,
        Errno::E2BIG => SpawnFailure::TooLarge,
        Errno::EAGAIN | Errno::ENOMEM | Errno::EMFILE | Errno::ENFILE => SpawnFailure::NoResources,
        _ => SpawnFailure::Other,
    }
}
