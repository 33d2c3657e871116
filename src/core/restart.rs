//! The restart budget of a slot: how long it keeps from starting again what has just failed.

use std::time::Duration;

use crate::core::moment::Moment;

/// What is remembered of a slot's recent failures.
///
/// The first unexpected exit costs nothing: servers crash, and the next call should not pay for it.
/// From the second failure in a row on, and from the first when a start failed, the slot pauses, twice as long each
/// time. Failures are forgotten when a generation has proved stable, or when nobody wanted the slot for
/// [`Doubling::max`] after the last pause.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum RestartBudget {
    /// Nothing bad is remembered.
    #[default]
    Full,
    /// One unexpected exit was let pass.
    Excused { forget_at: Moment },
    /// The last failure cost a pause, which may be over by now.
    Paused { pause: Duration, until: Moment, forget_at: Moment },
}

impl RestartBudget {
    /// A generation that was up ended unasked.
    pub fn record_exit(&mut self, now: Moment, backoff: Doubling) {
        match *self {
            Self::Full => *self = Self::Excused { forget_at: now.after(backoff.max) },
            Self::Excused { .. } => self.pause(now, None, backoff),
            Self::Paused { pause, .. } => self.pause(now, Some(pause), backoff),
        }
    }

    /// A generation did not come up.
    pub fn record_failed_start(&mut self, now: Moment, backoff: Doubling) {
        match *self {
            Self::Full | Self::Excused { .. } => self.pause(now, None, backoff),
            Self::Paused { pause, .. } => self.pause(now, Some(pause), backoff),
        }
    }

    /// A generation was up for long enough to forget what came before.
    pub fn reset(&mut self) {
        *self = Self::Full;
    }

    /// What is left of the pause; `None` when the slot may start.
    pub fn cooling(&self, now: Moment) -> Option<Duration> {
        match *self {
            Self::Full | Self::Excused { .. } => None,
            Self::Paused { until, .. } => Some(until.saturating_since(now)).filter(|rest| !rest.is_zero()),
        }
    }

    /// When failures are forgotten if the slot stays stopped; `None` when there are none.
    pub fn forget_at(&self) -> Option<Moment> {
        match *self {
            Self::Full => None,
            Self::Excused { forget_at } | Self::Paused { forget_at, .. } => Some(forget_at),
        }
    }

    /// To be called while the slot is stopped: forgets what is old enough.
    pub fn forget(&mut self, now: Moment) {
        if self.forget_at().is_some_and(|at| at <= now) {
            self.reset();
        }
    }

    pub fn is_full(&self) -> bool {
        *self == Self::Full
    }

    /// The same with each moment replaced.
    pub(crate) fn map_moments(self, at: &mut impl FnMut(Moment) -> Moment) -> Self {
        match self {
            Self::Full => Self::Full,
            Self::Excused { forget_at } => Self::Excused { forget_at: at(forget_at) },
            Self::Paused { pause, until, forget_at } => {
                Self::Paused { pause, until: at(until), forget_at: at(forget_at) }
            }
        }
    }

    /// The pause counts from the failure, not from the end of the cleanup: it spaces attempts, and a slow sweep has
    /// spaced them already.
    fn pause(&mut self, now: Moment, last: Option<Duration>, backoff: Doubling) {
        let pause = backoff.next(last);
        let until = now.after(pause);
        *self = Self::Paused { pause, until, forget_at: until.after(backoff.max) };
    }
}

/// A delay that doubles from `min` and stays at `max`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Doubling {
    pub min: Duration,
    pub max: Duration,
}

impl Doubling {
    /// The delay after `last`; `None` stands before the first. Never above `max`, even when `min` is.
    pub fn next(self, last: Option<Duration>) -> Duration {
        last.map_or(self.min, |last| last.saturating_mul(2)).max(self.min).min(self.max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BACKOFF: Doubling = Doubling { min: Duration::from_secs(1), max: Duration::from_secs(5) };

    enum Failure {
        Exit,
        Start,
    }
    use Failure::{Exit, Start};

    /// `expected`: the pause in seconds after each failure, all at the same moment.
    #[track_caller]
    fn check(failures: &[Failure], expected: &[u64]) {
        let mut budget = RestartBudget::default();
        let pauses: Vec<u64> = failures
            .iter()
            .map(|failure| {
                match failure {
                    Exit => budget.record_exit(Moment(0), BACKOFF),
                    Start => budget.record_failed_start(Moment(0), BACKOFF),
                }
                budget.cooling(Moment(0)).map_or(0, |pause| pause.as_secs())
            })
            .collect();
        assert_eq!(pauses, expected);
    }

    #[test]
    fn the_first_exit_is_free_and_pauses_double_up_to_the_bound() {
        check(&[Exit, Exit, Exit, Exit, Exit], &[0, 1, 2, 4, 5]);
        check(&[Start, Start, Start, Start, Start], &[1, 2, 4, 5, 5]);
        check(&[Exit, Start, Exit], &[0, 1, 2]);
        check(&[Start, Exit], &[1, 2]);
    }

    #[test]
    fn a_pause_passes_and_failures_are_forgotten_in_time() {
        let mut budget = RestartBudget::default();
        budget.record_failed_start(Moment(10_000), BACKOFF);
        assert_eq!(budget.cooling(Moment(10_400)), Some(Duration::from_millis(600)));
        assert_eq!(budget.cooling(Moment(11_000)), None);
        budget.forget(Moment(15_999));
        assert!(!budget.is_full());
        budget.forget(Moment(16_000));
        assert!(budget.is_full());
    }

    #[test]
    fn bounds_the_wrong_way_round_do_not_panic() {
        let odd = Doubling { min: Duration::from_secs(9), max: Duration::from_secs(2) };
        assert_eq!(odd.next(None), Duration::from_secs(2));
        assert_eq!(BACKOFF.next(Some(Duration::MAX)), Duration::from_secs(5));
    }
}
