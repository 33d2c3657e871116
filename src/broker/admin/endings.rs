//! Ending what runs, and looking again at what could not be proved gone.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures_util::future::join_all;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Context;
use super::looks::unknown;
use crate::broker::evidence::{Evidence, SurvivorSeen};
use crate::broker::status::{Seen, ms};
use crate::broker::{Broker, Fault};
use crate::core::diagnostic::suggestion;
use crate::core::lifecycle::PublicState;
use crate::ownership::process_table::ProcessTable;
use crate::protocol::error::shown;
use crate::supervisor::{Ended, NotSetAside, Slot, SlotView};

pub(super) const STOP: &str = "Lets calls under way end, stops one instance of a backend or all, and waits until every \
process of them is proved gone. Calls that wait, and the next one, get a new generation.";
pub(super) const RECOVER: &str = "For instances in cleanup_failed: kills what is left once more, looks again, and \
unlocks what is proved gone. With force, one instance that is still not proved is set aside: the next call starts a \
new generation beside it, while it stays in the status as cleanup_failed until it is proved gone.";

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Instances {
    /// The backend, as the configuration names it.
    backend: String,
    /// The id of one instance, as the status shows it; without it all of the backend.
    #[serde(default)]
    instance: Option<String>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ToRecover {
    /// The backend, as the configuration names it.
    backend: String,
    /// The id of one instance, as the status shows it; without it all of the backend that are in cleanup_failed.
    #[serde(default)]
    instance: Option<String>,
    /// Set it aside if it still cannot be proved gone. Needs `instance`.
    #[serde(default)]
    force: bool,
}

/// What came of it: the worst that came of an instance.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Endings {
    outcome: Outcome,
    /// The same in words.
    text: String,
    instances: Vec<Ending>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Ending {
    /// `BACKEND/ID`.
    instance: String,
    /// The one that this is about; 0 when there never was one.
    generation: u64,
    outcome: Outcome,
    /// The public state that the instance is in now.
    state: String,
    /// From the last kill to the proof.
    took_ms: Option<u64>,
    text: String,
    /// What was tried, if it is not proved gone.
    cleanup: Option<Evidence>,
    /// What is left.
    survivors: Vec<SurvivorSeen>,
}

/// From the best to the worst, but that nothing to do is better than anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Outcome {
    /// It was in another state.
    NothingToDo,
    Proved,
    /// Not proved gone, but out of the way of the next call.
    SetAside,
    /// It is in cleanup_failed, and blocks calls unless it was set aside before.
    NotProved,
    /// Not over yet; it goes on.
    Pending,
}

/// What was asked of a slot, and the answer so far.
struct Asked {
    slot: Arc<Slot>,
    ended: Ended,
    is_set_aside_now: bool,
}

pub(super) async fn stop_instance(context: Context, which: Instances) -> Result<Endings, Fault> {
    let slots = find(&context, &which.backend, which.instance.as_deref())?;
    let asked = join_all(slots.into_iter().map(async |slot| {
        tracing::info!(slot = %slot, "stop ordered by an operator");
        let ended = slot.stop().await;
        Asked { slot, ended, is_set_aside_now: false }
    }));
    Endings::of(asked.await, &which.backend).await
}

pub(super) async fn recover_instance(context: Context, which: ToRecover) -> Result<Endings, Fault> {
    let ToRecover { backend, instance, force } = which;
    if force && instance.is_none() {
        return Err(Fault::new("invalid_arguments", "force needs the id of one instance: look at what is set aside"));
    }
    let mut slots = find(&context, &backend, instance.as_deref())?;
    let is_unproved = |slot: &Arc<Slot>| slot.view().state == PublicState::CleanupFailed;
    // A slot that was set aside has the id of the one in its place.
    if slots.iter().any(is_unproved) {
        slots.retain(is_unproved);
    }
    let asked = join_all(slots.into_iter().map(async |slot| {
        tracing::info!(slot = %slot, "another look ordered by an operator");
        let ended = slot.recover().await;
        Asked { slot, ended, is_set_aside_now: false }
    }));
    let mut asked = asked.await;
    if force {
        asked.iter_mut().try_for_each(|asked| asked.set_aside(&context.broker))?;
    }
    Endings::of(asked, &backend).await
}

impl Asked {
    /// Only what was just found not to be gone.
    fn set_aside(&mut self, broker: &Broker) -> Result<(), Fault> {
        let Self { slot, ended: Ended::NotProved(generation), .. } = self else { return Ok(()) };
        match broker.supervisor.set_aside(slot, *generation) {
            Ok(()) => self.is_set_aside_now = true,
            // Proved in this moment, or set aside before: its view says which.
            Err(NotSetAside::NotUnproved) => {}
            Err(NotSetAside::Full { max }) => {
                let why = format!("{slot} is not set aside: {max} are already, which is the limit; solve one of those");
                return Err(Fault::new("unavailable", why));
            }
        }
        Ok(())
    }
}

/// All names that mean a backend: configured, or removed with something left.
pub(super) fn backend_names(broker: &Broker) -> BTreeSet<String> {
    let slots = broker.supervisor.slots();
    let running = slots.iter().map(|slot| slot.key.backend.to_string());
    broker.snapshot().config.backends.keys().cloned().chain(running).collect()
}

fn find(context: &Context, backend: &str, instance: Option<&str>) -> Result<Vec<Arc<Slot>>, Fault> {
    if !backend_names(&context.broker).contains(backend) {
        return Err(unknown(context, backend));
    }
    let mut slots = context.broker.supervisor.slots();
    slots.retain(|slot| &*slot.key.backend == backend);
    let Some(id) = instance else { return Ok(slots) };
    let (found, others): (Vec<_>, Vec<_>) = slots.into_iter().partition(|slot| slot.id == id);
    if found.is_empty() {
        let hint = suggestion(id, others.iter().map(|slot| &*slot.id));
        let why = format!("'{backend}' has no instance '{}'{hint}; those that exist are in the status", shown(id));
        return Err(Fault::new("no_such_instance", why));
    }
    Ok(found)
}

impl Endings {
    async fn of(asked: Vec<Asked>, backend: &str) -> Result<Self, Fault> {
        let look = move || {
            let table = ProcessTable::read().unwrap_or_default();
            asked.iter().map(|asked| Ending::of(asked, Seen::look(&asked.slot, &table))).collect()
        };
        let looked = tokio::task::spawn_blocking(look).await;
        // None would read as "nothing runs".
        let instances: Vec<Ending> =
            looked.map_err(|e| Fault::new("unavailable", format!("the answer could not be made out: {e}")))?;
        let lines: Vec<&str> = instances.iter().map(|ending| &*ending.text).collect();
        let text =
            if lines.is_empty() { format!("'{backend}' has no instance: nothing runs") } else { lines.join("\n") };
        let outcome = instances.iter().map(|ending| ending.outcome).max().unwrap_or(Outcome::NothingToDo);
        Ok(Self { outcome, text, instances })
    }
}

impl Ending {
    fn of(asked: &Asked, seen: Seen) -> Self {
        let Seen { view, survivors, evidence, .. } = seen;
        let slot = &asked.slot;
        let (outcome, generation) = match asked.ended {
            // Proved a moment later is as good as proved at once.
            Ended::NotProved(generation) if view.generation != Some(generation) => (Outcome::Proved, Some(generation)),
            Ended::NotProved(generation) if asked.is_set_aside_now => (Outcome::SetAside, Some(generation)),
            Ended::NotProved(generation) => (Outcome::NotProved, Some(generation)),
            Ended::Proved(generation) => (Outcome::Proved, Some(generation)),
            Ended::Pending(generation) => (Outcome::Pending, Some(generation)),
            Ended::Nothing(_) => (Outcome::NothingToDo, view.generation),
        };
        let generation = generation.map_or(view.last_generation, |generation| generation.number());
        Self {
            instance: slot.to_string(),
            generation,
            outcome,
            state: view.state.to_string(),
            took_ms: view.last_cleanup.filter(|_| outcome == Outcome::Proved).map(|cleanup| ms(cleanup.took)),
            text: format!("{slot}, generation {generation}: {}", say(outcome, &view, evidence.as_ref())),
            cleanup: evidence,
            survivors,
        }
    }
}

fn say(outcome: Outcome, view: &SlotView, evidence: Option<&Evidence>) -> String {
    let attempts = evidence.map_or(0, |evidence| evidence.attempts);
    let next = match evidence.and_then(|evidence| evidence.next_attempt_in_ms) {
        Some(ms) => format!("the next attempt is in {} s", ms.div_ceil(1000)),
        None => "the next attempt is under way".to_owned(),
    };
    match (outcome, view.state) {
        (Outcome::Proved, _) => "proved gone; the next call starts a new generation".to_owned(),
        (Outcome::SetAside, _) => format!(
            "NOT proved gone after {attempts} attempts, and set aside: the next call starts a new generation beside it; \
             it stays cleanup_failed in the status until it is proved gone, {next}"
        ),
        (Outcome::NotProved, _) if view.is_set_aside => {
            format!("set aside before, and still NOT proved gone after {attempts} attempts; {next}")
        }
        (Outcome::NotProved, _) => format!("NOT proved gone after {attempts} attempts; calls are refused; {next}"),
        (Outcome::Pending, state) => format!("still {state}; it goes on"),
        (Outcome::NothingToDo, PublicState::Stopped) => "stopped; nothing to do".to_owned(),
        (Outcome::NothingToDo, state) => format!("{state}, not cleanup_failed; `lazy-mcp stop` ends it"),
    }
}
