//! The one task of a slot: performs what its core decided, in that order, and reports what came of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use tokio_util::task::TaskTracker;

use super::registry::Services;
use super::slot::{Cleanup, Live, Slot};
use super::start::{Footprint, NotStarted, StartCause, StartFailure, Started, bring_up};
use crate::catalog::{self, LiveTools};
use crate::core::generation::Generation;
use crate::core::lifecycle::{Effect, Event, LeaseLoss, Report};
use crate::core::limits::TreeLimit;
use crate::events::What;
use crate::link::{HandshakeError, Link, Loss, RequestError};
use crate::ownership::{Remains, RootExit, Sweep, Tree};
use crate::protocol::raw::members;
use crate::protocol::version::Era;

/// After the root's exit, how long its last words may take to be read. Orphans may hold the pipes open for ever, so
/// the end of the pipes alone is not waited for.
const LAST_WORDS: Duration = Duration::from_millis(200);

/// A sweep may answer this long after its budget, when the keeper hangs or is lost meanwhile (`ownership::Remains::sweep`).
const SWEEP_ANSWER: Duration = Duration::from_secs(3);

/// How long the news of a proof waits for the files of its generation to be erased.
const ERASE_WAIT: Duration = Duration::from_secs(1);

/// How long the first call waits for the answers to what a server asked while it was greeted. A client that listens
/// answers in milliseconds, unless it has to ask its user; one that does not listen is asked by that call.
const FIRST_ANSWERS: Duration = Duration::from_secs(2);

/// How long a server may take to act on those answers: it does not say when it has, and a call right behind them would
/// overtake them. `@modelcontextprotocol/server-filesystem` looks its roots up on disk first: without this time it
/// refused the first call in 11 of 15 starts, with it in none.
const TAKEN_IN: Duration = Duration::from_millis(50);

/// What the driver is asked.
#[derive(Debug)]
pub(super) enum Order {
    Do(Effect),
    /// Something is due earlier than the driver thought.
    Look,
    /// The spawn of a generation has come to its end, either way.
    SpawnEnded(Generation, Box<Footprint>, Box<Result<Started, NotStarted>>),
    /// Somebody waits for a place that an idle slot could make.
    MakeRoom,
    /// A sweep has come to its end.
    Swept(Generation, Sweep, Duration),
    /// The slot is forgotten.
    End,
}

/// What runs, or was run, and is not proved gone.
#[derive(Debug)]
struct Running {
    generation: Generation,
    footprint: Footprint,
    /// What a sweep has to look at. None of a start that has left nothing, and while it is not answered.
    remains: Option<Remains>,
    started: Option<Started>,
    /// Whether the server was greeted: an exit before that is a failed start.
    is_greeted: Arc<AtomicBool>,
}

pub(super) struct Driver {
    slot: Arc<Slot>,
    services: Arc<Services>,
    orders: mpsc::UnboundedReceiver<Order>,
    inbox: mpsc::UnboundedSender<Order>,
    /// Subtasks: starts, handshakes, watches, sweeps.
    tasks: TaskTracker,
    running: Option<Running>,
}

impl Driver {
    pub fn new(
        slot: Arc<Slot>,
        services: Arc<Services>,
        orders: mpsc::UnboundedReceiver<Order>,
        inbox: mpsc::UnboundedSender<Order>,
    ) -> Self {
        let tasks = services.tracker.clone();
        Self { slot, services, orders, inbox, tasks, running: None }
    }

    /// Ends when the slot is forgotten.
    pub async fn run(mut self) {
        loop {
            let call_due = self.time_out_calls();
            let due = self.slot.arm().map(|moment| self.slot.instant(moment));
            let wake = [due, call_due].into_iter().flatten().min();
            tokio::select! {
                // Cancel safe: an order that was not received stays, and the timer is made anew.
                order = self.orders.recv() => match order {
                    Some(Order::Do(effect)) => self.perform(effect),
                    Some(Order::SpawnEnded(generation, footprint, result)) => {
                        self.spawn_ended(generation, *footprint, *result);
                    }
                    Some(Order::Swept(generation, swept, took)) => self.swept(generation, swept, took),
                    Some(Order::MakeRoom) => self.services.make_room(),
                    Some(Order::Look) => {}
                    Some(Order::End) | None => return,
                },
                () = sleep_until(wake) => self.slot.event(Event::Wake),
            }
            self.services.settle(&self.slot);
        }
    }

    fn perform(&mut self, effect: Effect) {
        match effect {
            Effect::Spawn(generation) => self.spawn(generation),
            Effect::Handshake(generation) => self.handshake(generation),
            Effect::TakeBack(generation, lease) => {
                if let Some(started) = self.started(generation) {
                    started.link.take_back(lease.0);
                }
            }
            Effect::FailLeases(generation, loss) => {
                if let Some(started) = self.started(generation) {
                    started.link.fail_all(match (loss, started.tree.over_limit()) {
                        (LeaseLoss::Exited | LeaseLoss::LinkLost, Some(limit)) => Loss::OverLimit(limit),
                        (LeaseLoss::Exited, None) => Loss::Exited,
                        (LeaseLoss::LinkLost, None) | (LeaseLoss::Recycled, _) => Loss::Recycled,
                        (LeaseLoss::Drained, _) => Loss::Drained,
                    });
                }
            }
            Effect::CloseStdin(generation) => {
                if let Some(started) = self.started(generation) {
                    started.link.close_stdin();
                }
            }
            Effect::Terminate(generation) => {
                if let Some(started) = self.started(generation) {
                    started.tree.terminate();
                }
            }
            Effect::Sweep(generation) => self.sweep(generation),
            // Answered where they were decided: callers do not wait for this task.
            Effect::Grant(..) | Effect::Refuse(..) | Effect::Admit | Effect::Vacate => {}
        }
    }

    fn started(&self, generation: Generation) -> Option<&Started> {
        self.running.as_ref().filter(|running| running.generation == generation)?.started.as_ref()
    }

    fn spawn(&mut self, generation: Generation) {
        tracing::info!(slot = %self.slot, %generation, "starting");
        self.services.tally(&self.slot.key.backend, |tally| tally.starts += 1);
        self.running = Some(Running {
            generation,
            footprint: Footprint::default(),
            remains: None,
            started: None,
            is_greeted: Arc::default(),
        });
        let (slot, services, inbox) = (self.slot.clone(), self.services.clone(), self.inbox.clone());
        self.tasks.spawn(async move {
            let (footprint, result) = bring_up(&slot, &services, generation).await;
            // An error means that the driver has ended; then the tree is dropped here, and its keeper sweeps it.
            let _ = inbox.send(Order::SpawnEnded(generation, Box::new(footprint), Box::new(result)));
        });
    }

    fn spawn_ended(&mut self, generation: Generation, footprint: Footprint, result: Result<Started, NotStarted>) {
        let Some(running) = self.running.as_mut().filter(|running| running.generation == generation) else {
            return;
        };
        running.footprint = footprint;
        match result {
            Ok(started) => {
                self.slot.set_live(live(generation, &started, LiveTools::default()));
                let is_greeted = running.is_greeted.clone();
                if !started.limits.asked.is_none() {
                    let is_greeted = is_greeted.clone();
                    self.tasks.spawn(watch_limits(self.slot.clone(), generation, started.clone(), is_greeted));
                }
                self.tasks.spawn(watch_root(self.slot.clone(), generation, started.clone(), is_greeted));
                running.remains = Some(started.tree.remains().clone());
                running.started = Some(started);
                self.slot.report(generation, Report::Spawned);
            }
            Err(NotStarted { failure, remains }) => {
                tracing::warn!(slot = %self.slot, %generation, kind = failure.kind(), cause = %failure.cause, "start failed");
                running.remains = remains;
                self.slot.set_failure(failure);
                self.slot.report(generation, Report::SpawnFailed);
            }
        }
    }

    fn handshake(&mut self, generation: Generation) {
        let Some(running) = self.running.as_ref() else { return };
        let Some(started) = running.started.clone() else { return };
        let (slot, is_greeted) = (self.slot.clone(), running.is_greeted.clone());
        let audience = self.services.audience.clone();
        self.tasks.spawn(async move {
            match greet(&slot, generation, &started, &audience.capabilities(&slot.key)).await {
                Ok(live) => {
                    is_greeted.store(true, Ordering::Relaxed);
                    // Before the first call can be written.
                    audience.greeted(&slot.key, &started.link);
                    if started.link.has_asked() && audience.is_listening(&slot.key) {
                        await_first_answers(&started.link).await;
                    }
                    slot.set_live(live);
                    slot.forget_failure();
                    slot.report(generation, Report::Initialized);
                    // What was wished for since then could not be told to a server that nobody found.
                    audience.greeted(&slot.key, &started.link);
                    tracing::info!(slot = %slot, %generation, "ready");
                    // Not before: until here, a lost link is the failure of the handshake, which says why.
                    started.link.lost().await;
                    // An exit closes the pipes before it is told; then it is an exit.
                    if tokio::time::timeout(LAST_WORDS, started.tree.root_exit()).await.is_err() {
                        slot.report(generation, Report::LinkLost);
                    }
                }
                Err(failure) => {
                    tracing::warn!(slot = %slot, %generation, kind = failure.kind(), cause = %failure.cause, "start failed");
                    slot.set_failure(failure);
                    slot.report(generation, Report::HandshakeFailed);
                }
            }
        });
    }

    fn sweep(&mut self, generation: Generation) {
        let running = self.running.as_ref().filter(|running| running.generation == generation);
        let remains = running.and_then(|running| running.remains.clone());
        let (budget, inbox) = (sweep_budget(self.slot.plan().limits.sweep), self.inbox.clone());
        self.tasks.spawn(async move {
            let begun = Instant::now();
            let swept = match remains {
                Some(remains) => remains.sweep(budget).await,
                // Nothing was started, or the failed start has cleaned up behind itself.
                None => Sweep::Empty { killed: 0, took: Duration::ZERO },
            };
            // An error means that the driver has ended, which it does only after the proof.
            let _ = inbox.send(Order::Swept(generation, swept, begun.elapsed()));
        });
    }

    fn swept(&mut self, generation: Generation, swept: Sweep, took: Duration) {
        let slot = self.slot.clone();
        // Not there: it was proved gone before. The core orders another sweep when one is late, and then both answer.
        let Some(running) = self.running.take_if(|running| running.generation == generation) else { return };
        match swept {
            Sweep::Empty { killed, .. } => {
                tracing::info!(slot = %slot, %generation, killed, ms = took.as_millis(), "proved gone");
                slot.tell(What::ProvedGone { instance: slot.named(generation.number()), killed, ms: millis(took) });
                if let Some(started) = &running.started {
                    // Whoever still waits for an answer of a tree that is gone waits for nothing.
                    started.link.fail_all(Loss::Exited);
                }
                let (services, inbox) = (self.services.clone(), self.inbox.clone());
                self.tasks.spawn(async move {
                    // As a rule it is gone before anybody hears of the stop, but the proof does not wait for a slow disk.
                    let erased = services.tracker.spawn(running.footprint.erase());
                    let _ = tokio::time::timeout(ERASE_WAIT, erased).await;
                    let cleanup = Cleanup { ok: true, took, survivors: 0 };
                    services.tally(&slot.key.backend, |tally| tally.proved(cleanup));
                    slot.set_cleanup(generation, cleanup, Vec::new(), None);
                    slot.report(generation, Report::TreeEmpty);
                    // A retired slot is over now, and only its driver can say so.
                    let _ = inbox.send(Order::Look);
                });
            }
            Sweep::Busy { survivors, reason } => {
                self.running = Some(running);
                tracing::error!(slot = %slot, %generation, survivors = survivors.len(), reason, "could not be proved gone");
                let instance = slot.named(generation.number());
                slot.tell(What::NotProved { instance, survivors: survivors.len(), ms: millis(took) });
                let cleanup = Cleanup { ok: false, took, survivors: survivors.len() };
                self.services.tally(&slot.key.backend, |tally| tally.last_cleanup = Some(cleanup));
                slot.set_cleanup(generation, cleanup, survivors, reason);
                slot.report(generation, Report::TreeBusy);
            }
        }
    }

    /// Calls whose deadlines have passed, whether or not somebody still waits for them: a client that does not read its
    /// stream must not keep an instance. When to look again, if there are others.
    fn time_out_calls(&self) -> Option<Instant> {
        let running = self.running.as_ref()?;
        let started = running.started.as_ref()?;
        let (due, next) = started.link.overdue(Instant::now());
        for upstream_id in due {
            self.slot.time_out(&started.link, running.generation, upstream_id);
        }
        next
    }
}

/// Greets the server and compares its tools with the catalog.
async fn greet(
    slot: &Slot,
    generation: Generation,
    started: &Started,
    capabilities: &str,
) -> Result<Live, StartFailure> {
    let plan = slot.plan();
    let greeted = async {
        if slot.key.era_of(&plan.catalog) == Era::Modern {
            started.link.speak_modern();
            // Its capabilities are the catalog's: it says nothing of itself without being asked.
            if !matches!(members(plan.catalog.capabilities.get(), ["tools"]), Ok([Some(_)])) {
                return Ok(Vec::new());
            }
            match started.link.typed_list("tools/list", "tools").await {
                // The catalog says what the server spoke when it was captured: one that does not any more is asked anew.
                Ok((_, false)) | Err(HandshakeError::List { source: RequestError::Refused { .. }, .. })
                    if plan.catalog.speaks(Era::Legacy) => {}
                listed => return listed.map(|(tools, _)| tools),
            }
        }
        let greeting = started.link.handshake(capabilities).await?;
        if greeting.offers("tools") { started.link.list("tools/list", "tools").await } else { Ok(Vec::new()) }
    };
    let tools = match greeted.await {
        Ok(greeted) => greeted,
        Err(fault) => return Err(explain(generation, &started.link, &started.tree, fault).await),
    };
    let drift = catalog::drift(&plan.catalog, &tools);
    if !drift.is_empty() {
        tracing::warn!(
            slot = %slot, changed = drift.changed.len(), added = drift.added.len(), removed = drift.removed.len(),
            "the server's tools are not those of its catalog"
        );
    }
    Ok(live(generation, started, LiveTools::of(&tools, &plan.catalog)))
}

/// What a server asks as soon as it is initialized, it wants to know before it works: without its roots it would refuse
/// the call that it was started for.
async fn await_first_answers(link: &Link) {
    if tokio::time::timeout(FIRST_ANSWERS, link.questions_answered()).await.is_ok() {
        tokio::time::sleep(TAKEN_IN).await;
    }
}

fn live(generation: Generation, started: &Started, tools: LiveTools) -> Live {
    Live {
        generation,
        link: started.link.clone(),
        keeper: started.tree.keeper(),
        owner: started.tree.owner(),
        limits: started.limits.clone(),
        tools: Arc::new(tools),
        drifted: Arc::default(),
        kept: started.kept.clone(),
    }
}

/// A lost conversation is told as the exit that caused it, where that is so.
async fn explain(generation: Generation, link: &Link, tree: &Tree, fault: HandshakeError) -> StartFailure {
    let exit = if link.is_lost() { tokio::time::timeout(LAST_WORDS, tree.root_exit()).await.ok() } else { None };
    let cause = match (tree.over_limit(), exit) {
        (Some(limit), _) => StartCause::OverLimit(limit),
        (None, Some(exit)) => {
            await_last_words(link).await;
            StartCause::Exited(described(exit))
        }
        (None, None) => StartCause::Handshake(fault.to_string()),
    };
    StartFailure::new(generation, cause, link.stderr_tail())
}

fn described(exit: RootExit) -> String {
    match exit {
        RootExit::Code(code) => format!("exited with code {code}"),
        RootExit::Signal(signal) => format!("was ended by signal {signal}"),
        RootExit::KeeperLost => "was lost together with its keeper".to_owned(),
    }
}

async fn watch_root(slot: Arc<Slot>, generation: Generation, started: Started, is_greeted: Arc<AtomicBool>) {
    let exit = started.tree.root_exit().await;
    // What it wrote before its end is still an answer.
    await_last_words(&started.link).await;
    if !is_greeted.load(Ordering::Relaxed) {
        let over_limit = started.tree.over_limit().map(StartCause::OverLimit);
        let cause = over_limit.unwrap_or_else(|| StartCause::Exited(described(exit)));
        slot.set_failure(StartFailure::new(generation, cause, started.link.stderr_tail()));
    }
    tracing::info!(slot = %slot, %generation, exit = %described(exit), "root ended");
    slot.tell(What::RootExited { instance: slot.named(generation.number()), exit: described(exit) });
    slot.report(generation, Report::RootExited);
}

/// What has gone over a limit is ended. Of its memory: the kernel has done it, with all that is in the cgroup, and the
/// root's exit says so. Of its processes: it lives, but a fork has failed and nobody knows what it made of that.
async fn watch_limits(slot: Arc<Slot>, generation: Generation, started: Started, is_greeted: Arc<AtomicBool>) {
    let Some(limit) = started.tree.went_over_limit().await else { return };
    tracing::warn!(slot = %slot, %generation, %limit, "went over its limit");
    slot.set_over_limit(generation, limit);
    if let TreeLimit::Memory { .. } = limit
        && tokio::time::timeout(LAST_WORDS, started.tree.root_exit()).await.is_ok()
    {
        return;
    }
    if !is_greeted.load(Ordering::Relaxed) {
        slot.set_failure(StartFailure::new(generation, StartCause::OverLimit(limit), started.link.stderr_tail()));
    }
    slot.report(generation, Report::LinkLost);
}

async fn await_last_words(link: &Link) {
    let _ = tokio::time::timeout(LAST_WORDS, link.drained()).await;
}

/// What a sweep may take, so that its answer comes within what the core waits for it: "busy" with its evidence, and the
/// proof after the files are gone.
fn sweep_budget(limit: Duration) -> Duration {
    limit.saturating_sub(SWEEP_ANSWER + ERASE_WAIT)
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at.into()).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::super::registry::tests::Scene;
    use super::*;
    use crate::core::lifecycle::PublicState;

    /// As when the answer of the first came only after the core had ordered the next one.
    #[tokio::test]
    async fn a_proof_is_told_once_and_is_the_last_word() {
        let unproved = || {
            let scene = Scene::new(1);
            let (slot, generation) = scene.unproved(1);
            (scene, slot, generation)
        };
        // Blocks, which a runtime may not.
        let (scene, slot, generation) = tokio::task::spawn_blocking(unproved).await.unwrap();
        let services = scene.supervisor.services.clone();
        let (inbox, orders) = mpsc::unbounded_channel();
        let mut driver = Driver::new(slot.clone(), services.clone(), orders, inbox);
        driver.running = Some(Running {
            generation,
            footprint: Footprint::default(),
            remains: None,
            started: None,
            is_greeted: Arc::default(),
        });
        let empty = || Sweep::Empty { killed: 1, took: Duration::ZERO };
        let busy = || Sweep::Busy { survivors: Vec::new(), reason: None };
        for swept in [busy(), empty(), empty(), busy()] {
            driver.swept(generation, swept, Duration::ZERO);
        }
        services.tracker.close();
        services.tracker.wait().await;
        let told: Vec<_> = services.shared.events.counts().into_iter().map(|(_, name, count)| (name, count)).collect();
        let count = |name| told.iter().find(|(told, _)| *told == name).map_or(0, |(_, count)| *count);
        assert_eq!((count("proved_gone"), count("not_proved")), (1, 1), "{told:?}");
        services.tally(&slot.key.backend, |tally| {
            assert_eq!((tally.proofs, tally.last_cleanup.map(|cleanup| cleanup.ok)), (1, Some(true)));
        });
        assert_eq!(slot.view().state, PublicState::Stopped);
    }

    #[test]
    fn a_proof_that_comes_at_the_last_moment_is_within_the_limit() {
        for limit in [0, 4, 6, 60].map(Duration::from_secs) {
            assert!(sweep_budget(limit).is_zero() || sweep_budget(limit) + SWEEP_ANSWER + ERASE_WAIT <= limit);
        }
    }
}
