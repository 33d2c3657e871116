//! What a policy would say of a call and of a result, and why: for operators who ask before it happens.

use schemars::JsonSchema;
use serde::Serialize;

use super::Backend;
use super::build::needs_task;
use crate::catalog::Decision;
use crate::policy::CallFacts;
use crate::policy::testing::{CallSeen, PayloadSeen, Schemas, Subject};

/// What happens to a tool's calls.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Explanation {
    pub backend: String,
    pub tool: String,
    pub policy: String,
    pub policy_digest: String,
    /// Whether clients see the tool.
    pub visible: bool,
    /// Why they do not.
    pub hidden_because: Option<String>,
    pub call: CallExplained,
    /// Null when no result was given to judge.
    pub result: Option<ResultExplained>,
}

#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct CallExplained {
    /// Whether it is sent.
    pub allowed: bool,
    /// Why not.
    pub reason: Option<String>,
    /// The JSON of the arguments as they are sent; null when the call has none.
    pub arguments: Option<String>,
    /// Whether the policy changed the arguments.
    pub rewritten: bool,
    /// From its arrival to its answer.
    pub deadline_seconds: Option<f64>,
    /// What denied or rewrote it: a place in a file, or a field.
    pub rule: Option<String>,
    /// Steps that a hook took.
    pub steps: u32,
}

#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct ResultExplained {
    /// Whether the client gets nothing of it.
    pub withheld: bool,
    /// Why it is withheld.
    pub reason: Option<String>,
    /// The JSON that the client gets.
    pub payload: Option<String>,
    /// Whether the policy changed it.
    pub rewritten: bool,
    /// Why its structured content was taken out, if it was: how the policy left it, clients would throw all of it away.
    pub structure_taken_out: Option<String>,
    /// What withheld or rewrote it: a place in a file, or a field.
    pub rule: Option<String>,
    /// Steps that a hook took.
    pub steps: u32,
}

impl Backend {
    /// The backend as tests of its policy ask it.
    pub fn subject(&self) -> Subject {
        let schemas = |tool: &str| {
            let known = self.tool(tool)?;
            Some((tool.to_owned(), Schemas { input: known.schema.clone(), output: known.output.clone() }))
        };
        let tools = self.tool_names().filter_map(schemas).collect();
        Subject {
            name: self.name.to_string(),
            policy: self.policy.clone(),
            catalog: self.catalog.tools().iter().map(|tool| tool.name.to_string()).collect(),
            tools,
            call_max: self.call_max(),
        }
    }

    /// Judges a call, and the result of it if there is one, as if they happened. Blocks while hooks run.
    pub fn explain(&self, call: CallFacts, result: Option<&str>) -> Explanation {
        let subject = self.subject();
        let hidden_because = self.why_hidden(&call.tool);
        Explanation {
            backend: self.name.to_string(),
            tool: call.tool.clone(),
            policy: self.policy.path.display().to_string(),
            policy_digest: self.policy.digest.to_string(),
            visible: hidden_because.is_none(),
            hidden_because,
            call: subject.judge_call(call.clone()).into(),
            result: result.map(|payload| subject.judge_result(call, payload).into()),
        }
    }

    /// Why clients do not see a tool, for operators; nothing if they do.
    pub fn why_hidden(&self, tool: &str) -> Option<String> {
        let Some(known) = self.catalog.tool(tool) else {
            return Some(format!("the catalog {} has no such tool", self.catalog.path.display()));
        };
        match &known.decision {
            Decision::Excluded { reason } => Some(format!("excluded in {} ({reason})", self.catalog.path.display())),
            Decision::Enabled if needs_task(&known.raw) => {
                Some("it answers by a task alone, and the broker relays none".to_owned())
            }
            Decision::Enabled => self.policy.why_hidden(tool),
        }
    }
}

impl From<CallSeen> for CallExplained {
    fn from(seen: CallSeen) -> Self {
        let (allowed, reason, sent) = match seen.verdict {
            Ok(sent) => (true, None, Some(sent)),
            Err(refusal) => (false, Some(refusal.to_string()), None),
        };
        let (arguments, deadline) = sent.map_or((None, None), |(arguments, deadline)| (arguments, Some(deadline)));
        Self {
            allowed,
            reason,
            arguments,
            rewritten: seen.is_rewritten,
            deadline_seconds: deadline.map(|deadline| deadline.as_secs_f64()),
            rule: seen.rule,
            steps: seen.steps,
        }
    }
}

impl From<PayloadSeen> for ResultExplained {
    fn from(seen: PayloadSeen) -> Self {
        let (payload, reason) = match seen.verdict {
            Ok(payload) => (Some(payload), None),
            Err(refusal) => (None, Some(refusal.to_string())),
        };
        Self {
            withheld: reason.is_some(),
            reason,
            payload,
            rewritten: seen.is_rewritten,
            structure_taken_out: seen.unfit.map(|unfit| unfit.to_string()),
            rule: seen.rule,
            steps: seen.steps,
        }
    }
}
