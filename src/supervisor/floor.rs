//! The places of all live slots: `core::admission` behind a lock, with the slots that wait for its answer.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::slot::Slot;
use crate::core::admission::{Admission, AdmissionLimits, Phase, SlotNumber};

/// Its lock is taken under that of a slot, and never the other way round: who is admitted is returned, to be told
/// without any lock.
#[derive(Debug)]
pub(super) struct Floor {
    state: Mutex<State>,
    /// Whether an idle slot would have to stop, looked at by each step of each slot.
    is_short: AtomicBool,
}

#[derive(Debug)]
struct State {
    admission: Admission,
    asking: HashMap<SlotNumber, Weak<Slot>>,
}

/// How full it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Occupancy {
    pub limits: AdmissionLimits,
    /// Slots that have a place.
    pub live: usize,
    /// Slots that wait for one.
    pub waiting: usize,
}

impl Floor {
    pub fn new(limits: AdmissionLimits) -> Self {
        let state = State { admission: Admission::new(limits), asking: HashMap::new() };
        Self { state: Mutex::new(state), is_short: AtomicBool::new(false) }
    }

    /// Whether there is a place at once; else the slot is told later (`Slot::admitted`), unless it vacates before.
    pub fn ask(&self, slot: &Arc<Slot>) -> bool {
        let mut state = self.lock();
        let is_admitted = state.admission.ask(slot.number);
        if !is_admitted {
            state.asking.insert(slot.number, Arc::downgrade(slot));
        }
        self.shown(&state);
        is_admitted
    }

    /// Who is to be told that it is admitted.
    pub fn vacate(&self, slot: SlotNumber) -> Vec<Arc<Slot>> {
        let mut state = self.lock();
        state.asking.remove(&slot);
        let admitted = state.admission.vacate(slot);
        self.called(&mut state, admitted)
    }

    /// Who is to be told that it is admitted.
    pub fn note(&self, slot: SlotNumber, phase: Phase) -> Vec<Arc<Slot>> {
        let mut state = self.lock();
        let admitted = state.admission.note(slot, phase);
        self.called(&mut state, admitted)
    }

    /// Who is to be told that it is admitted.
    pub fn set_limits(&self, limits: AdmissionLimits) -> Vec<Arc<Slot>> {
        let mut state = self.lock();
        let admitted = state.admission.set_limits(limits);
        self.called(&mut state, admitted)
    }

    pub fn holds(&self, slot: SlotNumber) -> bool {
        self.lock().admission.holds(slot)
    }

    /// Whether somebody waits for a place that an idle slot could make.
    pub fn is_short(&self) -> bool {
        self.is_short.load(Ordering::Relaxed)
    }

    pub fn occupancy(&self) -> Occupancy {
        let admission = &self.lock().admission;
        Occupancy { limits: admission.limits(), live: admission.live(), waiting: admission.waiting() }
    }

    fn called(&self, state: &mut State, admitted: Vec<SlotNumber>) -> Vec<Arc<Slot>> {
        self.shown(state);
        // One that is gone has vacated, so it is not among them.
        admitted.into_iter().filter_map(|number| state.asking.remove(&number)?.upgrade()).collect()
    }

    fn shown(&self, state: &State) {
        self.is_short.store(state.admission.missing() > 0, Ordering::Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
