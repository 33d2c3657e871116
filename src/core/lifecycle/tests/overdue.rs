//! Calls that are cancelled or run out of time, and are not given back.

use super::*;

const KEEP: OverdueRule = OverdueRule::Keep { grace: ms(2_000) };

#[test]
fn nobody_joins_a_generation_that_may_be_recycled() {
    let mut story = Story::ready(Limits { leases_max: 2, ..limits() });
    story.acquire(1);
    story.report(1, Report::Overdue(LeaseId(1)));
    assert_eq!(story.acquire(2), [], "it waits, though there is a place");
    assert_eq!(story.report(1, Report::Released(LeaseId(1))), [grant(2, 1)], "the server answered in time");
    story.report(1, Report::Overdue(LeaseId(2)));
    assert_eq!(story.acquire(3), []);
    story.wake_in(2_000);
    story.report(1, Report::RootExited);
    assert_eq!(story.report(1, Report::TreeEmpty), [Effect::Spawn(g(2))], "the one that waited is served by the next");
}

#[test]
fn an_overdue_call_recycles_its_generation() {
    let mut story = Story::ready(Limits { leases_max: 2, ..limits() });
    for id in 1..=3 {
        story.acquire(id);
    }
    assert_eq!(story.report(1, Report::Overdue(LeaseId(1))), []);
    story.later(500);
    assert_eq!(story.report(1, Report::Overdue(LeaseId(1))), [], "the first report counts");
    let recycled = [Effect::FailLeases(g(1), LeaseLoss::Recycled), Effect::CloseStdin(g(1))];
    assert_eq!(story.wake_in(1_500), recycled);
    story.report(1, Report::RootExited);
    assert_eq!(story.report(1, Report::TreeEmpty), [Effect::Spawn(g(2))], "a recycle is no failure");
}

#[test]
fn an_overdue_call_that_is_given_back_in_time_recycles_nothing() {
    let mut story = Story::ready(limits());
    story.acquire(1);
    story.report(1, Report::Overdue(LeaseId(1)));
    story.later(1_999);
    assert_eq!(story.report(1, Report::Released(LeaseId(1))), []);
    assert_eq!(story.wake_in(120_000), [Effect::CloseStdin(g(1))]);
}

#[test]
fn where_the_generation_is_kept_an_overdue_call_is_taken_back() {
    let mut story = Story::ready(Limits { overdue: KEEP, leases_max: 2, ..limits() });
    story.acquire(1);
    assert_eq!(story.report(1, Report::Overdue(LeaseId(1))), []);
    assert_eq!(story.acquire(2), [grant(2, 1)], "it keeps nobody out");
    assert_eq!(story.acquire(3), []);
    assert_eq!(story.wake_in(2_000), [Effect::TakeBack(g(1), LeaseId(1))]);
    assert_eq!(story.slot.next_wakeup(), Some(story.now.after(ms(28_000))), "once: the next is the one who waits");
    assert_eq!(story.step(Event::Wake), []);
    assert_eq!(story.report(1, Report::Released(LeaseId(1))), [grant(3, 1)]);
    story.check(PublicState::Ready, 2, 0);
}

#[test]
fn a_kept_call_that_is_answered_in_its_grace_is_not_taken_back() {
    let mut story = Story::ready(Limits { overdue: KEEP, ..limits() });
    story.acquire(1);
    story.report(1, Report::Overdue(LeaseId(1)));
    story.later(1_999);
    assert_eq!(story.report(1, Report::Released(LeaseId(1))), []);
    assert_eq!(story.wake_in(120_000), [Effect::CloseStdin(g(1))], "idle since it was answered");
}

#[test]
fn a_drain_does_not_wait_for_a_call_that_is_taken_back() {
    let mut story = Story::ready(Limits { overdue: KEEP, ..limits() });
    story.acquire(1);
    story.report(1, Report::Overdue(LeaseId(1)));
    assert_eq!(story.step(Event::Stop), []);
    assert_eq!(story.wake_in(2_000), [Effect::TakeBack(g(1), LeaseId(1))]);
    assert_eq!(story.report(1, Report::Released(LeaseId(1))), [Effect::CloseStdin(g(1))]);
}

#[test]
fn a_rule_that_changes_to_keep_spares_a_call_in_its_grace() {
    let mut story = Story::ready(limits());
    story.acquire(1);
    story.report(1, Report::Overdue(LeaseId(1)));
    story.limits.overdue = KEEP;
    assert_eq!(story.step(Event::Wake), []);
    assert_eq!(story.wake_in(2_000), [Effect::TakeBack(g(1), LeaseId(1))], "it alone is given up");
    story.check(PublicState::Ready, 1, 0);
}
