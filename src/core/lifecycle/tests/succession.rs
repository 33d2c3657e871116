//! What a reload does to a slot.

use super::*;

#[test]
fn what_is_replaced_drains_and_who_waits_is_served_by_the_next() {
    let mut story = Story::ready(limits());
    assert_eq!(story.acquire(1), [grant(1, 1)]);
    assert_eq!(story.acquire(2), []);
    assert_eq!(story.step(Event::Replace), []);
    story.check(PublicState::Draining, 1, 1);
    assert_eq!(story.report(1, Report::Released(LeaseId(1))), [Effect::CloseStdin(g(1))]);
    assert_eq!(story.report(1, Report::RootExited), [Effect::Sweep(g(1))]);
    assert_eq!(story.report(1, Report::TreeEmpty), [Effect::Spawn(g(2))]);
    assert_eq!(story.report(2, Report::Spawned), [Effect::Handshake(g(2))]);
    assert_eq!(story.report(2, Report::Initialized), [grant(2, 2)]);
}

#[test]
fn failures_of_what_was_replaced_hold_nobody_back() {
    let mut story = Story::new(limits());
    assert_eq!(story.acquire(0), [Effect::Spawn(g(1))]);
    story.report(1, Report::SpawnFailed);
    story.report(1, Report::TreeEmpty);
    assert_eq!(story.acquire(1), [refuse(1, Refusal::CoolingDown { retry_after: ms(1_000) })]);
    assert_eq!(story.step(Event::Replace), []);
    assert_eq!(story.acquire(2), [Effect::Spawn(g(2))]);
}

#[test]
fn a_retired_slot_that_is_reinstated_starts_again_after_its_proof() {
    let mut story = Story::ready(limits());
    assert_eq!(story.step(Event::Retire), [Effect::CloseStdin(g(1))]);
    assert_eq!(story.acquire(1), [refuse(1, Refusal::Retired)]);
    assert_eq!(story.step(Event::Reinstate), []);
    assert_eq!(story.acquire(2), []);
    story.check(PublicState::Stopping, 0, 1);
    story.report(1, Report::RootExited);
    assert_eq!(story.report(1, Report::TreeEmpty), [Effect::Spawn(g(2))]);
}
