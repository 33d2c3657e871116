//! Answers of legacy clients to what a modern server asked in a result: the call that waits for them asks anew with them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::mpsc;

use crate::link::fresh_question_id;

/// The raw result, or the raw error.
pub(super) type Given = Result<String, String>;

/// All answers that are awaited. Bounded by the calls under way, each of which asks so much at the same time.
#[derive(Debug, Default)]
pub(super) struct Awaited(Mutex<HashMap<u64, Waiting>>);

#[derive(Debug)]
struct Waiting {
    session: u128,
    to: mpsc::UnboundedSender<(u64, Given)>,
}

/// The answers that one call waits for. Dropped, it waits for none.
#[derive(Debug)]
pub(super) struct Expected {
    among: Arc<Awaited>,
    /// The ids that the client sees.
    pub ids: Vec<u64>,
    from: mpsc::UnboundedReceiver<(u64, Given)>,
}

impl Awaited {
    pub fn expect(self: &Arc<Self>, session: u128, count: usize) -> Expected {
        let (to, from) = mpsc::unbounded_channel();
        let ids: Vec<u64> = (0..count).map(|_| fresh_question_id()).collect();
        let mut waiting = self.lock();
        waiting.extend(ids.iter().map(|id| (*id, Waiting { session, to: to.clone() })));
        drop(waiting);
        Expected { among: self.clone(), ids, from }
    }

    /// `false` if nobody waits for it, or not of this session. Each is taken once.
    pub fn give(&self, session: u128, id: u64, answer: Given) -> bool {
        let mut waiting = self.lock();
        // Somebody else's stays.
        if waiting.get(&id).is_none_or(|waiting| waiting.session != session) {
            return false;
        }
        let Some(found) = waiting.remove(&id) else { return false };
        found.to.send((id, answer)).is_ok()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Waiting>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Expected {
    /// The next answer, and to which question by its place. Cancel safe.
    pub async fn next(&mut self) -> (usize, Given) {
        loop {
            match self.from.recv().await {
                Some((id, given)) => {
                    if let Some(place) = self.ids.iter().position(|known| *known == id) {
                        return (place, given);
                    }
                }
                // The table holds a sender for each answer that has not come; whoever has all does not ask.
                None => std::future::pending().await,
            }
        }
    }
}

impl Drop for Expected {
    fn drop(&mut self) {
        let mut waiting = self.among.lock();
        self.ids.iter().for_each(|id| drop(waiting.remove(id)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_answer_is_taken_once_and_of_its_session_alone() {
        let awaited = Arc::new(Awaited::default());
        let mut expected = awaited.expect(1, 2);
        let [first, second] = [expected.ids[0], expected.ids[1]];
        assert!(!awaited.give(2, first, Ok("{}".into())), "another session's");
        assert!(!awaited.give(2, second, Ok("{}".into())));
        assert!(awaited.give(1, second, Ok("{}".into())));
        assert!(!awaited.give(1, second, Ok("{}".into())), "twice");
        assert_eq!(expected.next().await, (1, Ok("{}".to_owned())));
        drop(expected);
        assert!(awaited.lock().is_empty());
    }
}
