//! Visits every interleaving of a small world around one slot, and checks the rules of `lifecycle/rules.rs` in each.
//!
//! Two callers by default, some 200,000 worlds a test in seconds; `LAZY_MCP_EXPLORE_CALLERS=3` visits three times as
//! many. `--nocapture` shows how many worlds and moves there were.
//!
//! What keeps the number small: worlds that differ only in when they are count as one. Reports of generations that are
//! gone are not kept under way; all that could be said of one is tried in each world instead. And what is left to
//! `lifecycle_random.rs`: callers come in the order of their numbers, and the driver wakes the slot in time.
//!
//! That a world too small for some effect is noticed was seen with calls that never count as overdue.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hash, Hasher};
use std::time::{Duration, Instant};

use lazy_mcp_broker::core::lifecycle::{Effect, LeaseLoss, Limits, OverdueRule, Refusal};
use lazy_mcp_broker::core::moment::Moment;

#[path = "lifecycle/rules.rs"]
mod rules;
#[path = "lifecycle/world.rs"]
mod world;

use rules::Told;
use world::{Caller, Move, Scale, World};

/// Every world is looked at from this moment, so that when it is makes no difference.
const NOW: Moment = Moment(1_000_000);

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn scale(queue_len_max: usize, leases_max: u32, overdue: OverdueRule) -> Scale {
    let callers = std::env::var("LAZY_MCP_EXPLORE_CALLERS").map_or(2, |n| n.parse().expect("a number of callers"));
    let limits = Limits {
        queue_len_max,
        leases_max,
        start: ms(30),
        idle: ms(10),
        drain: ms(20),
        polite: ms(10),
        terminate: ms(10),
        sweep: ms(10),
        sweeps_max: 2,
        cleanup_retry_min: ms(10),
        cleanup_retry_max: ms(10),
        backoff_min: ms(10),
        backoff_max: ms(20),
        stable_after: ms(20),
        overdue,
    };
    // One who leaves before the start is over, one who stays longer.
    let patience = [20, 50, 20, 50].into_iter().map(ms).cycle().take(callers).collect();
    Scale { limits, patience, guests: 0, comes_again: false, stops: 2 }
}

#[test]
fn every_interleaving_with_overdue_calls_recycled() {
    explore(&scale(2, 1, OverdueRule::Recycle { grace: ms(10) }));
}

#[test]
fn every_interleaving_with_overdue_calls_kept() {
    explore(&scale(2, 1, OverdueRule::Keep { grace: ms(10) }));
}

#[test]
fn every_interleaving_with_two_leases_and_a_short_queue() {
    explore(&scale(1, 2, OverdueRule::Recycle { grace: ms(10) }));
}

#[test]
fn every_interleaving_with_a_caller_that_is_worth_no_start() {
    // One of each kind: a second one that is would make four times as many worlds, and is in those without a guest.
    let scale = scale(2, 1, OverdueRule::Recycle { grace: ms(10) });
    explore(&Scale { guests: 1, patience: scale.patience[..2].to_vec(), ..scale });
}

/// How a world was reached first: from which one, by which of its moves.
#[derive(Clone, Copy)]
struct Origin {
    from: u32,
    by: Move,
}

fn explore(scale: &Scale) {
    let started = Instant::now();
    let first = World::new(NOW, scale);
    let mut known: HashMap<u128, u32, BuildHasherDefault<Fingerprinted>> = HashMap::default();
    known.insert(fingerprint(&first), 0);
    let mut origins = vec![Origin { from: 0, by: Move::Tick }];
    let mut steps_back: Vec<(u32, u32)> = vec![];
    let mut at_rest = vec![];
    let mut frontier = VecDeque::from([(0, first)]);
    let (mut moves, mut seen) = (vec![], BTreeSet::new());
    while let Some((id, world)) = frontier.pop_front() {
        let checked = Told::check_time_alone(&world, &scale.limits)
            .and_then(|()| Told::check_stale_reports(&world, &scale.limits));
        if let Err(broken) = checked {
            fail(&broken, &origins, id, None, scale);
        }
        if world.is_at_rest() {
            at_rest.push(id);
        }
        moves.clear();
        world.moves(scale, &mut moves);
        for &by in &moves {
            let mut next = world.clone();
            match next.make(by, scale) {
                Ok(effects) => seen.extend(effects.into_iter().map(kind)),
                Err(broken) => fail(&broken, &origins, id, Some(by), scale),
            }
            let next = without_stale(seen_from_now(next, scale));
            let new = u32::try_from(origins.len()).expect("fewer worlds than that");
            let next_id = *known.entry(fingerprint(&next)).or_insert(new);
            if next_id == new {
                origins.push(Origin { from: id, by });
                frontier.push_back((new, next));
            }
            steps_back.push((next_id, id));
        }
    }
    let worlds = origins.len();
    eprintln!(
        "{} callers, {} leases, {:?}: {worlds} worlds, {} moves, {} at rest, {:.1?}",
        scale.patience.len(),
        scale.limits.leases_max,
        scale.limits.overdue,
        steps_back.len(),
        at_rest.len(),
        started.elapsed()
    );
    if let Some(lost) = first_that_cannot_reach(&at_rest, worlds, steps_back) {
        fail("every world can come to rest", &origins, lost, None, scale);
    }
    assert_eq!(seen, to_be_seen(scale));
}

/// The same world looked at from `NOW`. What is past is past, however long: nothing is counted from there but the idle
/// limit, and with all times in whole ticks and that limit of one tick, an idle slot is met at its beginning and at its
/// end alone.
fn seen_from_now(mut world: World, scale: &Scale) -> World {
    assert_eq!(scale.limits.idle, world::TICK);
    let then = world.now;
    let at = |moment: Moment| Moment((moment.0 + NOW.0).saturating_sub(then.0).max(NOW.0));
    world.slot = world.slot.map_moments(at);
    for caller in &mut world.callers {
        if let Caller::Waiting { deadline, .. } = caller {
            *deadline = at(*deadline);
        }
    }
    world.now = NOW;
    world
}

/// Without what is still to be said of generations that are gone. That none of it would change anything is looked at
/// in each world by `check_stale_reports`, for everything that could be said.
fn without_stale(mut world: World) -> World {
    let live = world.slot.live();
    world.mail.retain(|letter| Some(letter.generation()) == live);
    world.caller_mail.retain(|letter| Some(letter.generation()) == live);
    world.handshakes.retain(|generation| Some(*generation) == live);
    world.sweeps.retain(|generation| Some(*generation) == live);
    world
}

/// What is to be seen at least once, or the world is too small to mean anything.
fn to_be_seen(scale: &Scale) -> BTreeSet<&'static str> {
    let mut kinds = BTreeSet::from([
        "admit",
        "vacate",
        "spawn",
        "handshake",
        "grant",
        "close stdin",
        "terminate",
        "sweep",
        "queue timeout",
        "start failed",
        "start timeout",
        "cleanup failed",
        "retired",
        "exited",
        "link lost",
        "drained",
    ]);
    if scale.patience.len() > scale.limits.queue_len_max {
        kinds.insert("queue full");
    }
    if scale.guests > 0 {
        kinds.insert("nothing runs");
    }
    // One is there for the failure, one for the pause after it.
    if scale.patience.len() - scale.guests > 1 {
        kinds.insert("cooling down");
    }
    kinds.insert(match scale.limits.overdue {
        OverdueRule::Recycle { .. } => "recycled",
        OverdueRule::Keep { .. } => "taken back",
    });
    kinds
}

fn kind(effect: Effect) -> &'static str {
    match effect {
        Effect::Admit => "admit",
        Effect::Vacate => "vacate",
        Effect::Spawn(_) => "spawn",
        Effect::Handshake(_) => "handshake",
        Effect::Grant(..) => "grant",
        Effect::CloseStdin(_) => "close stdin",
        Effect::Terminate(_) => "terminate",
        Effect::Sweep(_) => "sweep",
        Effect::Refuse(_, Refusal::QueueFull) => "queue full",
        Effect::Refuse(_, Refusal::QueueTimeout) => "queue timeout",
        Effect::Refuse(_, Refusal::StartFailed) => "start failed",
        Effect::Refuse(_, Refusal::StartTimeout) => "start timeout",
        Effect::Refuse(_, Refusal::CoolingDown { .. }) => "cooling down",
        Effect::Refuse(_, Refusal::CleanupFailed) => "cleanup failed",
        Effect::Refuse(_, Refusal::Retired) => "retired",
        Effect::Refuse(_, Refusal::NothingRuns) => "nothing runs",
        Effect::TakeBack(..) => "taken back",
        Effect::FailLeases(_, LeaseLoss::Exited) => "exited",
        Effect::FailLeases(_, LeaseLoss::LinkLost) => "link lost",
        Effect::FailLeases(_, LeaseLoss::Recycled) => "recycled",
        Effect::FailLeases(_, LeaseLoss::Drained) => "drained",
    }
}

/// Walks backwards from `ends`.
fn first_that_cannot_reach(ends: &[u32], worlds: usize, mut steps_back: Vec<(u32, u32)>) -> Option<u32> {
    steps_back.sort_unstable();
    let mut reaches = vec![false; worlds];
    let mut todo = ends.to_vec();
    for &end in ends {
        reaches[end as usize] = true;
    }
    while let Some(id) = todo.pop() {
        let from = steps_back.partition_point(|step| step.0 < id);
        for &(_, before) in steps_back[from..].iter().take_while(|step| step.0 == id) {
            if !std::mem::replace(&mut reaches[before as usize], true) {
                todo.push(before);
            }
        }
    }
    reaches.iter().position(|reaches| !reaches).map(|id| u32::try_from(id).expect("an id"))
}

/// Tells how the world came about; worlds are not kept, so it is made again.
fn fail(broken: &str, origins: &[Origin], id: u32, last: Option<Move>, scale: &Scale) -> ! {
    let mut path: Vec<Move> = last.into_iter().collect();
    let mut at = id;
    while at != 0 {
        let origin = origins[at as usize];
        path.push(origin.by);
        at = origin.from;
    }
    path.reverse();
    let mut world = World::new(NOW, scale);
    let kept = path.len() - usize::from(last.is_some());
    for &by in &path[..kept] {
        world.make(by, scale).expect("it went well before");
        world = without_stale(seen_from_now(world, scale));
    }
    let path: Vec<String> = path.iter().map(|by| format!("  {by:?}")).collect();
    panic!("broken: {broken}\nafter\n{}\nbefore the last of these the world was {world:#?}", path.join("\n"));
}

fn fingerprint(world: &World) -> u128 {
    let mut fingerprint = Fingerprint(0x9e37_79b9_7f4a_7c15, 0x2545_f491_4f6c_dd1d);
    world.hash(&mut fingerprint);
    u128::from(fingerprint.0) << 64 | u128::from(fingerprint.1)
}

/// Two different 64-bit hashes side by side, quick without optimization. With 10⁷ worlds the odds of taking two for
/// one are below 10⁻²⁴ for hashes as good as random; these are worse, and far from needing to be as good.
struct Fingerprint(u64, u64);

impl Hasher for Fingerprint {
    fn finish(&self) -> u64 {
        self.0 ^ self.1
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }

    fn write_u8(&mut self, n: u8) {
        self.write_u64(u64::from(n));
    }

    fn write_u32(&mut self, n: u32) {
        self.write_u64(u64::from(n));
    }

    fn write_u64(&mut self, n: u64) {
        self.0 = (self.0.rotate_left(5) ^ n).wrapping_mul(0x517c_c1b7_2722_0a95);
        self.1 = (self.1 ^ n).wrapping_mul(0xff51_afd7_ed55_8ccd);
        self.1 ^= self.1 >> 31;
    }

    fn write_usize(&mut self, n: usize) {
        self.write_u64(n as u64);
    }

    fn write_isize(&mut self, n: isize) {
        self.write_u64(n.cast_unsigned() as u64);
    }
}

/// Takes a fingerprint for its own hash.
#[derive(Default)]
struct Fingerprinted(u64);

impl Hasher for Fingerprinted {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("only fingerprints are hashed with this");
    }

    fn write_u128(&mut self, fingerprint: u128) {
        self.0 = (fingerprint >> 64) as u64 ^ fingerprint as u64;
    }
}
