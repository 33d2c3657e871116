//! The states of a slot: what it knows inside, and what it shows.

use std::fmt;
use std::time::Duration;

use super::leases::Leases;
use crate::core::generation::Generation;
use crate::core::moment::Moment;

/// Deadlines are data here: there are no timers to cancel, a state that is left takes its deadlines with it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) enum State {
    /// **Invariant:** entered from `new`, from a sweep that proved an empty tree, and from `Admitting`, where nothing was
    /// started; from nowhere else.
    Stopped,
    /// Somebody waits who is worth a start, and the slot has no place among the live ones yet. Nothing runs.
    ///
    /// **Invariant:** somebody waits who is worth a start.
    Admitting,
    Spawning {
        generation: Generation,
        deadline: Moment,
    },
    /// Nobody wants what is being spawned any more, but the answer is owed to us, and is waited for however late it is:
    /// a sweep now could prove a tree empty that gets its root a moment later. The deadline is that of the whole start,
    /// and none once it has passed: from then on nobody is to count on an answer soon.
    Doomed {
        generation: Generation,
        deadline: Option<Moment>,
    },
    /// The deadline is that of the whole start.
    Handshaking {
        generation: Generation,
        deadline: Moment,
    },
    Ready {
        generation: Generation,
        leases: Leases,
        /// When it has been idle for too long; none while a lease is out.
        idle_at: Option<Moment>,
        /// When earlier failures are forgotten; none when there are none.
        stable_at: Option<Moment>,
    },
    /// **Invariant:** a lease is out.
    Draining {
        generation: Generation,
        leases: Leases,
        deadline: Moment,
    },
    Stopping {
        generation: Generation,
        step: StopStep,
        deadline: Moment,
    },
    /// `busy` sweeps have failed before this one.
    Sweeping {
        generation: Generation,
        busy: u8,
        deadline: Moment,
    },
    /// `delay` is the wait before the sweep that comes next or was the last.
    CleanupFailed {
        generation: Generation,
        delay: Duration,
        look: Look,
    },
}

/// What was asked of the root so far; the next step is more urgent.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum StopStep {
    CloseStdin,
    Terminate,
}

/// The next look at a tree that could not be proved empty.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Look {
    At(Moment),
    UnderWay { deadline: Moment },
}

/// What a slot shows of itself.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum PublicState {
    Stopped,
    Starting,
    Ready,
    Draining,
    Stopping,
    CleanupFailed,
}

impl PublicState {
    /// As status, events and metrics write it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stopped => "stopped",
            Self::Starting => "starting",
            Self::Ready => "ready",
            Self::Draining => "draining",
            Self::Stopping => "stopping",
            Self::CleanupFailed => "cleanup_failed",
        }
    }
}

impl fmt::Display for PublicState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl State {
    /// The generation that may have processes.
    pub(super) fn live(&self) -> Option<Generation> {
        match *self {
            Self::Stopped | Self::Admitting => None,
            Self::Spawning { generation, .. }
            | Self::Doomed { generation, .. }
            | Self::Handshaking { generation, .. }
            | Self::Ready { generation, .. }
            | Self::Draining { generation, .. }
            | Self::Stopping { generation, .. }
            | Self::Sweeping { generation, .. }
            | Self::CleanupFailed { generation, .. } => Some(generation),
        }
    }

    pub(super) fn public(&self) -> PublicState {
        match self {
            Self::Stopped => PublicState::Stopped,
            Self::Admitting | Self::Spawning { .. } | Self::Handshaking { .. } => PublicState::Starting,
            Self::Ready { .. } => PublicState::Ready,
            Self::Draining { .. } => PublicState::Draining,
            Self::Doomed { .. } | Self::Stopping { .. } | Self::Sweeping { .. } => PublicState::Stopping,
            Self::CleanupFailed { .. } => PublicState::CleanupFailed,
        }
    }

    /// The leases that are out; only these two states have any, so none can outlive its generation.
    pub(super) fn leases(&self) -> Option<&Leases> {
        match self {
            Self::Ready { leases, .. } | Self::Draining { leases, .. } => Some(leases),
            _ => None,
        }
    }

    pub(super) fn leases_mut(&mut self) -> Option<&mut Leases> {
        match self {
            Self::Ready { leases, .. } | Self::Draining { leases, .. } => Some(leases),
            _ => None,
        }
    }
}
