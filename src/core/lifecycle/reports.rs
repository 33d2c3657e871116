//! What a report of the live generation does: one function for each phase of its life, one arm for each report.

use super::event::{Effect, LeaseId, LeaseLoss, Refusal, Report};
use super::leases::{Leases, Overdue};
use super::limits::OverdueRule;
use super::slot::{Slot, Step};
use super::state::{Look, State};
use crate::core::generation::{Current, Generation};
use crate::core::moment::Moment;

impl Slot {
    pub(super) fn report(&mut self, report: Current<Report>, step: &mut Step<'_>) {
        let report = report.into_inner();
        match self.state {
            // Nothing is live, so no report can have been opened.
            State::Stopped | State::Admitting => self.anomaly(),
            State::Spawning { generation, deadline } => self.while_spawning(generation, deadline, report, step),
            State::Doomed { generation, .. } => self.while_doomed(generation, report, step),
            State::Handshaking { generation, .. } => self.while_handshaking(generation, report, step),
            State::Ready { generation, .. } | State::Draining { generation, .. } => {
                self.while_serving(generation, report, step);
            }
            State::Stopping { generation, .. } => self.while_stopping(generation, report, step),
            State::Sweeping { .. } => self.while_sweeping(report, step),
            State::CleanupFailed { generation, look, .. } => self.while_cleanup_failed(generation, look, report, step),
        }
    }

    fn while_spawning(&mut self, generation: Generation, deadline: Moment, report: Report, step: &mut Step<'_>) {
        match report {
            Report::Spawned => {
                self.state = State::Handshaking { generation, deadline };
                step.out.push(Effect::Handshake(generation));
            }
            Report::SpawnFailed => {
                self.start_failed(Refusal::StartFailed, step);
                // There is no root, but a keeper or a half-made child may be left: `stopped` needs its proof here too.
                self.sweep(generation, 0, step);
            }
            // There is nothing yet that could have said this.
            Report::Initialized
            | Report::HandshakeFailed
            | Report::RootExited
            | Report::LinkLost
            | Report::TreeEmpty
            | Report::TreeBusy
            | Report::Released(_)
            | Report::Overdue(_) => self.anomaly(),
        }
    }

    fn while_doomed(&mut self, generation: Generation, report: Report, step: &mut Step<'_>) {
        match report {
            Report::Spawned => self.close(generation, step),
            // No failure of the backend's any more: the start had been given up, and that was counted where it was one.
            Report::SpawnFailed => self.sweep(generation, 0, step),
            // There is nothing yet that could have said this.
            Report::Initialized
            | Report::HandshakeFailed
            | Report::RootExited
            | Report::LinkLost
            | Report::TreeEmpty
            | Report::TreeBusy
            | Report::Released(_)
            | Report::Overdue(_) => self.anomaly(),
        }
    }

    fn while_handshaking(&mut self, generation: Generation, report: Report, step: &mut Step<'_>) {
        match report {
            Report::Initialized => {
                // With nothing to forget there is no moment to come back for.
                let stable_at = (!self.budget.is_full()).then(|| step.now.after(step.limits.stable_after));
                self.state = State::Ready { generation, leases: Leases::none(step.now), idle_at: None, stable_at };
                self.serve(step);
            }
            Report::HandshakeFailed | Report::LinkLost => {
                self.start_failed(Refusal::StartFailed, step);
                self.close(generation, step);
            }
            Report::RootExited => {
                self.start_failed(Refusal::StartFailed, step);
                self.sweep(generation, 0, step);
            }
            // The spawn was answered, no lease was granted and no sweep ordered.
            Report::Spawned
            | Report::SpawnFailed
            | Report::TreeEmpty
            | Report::TreeBusy
            | Report::Released(_)
            | Report::Overdue(_) => self.anomaly(),
        }
    }

    /// Ready or draining.
    fn while_serving(&mut self, generation: Generation, report: Report, step: &mut Step<'_>) {
        match report {
            Report::Released(id) => self.released(generation, id, step),
            Report::Overdue(id) => self.overdue(id, step),
            // Calls that are out were written and cannot be repeated; those that wait were not, and stay for the next
            // generation.
            Report::RootExited => {
                self.ended_unasked(generation, LeaseLoss::Exited, step);
                self.sweep(generation, 0, step);
            }
            Report::LinkLost => {
                self.ended_unasked(generation, LeaseLoss::LinkLost, step);
                self.close(generation, step);
            }
            // Spawn and handshake were answered, and no sweep was ordered.
            Report::Spawned
            | Report::SpawnFailed
            | Report::Initialized
            | Report::HandshakeFailed
            | Report::TreeEmpty
            | Report::TreeBusy => self.anomaly(),
        }
    }

    fn while_stopping(&mut self, generation: Generation, report: Report, step: &mut Step<'_>) {
        match report {
            // Patience was for the root, which knows what to tidy up. What it leaves behind has lost the one who would
            // tell it to end; waiting only lets it grow.
            Report::RootExited => self.sweep(generation, 0, step),
            // The answer of a handshake that was given up; or what closing stdin was to bring about.
            Report::Initialized | Report::HandshakeFailed | Report::LinkLost => {}
            // Of a lease that was failed when the stop began.
            Report::Released(_) | Report::Overdue(_) => {}
            // The spawn was answered, and no sweep was ordered.
            Report::Spawned | Report::SpawnFailed | Report::TreeEmpty | Report::TreeBusy => self.anomaly(),
        }
    }

    fn while_sweeping(&mut self, report: Report, step: &mut Step<'_>) {
        match report {
            Report::TreeEmpty => self.proved_empty(step),
            Report::TreeBusy => self.sweep_was_busy(step),
            // The sweep's own doing, and it will say whether that was all.
            Report::RootExited | Report::LinkLost => {}
            // Late answers, and leases that were failed.
            Report::Initialized | Report::HandshakeFailed | Report::Released(_) | Report::Overdue(_) => {}
            // The spawn was answered.
            Report::Spawned | Report::SpawnFailed => self.anomaly(),
        }
    }

    fn while_cleanup_failed(&mut self, generation: Generation, look: Look, report: Report, step: &mut Step<'_>) {
        match (report, look) {
            (Report::TreeEmpty, _) => self.proved_empty(step),
            (Report::TreeBusy, _) => self.sweep_was_busy(step),
            // What held the tree may have gone: no need to wait for the retry.
            (Report::RootExited, Look::At(_)) => self.look_again(generation, step),
            // The sweep under way will say whether that was all.
            (Report::RootExited, Look::UnderWay { .. }) => {}
            // Late answers, and leases that were failed.
            (
                Report::Initialized
                | Report::HandshakeFailed
                | Report::LinkLost
                | Report::Released(_)
                | Report::Overdue(_),
                _,
            ) => {}
            // The spawn was answered.
            (Report::Spawned | Report::SpawnFailed, _) => self.anomaly(),
        }
    }

    /// The one way from a tree to `Stopped`. Who waits for the next generation waits for a place again, behind those who
    /// have waited for one longer.
    fn proved_empty(&mut self, step: &mut Step<'_>) {
        self.state = State::Stopped;
        step.out.push(Effect::Vacate);
        self.budget.forget(step.now);
        self.serve(step);
    }

    /// Everybody who waits shares the outcome: a second start for each of them would only fail as long again.
    pub(super) fn start_failed(&mut self, refusal: Refusal, step: &mut Step<'_>) {
        self.budget.record_failed_start(step.now, step.limits.backoff());
        self.refuse_all(refusal, step);
    }

    fn ended_unasked(&mut self, generation: Generation, loss: LeaseLoss, step: &mut Step<'_>) {
        self.forget_failures_if_stable(step.now);
        self.budget.record_exit(step.now, step.limits.backoff());
        self.fail_leases(generation, loss, step);
    }

    fn released(&mut self, generation: Generation, id: LeaseId, step: &mut Step<'_>) {
        let Some(leases) = self.state.leases_mut() else { return };
        if !leases.release(id, step.now) {
            // Leases are lost only together with the state that holds them, so this one was never granted, or was
            // released before.
            return self.anomaly();
        }
        match &self.state {
            State::Draining { leases, .. } if leases.active() == 0 => self.close(generation, step),
            State::Draining { .. } => {}
            _ => self.serve(step),
        }
    }

    fn overdue(&mut self, id: LeaseId, step: &Step<'_>) {
        let Some(leases) = self.state.leases_mut() else { return };
        match step.limits.overdue {
            // When the lease is not out any more, its release has overtaken this.
            OverdueRule::Recycle { grace } => leases.mark_overdue(id, Overdue::RecycleAt(step.now.after(grace))),
            OverdueRule::Keep { grace } => leases.mark_overdue(id, Overdue::TakeBackAt(step.now.after(grace))),
        }
    }
}
