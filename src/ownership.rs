//! Owning everything that a generation starts, and the proof that all of it is gone.
//!
//! Responsible for: the keeper (our own small process between broker and server that holds one generation's tree), the
//! cgroup of a generation where there can be one, its Windows side under WSL, the broker's handle on all of them, the process table, the private directory of a generation and the
//! files kept beside it, and the journal that lets the
//! next broker find what this one left.
//! Leaves to others: when to start and stop (`supervisor`), what to run (`core::launch`), what the pipes carry (`link`).
//!
//! **Invariant:** a process is signalled through a pidfd alone, after its start time and ancestry were compared with
//! what is known of it. Neither a name nor a bare pid ever chooses a victim. The one other way is `cgroup.kill` in a
//! cgroup that was made for that generation: there the kernel chooses, by membership. On Windows it is an open handle,
//! after the time of creation and the marker were compared.
//!
//! **Invariant:** empty means that the kernel said so: `waitpid` answered ECHILD to a subreaper, or no pass over the
//! process table found a member any more; and the generation's cgroup, if it has one, is not populated; and Windows, if
//! the generation has a side there, knows nobody with its marker.
//!
//! On whose word: prctl(2) PR_SET_CHILD_SUBREAPER and PR_SET_PDEATHSIG, pidfd_open(2), pidfd_send_signal(2),
//! wait(2), unix(7) SCM_RIGHTS, proc(5) `/proc/pid/stat`.

mod cgroup;
mod children;
mod circumstances;
mod footprint;
pub mod instance_dir;
pub mod journal;
pub mod keeper;
pub mod kept_files;
mod pidfd;
pub mod process_table;
mod server;
mod sweep;
pub mod tree;
mod windows;
mod wire;

/// What each process of a generation is started with, its keeper included; not all that they start keep it.
const MARKER_VARIABLES: [&str; 2] = ["LAZY_MCP_INSTANCE_ID", "LAZY_MCP_GENERATION"];

pub use cgroup::{Cgroup, Cgroups, Controller, NoCgroups};
pub use children::become_subreaper;
pub use footprint::drop_clean_pages;
pub use instance_dir::InstanceDir;
pub use journal::Journal;
pub use kept_files::{KeepError, KeptFile, KeptFiles};
pub use process_table::{Process, ProcessId, ProcessTable, boot_id};
pub use tree::{
    KeeperProgram, NotStarted, Owner, Owners, Pipes, Remains, RootExit, StartError, Started, Sweep, Tree, start,
};
pub use windows::{Marker, Powershell, WindowsSide};
pub use wire::{SpawnFailure, Survivor};
