//! The shared side of a slot: leases, waiters, cancellation, and what status shows.

use std::collections::{BTreeSet, HashMap};
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot};

use super::driver::Order;
use super::instance::InstanceKey;
use super::plan::Plan;
use super::start::{StartCause, StartFailure};
use crate::core::generation::{Generation, Mint, Stamped};
use crate::core::lifecycle::{self, Effect, Event, LeaseId, PublicState, Refusal, Report, WaiterId};
use crate::core::moment::Moment;
use crate::link::{Caller, Link, Outcome};
use crate::ownership::{Owner, ProcessId, Survivor};

/// The place for at most one process tree of a backend in a scope.
///
/// **Invariant:** the core is stepped only under the lock, and what it decides is handed on in that order.
#[derive(Debug)]
pub struct Slot {
    pub key: InstanceKey,
    /// Short, stable name of the slot within its backend, as operators type it.
    pub id: String,
    state: Mutex<State>,
    orders: mpsc::UnboundedSender<Order>,
    epoch: Instant,
}

#[derive(Debug)]
struct State {
    core: lifecycle::Slot,
    plan: Arc<Plan>,
    /// Set when the registry has forgotten the slot: a caller that still holds it looks again.
    is_forgotten: bool,
    is_retired: bool,
    last_waiter: u64,
    waiting: HashMap<WaiterId, Waiting>,
    live: Option<Live>,
    /// When the driver will wake by itself. A later need does not wake it, an earlier one does.
    armed: Option<Moment>,
    effects: Vec<Effect>,
    last_failure: Option<Arc<StartFailure>>,
    last_cleanup: Option<Cleanup>,
    survivors: Vec<Survivor>,
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
    /// Tools whose live definition is not the catalog's.
    pub drifted: Arc<BTreeSet<String>>,
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
type Answer = Result<Granted, Refused>;

/// Why there is no lease.
#[derive(Clone, Debug)]
pub enum Refused {
    By(Refusal, Option<Arc<StartFailure>>),
    /// The call would not wait longer; the start that it waited for goes on.
    StillStarting,
    Cancelled,
}

/// The right to use the instance for one call. Dropping it releases it.
#[derive(Debug)]
pub struct Lease {
    slot: Arc<Slot>,
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
    slot: Arc<Slot>,
    id: WaiterId,
    answer: oneshot::Receiver<Answer>,
    is_answered: bool,
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

/// What is known of a slot at one moment.
#[derive(Clone, Debug)]
pub struct SlotView {
    pub state: PublicState,
    pub generation: Option<Generation>,
    pub last_generation: u64,
    /// How long the public state has lasted.
    pub since: Duration,
    pub active: usize,
    pub queued: usize,
    /// How long no call has been out, while ready.
    pub idle: Option<Duration>,
    pub keeper: Option<ProcessId>,
    /// By what means the running generation is held.
    pub owner: Option<Owner>,
    pub last_cleanup: Option<Cleanup>,
    pub survivors: Vec<Survivor>,
    /// Why the last sweep proved nothing, where survivors do not say it.
    pub cleanup_reason: Option<String>,
    pub last_failure: Option<Arc<StartFailure>>,
    /// Tools of the running server whose definition is not the catalog's.
    pub drifted: Arc<BTreeSet<String>>,
    pub dropped: Vec<(&'static str, u64)>,
    /// Calls that were given up and that the server still works on.
    pub given_up: usize,
}

impl std::fmt::Display for Slot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.key.backend, self.id)
    }
}

impl Slot {
    pub(super) fn new(
        key: InstanceKey,
        id: String,
        plan: Arc<Plan>,
        high_water: u64,
        orders: mpsc::UnboundedSender<Order>,
        epoch: Instant,
    ) -> Self {
        let state = State {
            core: lifecycle::Slot::new(Mint::after(high_water)),
            plan,
            is_forgotten: false,
            is_retired: false,
            last_waiter: 0,
            waiting: HashMap::new(),
            live: None,
            armed: None,
            effects: Vec::new(),
            last_failure: None,
            last_cleanup: None,
            survivors: Vec::new(),
            cleanup_reason: None,
        };
        Self { id, key, state: Mutex::new(state), orders, epoch }
    }

    /// A lease at once, a place in the queue, or a refusal. `deadline` bounds the wait in the queue.
    pub fn acquire(self: &Arc<Self>, caller: Caller, deadline: Instant) -> Acquired {
        let mut state = self.lock();
        if state.is_forgotten {
            return Acquired::Forgotten;
        }
        state.last_waiter += 1;
        let id = WaiterId(state.last_waiter);
        let waiter = lifecycle::Waiter { id, deadline: self.moment(deadline) };
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

    /// Has the driver look at the deadlines of calls, because one is due earlier than it planned to.
    pub fn look(&self) {
        self.order(Order::Look);
    }

    /// Stops the instance once its calls are done, for good.
    pub fn retire(self: &Arc<Self>) {
        self.lock().is_retired = true;
        self.event(Event::Retire);
        // One that is stopped already has nothing to perform, but is to be forgotten.
        self.order(Order::Look);
    }

    pub(super) fn is_retired(&self) -> bool {
        self.lock().is_retired
    }

    pub fn view(&self) -> SlotView {
        let state = self.lock();
        let now = self.now();
        SlotView {
            state: state.core.public_state(),
            generation: state.core.live(),
            last_generation: state.core.high_water(),
            since: now.saturating_since(state.core.since()),
            active: state.core.active(),
            queued: state.core.queued(),
            idle: state.core.idle_since().map(|since| now.saturating_since(since)),
            keeper: state.live.as_ref().map(|live| live.keeper),
            owner: state.live.as_ref().map(|live| live.owner),
            last_cleanup: state.last_cleanup,
            survivors: state.survivors.clone(),
            cleanup_reason: state.cleanup_reason.clone(),
            last_failure: state.last_failure.clone(),
            drifted: state.live.as_ref().map(|live| live.drifted.clone()).unwrap_or_default(),
            given_up: state.live.as_ref().map_or(0, |live| live.link.given_up()),
            dropped: state.live.as_ref().map(|live| live.link.counts().to_vec()).unwrap_or_default(),
        }
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
        self.epoch + Duration::from_millis(moment.0)
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
        }
    }

    /// The server was greeted: why an earlier one was not is of no interest any more.
    pub(super) fn forget_failure(&self) {
        self.lock().last_failure = None;
    }

    /// Why the generation could not be started. The first reason counts: what is seen after it (an exit because stdin
    /// was closed, say) is its consequence.
    pub(super) fn set_failure(&self, failure: StartFailure) {
        let mut state = self.lock();
        if state.last_failure.as_ref().is_none_or(|known| known.generation < failure.generation) {
            state.last_failure = Some(Arc::new(failure));
        }
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
        let mut effects = std::mem::take(&mut state.effects);
        state.core.step(self.now(), event, &state.plan.limits, &mut effects);
        let mut answers = Answers::default();
        for effect in effects.drain(..) {
            let (id, answer) = match effect {
                Effect::Grant(id, generation) => {
                    let lease = Lease { slot: self.clone(), id: LeaseId(id.0), generation };
                    (
                        id,
                        self.granted(state, lease).map_err(|lease| {
                            answers.unwanted.push(lease);
                            Refused::By(Refusal::StartFailed, state.last_failure.clone())
                        }),
                    )
                }
                Effect::Refuse(id, refusal) => (id, Err(state.refused(refusal))),
                other => {
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
        let wanted = state.core.next_wakeup();
        if wanted.is_some_and(|wanted| state.armed.is_none_or(|armed| wanted < armed)) {
            state.armed = wanted;
            self.order(Order::Look);
        }
        answers
    }

    fn granted(&self, state: &State, lease: Lease) -> Result<Granted, Lease> {
        match &state.live {
            Some(live) if live.generation == lease.generation => {
                Ok(Granted { lease, link: live.link.clone(), drifted: live.drifted.clone() })
            }
            // Cannot be: the core grants only what it was told is initialized, and that is told after `set_live`.
            _ => {
                tracing::error!(slot = %self, generation = %lease.generation, "granted a generation that is not live");
                Err(lease)
            }
        }
    }

    fn order(&self, order: Order) {
        // An error means that the driver has ended, which it does only once the slot is forgotten and vacant.
        let _ = self.orders.send(order);
    }

    fn moment(&self, instant: Instant) -> Moment {
        Moment(u64::try_from(instant.saturating_duration_since(self.epoch).as_millis()).unwrap_or(u64::MAX))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // The core does not panic; if something did, its state would still be one that it had reached.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// A refusal with what is known of its cause.
    fn refused(&mut self, refusal: Refusal) -> Refused {
        let is_starting = self.core.public_state() == PublicState::Starting;
        match (refusal, &self.live) {
            // The start goes on; only this call would not wait for it.
            (Refusal::QueueTimeout, _) if is_starting => return Refused::StillStarting,
            (Refusal::StartTimeout, live) => {
                let cause = StartCause::TimedOut(self.plan.limits.start);
                let stderr = live.as_ref().map(|live| live.link.stderr_tail()).unwrap_or_default();
                let failure = self.core.live().map(|generation| StartFailure::new(generation, cause, stderr));
                self.last_failure = failure.map(Arc::new);
            }
            _ => {}
        }
        let is_about_a_failure = matches!(
            refusal,
            Refusal::StartFailed | Refusal::StartTimeout | Refusal::CoolingDown { .. } | Refusal::CleanupFailed
        );
        Refused::By(refusal, self.last_failure.clone().filter(|_| is_about_a_failure))
    }
}

/// What a step decided for others than the one who caused it.
#[derive(Default)]
struct Answers {
    to_waiters: Vec<(oneshot::Sender<Answer>, Answer)>,
    /// Leases that nobody takes: they release themselves, which must not happen under the lock.
    unwanted: Vec<Lease>,
}

impl Answers {
    fn absorb(&mut self, other: Self) {
        self.to_waiters.extend(other.to_waiters);
        self.unwanted.extend(other.unwanted);
    }

    /// To be called without the lock.
    fn deliver(self) {
        for (to, answer) in self.to_waiters {
            // An error hands the answer back, and a lease in it releases itself.
            let _ = to.send(answer);
        }
        drop(self.unwanted);
    }
}
