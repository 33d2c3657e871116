//! One request from its arrival to its answer: a call of a tool, or whatever else only a server can answer.

mod input;
mod outcome;
mod reply;

use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::time::Sleep;

use self::input::{Question, Round, Step};
pub use self::reply::Reply;
use super::decisions::{Decider, Later, facts};
use super::fault::Fault;
use super::undecided::Asking;
use super::{Broker, Common, Recipient};
use crate::core::diagnostic::suggestion;
use crate::core::generation::Generation;
use crate::core::lifecycle::Refusal;
use crate::events::What;
use crate::link::{Caller, CanAnswer, Extension, InFlight, Link, Loss, NotSent, Outbox, Outcome};
use crate::policy::{CallVerdict, DriftRule, Judged, ToolPlan};
use crate::protocol::call::{CallRequest, Crossing, Outbound, Subject, modern_metadata};
use crate::protocol::error::{RpcError, shown};
use crate::protocol::logging::LogLevel;
use crate::protocol::version::{Era, meta};
use crate::snapshot::{Backend, OutputSchema, Reach};
use crate::supervisor::{Acquired, Granted, InstanceKey, Refused, ScopeKey, Slot, Waiter};

/// A call that has been silent this long gets a sign of life, so that nobody between gives up on the connection.
pub const QUIET_AFTER: Duration = Duration::from_secs(10);
/// A generation can end between a grant and the write; the call then asks again. More often than this is no accident.
const SENDS_MAX: usize = 3;

/// Who calls, and in which manner.
#[derive(Clone, Debug)]
pub struct Client {
    /// The session, or for a client without one a number of this request alone.
    pub key: u128,
    pub scope: ScopeKey,
    pub era: Era,
    /// Whether it takes a stream as an answer, on which a server can tell and ask it something.
    pub hears: bool,
    /// The session, if there is one.
    pub recipient: Option<Arc<Recipient>>,
}

/// What a call has to say next.
#[derive(Debug)]
pub enum CallEvent {
    /// A notification for the caller, one message.
    Notice(Bytes),
    /// Nothing for `QUIET_AFTER`.
    Quiet,
    Ended(Reply),
}

/// A call under way. Dropping it is the caller's going away: a queued call leaves the queue; a running one is
/// cancelled for a modern client, whose closed stream means just that, and goes on to its deadline for a legacy one,
/// whose disconnect must not be read as a cancellation (2025-11-25, `transports`).
#[derive(Debug)]
pub struct Call {
    common: Arc<Common>,
    backend: Arc<Backend>,
    client: Client,
    request: CallRequest,
    /// The arguments as a policy rewrote them.
    arguments: Option<String>,
    plan: Arc<ToolPlan>,
    output: Option<Arc<OutputSchema>>,
    reach: Reach,
    arrived: Instant,
    /// When it last had all that it needs to be sent.
    queued_since: Instant,
    deadline: Instant,
    timer: Option<Pin<Box<Sleep>>>,
    /// What a request that is asked anew brings along: members of its params.
    extra: String,
    /// How often the server has asked in a result.
    rounds: u32,
    /// What a legacy server waits for the modern client to answer.
    questions: Vec<Question>,
    phase: Phase,
}

#[derive(Debug)]
enum Phase {
    /// A hook of the policy is asked. Nothing of the call has left the broker.
    Judging {
        verdict: Later<Judged<CallVerdict>>,
        asking: Asking,
    },
    Queued {
        waiter: Waiter,
        sends_left: usize,
    },
    Running {
        slot: Arc<Slot>,
        link: Link,
        generation: Generation,
        call: InFlight,
    },
    /// The client is asked what its server wants to know. Nothing of the call is out.
    Asking(Box<Round>),
    /// The reply is known; notices that came before it go out first.
    Ending {
        notices: Option<Arc<Outbox>>,
        ended: Ended,
    },
}

#[derive(Debug)]
enum Ended {
    Now(Reply),
    /// The result is being judged or rewritten on another thread.
    Aside(Later<Reply>),
    Told,
}

impl Call {
    pub(super) fn begin(
        broker: &Broker,
        backend: &Arc<Backend>,
        client: Client,
        request: CallRequest,
    ) -> Result<Self, RpcError> {
        let arrived = Instant::now();
        let (reach, tool) = match request.tool() {
            None => (backend.offers.reach(&request.subject)?, None),
            Some(name) => match backend.tool(name) {
                Some(tool) => (Reach::Starts, Some(tool)),
                None => {
                    let hint = suggestion(name, backend.tool_names());
                    return Err(RpcError::invalid_params(format!("Unknown tool: {}{hint}", shown(name))));
                }
            },
        };
        let plan = tool.map_or(&backend.for_all, |tool| &tool.plan).clone();
        let mut call = Self {
            common: broker.common.clone(),
            backend: backend.clone(),
            client,
            request,
            arguments: None,
            plan,
            output: tool.and_then(|tool| tool.output.clone()),
            reach,
            arrived,
            queued_since: arrived,
            deadline: arrived,
            timer: None,
            extra: String::new(),
            rounds: 0,
            questions: Vec::new(),
            phase: Phase::ended(Reply::Fault(Fault::cancelled())),
        };
        call.set_deadline(call.plan.deadline);
        call.phase = if call.plan.has_on_call() {
            let facts = facts(&call.client, &call.request, call.request.arguments());
            let schema = tool.and_then(|tool| tool.schema.clone());
            let verdict = Later::new(call.plan.judge_call(facts, schema));
            let asking = broker.common.undecided.enter(call.client.key, call.request.id());
            Phase::Judging { verdict, asking }
        } else {
            let judged = call.plan.judge_by_rules(call.request.arguments());
            call.carry_out(judged)
        };
        Ok(call)
    }

    /// Counted from the arrival; the configuration is the ceiling.
    fn set_deadline(&mut self, asked: Option<Duration>) {
        let ceiling = self.backend.call_max();
        self.deadline = self.arrived + asked.map_or(ceiling, |asked| asked.min(ceiling));
    }

    /// What the policy says about sending the call.
    fn carry_out(&mut self, judged: Judged<CallVerdict>) -> Phase {
        let name = self.backend.name.clone();
        match judged.verdict {
            CallVerdict::Send { arguments, deadline } => {
                if arguments.is_some() {
                    self.decider().tell(judged.rule, |decision| What::CallRewritten { decision });
                }
                self.arguments = arguments;
                self.set_deadline(deadline);
                self.enter()
            }
            CallVerdict::Denied { reason } => {
                self.decider().tell(judged.rule, |decision| What::CallDenied { decision });
                Phase::ended(Reply::Fault(Fault::denied(&name, &reason)))
            }
            CallVerdict::Failed(failure) => {
                tracing::warn!(backend = %name, tool = %self.request.label(), %failure, "a call was not sent: its policy failed");
                self.decider().tell(judged.rule, |decision| What::CallDenied { decision });
                Phase::ended(Reply::Fault(Fault::policy_failed_on_call(&name)))
            }
        }
    }

    /// The hook has answered. A call that was cancelled meanwhile goes nowhere.
    fn decided(&mut self, judged: Judged<CallVerdict>) {
        let cancelled = || Phase::ended(Reply::Fault(Fault::cancelled()));
        let Phase::Judging { asking, .. } = std::mem::replace(&mut self.phase, cancelled()) else { return };
        if asking.is_cancelled() {
            return;
        }
        self.phase = self.carry_out(judged);
        self.give_up_if_cancelled(&asking);
    }

    /// Whoever cancelled in this very moment has perhaps looked into the slot before the call was there.
    fn give_up_if_cancelled(&mut self, asking: &Asking) {
        let cancelled = || Phase::ended(Reply::Fault(Fault::cancelled()));
        if asking.is_cancelled()
            && let Phase::Running { slot, link, generation, call } = std::mem::replace(&mut self.phase, cancelled())
        {
            slot.give_up(&link, generation, call.upstream_id, "cancelled by the client");
        }
    }

    fn instance(&self) -> InstanceKey {
        InstanceKey { backend: self.backend.name.clone(), scope: self.client.scope.clone() }
    }

    fn decider(&self) -> Decider {
        Decider {
            events: self.common.events.clone(),
            backend: self.backend.clone(),
            tool: self.request.label().into(),
            is_tool: self.request.tool().is_some(),
        }
    }

    /// Whether a client that comes back with `request` can mean this call.
    pub(super) fn is_of(&self, backend: &Arc<Backend>, client: &Client, request: &CallRequest) -> bool {
        let is_same = self.backend.name == backend.name && self.client.scope == client.scope;
        is_same && self.request.subject == request.subject
    }

    /// Its progress may move it.
    pub(super) fn deadline(&self) -> Instant {
        match &self.phase {
            Phase::Running { link, call, .. } => link.deadline(call.upstream_id).unwrap_or(self.deadline),
            _ => self.deadline,
        }
    }

    /// The client's id, raw.
    pub fn id(&self) -> Bytes {
        self.request.id()
    }

    pub fn backend(&self) -> &Arc<Backend> {
        &self.backend
    }

    pub fn era(&self) -> Era {
        self.client.era
    }

    /// What comes next. Cancel safe: everything is kept in the call. Not to be asked again after `Ended`.
    pub async fn next(&mut self) -> CallEvent {
        loop {
            match &mut self.phase {
                Phase::Judging { verdict, .. } => {
                    tokio::select! {
                        // A verdict beats the clock. Both are kept in `self`.
                        biased;
                        judged = verdict => {
                            // The deadline may be another now.
                            self.timer = None;
                            self.decided(judged);
                        }
                        () = quiet(&mut self.timer, Some(self.deadline)) => {
                            if Instant::now() < self.deadline {
                                return CallEvent::Quiet;
                            }
                            self.phase = Phase::ended(Reply::Fault(Fault::policy_failed_on_call(&self.backend.name)));
                        }
                    }
                }
                Phase::Queued { waiter, sends_left } => {
                    let sends_left = *sends_left;
                    tokio::select! {
                        // An answer beats the clock. Both are kept in `self`.
                        biased;
                        answer = waiter => {
                            // It was set for the queue, and the call has a deadline.
                            self.timer = None;
                            self.phase = match answer {
                                Ok(granted) => self.send(granted, sends_left),
                                Err(refused) => Phase::ended(self.refused(&refused)),
                            };
                        }
                        // The queue has its own deadline, which comes as an answer.
                        () = quiet(&mut self.timer, None) => return CallEvent::Quiet,
                    }
                }
                Phase::Running { .. } if !self.questions.is_empty() => {
                    if let Some(reply) = self.park() {
                        return CallEvent::Ended(reply);
                    }
                }
                Phase::Running { link, call, .. } => {
                    tokio::select! {
                        // Notices first, since they were sent before the answer. All are kept in `self`.
                        biased;
                        Some(notice) = call.notices.next() => {
                            if let Some(notice) = self.ruled(notice)
                                && !self.notes_question(&notice)
                            {
                                return CallEvent::Notice(notice);
                            }
                        }
                        outcome = &mut call.outcome => {
                            let notices = call.notices.clone();
                            let outcome = outcome.unwrap_or(Outcome::Lost(Loss::Exited));
                            self.timer = None;
                            match self.round_of(&outcome, &notices) {
                                Some(Ok(round)) => self.ask(round),
                                Some(Err(error)) => self.phase = Phase::ended(Reply::Error(error)),
                                None => {
                                    let ended = self.end(outcome);
                                    self.phase = Phase::Ending { notices: Some(notices), ended };
                                }
                            }
                        }
                        () = quiet(&mut self.timer, Some(self.deadline)) => {
                            // Its progress may have moved it.
                            self.deadline = link.deadline(call.upstream_id).unwrap_or(self.deadline);
                            if Instant::now() < self.deadline {
                                return CallEvent::Quiet;
                            }
                            self.run_out_of_time();
                        }
                    }
                }
                Phase::Asking(round) => {
                    tokio::select! {
                        // An answer beats the clock. All are kept in `self`.
                        biased;
                        step = round.next() => match step {
                            Step::Send(message) => {
                                if let Some(message) = self.ruled(message) {
                                    return CallEvent::Notice(message);
                                }
                            }
                            Step::Answered(place, given) => self.take_answer(place, given),
                            Step::Cancelled => self.phase = Phase::ended(Reply::Fault(Fault::cancelled())),
                        },
                        () = quiet(&mut self.timer, Some(self.deadline)) => {
                            if Instant::now() < self.deadline {
                                return CallEvent::Quiet;
                            }
                            let fault = Fault::call_timeout(&self.backend.name, self.allowed());
                            self.phase = Phase::ended(Reply::Fault(fault));
                        }
                    }
                }
                Phase::Ending { notices, ended } => {
                    if let Some(notice) = notices.as_ref().and_then(|notices| notices.take()) {
                        match self.ruled(notice) {
                            Some(notice) => return CallEvent::Notice(notice),
                            None => continue,
                        }
                    }
                    if let Ended::Aside(reply) = ended {
                        *ended = Ended::Now(reply.await);
                    }
                    let reply = match std::mem::replace(ended, Ended::Told) {
                        Ended::Now(reply) => reply,
                        Ended::Aside(_) | Ended::Told => Reply::Fault(Fault::cancelled()),
                    };
                    return CallEvent::Ended(self.shaped(reply));
                }
            }
        }
    }

    /// A failure as the kind of request can have it.
    fn shaped(&self, reply: Reply) -> Reply {
        match reply {
            Reply::Fault(fault) if self.request.tool().is_none() => {
                tracing::info!(backend = %self.backend.name, code = fault.code, "request failed");
                Reply::Error(fault.as_error(&self.backend.name))
            }
            other => other,
        }
    }

    /// The request is for a server that runs, and none does.
    fn nobody_to_ask(&self) -> RpcError {
        match &self.request.subject {
            Subject::Resource(uri) => RpcError::resource_not_found(uri, self.client.era),
            Subject::Completion(_) => RpcError::invalid_params("Unknown prompt or resource"),
            Subject::Tool(_) | Subject::Prompt(_) | Subject::Other(_) => {
                RpcError::method_not_found(self.request.label())
            }
        }
    }

    /// Asks for a lease, in the slot that the scope names.
    fn enter(&mut self) -> Phase {
        let key = self.instance();
        if self.reach == Reach::Live {
            let acquired = self.common.supervisor.find(&key).and_then(|slot| {
                let (caller, wait_until) = self.caller();
                slot.acquire_live(caller, wait_until)
            });
            let phase = acquired.and_then(|acquired| self.acquired(acquired, SENDS_MAX));
            return phase.unwrap_or_else(|| Phase::ended(Reply::Error(self.nobody_to_ask())));
        }
        loop {
            let slot = match self.common.supervisor.slot(&key) {
                Ok(slot) => slot,
                Err(none) => return Phase::ended(Reply::Fault(Fault::no_slot(&self.backend.name, none))),
            };
            match self.acquire(&slot, SENDS_MAX) {
                Some(phase) => return phase,
                None => continue,
            }
        }
    }

    /// `None`: the slot was forgotten in this moment.
    fn acquire(&mut self, slot: &Arc<Slot>, sends_left: usize) -> Option<Phase> {
        let (caller, wait_until) = self.caller();
        let acquired = match self.reach {
            Reach::Starts => slot.acquire(caller, wait_until),
            Reach::Live => slot.acquire_live(caller, wait_until)?,
        };
        self.acquired(acquired, sends_left)
    }

    /// Who waits for a lease, and until when.
    fn caller(&self) -> (Caller, Instant) {
        (self.as_caller(), self.deadline.min(self.queued_since + self.backend.policy.queue.wait))
    }

    /// What the client declared when its session began.
    fn capabilities(&self) -> &str {
        self.client.recipient.as_ref().map_or("{}", |recipient| recipient.capabilities())
    }

    fn as_caller(&self) -> Caller {
        let (logs, answers) = match &self.client.recipient {
            Some(recipient) => (Some(recipient.level()), CanAnswer::default()),
            None => (
                LogLevel::of(self.request.meta(), meta::LOG_LEVEL),
                self.request.capabilities().map(CanAnswer::declared).unwrap_or_default(),
            ),
        };
        // The allowance is what the call has, whoever gave it: the settings, a hook, or the configuration.
        let extension = self.plan.progress_ceiling.map(|ceiling| Extension {
            by: self.deadline.saturating_duration_since(self.arrived),
            until: self.arrived + ceiling.min(self.backend.call_max()),
        });
        let Client { key: client, hears, .. } = self.client;
        Caller { client, id: self.request.id(), deadline: self.deadline, hears, logs, answers, extension }
    }

    fn acquired(&mut self, acquired: Acquired, sends_left: usize) -> Option<Phase> {
        Some(match acquired {
            Acquired::Forgotten => return None,
            Acquired::Now(granted) => self.send(granted, sends_left),
            Acquired::Later(waiter) => Phase::Queued { waiter, sends_left },
            Acquired::Refused(refused) => Phase::ended(self.refused(&refused)),
        })
    }

    fn refused(&self, refused: &Refused) -> Reply {
        match refused {
            // What ran is gone, and the request was not worth a start.
            Refused::By(Refusal::NothingRuns, _) => Reply::Error(self.nobody_to_ask()),
            _ => Reply::Fault(Fault::refused(&self.backend.name, refused, self.queued_since.elapsed())),
        }
    }

    /// Writes the call. This is the only place that does, and a call that was written is never written again.
    fn send(&mut self, granted: Granted, sends_left: usize) -> Phase {
        if let Some(tool) = self.request.tool()
            && self.backend.policy.drift == DriftRule::Refuse
            && granted.drifted.contains(tool)
        {
            return Phase::ended(Reply::Fault(Fault::drifted(&self.backend.name, tool)));
        }
        let Granted { lease, link, .. } = granted;
        let (slot, generation, id) = (lease.slot().clone(), lease.generation, lease.id.0);
        let caller = self.as_caller();
        let is_own = matches!(self.client.scope, ScopeKey::Named(_)) && self.backend.offers.logging;
        if let (None, Some(level), true) = (&self.client.recipient, caller.logs, is_own) {
            link.hear_logs_from(level);
        }
        let metadata;
        let crossing = match (self.client.era, link.era()) {
            (Era::Modern, Era::Legacy) => Crossing::ToLegacy,
            (Era::Legacy, Era::Modern) => {
                metadata = modern_metadata(self.capabilities(), caller.logs);
                Crossing::ToModern(&metadata)
            }
            (Era::Legacy, Era::Legacy) | (Era::Modern, Era::Modern) => Crossing::None,
        };
        let outbound = Outbound { arguments: self.arguments.as_deref(), crossing, extra: &self.extra };
        match link.call(id, &self.request, outbound, caller, Box::new(lease)) {
            Ok(call) => {
                if call.is_due_first {
                    slot.look();
                }
                if let Some(recipient) = self.client.recipient.as_ref().filter(|_| self.client.hears) {
                    recipient.hand_over(&call.notices);
                }
                Phase::Running { slot, link, generation, call }
            }
            Err(NotSent(lease)) => {
                // Told before the lease is back, so that the core grants this generation to nobody else.
                slot.link_is_lost(generation);
                drop(lease);
                let again = if sends_left > 1 { self.acquire(&slot, sends_left - 1) } else { None };
                again.unwrap_or_else(|| match self.reach {
                    Reach::Starts => Phase::ended(Reply::Fault(Fault::not_sent(&self.backend.name))),
                    Reach::Live => Phase::ended(Reply::Error(self.nobody_to_ask())),
                })
            }
        }
    }

    /// The deadline has come: the server is told, the lease stays out until it answers or is recycled.
    fn run_out_of_time(&mut self) {
        let ended = Phase::ended(Reply::Fault(Fault::call_timeout(&self.backend.name, self.allowed())));
        if let Phase::Running { slot, link, generation, call } = std::mem::replace(&mut self.phase, ended) {
            slot.time_out(&link, generation, call.upstream_id);
        }
    }

    fn allowed(&self) -> Duration {
        self.deadline.saturating_duration_since(self.arrived)
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        let Phase::Running { slot, link, generation, call } = &self.phase else { return };
        match self.client.era {
            Era::Modern => {
                slot.give_up(link, *generation, call.upstream_id, "the client closed the stream");
                let over = |question: &Question| link.refuse_to_answer(question.id, "the client did not come back");
                self.questions.iter().for_each(over);
            }
            Era::Legacy => link.abandon(call.upstream_id),
        }
    }
}

impl Phase {
    fn ended(reply: Reply) -> Self {
        Self::Ending { notices: None, ended: Ended::Now(reply) }
    }
}

/// Resolves after `QUIET_AFTER` or at the deadline, whichever comes first, and begins anew.
///
/// One timer serves both, and only a call that waits at all has it: most are answered first.
async fn quiet(timer: &mut Option<Pin<Box<Sleep>>>, deadline: Option<Instant>) {
    let until = || {
        let quiet = Instant::now() + QUIET_AFTER;
        deadline.map_or(quiet, |deadline| deadline.min(quiet)).into()
    };
    timer.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(until()))).await;
    *timer = None;
}
