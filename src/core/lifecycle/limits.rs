//! What a slot may take: time, places and attempts. All of it is live: each step is given the limits of its revision.

use std::time::Duration;

use crate::core::restart::Doubling;

/// The limits of one backend's slots, from configuration and policy.
///
/// A change takes effect with the next step, and the driver sends a `Wake` when it has changed them: the idle limit
/// and the number of leases then apply at once, every other limit from the next time its clock starts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Calls that may wait at the same time. With 0 a call is served at once or refused, so nothing ever starts.
    pub queue_len_max: usize,
    /// Calls that one generation serves at the same time; at least 1, or nobody is ever served.
    pub leases_max: u32,
    /// For spawn and handshake together.
    pub start: Duration,
    /// From the end of the last call to the stop.
    pub idle: Duration,
    /// What calls under way are given to end before a planned stop fails them.
    pub drain: Duration,
    /// From closed stdin to SIGTERM: servers remove their temporary files in this time.
    pub polite: Duration,
    /// From SIGTERM to the sweep, which kills.
    pub terminate: Duration,
    /// How long one sweep may stay unanswered before it counts as busy.
    pub sweep: Duration,
    /// Busy sweeps in a row before the slot says `cleanup_failed`; 0 is as 1.
    pub sweeps_max: u8,
    /// The first wait in `cleanup_failed` before the next sweep; it doubles …
    pub cleanup_retry_min: Duration,
    /// … up to this one.
    pub cleanup_retry_max: Duration,
    /// The first pause between failure and restart; it doubles …
    pub backoff_min: Duration,
    /// … up to this one.
    pub backoff_max: Duration,
    /// A generation that was ready for this long has proved itself: earlier failures are forgotten.
    pub stable_after: Duration,
    pub overdue: OverdueRule,
}

/// What becomes of a generation whose call was cancelled or ran past its deadline, but is not given back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OverdueRule {
    /// Stop the generation, and fail its other calls, when the lease is still out after `grace`: the server is at
    /// work for nobody, and what it does may be harmful to the next caller.
    Recycle { grace: Duration },
    /// Let the server go on, and take the lease back when it is still out after `grace`: a server that heeds a
    /// cancellation does not answer (MCP, `basic/utilities/cancellation`), and would hold the place for ever.
    Keep { grace: Duration },
}

impl Limits {
    pub(super) fn backoff(&self) -> Doubling {
        Doubling { min: self.backoff_min, max: self.backoff_max }
    }

    pub(super) fn cleanup_retry(&self) -> Doubling {
        Doubling { min: self.cleanup_retry_min, max: self.cleanup_retry_max }
    }

    pub(super) fn leases_max(&self) -> usize {
        usize::try_from(self.leases_max).unwrap_or(usize::MAX)
    }
}
