//! Running things: one slot for each backend and scope key, and the driver that performs what its core decides.
//!
//! `core::lifecycle` decides under a short lock; whoever caused an event gets a grant or refusal in the same breath,
//! so a call on a ready instance waits for no task. Everything that takes time (start, handshake, stop, sweep, proof)
//! is done by the slot's driver, one task a slot, in the order it was decided.
//! Leaves policies, clients and HTTP to others: it is told a plan and asked for leases.

mod audience;
mod driver;
mod floor;
mod instance;
mod plan;
mod publication;
mod registry;
mod slot;
mod start;
mod windows;

pub use audience::{Audience, NoAudience};
pub use floor::Occupancy;
pub use instance::{InstanceKey, ScopeKey};
pub use plan::Plan;
pub use publication::{Handover, NotPublished};
pub use registry::{NoSlot, NotSetAside, Supervisor, SupervisorLimits, Tally};
pub use slot::{
    Acquired, Cleanup, Ended, Granted, Lease, OverLimit, Refused, Slot, SlotView, Succession, Unproved, Waiter,
};
pub use start::{Limits, StartCause, StartFailure};
pub use windows::{powershell_of, windows_side};
