//! What is told of a slot.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::{Cleanup, OverLimit, Slot, Unproved};
use crate::core::generation::Generation;
use crate::core::lifecycle::PublicState;
use crate::ownership::kept_files::Usage;
use crate::ownership::{Owner, ProcessId, Survivor};
use crate::supervisor::start::{Limits, StartFailure};

/// What is known of a slot at one moment.
#[derive(Clone, Debug)]
pub struct SlotView {
    pub state: PublicState,
    pub generation: Option<Generation>,
    pub last_generation: u64,
    /// How long the public state has lasted.
    pub since: Duration,
    pub active: usize,
    pub queued: usize,
    /// How long no call has been out, while ready.
    pub idle: Option<Duration>,
    pub keeper: Option<ProcessId>,
    /// By what means the running generation is held.
    pub owner: Option<Owner>,
    /// Of the running generation.
    pub limits: Option<Limits>,
    pub last_over_limit: Option<OverLimit>,
    pub last_cleanup: Option<Cleanup>,
    pub survivors: Vec<Survivor>,
    /// Why the last sweep proved nothing, where survivors do not say it.
    pub cleanup_reason: Option<String>,
    /// What was tried so far, in `cleanup_failed`.
    pub unproved: Option<Unproved>,
    pub is_set_aside: bool,
    pub last_failure: Option<Arc<StartFailure>>,
    /// Tools of the running server whose definition is not the catalog's.
    pub drifted: Arc<BTreeSet<String>>,
    /// What was taken out of the running generation's results.
    pub kept: Option<Usage>,
    pub dropped: Vec<(&'static str, u64)>,
    /// Calls that were given up and that the server still works on.
    pub given_up: usize,
}

impl Slot {
    pub fn view(&self) -> SlotView {
        let state = self.lock();
        let now = self.now();
        SlotView {
            state: state.core.public_state(),
            generation: state.core.live(),
            last_generation: state.core.high_water(),
            since: now.saturating_since(state.core.since()),
            active: state.core.active(),
            queued: state.core.queued(),
            idle: state.core.idle_since().map(|since| now.saturating_since(since)),
            keeper: state.live.as_ref().map(|live| live.keeper),
            owner: state.live.as_ref().map(|live| live.owner),
            limits: state.live.as_ref().map(|live| live.limits.clone()),
            last_over_limit: state.last_over_limit,
            last_cleanup: state.last_cleanup,
            survivors: state.survivors.clone(),
            cleanup_reason: state.cleanup_reason.clone(),
            unproved: state.unproved(now),
            is_set_aside: state.is_set_aside,
            last_failure: state.last_failure.clone(),
            drifted: state.live.as_ref().map(|live| live.drifted.clone()).unwrap_or_default(),
            kept: state.live.as_ref().map(|live| live.kept.usage()),
            given_up: state.live.as_ref().map_or(0, |live| live.link.given_up()),
            dropped: state.live.as_ref().map(|live| live.link.counts().to_vec()).unwrap_or_default(),
        }
    }
}
