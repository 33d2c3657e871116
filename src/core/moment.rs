//! Time as an argument: the core has no clock, the driver says what time it is.

use std::time::Duration;

/// A point in time: milliseconds since the driver's epoch, which is any steady clock's.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Moment(pub u64);

impl Moment {
    /// The moment `wait` later. A part of a millisecond counts as a whole one, so that no limit ends early; a wait
    /// beyond the end of time ends there.
    pub fn after(self, wait: Duration) -> Self {
        let whole_ms = wait.as_nanos().div_ceil(1_000_000);
        Self(self.0.saturating_add(u64::try_from(whole_ms).unwrap_or(u64::MAX)))
    }

    /// How long after `earlier` this is; zero when it is not after it.
    pub fn saturating_since(self, earlier: Self) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(from: u64, wait: Duration, expected: u64) {
        assert_eq!(Moment(from).after(wait), Moment(expected));
    }

    #[test]
    fn a_wait_never_ends_early_and_never_wraps() {
        check(5, Duration::ZERO, 5);
        check(5, Duration::from_millis(10), 15);
        check(5, Duration::from_micros(1), 6);
        check(5, Duration::MAX, u64::MAX);
        check(u64::MAX, Duration::from_millis(1), u64::MAX);
    }

    #[test]
    fn time_since_a_later_moment_is_zero() {
        assert_eq!(Moment(15).saturating_since(Moment(5)), Duration::from_millis(10));
        assert_eq!(Moment(5).saturating_since(Moment(15)), Duration::ZERO);
    }
}
