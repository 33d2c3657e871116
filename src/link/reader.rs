//! The one reader of a generation's stdout.

use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;

use super::conversation::{Link, OWN_IDS};
use super::listener::Unasked;
use super::pending::Outcome;
use crate::protocol::answer::Answer;
use crate::protocol::call::{Progress, parse_text};
use crate::protocol::envelope::{self, Message};
use crate::protocol::error::{METHOD_NOT_FOUND, RpcError};
use crate::protocol::frame::{Frame, Lines, id_of_oversized};

/// Room made for each read, in bytes: one pipe's default capacity.
const READ_LEN: usize = 64 * 1024;

/// Lines and bytes taken before whoever they are for has a turn: a task that is woken by another waits on the same
/// thread until that one pauses, and a server that says much leaves no pause. A quarter of what may wait for a reader.
const LINES_AT_ONCE: usize = 256;
const BYTES_AT_ONCE: usize = 256 * 1024;

/// Reads until the end of stdout, then declares the link lost.
pub(super) async fn run(mut stdout: pipe::Receiver, link: Link) {
    let mut lines = Lines::new(link.0.limits.frame_len_max);
    let (mut taken, mut taken_len) = (0, 0);
    loop {
        lines.buffer().reserve(READ_LEN);
        match stdout.read_buf(lines.buffer()).await {
            Ok(0) | Err(_) => break,
            Ok(_) => {}
        }
        while let Some(frame) = lines.take_frame() {
            match frame {
                Frame::Line(line) => {
                    take(&link, &line);
                    (taken, taken_len) = (taken + 1, taken_len + line.len());
                }
                Frame::TooLong { head, tail, len } => too_long(&link, &head, &tail, len),
            }
            if taken >= LINES_AT_ONCE || taken_len >= BYTES_AT_ONCE {
                tokio::task::yield_now().await;
                (taken, taken_len) = (0, 0);
            }
        }
    }
    link.0.lost.cancel();
}

fn take(link: &Link, line: &Bytes) {
    let counts = &link.0.counts;
    let Ok((text, message)) = parse_text(line) else {
        count(&counts.junk_lines);
        return;
    };
    match message {
        Message::Response { id, answer } => answered(link, line, text, id, answer),
        Message::Notification { method, params } if method == "notifications/progress" => {
            let Some(progress) = Progress::parse(line, text, params) else {
                count(&counts.progress_dropped);
                return;
            };
            let is_delivered =
                link.pending().get_mut(progress.upstream_id).is_some_and(|entry| entry.progress(&progress));
            if !is_delivered {
                count(&counts.progress_dropped);
            }
        }
        Message::Notification { method, params } => {
            let notice = Unasked { line, text, method: &method, params };
            let is_told = match &*method {
                "notifications/cancelled" => link.withdraw(notice),
                _ => link.0.listener.notified(link, notice),
            };
            if !is_told {
                count(&counts.notifications_dropped);
            }
        }
        Message::Request { id, method, .. } if method == "ping" => {
            link.notify(&format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{}}}}"#));
        }
        Message::Request { id, method, params } => {
            let question = Unasked { line, text, method: &method, params };
            if let Err(why) = link.0.listener.asked(link, question, id) {
                // A plain no at once: silence would hang the server.
                count(&counts.requests_refused);
                link.notify(
                    &RpcError::new(METHOD_NOT_FOUND, format!("{method} cannot be answered: {why}")).response(Some(id)),
                );
            }
        }
    }
}

fn answered(link: &Link, line: &Bytes, text: &str, id_text: &str, answer: envelope::Answer<'_>) {
    let id = id_text.parse::<u64>().ok();
    let entry = id.and_then(|id| link.pending().remove(id));
    let is_delivered =
        entry.is_some_and(|entry| entry.finish(Outcome::Answered(Answer::new(line, text, id_text, answer))));
    if is_delivered {
        return;
    }
    match id {
        // Of some of its own requests the broker awaits no answer.
        Some(id) if id >= OWN_IDS => link.own_request_answered(id),
        _ => count(&link.0.counts.late_answers),
    }
}

fn too_long(link: &Link, head: &[u8], tail: &[u8], len: u64) {
    let entry = id_of_oversized(head, tail).and_then(|id| link.pending().remove(id));
    match entry {
        Some(entry) => {
            entry.finish(Outcome::TooLarge { len, max: link.0.limits.frame_len_max });
        }
        // Whose it was cannot be told; the call that waits for it ends at its deadline.
        None => count(&link.0.counts.junk_lines),
    }
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}
