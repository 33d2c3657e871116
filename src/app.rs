//! Composition: the only place that knows all parts. Builds them, runs them, takes them down.

mod service_manager;

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::broker::{Audience, Broker, Ears, ReloadOptions};
use crate::events::{EventLog, What};
use crate::exit::{Exit, Failure};
use crate::front::{AdminToken, Front, Sessions};
use crate::ownership::journal::LeftoversBudget;
use crate::ownership::{Controller, Journal, KeeperProgram, become_subreaper, drop_clean_pages};
use crate::snapshot::{self, Backend, Snapshot};
use crate::supervisor::{Slot, Supervisor, SupervisorLimits, powershell_of};
use crate::telemetry;

/// Proving that nothing of an earlier broker is left takes at most this long at one go; it is tried until it succeeds. A
/// question to Windows is given up after 15 s, and the first one after the start of a WSL may take nearly as long.
const LEFTOVERS_BUDGET: LeftoversBudget =
    LeftoversBudget { here: Duration::from_secs(10), windows_each: Some(Duration::from_secs(17)) };
/// The first try is short, because nobody is answered before its end. A dead broker's keepers need some tens of
/// milliseconds to do it by themselves.
const LEFTOVERS_FIRST_BUDGET: Duration = Duration::from_secs(3);
/// Between two tries.
const LEFTOVERS_AGAIN: Duration = Duration::from_secs(5);
/// Slots kept at the same time, stopped ones included. Far more browsers than a workstation can run; it bounds what a
/// client that opens sessions without end can make the broker remember.
const SLOTS_MAX: usize = 1024;
/// Slots that an operator has set aside without a proof. Each holds processes that nobody could end; who needs more has
/// to solve that first.
const SET_ASIDE_MAX: usize = 16;
/// Between two looks for sessions whose time has come.
const EXPIRY_INTERVAL: Duration = Duration::from_secs(60);
/// After the last call has ended, answers under way have this long to reach their clients.
const FAREWELL: Duration = Duration::from_secs(2);
/// As the service manager shows them.
const READY: &str = "ready";
const NOT_CLEAR: &str = "not ready: what an earlier broker left is not proved gone";
/// Added to the sum of the stop's own deadlines before a shutdown is given up.
const SHUTDOWN_SLACK: Duration = Duration::from_secs(5);

/// Runs the broker until it is told to end; then stops everything and proves it.
pub fn serve(config: &Path) -> anyhow::Result<Exit> {
    let snapshot = snapshot::build(config)?;
    telemetry::init(&snapshot.config.server.log);
    for finding in snapshot.reviewed.findings() {
        tracing::warn!(%finding, "not reviewed");
    }
    let runtime = runtime(snapshot.config.server.worker_threads)?;
    let exit = runtime.block_on(run(snapshot));
    // What still blocks (a file on a dead mount) must not keep the exit code from whoever waits for it.
    runtime.shutdown_timeout(FAREWELL);
    exit
}

/// What lets a command, or any other client, ask `/admin/mcp`.
pub fn admin_token_path(state_dir: &Path) -> PathBuf {
    state_dir.join("admin.token")
}

/// One thread unless the configuration says otherwise: the relay is a few microseconds a call, and hops between
/// threads cost more than a second one brings (`docs/benchmarks.md`).
fn runtime(worker_threads: Option<usize>) -> io::Result<tokio::runtime::Runtime> {
    let mut builder = match worker_threads {
        Some(threads) if threads > 1 => {
            let mut builder = tokio::runtime::Builder::new_multi_thread();
            builder.worker_threads(threads);
            builder
        }
        _ => tokio::runtime::Builder::new_current_thread(),
    };
    builder.enable_all().build()
}

async fn run(snapshot: Snapshot) -> anyhow::Result<Exit> {
    // Before anything else: unheard, it would end the broker.
    let hangup = signal(SignalKind::hangup()).context("listen for SIGHUP")?;
    become_subreaper().context("become the parent of orphaned processes")?;
    let server = snapshot.config.server.clone();
    make_private_dir(&server.state_dir)
        .with_context(|| format!("make the directory `{}` of `state_dir`", server.state_dir.display()))?;
    let journal = Journal::open(&server.state_dir).map_err(|e| Failure::new(Exit::NotSo, e.to_string()))?;
    let audience = Arc::new(Audience::default());
    let sessions = Sessions::open(&server.state_dir, server.session_ttl, server.sessions_max, audience.clone())
        .with_context(|| format!("read the sessions in `{}`", server.state_dir.display()))?;
    let token = admin_token_path(&server.state_dir);
    let admin_token =
        AdminToken::open(&token).with_context(|| format!("read the token of operators in `{}`", token.display()))?;
    let listener = crate::front::bind(server.listen).await.map_err(|e| {
        Failure::new(
            Exit::NotSo,
            format!(
                "failed to listen on {}: {e}; another program, perhaps a broker, has it: stop that or set `listen`",
                server.listen
            ),
        )
    })?;
    let address = listener.local_addr().context("learn the address listened on")?;

    // Of backends that are removed later, something may still be there then.
    let first_budget = shutdown_budget(&snapshot);
    let (live_max, starts_max) = (server.live_instances_max, server.concurrent_starts_max);
    let events = Arc::new(EventLog::new(epoch()));
    let limits = SupervisorLimits { slots_max: SLOTS_MAX, live_max, starts_max, set_aside_max: SET_ASIDE_MAX };
    let supervisor = Arc::new(Supervisor::new(
        journal,
        KeeperProgram::own(),
        limits,
        &controllers(&snapshot),
        events.clone(),
        Arc::new(Ears(audience.clone())),
    ));
    if let Some(reason) = supervisor.cgroups_missing() {
        tracing::info!(%reason, "no cgroups: keepers own their trees alone");
    }
    for backend in snapshot.backends.values() {
        if let Some(reason) = supervisor.why_unlimited(backend.plan.config.ownership.limits) {
            tracing::warn!(backend = %backend.name, %reason, "limits are asked for and do not hold");
        }
    }
    let broker = Arc::new(Broker::new(snapshot, supervisor.clone(), events.clone(), audience));
    let shutdown = CancellationToken::new();
    let front = Arc::new(Front::new(broker.clone(), sessions, admin_token, shutdown.clone()));

    broker.readiness.set(vec!["looking for processes that an earlier broker left".into()]);
    // Before anybody is answered: clients that connect meanwhile wait a moment, which is better than to be refused.
    let is_clear = leftovers_are_gone(&broker, LeftoversBudget::whole(LEFTOVERS_FIRST_BUDGET)).await;
    announce(&broker.snapshot(), address);
    service_manager::serving(if is_clear { READY } else { NOT_CLEAR });
    let mut signals = Signals::listen().context("listen for signals")?;
    let tasks = TaskTracker::new();
    let serving = tasks.spawn(crate::front::serve(listener, front.clone()));
    if !is_clear {
        tasks.spawn(prove_leftovers_gone(broker.clone(), shutdown.clone()));
    }
    tasks.spawn(expire_sessions(front.clone(), shutdown.clone()));
    tasks.spawn(follow_revisions(front.clone(), shutdown.clone()));
    let reloading = CancellationToken::new();
    tasks.spawn(reload_on_hangup(broker.clone(), hangup, reloading.clone()));
    tasks.spawn(service_manager::keep_watchdog(shutdown.clone()));
    let name = signals.next().await;
    reloading.cancel();
    tracing::info!(signal = name, "shutting down: calls under way may end, then everything is stopped");
    broker.readiness.end("shutting down");
    events.record(What::BrokerStopping);
    service_manager::ending("calls under way may end, then everything is stopped and proved gone");

    let budget = shutdown_budget(&broker.snapshot()).max(first_budget);
    let unproved = stopped(&supervisor, budget, &mut signals).await;
    shutdown.cancel();
    let farewell = async {
        let _ = serving.await;
        front.replays.ended().await;
    };
    if tokio::time::timeout(FAREWELL, farewell).await.is_err() {
        tracing::warn!("some connections did not end in time");
    }
    if unproved.is_empty() {
        tracing::info!("stopped: every server that was started is proved gone");
    }
    for slot in &unproved {
        tracing::error!(slot = %slot, "could not be proved gone; its keeper goes on trying");
    }
    Ok(if unproved.is_empty() { Exit::Done } else { Exit::NotProved })
}

/// Stops everything. A second signal ends the wait for calls under way, and nothing else: what was started is stopped and
/// proved gone all the same.
async fn stopped(supervisor: &Supervisor, budget: Duration, signals: &mut Signals) -> Vec<Arc<Slot>> {
    let mut ending = pin!(supervisor.shutdown(budget));
    loop {
        tokio::select! {
            unproved = &mut ending => return unproved,
            // Cancel safe: a signal that was not received stays pending.
            name = signals.next() => {
                tracing::info!(signal = name, "again: calls under way are not waited for any longer");
                supervisor.hurry();
            }
        }
    }
}

/// What the limits of its backends need of the kernel.
fn controllers(snapshot: &Snapshot) -> Vec<Controller> {
    let limits = snapshot.backends.values().flat_map(|backend| backend.plan.config.ownership.limits.each());
    limits.map(Controller::of).collect::<BTreeSet<_>>().into_iter().collect()
}

/// Ready means that nothing of an earlier broker is left. Whether that was proved.
async fn leftovers_are_gone(broker: &Broker, budget: LeftoversBudget) -> bool {
    let snapshot = broker.snapshot();
    let powershell_of = |backend: &str| powershell_of(&snapshot.config, backend);
    match broker.supervisor.sweep_leftovers(budget, powershell_of).await {
        Ok(()) => {
            broker.readiness.set(Vec::new());
            broker.events.record(What::BrokerReady);
            tracing::info!("ready");
            service_manager::status(READY);
            // Compiling policies and parsing catalogs is over: at rest the broker is a few hundred KiB of code.
            drop_clean_pages();
            true
        }
        Err(reason) => {
            tracing::error!(%reason, "not ready");
            broker.events.record(What::BrokerNotReady { reason: reason.clone() });
            broker.readiness.set(vec![reason]);
            false
        }
    }
}

/// Tries until it is proved.
async fn prove_leftovers_gone(broker: Arc<Broker>, shutdown: CancellationToken) {
    while !leftovers_are_gone(&broker, LEFTOVERS_BUDGET).await {
        tokio::select! {
            () = tokio::time::sleep(LEFTOVERS_AGAIN) => {}
            () = shutdown.cancelled() => return,
        }
    }
}

/// What the front keeps beside the snapshot follows it.
async fn follow_revisions(front: Arc<Front>, shutdown: CancellationToken) {
    let mut revisions = front.broker.revisions();
    loop {
        tokio::select! {
            // Both are cancel safe: a watch keeps what was not seen.
            changed = revisions.changed() => if changed.is_err() { return },
            () = shutdown.cancelled() => return,
        }
        let snapshot = front.broker.snapshot();
        let server = &snapshot.config.server;
        front.sessions.set_bounds(server.session_ttl, server.sessions_max);
        end_unserved_sessions(&front, &snapshot);
    }
}

/// Sessions of backends that are not served any more are over.
fn end_unserved_sessions(front: &Front, snapshot: &Snapshot) {
    let (ended, remembered) = front.sessions.end_where(|backend| snapshot.backend(backend).is_none());
    if let Err(error) = remembered {
        tracing::warn!(%error, "failed to remember ended sessions");
    }
    for (backend, session) in ended {
        front.replays.forget(session);
        front.broker.forget_session(&backend, session);
    }
}

/// Reloads for as long as nobody ends the broker. The outcome is in the log, the events and the status.
async fn reload_on_hangup(broker: Arc<Broker>, mut hangup: tokio::signal::unix::Signal, shutdown: CancellationToken) {
    loop {
        tokio::select! {
            // Both are cancel safe: a signal that was not received stays pending. The end comes first.
            biased;
            () = shutdown.cancelled() => return,
            received = hangup.recv() => if received.is_none() { return },
        }
        tracing::info!("SIGHUP: reading the configuration again");
        service_manager::reloading();
        let report = broker.reload(ReloadOptions::default()).await;
        if !shutdown.is_cancelled() {
            // A reload proves nothing of what an earlier broker left.
            let ready = if broker.readiness.reasons().is_empty() { READY } else { NOT_CLEAR };
            let refused = format!("reload refused, see the log; revision {} goes on; {ready}", report.revision);
            service_manager::serving(if report.ok { ready } else { &refused });
        }
    }
}

async fn expire_sessions(front: Arc<Front>, shutdown: CancellationToken) {
    loop {
        tokio::select! {
            () = tokio::time::sleep(EXPIRY_INTERVAL) => {}
            () = shutdown.cancelled() => return,
        }
        for (backend, session) in front.sessions.expire() {
            front.replays.forget(session);
            front.broker.end_session(&backend, session);
        }
        front.broker.expire_parked();
        front.replays.sweep();
        // One may have begun while its backend was taken away.
        end_unserved_sessions(&front, &front.broker.snapshot());
    }
}

/// Two brokers of one machine never start in the same microsecond over the same state directory.
fn epoch() -> String {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    format!("{:x}", since.as_micros())
}

/// The longest that an orderly stop of everything can take, since slots stop at the same time.
fn shutdown_budget(snapshot: &Snapshot) -> Duration {
    let longest = |backend: &Arc<Backend>| {
        let (stop, limits) = (backend.plan.config.deadlines.stop, &backend.plan.limits);
        limits.start + limits.drain + stop.max(limits.polite + limits.terminate + limits.sweep)
    };
    snapshot.backends.values().map(longest).max().unwrap_or_default() + SHUTDOWN_SLACK
}

/// Scripts and people read where it listens; the first line is stable.
fn announce(snapshot: &Snapshot, address: std::net::SocketAddr) {
    let mut out = io::stdout().lock();
    let base = format!("http://{address}");
    let mut text = format!("lazy-mcp listening on {base}\n");
    for backend in snapshot.backends.values() {
        text += &format!("  {base}{}  ({} tools, {})\n", backend.mount(), backend.tool_count(), backend.scope_name());
    }
    // Nobody may be reading: then there is nobody to tell.
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

struct Signals {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
}

impl Signals {
    fn listen() -> io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    /// The next one that ends the broker.
    async fn next(&mut self) -> &'static str {
        tokio::select! {
            // Both are cancel safe: a signal that was not received stays pending.
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}

/// Made for us alone. One that is there is taken as it is, unless others could put files into it.
fn make_private_dir(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    if fs::metadata(path)?.permissions().mode() & 0o022 != 0 {
        return Err(io::Error::other("others can write to it; choose another `state_dir`, or `chmod go-w` it"));
    }
    Ok(())
}
