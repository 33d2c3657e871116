//! The task of one tree: speaks with the keeper, and takes over when it is lost.

use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot, watch};

use super::link::KeeperLink;
use super::{Known, Order, Owner, Owners, Remains, RootExit, Sweep, Tree};
use crate::ownership::children::{OwnChild, sweep_orphans, sweep_windows};
use crate::ownership::process_table::ProcessId;
use crate::ownership::server::Stdio3;
use crate::ownership::sweep::Outcome;
use crate::ownership::windows::WindowsSweep;
use crate::ownership::wire::{self, Report, SpawnFailure, survivors};

/// Orders that wait for the task: a stop has two, and nobody asks for more at a time.
const ORDERS_LEN_MAX: usize = 8;
/// What a keeper may take from its own start to the news that the server is executed. Nothing in it waits for the
/// server; a healthy machine does it in some milliseconds, one that swaps in a second. Without a bound a keeper that is
/// stopped in this moment would hold the slot for ever, because a start that is given up waits for its outcome.
const SPAWN_MAX: Duration = Duration::from_secs(10);
/// What a healthy keeper may take for its answer beyond the budget of the sweep, on a machine under load.
const KEEPER_GRACE: Duration = Duration::from_secs(1);
/// For what a dead keeper has said and the runtime has not noticed yet; then its end of the socket is somebody else's
/// now, which only a server does that was killed on its way to exec.
const LAST_WORDS_GRACE: Duration = Duration::from_millis(100);
/// What adoption gets at least, when the budget was used up waiting for a keeper.
const ADOPTION_BUDGET_MIN: Duration = Duration::from_secs(1);
/// A keeper that was killed dies within this, unless it hangs in the kernel; then each sweep looks for its end.
const KEEPER_DEATH: Duration = Duration::from_millis(500);
/// What a start that has failed may take to be proved gone before it is told. Mostly there is nothing but its keeper.
const FAILED_START_BUDGET: Duration = Duration::from_secs(2);
/// What a keeper gets for a tree that nobody asks for any more, and each attempt of the broker after that.
const ABANDONED_BUDGET: Duration = Duration::from_secs(10);

/// Between two of them, doubling up to the second: Windows that does not answer is not to be asked all the time.
const ABANDONED_PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// A start that came to nothing.
pub(super) struct Failed {
    pub why: Why,
    /// `None` when it is proved that nothing is left.
    pub remains: Option<Remains>,
}

/// Why a start came to nothing.
pub(super) enum Why {
    Refused { failure: SpawnFailure, message: String },
    KeeperLost,
}

pub(super) struct Attendant {
    keeper: OwnChild,
    /// `None` when the keeper is lost.
    link: Option<KeeperLink>,
    /// What the keeper was told to hold the tree by, without what it has said that it could not, and without what is
    /// proved empty.
    owners: Owners,
    /// Why limits that it carries do not hold.
    limit_refusal: Option<Arc<str>>,
    known: watch::Sender<Known>,
}

impl Attendant {
    pub fn new(keeper: OwnChild, link: KeeperLink, owners: Owners) -> Self {
        Self { keeper, link: Some(link), owners, limit_refusal: None, known: watch::Sender::default() }
    }

    /// Starts the server, answers with its tree, and attends to it until it is proved empty. Of a start that fails it
    /// attends to what is left.
    pub async fn attend(mut self, start: Vec<u8>, stdio: Stdio3, mut answer: oneshot::Sender<Result<Tree, Failed>>) {
        let spawned = tokio::select! {
            spawned = tokio::time::timeout(SPAWN_MAX, self.spawn(start, stdio)) => {
                spawned.unwrap_or(Err(Why::KeeperLost))
            }
            // Cancelling the other arm tears the conversation in the middle; it is not gone on with.
            () = answer.closed() => return self.abandon().await,
        };
        let (orders, taken) = mpsc::channel(ORDERS_LEN_MAX);
        let remains = Remains { keeper: self.keeper.id(), orders, known: self.known.subscribe() };
        let answered = match spawned {
            Ok(root) => {
                let (owner, limit_refusal) = (Owner::of(&self.owners), self.limit_refusal.take());
                Ok(Tree { remains, root, owner, limit_refusal })
            }
            Err(why) => match self.end_failed_start(&why).await {
                Sweep::Empty { .. } => {
                    // Failed: the start was cancelled.
                    let _ = answer.send(Err(Failed { why, remains: None }));
                    return;
                }
                Sweep::Busy { .. } => Err(Failed { why, remains: Some(remains) }),
            },
        };
        // Failed: the start was cancelled, and with the handle the orders are closed.
        let _ = answer.send(answered);
        self.obey(taken).await;
    }

    async fn spawn(&mut self, start: Vec<u8>, stdio: Stdio3) -> Result<ProcessId, Why> {
        let Some(link) = &mut self.link else { return Err(Why::KeeperLost) };
        if link.send_start(&start, stdio).await.is_err() {
            return Err(Why::KeeperLost);
        }
        match self.hear().await {
            Some(Report::Spawned { root, cgroup_refusal, limit_refusal }) => {
                self.limit_refusal = limit_refusal.map(Arc::from);
                if let Some(reason) = cgroup_refusal
                    && let Some(cgroup) = self.owners.cgroup.take()
                {
                    let path = cgroup.path().display();
                    tracing::warn!(%path, reason, "no cgroup for this generation; its keeper owns it alone");
                    self.limit_refusal = (!cgroup.limits().is_none()).then(|| format!("no cgroup: {reason}").into());
                }
                Ok(root)
            }
            Some(Report::SpawnFailed { failure, message }) => Err(Why::Refused { failure, message }),
            Some(_) | None => Err(Why::KeeperLost),
        }
    }

    /// Kills what a start that has failed has left. One go, because somebody waits for the news of the failure; whoever
    /// has it sees to the rest.
    async fn end_failed_start(&mut self, why: &Why) -> Sweep {
        if let Why::Refused { .. } = why {
            // A server that was not executed has started nothing there.
            self.owners.windows = None;
            self.link = None;
            let begun = Instant::now();
            if self.has_ended_well().await {
                return Sweep::Empty { killed: 0, took: begun.elapsed() };
            }
        }
        // Dead, or it does not answer: then it does not end by itself either.
        self.lose_the_keeper().await;
        self.sweep(FAILED_START_BUDGET).await
    }

    async fn obey(&mut self, mut orders: mpsc::Receiver<Order>) {
        loop {
            // Both are cancel safe: an order stays in its channel, and a report in the link's buffer.
            let order = tokio::select! {
                order = orders.recv() => order,
                () = self.watch_the_keeper() => {
                    self.lose_the_keeper().await;
                    continue;
                }
            };
            match order {
                Some(Order::Terminate) => self.terminate().await,
                Some(Order::Sweep { budget, answer }) => {
                    let sweep = self.sweep(budget).await;
                    let is_proved_empty = matches!(sweep, Sweep::Empty { .. });
                    self.known.send_modify(|known| known.is_proved_empty = is_proved_empty);
                    // Failed: the asker was cancelled.
                    let _ = answer.send(sweep);
                    if is_proved_empty {
                        return;
                    }
                }
                None => return self.abandon().await,
            }
        }
    }

    /// Takes in what the keeper tells without being asked; returns when it is lost.
    async fn watch_the_keeper(&mut self) {
        if self.link.is_none() {
            return std::future::pending().await;
        }
        while self.hear().await.is_some() {}
    }

    /// The next report; `None` when the keeper is lost. Cancelling loses nothing.
    async fn hear(&mut self) -> Option<Report> {
        let link = self.link.as_mut()?;
        let report = tokio::select! {
            // Both arms are cancel safe. First what it says: a dead keeper has said its last words before.
            biased;
            report = link.report() => report.ok(),
            _ = self.keeper.reaped() => tokio::time::timeout(LAST_WORDS_GRACE, link.report()).await.ok()?.ok(),
        }?;
        match report {
            Report::RootExited { exit } => self.known.send_modify(|known| {
                known.root_exit.get_or_insert(exit.into());
            }),
            Report::OverLimit { limit } => self.known.send_modify(|known| {
                known.over_limit.get_or_insert(limit);
            }),
            _ => {}
        }
        Some(report)
    }

    async fn terminate(&mut self) {
        if let Some(link) = &mut self.link {
            // Failed: the keeper is lost, and watching it will tell. The kernel has killed the root with it.
            let _ = link.send(&wire::Order::Terminate).await;
        }
    }

    async fn sweep(&mut self, budget: Duration) -> Sweep {
        let started = Instant::now();
        if self.link.is_some() {
            match tokio::time::timeout(budget + KEEPER_GRACE, self.ask_the_keeper(budget)).await {
                Ok(Some(answered)) => return answered,
                // Gone, or it does not answer: a keeper that is stopped, or worse. The broker takes its place.
                Ok(_) | Err(_) => self.lose_the_keeper().await,
            }
        }
        let budget = budget.saturating_sub(started.elapsed()).max(ADOPTION_BUDGET_MIN);
        let adopted = Instant::now();
        match self.sweep_adopted(budget).await {
            Outcome::Empty { killed } => {
                self.remove_cgroup().await;
                self.sweep_windows(killed, started, budget.saturating_sub(adopted.elapsed())).await
            }
            Outcome::Busy { left } => Sweep::Busy { survivors: survivors(left), reason: None },
        }
    }

    /// What the lost keeper has left to the broker, and the keeper itself, while it is not dead: what is below it comes to
    /// nobody then.
    async fn sweep_adopted(&mut self, budget: Duration) -> Outcome {
        let (keeper, cgroup) = (self.keeper.id(), self.owners.cgroup.clone());
        let mut swept = pin!(sweep_orphans(keeper.start_time, Some(keeper), cgroup, budget));
        tokio::select! {
            outcome = &mut swept => outcome,
            // The runtime reaps it, which the sweep waits for. Cancel safe.
            _ = self.keeper.reaped() => swept.await,
        }
    }

    /// The rest of a sweep that found the Linux side empty after it had killed so many.
    async fn sweep_windows(&mut self, killed: usize, started: Instant, budget: Duration) -> Sweep {
        let terminated = match &self.owners.windows {
            None => 0,
            Some(side) => match sweep_windows(side.clone(), budget).await {
                WindowsSweep::Empty { terminated } => terminated,
                WindowsSweep::Busy { survivors, reason } => return Sweep::Busy { survivors, reason: Some(reason) },
            },
        };
        self.owners.windows = None;
        Sweep::Empty { killed: killed + terminated, took: started.elapsed() }
    }

    /// What a keeper does itself after its proof.
    async fn remove_cgroup(&mut self) {
        let Some(cgroup) = self.owners.cgroup.take() else { return };
        let removed = tokio::task::spawn_blocking(move || cgroup.remove().map_err(|error| (cgroup, error))).await;
        if let Ok(Err((cgroup, error))) = removed {
            tracing::warn!(path = %cgroup.path().display(), %error, "the empty cgroup of a generation stays");
        }
    }

    /// `None` when it is lost, or has not ended as it has to after its proof.
    async fn ask_the_keeper(&mut self, budget: Duration) -> Option<Sweep> {
        let link = self.link.as_mut()?;
        let budget_ms = u64::try_from(budget.as_millis()).unwrap_or(u64::MAX);
        link.send(&wire::Order::Sweep { budget_ms }).await.ok()?;
        loop {
            match self.hear().await? {
                Report::Empty { killed, took_us } => {
                    let took = Duration::from_micros(took_us);
                    return self.has_ended_well().await.then_some(Sweep::Empty { killed, took });
                }
                Report::Busy { survivors, reason } => return Some(Sweep::Busy { survivors, reason }),
                _ => {}
            }
        }
    }

    /// A keeper ends with success only after ECHILD.
    async fn has_ended_well(&mut self) -> bool {
        let ended = tokio::time::timeout(KEEPER_GRACE, self.keeper.reaped()).await;
        ended.is_ok_and(|exit| exit.is_some_and(|exit| exit.success()))
    }

    /// From its death on its tree is the broker's, which is the next subreaper above. One that SIGKILL does not end (it
    /// waits for a device, or its cgroup is frozen) is not waited for here: it counts as one of its tree.
    async fn lose_the_keeper(&mut self) {
        self.link = None;
        self.keeper.kill();
        let _ = tokio::time::timeout(KEEPER_DEATH, self.keeper.reaped()).await;
        self.known.send_modify(|known| {
            known.root_exit.get_or_insert(RootExit::KeeperLost);
        });
    }

    /// Nobody asks any more: the keeper, whose control socket ends here, sweeps by itself; if it does not come to an
    /// end, the broker does.
    async fn abandon(&mut self) {
        if self.link.take().is_some() {
            let ended = tokio::time::timeout(ABANDONED_BUDGET, self.keeper.reaped()).await;
            if ended.is_ok_and(|exit| exit.is_some_and(|exit| exit.success())) {
                return;
            }
            self.lose_the_keeper().await;
        }
        let mut pause = ABANDONED_PAUSES.0;
        while matches!(self.sweep(ABANDONED_BUDGET).await, Sweep::Busy { .. }) {
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(ABANDONED_PAUSES.1);
        }
    }
}
