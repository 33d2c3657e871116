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
use super::results::{PayloadKind, RuleFailure};
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
}

impl ToolPlan {
    /// Judges a call before it is sent. `schema` is what rewritten arguments are held against.
    pub fn judge_call_blocking(
        &self,
        call: &Arc<CallFacts>,
        _schema: Option<&Arc<InputSchema>>,
    ) -> Judged<CallVerdict> {
        match self.arguments.apply(call.arguments.as_deref()) {
            Err(denied) => Judged::by_rules(CallVerdict::Denied { reason: denied.reason }, None),
            Ok(arguments) => Judged::by_rules(CallVerdict::Send { arguments, deadline: self.deadline }, None),
        }
    }

    /// Judges the raw `result` of a call that was sent; `payload` is UTF-8.
    pub fn judge_result_blocking(&self, _call: &Arc<CallFacts>, payload: Bytes) -> Judged<ResultVerdict> {
        let text = std::str::from_utf8(&payload).unwrap_or_default();
        Judged::by_rules(
            match self.results.apply(text, PayloadKind::Result) {
                Ok(payload) => ResultVerdict::Pass { payload },
                Err(failure) => ResultVerdict::Failed(PolicyFailure::Rules(failure)),
            },
            None,
        )
    }
}
