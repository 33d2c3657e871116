//! The broker's side of a keeper: starting a server in a tree, the handle on that tree, and its end.
//!
//! One task a tree (on the caller's `TaskTracker`) owns the control socket and the keeper itself. It ends when the tree
//! is proved empty and the keeper is reaped, so a tracker that is empty means that no tree is left.
//! Dropping every [`Tree`] closes the control socket: the keeper then sweeps by itself.

mod attendant;
mod link;
mod start;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::unix::pipe;
use tokio::sync::{mpsc, oneshot, watch};

use super::cgroup::Cgroup;
use super::process_table::ProcessId;
use super::windows::WindowsSide;
use super::wire::{Exit, SpawnFailure, Survivor};
use crate::core::limits::TreeLimit;

pub use start::start;

/// Handle on all processes of one generation. Clones mean the same tree.
#[derive(Clone, Debug)]
pub struct Tree {
    remains: Remains,
    root: ProcessId,
    owner: Owner,
    /// Why limits that its cgroup was to have do not hold.
    limit_refusal: Option<Arc<str>>,
}

/// What there may be of a generation until it is proved that nothing is: its tree, or what a start that failed has left,
/// which never got a root. Clones mean the same.
#[derive(Clone, Debug)]
pub struct Remains {
    keeper: ProcessId,
    orders: mpsc::Sender<Order>,
    known: watch::Receiver<Known>,
}

/// What a tree is to be held by beside its keeper.
#[derive(Clone, Debug, Default)]
pub struct Owners {
    /// Made for the server and removed after the proof. Where that does not succeed the keeper owns the Linux side alone.
    pub cgroup: Option<Cgroup>,
    /// What the server may start on Windows.
    pub windows: Option<WindowsSide>,
}

/// By what means a tree is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    Keeper,
    KeeperAndCgroup,
    KeeperAndWindows,
    KeeperCgroupAndWindows,
}

impl Owner {
    fn of(owners: &Owners) -> Self {
        match (&owners.cgroup, &owners.windows) {
            (None, None) => Self::Keeper,
            (Some(_), None) => Self::KeeperAndCgroup,
            (None, Some(_)) => Self::KeeperAndWindows,
            (Some(_), Some(_)) => Self::KeeperCgroupAndWindows,
        }
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Keeper => "keeper",
            Self::KeeperAndCgroup => "keeper+cgroup",
            Self::KeeperAndWindows => "keeper+windows",
            Self::KeeperCgroupAndWindows => "keeper+cgroup+windows",
        }
    }
}

/// What the task has learnt of its tree.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    root_exit: Option<RootExit>,
    /// The first limit that it went over.
    over_limit: Option<TreeLimit>,
    is_proved_empty: bool,
}

/// What a [`Tree`] asks of its task.
#[derive(Debug)]
enum Order {
    Terminate,
    Sweep { budget: Duration, answer: oneshot::Sender<Sweep> },
}

/// How the root ended. It says nothing of the rest of the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RootExit {
    Code(i32),
    Signal(i32),
    /// The keeper is gone, and the kernel has killed the root with it; a sweep finds what is left.
    KeeperLost,
}

impl From<Exit> for RootExit {
    fn from(exit: Exit) -> Self {
        match exit {
            Exit::Code(code) => Self::Code(code),
            Exit::Signal(signal) => Self::Signal(signal),
        }
    }
}

/// What a sweep came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sweep {
    /// Proved: no process of the tree exists, the keeper included, nor on its Windows side.
    Empty {
        /// Processes that had to be killed; 0 after an orderly end.
        killed: usize,
        /// From the order to the proof, as the prover measured it.
        took: Duration,
    },
    /// Not proved within the budget. The tree stays, and may be swept again.
    Busy {
        /// At most 32 of them; none when not even the process table could be read, or Windows did not answer.
        survivors: Vec<Survivor>,
        /// What was not proved and why, where survivors do not say it: a fragment such as "powershell.exe did not answer
        /// within 5.0 s".
        reason: Option<String>,
    },
}

impl Tree {
    pub fn keeper(&self) -> ProcessId {
        self.remains.keeper
    }

    pub fn remains(&self) -> &Remains {
        &self.remains
    }

    pub fn root(&self) -> ProcessId {
        self.root
    }

    pub fn owner(&self) -> Owner {
        self.owner
    }

    /// Why limits that its cgroup was to have do not hold; `None` when they all do, or there are none.
    pub fn limit_refusal(&self) -> Option<&Arc<str>> {
        self.limit_refusal.as_ref()
    }

    /// The limit that it went over, if it did. Where that ended the root, it is known before the exit is.
    pub fn over_limit(&self) -> Option<TreeLimit> {
        self.remains.known.borrow().over_limit
    }

    /// Resolves when the tree goes over a limit, or with `None` when it is proved empty. Cancelling loses nothing.
    pub async fn went_over_limit(&self) -> Option<TreeLimit> {
        let mut known = self.remains.known.clone();
        known.wait_for(|known| known.over_limit.is_some()).await.ok()?.over_limit
    }

    /// Sends SIGTERM to every process of the tree that is still in the root's session; returns at once.
    pub fn terminate(&self) {
        // Full: a stop is under way already. Closed: the tree is empty.
        let _ = self.remains.orders.try_send(Order::Terminate);
    }

    /// See [`Remains::sweep`].
    pub async fn sweep(&self, budget: Duration) -> Sweep {
        self.remains.sweep(budget).await
    }

    /// Resolves when the root has ended, as often as asked. Cancelling loses nothing.
    pub async fn root_exit(&self) -> RootExit {
        let mut known = self.remains.known.clone();
        let known = known.wait_for(|known| known.root_exit.is_some()).await;
        known.ok().and_then(|known| known.root_exit).unwrap_or(RootExit::KeeperLost)
    }
}

impl Remains {
    /// Kills whatever is left of the tree and waits for the proof. On a tree proved empty before it answers `Empty` again.
    ///
    /// `budget` bounds the killing; the answer may come up to 3 s later when the keeper is lost or hangs meanwhile.
    /// Cancelled, the sweep goes on without an answer.
    pub async fn sweep(&self, budget: Duration) -> Sweep {
        let (answer, answered) = oneshot::channel();
        // Failed: the task has ended, which `answered` tells as well.
        let _ = self.orders.send(Order::Sweep { budget, answer }).await;
        match answered.await {
            Ok(sweep) => sweep,
            Err(_) if self.known.borrow().is_proved_empty => Sweep::Empty { killed: 0, took: Duration::ZERO },
            Err(_) => Sweep::Busy { survivors: Vec::new(), reason: None },
        }
    }
}

/// A server that runs.
#[derive(Debug)]
pub struct Started {
    pub tree: Tree,
    pub pipes: Pipes,
}

/// Our ends of the server's stdio; not blocking. Dropping `stdin` is the polite request to end.
#[derive(Debug)]
pub struct Pipes {
    pub stdin: pipe::Sender,
    pub stdout: pipe::Receiver,
    pub stderr: pipe::Receiver,
}

/// Which binary is executed as the keeper.
#[derive(Clone, Debug)]
pub struct KeeperProgram(PathBuf);

impl KeeperProgram {
    /// This very binary, also after its file was replaced by an upgrade: the link means the open file (proc(5)).
    pub fn own() -> Self {
        Self(PathBuf::from("/proc/self/exe"))
    }

    /// For callers that are not `lazy-mcp` themselves: tests.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    fn path(&self) -> &Path {
        &self.0
    }
}

/// A start that came to nothing.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct NotStarted {
    pub error: StartError,
    /// What could not be proved gone within a few seconds, to be swept again; `None` when nothing is left.
    pub remains: Option<Remains>,
}

impl From<StartError> for NotStarted {
    fn from(error: StartError) -> Self {
        Self { error, remains: None }
    }
}

/// Why no server runs.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("make the pipes of the server: {0}")]
    Pipes(#[source] io::Error),
    #[error("start the keeper `{program}`: {source}")]
    Keeper { program: PathBuf, source: io::Error },
    #[error(
        "start the keeper: it ended or hung before it had executed `{program}`; look for a memory or process limit"
    )]
    KeeperLost { program: PathBuf },
    #[error("execute `{program}`: arguments and environment are larger than the system takes; shorten them")]
    TooLarge { program: PathBuf },
    #[error("execute `{program}`: {}", explain(*failure, message, cwd))]
    Spawn { program: PathBuf, cwd: PathBuf, failure: SpawnFailure, message: String },
}

fn explain(failure: SpawnFailure, message: &str, cwd: &Path) -> String {
    match failure {
        SpawnFailure::NotFound => format!("{message}; install it or correct `command`"),
        SpawnFailure::InterpreterNotFound => {
            format!("{message}: what its `#!` line or its loader names does not exist")
        }
        SpawnFailure::PermissionDenied => format!("{message}; is it an executable file?"),
        SpawnFailure::ExecFormat => {
            format!("{message}: neither a program for this machine nor a script with a `#!` line")
        }
        SpawnFailure::CwdMissing => format!("working directory `{}`: {message}", cwd.display()),
        SpawnFailure::NoResources => format!("{message}; free some memory, processes or descriptors"),
        SpawnFailure::TooLarge => format!("{message}; shorten arguments or environment"),
        SpawnFailure::Other => message.to_owned(),
    }
}
