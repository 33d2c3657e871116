//! All slots, by their keys, and what they share.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use tokio_util::task::TaskTracker;

use super::audience::Audience;
use super::driver::Driver;
use super::floor::{Floor, Occupancy};
use super::instance::InstanceKey;
use super::plan::Plan;
use super::slot::{Cleanup, Name, Shared, Slot};
use crate::core::admission::{AdmissionLimits, SlotNumber};
use crate::core::generation::Generation;
use crate::core::lifecycle::{Event, PublicState};
use crate::core::limits::TreeLimits;
use crate::events::{EventLog, What};
use crate::ownership::journal::{Leftover, LeftoversBudget};
use crate::ownership::{Cgroups, Controller, Journal, KeeperProgram, NoCgroups, Powershell, Sweep};

/// Bounds of the supervisor.
#[derive(Clone, Copy, Debug)]
pub struct SupervisorLimits {
    /// Slots kept, stopped ones included, which are forgotten first.
    pub slots_max: usize,
    /// Slots that may have processes at the same time.
    pub live_max: usize,
    /// Of those, the ones that start at the same time.
    pub starts_max: usize,
    /// Slots set aside without a proof at the same time.
    pub set_aside_max: usize,
}

/// Why there is no slot for a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoSlot {
    /// All places are taken by slots that are in use.
    Full {
        max: usize,
    },
    ShuttingDown,
    /// No revision serves it any more.
    NotServed,
    /// What an earlier broker left is not proved gone, and nothing is started beside it.
    Leftovers,
}

/// Why a slot keeps its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotSetAside {
    /// So many are not proved gone already.
    Full { max: usize },
    /// It is not, or not any more, in `cleanup_failed` with that generation in its own place.
    NotUnproved,
}

/// The running things. Ends with `shutdown`; dropped without it, the keepers sweep by themselves.
#[derive(Debug)]
pub struct Supervisor {
    pub(super) services: Arc<Services>,
    limits: SupervisorLimits,
}

/// What every driver uses.
#[derive(Debug)]
pub(super) struct Services {
    pub journal: Journal,
    pub keeper: KeeperProgram,
    /// Where generations get a cgroup each, or why they get none.
    pub cgroups: Result<Cgroups, NoCgroups>,
    /// Everything that the supervisor runs; empty means that no slot and no tree is left.
    pub tracker: TaskTracker,
    pub shared: Shared,
    pub audience: Arc<dyn Audience>,
    registered: Mutex<Registered>,
}

/// What a backend's slots have done since the broker started; outlives the slots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Generations begun, whatever became of them.
    pub starts: u64,
    /// Generations proved gone.
    pub proofs: u64,
    pub last_cleanup: Option<Cleanup>,
}

impl Tally {
    pub(super) fn proved(&mut self, cleanup: Cleanup) {
        self.proofs += 1;
        self.last_cleanup = Some(cleanup);
    }
}

#[derive(Debug, Default)]
pub(super) struct Registered {
    pub slots: HashMap<InstanceKey, Arc<Slot>>,
    /// Not proved empty, and without a place; each leaves with its proof.
    set_aside: Vec<Arc<Slot>>,
    /// By backend, of every revision so far: names that operators wrote.
    tallies: HashMap<Arc<str>, Tally>,
    /// Of the revision that is served, by backend.
    pub plans: HashMap<Arc<str>, Arc<Plan>>,
    pub is_shutting_down: bool,
    last_number: u64,
    /// Whether what an earlier broker left is proved gone.
    is_clear: bool,
}

impl Supervisor {
    /// Blocks on the kernel for some milliseconds: it looks for a place for cgroups, with the controllers that the
    /// limits of backends need.
    pub fn new(
        journal: Journal,
        keeper: KeeperProgram,
        limits: SupervisorLimits,
        controllers: &[Controller],
        events: Arc<EventLog>,
        audience: Arc<dyn Audience>,
    ) -> Self {
        let admission = AdmissionLimits { live_max: limits.live_max, starts_max: limits.starts_max };
        let cgroups = Cgroups::find_limiting(journal.installation(), controllers);
        let services = Services {
            journal,
            keeper,
            cgroups,
            tracker: TaskTracker::new(),
            shared: Shared { floor: Arc::new(Floor::new(admission)), events, epoch: Instant::now() },
            audience,
            registered: Mutex::default(),
        };
        Self { services: Arc::new(services), limits }
    }

    /// The slot of a key, made if there is none, with the plan that is published now: a call that began under an older
    /// revision must not bring back what that one started. Starts nothing but the slot's own task.
    pub fn slot(&self, key: &InstanceKey) -> Result<Arc<Slot>, NoSlot> {
        let mut registered = self.services.registered();
        if let Some(slot) = registered.slots.get(key) {
            return Ok(slot.clone());
        }
        if registered.is_shutting_down {
            return Err(NoSlot::ShuttingDown);
        }
        if !registered.is_clear {
            return Err(NoSlot::Leftovers);
        }
        let plan = registered.plans.get(&key.backend).filter(|plan| plan.is_shared == key.scope.is_shared());
        let plan = plan.cloned().ok_or(NoSlot::NotServed)?;
        let max = self.limits.slots_max;
        if registered.slots.len() >= max {
            registered.slots.retain(|_, slot| !slot.forget_if_vacant());
        }
        if registered.slots.len() >= max {
            return Err(NoSlot::Full { max });
        }
        let (inbox, orders) = mpsc::unbounded_channel();
        registered.last_number += 1;
        let name = Name {
            key: key.clone(),
            id: key.instance_id(self.services.journal.installation()),
            number: SlotNumber(registered.last_number),
        };
        let high_water = self.services.journal.high_water(&key.backend);
        let shared = self.services.shared.clone();
        let slot = Arc::new(Slot::new(name, shared, plan, high_water, inbox.clone()));
        registered.slots.insert(key.clone(), slot.clone());
        let driver = Driver::new(slot.clone(), self.services.clone(), orders, inbox);
        self.services.tracker.spawn(driver.run());
        Ok(slot)
    }

    /// The slot of a key, if there is one.
    pub fn find(&self, key: &InstanceKey) -> Option<Arc<Slot>> {
        self.services.registered().slots.get(key).cloned()
    }

    /// All slots, in a stable order, those that are set aside behind the one in their place.
    pub fn slots(&self) -> Vec<Arc<Slot>> {
        let mut slots = self.services.registered().all();
        slots.sort_by(|a, b| (&a.key.backend, &a.id).cmp(&(&b.key.backend, &b.id)));
        slots
    }

    /// How many run and wait to, of how many that may.
    pub fn occupancy(&self) -> Occupancy {
        self.services.shared.floor.occupancy()
    }

    /// Gives the place of a slot in `cleanup_failed` to a new one, which the next call makes. `generation` is the one that
    /// was seen not to be proved gone. See `Slot::set_aside`.
    ///
    /// # Errors
    /// Nothing has changed, and why.
    pub fn set_aside(&self, slot: &Arc<Slot>, generation: Generation) -> Result<(), NotSetAside> {
        let max = self.limits.set_aside_max;
        {
            let mut registered = self.services.registered();
            let is_in_place = registered.slots.get(&slot.key).is_some_and(|known| Arc::ptr_eq(known, slot));
            if !is_in_place {
                return Err(NotSetAside::NotUnproved);
            }
            if registered.set_aside.len() >= max {
                return Err(NotSetAside::Full { max });
            }
            if !slot.set_aside(generation) {
                return Err(NotSetAside::NotUnproved);
            }
            registered.slots.remove(&slot.key);
            registered.set_aside.push(slot.clone());
        }
        tracing::warn!(slot = %slot, "set aside by an operator: not proved gone, and its place is free");
        slot.tell(What::SetAside { instance: slot.named(generation.number()) });
        // An operator has decided that others may run beside it.
        slot.cede_place();
        slot.retire();
        Ok(())
    }

    /// What a backend's slots have done.
    pub fn tally(&self, backend: &str) -> Tally {
        self.services.registered().tallies.get(backend).copied().unwrap_or_default()
    }

    /// Why the keepers are the only owners, if they are.
    pub fn cgroups_missing(&self) -> Option<&NoCgroups> {
        self.services.cgroups.as_ref().err()
    }

    /// Controllers that work in the cgroups of generations.
    pub fn controllers(&self) -> &[Controller] {
        self.services.cgroups.as_ref().map(Cgroups::controllers).unwrap_or_default()
    }

    /// Why not all of these limits can hold for a generation here.
    pub fn why_unlimited(&self, limits: TreeLimits) -> Option<String> {
        self.services.why_unlimited(limits)
    }

    /// Ends what an earlier broker left behind, and proves it; the reason if that did not succeed within `budget`.
    /// Until it has succeeded once, no call is given a slot. `powershell_of` is how Windows is asked for a backend.
    pub async fn sweep_leftovers(
        &self,
        budget: LeftoversBudget,
        powershell_of: impl Fn(&str) -> Result<Powershell, String>,
    ) -> Result<(), String> {
        let leftovers = self.services.journal.sweep_leftovers(budget, powershell_of).await;
        let leftovers = leftovers.map_err(|e| e.to_string())?;
        let busy: Vec<_> = leftovers
            .iter()
            .filter_map(|Leftover { record, sweep }| match sweep {
                Sweep::Busy { reason: Some(reason), .. } => {
                    Some(format!("{}/{} ({reason})", record.backend, record.instance))
                }
                Sweep::Busy { reason: None, .. } => Some(format!("{}/{}", record.backend, record.instance)),
                Sweep::Empty { .. } => None,
            })
            .collect();
        if !leftovers.is_empty() {
            tracing::info!(found = leftovers.len(), unproved = busy.len(), "leftovers of an earlier broker");
        }
        if !busy.is_empty() {
            return Err(format!("left by an earlier broker and not proved gone: {}", busy.join(", ")));
        }
        self.services.registered().is_clear = true;
        Ok(())
    }

    /// Stops everything and waits for the proofs, at most for `budget`: calls under way first have the drain time of
    /// their backend. The slots that could not be proved empty, none when all is well. Called again, it goes on
    /// waiting.
    pub async fn shutdown(&self, budget: Duration) -> Vec<Arc<Slot>> {
        let slots = {
            let mut registered = self.services.registered();
            registered.is_shutting_down = true;
            registered.all()
        };
        for slot in &slots {
            slot.retire();
            // Whatever could not be proved may be by now, and its next look may be minutes away.
            slot.event(Event::Recover);
        }
        self.services.tracker.close();
        // An error means that the budget is used up: what is left is what is returned.
        let _ = tokio::time::timeout(budget, self.services.tracker.wait()).await;
        slots.into_iter().filter(|slot| slot.view().state != PublicState::Stopped).collect()
    }

    /// During a shutdown: calls under way are not waited for any longer.
    pub fn hurry(&self) {
        for slot in self.slots() {
            slot.hurry();
        }
    }
}

impl Services {
    pub fn tally(&self, backend: &Arc<str>, count: impl FnOnce(&mut Tally)) {
        count(self.registered().tallies.entry(backend.clone()).or_default());
    }

    /// Stops idle instances, the least recently used first, until those who wait for a place have one in sight.
    pub fn make_room(&self) {
        let slots: Vec<_> = self.registered().slots.values().cloned().collect();
        let mut idle: Vec<_> = slots.into_iter().filter_map(|slot| Some((slot.idle_since()?, slot))).collect();
        idle.sort_by_key(|(since, _)| *since);
        for (_, slot) in idle {
            if !self.shared.floor.is_short() {
                return;
            }
            // One that is used again by now is let be.
            slot.evict();
        }
    }

    pub fn why_unlimited(&self, limits: TreeLimits) -> Option<String> {
        match &self.cgroups {
            _ if limits.is_none() => None,
            Ok(cgroups) => cgroups.why_unlimited(limits),
            Err(reason) => Some(format!("no cgroup: {reason}")),
        }
    }

    /// A slot that is over for good, or whose driver has nothing left to do for it, leaves the registry.
    pub fn settle(&self, slot: &Slot) {
        if slot.is_retired() && slot.forget_if_vacant() {
            let mut registered = self.registered();
            if registered.slots.get(&slot.key).is_some_and(|known| std::ptr::eq(&**known, slot)) {
                registered.slots.remove(&slot.key);
            }
            registered.set_aside.retain(|known| !std::ptr::eq(&**known, slot));
        }
    }

    pub fn registered(&self) -> MutexGuard<'_, Registered> {
        self.registered.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Registered {
    fn all(&self) -> Vec<Arc<Slot>> {
        self.slots.values().chain(&self.set_aside).cloned().collect()
    }
}

#[cfg(test)]
pub(super) mod tests;
