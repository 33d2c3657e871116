//! Waiting for something to be so, never for a time to pass.

use std::time::{Duration, Instant};

/// How often a condition that sends no event is looked at.
const EVERY: Duration = Duration::from_millis(20);

/// Looks until `look` finds something. Panics after `limit` with `what` was waited for, in words.
#[track_caller]
pub fn until<T>(what: &str, limit: Duration, mut look: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + limit;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < end, "waited {limit:?} for {what}");
        pause(EVERY);
    }
}

/// `until` for a plain condition.
#[track_caller]
pub fn until_true(what: &str, limit: Duration, mut look: impl FnMut() -> bool) {
    until(what, limit, || look().then_some(()));
}

/// Whether it became so in time. For what is then looked at once more, to show it.
pub fn is_true_within(limit: Duration, mut look: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + limit;
    while !look() {
        if Instant::now() >= end {
            return false;
        }
        pause(EVERY);
    }
    true
}

/// Lets time pass. For tests that show that nothing happens in the meantime; `why` is for the reader.
#[expect(clippy::disallowed_methods, reason = "that time passes is what these tests are about")]
pub fn pause_because(why: &str, time: Duration) {
    assert!(!why.is_empty());
    std::thread::sleep(time);
}

#[expect(clippy::disallowed_methods, reason = "the process table sends no events")]
fn pause(time: Duration) {
    std::thread::sleep(time);
}
