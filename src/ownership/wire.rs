//! What broker and keeper say to each other over the control socket.
//!
//! A frame is a length (4 bytes, little endian) and that many bytes of JSON. The three pipe ends of the server travel
//! with the first byte of a `start` (unix(7), SCM_RIGHTS). Both ends are the same binary, so nothing here has versions.

use std::io;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::cgroup::Cgroup;
use super::process_table::{Process, ProcessId};
use super::windows::WindowsSide;
use crate::core::launch::Launch;
use crate::core::limits::TreeLimit;

/// Bytes of one frame. Linux refuses arguments and environment beyond 2 MiB together (execve(2)); JSON escapes add some.
pub(super) const FRAME_BYTES_MAX: usize = 4 << 20;
/// Survivors that a report names; more are only counted by the next one.
pub(super) const SURVIVORS_MAX: usize = 32;
const LENGTH_BYTES: usize = 4;

/// From the broker.
#[derive(Serialize, Deserialize)]
pub(super) enum Order {
    /// Comes once, first, with the server's stdin, stdout and stderr.
    Start {
        launch: Launch,
        /// To be made for the server, and left with it.
        cgroup: Option<Cgroup>,
        /// To be swept after the Linux side, and proved with it.
        windows: Option<Box<WindowsSide>>,
    },
    Terminate,
    Sweep {
        budget_ms: u64,
    },
}

/// From the keeper.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Report {
    Spawned {
        root: ProcessId,
        /// Why the server is not in the cgroup of the order.
        cgroup_refusal: Option<String>,
        /// Why limits of its cgroup do not hold.
        limit_refusal: Option<String>,
    },
    /// The keeper's last words.
    SpawnFailed { failure: SpawnFailure, message: String },
    /// Once for each limit; before `RootExited` where that is its consequence.
    OverLimit { limit: TreeLimit },
    /// Once.
    RootExited { exit: Exit },
    /// `waitpid` said ECHILD, the cgroup is not populated and removed, and Windows knows nobody with the marker. The
    /// keeper's last words.
    Empty { killed: usize, took_us: u64 },
    Busy {
        survivors: Vec<Survivor>,
        /// What was not proved and why, where survivors do not say it.
        #[serde(default)]
        reason: Option<String>,
    },
}

/// How a root ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Exit {
    Code(i32),
    Signal(i32),
}

/// Why a server could not be executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SpawnFailure {
    /// The program does not exist.
    NotFound,
    /// The program exists, and what its `#!` line or its ELF header asks for does not.
    InterpreterNotFound,
    /// No execute permission, or a directory.
    PermissionDenied,
    /// Neither a program for this machine nor a script with a `#!` line.
    ExecFormat,
    /// The working directory does not exist or is none.
    CwdMissing,
    /// Arguments and environment together are more than the kernel takes.
    TooLarge,
    /// No memory, processes or descriptors left: worth another try later.
    NoResources,
    /// Something else; the message has the kernel's words.
    Other,
}

/// A process that is still there although it was sent SIGKILL, or could not be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Survivor {
    pub pid: u32,
    /// Clock ticks after boot; of a process on the Windows side, ticks of 100 ns since the year 1.
    pub start_time: u64,
    pub comm: String,
    /// As in [`Process::state`]; `D` waits for a device and dies after that. Windows does not tell: `?`.
    pub state: char,
    /// Whether it is on the Windows side of a WSL, where pids are others.
    #[serde(default)]
    pub windows: bool,
}

impl From<Process> for Survivor {
    fn from(process: Process) -> Self {
        let Process { pid, start_time, comm, state, .. } = process;
        Self { pid, start_time, comm, state, windows: false }
    }
}

/// The first of `members`, as a report shows them.
pub(super) fn survivors(members: Vec<Process>) -> Vec<Survivor> {
    members.into_iter().take(SURVIVORS_MAX).map(Survivor::from).collect()
}

/// A whole frame, or `None` if the message is larger than a frame may be.
pub(super) fn encode(message: &impl Serialize) -> Option<Vec<u8>> {
    let mut frame = vec![0; LENGTH_BYTES];
    serde_json::to_writer(&mut frame, message).ok()?;
    let len = frame.len() - LENGTH_BYTES;
    if len > FRAME_BYTES_MAX {
        return None;
    }
    frame[..LENGTH_BYTES].copy_from_slice(&u32::try_from(len).ok()?.to_le_bytes());
    Some(frame)
}

/// Takes the first frame out of `buffer` if all of it has come.
///
/// # Errors
/// InvalidData: what came is no frame; the stream is of no use any more.
pub(super) fn decode<T: DeserializeOwned>(buffer: &mut Vec<u8>) -> io::Result<Option<T>> {
    let Some(length) = buffer.first_chunk::<LENGTH_BYTES>() else { return Ok(None) };
    let len = u32::from_le_bytes(*length) as usize;
    if len > FRAME_BYTES_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("frame of {len} bytes")));
    }
    let Some(body) = buffer.get(LENGTH_BYTES..LENGTH_BYTES + len) else { return Ok(None) };
    // Without the cause: it quotes the message, and an order holds secrets (invariant 13).
    let message = serde_json::from_slice(body).map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?;
    buffer.drain(..LENGTH_BYTES + len);
    Ok(Some(message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_come_out_as_they_went_in_however_they_are_cut() {
        let orders = [Order::Sweep { budget_ms: 7 }, Order::Terminate];
        let bytes: Vec<u8> = orders.iter().flat_map(|order| encode(order).expect("small")).collect();
        let (mut buffer, mut seen) = (Vec::new(), Vec::new());
        for byte in bytes {
            buffer.push(byte);
            if let Some(order) = decode::<Order>(&mut buffer).unwrap() {
                seen.push(order);
            }
        }
        assert!(matches!(seen[..], [Order::Sweep { budget_ms: 7 }, Order::Terminate]));
        assert!(buffer.is_empty());
    }

    #[track_caller]
    fn refuses(bytes: &[u8]) {
        assert!(decode::<Order>(&mut bytes.to_vec()).is_err());
    }

    #[test]
    fn nonsense_and_giants_are_refused() {
        refuses(&[0xff, 0xff, 0xff, 0xff]);
        refuses(&[2, 0, 0, 0, b'{', b'}']);
        refuses(&[0, 0, 0, 0]);
        assert!(encode(&"x".repeat(FRAME_BYTES_MAX)).is_none());
    }
}
