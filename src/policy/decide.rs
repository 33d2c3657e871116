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

use super::frozen::{Policy, ToolPlan};
use super::hooks::{CallJob, ResultJob, ask, ask_blocking, failed, judge_result_by_rules, scope_key};
use super::results::RuleFailure;
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

/// Between the names of what decided together.
const BETWEEN_NAMES: &str = ", ";

/// The names of what decided together: a hook and then rules, or several rules.
pub fn decided_by(names: impl IntoIterator<Item = impl AsRef<str>>) -> Option<String> {
    let mut all = String::new();
    for name in names {
        let between = if all.is_empty() { "" } else { BETWEEN_NAMES };
        all.push_str(between);
        all.push_str(name.as_ref());
    }
    (!all.is_empty()).then_some(all)
}

/// The single names of [`decided_by`].
pub(super) fn names_of(decided: &str) -> impl Iterator<Item = &str> {
    decided.split(BETWEEN_NAMES)
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
    pub(super) fn by_rules(verdict: V, rule: Option<String>) -> Self {
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

    /// Asks `on_result` about the raw `result` of a call; `call` is the call as it was sent. The result rules are the
    /// caller's to run over what is left.
    ///
    /// Cancel safe, as [`Self::judge_call`]. Without a hook it is ready at once and changes nothing.
    pub fn ask_on_result(
        &self,
        call: Arc<CallFacts>,
        payload: Bytes,
    ) -> impl Future<Output = Judged<ResultVerdict>> + Send + 'static {
        let hook = self.on_result.clone();
        async move {
            let Some(hook) = hook else { return Judged::by_rules(ResultVerdict::Pass { payload: None }, None) };
            let job = ResultJob { hook: hook.clone(), call, payload };
            let judged = ask(move |machines, ticket| job.run(machines, ticket)).await;
            judged.unwrap_or_else(|none| failed(&hook, hook.fault(none.to_string()), 0))
        }
    }

    /// What becomes of the raw `result` of a call, by `on_result` and then by the rules, for who has a thread to wait on.
    /// Media that would be kept elsewhere are linked to nowhere.
    pub fn judge_result_blocking(&self, call: &Arc<CallFacts>, payload: Bytes) -> Judged<ResultVerdict> {
        let Some(hook) = self.on_result.clone() else { return judge_result_by_rules(&self.results, &payload) };
        let job = ResultJob { hook: hook.clone(), call: call.clone(), payload: payload.clone() };
        let asked = ask_blocking(move |machines, ticket| job.run(machines, ticket));
        let asked = asked.unwrap_or_else(|none| failed(&hook, hook.fault(none.to_string()), 0));
        let ResultVerdict::Pass { payload: hooked } = asked.verdict else { return asked };
        let ruled = judge_result_by_rules(&self.results, hooked.as_deref().map_or(&payload[..], str::as_bytes));
        let (verdict, rule) = match ruled.verdict {
            ResultVerdict::Pass { payload } => (
                ResultVerdict::Pass { payload: payload.or(hooked) },
                decided_by(asked.rule.into_iter().chain(ruled.rule)),
            ),
            failed => (failed, ruled.rule),
        };
        Judged { verdict, steps: asked.steps, rule }
    }
}
