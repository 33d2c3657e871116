//! What one stream keeps of what it has sent, and how far its reader has come.

use std::collections::VecDeque;

use bytes::Bytes;

/// Events that a stream keeps: a minute of progress at one a second, and the answer.
const EVENTS_MAX: usize = 64;
/// Bytes that they may have together. The last one is kept however large: it is the answer that a client comes back for.
const BYTES_MAX: usize = 1 << 20;
/// What may wait for a reader before nothing is added, so that nothing has to be dropped while somebody reads.
const UNREAD_MAX: usize = EVENTS_MAX / 2;
const UNREAD_BYTES_MAX: usize = BYTES_MAX / 2;

/// The events of one stream that can still be read, and how far its reader has come.
#[derive(Debug, Default)]
pub(super) struct Ring {
    /// In the order of their numbers, with gaps where one was dropped.
    kept: VecDeque<Kept>,
    bytes: usize,
    /// The number of the newest event.
    last: u64,
    /// The last that the reader has taken; `None`: nobody reads.
    read: Option<u64>,
}

#[derive(Debug)]
struct Kept {
    number: u64,
    event: Bytes,
    /// Somebody waits for the client's answer to it.
    is_question: bool,
}

/// What a reader finds.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::front) enum Next {
    /// So many were dropped before it came.
    Missed(u64),
    Event(Bytes),
    Nothing,
}

impl Ring {
    /// Adds an event, which `frame` makes of its number, and drops what is too much: oldest first, questions after
    /// everything else, and nothing that a reader has still to take.
    pub fn push(&mut self, is_question: bool, frame: impl FnOnce(u64) -> Bytes) {
        self.last += 1;
        let event = frame(self.last);
        self.bytes += event.len();
        self.kept.push_back(Kept { number: self.last, event, is_question });
        while self.kept.len() > EVENTS_MAX || self.bytes > BYTES_MAX {
            let older = self.kept.iter().take(self.kept.len() - 1);
            let mut free = older.enumerate().filter(|(_, kept)| self.is_free(kept));
            let oldest = free.next();
            let told = match oldest {
                Some((_, kept)) if kept.is_question => free.find(|(_, kept)| !kept.is_question),
                _ => None,
            };
            let Some((index, _)) = told.or(oldest) else { return };
            self.remove(index);
        }
    }

    /// Whether an event can be added without one being dropped that the reader has still to take.
    pub fn has_room(&self) -> bool {
        let Some(read) = self.read else { return true };
        let unread = self.kept.iter().skip(self.position(read));
        let (count, bytes) = unread.fold((0, 0), |(count, bytes), kept| (count + 1, bytes + kept.event.len()));
        count == 0 || (count < UNREAD_MAX && bytes < UNREAD_BYTES_MAX)
    }

    /// Somebody reads what comes after `number`, instead of whoever read before.
    pub fn attach(&mut self, number: u64) {
        self.read = Some(number);
    }

    /// Nobody reads any more.
    pub fn detach(&mut self) {
        self.read = None;
    }

    pub fn take(&mut self) -> Next {
        let Some(read) = self.read else { return Next::Nothing };
        match self.kept.get(self.position(read)) {
            None => Next::Nothing,
            Some(kept) if kept.number > read + 1 => {
                self.read = Some(kept.number - 1);
                Next::Missed(kept.number - read - 1)
            }
            Some(kept) => {
                self.read = Some(kept.number);
                Next::Event(kept.event.clone())
            }
        }
    }

    /// Drops everything but what a reader has still to take.
    pub fn forget(&mut self) {
        while self.kept.front().is_some_and(|kept| self.is_free(kept)) {
            self.remove(0);
        }
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn last(&self) -> u64 {
        self.last
    }

    /// Where what comes after `number` begins.
    fn position(&self, number: u64) -> usize {
        self.kept.partition_point(|kept| kept.number <= number)
    }

    fn is_free(&self, kept: &Kept) -> bool {
        self.read.is_none_or(|read| kept.number <= read)
    }

    fn remove(&mut self, index: usize) {
        self.bytes -= self.kept.remove(index).map_or(0, |kept| kept.event.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn push(ring: &mut Ring, len: usize) {
        ring.push(false, |number| {
            let mut event = number.to_string().into_bytes();
            event.resize(len, b' ');
            event.into()
        });
    }

    /// What a reader gets from behind `number` on: `2 3 -4 8` is a gap of four before the eighth.
    #[track_caller]
    fn check(ring: &mut Ring, number: u64, expected: &str) {
        ring.attach(number);
        let mut read = Vec::new();
        loop {
            match ring.take() {
                Next::Event(event) => read.push(String::from_utf8_lossy(&event).trim().to_owned()),
                Next::Missed(missed) => read.push(format!("-{missed}")),
                Next::Nothing => break,
            }
        }
        ring.detach();
        assert_eq!(read.join(" "), expected);
    }

    #[test]
    fn what_came_after_an_event_is_read_once_and_in_order() {
        let mut ring = Ring::default();
        (0..4).for_each(|_| push(&mut ring, 2));
        check(&mut ring, 0, "1 2 3 4");
        check(&mut ring, 2, "3 4");
        check(&mut ring, 4, "");
        assert_eq!(ring.take(), Next::Nothing, "nobody reads");
    }

    #[test]
    fn the_oldest_go_first_and_a_reader_is_told_how_many() {
        let mut ring = Ring::default();
        (0..EVENTS_MAX + 3).for_each(|_| push(&mut ring, 2));
        check(&mut ring, 64, "65 66 67");
        ring.attach(1);
        assert_eq!(ring.take(), Next::Missed(2));
        assert_eq!(ring.take(), Next::Event("4 ".into()));
    }

    #[test]
    fn they_are_bounded_by_bytes_and_the_last_is_kept_however_large() {
        let mut ring = Ring::default();
        (0..3).for_each(|_| push(&mut ring, BYTES_MAX / 2));
        assert_eq!(ring.bytes(), BYTES_MAX);
        check(&mut ring, 0, "-1 2 3");
        push(&mut ring, 3 * BYTES_MAX);
        assert_eq!(ring.bytes(), 3 * BYTES_MAX);
        check(&mut ring, 0, "-3 4");
    }

    #[test]
    fn a_question_outlives_what_nobody_waits_for() {
        let mut ring = Ring::default();
        push(&mut ring, 1);
        ring.push(true, |_| "asked".into());
        (0..EVENTS_MAX).for_each(|_| push(&mut ring, 1));
        ring.attach(0);
        let first = [ring.take(), ring.take(), ring.take(), ring.take()];
        assert_eq!(first, [Next::Missed(1), Next::Event("asked".into()), Next::Missed(1), Next::Event("4".into())]);
        ring.detach();
        (0..EVENTS_MAX * 2).for_each(|_| ring.push(true, |_| "asked".into()));
        assert_eq!(ring.kept.len(), EVENTS_MAX, "but questions are bounded too");
    }

    #[test]
    fn nothing_is_dropped_that_a_reader_has_still_to_take() {
        let mut ring = Ring::default();
        ring.attach(0);
        let mut pushed = 0;
        while ring.has_room() {
            push(&mut ring, 1);
            pushed += 1;
        }
        assert_eq!(pushed, UNREAD_MAX);
        (0..EVENTS_MAX).for_each(|_| push(&mut ring, 1));
        ring.forget();
        assert_eq!(ring.take(), Next::Event("1".into()));
        ring.forget();
        assert_eq!(ring.kept.len(), UNREAD_MAX + EVENTS_MAX - 1);
        ring.detach();
        assert!(ring.has_room());
        ring.forget();
        assert_eq!((ring.kept.len(), ring.bytes()), (0, 0));
    }

    #[test]
    fn a_large_event_is_waited_for_alone() {
        let mut ring = Ring::default();
        ring.attach(0);
        push(&mut ring, 2 * BYTES_MAX);
        assert!(!ring.has_room());
        ring.take();
        assert!(ring.has_room());
    }
}
