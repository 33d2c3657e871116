//! The policy under test, asked as the broker asks it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::core::diagnostic::suggestion;
use crate::policy::decide::names_of;
use crate::policy::{
    Acted, CallFacts, CallVerdict, InputSchema, Judged, OutputSchema, PayloadKind, Policy, ResultVerdict, Unfit,
    decided_by, fitting,
};

/// A backend as far as its policy is concerned.
#[derive(Clone, Debug)]
pub struct Subject {
    pub name: String,
    pub policy: Policy,
    /// All tools of the catalog, those that clients do not see too.
    pub catalog: BTreeSet<String>,
    /// The tools that clients see.
    pub tools: BTreeMap<String, Schemas>,
    /// The longest that any call may take, whatever the policy says.
    pub call_max: Duration,
}

/// What the definition of a tool says of its calls, as far as it is asked.
#[derive(Clone, Debug, Default)]
pub struct Schemas {
    /// For arguments that a hook rewrites.
    pub input: Option<Arc<InputSchema>>,
    /// For structured results that the policy changes.
    pub output: Option<Arc<OutputSchema>>,
}

/// Why a call is not sent, or a result does not arrive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The policy's own reason.
    Decided(String),
    /// The policy came to no decision: production says `policy_failed`, and no more.
    Failed(String),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Decided(reason) => f.write_str(reason),
            Self::Failed(why) => write!(f, "the policy failed: {why}"),
        }
    }
}

/// What becomes of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallSeen {
    /// The arguments as they are sent, and the time until the answer; or why the call is not sent.
    pub verdict: Result<(Option<String>, Duration), Refusal>,
    pub is_rewritten: bool,
    pub rule: Option<String>,
    pub steps: u32,
    /// By [`Policy::rule_names`]: the rule above, and a hook that was asked.
    pub reached: Vec<String>,
}

/// What becomes of a result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PayloadSeen {
    /// What the client gets; or why it gets nothing.
    pub verdict: Result<String, Refusal>,
    pub is_rewritten: bool,
    /// Why its structured content was taken out.
    pub unfit: Option<Unfit>,
    pub rule: Option<String>,
    pub steps: u32,
    /// By [`Policy::rule_names`]: the rule above, and a hook that was asked.
    pub reached: Vec<String>,
}

impl Subject {
    /// A test that asks of a tool which the server does not have shows nothing. The error says so, with the nearest name.
    pub(super) fn check_tool(&self, tool: &str) -> Result<(), String> {
        if self.catalog.contains(tool) {
            return Ok(());
        }
        let hint = suggestion(tool, self.catalog.iter().map(String::as_str));
        Err(format!("the catalog of `{}` has no tool '{tool}'{hint}", self.name))
    }

    pub fn judge_call(&self, call: CallFacts) -> CallSeen {
        let Some(Schemas { input, .. }) = self.tools.get(&call.tool) else {
            let reason = Refusal::Decided(format!("Unknown tool: {}", call.tool));
            return CallSeen { verdict: Err(reason), is_rewritten: false, rule: None, steps: 0, reached: Vec::new() };
        };
        let given = call.arguments.clone();
        let [on_call, _] = self.policy.hook_names(&call.tool);
        let Judged { verdict, steps, rule } = self.policy.judge_call_blocking(&Arc::new(call), input.as_ref());
        let is_rewritten = matches!(&verdict, CallVerdict::Send { arguments: Some(_), .. });
        let verdict = match verdict {
            CallVerdict::Send { arguments, deadline } => {
                let deadline = deadline.map_or(self.call_max, |deadline| deadline.min(self.call_max));
                Ok((arguments.or(given), deadline))
            }
            CallVerdict::Denied { reason } => Err(Refusal::Decided(reason)),
            CallVerdict::Failed(failure) => Err(Refusal::Failed(failure.to_string())),
        };
        let reached = reached(rule.as_ref(), on_call, steps);
        CallSeen { verdict, is_rewritten, rule, steps, reached }
    }

    /// `call` is what the result answers.
    pub fn judge_result(&self, call: CallFacts, payload: &str) -> PayloadSeen {
        let [_, on_result] = self.policy.hook_names(&call.tool);
        let output = self.tools.get(&call.tool).and_then(|schemas| schemas.output.clone());
        let bytes = Bytes::copy_from_slice(payload.as_bytes());
        let Judged { verdict, steps, rule } = self.policy.judge_result_blocking(&Arc::new(call), bytes);
        let is_rewritten = matches!(&verdict, ResultVerdict::Pass { payload: Some(_) });
        let mut unfit = None;
        let verdict = match verdict {
            ResultVerdict::Pass { payload: None } => Ok(payload.to_owned()),
            ResultVerdict::Pass { payload: Some(changed) } => match &output {
                None => Ok(changed),
                Some(schema) => match fitting(schema, &self.name, payload, changed) {
                    Ok(fitting) => {
                        unfit = fitting.unfit;
                        Ok(fitting.payload)
                    }
                    Err(failure) => Err(Refusal::Failed(failure.to_string())),
                },
            },
            ResultVerdict::Withheld { reason } => Err(Refusal::Decided(reason)),
            ResultVerdict::Failed(failure) => Err(Refusal::Failed(failure.to_string())),
        };
        let reached = reached(rule.as_ref(), on_result, steps);
        PayloadSeen { verdict, is_rewritten, unfit, rule, steps, reached }
    }

    /// The `error` of a JSON-RPC response to a call of `tool`.
    pub fn judge_error(&self, tool: &str, payload: &str) -> PayloadSeen {
        let rules = self.policy.plan(tool).results;
        let mut acted = Acted::default();
        let ruled = rules.apply_telling(payload, PayloadKind::Error, &mut |_| None, &mut acted);
        let is_rewritten = matches!(&ruled, Ok(Some(_)));
        let verdict = match ruled {
            Ok(new) => Ok(new.unwrap_or_else(|| payload.to_owned())),
            Err(failure) => Err(Refusal::Failed(failure.to_string())),
        };
        let rule = match &verdict {
            Ok(_) => decided_by(rules.places(acted).filter(|_| is_rewritten)),
            Err(_) => Some("results".to_owned()),
        };
        PayloadSeen { verdict, is_rewritten, unfit: None, reached: reached(rule.as_ref(), None, 0), rule, steps: 0 }
    }
}

fn reached(rule: Option<&String>, hook: Option<String>, steps: u32) -> Vec<String> {
    let decided = rule.into_iter().flat_map(|rule| names_of(rule)).map(str::to_owned);
    decided.chain(hook.filter(|_| steps > 0)).collect()
}
