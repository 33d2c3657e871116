//! The rules that hold in every world, each with a sentence that a failure prints.
//!
//! Each was seen to fail once, in the explorer unless the walks are named, with the core broken like this:
//!
//! | rule | what was broken |
//! | --- | --- |
//! | a stale report changes nothing | `Stamped::open` opens for any live generation |
//! | a place is asked for once | `Admit` is ordered twice |
//! | nothing starts without a place | `Spawn` is ordered together with `Admit` |
//! | nothing is started for guests alone | who waits is enough for a start, whoever it is |
//! | a place is given back once, and after the proof alone | it is given back when the sweep is ordered |
//! | a place is held exactly while a generation may live | who does not wait any longer withdraws nothing |
//! | nobody busy is evicted | `Evict` does not look at leases |
//! | one live generation at most | with callers waiting, a sweep is left out and the next generation spawned |
//! | generation numbers grow | the mint gives the first number again |
//! | a retired slot never starts | only a ready slot refuses because it is retired |
//! | cleanup_failed gives and starts nothing | a call in `CleanupFailed` starts a generation |
//! | a handshake is with a root that was spawned | the handshake is ordered together with the spawn |
//! | grants are for a ready generation | `Spawned` leads to `Ready` |
//! | each waiter is answered once | `refuse_all` refuses the last one twice |
//! | nobody is granted after the deadline | only a wake sends away who waited too long (seen by the walks, whose driver may come late) |
//! | a refusal has its reason | a crash refuses those who wait |
//! | only overdue leases are taken back | each lease is, the moment that one is due (seen by the walks, which have more than one) |
//! | leases are lost for a reason | `FailLeases` when no lease is out |
//! | a stop takes each step once, in order | stdin is closed again instead of SIGTERM |
//! | sweeps are of the live generation | one more sweep after the proof |
//! | who waits is in the queue | `Abandon` leaves the waiter there |
//! | the queue has a bound | one more than the limit may wait |
//! | stopped is having no generation | a failed cleanup has no live generation |
//! | stopped is said after a proof alone | the root's exit is taken for the tree's |
//! | nobody waits at a stopped slot | a pause refuses nobody |
//! | nobody waits for a failed cleanup | a failed cleanup refuses nobody |
//! | only a proof ends cleanup_failed | `Recover` leads back to `Sweeping` |
//! | cleanup_failed is said after as many sweeps as allowed | one sweep less |
//! | no lease outlives its generation | a crash fails no leases |
//! | leases have a bound | one more than the limit is granted |
//! | nobody waits beside a free lease | a release serves nobody |
//! | nobody is granted beside an overdue lease | `has_place` looks at the number alone |
//! | a ready slot is idle exactly while no lease is out | a grant leaves the idle clock on |
//! | nobody waits past the deadline for want of a wakeup | `next_wakeup` forgets the queue |
//! | a wake leaves nothing due | failures are never forgotten |
//! | nothing impossible is reported | a link that ends while stopping counts as an anomaly |
//! | time alone ends every wait | a drain has no wakeup |
//! | every world can come to rest | a proof does not end `CleanupFailed` |

use lazy_mcp_broker::core::generation::{Generation, Mint, Stamped};
use lazy_mcp_broker::core::lifecycle::{
    Effect, Event, LeaseId, LeaseLoss, Limits, OverdueRule, PublicState, Refusal, Report, Slot, WaiterId,
};
use lazy_mcp_broker::core::moment::Moment;

use super::world::{Caller, Place, Scale, World};

/// One event, and what was before it.
pub struct Told {
    event: Event,
    state: PublicState,
    live: Option<Generation>,
    queued: usize,
    active: usize,
    was_condemned: bool,
    was_admitting: bool,
    limits: Limits,
    /// The whole slot, where nothing of it may change.
    untouched: Option<Slot>,
}

fn rule(holds: bool, broken: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(broken()) }
}

impl Told {
    pub fn new(world: &World, event: Event, scale: &Scale) -> Self {
        let live = world.slot.live();
        let stale = matches!(event, Event::From(stamped) if Some(stamped.generation()) != live);
        Self {
            event,
            state: world.slot.public_state(),
            live,
            queued: world.slot.queued(),
            active: world.slot.active(),
            was_condemned: world.slot.is_condemned(),
            was_admitting: world.slot.is_admitting(),
            limits: scale.limits,
            untouched: stale.then(|| world.slot.clone()),
        }
    }

    fn reported(&self, report: Report) -> bool {
        self.live.is_some_and(|live| self.event == Event::From(Stamped::new(live, report)))
    }

    fn start_failed(&self) -> bool {
        self.state == PublicState::Starting
            && [Report::SpawnFailed, Report::HandshakeFailed, Report::RootExited, Report::LinkLost]
                .into_iter()
                .any(|report| self.reported(report))
    }

    pub fn check_stale(&self, world: &World, effects: &[Effect]) -> Result<(), String> {
        let untouched = self.untouched.as_ref();
        rule(untouched.is_none_or(|before| *before == world.slot && effects.is_empty()), || {
            "a stale report changes nothing".into()
        })
    }

    /// Before the effect is performed.
    pub fn check_effect(&self, world: &World, effect: Effect) -> Result<(), String> {
        match effect {
            Effect::Admit => {
                self.check_blocked(effect)?;
                rule(world.somebody_starts(), || "nothing is started for guests alone".into())?;
                rule(world.place == Place::None, || "a place is asked for once".into())
            }
            Effect::Vacate => {
                let nothing_runs = world.tree.is_none() && world.spawn.is_none();
                rule(world.place != Place::None && nothing_runs, || {
                    "a place is given back once, and after the proof alone".into()
                })
            }
            Effect::Spawn(generation) => {
                self.check_blocked(effect)?;
                rule(world.place == Place::Held, || "nothing starts without a place".into())?;
                rule(world.tree.is_none() && world.spawn.is_none(), || "one live generation at most".into())?;
                rule(generation.number() > world.last_spawned, || "generation numbers grow".into())?;
                rule(!world.retired, || "a retired slot never starts".into())
            }
            Effect::Handshake(generation) => {
                let root = world.tree.as_ref().is_some_and(|tree| tree.generation == generation);
                rule(root, || "a handshake is with a root that was spawned".into())
            }
            Effect::Grant(id, generation) => {
                let up = world.tree.as_ref().is_some_and(|tree| tree.generation == generation && tree.initialized);
                self.check_blocked(effect)?;
                rule(world.slot.public_state() == PublicState::Ready && up, || {
                    "grants are for a ready generation".into()
                })?;
                let waits = Self::waiter(world, id.0);
                rule(waits.is_some(), || "each waiter is answered once".into())?;
                let at_once = matches!(self.event, Event::Acquire(waiter) if waiter.id == id);
                rule(at_once || waits.is_some_and(|deadline| deadline > world.now), || {
                    "nobody is granted after the deadline".into()
                })
            }
            Effect::Refuse(id, refusal) => {
                let deadline = Self::waiter(world, id.0);
                let deadline = deadline.ok_or_else(|| String::from("each waiter is answered once"))?;
                rule(self.is_reason(world, id, refusal, deadline), || format!("a refusal has its reason: {refusal:?}"))
            }
            Effect::TakeBack(generation, lease) => {
                let holds = |caller: &Caller| match *caller {
                    Caller::Holding { id, generation: of, overdue } => {
                        LeaseId::from(id) == lease && of == generation && overdue
                    }
                    _ => false,
                };
                let is_released = world.caller_mail.contains(&Stamped::new(generation, Report::Released(lease)));
                rule(self.event == Event::Wake && (world.callers.iter().any(holds) || is_released), || {
                    "only overdue leases are taken back".into()
                })
            }
            Effect::FailLeases(generation, loss) => {
                let out =
                    world.holders(generation) > 0 || world.caller_mail.iter().any(|m| m.generation() == generation);
                rule(out && self.is_loss(loss), || format!("leases are lost for a reason: {loss:?}"))
            }
            Effect::CloseStdin(generation) => Self::check_asked(world, generation, 0),
            Effect::Terminate(generation) => Self::check_asked(world, generation, 1),
            Effect::Sweep(generation) => {
                rule(world.slot.live() == Some(generation), || "sweeps are of the live generation".into())
            }
        }
    }

    pub fn check_world(&self, world: &World) -> Result<(), String> {
        let (slot, limits) = (&world.slot, &self.limits);
        let state = slot.public_state();
        let waiting = world.callers.iter().filter(|caller| matches!(caller, Caller::Waiting { .. })).count();
        rule(slot.queued() == waiting, || "who waits is in the queue, once, and nobody else".into())?;
        rule(slot.queued() <= limits.queue_len_max.max(self.queued), || "the queue has a bound".into())?;
        rule((state == PublicState::Stopped || slot.is_admitting()) == slot.live().is_none(), || {
            "stopped is having no generation".into()
        })?;
        let due = match (state, slot.is_admitting()) {
            (PublicState::Stopped, _) => Place::None,
            (_, true) => Place::Asked,
            _ => Place::Held,
        };
        rule(!slot.is_admitting() || world.somebody_starts(), || "nothing is started for guests alone".into())?;
        rule(world.place == due, || "a place is held exactly while a generation may live".into())?;
        let is_busy = self.active > 0 || self.queued > 0;
        rule(self.event != Event::Evict || !is_busy || state == self.state, || "nobody busy is evicted".into())?;
        let proved = self.state == PublicState::Stopped || self.was_admitting || self.reported(Report::TreeEmpty);
        let empty = world.tree.is_none() && world.spawn.is_none();
        rule(state != PublicState::Stopped || proved && empty, || {
            "stopped is said after a proof alone, and of an empty tree".into()
        })?;
        rule(state != PublicState::Stopped || waiting == 0, || "nobody waits at a stopped slot".into())?;
        rule(state != PublicState::CleanupFailed || waiting == 0, || "nobody waits for a failed cleanup".into())?;
        self.check_cleanup(world, state)?;
        self.check_leases(world, state)?;
        let first = world.callers.iter().filter_map(Caller::deadline).min();
        rule(first.is_none_or(|deadline| slot.next_wakeup().is_some_and(|at| at <= deadline)), || {
            "nobody waits past the deadline for want of a wakeup".into()
        })?;
        rule(self.event != Event::Wake || slot.next_wakeup().is_none_or(|at| at > world.now), || {
            "a wake leaves nothing due".into()
        })?;
        rule(slot.anomalies() == 0, || "nothing impossible is reported".into())
    }

    /// Nothing that can be said of a generation that is gone changes anything.
    pub fn check_stale_reports(world: &World, limits: &Limits) -> Result<(), String> {
        let lease = LeaseId(world.next_id.saturating_sub(1));
        let newest = world.slot.high_water();
        for number in newest.saturating_sub(1).max(1)..=newest {
            let generation = Mint::after(number - 1).mint();
            if world.slot.live() == Some(generation) {
                continue;
            }
            for report in every_report(lease) {
                let (mut slot, mut effects) = (world.slot.clone(), vec![]);
                slot.step(world.now, Event::From(Stamped::new(generation, report)), limits, &mut effects);
                rule(slot == world.slot && effects.is_empty(), || {
                    format!("a stale report changes nothing: {report:?}")
                })?;
            }
        }
        Ok(())
    }

    /// While time passes and nobody answers, the slot comes to where only an answer or a caller is missing.
    pub fn check_time_alone(world: &World, limits: &Limits) -> Result<(), String> {
        /// More than the longest chain: start, drain, polite, terminate and each sweep.
        const WAKES_MAX: usize = 24;
        let mut slot = world.slot.clone();
        let mut effects = vec![];
        for _ in 0..WAKES_MAX + slot.queued() {
            let Some(at) = slot.next_wakeup() else { break };
            slot.step(at.max(world.now), Event::Wake, limits, &mut effects);
        }
        let may_rest = match slot.public_state() {
            PublicState::Stopped | PublicState::CleanupFailed => true,
            PublicState::Ready => slot.active() > 0,
            // A spawn has no answer yet, and so nothing that could be swept.
            PublicState::Stopping => world.spawn.is_some() || world.owes_spawn_report(),
            PublicState::Starting | PublicState::Draining => false,
        };
        rule(may_rest && slot.queued() == 0, || format!("time alone ends every wait, not so: {slot:?}"))
    }

    fn waiter(world: &World, id: u64) -> Option<Moment> {
        world.callers.iter().find_map(|caller| match caller {
            Caller::Waiting { id: waits, deadline, .. } if waits.0 == id => Some(*deadline),
            _ => None,
        })
    }

    fn is_reason(&self, world: &World, id: WaiterId, refusal: Refusal, deadline: Moment) -> bool {
        match refusal {
            Refusal::QueueFull => matches!(self.event, Event::Acquire(_)) && self.queued >= self.limits.queue_len_max,
            Refusal::QueueTimeout => deadline <= world.now,
            Refusal::StartFailed => self.start_failed(),
            Refusal::StartTimeout => self.event == Event::Wake && self.state == PublicState::Starting,
            Refusal::CoolingDown { retry_after } => {
                world.slot.public_state() == PublicState::Stopped && !retry_after.is_zero()
            }
            Refusal::CleanupFailed => world.slot.public_state() == PublicState::CleanupFailed,
            Refusal::Retired => world.retired,
            Refusal::NothingRuns => {
                let is_guest = |caller: &Caller| matches!(caller, Caller::Waiting { id: waits, starts: false, .. } if *waits == id);
                world.slot.public_state() == PublicState::Stopped && world.callers.iter().any(is_guest)
            }
        }
    }

    fn is_loss(&self, loss: LeaseLoss) -> bool {
        match loss {
            LeaseLoss::Exited => self.reported(Report::RootExited),
            LeaseLoss::LinkLost => self.reported(Report::LinkLost),
            LeaseLoss::Drained => {
                matches!(self.event, Event::Wake | Event::Hurry) && self.state == PublicState::Draining
            }
            LeaseLoss::Recycled => {
                self.event == Event::Wake && matches!(self.limits.overdue, OverdueRule::Recycle { .. })
            }
        }
    }

    fn check_asked(world: &World, generation: Generation, before: u8) -> Result<(), String> {
        // A sweep that the slot has ordered and not heard of may have emptied the tree; none was ordered here.
        let asked = world.tree.as_ref().filter(|tree| tree.generation == generation).map(|tree| tree.asked);
        rule(asked == Some(before), || format!("a stop takes each step once, in order: {before} after {asked:?}"))
    }

    fn check_blocked(&self, effect: Effect) -> Result<(), String> {
        let blocked = self.state == PublicState::CleanupFailed && !self.reported(Report::TreeEmpty);
        rule(!blocked, || format!("cleanup_failed gives and starts nothing: {effect:?}"))
    }

    fn check_cleanup(&self, world: &World, state: PublicState) -> Result<(), String> {
        use PublicState::CleanupFailed;
        let (was, is) = (self.state == CleanupFailed, state == CleanupFailed);
        rule(!was || is || self.reported(Report::TreeEmpty), || "only a proof ends cleanup_failed".into())?;
        let tried = world.sweeps_ordered >= self.limits.sweeps_max;
        let disappointed = self.event == Event::Wake || self.reported(Report::TreeBusy);
        rule(was || !is || tried && disappointed, || "cleanup_failed is said after as many sweeps as allowed".into())
    }

    fn check_leases(&self, world: &World, state: PublicState) -> Result<(), String> {
        let slot = &world.slot;
        let serves = matches!(state, PublicState::Ready | PublicState::Draining);
        let may_hold = slot.live().filter(|_| serves);
        let outlived = world
            .callers
            .iter()
            .any(|caller| matches!(caller, Caller::Holding { generation, .. } if Some(*generation) != may_hold));
        rule(!outlived, || "no lease outlives its generation".into())?;
        let leases_max = self.limits.leases_max as usize;
        let holders = may_hold.map_or(0, |generation| world.holders(generation));
        rule(slot.active() <= leases_max.max(self.active) && holders <= slot.active(), || {
            "leases have a bound".into()
        })?;
        let free = state == PublicState::Ready && slot.active() < leases_max && !slot.is_condemned();
        rule(!free || slot.queued() == 0, || "nobody waits beside a free lease".into())?;
        let still_condemned = self.was_condemned && slot.is_condemned();
        rule(!still_condemned || slot.active() <= self.active, || "nobody is granted beside an overdue lease".into())?;
        let idle = state == PublicState::Ready && slot.active() == 0;
        rule(idle == slot.idle_since().is_some(), || "a ready slot is idle exactly while no lease is out".into())
    }
}

pub fn every_report(lease: LeaseId) -> [Report; 10] {
    use Report::*;
    [
        Spawned,
        SpawnFailed,
        Initialized,
        HandshakeFailed,
        RootExited,
        LinkLost,
        TreeEmpty,
        TreeBusy,
        Released(lease),
        Overdue(lease),
    ]
}

impl Caller {
    fn deadline(&self) -> Option<Moment> {
        match self {
            Caller::Waiting { deadline, .. } => Some(*deadline),
            _ => None,
        }
    }
}

impl World {
    fn holders(&self, of: Generation) -> usize {
        let holds = |caller: &&Caller| matches!(caller, Caller::Holding { generation, .. } if *generation == of);
        self.callers.iter().filter(holds).count()
    }

    fn owes_spawn_report(&self) -> bool {
        self.slot.live().is_some_and(|live| {
            [Report::Spawned, Report::SpawnFailed].into_iter().any(|r| self.mail.contains(&Stamped::new(live, r)))
        })
    }
}
