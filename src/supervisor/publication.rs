//! A revision comes into force for what runs.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::plan::Plan;
use super::registry::Supervisor;
use super::slot::{Slot, Succession};
use crate::core::admission::AdmissionLimits;

/// What became, or would become, of a backend's instances: ids in the order of the status. Slots in which nothing runs
/// are not named.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Handover {
    pub kept: Vec<String>,
    pub draining: Vec<String>,
    pub retired: Vec<String>,
}

/// Nothing has changed: everything is being stopped for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the broker is shutting down")]
pub struct NotPublished;

impl Supervisor {
    /// Puts the plans of a revision in the place of those before. When it returns, whoever asks for a slot gets one of
    /// this revision, calls under way go on, and what is not served by it any more is being stopped. Backends without
    /// a plan are not served. What became of those that run, as each was found.
    ///
    /// To be called by one writer, before requests see the revision: one that still goes by the last finds the plans
    /// of this, while one that goes by this would find nothing for a backend that is new.
    ///
    /// # Errors
    /// During a shutdown nothing is published.
    pub fn publish(&self, plans: &[Arc<Plan>]) -> Result<BTreeMap<Arc<str>, Handover>, NotPublished> {
        let plans = by_backend(plans);
        {
            let mut registered = self.services.registered();
            if registered.is_shutting_down {
                return Err(NotPublished);
            }
            registered.plans.clone_from(&plans);
        }
        // Slots that are made from here on have their plan already.
        Ok(self.handovers(|slot| slot.succeed(plans.get(&slot.key.backend))))
    }

    /// What `publish` would do. Changes nothing.
    pub fn foresee(&self, plans: &[Arc<Plan>]) -> BTreeMap<Arc<str>, Handover> {
        let plans = by_backend(plans);
        self.handovers(|slot| slot.foresee(plans.get(&slot.key.backend)))
    }

    /// How many may run and start from now on. Fewer than there are turn out nobody who is busy.
    pub fn set_limits(&self, limits: AdmissionLimits) {
        for slot in self.services.shared.floor.set_limits(limits) {
            slot.admitted();
        }
        self.services.make_room();
    }

    fn handovers(&self, succession: impl Fn(&Arc<Slot>) -> Option<Succession>) -> BTreeMap<Arc<str>, Handover> {
        let mut handovers: BTreeMap<Arc<str>, Handover> = BTreeMap::new();
        for slot in self.slots() {
            if let Some(succession) = succession(&slot) {
                handovers.entry(slot.key.backend.clone()).or_default().note(&slot, succession);
            }
        }
        handovers
    }
}

impl Handover {
    fn note(&mut self, slot: &Slot, succession: Succession) {
        let ids = match succession {
            Succession::Kept => &mut self.kept,
            Succession::Draining => &mut self.draining,
            Succession::Retired => &mut self.retired,
        };
        ids.push(slot.id.clone());
    }
}

fn by_backend(plans: &[Arc<Plan>]) -> HashMap<Arc<str>, Arc<Plan>> {
    plans.iter().map(|plan| (plan.backend.clone(), plan.clone())).collect()
}
