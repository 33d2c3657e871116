//! What a call gets of a slot: a lease, a place in the queue, or a refusal.

use std::collections::BTreeSet;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::sync::oneshot;

use super::Slot;
use crate::core::generation::Generation;
use crate::core::lifecycle::{LeaseId, Refusal, Report, WaiterId};
use crate::link::Link;
use crate::supervisor::floor::Occupancy;
use crate::supervisor::start::StartFailure;

/// The answer to `acquire`.
#[derive(Debug)]
pub enum Acquired {
    Now(Granted),
    Later(Waiter),
    Refused(Refused),
    /// The slot was forgotten in this moment: ask the registry for a new one.
    Forgotten,
}

/// A lease and the conversation it is for.
#[derive(Debug)]
pub struct Granted {
    pub lease: Lease,
    pub link: Link,
    pub drifted: Arc<BTreeSet<String>>,
}

/// What a waiter is told.
pub(super) type Answer = Result<Granted, Refused>;

/// Why there is no lease.
#[derive(Clone, Debug)]
pub enum Refused {
    By(Refusal, Option<Arc<StartFailure>>),
    /// The call would not wait longer; the start that it waited for goes on.
    StillStarting,
    /// The call would not wait longer for a place among all that runs.
    NoPlace(Occupancy),
    Cancelled,
}

/// The right to use the instance for one call. Dropping it releases it.
#[derive(Debug)]
pub struct Lease {
    pub(super) slot: Arc<Slot>,
    pub id: LeaseId,
    pub generation: Generation,
}

impl Lease {
    pub fn slot(&self) -> &Arc<Slot> {
        &self.slot
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.slot.report(self.generation, Report::Released(self.id));
    }
}

/// A place in the queue. Dropping it leaves the queue.
#[derive(Debug)]
pub struct Waiter {
    pub(super) slot: Arc<Slot>,
    pub(super) id: WaiterId,
    pub(super) answer: oneshot::Receiver<Answer>,
    pub(super) is_answered: bool,
}

impl Future for Waiter {
    type Output = Answer;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let answer = std::task::ready!(Pin::new(&mut self.answer).poll(cx));
        self.is_answered = true;
        // The sender is dropped unanswered only when the whole slot goes, which retires it.
        Poll::Ready(answer.unwrap_or(Err(Refused::By(Refusal::Retired, None))))
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        if !self.is_answered {
            // A grant that was sent in this very moment is dropped with the receiver, which releases the lease.
            self.slot.abandon(self.id);
        }
    }
}

/// What a step decided for others than the one who caused it.
#[derive(Default)]
pub(super) struct Answers {
    pub to_waiters: Vec<(oneshot::Sender<Answer>, Answer)>,
    /// Leases that nobody takes: they release themselves, which must not happen under the lock.
    pub unwanted: Vec<Lease>,
    /// Other slots that have a place now.
    pub admitted: Vec<Arc<Slot>>,
}

impl Answers {
    pub fn absorb(&mut self, other: Self) {
        self.to_waiters.extend(other.to_waiters);
        self.unwanted.extend(other.unwanted);
        self.admitted.extend(other.admitted);
    }

    /// To be called without the lock.
    pub fn deliver(self) {
        for (to, answer) in self.to_waiters {
            // An error hands the answer back, and a lease in it releases itself.
            let _ = to.send(answer);
        }
        drop(self.unwanted);
        for slot in self.admitted {
            slot.admitted();
        }
    }
}
