//! Asking for the end of what runs in a slot, and waiting for the answer; and what is known while there is none.

use std::sync::Arc;
use std::time::Duration;

use super::{Slot, State};
use crate::core::generation::Generation;
use crate::core::lifecycle::{Effect, Event, Limits, PublicState};
use crate::core::moment::Moment;

/// What came of asking for an end, or for another look at one that could not be proved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// No process of this generation is left.
    Proved(Generation),
    /// The slot is in `cleanup_failed`: its view has the evidence.
    NotProved(Generation),
    /// There was nothing to do in this state.
    Nothing(PublicState),
    /// Not over within the limits of the slot; it goes on.
    Pending(Generation),
}

/// A slot in `cleanup_failed`: what was tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unproved {
    /// Sweeps of this generation, one under way included.
    pub attempts: u32,
    /// How long ago the last of them began.
    pub last: Duration,
    /// Until the next begins; `None` while one is under way.
    pub next: Option<Duration>,
}

/// Sweeps of the generation that was swept last.
#[derive(Clone, Copy, Debug)]
pub(super) struct Attempts {
    of: Generation,
    count: u32,
    last: Moment,
}

/// The answer of a driver may be this much later than the limit that it keeps.
const SLACK: Duration = Duration::from_secs(1);

impl Attempts {
    pub fn counting(before: Option<Self>, effect: Effect, now: Moment) -> Option<Self> {
        let Effect::Sweep(of) = effect else { return before };
        let count = before.filter(|before| before.of == of).map_or(0, |before| before.count);
        Some(Self { of, count: count.saturating_add(1), last: now })
    }
}

impl State {
    /// What those wait for who have asked for an end.
    pub(super) fn phase(&self) -> (PublicState, Option<Moment>) {
        (self.core.public_state(), self.core.next_look())
    }

    pub(super) fn unproved(&self, now: Moment) -> Option<Unproved> {
        let attempts = self.attempts.filter(|_| self.core.public_state() == PublicState::CleanupFailed)?;
        Some(Unproved {
            attempts: attempts.count,
            last: now.saturating_since(attempts.last),
            next: self.core.next_look().map(|at| at.saturating_since(now)),
        })
    }
}

impl Slot {
    /// Drains and stops what runs, and waits until it is proved gone or is said not to be. Calls that wait stay, for
    /// the generation after this one. Cancelled, the stop goes on.
    pub async fn stop(self: &Arc<Self>) -> Ended {
        let (generation, bound) = {
            let state = self.lock();
            let limits = &state.plan.limits;
            let Some(generation) = state.core.live() else { return Ended::Nothing(PublicState::Stopped) };
            (generation, longest_stop(limits))
        };
        self.event(Event::Stop);
        self.ended(generation, bound, |_| true).await
    }

    /// In `cleanup_failed`: looks again, kills what is left, and waits for the answer, at most for the limit of a
    /// sweep. A look that is under way is waited for instead. Cancelled, the look goes on.
    pub async fn recover(self: &Arc<Self>) -> Ended {
        let (generation, bound) = {
            let state = self.lock();
            match (state.core.public_state(), state.core.live()) {
                (PublicState::CleanupFailed, Some(generation)) => (generation, state.plan.limits.sweep + SLACK),
                (other, _) => return Ended::Nothing(other),
            }
        };
        self.event(Event::Recover);
        self.ended(generation, bound, |state| state.core.next_look().is_some()).await
    }

    /// Gives up the slot's place without a proof: who comes from now on is sent to a new slot. It goes on with looking,
    /// and says `cleanup_failed` until it has its proof. Whether that was done: only a slot that is in `cleanup_failed`
    /// with this very generation is set aside, and only once.
    ///
    /// The caller takes it out of its place before anybody can ask for it again, and retires it then.
    pub(in crate::supervisor) fn set_aside(&self, generation: Generation) -> bool {
        let mut state = self.lock();
        let is_unproved =
            state.core.public_state() == PublicState::CleanupFailed && state.core.live() == Some(generation);
        let is_done = is_unproved && !state.is_set_aside;
        state.is_set_aside |= is_done;
        is_done
    }

    /// `is_over` says of `cleanup_failed` whether it is an answer.
    async fn ended(&self, generation: Generation, bound: Duration, is_over: impl Fn(&State) -> bool) -> Ended {
        let answer = |state: &State| {
            if state.core.live() != Some(generation) {
                return Some(Ended::Proved(generation));
            }
            let is_unproved = state.core.public_state() == PublicState::CleanupFailed;
            (is_unproved && is_over(state)).then_some(Ended::NotProved(generation))
        };
        let answered = async {
            loop {
                let turned = self.turned.notified();
                tokio::pin!(turned);
                // From here on nothing is missed: a turn that comes before it is awaited counts.
                turned.as_mut().enable();
                let answer = answer(&self.lock());
                match answer {
                    Some(ended) => return ended,
                    None => turned.await,
                }
            }
        };
        tokio::time::timeout(bound, answered).await.unwrap_or(Ended::Pending(generation))
    }
}

/// From the order to the last answer, whatever state it finds.
fn longest_stop(limits: &Limits) -> Duration {
    let sweeps = limits.sweep.saturating_mul(u32::from(limits.sweeps_max).max(1));
    limits.start + limits.drain + limits.polite + limits.terminate + sweeps + SLACK
}
