//! `/metrics`: what runs now, and how often what happened, in the OpenMetrics text that Prometheus reads.
//!
//! Gauges are looked up when they are asked for, so that there is one truth for each of them; counters are those of the
//! event log.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::Broker;
use super::status::{Seen, look};
use crate::core::lifecycle::PublicState;
use crate::telemetry::metric;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Version {
    version: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfBackend {
    backend: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfState {
    backend: String,
    state: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfEvent {
    backend: String,
    event: &'static str,
}

/// Each is shown for each backend, also with 0: what is absent cannot be alarmed about.
const STATES: [PublicState; 6] = [
    PublicState::Stopped,
    PublicState::Starting,
    PublicState::Ready,
    PublicState::Draining,
    PublicState::Stopping,
    PublicState::CleanupFailed,
];

impl Broker {
    /// The whole of `/metrics`. `sessions` is what the front counts.
    pub async fn metrics(&self, sessions: usize) -> String {
        let slots = self.supervisor.slots();
        let seen = tokio::task::spawn_blocking(move || look(&slots)).await.unwrap_or_default();
        let mut registry = Registry::with_prefix(metric::PREFIX);
        let build = Family::<Version, Gauge>::default();
        build.get_or_create(&Version { version: env!("CARGO_PKG_VERSION") }).set(1);
        registry.register(metric::BUILD, "The running version", build);
        let occupancy = self.supervisor.occupancy();
        for (name, help, value) in [
            (metric::READY, "Whether calls are served", usize::from(self.readiness.reasons().is_empty())),
            (metric::SESSIONS, "Sessions of clients", sessions),
            (metric::LIVE_INSTANCES_MAX, "Instances that may run at the same time", occupancy.limits.live_max),
            (metric::WAITING_FOR_A_PLACE, "Instances that wait until they may start", occupancy.waiting),
        ] {
            let gauge: Gauge = Gauge::default();
            gauge.set(signed(value));
            registry.register(name, help, gauge);
        }
        let [active, queued, processes, rss] = [(); 4].map(|()| Family::<OfBackend, Gauge>::default());
        let instances = Family::<OfState, Gauge>::default();
        let none = Vec::new();
        for name in self.snapshot().backends.keys() {
            let label = || OfBackend { backend: name.to_string() };
            let seen: &Vec<Seen> = seen.get(&**name).unwrap_or(&none);
            active.get_or_create(&label()).set(signed(seen.iter().map(|seen| seen.view.active).sum()));
            queued.get_or_create(&label()).set(signed(seen.iter().map(|seen| seen.view.queued).sum()));
            processes.get_or_create(&label()).set(signed(seen.iter().map(|seen| seen.processes).sum()));
            let bytes: u64 = seen.iter().map(|seen| seen.rss_bytes).sum();
            rss.get_or_create(&label()).set(i64::try_from(bytes).unwrap_or(i64::MAX));
            for state in STATES {
                let count = seen.iter().filter(|seen| seen.view.state == state).count();
                let label = OfState { backend: name.to_string(), state: state.as_str() };
                instances.get_or_create(&label).set(signed(count));
            }
        }
        registry.register(metric::INSTANCES, "Instances, by state; cleanup_failed is not proved gone", instances);
        registry.register(metric::ACTIVE_CALLS, "Calls that run", active);
        registry.register(metric::QUEUED_CALLS, "Calls that wait", queued);
        registry.register(metric::OWNED_PROCESSES, "Processes below the keepers", processes);
        registry.register(metric::OWNED_RSS_BYTES, "Their resident memory, shared pages counted for each", rss);
        let events = Family::<OfEvent, Counter>::default();
        for (backend, event, count) in self.events.counts() {
            let backend = backend.map(|name| name.to_string()).unwrap_or_default();
            events.get_or_create(&OfEvent { backend, event }).inc_by(count);
        }
        registry.register(metric::EVENTS, "What happened, by the names of /events", events);
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = encode(&mut text, &registry);
        text
    }
}

fn signed(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
