//! The shared side of a slot: leases, waiters, cancellation, and what status shows.

mod ending;
mod lease;
mod succession;
mod view;

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::{Notify, mpsc, oneshot};

use super::driver::Order;
use super::floor::Floor;
use super::instance::InstanceKey;
use super::plan::Plan;
use super::start::{Limits, StartCause, StartFailure};
use crate::catalog::LiveTools;
use crate::core::admission::{Phase, SlotNumber};
use crate::core::generation::{Generation, Mint, Stamped};
use crate::core::lifecycle::{self, Effect, Event, LeaseId, PublicState, Refusal, Report, WaiterId};
use crate::core::limits::TreeLimit;
use crate::core::moment::Moment;
use crate::events::{EventLog, Instance, What};
use crate::link::{Caller, Link, Outcome};
use crate::ownership::{KeptFiles, Owner, ProcessId, Survivor};
use ending::Attempts;

pub use ending::{Ended, Unproved};
use succession::Standing;
pub use succession::Succession;

pub use lease::{Acquired, Granted, Lease, Refused, Waiter};
use lease::{Answer, Answers};
pub use view::SlotView;

/// The place for at most one process tree of a backend in a scope.
///
/// **Invariant:** the core is stepped only under the lock, and what it decides is handed on in that order.
#[derive(Debug)]
pub struct Slot {
    pub key: InstanceKey,
    /// Short, stable name of the slot within its backend, as operators type it.
    pub id: String,
    /// Its name among those that share places.
    pub(super) number: SlotNumber,
    shared: Shared,
    state: Mutex<State>,
    orders: mpsc::UnboundedSender<Order>,
    /// Told when the public state has changed or a look at a tree is over.
    turned: Notify,
}

/// What all slots have in common.
#[derive(Clone, Debug)]
pub(super) struct Shared {
    pub floor: Arc<Floor>,
    pub events: Arc<EventLog>,
    /// Where the moments of all cores count from.
    pub epoch: Instant,
}

#[derive(Debug)]
struct State {
    core: lifecycle::Slot,
    plan: Arc<Plan>,
    /// Set when the registry has forgotten the slot: a caller that still holds it looks again.
    is_forgotten: bool,
    standing: Standing,
    /// Set when an operator has given its place to another slot although it is not proved empty.
    is_set_aside: bool,
    last_waiter: u64,
    waiting: HashMap<WaiterId, Waiting>,
    live: Option<Live>,
    /// When the driver will wake by itself. A later need does not wake it, an earlier one does.
    armed: Option<Moment>,
    effects: Vec<Effect>,
    last_failure: Option<Arc<StartFailure>>,
    last_over_limit: Option<OverLimit>,
    last_cleanup: Option<Cleanup>,
    survivors: Vec<Survivor>,
    attempts: Option<Attempts>,
    /// Why the last sweep proved nothing, where survivors do not say it.
    cleanup_reason: Option<String>,
}

#[derive(Debug)]
struct Waiting {
    caller: Caller,
    answer: oneshot::Sender<Answer>,
}

/// The generation that runs, as far as it has come.
#[derive(Clone, Debug)]
pub(super) struct Live {
    pub generation: Generation,
    pub link: Link,
    pub keeper: ProcessId,
    pub owner: Owner,
    pub limits: Limits,
    /// What was taken out of its results.
    pub kept: Arc<KeptFiles>,
    /// What the server listed.
    pub tools: Arc<LiveTools>,
    /// Tools whose live definition is not the one of the plan's catalog.
    pub drifted: Arc<BTreeSet<String>>,
}

/// The last time that a generation of the slot went over a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OverLimit {
    pub at: SystemTime,
    pub generation: Generation,
    pub limit: TreeLimit,
}

/// How the last sweep of the slot ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cleanup {
    /// Whether the tree was seen empty.
    pub ok: bool,
    /// From the order to the answer.
    pub took: Duration,
    pub survivors: usize,
}

/// What a slot is called, by clients, by operators and by the broker.
#[derive(Debug)]
pub(super) struct Name {
    pub key: InstanceKey,
    pub id: String,
    pub number: SlotNumber,
}

/// The terms on which somebody wants a lease.
struct Terms {
    /// Of the wait in the queue.
    deadline: Instant,
    /// Whether a generation is started for it.
    starts: bool,
}

impl std::fmt::Display for Slot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.key.backend, self.id)
    }
}

impl Slot {
    pub(super) fn new(
        name: Name,
        shared: Shared,
        plan: Arc<Plan>,
        high_water: u64,
        orders: mpsc::UnboundedSender<Order>,
    ) -> Self {
        let state = State {
            core: lifecycle::Slot::new(Mint::after(high_water)),
            plan,
            is_forgotten: false,
            standing: Standing::Wanted,
            is_set_aside: false,
            last_waiter: 0,
            waiting: HashMap::new(),
            live: None,
            armed: None,
            effects: Vec::new(),
            last_failure: None,
            last_over_limit: None,
            last_cleanup: None,
            survivors: Vec::new(),
            attempts: None,
            cleanup_reason: None,
        };
        let Name { key, id, number } = name;
        Self { key, id, number, shared, state: Mutex::new(state), orders, turned: Notify::new() }
    }

    /// A lease of what runs or starts anyway; never the reason for a start. `None` where nothing does.
    pub fn acquire_live(self: &Arc<Self>, caller: Caller, deadline: Instant) -> Option<Acquired> {
        let state = self.lock();
        let is_live = matches!(state.core.public_state(), PublicState::Ready | PublicState::Starting);
        is_live.then(|| self.acquire_under(state, caller, Terms { deadline, starts: false }))
    }

    /// A lease at once, a place in the queue, or a refusal. `deadline` bounds the wait in the queue.
    pub fn acquire(self: &Arc<Self>, caller: Caller, deadline: Instant) -> Acquired {
        self.acquire_under(self.lock(), caller, Terms { deadline, starts: true })
    }

    fn acquire_under(self: &Arc<Self>, mut state: MutexGuard<'_, State>, caller: Caller, terms: Terms) -> Acquired {
        if state.is_forgotten || state.is_set_aside {
            return Acquired::Forgotten;
        }
        state.last_waiter += 1;
        let id = WaiterId(state.last_waiter);
        let waiter = lifecycle::Waiter { id, deadline: self.moment(terms.deadline), starts: terms.starts };
        let mut own = None;
        let others = self.step(&mut state, Event::Acquire(waiter), Some((id, &mut own)));
        let acquired = match own {
            Some(Ok(granted)) => Acquired::Now(granted),
            Some(Err(refused)) => Acquired::Refused(refused),
            None => {
                let (answer, answered) = oneshot::channel();
                state.waiting.insert(id, Waiting { caller, answer });
                Acquired::Later(Waiter { slot: self.clone(), id, answer: answered, is_answered: false })
            }
        };
        drop(state);
        others.deliver();
        acquired
    }

    /// Cancels what `client` has queued or running here under its request id `id`, or everything of it: queued calls
    /// leave the queue and are never written; running ones are cancelled at the server by its own id.
    /// The number of calls found.
    pub fn cancel(self: &Arc<Self>, client: u128, id: Option<&str>, reason: &str) -> usize {
        let queued = self.take_waiting(|caller| match id {
            Some(id) => caller.is(client, id),
            None => caller.client == client,
        });
        let live = self.lock().live.clone();
        let mut found = queued;
        if let Some(live) = live {
            for upstream_id in live.link.calls_of(client, id) {
                found += usize::from(self.give_up(&live.link, live.generation, upstream_id, reason));
            }
        }
        found
    }

    /// Cancels one running call and lets the core decide what becomes of a generation that goes on with it.
    pub fn give_up(self: &Arc<Self>, link: &Link, generation: Generation, upstream_id: u64, reason: &str) -> bool {
        self.end_call(link, generation, upstream_id, reason, Outcome::Cancelled)
    }

    /// The deadline of a running call has passed.
    pub fn time_out(self: &Arc<Self>, link: &Link, generation: Generation, upstream_id: u64) {
        self.end_call(link, generation, upstream_id, "the deadline of the call has passed", Outcome::TimedOut);
    }

    fn end_call(
        self: &Arc<Self>,
        link: &Link,
        generation: Generation,
        upstream_id: u64,
        reason: &str,
        outcome: Outcome,
    ) -> bool {
        let was_out = link.cancel(upstream_id, reason, outcome);
        if was_out {
            // The broker's id of a call is the id of its lease.
            self.report(generation, Report::Overdue(LeaseId(upstream_id)));
        }
        was_out
    }

    /// A call has found that its generation cannot be talked to any more, before whoever watches it has said so.
    pub fn link_is_lost(self: &Arc<Self>, generation: Generation) {
        self.report(generation, Report::LinkLost);
    }

    /// The conversation with the server that runs and has been greeted, for what needs no lease: it neither keeps the
    /// instance awake nor starts one.
    pub fn greeted_link(&self) -> Option<Link> {
        let state = self.lock();
        let is_greeted = matches!(state.core.public_state(), PublicState::Ready | PublicState::Draining);
        state.live.as_ref().filter(|_| is_greeted).map(|live| live.link.clone())
    }

    /// The conversation with the server of the slot, greeted or not.
    pub fn link(&self) -> Option<Link> {
        self.lock().live.as_ref().map(|live| live.link.clone())
    }

    /// Has the driver look at the deadlines of calls, because one is due earlier than it planned to.
    pub fn look(&self) {
        self.order(Order::Look);
    }

    /// Stops the instance now if nobody uses it, because another slot needs its place.
    pub(super) fn evict(self: &Arc<Self>) {
        let is_idle = self.lock().core.idle_since().is_some();
        self.event(Event::Evict);
        if is_idle && self.view().state == PublicState::Stopping {
            tracing::info!(slot = %self, "idle, and stopped to make room for another");
            self.tell(What::MadeRoom { instance: self.named(self.view().last_generation) });
        }
    }

    /// Ends the wait of a drain: calls under way are failed.
    pub(super) fn hurry(self: &Arc<Self>) {
        self.event(Event::Hurry);
    }

    /// There is a place, if the slot still wants it. To be called without the lock of any slot.
    pub(super) fn admitted(self: &Arc<Self>) {
        let mut state = self.lock();
        // It may have vacated since, and have asked anew.
        if !(state.core.is_admitting() && self.shared.floor.holds(self.number)) {
            return;
        }
        let answers = self.step(&mut state, Event::Admitted, None);
        drop(state);
        answers.deliver();
    }

    /// Lets another have its place among all that runs, although its tree is not proved empty. To be called without the
    /// lock of any slot.
    pub(super) fn cede_place(&self) {
        for slot in self.shared.floor.vacate(self.number) {
            slot.admitted();
        }
    }

    /// Since when nobody uses the instance.
    pub(super) fn idle_since(&self) -> Option<Moment> {
        self.lock().core.idle_since()
    }

    /// Whether the slot holds nothing that anybody could miss; if so it is marked, and `acquire` sends callers away.
    pub(super) fn forget_if_vacant(&self) -> bool {
        let mut state = self.lock();
        if state.core.is_vacant() {
            state.is_forgotten = true;
            self.order(Order::End);
        }
        state.is_forgotten
    }

    pub(super) fn plan(&self) -> Arc<Plan> {
        self.lock().plan.clone()
    }

    pub(super) fn now(&self) -> Moment {
        self.moment(Instant::now())
    }

    /// The instant of a moment of the core, for timers.
    pub(super) fn instant(&self, moment: Moment) -> Instant {
        self.shared.epoch + Duration::from_millis(moment.0)
    }

    pub(super) fn event(self: &Arc<Self>, event: Event) {
        let mut state = self.lock();
        let answers = self.step(&mut state, event, None);
        drop(state);
        answers.deliver();
    }

    pub(super) fn report(self: &Arc<Self>, generation: Generation, report: Report) {
        self.event(Event::From(Stamped::new(generation, report)));
    }

    /// What the slot shows as running, from the moment it has pipes until its tree is proved empty.
    /// Nothing is said of a generation that is not the live one any more.
    pub(super) fn set_live(&self, live: Live) {
        let mut state = self.lock();
        if state.core.live() == Some(live.generation) {
            state.live = Some(live);
            state.compare_tools();
        }
    }

    /// What is kept for the running generation, until it is proved gone. To ask keeps nothing awake.
    pub fn kept_files(&self) -> Option<(Generation, Arc<KeptFiles>)> {
        self.lock().live.as_ref().map(|live| (live.generation, live.kept.clone()))
    }

    /// The server was greeted: why an earlier one was not is of no interest any more.
    pub(super) fn forget_failure(&self) {
        self.lock().last_failure = None;
    }

    /// Why the generation could not be started. The first reason counts: what is seen after it (an exit because stdin
    /// was closed, say) is its consequence.
    pub(super) fn set_failure(&self, failure: StartFailure) {
        self.note_failure(&mut self.lock(), failure);
    }

    fn start_ran_out(&self, state: &mut State) {
        let Some(generation) = state.core.live() else { return };
        let cause = StartCause::TimedOut(state.plan.limits.start);
        let stderr = state.live.as_ref().map(|live| live.link.stderr_tail()).unwrap_or_default();
        self.note_failure(state, StartFailure::new(generation, cause, stderr));
    }

    fn note_failure(&self, state: &mut State, failure: StartFailure) {
        if state.last_failure.as_ref().is_none_or(|known| known.generation < failure.generation) {
            let (instance, kind) = (self.named(failure.generation), failure.kind());
            self.tell(What::StartFailed { instance, kind });
            state.last_failure = Some(Arc::new(failure));
        }
    }

    /// A generation went over a limit.
    pub(super) fn set_over_limit(&self, generation: Generation, limit: TreeLimit) {
        self.tell(What::OverLimit { instance: self.named(generation.number()), limit: limit.to_string() });
        self.lock().last_over_limit = Some(OverLimit { at: SystemTime::now(), generation, limit });
    }

    /// How a sweep ended. After a proof nothing of the generation is live any more.
    pub(super) fn set_cleanup(
        &self,
        generation: Generation,
        cleanup: Cleanup,
        survivors: Vec<Survivor>,
        reason: Option<String>,
    ) {
        let mut state = self.lock();
        state.last_cleanup = Some(cleanup);
        state.survivors = survivors;
        state.cleanup_reason = reason;
        if cleanup.ok && state.live.as_ref().is_some_and(|live| live.generation == generation) {
            state.live = None;
        }
    }

    /// The driver says until when it will sleep. Returns what the core needs by now, so that nothing is lost between.
    pub(super) fn arm(&self) -> Option<Moment> {
        let mut state = self.lock();
        state.armed = state.core.next_wakeup();
        state.armed
    }

    fn abandon(self: &Arc<Self>, id: WaiterId) {
        self.lock().waiting.remove(&id);
        self.event(Event::Abandon(id));
    }

    fn take_waiting(self: &Arc<Self>, is_meant: impl Fn(&Caller) -> bool) -> usize {
        let mut state = self.lock();
        let ids: Vec<WaiterId> =
            state.waiting.iter().filter(|(_, waiting)| is_meant(&waiting.caller)).map(|(id, _)| *id).collect();
        let mut answers = Answers::default();
        for id in &ids {
            if let Some(waiting) = state.waiting.remove(id) {
                answers.to_waiters.push((waiting.answer, Err(Refused::Cancelled)));
            }
            answers.absorb(self.step(&mut state, Event::Abandon(*id), None));
        }
        drop(state);
        answers.deliver();
        ids.len()
    }

    /// One step of the core. What concerns the one who asks goes into `own`; what others wait for is returned, to be
    /// delivered after the lock is released, since a lease that nobody takes releases itself; the rest is ordered of
    /// the driver while the lock is held, which keeps the order.
    fn step(
        self: &Arc<Self>,
        state: &mut State,
        event: Event,
        mut own: Option<(WaiterId, &mut Option<Answer>)>,
    ) -> Answers {
        let (before, phase) = (state.core.public_state(), state.phase());
        let place = Phase::of(&state.core);
        let mut answers = Answers::default();
        let mut next = Some(event);
        while let Some(event) = next.take() {
            let had_no_place = state.core.is_admitting();
            let mut effects = std::mem::take(&mut state.effects);
            let now = self.now();
            state.core.step(now, event, &state.plan.limits, &mut effects);
            // Also when nobody waits any more: whoever comes next is told why.
            let has_stopped_starting =
                (before, state.core.public_state()) == (PublicState::Starting, PublicState::Stopping);
            if event == Event::Wake && has_stopped_starting {
                self.start_ran_out(state);
            }
            for effect in effects.drain(..) {
                let (id, answer) = match effect {
                    Effect::Grant(id, generation) => (id, self.granted(state, id, generation, &mut answers)),
                    Effect::Refuse(id, Refusal::QueueTimeout) if had_no_place => {
                        (id, Err(Refused::NoPlace(self.shared.floor.occupancy())))
                    }
                    Effect::Refuse(id, refusal) => (id, Err(state.refused(refusal))),
                    Effect::Admit => {
                        if self.shared.floor.ask(self) {
                            next = Some(Event::Admitted);
                        }
                        continue;
                    }
                    Effect::Vacate => {
                        answers.admitted.extend(self.shared.floor.vacate(self.number));
                        continue;
                    }
                    other => {
                        state.attempts = Attempts::counting(state.attempts, other, now);
                        self.order(Order::Do(other));
                        continue;
                    }
                };
                match &mut own {
                    Some((own_id, place)) if *own_id == id => **place = Some(answer),
                    _ => {
                        if let Some(waiting) = state.waiting.remove(&id) {
                            answers.to_waiters.push((waiting.answer, answer));
                        } else {
                            // The waiter left in this moment; a lease in the answer must not be dropped under the lock.
                            answers.unwanted.extend(answer.ok().map(|granted| granted.lease));
                        }
                    }
                }
            }
            state.effects = effects;
        }
        if state.phase() != phase {
            self.turned.notify_waiters();
        }
        self.tell_others(state, (before, place), &mut answers);
        let wanted = state.core.next_wakeup();
        if wanted.is_some_and(|wanted| state.armed.is_none_or(|armed| wanted < armed)) {
            state.armed = wanted;
            self.order(Order::Look);
        }
        answers
    }

    fn granted(self: &Arc<Self>, state: &State, id: WaiterId, generation: Generation, answers: &mut Answers) -> Answer {
        let lease = Lease { slot: self.clone(), id: LeaseId(id.0), generation };
        match &state.live {
            Some(live) if live.generation == generation => {
                Ok(Granted { lease, link: live.link.clone(), drifted: live.drifted.clone() })
            }
            // Cannot be: the core grants only what it was told is initialized, and that is told after `set_live`.
            _ => {
                tracing::error!(slot = %self, %generation, "granted a generation that is not live");
                answers.unwanted.push(lease);
                Err(Refused::By(Refusal::StartFailed, state.last_failure.clone()))
            }
        }
    }

    /// What became of this slot is news, and may make room for another; where somebody waits for room, an idle slot makes
    /// it.
    fn tell_others(&self, state: &State, (before, place): (PublicState, Phase), answers: &mut Answers) {
        let (public, now) = (state.core.public_state(), Phase::of(&state.core));
        if public != before {
            let number = state.core.live().map_or(state.core.high_water(), Generation::number);
            let (from, to) = (before.as_str(), public.as_str());
            self.tell(What::StateChanged { instance: self.named(number), from, to });
        }
        let has_turned = (public, now) != (before, place);
        if has_turned {
            answers.admitted.extend(self.shared.floor.note(self.number, now));
        }
        if self.shared.floor.is_short() && (has_turned || state.core.idle_since().is_some()) {
            self.order(Order::MakeRoom);
        }
    }

    /// For whoever follows what happens.
    pub(super) fn tell(&self, what: What) {
        self.shared.events.record(what);
    }

    /// As events name it.
    pub(super) fn named(&self, generation: u64) -> Instance {
        Instance { backend: self.key.backend.clone(), id: self.id.clone(), generation }
    }

    fn order(&self, order: Order) {
        // An error means that the driver has ended, which it does only once the slot is forgotten and vacant.
        let _ = self.orders.send(order);
    }

    fn moment(&self, instant: Instant) -> Moment {
        Moment(u64::try_from(instant.saturating_duration_since(self.shared.epoch).as_millis()).unwrap_or(u64::MAX))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // The core does not panic; if something did, its state would still be one that it had reached.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// A refusal with what is known of its cause.
    fn refused(&self, refusal: Refusal) -> Refused {
        let is_starting = self.core.public_state() == PublicState::Starting;
        if refusal == Refusal::QueueTimeout && is_starting {
            // The start goes on; only this call would not wait for it.
            return Refused::StillStarting;
        }
        let is_about_a_failure = matches!(
            refusal,
            Refusal::StartFailed | Refusal::StartTimeout | Refusal::CoolingDown { .. } | Refusal::CleanupFailed
        );
        Refused::By(refusal, self.last_failure.clone().filter(|_| is_about_a_failure))
    }
}
