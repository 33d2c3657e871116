//! The link itself: what others ask of it.

use std::any::Any;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use bytes::Bytes;
use serde_json::Value;
use tokio::net::unix::pipe;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::listener::{Listener, Unasked};
use super::outbox::Outbox;
use super::pending::{Caller, Entry, Loss, Outcome, Pending};
use super::questions::{Question, Questions};
use super::stderr::Tail;
use super::wishes::Told;
use super::{reader, stderr, writer};
use crate::protocol::call::{CallRequest, Outbound, cancelled_request, modern_metadata, one_line};
use crate::protocol::error::{INTERNAL_ERROR, RpcError};
use crate::protocol::raw::{replaced, span, with_members};
use crate::protocol::version::Era;

/// Lines that may wait for the writer. Each call is one line and needs a lease, so this is reached only by a server
/// that has stopped reading while its calls are being cancelled.
const LINES_WAITING_MAX: usize = 1024;

/// The longest notification of a client that is passed on, in bytes: half the places for lines hold 32 MiB of them.
const NOTIFICATION_LEN_MAX: usize = 64 << 10;

/// Our ends of the three pipes.
#[derive(Debug)]
pub struct Streams {
    pub stdin: pipe::Sender,
    pub stdout: pipe::Receiver,
    pub stderr: pipe::Receiver,
}

/// Where the ids of the broker's own requests begin. Small enough to be exact in a JavaScript number.
pub const OWN_IDS: u64 = 1 << 48;

/// Bounds of one link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkLimits {
    /// The longest line taken from the server, in bytes.
    pub frame_len_max: usize,
}

/// A conversation with one generation. Clones are the same conversation.
#[derive(Clone)]
pub struct Link(pub(super) Arc<Shared>);

pub(super) struct Shared {
    pending: Mutex<Pending>,
    questions: Mutex<Questions>,
    /// A question is not out any more.
    answered: Notify,
    pub listener: Arc<dyn Listener>,
    lines: mpsc::Sender<Bytes>,
    own_requests: AtomicU64,
    /// Whether requests carry their own metadata; told before the first one.
    is_modern: AtomicBool,
    pub told: Mutex<Told>,
    /// The level that the server was last told; `u8::MAX` before.
    pub log_level: AtomicU8,
    pub limits: LinkLimits,
    pub stdin_closed: CancellationToken,
    pub lost: CancellationToken,
    pub stderr_ended: CancellationToken,
    pub counts: Counts,
    pub tail: Mutex<Tail>,
}

/// What was dropped, for `/status`: each of these is silent for clients.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub junk_lines: AtomicU64,
    pub late_answers: AtomicU64,
    pub progress_dropped: AtomicU64,
    pub notifications_dropped: AtomicU64,
    pub requests_refused: AtomicU64,
}

/// A call that was handed to the writer.
#[derive(Debug)]
pub struct InFlight {
    pub upstream_id: u64,
    /// Resolves once; an error means that the generation is gone without a word, and counts as `Loss::Exited`.
    pub outcome: oneshot::Receiver<Outcome>,
    /// Notifications for the caller, its own token in them. Everything sent before the answer is in here before the
    /// outcome resolves.
    pub notices: Arc<Outbox>,
    /// Whoever watches the deadlines (`overdue`) must look earlier than planned.
    pub is_due_first: bool,
}

/// The call was not written and may go to the next generation. Holds what was handed in with it: to be dropped after
/// the loss was reported, since a lease that is given back first would go to the next who waits, for nothing.
#[derive(Debug, thiserror::Error)]
#[error("the conversation with the server is over")]
pub struct NotSent(pub Box<dyn Any + Send>);

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Link").field("out", &self.pending().len()).field("counts", &self.0.counts).finish()
    }
}

impl Link {
    /// Starts writer, reader and stderr drain as tasks of `tracker`. They end with the pipes.
    pub fn open(streams: Streams, limits: LinkLimits, listener: Arc<dyn Listener>, tracker: &TaskTracker) -> Self {
        let (lines, waiting) = mpsc::channel(LINES_WAITING_MAX);
        let shared = Arc::new(Shared {
            pending: Mutex::default(),
            questions: Mutex::default(),
            answered: Notify::new(),
            listener,
            lines,
            own_requests: AtomicU64::new(0),
            is_modern: AtomicBool::new(false),
            told: Mutex::default(),
            log_level: AtomicU8::new(u8::MAX),
            limits,
            stdin_closed: CancellationToken::new(),
            lost: CancellationToken::new(),
            stderr_ended: CancellationToken::new(),
            counts: Counts::default(),
            tail: Mutex::default(),
        });
        tracker.spawn(writer::run(streams.stdin, waiting, shared.stdin_closed.clone(), shared.lost.clone()));
        tracker.spawn(reader::run(streams.stdout, Link(shared.clone())));
        tracker.spawn(stderr::run(streams.stderr, shared.clone()));
        Self(shared)
    }

    /// Sends a client's call under `id`, which the caller keeps unique in this conversation and below `OWN_IDS`.
    /// At its caller's deadline the call is due: `overdue` names it, whether or not its caller still looks at the clock.
    /// `held` is dropped when the call is no longer out: answered, failed, or given up by the end of the generation;
    /// not when its caller goes away.
    pub fn call(
        &self,
        id: u64,
        request: &CallRequest,
        outbound: Outbound<'_>,
        caller: Caller,
        held: Box<dyn Any + Send>,
    ) -> Result<InFlight, NotSent> {
        let line = request.upstream_line(id, outbound);
        self.send(id, line, Some(caller), request.token(), held)
    }

    /// The manner of speaking that the server was greeted in.
    pub fn era(&self) -> Era {
        if self.0.is_modern.load(Ordering::Relaxed) { Era::Modern } else { Era::Legacy }
    }

    pub(super) fn speak(&self, era: Era) {
        self.0.is_modern.store(era == Era::Modern, Ordering::Relaxed);
    }

    pub(super) fn send(
        &self,
        upstream_id: u64,
        line: Vec<u8>,
        caller: Option<Caller>,
        token: Option<Bytes>,
        held: Box<dyn Any + Send>,
    ) -> Result<InFlight, NotSent> {
        let line = Bytes::from(line);
        let (reply, outcome) = oneshot::channel();
        let notices = Arc::new(Outbox::default());
        let entry = Entry::new(caller, reply, token, notices.clone(), held);
        let mut pending = self.pending();
        if pending.is_closed() || self.0.lost.is_cancelled() || self.0.lines.try_send(line).is_err() {
            drop(pending);
            return Err(NotSent(entry.into_held()));
        }
        // The answer cannot overtake this: the reader needs the same lock to find the entry.
        let is_due_first = pending.insert(upstream_id, entry);
        Ok(InFlight { upstream_id, outcome, notices, is_due_first })
    }

    /// Tells the server that a call is not wanted any more, by the server's own id for it, and tells its caller `outcome`
    /// if one still waits. What the call holds stays held until the server answers. `false` if the call is not out, or
    /// was cancelled before.
    pub fn cancel(&self, upstream_id: u64, reason: &str, outcome: Outcome) -> bool {
        let Some(reply) = self.pending().give_up(upstream_id) else { return false };
        let reason = Value::from(reason);
        self.notify(&format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"requestId":{upstream_id},"reason":{reason}}}}}"#
        ));
        if let Some(reply) = reply {
            // An error means that the caller left in this moment: then there is nobody to tell.
            let _ = reply.send(outcome);
        }
        true
    }

    /// The answer to a call that was given up is not waited for any longer; one that comes all the same is late. What the
    /// call holds is dropped.
    pub fn take_back(&self, upstream_id: u64) {
        // Not under the lock: what is held may look for it.
        let entry = self.pending().remove(upstream_id);
        drop(entry);
    }

    /// The broker's ids of the calls of `client`: of its request `id`, or all of them.
    pub fn calls_of(&self, client: u128, id: Option<&str>) -> Vec<u64> {
        self.pending().of_caller(client, id)
    }

    /// Nobody waits for the call any more, but it may go on until its deadline.
    pub fn abandon(&self, upstream_id: u64) {
        self.pending().abandon(upstream_id);
    }

    /// When a call is due, which its progress may have moved; `None` if it is not out or was given up.
    pub fn deadline(&self, upstream_id: u64) -> Option<Instant> {
        self.pending().deadline(upstream_id)
    }

    /// Calls whose deadline has come, and when to look again.
    pub fn overdue(&self, now: Instant) -> (Vec<u64>, Option<Instant>) {
        self.pending().overdue(now)
    }

    /// Ends every call that is out and lets no other start.
    pub fn fail_all(&self, loss: Loss) {
        let entries = self.pending().close();
        for entry in entries {
            entry.finish(Outcome::Lost(loss));
        }
    }

    /// Sends one message that needs no answer; dropped if the writer is gone or hopelessly behind.
    pub fn notify(&self, message: &str) {
        self.write(Bytes::from(format!("{message}\n")));
    }

    /// A whole line, dropped as [`Self::notify`] says.
    pub(super) fn write(&self, line: Bytes) {
        let _ = self.0.lines.try_send(line);
    }

    /// Passes a client's notification on. They need no lease, so they have half of the places that lines can wait in, and
    /// no more bytes there than fit: what does not is dropped and counted, and no call is lost for it.
    pub fn pass_on(&self, message: &[u8]) {
        let is_crowded = self.0.lines.capacity() < LINES_WAITING_MAX / 2;
        if is_crowded || message.len() > NOTIFICATION_LEN_MAX {
            self.0.counts.notifications_dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        self.write(one_line(message.to_vec()).into());
    }

    /// Where the caller of the newest call hears of things whose caller is meant.
    pub fn newest_call(&self, is_meant: impl Fn(&Caller) -> bool) -> Option<Arc<Outbox>> {
        self.pending().newest(false, is_meant)
    }

    /// The same of calls whose callers have gone to find an answer: it is heard when they are back.
    pub fn newest_parked_call(&self, is_meant: impl Fn(&Caller) -> bool) -> Option<Arc<Outbox>> {
        self.pending().newest(true, is_meant)
    }

    /// The client of all calls so far, if it is one alone: then what the server says is about its calls.
    pub fn sole_client(&self) -> Option<u128> {
        self.pending().sole_client()
    }

    /// Passes a request of the server on, under an id that is the broker's own. `false`: the one it is for does not keep
    /// up.
    pub fn ask(&self, question: Unasked<'_>, id: &str, to: &Arc<Outbox>) -> bool {
        let asked = Question { server_id: Bytes::copy_from_slice(id.as_bytes()), to: to.clone() };
        let (asked_as, given_up) = self.questions().ask(asked);
        if let Some(Question { server_id, .. }) = given_up {
            let id = String::from_utf8_lossy(&server_id);
            self.notify(&RpcError::new(INTERNAL_ERROR, "the client did not answer").response(Some(&id)));
        }
        let shown_id = asked_as.to_string();
        let line = replaced(question.line, &mut [(span(question.text, id), shown_id.as_bytes())]);
        let is_sent = to.push(line.into());
        if !is_sent {
            self.questions().take(asked_as);
        }
        is_sent
    }

    /// A client's answer to a question of this server, which is passed on under the server's own id. `false` if none
    /// is out under the client's.
    pub fn answer(&self, message: &Bytes, text: &str, id: &str) -> bool {
        let question = id.parse().ok().and_then(|id| self.questions().take(id));
        let Some(question) = question else { return false };
        self.write(one_line(replaced(message, &mut [(span(text, id), &question.server_id)])).into());
        // The answer is in the queue of the writer: what is written after it comes after it.
        self.0.answered.notify_waiters();
        true
    }

    /// The same for a client that answers in another request: `result` is raw. An answer to nothing is nothing.
    pub fn answer_with(&self, id: u64, result: &str) {
        let Some(question) = self.questions().take(id) else { return };
        let id = String::from_utf8_lossy(&question.server_id);
        self.write(one_line(format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#).into_bytes()).into());
        self.0.answered.notify_waiters();
    }

    /// Nobody will answer a question any more, and the server is told why.
    pub fn refuse_to_answer(&self, id: u64, why: &str) {
        let Some(question) = self.questions().take(id) else { return };
        let id = String::from_utf8_lossy(&question.server_id);
        self.notify(&RpcError::new(INTERNAL_ERROR, why).response(Some(&id)));
        self.0.answered.notify_waiters();
    }

    /// Whether the server still waits for the answer to a question.
    pub fn is_asked(&self, id: u64) -> bool {
        self.questions().has(id)
    }

    /// The caller of a call has gone to find an answer: what the server says meanwhile is not for it.
    pub fn park(&self, upstream_id: u64) {
        if let Some(entry) = self.pending().get_mut(upstream_id) {
            entry.park();
        }
    }

    /// It is back as `caller`, and wants progress under this token, or none.
    pub fn resume(&self, upstream_id: u64, token: Option<Bytes>, caller: Caller) {
        if let Some(entry) = self.pending().get_mut(upstream_id) {
            entry.resume(token, caller);
        }
    }

    /// The server does not want its question answered any more: whoever has it is told. `false` if none is out.
    pub(super) fn withdraw(&self, notice: Unasked<'_>) -> bool {
        let Some(id) = cancelled_request(notice.params) else { return false };
        let mut questions = self.questions();
        let Some(asked_as) = questions.asked_as(id.as_bytes()) else { return false };
        let question = questions.take(asked_as);
        drop(questions);
        let Some(question) = question else { return false };
        self.0.answered.notify_waiters();
        let asked_as = asked_as.to_string();
        question.to.push(replaced(notice.line, &mut [(span(notice.text, id), asked_as.as_bytes())]).into())
    }

    /// Requests of the server that wait for a client's answer.
    pub fn questions_out(&self) -> usize {
        self.questions().len()
    }

    /// Whether any question of the server was passed on.
    pub fn has_asked(&self) -> bool {
        self.questions().has_asked()
    }

    /// Resolves when no question waits for an answer, or when the conversation is over. Cancel safe.
    pub async fn questions_answered(&self) {
        loop {
            // Made before the look, so that an answer in between is not missed.
            let answered = self.0.answered.notified();
            if self.questions_out() == 0 {
                return;
            }
            tokio::select! {
                () = answered => {}
                () = self.lost() => return,
            }
        }
    }

    /// Closes the server's stdin: the polite request to end (2025-11-25, `lifecycle`, Shutdown).
    pub fn close_stdin(&self) {
        self.0.stdin_closed.cancel();
    }

    /// Resolves when the server's stdout has ended or a write failed: no call can be answered any more.
    pub async fn lost(&self) {
        self.0.lost.cancelled().await;
    }

    pub fn is_lost(&self) -> bool {
        self.0.lost.is_cancelled()
    }

    /// Resolves when everything that the server wrote has been read. Never, while an orphan holds its pipes open.
    pub async fn drained(&self) {
        self.0.lost.cancelled().await;
        self.0.stderr_ended.cancelled().await;
    }

    /// Calls that were given up and that the server still works on.
    pub fn given_up(&self) -> usize {
        self.pending().given_up()
    }

    /// The last lines that the server wrote to stderr, credentials taken out, oldest first.
    pub fn stderr_tail(&self) -> Vec<String> {
        self.0.tail.lock().unwrap_or_else(PoisonError::into_inner).lines()
    }

    /// What was dropped so far, by kind.
    pub fn counts(&self) -> [(&'static str, u64); 5] {
        let Counts { junk_lines, late_answers, progress_dropped, notifications_dropped, requests_refused } =
            &self.0.counts;
        [
            ("junk_lines", junk_lines.load(Ordering::Relaxed)),
            ("late_answers", late_answers.load(Ordering::Relaxed)),
            ("progress_dropped", progress_dropped.load(Ordering::Relaxed)),
            ("notifications_dropped", notifications_dropped.load(Ordering::Relaxed)),
            ("requests_refused", requests_refused.load(Ordering::Relaxed)),
        ]
    }

    /// A request of the broker's own; `params` is an object without metadata.
    pub(super) fn own_message(&self, id: u64, method: &str, params: &str) -> String {
        let params = match self.era() {
            Era::Legacy => params.to_owned(),
            Era::Modern => with_members(params, &format!(r#""_meta":{{{}}}"#, modern_metadata("{}", None))),
        };
        format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"{method}\",\"params\":{params}}}")
    }

    /// A fresh id for a request of the broker's own.
    pub(super) fn own_id(&self) -> u64 {
        OWN_IDS + self.0.own_requests.fetch_add(1, Ordering::Relaxed)
    }

    fn questions(&self) -> MutexGuard<'_, Questions> {
        self.0.questions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn pending(&self) -> MutexGuard<'_, Pending> {
        // Nothing panics while it holds the lock; if it did, the table would still be whole.
        self.0.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
