//! Requests of a server that are out at a client, and the way back for their answers.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;

use super::outbox::Outbox;

/// Questions of one generation that may wait for their answers at the same time.
const OUT_MAX: usize = 64;

/// The ids that clients see: of the whole broker, so that an answer that comes late, to another generation or another
/// server, is nobody's.
static LAST_ID: AtomicU64 = AtomicU64::new(0);

/// An id under which a client is asked something.
pub fn fresh_question_id() -> u64 {
    LAST_ID.fetch_add(1, Ordering::Relaxed) + 1
}

/// A question that is out.
#[derive(Debug)]
pub(super) struct Question {
    /// The server's id, raw.
    pub server_id: Bytes,
    /// Where it was sent, and where its cancellation goes.
    pub to: Arc<Outbox>,
}

#[derive(Debug, Default)]
pub(super) struct Questions {
    out: HashMap<u64, Question>,
    has_asked: bool,
}

impl Questions {
    /// The id for the client; and the one that has waited for longest, where too many do: nobody will answer it.
    pub fn ask(&mut self, question: Question) -> (u64, Option<Question>) {
        let oldest = self.out.keys().min().copied().filter(|_| self.out.len() >= OUT_MAX);
        let given_up = oldest.and_then(|oldest| self.out.remove(&oldest));
        self.has_asked = true;
        let id = fresh_question_id();
        self.out.insert(id, question);
        (id, given_up)
    }

    /// The client has answered, or the server does not want to know any more.
    pub fn take(&mut self, id: u64) -> Option<Question> {
        self.out.remove(&id)
    }

    pub fn has(&self, id: u64) -> bool {
        self.out.contains_key(&id)
    }

    /// The id that a client knows the server's request `server_id` by.
    pub fn asked_as(&self, server_id: &[u8]) -> Option<u64> {
        self.out.iter().find(|(_, question)| question.server_id == server_id).map(|(id, _)| *id)
    }

    pub fn len(&self) -> usize {
        self.out.len()
    }

    /// Whether there was any.
    pub fn has_asked(&self) -> bool {
        self.has_asked
    }
}
