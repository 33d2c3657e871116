//! What a slot is told and what it orders.

use std::time::Duration;

use crate::core::generation::{Generation, Stamped};
use crate::core::moment::Moment;

/// A call that waits for a lease. The driver numbers them and never uses a number twice in one slot.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct WaiterId(pub u64);

/// The right to use an instance for one call; it has the number of the waiter that it was granted to.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LeaseId(pub u64);

impl From<WaiterId> for LeaseId {
    fn from(waiter: WaiterId) -> Self {
        Self(waiter.0)
    }
}

/// A call at the door: who, and until when it is willing to wait.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Waiter {
    pub id: WaiterId,
    /// Refused with [`Refusal::QueueTimeout`] from this moment on, unless it is granted the moment it comes.
    pub deadline: Moment,
    /// Whether a generation is started for it. One for which none is takes what runs or is started for others, and is
    /// refused with [`Refusal::NothingRuns`] where there is neither.
    pub starts: bool,
}

/// What happens to a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// A call wants a lease. Answered exactly once, by `Grant` or `Refuse`, unless it is abandoned first.
    Acquire(Waiter),
    /// A waiter left the queue; it gets no answer. Nothing happens to one that was answered already.
    Abandon(WaiterId),
    /// Answers `Admit`: the slot has a place among the live ones. Never said after `Vacate`.
    Admitted,
    /// Drain and stop; the next call starts a new generation.
    Stop,
    /// What the slot starts is another from now on: drain and stop as `Stop` does, and forget earlier failures, because
    /// they say nothing of what is started next.
    Replace,
    /// Drain, stop and never start again, unless it is reinstated.
    Retire,
    /// A retired slot may start again once it is stopped. Whoever was refused meanwhile stays refused.
    Reinstate,
    /// Another slot wants the place: stop, if nobody is served and nobody waits.
    Evict,
    /// Calls under way are not waited for any longer; whoever drains stops now.
    Hurry,
    /// An operator has looked into a cleanup that failed: sweep again now rather than at the next retry.
    Recover,
    /// The moment of `next_wakeup` has come, or the limits have changed. Harmless at any other time.
    Wake,
    /// A report of one generation. Stale ones change nothing.
    From(Stamped<Report>),
}

/// What the driver says of a generation. Reports about its processes and its link keep their order; those about its
/// leases come from the calls and may overtake them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Report {
    /// Answers `Spawn`: the root runs.
    Spawned,
    /// Answers `Spawn`: there is no root, but what was set up for it may have left something.
    SpawnFailed,
    /// Answers `Handshake`.
    Initialized,
    /// Answers `Handshake`.
    HandshakeFailed,
    /// The root is gone. Its children may not be.
    RootExited,
    /// The root lives, but cannot be talked to any more: stdout closed, a broken frame or a blocked writer.
    LinkLost,
    /// Answers `Sweep`: proved that no process of the tree is left.
    TreeEmpty,
    /// Answers `Sweep`: something is left, or nothing could be proved.
    TreeBusy,
    /// The call of this lease is over, whatever came of it; also for leases that the slot had failed.
    Released(LeaseId),
    /// The call of this lease was cancelled or ran past its deadline; the server has not answered yet.
    Overdue(LeaseId),
}

/// What the driver is to do. `Spawn`, `Handshake` and `Sweep` are answered exactly once, by a report.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effect {
    /// Ask for a place among the live slots; nothing is started before it is there. Answered by `Admitted` once there is
    /// one, which may take as long as somebody is willing to wait.
    Admit,
    /// The place is given back, or is not wanted any more.
    Vacate,
    /// Start the root. Its number is to be persisted as high water before.
    Spawn(Generation),
    /// Open the link and initialize the server.
    Handshake(Generation),
    /// The waiter's call may be written to this generation; its lease is out until `Released`.
    Grant(WaiterId, Generation),
    Refuse(WaiterId, Refusal),
    /// The call of this lease was cancelled and is not answered: nobody waits for it any more. Its lease is out until
    /// `Released`.
    TakeBack(Generation, LeaseId),
    /// Fail every call of this generation that is still out. Its leases no longer count.
    FailLeases(Generation, LeaseLoss),
    CloseStdin(Generation),
    /// SIGTERM to the root.
    Terminate(Generation),
    /// Kill everything of the tree, reap it, prove that it is empty.
    Sweep(Generation),
}

/// Why a waiter gets no lease. Its call was not written anywhere.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Refusal {
    /// As many calls wait as may.
    QueueFull,
    /// It waited until its own deadline.
    QueueTimeout,
    /// The start that it waited for failed.
    StartFailed,
    /// The start that it waited for ran over its limit.
    StartTimeout,
    /// The slot has failed lately and starts nothing for as long as this.
    CoolingDown { retry_after: Duration },
    /// The last generation could not be proved gone.
    CleanupFailed,
    /// The slot does not start again.
    Retired,
    /// Nothing runs, and nothing is started for this waiter.
    NothingRuns,
}

/// Why leases that were out are worth nothing any more. Their calls may have been written.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum LeaseLoss {
    /// The root exited.
    Exited,
    /// The link broke while the root lived on.
    LinkLost,
    /// One call was overdue and not given back within the grace.
    Recycled,
    /// A planned stop did not wait longer than the drain limit.
    Drained,
}
