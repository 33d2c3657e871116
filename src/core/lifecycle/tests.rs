//! Named traces: one story each, event by event.

use std::time::Duration;

use super::*;
use crate::core::admission::Phase;
use crate::core::generation::{Generation, Mint, Stamped};
use crate::core::moment::Moment;

mod overdue;
mod succession;

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn limits() -> Limits {
    Limits {
        queue_len_max: 64,
        leases_max: 1,
        start: ms(60_000),
        idle: ms(120_000),
        drain: ms(30_000),
        polite: ms(3_000),
        terminate: ms(2_000),
        sweep: ms(5_000),
        sweeps_max: 2,
        cleanup_retry_min: ms(1_000),
        cleanup_retry_max: ms(4_000),
        backoff_min: ms(1_000),
        backoff_max: ms(8_000),
        stable_after: ms(10_000),
        overdue: OverdueRule::Recycle { grace: ms(2_000) },
    }
}

/// A slot whose generations are numbered from 1, and the time, which starts at 0.
struct Story {
    slot: Slot,
    now: Moment,
    limits: Limits,
    /// Whether there is a place for nobody else; otherwise places are given at once and not spoken of.
    is_crowded: bool,
}

impl Story {
    fn new(limits: Limits) -> Self {
        Self { slot: Slot::new(Mint::after(0)), now: Moment(0), limits, is_crowded: false }
    }

    fn crowded(limits: Limits) -> Self {
        Self { is_crowded: true, ..Self::new(limits) }
    }

    /// With generation 1 ready.
    fn ready(limits: Limits) -> Self {
        let mut story = Self::new(limits);
        story.acquire(0);
        story.report(1, Report::Spawned);
        story.report(1, Report::Initialized);
        story.report(1, Report::Released(LeaseId(0)));
        assert_eq!(story.slot.public_state(), PublicState::Ready);
        story
    }

    fn step(&mut self, event: Event) -> Vec<Effect> {
        let mut out = vec![];
        self.slot.step(self.now, event, &self.limits, &mut out);
        if !self.is_crowded {
            if out.contains(&Effect::Admit) {
                self.slot.step(self.now, Event::Admitted, &self.limits, &mut out);
            }
            out.retain(|effect| !matches!(effect, Effect::Admit | Effect::Vacate));
        }
        out
    }

    /// Somebody who is willing to wait for 30 seconds.
    fn acquire(&mut self, id: u64) -> Vec<Effect> {
        self.step(Event::Acquire(Waiter { id: WaiterId(id), deadline: self.now.after(ms(30_000)), starts: true }))
    }

    fn report(&mut self, generation: u64, report: Report) -> Vec<Effect> {
        self.step(Event::From(Stamped::new(g(generation), report)))
    }

    fn later(&mut self, wait: u64) {
        self.now = self.now.after(ms(wait));
    }

    /// Goes to the next wakeup, which has to be `wait` milliseconds away.
    #[track_caller]
    fn wake_in(&mut self, wait: u64) -> Vec<Effect> {
        let at = self.now.after(ms(wait));
        assert_eq!(self.slot.next_wakeup(), Some(at));
        self.now = at;
        self.step(Event::Wake)
    }

    #[track_caller]
    fn check(&self, state: PublicState, active: usize, queued: usize) {
        assert_eq!((self.slot.public_state(), self.slot.active(), self.slot.queued()), (state, active, queued));
    }
}

fn g(number: u64) -> Generation {
    Mint::after(number - 1).mint()
}

fn grant(id: u64, generation: u64) -> Effect {
    Effect::Grant(WaiterId(id), g(generation))
}

fn refuse(id: u64, refusal: Refusal) -> Effect {
    Effect::Refuse(WaiterId(id), refusal)
}

#[test]
fn fifty_first_calls_spawn_once_and_are_served_in_order() {
    let mut story = Story::new(limits());
    assert_eq!(story.acquire(0), [Effect::Spawn(g(1))]);
    for id in 1..50 {
        assert_eq!(story.acquire(id), []);
    }
    assert_eq!(story.report(1, Report::Spawned), [Effect::Handshake(g(1))]);
    assert_eq!(story.report(1, Report::Initialized), [grant(0, 1)]);
    for id in 0..49 {
        assert_eq!(story.report(1, Report::Released(LeaseId(id))), [grant(id + 1, 1)]);
    }
    assert_eq!(story.report(1, Report::Released(LeaseId(49))), []);
    assert_eq!(story.slot.high_water(), 1);
}

#[test]
fn leases_are_granted_up_to_their_number() {
    let mut story = Story::ready(Limits { leases_max: 2, ..limits() });
    assert_eq!(story.acquire(1), [grant(1, 1)]);
    assert_eq!(story.acquire(2), [grant(2, 1)]);
    assert_eq!(story.acquire(3), []);
    story.check(PublicState::Ready, 2, 1);
    assert_eq!(story.report(1, Report::Released(LeaseId(1))), [grant(3, 1)]);
}

#[test]
fn a_full_queue_refuses() {
    let mut story = Story::new(Limits { queue_len_max: 1, ..limits() });
    story.acquire(0);
    assert_eq!(story.acquire(1), [refuse(1, Refusal::QueueFull)]);
    story.step(Event::Abandon(WaiterId(0)));
    assert_eq!(story.acquire(2), []);
}

#[test]
fn queued_call_survives_a_crash() {
    let mut story = Story::ready(limits());
    story.acquire(1);
    story.acquire(2);
    let crash = story.report(1, Report::RootExited);
    assert_eq!(crash, [Effect::FailLeases(g(1), LeaseLoss::Exited), Effect::Sweep(g(1))]);
    story.check(PublicState::Stopping, 0, 1);
    assert_eq!(story.report(1, Report::TreeEmpty), [Effect::Spawn(g(2))], "the first exit costs no pause");
    story.report(2, Report::Spawned);
    assert_eq!(story.report(2, Report::Initialized), [grant(2, 2)]);
}

#[test]
fn a_release_of_the_generation_before_changes_nothing() {
    let mut story = Story::ready(limits());
    story.acquire(1);
    story.acquire(2);
    story.report(1, Report::RootExited);
    story.report(1, Report::TreeEmpty);
    story.report(2, Report::Spawned);
    story.report(2, Report::Initialized);
    assert_eq!(story.report(1, Report::Released(LeaseId(1))), []);
    story.check(PublicState::Ready, 1, 0);
    assert_eq!(story.slot.anomalies(), 0);
}

#[test]
fn a_second_crash_in_a_row_cools_down_and_says_for_how_long() {
    let mut story = Story::ready(limits());
    story.report(1, Report::RootExited);
    story.report(1, Report::TreeEmpty);
    assert!(!story.slot.is_vacant(), "the crash has to be remembered");
    story.acquire(1);
    story.report(2, Report::Spawned);
    story.report(2, Report::Initialized);
    story.acquire(2);
    story.report(2, Report::RootExited);
    story.later(300);
    let refused = refuse(2, Refusal::CoolingDown { retry_after: ms(700) });
    assert_eq!(story.report(2, Report::TreeEmpty), [refused], "the pause counts from the crash");
    story.later(600);
    assert_eq!(story.acquire(3), [refuse(3, Refusal::CoolingDown { retry_after: ms(100) })]);
    story.later(100);
    assert_eq!(story.acquire(4), [Effect::Spawn(g(3))]);
}

#[test]
fn failed_starts_pause_twice_as_long_each_time() {
    let mut story = Story::new(limits());
    for (generation, pause) in [(1, 1_000), (2, 2_000), (3, 4_000), (4, 8_000), (5, 8_000)] {
        story.acquire(10 * generation);
        story.acquire(10 * generation + 1);
        let failed = [10 * generation, 10 * generation + 1].map(|id| refuse(id, Refusal::StartFailed));
        let failure = story.report(generation, Report::SpawnFailed);
        assert_eq!(failure, [failed[0], failed[1], Effect::Sweep(g(generation))], "all share the outcome");
        story.report(generation, Report::TreeEmpty);
        let retry_after = ms(pause);
        assert_eq!(story.acquire(99), [refuse(99, Refusal::CoolingDown { retry_after })]);
        story.later(pause);
    }
}

#[test]
fn a_stable_generation_resets_the_budget() {
    let mut story = Story::new(limits());
    story.acquire(0);
    story.report(1, Report::SpawnFailed);
    story.report(1, Report::TreeEmpty);
    story.later(1_000);
    story.acquire(1);
    story.report(2, Report::Spawned);
    story.report(2, Report::Initialized);
    story.report(2, Report::Released(LeaseId(1)));
    assert_eq!(story.wake_in(10_000), []);
    story.report(2, Report::RootExited);
    story.report(2, Report::TreeEmpty);
    assert_eq!(story.acquire(2), [Effect::Spawn(g(3))]);
}

#[test]
fn failures_are_forgotten_when_nobody_comes_back() {
    let mut story = Story::new(limits());
    story.acquire(0);
    story.report(1, Report::SpawnFailed);
    story.report(1, Report::TreeEmpty);
    assert!(!story.slot.is_vacant());
    assert_eq!(story.wake_in(1_000 + 8_000), []);
    assert!(story.slot.is_vacant());
    assert_eq!((story.slot.next_wakeup(), story.slot.high_water()), (None, 1));
}

#[test]
fn a_start_outlives_its_callers_and_then_idles_out() {
    let mut story = Story::new(limits());
    story.acquire(0);
    story.later(1);
    story.acquire(1);
    assert_eq!(story.wake_in(29_999), [refuse(0, Refusal::QueueTimeout)]);
    assert_eq!(story.step(Event::Abandon(WaiterId(1))), []);
    story.check(PublicState::Starting, 0, 0);
    story.report(1, Report::Spawned);
    story.later(29_999);
    assert_eq!(story.report(1, Report::Initialized), []);
    story.check(PublicState::Ready, 0, 0);
    assert_eq!(story.slot.idle_since(), Some(Moment(59_999)));
    assert_eq!(story.wake_in(120_000), [Effect::CloseStdin(g(1))]);
}

#[test]
fn who_waits_as_long_as_the_start_may_take_learns_that_the_start_was_slow() {
    let mut story = Story::new(Limits { start: ms(30_000), ..limits() });
    story.acquire(0);
    story.report(1, Report::Spawned);
    assert_eq!(story.wake_in(30_000), [refuse(0, Refusal::StartTimeout), Effect::CloseStdin(g(1))]);
    story.check(PublicState::Stopping, 0, 0);
}

#[test]
fn a_spawn_that_is_given_up_is_stopped_when_it_answers() {
    let mut story = Story::new(limits());
    story.acquire(0);
    story.acquire(1);
    assert_eq!(story.step(Event::Stop), []);
    assert_eq!(story.report(1, Report::Spawned), [Effect::CloseStdin(g(1))]);
    assert_eq!(story.report(1, Report::RootExited), [Effect::Sweep(g(1))]);
    assert_eq!(story.report(1, Report::TreeEmpty), [Effect::Spawn(g(2))], "a planned stop is no failure");
    story.check(PublicState::Starting, 0, 2);
}

/// A sweep would prove nothing, so the answer is waited for; but nobody is to count on the place any more.
#[test]
fn a_spawn_that_is_given_up_and_not_answered_in_time_is_stuck() {
    let mut story = Story::new(limits());
    story.acquire(0);
    assert_eq!(story.wake_in(30_000), [refuse(0, Refusal::QueueTimeout)]);
    story.step(Event::Stop);
    assert_eq!((story.slot.is_overdue(), Phase::of(&story.slot)), (false, Phase::Leaving));
    assert_eq!(story.wake_in(30_000), []);
    assert_eq!((story.slot.is_overdue(), Phase::of(&story.slot)), (true, Phase::Stuck));
    story.check(PublicState::Stopping, 0, 0);
    assert_eq!(story.slot.next_wakeup(), None);
    assert_eq!(story.report(1, Report::SpawnFailed), [Effect::Sweep(g(1))]);
    assert_eq!((story.slot.is_overdue(), Phase::of(&story.slot)), (false, Phase::Leaving));
    assert_eq!(story.report(1, Report::TreeBusy), [Effect::Sweep(g(1))]);
    assert_eq!(story.report(1, Report::TreeBusy), []);
    story.check(PublicState::CleanupFailed, 0, 0);
}

#[test]
fn a_spawn_that_ran_out_is_stuck_at_once() {
    let mut story = Story::new(limits());
    story.step(Event::Acquire(Waiter { id: WaiterId(0), deadline: story.now.after(ms(90_000)), starts: true }));
    assert_eq!(story.wake_in(60_000), [refuse(0, Refusal::StartTimeout)]);
    assert_eq!(Phase::of(&story.slot), Phase::Stuck);
    assert_eq!(story.report(1, Report::Spawned), [Effect::CloseStdin(g(1))]);
    assert_eq!(Phase::of(&story.slot), Phase::Leaving);
}

#[test]
fn an_idle_generation_is_stopped_step_by_step() {
    let mut story = Story::ready(limits());
    assert_eq!(story.wake_in(120_000), [Effect::CloseStdin(g(1))]);
    assert_eq!(story.slot.since(), story.now);
    assert_eq!(story.wake_in(3_000), [Effect::Terminate(g(1))]);
    assert_eq!(story.wake_in(2_000), [Effect::Sweep(g(1))]);
    assert_eq!(story.report(1, Report::TreeEmpty), []);
    story.check(PublicState::Stopped, 0, 0);
    assert!(story.slot.is_vacant());
}

#[test]
fn nothing_but_a_call_refreshes_the_idle_clock() {
    let mut story = Story::ready(limits());
    story.later(60_000);
    assert_eq!(story.step(Event::Wake), []);
    assert_eq!(story.step(Event::Abandon(WaiterId(7))), []);
    assert_eq!(story.step(Event::Recover), []);
    assert_eq!(story.report(1, Report::Overdue(LeaseId(0))), []);
    assert_eq!(story.slot.idle_since(), Some(Moment(0)));
    assert_eq!(story.wake_in(60_000), [Effect::CloseStdin(g(1))]);
}

#[test]
fn new_limits_apply_to_a_generation_that_runs() {
    let mut story = Story::ready(limits());
    story.later(5_000);
    story.acquire(1);
    story.acquire(2);
    story.limits.leases_max = 2;
    assert_eq!(story.step(Event::Wake), [grant(2, 1)]);
    story.report(1, Report::Released(LeaseId(1)));
    story.report(1, Report::Released(LeaseId(2)));
    story.limits.idle = ms(10_000);
    assert_eq!(story.step(Event::Wake), []);
    assert_eq!(story.wake_in(10_000), [Effect::CloseStdin(g(1))]);
}

#[test]
fn a_lost_link_fails_the_calls_and_stops_the_root() {
    let mut story = Story::ready(limits());
    story.acquire(1);
    let lost = story.report(1, Report::LinkLost);
    assert_eq!(lost, [Effect::FailLeases(g(1), LeaseLoss::LinkLost), Effect::CloseStdin(g(1))]);
    assert_eq!(story.report(1, Report::Released(LeaseId(1))), []);
    assert_eq!(story.slot.anomalies(), 0);
}

#[test]
fn a_drain_waits_for_calls_and_keeps_those_that_come() {
    let mut story = Story::ready(limits());
    story.acquire(1);
    assert_eq!(story.step(Event::Stop), []);
    assert_eq!(story.acquire(2), []);
    story.check(PublicState::Draining, 1, 1);
    assert_eq!(story.report(1, Report::Released(LeaseId(1))), [Effect::CloseStdin(g(1))]);
    story.report(1, Report::RootExited);
    assert_eq!(story.report(1, Report::TreeEmpty), [Effect::Spawn(g(2))]);
}

#[test]
fn a_drain_ends_at_its_limit() {
    let mut story = Story::ready(limits());
    story.acquire(1);
    story.step(Event::Stop);
    story.later(10_000);
    assert_eq!(story.step(Event::Stop), [], "asking twice gives no more time");
    let ended = story.wake_in(20_000);
    assert_eq!(ended, [Effect::FailLeases(g(1), LeaseLoss::Drained), Effect::CloseStdin(g(1))]);
}

#[test]
fn a_retired_slot_ends_its_calls_and_never_starts_again() {
    let mut story = Story::ready(limits());
    story.acquire(1);
    story.acquire(2);
    assert_eq!(story.step(Event::Retire), [refuse(2, Refusal::Retired)]);
    assert_eq!(story.acquire(3), [refuse(3, Refusal::Retired)]);
    story.report(1, Report::Released(LeaseId(1)));
    story.report(1, Report::RootExited);
    assert_eq!(story.report(1, Report::TreeEmpty), []);
    assert_eq!(story.acquire(4), [refuse(4, Refusal::Retired)]);
    assert!(story.slot.is_vacant());
}

/// Generation 1 was to be swept after a crash, and twice it was not empty.
fn cleanup_failed() -> Story {
    let mut story = Story::ready(limits());
    story.acquire(1);
    story.acquire(2);
    story.report(1, Report::RootExited);
    assert_eq!(story.report(1, Report::TreeBusy), [Effect::Sweep(g(1))]);
    assert_eq!(story.report(1, Report::TreeBusy), [refuse(2, Refusal::CleanupFailed)]);
    story.check(PublicState::CleanupFailed, 0, 0);
    story
}

#[test]
fn a_failed_cleanup_is_retried_with_growing_delay_and_a_proof_unlocks() {
    let mut story = cleanup_failed();
    for delay in [1_000, 2_000, 4_000, 4_000] {
        assert_eq!(story.acquire(9), [refuse(9, Refusal::CleanupFailed)]);
        assert_eq!(story.wake_in(delay), [Effect::Sweep(g(1))]);
        assert_eq!(story.report(1, Report::TreeBusy), []);
    }
    story.wake_in(4_000);
    assert_eq!(story.report(1, Report::TreeEmpty), []);
    story.check(PublicState::Stopped, 0, 0);
    assert_eq!(story.acquire(10), [Effect::Spawn(g(2))]);
}

#[test]
fn an_operator_recovers_a_failed_cleanup_at_once() {
    let mut story = cleanup_failed();
    assert_eq!(story.step(Event::Recover), [Effect::Sweep(g(1))]);
    assert_eq!(story.step(Event::Recover), [], "one sweep at a time");
    story.report(1, Report::TreeEmpty);
    story.check(PublicState::Stopped, 0, 0);
}

#[test]
fn a_slot_retired_in_a_failed_cleanup_stays_there_until_the_proof() {
    let mut story = cleanup_failed();
    assert_eq!(story.step(Event::Retire), []);
    story.check(PublicState::CleanupFailed, 0, 0);
    assert!(!story.slot.is_vacant());
    assert_eq!(story.wake_in(1_000), [Effect::Sweep(g(1))]);
    story.report(1, Report::TreeEmpty);
    assert!(story.slot.is_vacant());
}

#[test]
fn sweeps_that_do_not_answer_count_as_busy() {
    let mut story = Story::ready(limits());
    story.report(1, Report::RootExited);
    assert_eq!(story.wake_in(5_000), [Effect::Sweep(g(1))]);
    assert_eq!(story.wake_in(5_000), []);
    story.check(PublicState::CleanupFailed, 0, 0);
    story.report(1, Report::TreeEmpty);
    story.check(PublicState::Stopped, 0, 0);
}

#[test]
fn a_root_that_exits_late_is_looked_after_at_once() {
    let mut story = Story::ready(limits());
    story.step(Event::Stop);
    story.wake_in(3_000);
    story.wake_in(2_000);
    story.report(1, Report::TreeBusy);
    story.report(1, Report::TreeBusy);
    assert_eq!(story.report(1, Report::RootExited), [Effect::Sweep(g(1))]);
}

#[test]
fn an_impossible_report_is_counted_and_ignored() {
    let mut story = Story::ready(limits());
    for report in [Report::TreeEmpty, Report::Spawned, Report::Released(LeaseId(77))] {
        assert_eq!(story.report(1, report), []);
    }
    story.check(PublicState::Ready, 0, 0);
    assert_eq!(story.slot.anomalies(), 3);
}

#[test]
fn nothing_is_started_without_a_place() {
    let mut story = Story::crowded(limits());
    assert_eq!(story.acquire(0), [Effect::Admit]);
    assert_eq!(story.acquire(1), []);
    assert_eq!(story.slot.public_state(), PublicState::Starting);
    // However long it takes: the start has its whole time from then on.
    story.later(25_000);
    assert_eq!(story.step(Event::Admitted), [Effect::Spawn(g(1))]);
    story.report(1, Report::Spawned);
    story.later(6_000);
    let refused = story.step(Event::Wake);
    assert_eq!(refused, [0, 1].map(|id| Effect::Refuse(WaiterId(id), Refusal::QueueTimeout)));
    assert_eq!(story.slot.public_state(), PublicState::Starting, "the start goes on");
    assert_eq!(story.slot.anomalies(), 0);
}

#[test]
fn a_place_that_nobody_waits_for_is_not_taken() {
    let mut story = Story::crowded(limits());
    story.acquire(0);
    assert_eq!(story.step(Event::Abandon(WaiterId(0))), [Effect::Vacate]);
    assert_eq!(story.slot.public_state(), PublicState::Stopped);
    story.acquire(1);
    let refused = Effect::Refuse(WaiterId(1), Refusal::QueueTimeout);
    assert_eq!(story.wake_in(30_000), [refused, Effect::Vacate]);
    story.acquire(2);
    let refused = Effect::Refuse(WaiterId(2), Refusal::Retired);
    assert_eq!(story.step(Event::Retire), [refused, Effect::Vacate]);
    assert!(story.slot.is_vacant());
}

#[test]
fn who_waits_after_a_crash_waits_for_a_place_again() {
    let mut story = Story::crowded(limits());
    story.acquire(0);
    story.step(Event::Admitted);
    story.report(1, Report::Spawned);
    story.report(1, Report::Initialized);
    story.acquire(1);
    story.report(1, Report::RootExited);
    assert_eq!(story.report(1, Report::TreeEmpty), [Effect::Vacate, Effect::Admit]);
}

#[test]
fn an_idle_slot_makes_room_and_a_busy_one_does_not() {
    let mut story = Story::ready(limits());
    story.acquire(1);
    assert_eq!(story.step(Event::Evict), []);
    story.report(1, Report::Released(LeaseId(1)));
    assert_eq!(story.step(Event::Evict), [Effect::CloseStdin(g(1))]);
    assert_eq!(story.step(Event::Evict), []);
}

#[test]
fn who_drains_can_be_hurried() {
    let mut story = Story::ready(limits());
    assert_eq!(story.step(Event::Hurry), []);
    story.acquire(1);
    assert_eq!(story.step(Event::Retire), []);
    let lost = Effect::FailLeases(g(1), LeaseLoss::Drained);
    assert_eq!(story.step(Event::Hurry), [lost, Effect::CloseStdin(g(1))]);
    assert_eq!(story.step(Event::Hurry), []);
}
