//! What time alone does to a slot.

use super::event::{Effect, LeaseLoss, Refusal};
use super::leases::Leases;
use super::limits::OverdueRule;
use super::slot::{Slot, Step};
use super::state::{Look, State, StopStep};
use crate::core::generation::Generation;
use crate::core::moment::Moment;

impl Slot {
    /// When to send `Wake`, if nothing else happens before; `None` when time changes nothing.
    ///
    /// **Invariant:** while somebody waits there is one, at the latest at the first waiter's deadline.
    pub fn next_wakeup(&self) -> Option<Moment> {
        let own = match &self.state {
            State::Stopped => self.budget.forget_at(),
            State::Admitting => None,
            State::Doomed { deadline, .. } => *deadline,
            State::Spawning { deadline, .. }
            | State::Handshaking { deadline, .. }
            | State::Stopping { deadline, .. }
            | State::Sweeping { deadline, .. }
            | State::CleanupFailed { look: Look::UnderWay { deadline } | Look::At(deadline), .. } => Some(*deadline),
            State::Ready { leases, idle_at, stable_at, .. } => {
                [*idle_at, *stable_at, leases.first_due()].into_iter().flatten().min()
            }
            State::Draining { leases, deadline, .. } => {
                Some(leases.first_due().map_or(*deadline, |at| at.min(*deadline)))
            }
        };
        [own, self.queue.first_deadline()].into_iter().flatten().min()
    }

    pub(super) fn wake(&mut self, step: &mut Step<'_>) {
        // The slot's own limits first: who waited exactly as long as the start was given learns that the start is to
        // blame, not the queue.
        self.wake_state(step);
        self.serve(step);
    }

    /// Does what is due. A wake that comes very late takes one step, and the next step has its whole time.
    fn wake_state(&mut self, step: &mut Step<'_>) {
        let now = step.now;
        match self.state {
            State::Stopped => self.budget.forget(now),
            State::Spawning { generation, deadline } if deadline <= now => {
                self.start_failed(Refusal::StartTimeout, step);
                self.state = State::Doomed { generation, deadline: None };
            }
            State::Doomed { generation, deadline: Some(deadline) } if deadline <= now => {
                self.state = State::Doomed { generation, deadline: None };
            }
            State::Handshaking { generation, deadline } if deadline <= now => {
                self.start_failed(Refusal::StartTimeout, step);
                self.close(generation, step);
            }
            State::Ready { generation, .. } => self.wake_ready(generation, step),
            State::Draining { generation, deadline, .. } => {
                self.take_back(step);
                if self.recycle_is_due(now) {
                    self.fail_leases(generation, LeaseLoss::Recycled, step);
                    self.close(generation, step);
                } else if deadline <= now {
                    self.fail_leases(generation, LeaseLoss::Drained, step);
                    self.close(generation, step);
                }
            }
            State::Stopping { generation, step: StopStep::CloseStdin, deadline } if deadline <= now => {
                self.terminate(generation, step);
            }
            State::Stopping { generation, step: StopStep::Terminate, deadline } if deadline <= now => {
                self.sweep(generation, 0, step);
            }
            // No answer is as bad as a bad one: the slot must not hang in `stopping` for ever.
            State::Sweeping { deadline, .. } if deadline <= now => self.sweep_was_busy(step),
            State::CleanupFailed { look: Look::UnderWay { deadline }, .. } if deadline <= now => {
                self.sweep_was_busy(step);
            }
            State::CleanupFailed { generation, look: Look::At(at), .. } if at <= now => {
                self.look_again(generation, step);
            }
            // Not due; a doomed spawn is waited for without a limit, and who waits for a place has a deadline each.
            State::Admitting
            | State::Spawning { .. }
            | State::Doomed { .. }
            | State::Handshaking { .. }
            | State::Stopping { .. }
            | State::Sweeping { .. }
            | State::CleanupFailed { .. } => {}
        }
    }

    fn wake_ready(&mut self, generation: Generation, step: &mut Step<'_>) {
        self.forget_failures_if_stable(step.now);
        let idle_too_long = self.idle_since().is_some_and(|since| since.after(step.limits.idle) <= step.now);
        self.take_back(step);
        if self.recycle_is_due(step.now) {
            self.fail_leases(generation, LeaseLoss::Recycled, step);
            self.close(generation, step);
        } else if idle_too_long {
            self.close(generation, step);
        }
    }

    /// Also called when a generation ends before the wake that was due.
    pub(super) fn forget_failures_if_stable(&mut self, now: Moment) {
        if let State::Ready { stable_at, .. } = &mut self.state
            && stable_at.is_some_and(|at| at <= now)
        {
            *stable_at = None;
            self.budget.reset();
        }
    }

    /// Orders back the overdue leases that are due, where the generation is kept.
    fn take_back(&mut self, step: &mut Step<'_>) {
        let (Some(generation), Some(leases)) = (self.live(), self.state.leases_mut()) else { return };
        if let OverdueRule::Keep { .. } = step.limits.overdue {
            // The rule may have changed since a lease was found overdue.
            leases.spare_the_generation();
        }
        leases.take_back(step.now, |id| step.out.push(Effect::TakeBack(generation, id)));
    }

    fn recycle_is_due(&self, now: Moment) -> bool {
        self.state.leases().and_then(Leases::first_recycle).is_some_and(|at| at <= now)
    }

    /// The same slot with each of its moments replaced. `since` becomes zero: it is told, and decides nothing.
    ///
    /// For those who explore the state space: two slots that differ only in when they are become equal when both are
    /// moved to the same now.
    #[must_use]
    pub fn map_moments(&self, mut at: impl FnMut(Moment) -> Moment) -> Self {
        let mut slot = self.clone();
        slot.since = Moment(0);
        slot.budget = slot.budget.map_moments(&mut at);
        slot.queue.map_moments(&mut at);
        if let Some(leases) = slot.state.leases_mut() {
            leases.map_moments(&mut at);
        }
        match &mut slot.state {
            State::Stopped | State::Admitting => {}
            State::Doomed { deadline, .. } => *deadline = deadline.map(&mut at),
            State::Spawning { deadline, .. }
            | State::Handshaking { deadline, .. }
            | State::Draining { deadline, .. }
            | State::Stopping { deadline, .. }
            | State::Sweeping { deadline, .. }
            | State::CleanupFailed { look: Look::UnderWay { deadline } | Look::At(deadline), .. } => {
                *deadline = at(*deadline);
            }
            State::Ready { idle_at, stable_at, .. } => {
                *idle_at = idle_at.map(&mut at);
                *stable_at = stable_at.map(&mut at);
            }
        }
        slot
    }
}
