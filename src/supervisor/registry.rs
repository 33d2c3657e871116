//! All slots, by their keys, and what they share.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use tokio_util::task::TaskTracker;

use super::driver::Driver;
use super::instance::InstanceKey;
use super::plan::Plan;
use super::slot::{Cleanup, Slot};
use crate::core::lifecycle::PublicState;
use crate::ownership::journal::Leftover;
use crate::ownership::{Cgroups, Journal, KeeperProgram, NoCgroups, Powershell, Sweep};

/// Bounds of the supervisor.
#[derive(Clone, Copy, Debug)]
pub struct SupervisorLimits {
    /// Slots kept, stopped ones included, which are forgotten first.
    pub slots_max: usize,
}

/// Why there is no slot for a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoSlot {
    /// All places are taken by slots that are in use.
    Full {
        max: usize,
    },
    ShuttingDown,
    /// What an earlier broker left is not proved gone, and nothing is started beside it.
    Leftovers,
}

/// The running things. Ends with `shutdown`; dropped without it, the keepers sweep by themselves.
#[derive(Debug)]
pub struct Supervisor {
    services: Arc<Services>,
    limits: SupervisorLimits,
    epoch: Instant,
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
struct Registered {
    slots: HashMap<InstanceKey, Arc<Slot>>,
    /// By backend, so bounded by the configuration.
    tallies: HashMap<Arc<str>, Tally>,
    is_shutting_down: bool,
    /// Whether what an earlier broker left is proved gone.
    is_clear: bool,
}

impl Supervisor {
    /// Blocks on the kernel for some milliseconds: it looks for a place for cgroups.
    pub fn new(journal: Journal, keeper: KeeperProgram, limits: SupervisorLimits) -> Self {
        let cgroups = Cgroups::find(journal.installation());
        let services = Services { journal, keeper, cgroups, tracker: TaskTracker::new(), registered: Mutex::default() };
        Self { services: Arc::new(services), limits, epoch: Instant::now() }
    }

    /// The slot of a key, made if there is none. Starts nothing but the slot's own task.
    pub fn slot(&self, key: &InstanceKey, plan: impl FnOnce() -> Arc<Plan>) -> Result<Arc<Slot>, NoSlot> {
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
        let max = self.limits.slots_max;
        if registered.slots.len() >= max {
            registered.slots.retain(|_, slot| !slot.forget_if_vacant());
        }
        if registered.slots.len() >= max {
            return Err(NoSlot::Full { max });
        }
        let (inbox, orders) = mpsc::unbounded_channel();
        let id = key.instance_id(self.services.journal.installation());
        let high_water = self.services.journal.high_water(&key.backend);
        let slot = Arc::new(Slot::new(key.clone(), id, plan(), high_water, inbox.clone(), self.epoch));
        registered.slots.insert(key.clone(), slot.clone());
        let driver = Driver::new(slot.clone(), self.services.clone(), orders, inbox);
        self.services.tracker.spawn(driver.run());
        Ok(slot)
    }

    /// The slot of a key, if there is one.
    pub fn find(&self, key: &InstanceKey) -> Option<Arc<Slot>> {
        self.services.registered().slots.get(key).cloned()
    }

    /// All slots, in a stable order.
    pub fn slots(&self) -> Vec<Arc<Slot>> {
        let mut slots: Vec<_> = self.services.registered().slots.values().cloned().collect();
        slots.sort_by(|a, b| (&a.key.backend, &a.id).cmp(&(&b.key.backend, &b.id)));
        slots
    }

    /// What a backend's slots have done.
    pub fn tally(&self, backend: &str) -> Tally {
        self.services.registered().tallies.get(backend).copied().unwrap_or_default()
    }

    /// Why the keepers are the only owners, if they are.
    pub fn cgroups_missing(&self) -> Option<&NoCgroups> {
        self.services.cgroups.as_ref().err()
    }

    /// Ends what an earlier broker left behind, and proves it; the reason if that did not succeed within `budget`.
    /// Until it has succeeded once, no call is given a slot. `powershell_of` is how Windows is asked for a backend.
    pub async fn sweep_leftovers(
        &self,
        budget: Duration,
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
            registered.slots.values().cloned().collect::<Vec<_>>()
        };
        for slot in &slots {
            slot.retire();
        }
        self.services.tracker.close();
        // An error means that the budget is used up: what is left is what is returned.
        let _ = tokio::time::timeout(budget, self.services.tracker.wait()).await;
        slots.into_iter().filter(|slot| slot.view().state != PublicState::Stopped).collect()
    }
}

impl Services {
    pub fn tally(&self, backend: &Arc<str>, count: impl FnOnce(&mut Tally)) {
        count(self.registered().tallies.entry(backend.clone()).or_default());
    }

    /// A slot that is over for good, or whose driver has nothing left to do for it, leaves the registry.
    pub fn settle(&self, slot: &Slot) {
        if slot.is_retired() && slot.forget_if_vacant() {
            let mut registered = self.registered();
            if registered.slots.get(&slot.key).is_some_and(|known| std::ptr::eq(&**known, slot)) {
                registered.slots.remove(&slot.key);
            }
        }
    }

    fn registered(&self) -> MutexGuard<'_, Registered> {
        self.registered.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
