//! The threads that hooks run on, and how long anybody waits for them.
//!
//! Two threads for the whole process, started when the first hook is asked and ended, with their machines, after a
//! minute without work: a broker at rest has none. Steps bound what a hook may do; the clock here is for what steps do
//! not count, such as one long call of a library function. Who asks stops waiting when a hook has run for
//! [`RUN_MAX`], the making of its machine not counted; the machine ends at the next step. A thread that does not come back within [`STOP_GRACE`] after that is
//! abandoned and another takes its place. Nobody guards the threads while nobody asks: a thread that hangs then harms
//! nobody, and whoever asks next looks first.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::Machines;
use crate::policy::load::STACK_BYTES;
use crate::policy::sandbox::Watch;

/// Hooks take microseconds; their isolation is what the threads are for.
pub(in crate::policy) const THREADS_MAX: usize = 2;
/// Jobs that may wait for a thread.
const QUEUE_MAX: usize = 256;
/// How long a job may wait for a thread: several times what a queue full of runaways takes.
const QUEUE_WAIT_MAX: Duration = Duration::from_secs(2);
/// How long a machine may be made for the first call of a hook: as for a load, which it is.
const MAKE_MAX: Duration = Duration::from_secs(2);
/// How long a hook may run, by the clock: a hundred times what its steps take. A busy machine was seen to stretch a time
/// fivefold, and a hook that is not to blame must not deny a call.
const RUN_MAX: Duration = Duration::from_secs(1);
/// How long a machine that was told to stop may take to the next step, where it notices.
const STOP_GRACE: Duration = Duration::from_secs(1);
/// Threads that may hang at the same time. Then hooks deny without trying, until one comes back.
const ABANDONED_MAX: usize = 4;
/// A thread without work ends after this.
const IDLE: Duration = Duration::from_secs(60);

/// What a hook is being asked; shared by who asks and who runs it.
#[derive(Debug, Default)]
pub(in crate::policy) struct Ticket {
    pub watch: Watch,
    stage: Mutex<Stage>,
}

/// How far a job has come, and since when.
#[derive(Clone, Copy, Debug, Default)]
enum Stage {
    #[default]
    Waits,
    MakesMachine(Instant),
    Runs(Instant),
}

/// Why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(in crate::policy) enum NoAnswer {
    #[error("policy did not end within {} ms", RUN_MAX.as_millis())]
    TookTooLong,
    #[error("no policy thread was free within {} s", QUEUE_WAIT_MAX.as_secs())]
    Waited,
    #[error("{QUEUE_MAX} calls wait for a policy thread already")]
    Full,
    #[error("{ABANDONED_MAX} policy threads hang, so no hook is run; restart the broker when convenient")]
    AllHang,
    #[error("no thread to run the policy on")]
    NoThread,
    #[error("the policy thread failed; this is a bug in lazy-mcp")]
    Panicked,
}

type Work = Box<dyn FnOnce(&mut Machines, &Ticket) + Send>;

/// Runs `work` on a policy thread. Dropping the future leaves a job that has not begun undone.
pub(in crate::policy) async fn ask<T: Send + 'static>(
    work: impl FnOnce(&mut Machines, &Ticket) -> T + Send + 'static,
) -> Result<T, NoAnswer> {
    POOL.ask(work).await
}

/// The same for who has a thread to wait on.
pub(in crate::policy) fn ask_blocking<T: Send + 'static>(
    work: impl FnOnce(&mut Machines, &Ticket) -> T + Send + 'static,
) -> Result<T, NoAnswer> {
    POOL.ask_blocking(work)
}

/// Policy threads that hang in a hook and were given up: for `/status`.
pub fn abandoned() -> usize {
    let mut state = POOL.lock();
    POOL.look(&mut state);
    state.abandoned
}

static POOL: Pool = Pool::new();

#[derive(Debug)]
struct Pool {
    state: Mutex<State>,
    wake: Condvar,
}

#[derive(Debug)]
struct State {
    queue: VecDeque<Job>,
    threads: Vec<Thread>,
    /// Given up and not come back.
    abandoned: usize,
    /// Counts threads, so that each has a name.
    last_number: u64,
}

#[derive(Debug)]
struct Thread {
    number: u64,
    job: Option<Arc<Ticket>>,
}

struct Job {
    ticket: Arc<Ticket>,
    work: Work,
}

impl std::fmt::Debug for Job {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Job").field(&self.ticket).finish()
    }
}

impl Ticket {
    /// From here on the policy's code runs.
    pub fn hook_begins(&self) {
        self.set(Stage::Runs(Instant::now()));
    }

    fn set(&self, stage: Stage) {
        *self.stage.lock().unwrap_or_else(PoisonError::into_inner) = stage;
    }

    fn stage(&self) -> Stage {
        *self.stage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How long the job may go on as it does; none once it is over its time.
    fn time_left(&self) -> Option<Duration> {
        match self.stage() {
            Stage::Waits => Some(RUN_MAX),
            Stage::MakesMachine(since) => MAKE_MAX.checked_sub(since.elapsed()),
            Stage::Runs(since) => RUN_MAX.checked_sub(since.elapsed()),
        }
    }

    /// Whether it was told to stop and did not.
    fn hangs(&self) -> bool {
        match self.stage() {
            Stage::Waits => false,
            Stage::MakesMachine(since) => since.elapsed() >= MAKE_MAX + STOP_GRACE,
            Stage::Runs(since) => since.elapsed() >= RUN_MAX + STOP_GRACE,
        }
    }

    /// Until when it makes sense to wait before looking again; `Err` if it makes none any more.
    fn patience(&self, asked: Instant) -> Result<Duration, NoAnswer> {
        match self.stage() {
            Stage::Waits if asked.elapsed() >= QUEUE_WAIT_MAX => Err(NoAnswer::Waited),
            // It may come to the next stage at any time, and that has a shorter time.
            _ => self.time_left().map(|left| left.min(RUN_MAX)).ok_or(NoAnswer::TookTooLong),
        }
    }
}

impl Pool {
    const fn new() -> Self {
        let state = State { queue: VecDeque::new(), threads: Vec::new(), abandoned: 0, last_number: 0 };
        Self { state: Mutex::new(state), wake: Condvar::new() }
    }

    async fn ask<T: Send + 'static>(
        &'static self,
        work: impl FnOnce(&mut Machines, &Ticket) -> T + Send + 'static,
    ) -> Result<T, NoAnswer> {
        let (answer, mut answered) = oneshot::channel();
        let ticket = self.submit(Box::new(move |machines, ticket| {
            if !answer.is_closed() {
                // Nobody waits any more: then there is nobody to tell.
                let _ = answer.send(work(machines, ticket));
            }
        }))?;
        let asked = Instant::now();
        loop {
            let patience = ticket.patience(asked).map_err(|why| self.give_up(&ticket, why))?;
            if let Ok(answer) = tokio::time::timeout(patience, &mut answered).await {
                return answer.map_err(|_| NoAnswer::Panicked);
            }
            self.look(&mut self.lock());
        }
    }

    fn ask_blocking<T: Send + 'static>(
        &'static self,
        work: impl FnOnce(&mut Machines, &Ticket) -> T + Send + 'static,
    ) -> Result<T, NoAnswer> {
        let (answer, answered) = mpsc::sync_channel(1);
        let ticket = self.submit(Box::new(move |machines, ticket| {
            // Nobody waits any more: then there is nobody to tell.
            let _ = answer.send(work(machines, ticket));
        }))?;
        let asked = Instant::now();
        loop {
            let patience = ticket.patience(asked).map_err(|why| self.give_up(&ticket, why))?;
            match answered.recv_timeout(patience) {
                Ok(answer) => return Ok(answer),
                Err(RecvTimeoutError::Disconnected) => return Err(NoAnswer::Panicked),
                Err(RecvTimeoutError::Timeout) => self.look(&mut self.lock()),
            }
        }
    }

    /// A job that has not begun ends at its first step.
    fn give_up(&'static self, ticket: &Ticket, why: NoAnswer) -> NoAnswer {
        ticket.watch.stop();
        self.look(&mut self.lock());
        why
    }

    fn submit(&'static self, work: Work) -> Result<Arc<Ticket>, NoAnswer> {
        let ticket = Arc::new(Ticket::default());
        let mut state = self.lock();
        self.look(&mut state);
        if state.abandoned >= ABANDONED_MAX {
            return Err(NoAnswer::AllHang);
        }
        if state.queue.len() >= QUEUE_MAX {
            return Err(NoAnswer::Full);
        }
        state.queue.push_back(Job { ticket: ticket.clone(), work });
        self.staff(&mut state);
        if state.threads.is_empty() {
            state.queue.clear();
            return Err(NoAnswer::NoThread);
        }
        drop(state);
        self.wake.notify_one();
        Ok(ticket)
    }

    /// Gives up threads that hang, and starts others for the jobs that wait.
    fn look(&'static self, state: &mut State) {
        let before = state.threads.len();
        state.threads.retain(|thread| {
            let Some(ticket) = &thread.job else { return true };
            if ticket.time_left().is_none() {
                ticket.watch.stop();
            }
            !ticket.hangs()
        });
        state.abandoned += before - state.threads.len();
        self.staff(state);
    }

    /// Starts a thread if a job waits that no idle one will take.
    fn staff(&'static self, state: &mut State) {
        let idle = state.threads.iter().filter(|thread| thread.job.is_none()).count();
        if state.queue.len() <= idle || state.threads.len() >= THREADS_MAX || state.abandoned >= ABANDONED_MAX {
            return;
        }
        state.last_number += 1;
        let number = state.last_number;
        let builder = thread::Builder::new().name(format!("policy-hook-{number}")).stack_size(STACK_BYTES);
        if builder.spawn(move || self.work(number)).is_ok() {
            state.threads.push(Thread { number, job: None });
        }
    }

    fn work(&'static self, number: u64) {
        let mut machines = Machines::default();
        while let Some(Job { ticket, work }) = self.next(number) {
            if catch_unwind(AssertUnwindSafe(|| work(&mut machines, &ticket))).is_err() {
                machines = Machines::default();
            }
            let mut state = self.lock();
            match state.threads.iter_mut().find(|thread| thread.number == number) {
                Some(thread) => thread.job = None,
                // Given up in the meantime, and replaced.
                None => {
                    state.abandoned -= 1;
                    return;
                }
            }
        }
    }

    /// The next job; none when there was nothing to do for long, and the thread is struck off.
    fn next(&self, number: u64) -> Option<Job> {
        let mut state = self.lock();
        loop {
            if let Some(job) = state.queue.pop_front() {
                job.ticket.set(Stage::MakesMachine(Instant::now()));
                let thread = state.threads.iter_mut().find(|thread| thread.number == number);
                thread.expect("only a running job can be given up").job = Some(job.ticket.clone());
                return Some(job);
            }
            let (woken, timeout) = self.wake.wait_timeout(state, IDLE).unwrap_or_else(PoisonError::into_inner);
            state = woken;
            if timeout.timed_out() && state.queue.is_empty() {
                state.threads.retain(|thread| thread.number != number);
                return None;
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool() -> &'static Pool {
        Box::leak(Box::new(Pool::new()))
    }

    /// A job that hangs until the sender is used or dropped.
    fn hang(pool: &'static Pool) -> (mpsc::Sender<()>, Result<(), NoAnswer>) {
        let (release, released) = mpsc::channel::<()>();
        let answer = pool.ask_blocking(move |_, ticket| {
            ticket.hook_begins();
            released.recv().ok();
        });
        (release, answer)
    }

    #[test]
    fn jobs_are_answered_and_threads_are_few() {
        let pool = pool();
        assert!(pool.lock().threads.is_empty());
        let answers: Vec<_> = (0..50)
            .map(|n| thread::spawn(move || pool.ask_blocking(move |_, _| n * 2)))
            .map(|asking| asking.join().unwrap())
            .collect();
        assert_eq!(answers, (0..50).map(|n| Ok(n * 2)).collect::<Vec<_>>());
        assert!(pool.lock().threads.len() <= THREADS_MAX);
    }

    #[tokio::test]
    async fn a_future_is_answered_too() {
        assert_eq!(pool().ask(|_, _| 7).await, Ok(7));
    }

    #[test]
    fn a_panic_is_no_answer_and_the_thread_goes_on() {
        let pool = pool();
        assert_eq!(pool.ask_blocking(|_, _| panic!("on purpose")), Err::<(), _>(NoAnswer::Panicked));
        assert_eq!(pool.ask_blocking(|_, _| 1), Ok(1));
    }

    #[test]
    fn the_queue_has_an_end() {
        let pool = pool();
        let (release, released) = mpsc::channel::<()>();
        let released = Arc::new(Mutex::new(released));
        let tickets: Vec<_> = (0..THREADS_MAX + QUEUE_MAX + 1)
            .map(|_| {
                let released = released.clone();
                pool.submit(Box::new(move |_, _| assert!(released.lock().unwrap().recv().is_err())))
            })
            .collect();
        assert!(tickets.iter().any(|ticket| matches!(ticket, Err(NoAnswer::Full))));
        drop(release);
    }

    #[test]
    fn hanging_threads_are_replaced_up_to_a_bound_and_come_back() {
        let pool = pool();
        let mut hanging = Vec::new();
        while hanging.len() < ABANDONED_MAX {
            let (release, answer) = hang(pool);
            assert_eq!(answer, Err(NoAnswer::TookTooLong));
            hanging.push(release);
            // The watchdog of whoever asks next.
            let due = Instant::now() + STOP_GRACE + RUN_MAX;
            while pool.lock().abandoned < hanging.len() && Instant::now() < due {
                pool.look(&mut pool.lock());
                thread::yield_now();
            }
            assert_eq!(pool.lock().abandoned, hanging.len());
        }
        assert_eq!(pool.ask_blocking(|_, _| ()), Err(NoAnswer::AllHang));
        drop(hanging);
        while pool.lock().abandoned > 0 {
            thread::yield_now();
        }
        assert_eq!(pool.ask_blocking(|_, _| 3), Ok(3));
    }
}
