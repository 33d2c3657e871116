//! What another revision means for a slot: another plan, another generation, or none any more.

use std::sync::Arc;

use super::{Slot, State};
use crate::core::lifecycle::{Event, PublicState};
use crate::supervisor::driver::Order;
use crate::supervisor::plan::Plan;

/// Whether anybody may ask for the slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    Wanted,
    /// No revision has a use for it now; a later one may.
    Dismissed,
    /// What it was for is over.
    Retired,
}

/// What becomes of what runs in a slot with a revision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Succession {
    /// It goes on, under the rules of the revision.
    Kept,
    /// Its calls may end, then it is stopped and proved gone; who waits gets the next generation.
    Draining,
    /// The same, and there is no next generation: who waits is refused.
    Retired,
}

impl Slot {
    /// Stops the instance once its calls are done, for good.
    pub fn retire(self: &Arc<Self>) {
        self.lock().standing = Standing::Retired;
        self.event(Event::Retire);
        // One that is stopped already has nothing to perform, but is to be forgotten.
        self.order(Order::Look);
    }

    /// What `plan`, none if the backend is not served any more, means for the generation that may have processes;
    /// nothing if there is none.
    pub(in crate::supervisor) fn foresee(&self, plan: Option<&Arc<Plan>>) -> Option<Succession> {
        self.lock().succession(plan.filter(|plan| self.fits(plan)))
    }

    /// Goes on under another plan, or is dismissed. Calls under way are let end either way; of a plan that is the same
    /// nothing is noticed. What that means for the generation that may have processes in this moment; nothing if there is
    /// none.
    pub(in crate::supervisor) fn succeed(self: &Arc<Self>, plan: Option<&Arc<Plan>>) -> Option<Succession> {
        match plan.filter(|plan| self.fits(plan)) {
            Some(plan) => self.go_on(plan),
            None => self.dismiss(),
        }
    }

    pub(in crate::supervisor) fn is_retired(&self) -> bool {
        self.lock().standing != Standing::Wanted
    }

    /// An instance for each session has no use for the slot of everyone, and the other way round.
    fn fits(&self, plan: &Plan) -> bool {
        plan.is_shared == self.key.scope.is_shared()
    }

    fn go_on(self: &Arc<Self>, plan: &Arc<Plan>) -> Option<Succession> {
        let (succession, events) = {
            let mut state = self.lock();
            let succession = state.succession(Some(plan));
            let is_reinstated = state.standing == Standing::Dismissed && !state.is_forgotten;
            if is_reinstated {
                state.standing = Standing::Wanted;
            }
            let before = std::mem::replace(&mut state.plan, plan.clone());
            if Arc::ptr_eq(&before, plan) && !is_reinstated {
                return succession;
            }
            state.compare_tools();
            let is_another = before.fingerprint != plan.fingerprint;
            if is_another {
                // It says nothing of what is started from now on.
                state.last_failure = None;
            }
            let events = [
                is_reinstated.then_some(Event::Reinstate),
                is_another.then_some(Event::Replace),
                // Limits that are counted from what has been apply at once.
                Some(Event::Wake),
            ];
            (succession, events)
        };
        events.into_iter().flatten().for_each(|event| self.event(event));
        succession
    }

    fn dismiss(self: &Arc<Self>) -> Option<Succession> {
        let succession = {
            let mut state = self.lock();
            let succession = state.succession(None);
            if state.standing != Standing::Wanted {
                return succession;
            }
            state.standing = Standing::Dismissed;
            succession
        };
        self.event(Event::Retire);
        self.order(Order::Look);
        succession
    }
}

impl State {
    /// `plan` is one that fits the slot.
    fn succession(&self, plan: Option<&Arc<Plan>>) -> Option<Succession> {
        self.core.live()?;
        if self.standing == Standing::Retired {
            // On its way out for a reason of its own.
            return None;
        }
        // Whatever is published, this generation goes.
        let is_leaving = matches!(self.core.public_state(), PublicState::Draining | PublicState::Stopping);
        Some(match plan {
            None => Succession::Retired,
            Some(_) if is_leaving => Succession::Draining,
            Some(plan) if plan.fingerprint == self.plan.fingerprint => Succession::Kept,
            Some(_) => Succession::Draining,
        })
    }

    /// Finds out anew what of the running server is not as it was reviewed.
    pub(super) fn compare_tools(&mut self) {
        let catalog = self.plan.catalog.clone();
        if let Some(live) = &mut self.live {
            live.drifted = Arc::new(live.tools.changed_from(&catalog));
        }
    }
}
