//! The lifecycle of one slot as a pure, total function: `step(now, event)` changes the slot and orders effects.
//!
//! It is responsible for: at most one live generation; who waits, who has a lease and who is refused; when to start,
//! stop, sweep and retry; and for `stopped` being said of a proved empty tree alone.
//! It leaves to others: performing the effects (`supervisor`), what a process or a tree is (`ownership`), what a call
//! is (`broker`). It has no clock: the driver says what time it is and comes back at [`Slot::next_wakeup`].
//!
//! What the driver owes the slot:
//! - events one after the other, with `now` from a steady clock;
//! - each `Spawn`, `Handshake` and `Sweep` answered exactly once, by a report stamped with its generation;
//! - reports of one generation in order, those of its leases excepted;
//! - `Admitted` only while an `Admit` stands that no `Vacate` has followed;
//! - a `Released` for each lease that was granted, also after `FailLeases`;
//! - a `Wake` when the limits have changed.
//!
//! A driver that breaks this costs time, never the rules: stale reports cannot be opened ([`Stamped`]), impossible
//! ones are counted ([`Slot::anomalies`]), and a sweep that stays unanswered counts as busy.
//!
//! ```text
//!         Acquire        Admitted        Spawned          Initialized
//!    ┌─► Stopped ─► Admitting ─► Spawning ────► Handshaking ────► Ready ◄─► leases
//!    │      ▲  ◄────────┘        │ SpawnFailed    │             │ Stop, Retire, Evict
//!    │      │ TreeEmpty          │                │ failed      ▼
//!    │      │                    ▼                ▼   idle,  Draining
//!    │   Sweeping ◄────────────────────────── Stopping ◄────────┘  stdin closed, then SIGTERM
//!    │      │      RootExited, from anywhere
//!    │      │ TreeBusy too often
//!    │      ▼
//!    └─ CleanupFailed   sweeps again with growing delay; refuses everybody
//! ```
//!
//! `tests/lifecycle_explorer.rs` visits every interleaving of a small world around it, `tests/lifecycle_random.rs`
//! takes long random walks through a larger one.
//!
//! [`Stamped`]: crate::core::generation::Stamped

mod clock;
mod event;
mod leases;
mod limits;
mod queue;
mod reports;
mod slot;
mod state;
#[cfg(test)]
mod tests;

pub use event::{Effect, Event, LeaseId, LeaseLoss, Refusal, Report, Waiter, WaiterId};
pub use limits::{Limits, OverdueRule};
pub use slot::Slot;
pub use state::PublicState;
