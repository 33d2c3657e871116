//! What the broker does for a client: one tool call, one list, one status; without HTTP and without processes.
//!
//! A request takes the snapshot once, at the front, and it is passed down from there (invariant 9). A call is a small
//! state machine that the front polls: queued, running, ended; dropping it is what a client's going away means.

pub mod admin;
mod audience;
mod awaited;
mod call;
mod decisions;
mod evidence;
mod fault;
mod finish;
mod metrics;
mod parked;
mod reload;
mod resources;
mod ruled;
mod session;
mod status;
mod undecided;

use std::sync::Arc;
use std::time::SystemTime;

use arc_swap::ArcSwap;
use tokio::sync::watch;

pub use audience::{Audience, Ears, OpenStream, Recipient};
pub use call::{Call, CallEvent, Client, Reply};
pub use decisions::PolicyFailed;
pub use fault::Fault;
pub use reload::{ReloadOptions, ReloadReport};
pub use resources::KEPT_SCHEME;
pub use session::Listening;
pub use status::Readiness;

use self::awaited::Awaited;
use self::parked::Parked;
use self::undecided::Undecided;
use crate::events::EventLog;
pub use crate::policy::RequestFacts;
use crate::protocol::call::CallRequest;
use crate::protocol::error::RpcError;
use crate::snapshot::{Backend, Snapshot};
use crate::supervisor::{InstanceKey, ScopeKey, Supervisor};
use reload::Reloads;
use resources::Reads;

/// Everything that the front needs: the current snapshot and the running things.
#[derive(Debug)]
pub struct Broker {
    snapshot: ArcSwap<Snapshot>,
    pub supervisor: Arc<Supervisor>,
    pub started_at: SystemTime,
    pub readiness: Readiness,
    pub events: Arc<EventLog>,
    pub audience: Arc<Audience>,
    common: Arc<Common>,
    reads: Reads,
    reloads: Reloads,
}

/// What every call uses.
#[derive(Debug)]
struct Common {
    supervisor: Arc<Supervisor>,
    events: Arc<EventLog>,
    undecided: Arc<Undecided>,
    awaited: Arc<Awaited>,
    parked: Parked,
}

impl Broker {
    /// Serves `snapshot`, the first revision, with a supervisor that has no plans yet.
    pub fn new(
        snapshot: Snapshot,
        supervisor: Arc<Supervisor>,
        events: Arc<EventLog>,
        audience: Arc<Audience>,
    ) -> Self {
        let reloads = Reloads::new(&snapshot);
        let common = Common {
            supervisor: supervisor.clone(),
            events: events.clone(),
            undecided: Arc::default(),
            awaited: Arc::default(),
            parked: Parked::default(),
        };
        supervisor.publish(&snapshot.plans()).expect("nothing shuts down before it serves");
        Self {
            snapshot: ArcSwap::from_pointee(snapshot),
            supervisor,
            started_at: SystemTime::now(),
            readiness: Readiness::default(),
            events,
            audience,
            common: Arc::new(common),
            reads: Reads::default(),
            reloads,
        }
    }

    /// The snapshot that a request is to see from its first byte to its last.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.snapshot.load_full()
    }

    /// The number of the revision that is served, and of each that comes; one that comes right after another may hide
    /// it. Told once `snapshot` gives it.
    pub fn revisions(&self) -> watch::Receiver<u64> {
        self.reloads.revisions()
    }

    /// Begins a call. A tool that clients do not see is an error of the protocol; any other call that cannot begin is
    /// one that has ended already.
    pub fn call(&self, backend: &Arc<Backend>, client: Client, request: CallRequest) -> Result<Call, RpcError> {
        if let Some(state) = request.state().filter(|state| state.starts_with(parked::STATE_PREFIX)) {
            let is_meant = |call: &Call| call.is_of(backend, &client, &request);
            let call = self.common.parked.take(state, is_meant);
            let lost =
                || RpcError::invalid_params("`requestState` is of no call that waits: it has expired, or was used");
            return call.map(|call| call.resume(request)).ok_or_else(lost);
        }
        if let (ScopeKey::Named(_), Some(capabilities)) = (&client.scope, request.capabilities()) {
            let instance = InstanceKey { backend: backend.name.clone(), scope: client.scope.clone() };
            self.audience.declared(&instance, capabilities);
        }
        Call::begin(self, backend, client, request)
    }

    /// Calls that wait for what their clients are asked.
    fn parked_calls(&self) -> usize {
        self.common.parked.len()
    }

    /// Cancels calls whose clients did not come back with what their servers asked.
    pub fn expire_parked(&self) {
        self.common.parked.expire();
    }

    /// Cancels what a client has queued or running under its request id, or all of it. The number of calls found.
    pub fn cancel(&self, key: &InstanceKey, client: u128, id: Option<&str>, reason: &str) -> usize {
        // First those that may be in the slot in a moment.
        let undecided = self.common.undecided.cancel(client, id);
        undecided + self.supervisor.find(key).map_or(0, |slot| slot.cancel(client, id, reason))
    }

    /// A session is over: its calls are cancelled, its instance is stopped and its slot forgotten once proved empty.
    pub fn end_session(&self, backend: &Arc<str>, session: u128) {
        for scope in [ScopeKey::Shared, ScopeKey::Session(session)] {
            self.cancel(&InstanceKey { backend: backend.clone(), scope }, session, None, "the session has ended");
        }
        let shared = InstanceKey { backend: backend.clone(), scope: ScopeKey::Shared };
        match self.audience.session(session) {
            Some(recipient) => self.let_go(&shared, &recipient),
            // One that has expired is forgotten already, and its wishes with it.
            None => self.tell_of_wishes(&shared),
        }
        let own = InstanceKey { backend: backend.clone(), scope: ScopeKey::Session(session) };
        if let Some(slot) = self.supervisor.find(&own) {
            slot.retire();
        }
    }

    /// A session of a backend that is not served any more is over: its calls may end, and its slot is forgotten once
    /// proved empty.
    pub fn forget_session(&self, backend: &Arc<str>, session: u128) {
        let own = InstanceKey { backend: backend.clone(), scope: ScopeKey::Session(session) };
        if let Some(slot) = self.supervisor.find(&own) {
            slot.retire();
        }
    }
}
