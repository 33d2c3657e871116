//! What a policy says about one call, one result, one request: its hooks and its rules together.
//!
//! Order: a call meets the argument rules, then `on_call`, then, if the hook rewrote the arguments, the rules again and
//! the tool's schema. A result meets `on_result`, then the result rules, so that no hook can undo a redaction.
//!
//! Each question can be asked in two ways: as a future for the broker, and blocking for commands and tests.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use mlua::{Lua, Value};

use super::frozen::{Policy, ToolPlan};
use super::hooks::{
    Answer, At, CallView, Hook, HookError, Json, Machines, Outcome, ResultView, Ticket, ask, ask_blocking, check_size,
    merged, request_view,
};
use super::results::{PayloadKind, ResultRules, RuleFailure};
use super::schema::InputSchema;
use crate::core::diagnostic::Diagnostic;

/// A `tools/call` as a policy sees it.
#[derive(Clone, Debug, Default)]
pub struct CallFacts {
    pub tool: String,
    /// The raw JSON object; none if the client sent none.
    pub arguments: Option<String>,
    /// The same word for all calls of a session, and nothing that could be used to speak as it; none without a session.
    pub session: Option<String>,
    /// What the client says it is, where the broker knows.
    pub client: Option<ClientName>,
}

#[derive(Clone, Debug, Default)]
pub struct ClientName {
    pub name: String,
    pub version: String,
}

/// A request without a session, as `scope_key` sees it: nothing that tells one client program or connection from
/// another, because neither is a person or a piece of work.
#[derive(Clone, Debug, Default)]
pub struct RequestFacts {
    pub method: String,
    /// Of a `tools/call`.
    pub tool: Option<String>,
    /// The raw `_meta` object without what the protocol itself puts there.
    pub meta: Option<String>,
    /// Those that are meant to be looked at, with their names in lower case.
    pub headers: Vec<(String, String)>,
}

/// An answer of a policy, and where it came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Judged<V> {
    pub verdict: V,
    /// Steps that the hook took; 0 where none ran.
    pub steps: u32,
    /// What denied or rewrote: `policies/x.lua:30`, or the name of a field where no line is known. None if nothing did.
    pub rule: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallVerdict {
    Send {
        /// The raw arguments, only if a rule or the hook rewrote them.
        arguments: Option<String>,
        /// From the arrival of the call to its answer: the hook's, or else that of the settings.
        deadline: Option<Duration>,
    },
    /// The reason is the policy's own, for the client.
    Denied { reason: String },
    /// The call is not sent. The cause is for operators alone.
    Failed(PolicyFailure),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ResultVerdict {
    /// The raw payload, only if the hook or a rule rewrote it.
    Pass { payload: Option<String> },
    /// The reason is the policy's own, for the client.
    Withheld { reason: String },
    /// The result is withheld. The cause is for operators alone.
    Failed(PolicyFailure),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScopeVerdict {
    /// Of 1 to 64 letters, digits, `.`, `_`, `~` or `-`.
    Key(String),
    /// The policy has no key for this request.
    NoKey,
    /// The request is refused. The cause is for operators alone.
    Failed(Diagnostic),
}

/// Why a policy came to no verdict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PolicyFailure {
    Hook(Diagnostic),
    Rules(RuleFailure),
}

impl fmt::Display for PolicyFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hook(fault) => fault.fmt(f),
            Self::Rules(failure) => failure.fmt(f),
        }
    }
}

impl<V> Judged<V> {
    /// A verdict that no hook was asked for.
    fn by_rules(verdict: V, rule: Option<String>) -> Self {
        Self { verdict, steps: 0, rule }
    }
}

impl Policy {
    /// As [`ToolPlan::judge_call_blocking`], for a tool by its name.
    pub fn judge_call_blocking(&self, call: &Arc<CallFacts>, schema: Option<&Arc<InputSchema>>) -> Judged<CallVerdict> {
        self.plan(&call.tool).judge_call_blocking(call, schema)
    }

    /// As [`ToolPlan::judge_result_blocking`], for a tool by its name.
    pub fn judge_result_blocking(&self, call: &Arc<CallFacts>, payload: Bytes) -> Judged<ResultVerdict> {
        self.plan(&call.tool).judge_result_blocking(call, payload)
    }

    /// What `scope_key` makes of a request. Cancel safe: dropped, the hook runs in vain.
    pub fn judge_scope(&self, request: RequestFacts) -> impl Future<Output = Judged<ScopeVerdict>> + Send + 'static {
        let hook = self.scope_hook();
        async move {
            let Some(hook) = hook else { return Judged::by_rules(ScopeVerdict::NoKey, None) };
            let job = hook.clone();
            let judged = ask(move |machines, ticket| scope_key(&job, &request, machines, ticket)).await;
            judged.unwrap_or_else(|none| failed(&hook, hook.fault(none.to_string()), 0))
        }
    }

    /// The same for who has a thread to wait on.
    pub fn judge_scope_blocking(&self, request: RequestFacts) -> Judged<ScopeVerdict> {
        let Some(hook) = self.scope_hook() else { return Judged::by_rules(ScopeVerdict::NoKey, None) };
        let job = hook.clone();
        let judged = ask_blocking(move |machines, ticket| scope_key(&job, &request, machines, ticket));
        judged.unwrap_or_else(|none| failed(&hook, hook.fault(none.to_string()), 0))
    }
}

impl ToolPlan {
    /// The argument rules alone, which need no other thread: all there is for a tool without `on_call`.
    pub fn judge_by_rules(&self, arguments: Option<&str>) -> Judged<CallVerdict> {
        let named = |rule: Option<Arc<str>>| Some(rule.map_or("tools.settings".to_owned(), |rule| rule.to_string()));
        match self.arguments.judge(arguments) {
            Err(denied) => Judged::by_rules(CallVerdict::Denied { reason: denied.reason }, named(denied.rule)),
            Ok(None) => Judged::by_rules(CallVerdict::Send { arguments: None, deadline: self.deadline }, None),
            Ok(Some(rewritten)) => {
                let verdict = CallVerdict::Send { arguments: Some(rewritten.arguments), deadline: self.deadline };
                Judged::by_rules(verdict, named(rewritten.rule))
            }
        }
    }

    /// Judges a call before it is sent. `schema` is what rewritten arguments are held against.
    ///
    /// Cancel safe: dropped, a hook that has not begun does not run. Without a hook it is ready at once.
    pub fn judge_call(
        &self,
        call: Arc<CallFacts>,
        schema: Option<Arc<InputSchema>>,
    ) -> impl Future<Output = Judged<CallVerdict>> + Send + 'static {
        let begun = CallJob::begin(self, call, schema);
        async move {
            let job = match begun {
                Err(judged) => return judged,
                Ok(job) => job,
            };
            let hook = job.hook.clone();
            let judged = ask(move |machines, ticket| job.run(machines, ticket)).await;
            judged.unwrap_or_else(|none| failed(&hook, hook.fault(none.to_string()), 0))
        }
    }

    /// The same for who has a thread to wait on.
    pub fn judge_call_blocking(&self, call: &Arc<CallFacts>, schema: Option<&Arc<InputSchema>>) -> Judged<CallVerdict> {
        let job = match CallJob::begin(self, call.clone(), schema.cloned()) {
            Err(judged) => return judged,
            Ok(job) => job,
        };
        let hook = job.hook.clone();
        let judged = ask_blocking(move |machines, ticket| job.run(machines, ticket));
        judged.unwrap_or_else(|none| failed(&hook, hook.fault(none.to_string()), 0))
    }

    /// Judges the raw `result` of a call, by `on_result` and then by the rules. `call` is the call as it was sent.
    ///
    /// Cancel safe, as [`Self::judge_call`]. Without a hook the rules run where it is first polled.
    pub fn judge_result(
        &self,
        call: Arc<CallFacts>,
        payload: Bytes,
    ) -> impl Future<Output = Judged<ResultVerdict>> + Send + 'static {
        let plan = self.clone();
        async move {
            let Some(hook) = plan.on_result.clone() else { return judge_result_by_rules(&plan.results, &payload) };
            let job = ResultJob { results: plan.results, hook: hook.clone(), call, payload };
            let judged = ask(move |machines, ticket| job.run(machines, ticket)).await;
            judged.unwrap_or_else(|none| failed(&hook, hook.fault(none.to_string()), 0))
        }
    }

    /// The same for who has a thread to wait on.
    pub fn judge_result_blocking(&self, call: &Arc<CallFacts>, payload: Bytes) -> Judged<ResultVerdict> {
        let Some(hook) = self.on_result.clone() else { return judge_result_by_rules(&self.results, &payload) };
        let job = ResultJob { results: self.results.clone(), hook: hook.clone(), call: call.clone(), payload };
        let judged = ask_blocking(move |machines, ticket| job.run(machines, ticket));
        judged.unwrap_or_else(|none| failed(&hook, hook.fault(none.to_string()), 0))
    }
}

/// Verdicts that can be a failure.
trait Fails {
    fn failed(fault: Diagnostic) -> Self;
}

impl Fails for CallVerdict {
    fn failed(fault: Diagnostic) -> Self {
        Self::Failed(PolicyFailure::Hook(fault))
    }
}

impl Fails for ResultVerdict {
    fn failed(fault: Diagnostic) -> Self {
        Self::Failed(PolicyFailure::Hook(fault))
    }
}

impl Fails for ScopeVerdict {
    fn failed(fault: Diagnostic) -> Self {
        Self::Failed(fault)
    }
}

fn failed<V: Fails>(hook: &Hook, fault: Diagnostic, steps: u32) -> Judged<V> {
    Judged { verdict: V::failed(fault), steps, rule: Some(hook.place().to_string()) }
}

/// A call on its way through `on_call`.
struct CallJob {
    plan: ToolPlan,
    hook: Hook,
    /// With the arguments as the rules left them.
    call: Arc<CallFacts>,
    schema: Option<Arc<InputSchema>>,
    /// What the rules said: to send it.
    ruled: Judged<CallVerdict>,
}

impl CallJob {
    /// `Err` is the verdict where no hook has a say.
    fn begin(
        plan: &ToolPlan,
        call: Arc<CallFacts>,
        schema: Option<Arc<InputSchema>>,
    ) -> Result<Self, Judged<CallVerdict>> {
        let ruled = plan.judge_by_rules(call.arguments.as_deref());
        let Some(hook) = &plan.on_call else { return Err(ruled) };
        let call = match &ruled.verdict {
            CallVerdict::Send { arguments: None, .. } => call,
            CallVerdict::Send { arguments, .. } => {
                Arc::new(CallFacts { arguments: arguments.clone(), ..(*call).clone() })
            }
            _ => return Err(ruled),
        };
        Ok(Self { plan: plan.clone(), hook: hook.clone(), call, schema, ruled })
    }

    fn run(self, machines: &mut Machines, ticket: &Ticket) -> Judged<CallVerdict> {
        let hook = &self.hook;
        let answer = check_size(&self.call).map_err(|why| hook.fault(why)).and_then(|()| {
            machines.call(hook, ticket, |_| Ok(CallView::new(&self.call)), |_, value| Answer::read(&value))
        });
        let steps = ticket.watch.steps();
        let (answer, at) = match answer {
            Ok(answer) => answer,
            Err(fault) => return failed(hook, fault, steps),
        };
        let at = at.unwrap_or_else(|| hook.place());
        match answer {
            Answer::Deny { reason } => {
                Judged { verdict: CallVerdict::Denied { reason }, steps, rule: Some(at.to_string()) }
            }
            Answer::Allow { patch, deadline } => match self.patched(patch.as_deref().unwrap_or_default()) {
                Err(why) => failed(hook, Diagnostic::new(&at.file, Some(at.line), why), steps),
                Ok(patched) => self.allowed(patched, deadline, &at, steps),
            },
        }
    }

    fn allowed(self, patched: Option<String>, by_hook: Option<Duration>, at: &At, steps: u32) -> Judged<CallVerdict> {
        let CallVerdict::Send { arguments, deadline } = self.ruled.verdict else {
            return failed(&self.hook, self.hook.fault("was asked about a call that was denied"), steps);
        };
        let has_acted = patched.is_some() || by_hook.is_some();
        let rule = if has_acted { Some(at.to_string()) } else { self.ruled.rule };
        let verdict = CallVerdict::Send { arguments: patched.or(arguments), deadline: by_hook.or(deadline) };
        Judged { verdict, steps, rule }
    }

    /// The arguments with the hook's patch, judged again. The error is what to tell.
    fn patched(&self, patch: &[(String, Json)]) -> Result<Option<String>, String> {
        let arguments = self.call.arguments.as_deref().unwrap_or("{}");
        let patched = merged(arguments, patch).map_err(|_| "the arguments are not a JSON object".to_owned())?;
        let Some(patched) = patched else { return Ok(None) };
        let tool = &self.call.tool;
        let again = self.plan.arguments.judge(Some(&patched)).map_err(|denied| {
            let rule = denied.rule.as_deref().unwrap_or("tools.settings").to_owned();
            format!("what on_call made of the arguments of '{tool}' is denied by {rule}: {denied}")
        })?;
        let patched = again.map_or(patched, |again| again.arguments);
        if let Some(schema) = &self.schema {
            schema.check(&patched).map_err(|why| {
                format!("what on_call made of the arguments of '{tool}' does not fit its inputSchema: {why}")
            })?;
        }
        Ok(Some(patched))
    }
}

/// A result on its way through `on_result`.
struct ResultJob {
    results: ResultRules,
    hook: Hook,
    call: Arc<CallFacts>,
    payload: Bytes,
}

impl ResultJob {
    fn run(self, machines: &mut Machines, ticket: &Ticket) -> Judged<ResultVerdict> {
        let hook = &self.hook;
        let outcome = ResultView::new(self.payload.clone()).map_err(|why| hook.fault(why)).and_then(|view| {
            let arguments = |_: &Lua| Ok((CallView::new(&self.call), view.clone()));
            let answered = machines.call(hook, ticket, arguments, |_, value| nothing(&value));
            // Whatever became of the hook, the view ends here.
            let outcome = view.finish();
            answered.and_then(|()| outcome.map_err(|why| hook.fault(why)))
        });
        // What follows is ours and linear in the size of the result.
        ticket.hook_is_over();
        let steps = ticket.watch.steps();
        let at = hook.place().to_string();
        let hooked = match outcome {
            Err(fault) => return failed(hook, fault, steps),
            Ok(Outcome::Withhold(reason)) => {
                return Judged { verdict: ResultVerdict::Withheld { reason }, steps, rule: Some(at) };
            }
            Ok(Outcome::Pass(hooked)) => hooked,
        };
        let text = hooked.as_ref().map_or(&*self.payload, |hooked| hooked.as_bytes());
        let judged = judge_result_by_rules(&self.results, text);
        match (judged.verdict, hooked) {
            (ResultVerdict::Pass { payload: None }, Some(hooked)) => {
                Judged { verdict: ResultVerdict::Pass { payload: Some(hooked) }, steps, rule: Some(at) }
            }
            (verdict @ ResultVerdict::Pass { .. }, Some(_)) => Judged { verdict, steps, rule: Some(at) },
            (verdict, _) => Judged { verdict, steps, rule: judged.rule },
        }
    }
}

fn judge_result_by_rules(rules: &ResultRules, payload: &[u8]) -> Judged<ResultVerdict> {
    let applied = match std::str::from_utf8(payload) {
        Ok(text) => rules.apply(text, PayloadKind::Result),
        Err(fault) => Err(RuleFailure::NotJson { at: fault.valid_up_to() }),
    };
    match applied {
        Ok(None) => Judged::by_rules(ResultVerdict::Pass { payload: None }, None),
        Ok(payload) => Judged::by_rules(ResultVerdict::Pass { payload }, Some("results".to_owned())),
        Err(failure) => {
            Judged::by_rules(ResultVerdict::Failed(PolicyFailure::Rules(failure)), Some("results".to_owned()))
        }
    }
}

/// A hook that returns a verdict where none is asked for meant something that would not happen.
fn nothing(value: &Value) -> Result<(), HookError> {
    match value.is_nil() {
        true => Ok(()),
        false => {
            Err(HookError::Answer("on_result must return nothing; it changes the result by its methods".to_owned()))
        }
    }
}

fn scope_key(hook: &Hook, request: &RequestFacts, machines: &mut Machines, ticket: &Ticket) -> Judged<ScopeVerdict> {
    let key = machines.call(
        hook,
        ticket,
        |lua| request_view(lua, request),
        |_, value| match &value {
            Value::Nil => Ok(None),
            Value::String(key) if is_scope_key(&key.as_bytes()) => Ok(Some(key.to_string_lossy())),
            _ => {
                let what = "scope_key must return nothing or 1 to 64 letters, digits, '.', '_', '~' or '-'";
                Err(HookError::Answer(what.to_owned()))
            }
        },
    );
    let steps = ticket.watch.steps();
    match key {
        Ok(None) => Judged { verdict: ScopeVerdict::NoKey, steps, rule: None },
        Ok(Some(key)) => Judged { verdict: ScopeVerdict::Key(key), steps, rule: Some(hook.place().to_string()) },
        Err(fault) => failed(hook, fault, steps),
    }
}

/// As the keys in URLs and headers are.
fn is_scope_key(key: &[u8]) -> bool {
    let is_plain = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'~' | b'-');
    (1..=64).contains(&key.len()) && key.iter().all(is_plain)
}
