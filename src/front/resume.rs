//! Streams that a legacy client can come back to after its connection broke (MCP 2025-11-25, `transports`, Resumability
//! and Redelivery).
//!
//! What such a stream says goes through its ring (`replay`), as it was to be sent: behind the policy's rules. A body
//! reads the ring. A call is polled by a task, which adds to the ring, so that a connection that breaks takes the body
//! along and not the call; a GET with the id of the last event that the client has is another body of the same stream. It
//! begins while the first one is still there, if nobody has noticed yet that the connection is gone: then that one ends.

use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use axum::body::Body;
use bytes::Bytes;
use futures_util::stream::unfold;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::replay::{EventId, Kind, Next, Occupancy, Room, Seat, Table};
use super::serve::Front;
use super::session::{Hold, Session};
use super::stream::{KEEP_ALIVE, answer, comment};
use crate::broker::{Call, CallEvent};
use crate::protocol::raw::members;
use crate::protocol::version::NEWEST_LEGACY;

/// All streams that can be come back to.
#[derive(Debug)]
pub struct Replays {
    table: Mutex<Table>,
    /// Those that poll calls.
    tasks: TaskTracker,
}

impl Replays {
    pub(super) fn new() -> Self {
        let start = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros();
        let table = Table::new(u64::try_from(start).unwrap_or_default());
        Self { table: Mutex::new(table), tasks: TaskTracker::new() }
    }

    /// A stream of a session begins, with its first reader.
    pub(super) fn begin(self: &Arc<Self>, kind: Kind, session: &Arc<Session>) -> Reader {
        let primes = primes(session, kind);
        let (seat, changed) = self.table().begin(kind, session.id, primes);
        let begins_after = EventId { kind, stream: seat.stream, number: 0 };
        Reader { replays: self.clone(), seat, changed, begins_after, primes, _hold: session.hold() }
    }

    /// The rest of a stream of this session, for a client that has everything up to `id`. `None` if nobody knows of that
    /// stream any more, or if that was all of it.
    pub(super) fn come_back(self: &Arc<Self>, session: &Arc<Session>, id: EventId) -> Option<Reader> {
        let (seat, changed) = self.table().come_back(session.id, id, Instant::now())?;
        // Whoever loses this connection as well before there is anything on it comes back with the id that it has.
        let primes = primes(session, Kind::Call);
        Some(Reader { replays: self.clone(), seat, changed, begins_after: id, primes, _hold: session.hold() })
    }

    /// A session is over, and with it what was kept for it.
    pub fn forget(&self, session: u128) {
        self.table().forget(session);
    }

    /// Drops what has been kept for long enough.
    pub fn sweep(&self) {
        self.table().sweep(Instant::now());
    }

    /// Waits until no call is polled any more. Every call that is out has ended by then, or has nobody to end for.
    pub async fn ended(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }

    pub(super) fn occupancy(&self) -> Occupancy {
        self.table().occupancy()
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Clients of 2025-11-25 expect an event with an id and no data before the first message, so that they can come back
/// from there on. Those of earlier versions would read the data as a message. Who listens has missed nothing until the
/// first message.
fn primes(session: &Session, kind: Kind) -> bool {
    kind == Kind::Call && session.version == NEWEST_LEGACY
}

/// The rest of a call as a stream of its session: `first` is what it said already, `None` for a sign of life. Dropping
/// the body is the client's going away, which it may come back from if it can have an id; the call then goes on.
pub(super) fn of_call(front: &Front, call: Call, first: Option<Bytes>, hold: Hold) -> Body {
    let replays = &front.replays;
    let reader = replays.begin(Kind::Call, hold.session());
    let is_silent = first.is_none();
    if let Some(message) = first {
        reader.say(&message);
    }
    let source = Source { replays: replays.clone(), stream: reader.seat.stream };
    replays.tasks.spawn(polled(source, reader.changed.clone(), call, hold, front.shutdown.clone()));
    reader.into_body(is_silent)
}

/// Polls a call to its end, or until nobody can be told of it. Dropped, it is the client's going away (`Call`).
async fn polled(
    source: Source,
    mut changed: watch::Receiver<()>,
    mut call: Call,
    _hold: Hold,
    shutdown: CancellationToken,
) {
    loop {
        changed.mark_unchanged();
        let is_read = match source.room() {
            Room::Gone => return,
            Room::There { is_read } => is_read,
            Room::Full => {
                // An error means that the stream is gone, which the next look tells.
                let _ = changed.changed().await;
                continue;
            }
        };
        tokio::select! {
            // All are cancel safe: a call and a watch keep what was not seen, a token stays cancelled. An answer beats
            // the end of the broker.
            biased;
            said = call.next() => match said {
                CallEvent::Notice(message) => source.say(&message),
                // Signs of life are the reader's own.
                CallEvent::Quiet => {}
                CallEvent::Ended(reply) => {
                    source.say(&answer(&call, reply).joined());
                    return;
                }
            },
            _ = changed.changed() => {}
            // Nobody comes back to a broker that listens no more.
            () = shutdown.cancelled(), if !is_read => return,
        }
    }
}

/// Who adds to a call's stream; dropped, nothing more is added.
struct Source {
    replays: Arc<Replays>,
    stream: u64,
}

impl Source {
    fn room(&self) -> Room {
        self.replays.table().room(self.stream)
    }

    fn say(&self, message: &[u8]) {
        self.replays.table().push(self.stream, is_question(message), message);
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        self.replays.table().finish(self.stream, Instant::now());
    }
}

/// A message that has an id is one that is answered, or an answer.
fn is_question(message: &[u8]) -> bool {
    let text = std::str::from_utf8(message).unwrap_or_default();
    matches!(members(text, ["id"]), Ok([Some(_)]))
}

/// Who reads a stream, for one client's connection. Dropped, the stream waits for the client to come back.
#[derive(Debug)]
pub(super) struct Reader {
    replays: Arc<Replays>,
    seat: Seat,
    changed: watch::Receiver<()>,
    begins_after: EventId,
    primes: bool,
    _hold: Hold,
}

impl Reader {
    /// What the stream begins with, if anything.
    pub fn opening(&self) -> Option<Bytes> {
        self.primes.then(|| format!("id: {}\ndata: \n\n", self.begins_after).into())
    }

    /// What is there already; `None`: the stream is over, or somebody else's.
    pub fn take(&mut self) -> Option<Option<Bytes>> {
        self.changed.mark_unchanged();
        let next = self.replays.table().take(self.seat)?;
        Some(match next {
            Next::Event(event) => Some(event),
            Next::Missed(missed) => Some(format!(": {missed} messages were not kept\n\n").into()),
            Next::Nothing => None,
        })
    }

    /// Adds to the stream.
    pub fn say(&self, message: &[u8]) {
        self.replays.table().push(self.seat.stream, is_question(message), message);
    }

    /// `take` may find something else now. Cancel safe.
    pub async fn changed(&mut self) {
        // An error means that the stream is gone, which `take` tells.
        let _ = self.changed.changed().await;
    }

    /// The stream of a call. `is_silent`: there is nothing yet that it could begin with.
    pub fn into_body(self, is_silent: bool) -> Body {
        let opening = self.opening().or_else(|| is_silent.then(comment));
        Body::from_stream(unfold((self, opening), |(mut reader, opening)| async move {
            let chunk = match opening {
                Some(opening) => opening,
                None => reader.next().await?,
            };
            Some((Ok::<_, Infallible>(chunk), (reader, None)))
        }))
    }

    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(chunk) = self.take()? {
                return Some(chunk);
            }
            if tokio::time::timeout(KEEP_ALIVE, self.changed()).await.is_err() {
                return Some(comment());
            }
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.replays.table().leave(self.seat, Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_are_told_from_notices() {
        assert!(
            is_question(br#"{"id":0,"method":"ping"}"#) && !is_question(br#"{"method":"x"}"#) && !is_question(b"\xff")
        );
    }
}
