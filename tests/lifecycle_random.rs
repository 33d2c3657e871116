//! Long random walks: through a world with more callers, more leases and changing limits than the explorer can visit,
//! and through plain nonsense.
//!
//! A failure prints its seed; `LAZY_MCP_SEED=<seed> cargo test --test lifecycle_random` takes the same walks again,
//! and `PROPTEST_CASES=<n>` takes more of them.

use std::cell::Cell;
use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use lazy_mcp_broker::core::generation::{Mint, Stamped};
use lazy_mcp_broker::core::lifecycle::{
    Effect, Event, LeaseId, Limits, OverdueRule, PublicState, Report, Slot, Waiter, WaiterId,
};
use lazy_mcp_broker::core::moment::Moment;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed, TestRunner};

#[path = "lifecycle/rules.rs"]
mod rules;
#[path = "lifecycle/world.rs"]
mod world;

use rules::Told;
use world::{Move, Scale, World};

/// The longest walk.
const MOVES_MAX: usize = 600;

/// Runs `test` on values of `strategy`, with a seed that is new each time or given.
fn walk<S: Strategy>(strategy: &S, test: impl Fn(S::Value) -> Result<(), TestCaseError>) {
    let seed = match std::env::var("LAZY_MCP_SEED") {
        Ok(seed) => seed.parse().expect("LAZY_MCP_SEED is a number"),
        Err(_) => RandomState::new().hash_one("lifecycle"),
    };
    let config = Config { rng_seed: RngSeed::Fixed(seed), failure_persistence: None, ..Config::default() };
    if let Err(failure) = TestRunner::new(config).run(strategy, test) {
        panic!("{failure}\nto see it again: LAZY_MCP_SEED={seed} cargo test --test lifecycle_random");
    }
}

fn some_time() -> impl Strategy<Value = Duration> {
    (1..=12u64).prop_map(|tens| Duration::from_millis(10 * tens))
}

fn limits() -> impl Strategy<Value = Limits> {
    let overdue = prop_oneof![
        some_time().prop_map(|grace| OverdueRule::Keep { grace }),
        some_time().prop_map(|grace| OverdueRule::Recycle { grace })
    ];
    let times = proptest::collection::vec(some_time(), 11);
    (0..6usize, 1..5u32, 0..4u8, overdue, times).prop_map(|(queue_len_max, leases_max, sweeps_max, overdue, t)| {
        Limits {
            queue_len_max,
            leases_max,
            start: t[0],
            idle: t[1],
            drain: t[2],
            polite: t[3],
            terminate: t[4],
            sweep: t[5],
            sweeps_max,
            cleanup_retry_min: t[6],
            cleanup_retry_max: t[7],
            backoff_min: t[8],
            backoff_max: t[9],
            stable_after: t[10],
            overdue,
        }
    })
}

/// Which of the moves that are possible is made, or that the limits change.
#[derive(Clone, Copy, Debug)]
enum Choice {
    /// Of those by which the world gets on: with trouble as likely as progress, hardly a call would ever be served.
    Progress(u16),
    Any(u16),
    Time(u16),
    Reload,
}

fn choice() -> impl Strategy<Value = Choice> {
    prop_oneof![
        16 => any::<u16>().prop_map(Choice::Progress),
        3 => any::<u16>().prop_map(Choice::Any),
        2 => any::<u16>().prop_map(Choice::Time),
        1 => Just(Choice::Reload),
    ]
}

#[test]
fn long_walks_keep_the_rules_and_come_to_rest() {
    let patience = some_time().prop_map(|time| 4 * time);
    let callers = proptest::collection::vec(patience, 1..9);
    let choices = proptest::collection::vec(choice(), 1..MOVES_MAX);
    let seen = Seen::default();
    walk(&(callers, 0..3usize, limits(), limits(), choices), |(patience, guests, limits, other, choices)| {
        let mut scale = Scale { limits, patience, guests, comes_again: true, stops: 20 };
        let mut limits = [other, limits].into_iter().cycle();
        let mut world = World::new(Moment(0), &scale);
        let mut made = vec![];
        for choice in choices {
            if let Choice::Reload = choice {
                scale.limits = limits.next().expect("a cycle has no end");
            }
            match take(&mut world, choice, &scale, &mut made) {
                Ok(effects) => seen.count(&effects),
                Err(broken) => return Err(TestCaseError::fail(told(&broken, &made, &world))),
            }
        }
        come_to_rest(world, &scale).map_err(TestCaseError::fail)
    });
    eprintln!("{seen:?}");
}

/// That the walks went somewhere.
#[derive(Debug, Default)]
struct Seen {
    generations: Cell<u32>,
    calls_served: Cell<u32>,
    calls_refused: Cell<u32>,
    generations_with_lost_calls: Cell<u32>,
}

impl Seen {
    fn count(&self, effects: &[Effect]) {
        for effect in effects {
            let counter = match effect {
                Effect::Spawn(_) => &self.generations,
                Effect::Grant(..) => &self.calls_served,
                Effect::Refuse(..) => &self.calls_refused,
                Effect::FailLeases(..) => &self.generations_with_lost_calls,
                Effect::Admit
                | Effect::Vacate
                | Effect::Handshake(_)
                | Effect::CloseStdin(_)
                | Effect::Terminate(_)
                | Effect::Sweep(_)
                | Effect::TakeBack(..) => continue,
            };
            counter.set(counter.get() + 1);
        }
    }
}

fn take(world: &mut World, choice: Choice, scale: &Scale, made: &mut Vec<Move>) -> Result<Vec<Effect>, String> {
    let mut moves = vec![];
    world.moves(scale, &mut moves);
    let n = match choice {
        Choice::Reload => return world.tell(Event::Wake, scale),
        Choice::Time(n) => {
            moves.retain(|next| matches!(next, Move::Wake | Move::Tick));
            n
        }
        Choice::Progress(n) => {
            moves.retain(|next| is_progress(*next));
            n
        }
        Choice::Any(n) => {
            // A retired slot has not much before it; and at its end a walk is retired in any case.
            moves.retain(|next| *next != Move::Retire || n > RETIRES_FROM);
            n
        }
    };
    let Some(&next) = moves.get(usize::from(n).checked_rem(moves.len()).unwrap_or(0)) else { return Ok(vec![]) };
    made.push(next);
    let effects = world.make(next, scale)?;
    Told::check_stale_reports(world, &scale.limits)?;
    Told::check_time_alone(world, &scale.limits)?;
    Ok(effects)
}

/// One walk in a few is retired on its way.
const RETIRES_FROM: u16 = u16::MAX - 400;

fn is_progress(next: Move) -> bool {
    match next {
        Move::Abandon(_)
        | Move::Overdue(_)
        | Move::Stop
        | Move::Replace
        | Move::Retire
        | Move::Reinstate
        | Move::Evict
        | Move::Hurry
        | Move::Recover
        | Move::SpawnFails
        | Move::HandshakeEnds { ok: false, .. }
        | Move::LinkBreaks
        | Move::RootExits
        | Move::SweepFails
        | Move::Wake
        | Move::Tick => false,
        Move::Acquire(_)
        | Move::Admit
        | Move::Release(_)
        | Move::SpawnSucceeds
        | Move::HandshakeEnds { ok: true, .. }
        | Move::SweepProves
        | Move::Deliver(_)
        | Move::DeliverFromCaller(_) => true,
    }
}

fn told(broken: &str, made: &[Move], world: &World) -> String {
    let last = &made[made.len().saturating_sub(40)..];
    format!("broken: {broken}\nthe last of {} moves: {last:?}\nthe world: {world:#?}", made.len())
}

/// Nobody comes any more, nothing goes wrong any more, every answer arrives: then there is an end.
fn come_to_rest(mut world: World, scale: &Scale) -> Result<(), String> {
    /// Far more than the letters under way and the steps of a stop.
    const MOVES_TO_REST_MAX: usize = 200;
    if !world.retired {
        world.make(Move::Retire, scale)?;
    }
    let mut moves = vec![];
    for _ in 0..MOVES_TO_REST_MAX {
        if world.is_at_rest() {
            return Ok(());
        }
        moves.clear();
        world.moves(scale, &mut moves);
        let answer = moves.iter().copied().find(|next| {
            matches!(
                next,
                Move::Deliver(_)
                    | Move::DeliverFromCaller(_)
                    | Move::Release(_)
                    | Move::Admit
                    | Move::SpawnSucceeds
                    | Move::HandshakeEnds { .. }
                    | Move::SweepProves
            )
        });
        world.make(answer.unwrap_or(Move::Wake), scale)?;
    }
    Err(format!("does not come to rest: {world:#?}"))
}

/// Any event at all, about any of a few callers and generations.
#[derive(Clone, Copy, Debug)]
enum Nonsense {
    Acquire { id: u64, patience: u64 },
    Abandon { id: u64 },
    Admitted,
    Stop,
    Retire,
    Replace,
    Reinstate,
    Evict,
    Hurry,
    Recover,
    Wake,
    Report { back: u64, kind: usize, lease: u64 },
}

fn nonsense() -> impl Strategy<Value = Nonsense> {
    prop_oneof![
        4 => (0..20u64, 0..100u64).prop_map(|(id, patience)| Nonsense::Acquire { id, patience }),
        1 => (0..20u64).prop_map(|id| Nonsense::Abandon { id }),
        2 => Just(Nonsense::Admitted),
        1 => Just(Nonsense::Stop),
        1 => Just(Nonsense::Replace),
        1 => Just(Nonsense::Reinstate),
        1 => Just(Nonsense::Evict),
        1 => Just(Nonsense::Hurry),
        1 => Just(Nonsense::Recover),
        3 => Just(Nonsense::Wake),
        12 => (0..2u64, 0..10usize, 0..20u64).prop_map(|(back, kind, lease)| Nonsense::Report { back, kind, lease }),
    ]
}

#[test]
fn any_event_at_any_time_is_survived() {
    let events = proptest::collection::vec((nonsense(), 0..30u64), 1..MOVES_MAX);
    walk(&(limits(), events, 0..MOVES_MAX), |(limits, events, retired_at)| {
        let (mut slot, mut now, mut out) = (Slot::new(Mint::after(0)), Moment(0), vec![]);
        for (i, (nonsense, wait)) in events.into_iter().enumerate() {
            now = now.after(Duration::from_millis(wait));
            let nonsense = if i == retired_at { Nonsense::Retire } else { nonsense };
            let before = slot.clone();
            let event = event(nonsense, &slot, now);
            out.clear();
            slot.step(now, event, &limits, &mut out);
            check_survival(&before, event, &slot, &out, &limits)?;
        }
        Ok(())
    });
}

fn event(nonsense: Nonsense, slot: &Slot, now: Moment) -> Event {
    match nonsense {
        Nonsense::Acquire { id, patience } => Event::Acquire(Waiter {
            id: WaiterId(id),
            deadline: now.after(Duration::from_millis(patience)),
            starts: id % 3 > 0,
        }),
        Nonsense::Abandon { id } => Event::Abandon(WaiterId(id)),
        Nonsense::Admitted => Event::Admitted,
        Nonsense::Stop => Event::Stop,
        Nonsense::Replace => Event::Replace,
        Nonsense::Reinstate => Event::Reinstate,
        Nonsense::Evict => Event::Evict,
        Nonsense::Hurry => Event::Hurry,
        Nonsense::Retire => Event::Retire,
        Nonsense::Recover => Event::Recover,
        Nonsense::Wake => Event::Wake,
        Nonsense::Report { back, kind, lease } => {
            let generation = Mint::after(slot.high_water().saturating_sub(back + 1)).mint();
            Event::From(Stamped::new(generation, rules::every_report(LeaseId(lease))[kind]))
        }
    }
}

/// What holds even when the driver breaks its word.
fn check_survival(
    before: &Slot,
    event: Event,
    after: &Slot,
    out: &[Effect],
    limits: &Limits,
) -> Result<(), TestCaseError> {
    use PublicState::{CleanupFailed, Stopped};
    let (was, is) = (before.public_state(), after.public_state());
    prop_assert!(after.queued() <= limits.queue_len_max);
    prop_assert!(after.active() <= limits.leases_max as usize);
    prop_assert!(after.high_water() >= before.high_water());
    prop_assert!(after.queued() == 0 || after.next_wakeup().is_some());
    prop_assert_eq!(is == Stopped || after.is_admitting(), after.live().is_none());
    let proved = before.live().is_some_and(|live| event == Event::From(Stamped::new(live, Report::TreeEmpty)));
    prop_assert!(was == Stopped || before.is_admitting() || is != Stopped || proved, "stopped without a proof");
    prop_assert!(was != CleanupFailed || is == CleanupFailed || proved, "cleanup_failed left without a proof");
    let spawns = out.iter().filter(|effect| matches!(effect, Effect::Spawn(_))).count();
    prop_assert!(spawns == 0 || spawns == 1 && before.is_admitting(), "a spawn over a live generation");
    Ok(())
}
