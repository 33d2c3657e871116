//! Calls whose legacy server has asked something that a modern client is to answer with its next request.
//!
//! A modern server would have ended the request with what it wants to know, and have been asked anew. A legacy one waits
//! for the answer in the middle of its call, so the call waits here, under a name that cannot be guessed and holds once:
//! the `requestState` that its client sends back. Whoever does not come back in time has cancelled it.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use super::call::Call;

/// What the states of the broker's own begin with; those of servers are theirs.
pub(super) const STATE_PREFIX: &str = "lazy-mcp:";
/// How long a client may think: as long as a person who is asked may, if the call itself may take that long.
const PARKED_MAX: Duration = Duration::from_secs(300);
/// Calls parked at the same time. Each holds a lease.
pub(super) const PARKED_CALLS_MAX: usize = 256;

#[derive(Debug, Default)]
pub(super) struct Parked(Mutex<HashMap<String, Entry>>);

#[derive(Debug)]
struct Entry {
    call: Call,
    /// How long its client may think, at most.
    until: Instant,
}

impl Entry {
    fn is_over(&self, now: Instant) -> bool {
        self.until.min(self.call.deadline()) <= now
    }
}

impl Parked {
    /// The state for the client. Without a place for it the call is dropped, which cancels it at its server.
    pub fn park(&self, call: Call) -> Option<String> {
        let mut random = [0; 16];
        self.expire();
        let mut entries = self.lock();
        if entries.len() >= PARKED_CALLS_MAX || getrandom::fill(&mut random).is_err() {
            return None;
        }
        let state = format!("{STATE_PREFIX}{}", URL_SAFE_NO_PAD.encode(random));
        let until = Instant::now() + PARKED_MAX;
        entries.insert(state.clone(), Entry { call, until });
        Some(state)
    }

    /// The call of a state, if `is_meant` says that it can be this client's. Somebody else's stays.
    pub fn take(&self, state: &str, is_meant: impl Fn(&Call) -> bool) -> Option<Call> {
        self.expire();
        let mut entries = self.lock();
        if !is_meant(&entries.get(state)?.call) {
            return None;
        }
        entries.remove(state).map(|entry| entry.call)
    }

    /// Cancels those that nobody came back for. Called whenever somebody looks here, and now and then.
    pub fn expire(&self) {
        let now = Instant::now();
        let over: Vec<Entry> = self.lock().extract_if(|_, entry| entry.is_over(now)).map(|(_, entry)| entry).collect();
        // Dropped without the lock: each tells its server.
        drop(over);
    }

    pub fn len(&self) -> usize {
        self.expire();
        self.lock().len()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Entry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
