//! The task of one tree: speaks with the keeper, and takes over when it is lost.

use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot, watch};

use super::link::KeeperLink;
use super::{Known, Order, RootExit, Sweep, Tree};
use crate::ownership::children::{OwnChild, sweep_orphans};
use crate::ownership::process_table::ProcessId;
use crate::ownership::server::Stdio3;
use crate::ownership::sweep::Outcome;
use crate::ownership::wire::{self, Report, SpawnFailure, survivors};

/// Orders that wait for the task: a stop has two, and nobody asks for more at a time.
const ORDERS_LEN_MAX: usize = 8;
/// What a healthy keeper may take for its answer beyond the budget of the sweep, on a machine under load.
const KEEPER_GRACE: Duration = Duration::from_secs(1);
/// What adoption gets at least, when the budget was used up waiting for a keeper.
const ADOPTION_BUDGET_MIN: Duration = Duration::from_secs(1);
/// One attempt at a tree that nobody asks for any more.
const ABANDONED_BUDGET: Duration = Duration::from_secs(10);

const ABANDONED_PAUSE: Duration = Duration::from_secs(1);

/// Why a start came to nothing.
pub(super) enum NotStarted {
    Refused { failure: SpawnFailure, message: String },
    KeeperLost,
}

pub(super) struct Attendant {
    keeper: OwnChild,
    /// `None` when the keeper is lost.
    link: Option<KeeperLink>,
    known: watch::Sender<Known>,
}

impl Attendant {
    pub fn new(keeper: OwnChild, link: KeeperLink) -> Self {
        Self { keeper, link: Some(link), known: watch::Sender::default() }
    }

    /// Starts the server, answers with its tree, and attends to it until it is proved empty.
    pub async fn attend(mut self, start: Vec<u8>, stdio: Stdio3, answer: oneshot::Sender<Result<Tree, NotStarted>>) {
        let root = match self.spawn(start, stdio).await {
            Ok(root) => root,
            Err(reason) => {
                self.abandon().await;
                // Failed: the start was cancelled.
                let _ = answer.send(Err(reason));
                return;
            }
        };
        let (orders, taken) = mpsc::channel(ORDERS_LEN_MAX);
        let tree = Tree { keeper: self.keeper.id(), root, orders, known: self.known.subscribe() };
        // Failed: the start was cancelled, and with the handle the orders are closed.
        let _ = answer.send(Ok(tree));
        self.obey(taken).await;
    }

    async fn spawn(&mut self, start: Vec<u8>, stdio: Stdio3) -> Result<ProcessId, NotStarted> {
        let Some(link) = &mut self.link else { return Err(NotStarted::KeeperLost) };
        if link.send_start(&start, stdio).await.is_err() {
            return Err(NotStarted::KeeperLost);
        }
        match link.report().await {
            Ok(Report::Spawned { root }) => Ok(root),
            Ok(Report::SpawnFailed { failure, message }) => Err(NotStarted::Refused { failure, message }),
            Ok(_) | Err(_) => Err(NotStarted::KeeperLost),
        }
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
        let Some(link) = &mut self.link else { return std::future::pending().await };
        while let Ok(report) = link.report().await {
            note(&self.known, &report);
        }
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
                Ok(Some(Sweep::Empty { killed, took })) if self.has_ended_well().await => {
                    return Sweep::Empty { killed, took };
                }
                Ok(Some(busy @ Sweep::Busy { .. })) => return busy,
                // Gone, or it does not answer: a keeper that is stopped, or worse. The broker takes its place.
                Ok(_) | Err(_) => self.lose_the_keeper().await,
            }
        }
        let budget = budget.saturating_sub(started.elapsed()).max(ADOPTION_BUDGET_MIN);
        match sweep_orphans(self.keeper.id().start_time, budget).await {
            Outcome::Empty { killed } => Sweep::Empty { killed, took: started.elapsed() },
            Outcome::Busy { left } => Sweep::Busy { survivors: survivors(left) },
        }
    }

    /// `None` when it is lost.
    async fn ask_the_keeper(&mut self, budget: Duration) -> Option<Sweep> {
        let link = self.link.as_mut()?;
        let budget_ms = u64::try_from(budget.as_millis()).unwrap_or(u64::MAX);
        link.send(&wire::Order::Sweep { budget_ms }).await.ok()?;
        loop {
            let report = link.report().await.ok()?;
            note(&self.known, &report);
            match report {
                Report::Empty { killed, took_us } => {
                    return Some(Sweep::Empty { killed, took: Duration::from_micros(took_us) });
                }
                Report::Busy { survivors } => return Some(Sweep::Busy { survivors }),
                _ => {}
            }
        }
    }

    /// A keeper ends with success only after ECHILD.
    async fn has_ended_well(&mut self) -> bool {
        let ended = tokio::time::timeout(KEEPER_GRACE, self.keeper.reaped()).await;
        ended.is_ok_and(|exit| exit.is_some_and(|exit| exit.success()))
    }

    /// From here on its tree is the broker's, which is the next subreaper above.
    async fn lose_the_keeper(&mut self) {
        self.link = None;
        self.keeper.kill();
        self.keeper.reaped().await;
        self.known.send_modify(|known| {
            known.root_exit.get_or_insert(RootExit::KeeperLost);
        });
    }

    /// Nobody asks any more: the keeper, whose control socket ends here, sweeps without a limit; without a keeper the
    /// broker does.
    async fn abandon(&mut self) {
        let has_keeper = self.link.take().is_some();
        if has_keeper && self.keeper.reaped().await.is_some_and(|exit| exit.success()) {
            return;
        }
        while matches!(self.sweep(ABANDONED_BUDGET).await, Sweep::Busy { .. }) {
            tokio::time::sleep(ABANDONED_PAUSE).await;
        }
    }
}

fn note(known: &watch::Sender<Known>, report: &Report) {
    if let Report::RootExited { exit } = *report {
        known.send_modify(|known| {
            known.root_exit.get_or_insert(exit.into());
        });
    }
}
