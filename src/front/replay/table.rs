//! All streams that clients can come back to, and how much they may be together.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use tokio::sync::watch;

use super::ring::{Next, Ring};
use super::{EventId, Kind};
use crate::front::stream::event;

/// After the end of a call, its stream can be come back to for this long. Clients try for some seconds, people close and
/// open their notebooks.
const KEPT_FOR: Duration = Duration::from_secs(300);
/// Streams of one session that nobody reads. More than the calls that a client has out at the same time.
const OF_A_SESSION_MAX: usize = 16;
/// The same of all sessions: each may be a task that polls a call.
const STREAMS_MAX: usize = 256;
/// Bytes in all rings: some dozen screenshots.
const BYTES_MAX: usize = 64 << 20;

/// Streams that nobody reads and that wait for their clients, and the bytes of all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::front) struct Occupancy {
    pub streams: usize,
    pub streams_max: usize,
    pub bytes: usize,
    pub bytes_max: usize,
}

#[derive(Debug)]
pub(in crate::front) struct Table {
    streams: BTreeMap<u64, Entry>,
    bytes: usize,
    /// The number of the next stream. It begins at the microsecond of the broker's start, so that an id of an earlier
    /// broker is none of this one, although sessions survive.
    next_stream: u64,
    last_reader: u64,
}

#[derive(Debug)]
struct Entry {
    session: u128,
    kind: Kind,
    ring: Ring,
    /// Who reads: the last one who came.
    reader: Option<u64>,
    /// More may be added.
    is_open: bool,
    /// The client can have an id of it.
    is_known: bool,
    /// Its session is over.
    is_forgotten: bool,
    over_since: Option<Instant>,
    /// Told when there may be something for the reader, or room.
    changed: watch::Sender<()>,
}

/// A reader's place at a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::front) struct Seat {
    pub stream: u64,
    reader: u64,
}

/// Whether something can be added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::front) enum Room {
    /// Nobody can come back to it.
    Gone,
    Full,
    There {
        is_read: bool,
    },
}

impl Entry {
    fn is_waiting(&self) -> bool {
        self.reader.is_none()
    }

    fn is_expired(&self, now: Instant) -> bool {
        self.over_since.is_some_and(|since| now.saturating_duration_since(since) >= KEPT_FOR)
    }

    /// Whether a client that has `id` can be told more.
    fn goes_on_after(&self, id: EventId, now: Instant) -> bool {
        let has_more = self.kind == Kind::Listening || self.is_open || id.number < self.ring.last();
        self.kind == id.kind && !self.is_forgotten && !self.is_expired(now) && id.number <= self.ring.last() && has_more
    }
}

impl Table {
    pub fn new(first_stream: u64) -> Self {
        Self { streams: BTreeMap::new(), bytes: 0, next_stream: first_stream, last_reader: 0 }
    }

    /// A stream begins, with its reader. `is_known`: the client gets an id before there is any event.
    pub fn begin(&mut self, kind: Kind, session: u128, is_known: bool) -> (Seat, watch::Receiver<()>) {
        let (stream, reader) = (self.next_stream, self.next_reader());
        self.next_stream += 1;
        let (changed, receiver) = watch::channel(());
        let mut ring = Ring::default();
        ring.attach(0);
        let entry = Entry {
            session,
            kind,
            ring,
            reader: Some(reader),
            is_open: true,
            is_known,
            is_forgotten: false,
            over_since: None,
            changed,
        };
        self.streams.insert(stream, entry);
        (Seat { stream, reader }, receiver)
    }

    /// The stream's reader is another one from now on; `None`: there is nothing more to read.
    pub fn come_back(&mut self, session: u128, id: EventId, now: Instant) -> Option<(Seat, watch::Receiver<()>)> {
        let reader = self.next_reader();
        let entry = self.streams.get_mut(&id.stream)?;
        if entry.session != session || !entry.goes_on_after(id, now) {
            return None;
        }
        entry.reader = Some(reader);
        entry.ring.attach(id.number);
        if entry.kind == Kind::Listening {
            (entry.is_open, entry.over_since) = (true, None);
        }
        entry.changed.send_replace(());
        Some((Seat { stream: id.stream, reader }, entry.changed.subscribe()))
    }

    pub fn push(&mut self, stream: u64, is_question: bool, message: &[u8]) {
        let Some(entry) = self.streams.get_mut(&stream) else { return };
        let before = entry.ring.bytes();
        let kind = entry.kind;
        entry.ring.push(is_question, |number| event(Some(EventId { kind, stream, number }), message));
        entry.is_known = true;
        entry.changed.send_replace(());
        self.bytes = self.bytes - before + entry.ring.bytes();
        while self.bytes > BYTES_MAX && self.drop_one(|_| true) {}
        if self.bytes > BYTES_MAX {
            // Only what was sent already can go; what is still to be taken is bounded by each ring.
            self.streams.values_mut().for_each(|entry| entry.ring.forget());
            self.bytes = self.streams.values().map(|entry| entry.ring.bytes()).sum();
        }
    }

    pub fn room(&self, stream: u64) -> Room {
        match self.streams.get(&stream) {
            None => Room::Gone,
            Some(entry) if entry.ring.has_room() => Room::There { is_read: !entry.is_waiting() },
            Some(_) => Room::Full,
        }
    }

    /// What comes next; `None`: the stream is over for this reader.
    pub fn take(&mut self, seat: Seat) -> Option<Next> {
        let entry = self.streams.get_mut(&seat.stream).filter(|entry| entry.reader == Some(seat.reader))?;
        let was_full = !entry.ring.has_room();
        let next = entry.ring.take();
        if was_full && entry.ring.has_room() {
            entry.changed.send_replace(());
        }
        (next != Next::Nothing || entry.is_open).then_some(next)
    }

    /// A reader has gone. If nobody reads instead, the stream waits for its client.
    pub fn leave(&mut self, seat: Seat, now: Instant) {
        let Some(entry) = self.streams.get_mut(&seat.stream) else { return };
        if entry.reader != Some(seat.reader) {
            return;
        }
        entry.reader = None;
        entry.ring.detach();
        entry.changed.send_replace(());
        if entry.kind == Kind::Listening {
            (entry.is_open, entry.over_since) = (false, Some(now));
        }
        let session = entry.session;
        let has_nothing = entry.kind == Kind::Listening && entry.ring.last() == 0;
        if entry.is_forgotten || !entry.is_known || has_nothing {
            self.remove(seat.stream);
            return;
        }
        if self.waiting(|entry| entry.session == session).count() > OF_A_SESSION_MAX {
            self.drop_one(|entry| entry.session == session);
        }
        if self.waiting(|_| true).count() > STREAMS_MAX {
            self.drop_one(|_| true);
        }
    }

    /// Nothing is added any more.
    pub fn finish(&mut self, stream: u64, now: Instant) {
        let Some(entry) = self.streams.get_mut(&stream) else { return };
        (entry.is_open, entry.over_since) = (false, Some(now));
        entry.changed.send_replace(());
    }

    /// A session is over: who still reads may read to the end, and nobody comes back.
    pub fn forget(&mut self, session: u128) {
        let of_session = self.streams.iter().filter(|(_, entry)| entry.session == session).map(|(stream, _)| *stream);
        for stream in of_session.collect::<Vec<_>>() {
            match self.streams.get_mut(&stream) {
                Some(entry) if !entry.is_waiting() => entry.is_forgotten = true,
                _ => self.remove(stream),
            }
        }
    }

    pub fn sweep(&mut self, now: Instant) {
        let over: Vec<u64> = self.waiting(|entry| entry.is_expired(now)).map(|(stream, _)| stream).collect();
        over.into_iter().for_each(|stream| self.remove(stream));
    }

    pub fn occupancy(&self) -> Occupancy {
        let streams = self.waiting(|_| true).count();
        Occupancy { streams, streams_max: STREAMS_MAX, bytes: self.bytes, bytes_max: BYTES_MAX }
    }

    fn waiting(&self, is_meant: impl Fn(&Entry) -> bool) -> impl Iterator<Item = (u64, &Entry)> {
        let waiting = self.streams.iter().filter(move |(_, entry)| entry.is_waiting() && is_meant(entry));
        waiting.map(|(stream, entry)| (*stream, entry))
    }

    /// Drops the oldest that nobody reads, rather one that is over than one whose call goes on. `false`: there is none.
    fn drop_one(&mut self, is_meant: impl Fn(&Entry) -> bool) -> bool {
        let oldest = self.waiting(is_meant).min_by_key(|(stream, entry)| (entry.is_open, *stream));
        let Some((stream, _)) = oldest else { return false };
        self.remove(stream);
        true
    }

    fn remove(&mut self, stream: u64) {
        self.bytes -= self.streams.remove(&stream).map_or(0, |entry| entry.ring.bytes());
    }

    fn next_reader(&mut self) -> u64 {
        self.last_reader += 1;
        self.last_reader
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SESSION: u128 = 1;
    const NOTICE: &[u8] = br#"{"method":"x"}"#;

    fn table() -> Table {
        Table::new(1)
    }

    /// A call's stream that said `messages` messages and lost its client.
    fn left(table: &mut Table, session: u128, messages: usize, now: Instant) -> Seat {
        let (seat, _) = table.begin(Kind::Call, session, true);
        (0..messages).for_each(|_| table.push(seat.stream, false, NOTICE));
        table.leave(seat, now);
        seat
    }

    fn id(stream: u64, number: u64) -> EventId {
        EventId { kind: Kind::Call, stream, number }
    }

    /// How many events come; the stream is left again.
    #[track_caller]
    fn read(table: &mut Table, id: EventId, now: Instant) -> Option<usize> {
        let (seat, _) = table.come_back(SESSION, id, now)?;
        let events = std::iter::from_fn(|| table.take(seat).filter(|next| *next != Next::Nothing)).count();
        table.leave(seat, now);
        Some(events)
    }

    #[test]
    fn a_stream_is_its_sessions_alone() {
        let now = Instant::now();
        let mut table = table();
        let stream = left(&mut table, SESSION, 3, now).stream;
        assert_eq!(read(&mut table, id(stream, 1), now), Some(2));
        assert_eq!(table.come_back(2, id(stream, 1), now).map(|(seat, _)| seat), None);
        assert_eq!(read(&mut table, id(stream + 1, 1), now), None, "nobody's");
        assert_eq!(read(&mut table, id(stream, 4), now), None, "never given");
        let listening = EventId { kind: Kind::Listening, stream, number: 1 };
        assert_eq!(read(&mut table, listening, now), None, "of another kind");
    }

    #[test]
    fn it_is_kept_for_a_while_after_the_end_of_the_call() {
        let start = Instant::now();
        let mut table = table();
        let stream = left(&mut table, SESSION, 2, start).stream;
        let ended = start + 2 * KEPT_FOR;
        table.sweep(ended);
        assert_eq!(read(&mut table, id(stream, 0), ended), Some(2), "while the call goes on");
        table.finish(stream, ended);
        let last = ended + KEPT_FOR - Duration::from_secs(1);
        table.sweep(last);
        assert_eq!(read(&mut table, id(stream, 0), last), Some(2));
        assert_eq!(read(&mut table, id(stream, 2), last), None, "that was all");
        assert_eq!(read(&mut table, id(stream, 0), ended + KEPT_FOR), None);
        table.sweep(ended + KEPT_FOR);
        assert_eq!((table.streams.len(), table.bytes), (0, 0));
    }

    #[test]
    fn who_comes_back_reads_alone() {
        let now = Instant::now();
        let mut table = table();
        let (first, _) = table.begin(Kind::Call, SESSION, true);
        table.push(first.stream, false, NOTICE);
        let (second, _) = table.come_back(SESSION, id(first.stream, 0), now).unwrap();
        assert_eq!(table.take(first), None);
        assert!(matches!(table.take(second), Some(Next::Event(_))));
        table.leave(first, now);
        assert_eq!(table.take(second), Some(Next::Nothing), "the first one's end is not the second one's");
        table.finish(second.stream, now);
        assert_eq!(table.take(second), None);
    }

    #[test]
    fn nothing_is_kept_of_what_nobody_can_ask_for() {
        let now = Instant::now();
        let mut table = table();
        let (unknown, _) = table.begin(Kind::Call, SESSION, false);
        table.leave(unknown, now);
        let (silent, _) = table.begin(Kind::Listening, SESSION, false);
        table.leave(silent, now);
        assert_eq!((table.streams.len(), table.room(unknown.stream)), (0, Room::Gone));
    }

    #[test]
    fn a_session_that_is_over_takes_its_streams_along() {
        let now = Instant::now();
        let mut table = table();
        let waiting = left(&mut table, SESSION, 1, now).stream;
        let (read, _) = table.begin(Kind::Call, SESSION, true);
        let other = left(&mut table, 2, 1, now).stream;
        table.forget(SESSION);
        assert_eq!(table.room(waiting), Room::Gone);
        table.push(read.stream, false, NOTICE);
        assert!(matches!(table.take(read), Some(Next::Event(_))), "its last words are read");
        assert!(table.come_back(SESSION, id(read.stream, 0), now).is_none());
        table.leave(read, now);
        assert_eq!(table.streams.keys().collect::<Vec<_>>(), [&other]);
    }

    #[test]
    fn streams_are_bounded_in_a_session_and_in_all() {
        let now = Instant::now();
        let mut table = table();
        let goes_on = left(&mut table, SESSION, 1, now).stream;
        for _ in 0..OF_A_SESSION_MAX {
            let stream = left(&mut table, SESSION, 1, now).stream;
            table.finish(stream, now);
        }
        assert_eq!(table.streams.len(), OF_A_SESSION_MAX);
        assert_ne!(table.room(goes_on), Room::Gone, "what is over goes first");
        for session in 2..STREAMS_MAX as u128 * 2 {
            left(&mut table, session, 1, now);
        }
        assert_eq!(table.streams.len(), STREAMS_MAX);
    }

    #[test]
    fn bytes_are_bounded_and_who_reads_loses_nothing() {
        let now = Instant::now();
        let mut table = table();
        let large = vec![b'x'; BYTES_MAX / 3];
        let (read, _) = table.begin(Kind::Call, SESSION, true);
        table.push(read.stream, false, &large);
        let streams: Vec<u64> = (0..3).map(|session| left(&mut table, session, 0, now).stream).collect();
        streams.iter().for_each(|stream| table.push(*stream, false, &large));
        assert_eq!(table.room(streams[0]), Room::Gone, "the oldest that nobody reads");
        assert_ne!(table.room(streams[2]), Room::Gone);
        (0..3).for_each(|_| table.push(read.stream, false, &large));
        let taken = std::iter::from_fn(|| table.take(read).filter(|next| *next != Next::Nothing)).count();
        assert_eq!(taken, 4);
        table.push(read.stream, false, NOTICE);
        assert!(table.bytes <= BYTES_MAX, "what was taken can go");
    }

    #[test]
    fn a_listener_finds_what_came_last_and_goes_on() {
        let now = Instant::now();
        let mut table = table();
        let (seat, _) = table.begin(Kind::Listening, SESSION, false);
        table.push(seat.stream, false, NOTICE);
        table.take(seat);
        table.leave(seat, now);
        let id = EventId { kind: Kind::Listening, stream: seat.stream, number: 0 };
        let (again, _) = table.come_back(SESSION, id, now).unwrap();
        assert!(matches!(table.take(again), Some(Next::Event(_))));
        assert_eq!(table.take(again), Some(Next::Nothing), "it is open");
        table.leave(again, now);
        assert_eq!(read(&mut table, id, now + KEPT_FOR), None);
    }
}
