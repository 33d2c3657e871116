//! Messages on their way to one reader.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::sync::Notify;

/// Bytes that may wait for one reader, and messages: a thousand short ones cost more than their bytes.
const WAITING_BYTES_MAX: usize = 1 << 20;
const WAITING_MAX: usize = 1024;

/// A queue with one reader that may be slow or gone: whoever writes never waits for it, and is told when it does not
/// keep up.
#[derive(Debug, Default)]
pub struct Outbox {
    state: Mutex<State>,
    more: Notify,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<Bytes>,
    bytes: usize,
    is_closed: bool,
}

impl Outbox {
    /// `false` if it is closed, or full.
    pub fn push(&self, message: Bytes) -> bool {
        let mut state = self.lock();
        let is_full = state.waiting.len() >= WAITING_MAX || state.bytes + message.len() > WAITING_BYTES_MAX;
        // One message is taken however large it is, or it could never be sent.
        if state.is_closed || (is_full && !state.waiting.is_empty()) {
            return false;
        }
        state.bytes += message.len();
        state.waiting.push_back(message);
        drop(state);
        self.more.notify_one();
        true
    }

    /// What waits already.
    pub fn take(&self) -> Option<Bytes> {
        let mut state = self.lock();
        let message = state.waiting.pop_front()?;
        state.bytes -= message.len();
        Some(message)
    }

    /// The next message; `None` once it is closed and empty. Cancel safe, for one reader.
    pub async fn next(&self) -> Option<Bytes> {
        loop {
            if let Some(message) = self.take() {
                return Some(message);
            }
            if self.lock().is_closed {
                return None;
            }
            // A message that came in between has left a permit.
            self.more.notified().await;
        }
    }

    /// Nothing more is taken; what waits can still be read.
    pub fn close(&self) {
        self.lock().is_closed = true;
        self.more.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_bounded_by_bytes_and_by_number() {
        let outbox = Outbox::default();
        assert!(outbox.push(Bytes::from(vec![b'x'; WAITING_BYTES_MAX + 1])), "one is always taken");
        assert!(!outbox.push(Bytes::from_static(b"x")));
        assert_eq!(outbox.take().map(|message| message.len()), Some(WAITING_BYTES_MAX + 1));
        let taken = (0..WAITING_MAX + 1).filter(|_| outbox.push(Bytes::from_static(b"x"))).count();
        assert_eq!(taken, WAITING_MAX);
    }

    #[tokio::test]
    async fn order_is_kept_and_the_end_comes_after_the_last() {
        let outbox = Outbox::default();
        let read = async {
            let mut read = Vec::new();
            while let Some(message) = outbox.next().await {
                read.push(message);
            }
            read
        };
        let write = async {
            for text in ["a", "b", "c"] {
                assert!(outbox.push(Bytes::from_static(text.as_bytes())));
                tokio::task::yield_now().await;
            }
            outbox.close();
            assert!(!outbox.push(Bytes::from_static(b"d")));
        };
        assert_eq!(tokio::join!(read, write).0, ["a", "b", "c"]);
    }
}
