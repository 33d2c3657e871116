//! What the broker says of itself. Facts from the process table are looked up when asked, in one pass.
//!
//! No argument, result, URL, credential, environment value or command line is in here (invariant 13).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use super::Broker;
use super::evidence::{Evidence, SurvivorSeen};
use super::parked::PARKED_CALLS_MAX;
use crate::core::lifecycle::PublicState;
use crate::events::timestamp;
use crate::ownership::Owner;
use crate::ownership::kept_files::{BYTES_MAX, FILES_MAX};
use crate::ownership::process_table::{Process, ProcessTable};
use crate::review::Review;
use crate::snapshot::Backend;
use crate::supervisor::{Cleanup, Limits, Slot, SlotView, Tally};

/// Why the broker is not ready, if it is not.
#[derive(Debug, Default)]
pub struct Readiness(Mutex<Reasons>);

#[derive(Debug, Default)]
struct Reasons {
    reasons: Vec<String>,
    is_final: bool,
}

impl Readiness {
    /// Replaces the reasons; none means ready.
    pub fn set(&self, reasons: Vec<String>) {
        let mut state = self.lock();
        if !state.is_final {
            state.reasons = reasons;
        }
    }

    /// Not ready any more, whatever comes.
    pub fn end(&self, reason: &str) {
        *self.lock() = Reasons { reasons: vec![reason.to_owned()], is_final: true };
    }

    pub fn reasons(&self) -> Vec<String> {
        self.lock().reasons.clone()
    }

    fn lock(&self) -> MutexGuard<'_, Reasons> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One instance with what the process table says of it.
pub(super) struct Seen {
    id: String,
    scope_key_hash: String,
    pub view: SlotView,
    pub processes: usize,
    pub rss_bytes: u64,
    pub survivors: Vec<SurvivorSeen>,
    /// Of one in `cleanup_failed`.
    pub evidence: Option<Evidence>,
}

impl Broker {
    /// The whole of `/status`.
    /// `front` is what the front counts: sessions and streams.
    pub async fn status(&self, front: Value) -> Value {
        let slots = self.supervisor.slots();
        let seen = tokio::task::spawn_blocking(move || look(&slots)).await.unwrap_or_default();
        let snapshot = self.snapshot();
        let all = || seen.values().flatten();
        let count = |is_meant: fn(PublicState) -> bool| all().filter(|seen| is_meant(seen.view.state)).count();
        let occupancy = self.supervisor.occupancy();
        let (reads, reads_max) = self.reads.occupancy();
        let mut totals = json!({
            "live_instances": count(|state| state != PublicState::Stopped),
            "active_calls": all().map(|seen| seen.view.active).sum::<usize>(),
            "queued_calls": all().map(|seen| seen.view.queued).sum::<usize>(),
            "owned_processes": all().map(|seen| seen.processes).sum::<usize>(),
            "owned_rss_bytes": all().map(|seen| seen.rss_bytes).sum::<u64>(),
            "cleanup_failed": count(|state| state == PublicState::CleanupFailed),
            "live_instances_max": occupancy.limits.live_max,
            "concurrent_starts_max": occupancy.limits.starts_max,
            "waiting_for_a_place": occupancy.waiting,
            "resource_reads": reads,
            "resource_reads_max": reads_max,
            "parked_calls": self.parked_calls(),
            "parked_calls_max": PARKED_CALLS_MAX,
            "policy_threads_abandoned": crate::policy::threads_abandoned(),
        });
        if let (Some(totals), Value::Object(front)) = (totals.as_object_mut(), front) {
            totals.extend(front);
        }
        let none = Vec::new();
        // Not served; of one that was, something may still be on its way out.
        let names: BTreeSet<&str> = snapshot.config.backends.keys().chain(seen.keys()).map(String::as_str).collect();
        let disabled = names.into_iter().filter(|name| snapshot.backend(name).is_none()).map(|name| {
            let tally = self.supervisor.tally(name);
            let instances = seen.get(name).into_iter().flatten().map(instance_status).collect::<Vec<_>>();
            json!({
                "name": name, "mount": format!("/{name}/mcp"), "enabled": false,
                "configured": snapshot.config.backends.contains_key(name),
                "enabled_by": self.enabled_by(name), "scope": null,
                "fingerprint": null, "policy": null, "catalog": null, "queue_limit": null,
                "idle_timeout_seconds": null, "limits": null, "starts": tally.starts, "proofs": tally.proofs,
                "last_cleanup": tally.last_cleanup.map(cleanup_status), "instances": instances,
            })
        });
        let backends: Vec<Value> = snapshot
            .backends
            .values()
            .map(|backend| {
                let tally = self.supervisor.tally(&backend.name);
                let asked = backend.plan.config.ownership.limits;
                let limits = Limits { asked, refusal: self.supervisor.why_unlimited(asked).map(Arc::from) };
                let (review, seen) = (snapshot.reviewed.of(&backend.name), seen.get(&*backend.name).unwrap_or(&none));
                let mut shown = backend_status(backend, review, tally, &limits, seen);
                shown["enabled_by"] = self.enabled_by(&backend.name).into();
                shown
            })
            .chain(disabled)
            .collect();
        let reasons = self.readiness.reasons();
        let last_reload = self.reloads.last();
        let cgroups_missing = self.supervisor.cgroups_missing().map(ToString::to_string);
        let controllers: Vec<_> = self.supervisor.controllers().iter().map(|controller| controller.as_str()).collect();
        let has_windows = snapshot.config.enabled().any(|backend| backend.ownership.windows);
        let owner_kinds = [("keeper", true), ("cgroup", cgroups_missing.is_none()), ("windows", has_windows)];
        let owner_kinds: Vec<_> =
            owner_kinds.into_iter().filter_map(|(kind, is_there)| is_there.then_some(kind)).collect();
        json!({
            "broker": {
                "version": env!("CARGO_PKG_VERSION"),
                "pid": std::process::id(),
                "started_at": timestamp(self.started_at),
                "revision": snapshot.revision,
                "ready": reasons.is_empty(),
                "not_ready_because": reasons,
                "reviewed": snapshot.reviewed.is_whole(),
                "last_reload": {
                    "at": timestamp(last_reload.at), "ok": last_reload.errors.is_empty(), "errors": last_reload.errors,
                },
                "owner_kinds": owner_kinds,
                "cgroup_unavailable_because": cgroups_missing,
                "cgroup_controllers": controllers,
            },
            "totals": totals,
            "backends": backends,
        })
    }
}

impl Broker {
    /// Who says whether a backend is served: its file, or an operator until the broker restarts.
    fn enabled_by(&self, backend: &str) -> &'static str {
        if self.reloads.switch_of(backend).is_some() { "operator" } else { "file" }
    }
}

pub(super) fn look(slots: &[Arc<Slot>]) -> BTreeMap<String, Vec<Seen>> {
    let table = ProcessTable::read().unwrap_or_default();
    let mut seen: BTreeMap<String, Vec<Seen>> = BTreeMap::new();
    for slot in slots {
        seen.entry(slot.key.backend.to_string()).or_default().push(Seen::look(slot, &table));
    }
    seen
}

impl Seen {
    /// Blocks on `/proc` for some microseconds a survivor.
    pub(super) fn look(slot: &Slot, table: &ProcessTable) -> Self {
        let view = slot.view();
        // A keeper that is gone has left its tree to the broker: then only the last sweep knows who is in it.
        let keeper = view.keeper.and_then(|keeper| table.get(keeper));
        let owned: Vec<&Process> = keeper.map(|keeper| table.descendants(keeper.pid)).unwrap_or_default();
        // What is on Windows is in no process table of ours.
        let survivors = view.survivors.iter().filter(|survivor| survivor.windows || keeper.is_none()).count();
        Self {
            id: slot.id.clone(),
            scope_key_hash: slot.key.scope_key_hash(),
            processes: owned.len() + survivors,
            rss_bytes: owned.iter().map(|process| process.rss_bytes).sum(),
            survivors: view.survivors.iter().map(SurvivorSeen::look).collect(),
            evidence: Evidence::of(slot, &view, keeper.is_none()),
            view,
        }
    }
}

fn backend_status(backend: &Backend, review: Review, tally: Tally, limits: &Limits, instances: &[Seen]) -> Value {
    let (policy, catalog) = (&backend.policy, &backend.catalog);
    let has_drift = instances.iter().any(|seen| !seen.view.drifted.is_empty());
    json!({
        "name": &*backend.name,
        "mount": backend.mount(),
        "enabled": true,
        "scope": backend.scope_name(),
        "fingerprint": backend.fingerprint,
        "policy": {
            "path": policy.path.display().to_string(),
            "digest": policy.digest,
            "reviewed": review.policy,
        },
        "catalog": {
            "package": catalog.package,
            "version": catalog.version,
            "digest": catalog.digest,
            "reviewed": review.catalog,
            "tools": backend.tool_count(),
            "excluded": backend.excluded_count(),
            "drift": if has_drift { "changed" } else { "none" },
            "list_bytes": backend.surface.len(),
        },
        "queue_limit": policy.queue.len_max,
        "max_concurrency": policy.max_concurrency,
        "idle_timeout_seconds": policy.idle_timeout.as_secs_f64(),
        "limits": limits_status(limits),
        "starts": tally.starts,
        "proofs": tally.proofs,
        "last_cleanup": tally.last_cleanup.map(cleanup_status),
        "instances": instances.iter().map(instance_status).collect::<Vec<_>>(),
    })
}

fn instance_status(seen: &Seen) -> Value {
    let view = &seen.view;
    let now = SystemTime::now();
    json!({
        "id": seen.id,
        "scope_key_hash": seen.scope_key_hash,
        "state": view.state.as_str(),
        "generation": view.generation.map_or(view.last_generation, |generation| generation.number()),
        "since": timestamp(now - view.since),
        "active": view.active,
        "queued": view.queued,
        "given_up": view.given_up,
        "idle_ms": view.idle.map(ms),
        "owner": view.owner.unwrap_or(Owner::Keeper).as_str(),
        "limits": view.limits.as_ref().map(limits_status),
        "last_over_limit": view.last_over_limit.map(|over| json!({
            "at": timestamp(over.at), "generation": over.generation.number(), "limit": over.limit.to_string(),
        })),
        "kept_files": view.kept.map(|kept| json!({
            "files": kept.files, "files_max": FILES_MAX, "bytes": kept.bytes, "bytes_max": BYTES_MAX, "evicted": kept.evicted,
        })),
        "keeper_pid": view.keeper.map(|keeper| keeper.pid),
        "owned_processes": seen.processes,
        "rss_bytes": seen.rss_bytes,
        "last_cleanup": view.last_cleanup.map(|cleanup| {
            let mut shown = cleanup_status(cleanup);
            shown["reason"] = view.cleanup_reason.clone().into();
            shown
        }),
        "survivors": seen.survivors,
        "cleanup": seen.evidence,
        "set_aside": view.is_set_aside,
        "last_failure": view.last_failure.as_ref().map(|failure| json!({
            "at": timestamp(failure.at), "kind": failure.kind(), "generation": failure.generation,
            "cause": failure.cause.to_string(),
        })),
        "drifted_tools": view.drifted,
        "dropped": view.dropped.iter().map(|(kind, n)| ((*kind).to_owned(), Value::from(*n))).collect::<serde_json::Map<_, _>>(),
    })
}

/// `null` where none was asked for.
fn limits_status(limits: &Limits) -> Value {
    let Limits { asked, refusal } = limits;
    match asked.is_none() {
        true => Value::Null,
        false => json!({
            "memory_max_mb": asked.memory_max_mb, "pids_max": asked.pids_max,
            "enforced": refusal.is_none(), "because": refusal.as_deref(),
        }),
    }
}

fn cleanup_status(cleanup: Cleanup) -> Value {
    json!({"ok": cleanup.ok, "ms": ms(cleanup.took), "survivors": cleanup.survivors})
}

pub(super) fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
