//! The one writer of a generation's stdin.

use bytes::{Bytes, BytesMut};
use tokio::io::AsyncWriteExt;
use tokio::net::unix::pipe;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// Waiting lines are joined up to this size, in bytes: one pipe's default capacity.
const JOINED_MAX: usize = 64 * 1024;

/// Writes lines as they come, joined where several wait, until stdin is to be closed, the channel ends, or a write
/// fails; then drops the pipe, which the server sees as the end of its input.
pub(super) async fn run(
    mut stdin: pipe::Sender,
    mut lines: mpsc::Receiver<Bytes>,
    closed: CancellationToken,
    lost: CancellationToken,
) {
    let mut joined = BytesMut::new();
    loop {
        let first = tokio::select! {
            // Lines first: what was accepted before the close is still written. `recv` loses nothing if dropped.
            biased;
            line = lines.recv() => match line {
                Some(line) => line,
                None => return,
            },
            // Cancel safe: a token stays cancelled.
            () = closed.cancelled() => return,
        };
        let batch = join_waiting(first, &mut lines, &mut joined);
        tokio::select! {
            // The write first: what the pipe takes at once is written, closed or not.
            biased;
            // A write that is dropped half way leaves half a line behind, but only when the pipe is closed anyway.
            written = stdin.write_all(&batch) => if written.is_err() {
                // The server closed its stdin: nothing can reach it any more.
                lost.cancel();
                return;
            },
            // A server that reads nothing must not keep its pipe from being closed.
            () = closed.cancelled() => return,
        }
    }
}

fn join_waiting(first: Bytes, lines: &mut mpsc::Receiver<Bytes>, joined: &mut BytesMut) -> Bytes {
    let Ok(second) = lines.try_recv() else { return first };
    joined.extend_from_slice(&first);
    joined.extend_from_slice(&second);
    while joined.len() < JOINED_MAX {
        let Ok(next) = lines.try_recv() else { break };
        joined.extend_from_slice(&next);
    }
    joined.split().freeze()
}
