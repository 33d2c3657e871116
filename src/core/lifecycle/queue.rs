//! The waiters of a slot, first come, first served. Its bound is checked at the door (`Slot::step`), because it is
//! live: a limit that was lowered sends away nobody who waits already.

use std::collections::VecDeque;

use super::event::{Waiter, WaiterId};
use crate::core::moment::Moment;

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct Queue(VecDeque<Waiter>);

impl Queue {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether somebody waits for whom a generation is started.
    pub(super) fn wants_start(&self) -> bool {
        self.0.iter().any(|waiter| waiter.starts)
    }

    pub(super) fn push(&mut self, waiter: Waiter) {
        self.0.push_back(waiter);
    }

    pub(super) fn pop(&mut self) -> Option<Waiter> {
        self.0.pop_front()
    }

    pub(super) fn remove(&mut self, id: WaiterId) {
        self.0.retain(|waiter| waiter.id != id);
    }

    /// Takes out those whose deadline has come. Deadlines are not in order: each tool may have its own.
    pub(super) fn expire(&mut self, now: Moment, mut expired: impl FnMut(WaiterId)) {
        self.0.retain(|waiter| {
            let waits = waiter.deadline > now;
            if !waits {
                expired(waiter.id);
            }
            waits
        });
    }

    /// Takes out those for whom nothing is started.
    pub(super) fn dismiss_guests(&mut self, mut dismissed: impl FnMut(WaiterId)) {
        self.0.retain(|waiter| {
            if !waiter.starts {
                dismissed(waiter.id);
            }
            waiter.starts
        });
    }

    pub(super) fn drain(&mut self) -> impl Iterator<Item = WaiterId> {
        self.0.drain(..).map(|waiter| waiter.id)
    }

    pub(super) fn first_deadline(&self) -> Option<Moment> {
        self.0.iter().map(|waiter| waiter.deadline).min()
    }

    pub(super) fn map_moments(&mut self, at: &mut impl FnMut(Moment) -> Moment) {
        for waiter in &mut self.0 {
            waiter.deadline = at(waiter.deadline);
        }
    }
}
