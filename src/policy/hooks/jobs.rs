//! What is done on a policy thread for one question: the hook, and what has to be checked of its answer.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use mlua::{Lua, Value};

use super::lua_json::Json;
use super::machine::{HookError, Machines};
use super::patch::merged;
use super::pool::Ticket;
use super::result_view::{Outcome, ResultView};
use super::verdict::Answer;
use super::views::{CallView, check_size, request as request_view};
use super::{At, Hook};
use crate::core::diagnostic::Diagnostic;
use crate::core::scope_key::is_scope_key;
use crate::policy::decide::{
    CallFacts, CallVerdict, Judged, PolicyFailure, RequestFacts, ResultVerdict, ScopeVerdict, decided_by,
};
use crate::policy::frozen::ToolPlan;
use crate::policy::results::{Acted, Link, PayloadKind, ResultRules, RuleFailure};
use crate::policy::schema::InputSchema;

/// Verdicts that can be a failure.
pub(in crate::policy) trait Fails {
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

pub(in crate::policy) fn failed<V: Fails>(hook: &Hook, fault: Diagnostic, steps: u32) -> Judged<V> {
    Judged { verdict: V::failed(fault), steps, rule: Some(hook.place().to_string()) }
}

/// A call on its way through `on_call`.
pub(in crate::policy) struct CallJob {
    plan: ToolPlan,
    pub hook: Hook,
    /// With the arguments as the rules left them.
    call: Arc<CallFacts>,
    schema: Option<Arc<InputSchema>>,
    /// What the rules said: to send it.
    ruled: Judged<CallVerdict>,
}

impl CallJob {
    /// `Err` is the verdict where no hook has a say.
    pub fn begin(
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

    pub fn run(self, machines: &mut Machines, ticket: &Ticket) -> Judged<CallVerdict> {
        let hook = &self.hook;
        let answer = check_size(&self.call).map_err(|why| hook.fault(why)).and_then(|()| {
            machines.call(hook, ticket, |_| Ok(CallView::new(&self.call)), |_, value| Answer::read(&value))
        });
        let steps = ticket.watch.steps();
        let (answer, at) = match answer {
            Ok(answer) => answer,
            Err(fault) => return failed(hook, fault, steps),
        };
        if answer.is_plain() {
            return Judged { steps, ..self.ruled };
        }
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
        if patch.is_empty() {
            return Ok(None);
        }
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
pub(in crate::policy) struct ResultJob {
    pub hook: Hook,
    pub call: Arc<CallFacts>,
    pub payload: Bytes,
}

impl ResultJob {
    pub fn run(self, machines: &mut Machines, ticket: &Ticket) -> Judged<ResultVerdict> {
        let hook = &self.hook;
        let outcome = ResultView::new(self.payload.clone()).map_err(|why| hook.fault(why)).and_then(|view| {
            let arguments = |_: &Lua| Ok((CallView::new(&self.call), view.clone()));
            let answered = machines.call(hook, ticket, arguments, |_, value| nothing(&value));
            // Whatever became of the hook, the view ends here.
            let outcome = view.finish();
            answered.and_then(|()| outcome.map_err(|why| hook.fault(why)))
        });
        let steps = ticket.watch.steps();
        let at = hook.place().to_string();
        match outcome {
            Err(fault) => failed(hook, fault, steps),
            Ok(Outcome::Withhold(reason)) => {
                Judged { verdict: ResultVerdict::Withheld { reason }, steps, rule: Some(at) }
            }
            Ok(Outcome::Pass(payload)) => {
                let rule = payload.is_some().then_some(at);
                Judged { verdict: ResultVerdict::Pass { payload }, steps, rule }
            }
        }
    }
}

/// For who asks what would become of a result: media that would be kept elsewhere are linked to nowhere.
pub(in crate::policy) fn judge_result_by_rules(rules: &ResultRules, payload: &[u8]) -> Judged<ResultVerdict> {
    let mut acted = Acted::default();
    let applied = match std::str::from_utf8(payload) {
        Ok(text) => rules.apply_telling(text, PayloadKind::Result, &mut |_| Some(nowhere()), &mut acted),
        Err(fault) => Err(RuleFailure::NotJson { at: fault.valid_up_to() }),
    };
    match applied {
        Ok(None) => Judged::by_rules(ResultVerdict::Pass { payload: None }, None),
        Ok(payload) => Judged::by_rules(ResultVerdict::Pass { payload }, decided_by(rules.places(acted))),
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

pub(in crate::policy) fn scope_key(
    hook: &Hook,
    request: &RequestFacts,
    machines: &mut Machines,
    ticket: &Ticket,
) -> Judged<ScopeVerdict> {
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

fn nowhere() -> Link {
    Link { uri: "lazy-mcp://nowhere".to_owned(), name: "kept elsewhere".to_owned() }
}
