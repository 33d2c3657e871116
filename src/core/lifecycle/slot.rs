//! The slot: its state, what others may know of it, and the step function.

use super::event::{Effect, Event, LeaseLoss, Refusal, Waiter};
use super::leases::Leases;
use super::limits::Limits;
use super::queue::Queue;
use super::state::{Look, PublicState, State, StopStep};
use crate::core::generation::{Generation, Mint};
use crate::core::moment::Moment;
use crate::core::restart::RestartBudget;

/// The place for at most one process of a backend in a scope.
///
/// Two slots that are equal behave alike for ever after.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Slot {
    pub(super) state: State,
    pub(super) queue: Queue,
    pub(super) budget: RestartBudget,
    pub(super) want: Want,
    pub(super) mint: Mint,
    /// Of the public state.
    pub(super) since: Moment,
    anomalies: u32,
}

/// What the slot is for; kept apart from what it is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Want {
    OnDemand,
    Retired,
}

/// One step under way.
pub(super) struct Step<'a> {
    pub(super) now: Moment,
    pub(super) limits: &'a Limits,
    pub(super) out: &'a mut Vec<Effect>,
}

impl Slot {
    /// Stopped since the epoch, with generations from `mint`.
    pub fn new(mint: Mint) -> Self {
        Self {
            state: State::Stopped,
            queue: Queue::default(),
            budget: RestartBudget::default(),
            want: Want::OnDemand,
            mint,
            since: Moment(0),
            anomalies: 0,
        }
    }

    /// Takes one event and appends what is to be done, in this order, to `out`; the driver clears and reuses it.
    ///
    /// Total: an event that does not fit is ignored. Allocates only when the queue or the leases outgrow what they
    /// held before.
    pub fn step(&mut self, now: Moment, event: Event, limits: &Limits, out: &mut Vec<Effect>) {
        let before = self.public_state();
        let mut step = Step { now, limits, out };
        match event {
            Event::Acquire(waiter) => self.acquire(waiter, &mut step),
            Event::Abandon(id) => {
                self.queue.remove(id);
                self.withdraw_if_unwanted(&mut step);
            }
            Event::Admitted => self.admitted(&mut step),
            Event::Stop => self.stop(&mut step),
            Event::Replace => {
                self.budget.reset();
                self.stop(&mut step);
            }
            Event::Retire => {
                self.want = Want::Retired;
                self.refuse_all(Refusal::Retired, &mut step);
                self.stop(&mut step);
            }
            // Nobody waits in a retired slot, so there is nothing to serve.
            Event::Reinstate => self.want = Want::OnDemand,
            Event::Evict => self.evict(&mut step),
            Event::Hurry => self.hurry(&mut step),
            Event::Recover => self.recover(&mut step),
            Event::Wake => self.wake(&mut step),
            Event::From(stamped) => {
                // Said of a generation that is gone: it cannot be opened, and changes nothing.
                if let Some(report) = stamped.open(self.live()) {
                    self.report(report, &mut step);
                }
            }
        }
        if self.public_state() != before {
            self.since = now;
        }
    }

    /// The generation that may have processes; `None` exactly when the slot is stopped or waits for its place.
    pub fn live(&self) -> Option<Generation> {
        self.state.live()
    }

    pub fn public_state(&self) -> PublicState {
        self.state.public()
    }

    /// Whether somebody waits who is worth a start, and the slot has no place among the live ones yet.
    pub fn is_admitting(&self) -> bool {
        self.state == State::Admitting
    }

    /// Whether a spawn that nobody wants any more is not answered although the time of the start is up. Nobody knows
    /// when it will be, and what it has begun stays in its place until then.
    pub fn is_overdue(&self) -> bool {
        matches!(self.state, State::Doomed { deadline: None, .. })
    }

    /// Since when the public state is what it is.
    pub fn since(&self) -> Moment {
        self.since
    }

    /// Leases that are out.
    pub fn active(&self) -> usize {
        self.state.leases().map_or(0, Leases::active)
    }

    /// Waiters.
    pub fn queued(&self) -> usize {
        self.queue.len()
    }

    /// Whether the live generation serves nobody new, because a call is overdue and it may be recycled for that.
    pub fn is_condemned(&self) -> bool {
        self.state.leases().is_some_and(|leases| leases.first_recycle().is_some())
    }

    /// Since when a ready generation has served nobody; `None` when it serves or there is none.
    pub fn idle_since(&self) -> Option<Moment> {
        match &self.state {
            State::Ready { leases, .. } => leases.idle_since(),
            _ => None,
        }
    }

    /// When a tree that could not be proved empty is looked at next; `None` while it is being looked at, and in every
    /// state but `cleanup_failed`.
    pub fn next_look(&self) -> Option<Moment> {
        match self.state {
            State::CleanupFailed { look: Look::At(at), .. } => Some(at),
            _ => None,
        }
    }

    /// Nothing runs, nobody waits and no failure is remembered: the driver may forget this slot, but not its
    /// `high_water`.
    pub fn is_vacant(&self) -> bool {
        let nothing_remembered = self.want == Want::Retired || self.budget.is_full();
        matches!(self.state, State::Stopped) && self.queue.is_empty() && nothing_remembered
    }

    /// The highest generation number that was ever minted here.
    pub fn high_water(&self) -> u64 {
        self.mint.high_water()
    }

    /// Reports of the live generation that cannot be true where they came; each is a bug of the driver.
    pub fn anomalies(&self) -> u32 {
        self.anomalies
    }

    fn acquire(&mut self, waiter: Waiter, step: &mut Step<'_>) {
        let refusal = match (self.want, &mut self.state) {
            (Want::Retired, _) => Refusal::Retired,
            (Want::OnDemand, State::CleanupFailed { .. }) => Refusal::CleanupFailed,
            // The warm path: no queue, so that a caller who does not wait at all can be served too.
            (Want::OnDemand, State::Ready { generation, leases, idle_at, .. })
                if self.queue.is_empty() && leases.has_place(step.limits.leases_max()) =>
            {
                leases.grant(waiter.id.into());
                *idle_at = None;
                step.out.push(Effect::Grant(waiter.id, *generation));
                return;
            }
            (Want::OnDemand, _) if self.queue.len() >= step.limits.queue_len_max => Refusal::QueueFull,
            (Want::OnDemand, _) => {
                self.queue.push(waiter);
                return self.serve(step);
            }
        };
        step.out.push(Effect::Refuse(waiter.id, refusal));
    }

    /// Starts, grants or refuses, if the state allows it. Whatever could help a waiter ends here.
    pub(super) fn serve(&mut self, step: &mut Step<'_>) {
        self.queue.expire(step.now, |id| step.out.push(Effect::Refuse(id, Refusal::QueueTimeout)));
        match &mut self.state {
            State::Stopped if !self.queue.wants_start() => self.refuse_all(Refusal::NothingRuns, step),
            State::Stopped => match self.budget.cooling(step.now) {
                Some(retry_after) => {
                    self.queue.dismiss_guests(|id| step.out.push(Effect::Refuse(id, Refusal::NothingRuns)));
                    self.refuse_all(Refusal::CoolingDown { retry_after }, step);
                }
                None => {
                    self.state = State::Admitting;
                    step.out.push(Effect::Admit);
                }
            },
            State::Admitting => self.withdraw_if_unwanted(step),
            State::Ready { generation, leases, idle_at, .. } => {
                while leases.has_place(step.limits.leases_max()) {
                    let Some(waiter) = self.queue.pop() else { break };
                    leases.grant(waiter.id.into());
                    step.out.push(Effect::Grant(waiter.id, *generation));
                }
                *idle_at = leases.idle_since().map(|since| since.after(step.limits.idle));
            }
            // These come to `Ready` or `Stopped` by themselves, and then here …
            State::Spawning { .. }
            | State::Doomed { .. }
            | State::Handshaking { .. }
            | State::Draining { .. }
            | State::Stopping { .. }
            | State::Sweeping { .. } => {}
            // … and here nobody waits.
            State::CleanupFailed { .. } => {}
        }
    }

    /// The start's time counts from here: what the machine has no place for says nothing of the backend.
    fn admitted(&mut self, step: &mut Step<'_>) {
        if self.state == State::Admitting {
            let generation = self.mint.mint();
            self.state = State::Spawning { generation, deadline: step.now.after(step.limits.start) };
            step.out.push(Effect::Spawn(generation));
        } else {
            // Nobody has asked.
            self.anomaly();
        }
    }

    /// Nothing is started for nobody.
    fn withdraw_if_unwanted(&mut self, step: &mut Step<'_>) {
        if self.state == State::Admitting && !self.queue.wants_start() {
            self.state = State::Stopped;
            self.budget.forget(step.now);
            step.out.push(Effect::Vacate);
            self.refuse_all(Refusal::NothingRuns, step);
        }
    }

    pub(super) fn refuse_all(&mut self, refusal: Refusal, step: &mut Step<'_>) {
        step.out.extend(self.queue.drain().map(|id| Effect::Refuse(id, refusal)));
    }

    /// A planned stop: waiters stay, for the generation after this one.
    fn stop(&mut self, step: &mut Step<'_>) {
        match &mut self.state {
            State::Spawning { generation, deadline } => {
                self.state = State::Doomed { generation: *generation, deadline: Some(*deadline) };
            }
            State::Handshaking { generation, .. } => {
                let generation = *generation;
                self.close(generation, step);
            }
            State::Ready { generation, leases, .. } => {
                let generation = *generation;
                if leases.active() == 0 {
                    self.close(generation, step);
                } else {
                    let leases = leases.take();
                    self.state = State::Draining { generation, leases, deadline: step.now.after(step.limits.drain) };
                }
            }
            State::Admitting => self.withdraw_if_unwanted(step),
            // Nothing runs.
            State::Stopped => {}
            // It is on its way, and asking twice gives it no more time.
            State::Doomed { .. }
            | State::Draining { .. }
            | State::Stopping { .. }
            | State::Sweeping { .. }
            | State::CleanupFailed { .. } => {}
        }
    }

    /// Never a busy one: who is served or waits here is worth as much as whoever wants the place.
    fn evict(&mut self, step: &mut Step<'_>) {
        if let State::Ready { generation, .. } = self.state
            && self.active() == 0
            && self.queue.is_empty()
        {
            self.close(generation, step);
        }
    }

    fn hurry(&mut self, step: &mut Step<'_>) {
        if let State::Draining { generation, .. } = self.state {
            self.fail_leases(generation, LeaseLoss::Drained, step);
            self.close(generation, step);
        }
    }

    fn recover(&mut self, step: &mut Step<'_>) {
        match self.state {
            State::CleanupFailed { generation, look: Look::At(_), .. } => self.look_again(generation, step),
            // A sweep is under way and says more than another one beside it would.
            State::CleanupFailed { look: Look::UnderWay { .. }, .. } => {}
            // Nothing to recover from.
            State::Stopped
            | State::Admitting
            | State::Spawning { .. }
            | State::Doomed { .. }
            | State::Handshaking { .. }
            | State::Ready { .. }
            | State::Draining { .. }
            | State::Stopping { .. }
            | State::Sweeping { .. } => {}
        }
    }

    /// The first step of a stop: politely, by the end of input.
    pub(super) fn close(&mut self, generation: Generation, step: &mut Step<'_>) {
        let deadline = step.now.after(step.limits.polite);
        self.state = State::Stopping { generation, step: StopStep::CloseStdin, deadline };
        step.out.push(Effect::CloseStdin(generation));
    }

    pub(super) fn terminate(&mut self, generation: Generation, step: &mut Step<'_>) {
        let deadline = step.now.after(step.limits.terminate);
        self.state = State::Stopping { generation, step: StopStep::Terminate, deadline };
        step.out.push(Effect::Terminate(generation));
    }

    /// `busy`: sweeps of this generation that have failed.
    pub(super) fn sweep(&mut self, generation: Generation, busy: u8, step: &mut Step<'_>) {
        self.state = State::Sweeping { generation, busy, deadline: step.now.after(step.limits.sweep) };
        step.out.push(Effect::Sweep(generation));
    }

    /// A sweep found something, proved nothing or did not answer. When none is under way any more, another one is
    /// ordered now or later; an answer that comes after that is as good as any, as an empty tree cannot fill again.
    pub(super) fn sweep_was_busy(&mut self, step: &mut Step<'_>) {
        match self.state {
            State::Sweeping { generation, busy, .. } => {
                let busy = busy.saturating_add(1);
                if busy < step.limits.sweeps_max {
                    self.sweep(generation, busy, step);
                } else {
                    let delay = step.limits.cleanup_retry().next(None);
                    self.state = State::CleanupFailed { generation, delay, look: Look::At(step.now.after(delay)) };
                    self.refuse_all(Refusal::CleanupFailed, step);
                }
            }
            State::CleanupFailed { generation, delay, look: Look::UnderWay { .. } } => {
                let delay = step.limits.cleanup_retry().next(Some(delay));
                self.state = State::CleanupFailed { generation, delay, look: Look::At(step.now.after(delay)) };
            }
            // The answer of a sweep that was given up; the next one is planned.
            State::CleanupFailed { look: Look::At(_), .. } => {}
            // No sweep is ordered in these.
            State::Stopped
            | State::Admitting
            | State::Spawning { .. }
            | State::Doomed { .. }
            | State::Handshaking { .. }
            | State::Ready { .. }
            | State::Draining { .. }
            | State::Stopping { .. } => self.anomaly(),
        }
    }

    /// In `CleanupFailed`: the next sweep now.
    pub(super) fn look_again(&mut self, generation: Generation, step: &mut Step<'_>) {
        if let State::CleanupFailed { look, .. } = &mut self.state {
            *look = Look::UnderWay { deadline: step.now.after(step.limits.sweep) };
            step.out.push(Effect::Sweep(generation));
        }
    }

    /// Leases that are out are lost. The caller leaves the state, and them with it.
    pub(super) fn fail_leases(&mut self, generation: Generation, loss: LeaseLoss, step: &mut Step<'_>) {
        if self.active() > 0 {
            step.out.push(Effect::FailLeases(generation, loss));
        }
    }

    pub(super) fn anomaly(&mut self) {
        self.anomalies = self.anomalies.saturating_add(1);
    }
}
