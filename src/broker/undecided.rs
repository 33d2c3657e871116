//! Calls that a hook or their client is being asked about: no slot knows them now, and they can be cancelled all the same.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio_util::sync::CancellationToken;

/// All of them. Bounded by the jobs that may wait for a policy thread, and by the requests under way.
#[derive(Debug, Default)]
pub(super) struct Undecided(Mutex<Vec<Arc<Entry>>>);

#[derive(Debug)]
struct Entry {
    client: u128,
    /// The client's id, raw.
    id: Bytes,
    cancelled: CancellationToken,
}

/// A call among them; dropped, it is none any more.
#[derive(Debug)]
pub(super) struct Asking {
    among: Arc<Undecided>,
    entry: Arc<Entry>,
}

impl Undecided {
    pub fn enter(self: &Arc<Self>, client: u128, id: Bytes) -> Asking {
        let entry = Arc::new(Entry { client, id, cancelled: CancellationToken::new() });
        self.lock().push(entry.clone());
        Asking { among: self.clone(), entry }
    }

    /// Cancels what `client` has here under its request id, or all of it. The number of calls found.
    pub fn cancel(&self, client: u128, id: Option<&str>) -> usize {
        let entries = self.lock();
        let meant = entries.iter().filter(|entry| entry.client == client && id.is_none_or(|id| entry.id == id));
        meant.map(|entry| entry.cancelled.cancel()).count()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Entry>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Asking {
    pub fn is_cancelled(&self) -> bool {
        self.entry.cancelled.is_cancelled()
    }

    pub async fn cancelled(&self) {
        self.entry.cancelled.cancelled().await;
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        self.among.lock().retain(|entry| !Arc::ptr_eq(entry, &self.entry));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_cancelled_or_all_of_a_client() {
        let all = Arc::new(Undecided::default());
        let [a, b, c] = [(1, "1"), (1, "\"x\""), (2, "1")].map(|(client, id)| all.enter(client, Bytes::from(id)));
        let cancelled = |asked: &[&Asking]| asked.iter().map(|asking| asking.is_cancelled()).collect::<Vec<_>>();
        assert_eq!((all.cancel(1, Some("\"x\"")), cancelled(&[&a, &b, &c])), (1, vec![false, true, false]));
        assert_eq!((all.cancel(1, None), cancelled(&[&a, &b, &c])), (2, vec![true, true, false]));
        drop(c);
        assert_eq!(all.cancel(2, None), 0);
    }
}
