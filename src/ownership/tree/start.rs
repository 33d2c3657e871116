//! From a launch to a running server: pipes, keeper, order, answer.

use std::io;
use std::os::unix::net::UnixStream;
use std::process::Stdio;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::unistd::pipe2;
use tokio::net::unix::pipe;
use tokio::process::Command;
use tokio::sync::oneshot;
use tokio_util::task::TaskTracker;

use super::attendant::{Attendant, Failed, Why};
use super::link::KeeperLink;
use super::{KeeperProgram, NotStarted, Owners, Pipes, StartError, Started};
use crate::core::launch::Launch;
use crate::ownership::MARKER_VARIABLES;
use crate::ownership::children;
use crate::ownership::server::Stdio3;
use crate::ownership::wire;

/// What a server can write before it is read, if the system allows it. Ten MiB took 2.6 ms with it, 3.7 to 4.6 with the
/// 64 KiB that a pipe has otherwise, and the kernel takes the memory only while it is full.
const STDOUT_BYTES: i32 = 256 << 10;

/// Starts a keeper, and through it the server, held by what is in `owners` as well: where a cgroup of its own cannot be
/// had the keeper owns the tree alone, and [`super::Tree::owner`] tells.
///
/// It ends within some 15 s, whatever hangs. The caller's deadline may cancel it before; then the task on `tracker` sees
/// to it that nothing is left.
///
/// # Errors
/// The server does not run.
pub async fn start(
    owners: Owners,
    program: &KeeperProgram,
    launch: &Launch,
    tracker: &TaskTracker,
) -> Result<Started, NotStarted> {
    let (pipes, stdio) = pipes().map_err(StartError::Pipes)?;
    let Owners { cgroup, windows } = owners.clone();
    let order = wire::Order::Start { launch: launch.clone(), cgroup, windows: windows.map(Box::new) };
    let order = wire::encode(&order).ok_or_else(|| StartError::TooLarge { program: launch.program.clone() })?;
    let attendant = keeper(program, launch, owners)
        .map_err(|source| StartError::Keeper { program: program.path().to_owned(), source })?;
    let (answer, answered) = oneshot::channel();
    tracker.spawn(attendant.attend(order, stdio, answer));
    // Not answered: the runtime is ending.
    let unanswered = Failed { why: Why::KeeperLost, remains: None };
    let Failed { why, remains } = match answered.await.unwrap_or(Err(unanswered)) {
        Ok(tree) => return Ok(Started { tree, pipes }),
        Err(failed) => failed,
    };
    let program = launch.program.clone();
    let error = match why {
        Why::KeeperLost => StartError::KeeperLost { program },
        Why::Refused { failure, message } => StartError::Spawn { program, cwd: launch.cwd.clone(), failure, message },
    };
    Err(NotStarted { error, remains })
}

/// Both ends of the server's stdio: ours do not block, the server's do, none outlives an exec by accident.
fn pipes() -> io::Result<(Pipes, Stdio3)> {
    let (stdin, our_stdin) = pipe2(OFlag::O_CLOEXEC)?;
    let (our_stdout, stdout) = pipe2(OFlag::O_CLOEXEC)?;
    let (our_stderr, stderr) = pipe2(OFlag::O_CLOEXEC)?;
    // Refused to users who have many such pipes (pipe(7), pipe-user-pages-soft); the default then.
    let _ = fcntl(&stdout, FcntlArg::F_SETPIPE_SZ(STDOUT_BYTES));
    let pipes = Pipes {
        stdin: pipe::Sender::from_owned_fd(our_stdin)?,
        stdout: pipe::Receiver::from_owned_fd(our_stdout)?,
        stderr: pipe::Receiver::from_owned_fd(our_stderr)?,
    };
    Ok((pipes, Stdio3 { stdin, stdout, stderr }))
}

/// A keeper that waits for its orders. Nothing that happens before exec needs code of ours, so std can use
/// posix_spawn(3), which does not copy this process's page tables.
///
/// All that it has in its environment is the marker: until its pid is in the journal, the next broker has nothing else
/// to find it by.
fn keeper(program: &KeeperProgram, launch: &Launch, owners: Owners) -> io::Result<Attendant> {
    // Without it a killed keeper would lose its tree to init.
    children::become_subreaper()?;
    let (ours, theirs) = UnixStream::pair()?;
    ours.set_nonblocking(true)?;
    let link = KeeperLink::new(tokio::net::UnixStream::from_std(ours)?);
    let mut command = Command::new(program.path());
    command.arg0("lazy-mcp").arg("keeper").env_clear();
    command.envs(MARKER_VARIABLES.iter().filter_map(|name| Some((name, launch.env.get(*name)?))));
    command.stdin(Stdio::from(std::os::fd::OwnedFd::from(theirs))).stdout(Stdio::null()).stderr(Stdio::null());
    // Our copy of its end goes with the command: the keeper's death must be an end of file here.
    Ok(Attendant::new(children::spawn(&mut command)?, link, owners))
}
