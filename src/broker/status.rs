//! What the broker says of itself. Facts from the process table are looked up when asked, in one pass.
//!
//! No argument, result, URL, credential, environment value or command line is in here (invariant 13).

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use super::Broker;
use crate::core::lifecycle::PublicState;
use crate::ownership::Owner;
use crate::ownership::process_table::{Process, ProcessTable};
use crate::snapshot::Backend;
use crate::supervisor::{Cleanup, Slot, SlotView, Tally};

/// Whether policies and catalogs are as they were accepted. Nothing records acceptance yet, so nothing is.
const REVIEWED: bool = false;

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
struct Seen {
    id: String,
    scope_key_hash: String,
    view: SlotView,
    processes: usize,
    rss_bytes: u64,
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
        let mut totals = json!({
            "live_instances": count(|state| state != PublicState::Stopped),
            "active_calls": all().map(|seen| seen.view.active).sum::<usize>(),
            "queued_calls": all().map(|seen| seen.view.queued).sum::<usize>(),
            "owned_processes": all().map(|seen| seen.processes).sum::<usize>(),
            "owned_rss_bytes": all().map(|seen| seen.rss_bytes).sum::<u64>(),
            "cleanup_failed": count(|state| state == PublicState::CleanupFailed),
        });
        if let (Some(totals), Value::Object(front)) = (totals.as_object_mut(), front) {
            totals.extend(front);
        }
        let none = Vec::new();
        let disabled = snapshot.config.backends.values().filter(|backend| !backend.enabled).map(|backend| {
            json!({
                "name": backend.name, "mount": format!("/{}/mcp", backend.name), "enabled": false, "scope": null,
                "fingerprint": null, "policy": null, "catalog": null, "queue_limit": null,
                "idle_timeout_seconds": null, "starts": 0, "proofs": 0, "instances": [],
            })
        });
        let backends: Vec<Value> = snapshot
            .backends
            .values()
            .map(|backend| {
                let tally = self.supervisor.tally(&backend.name);
                backend_status(backend, tally, seen.get(&*backend.name).unwrap_or(&none))
            })
            .chain(disabled)
            .collect();
        let reasons = self.readiness.reasons();
        let cgroups_missing = self.supervisor.cgroups_missing().map(ToString::to_string);
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
                "reviewed": REVIEWED,
                "last_reload": {"at": timestamp(self.started_at), "ok": true, "errors": []},
                "owner_kinds": owner_kinds,
                "cgroup_unavailable_because": cgroups_missing,
            },
            "totals": totals,
            "backends": backends,
        })
    }
}

fn look(slots: &[std::sync::Arc<Slot>]) -> BTreeMap<String, Vec<Seen>> {
    let table = ProcessTable::read().unwrap_or_default();
    let mut seen: BTreeMap<String, Vec<Seen>> = BTreeMap::new();
    for slot in slots {
        let view = slot.view();
        // A keeper that is gone has left its tree to the broker: then only the last sweep knows who is in it.
        let keeper = view.keeper.and_then(|keeper| table.get(keeper));
        let owned: Vec<&Process> = keeper.map(|keeper| table.descendants(keeper.pid)).unwrap_or_default();
        // What is on Windows is in no process table of ours.
        let survivors = view.survivors.iter().filter(|survivor| survivor.windows || keeper.is_none()).count();
        let seen_slot = Seen {
            id: slot.id.clone(),
            scope_key_hash: slot.key.scope_key_hash(),
            processes: owned.len() + survivors,
            rss_bytes: owned.iter().map(|process| process.rss_bytes).sum(),
            view,
        };
        seen.entry(slot.key.backend.to_string()).or_default().push(seen_slot);
    }
    seen
}

fn backend_status(backend: &Backend, tally: Tally, instances: &[Seen]) -> Value {
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
            "reviewed": REVIEWED,
        },
        "catalog": {
            "package": catalog.package,
            "version": catalog.version,
            "digest": catalog.digest,
            "tools": backend.tool_count(),
            "excluded": backend.excluded_count(),
            "drift": if has_drift { "changed" } else { "none" },
            "list_bytes": backend.surface.len(),
        },
        "queue_limit": policy.queue.len_max,
        "max_concurrency": policy.max_concurrency,
        "idle_timeout_seconds": policy.idle_timeout.as_secs_f64(),
        "starts": tally.starts,
        "proofs": tally.proofs,
        "last_cleanup": tally.last_cleanup.map(cleanup_status),
        "instances": instances.iter().map(instance_status).collect::<Vec<_>>(),
    })
}

fn instance_status(seen: &Seen) -> Value {
    let view = &seen.view;
    let survivors: Vec<Value> = view
        .survivors
        .iter()
        .map(|survivor| json!({"pid": survivor.pid, "start_time": survivor.start_time, "name": survivor.comm, "state": survivor.state, "windows": survivor.windows}))
        .collect();
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
        "keeper_pid": view.keeper.map(|keeper| keeper.pid),
        "owned_processes": seen.processes,
        "rss_bytes": seen.rss_bytes,
        "last_cleanup": view.last_cleanup.map(|cleanup| {
            let mut shown = cleanup_status(cleanup);
            shown["reason"] = view.cleanup_reason.clone().into();
            shown
        }),
        "survivors": survivors,
        "last_failure": view.last_failure.as_ref().map(|failure| json!({
            "at": timestamp(failure.at), "kind": failure.kind(), "generation": failure.generation,
            "cause": failure.cause.to_string(),
        })),
        "drifted_tools": view.drifted,
        "dropped": view.dropped.iter().map(|(kind, n)| ((*kind).to_owned(), Value::from(*n))).collect::<serde_json::Map<_, _>>(),
    })
}

fn cleanup_status(cleanup: Cleanup) -> Value {
    json!({"ok": cleanup.ok, "ms": ms(cleanup.took), "survivors": cleanup.survivors})
}

/// RFC 3339 in UTC, to the millisecond.
fn timestamp(at: SystemTime) -> String {
    let at = jiff::Timestamp::try_from(at).unwrap_or(jiff::Timestamp::UNIX_EPOCH);
    format!("{at:.3}")
}

fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
