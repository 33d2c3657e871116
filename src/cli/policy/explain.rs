//! `lazy-mcp policy explain`.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::Args;
use serde_json::Value;

use super::super::{backend_of, print_line};
use crate::config::load_alone;
use crate::exit::{Exit, Failure};
use crate::policy::CallFacts;
use crate::policy::testing::check_payload;
use crate::snapshot::{CallExplained, Explanation, ResultExplained, build_backend};

#[derive(Clone, Debug, Args)]
pub(in crate::cli) struct ExplainArgs {
    /// The backend, as the configuration names it.
    backend: String,
    tool: String,
    /// The arguments of the call, a JSON object.
    #[arg(long, value_name = "JSON")]
    args: Option<String>,
    /// A file with a result of the server, as JSON, to be judged too.
    #[arg(long, value_name = "FILE")]
    result: Option<PathBuf>,
    /// Print the explanation as JSON.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(path: &Path, args: &ExplainArgs) -> anyhow::Result<Exit> {
    if let Some(text) = &args.args
        && !serde_json::from_str::<Value>(text).is_ok_and(|value| value.is_object())
    {
        return Err(Failure::new(Exit::Usage, "--args takes a JSON object, such as '{\"url\":\"http://x/\"}'").into());
    }
    let result = args.result.as_deref().map(result_in).transpose()?;
    let config = load_alone(path)?;
    let backend = build_backend(&config, &args.backend, backend_of(&config, &args.backend)?)?;
    let call = CallFacts { tool: args.tool.clone(), arguments: args.args.clone(), ..CallFacts::default() };
    let explanation = backend.explain(call, result.as_deref().map(str::trim));
    if args.json {
        print_line(&serde_json::to_string(&explanation).context("write the explanation")?);
    } else {
        describe(&explanation).iter().for_each(|line| print_line(line));
    }
    Ok(Exit::Done)
}

/// What a server could have sent: the policy is not to be blamed for anything else.
fn result_in(file: &Path) -> anyhow::Result<String> {
    let unusable = |why: String| Failure::new(Exit::Usage, format!("--result `{}` {why}", file.display()));
    let bytes = std::fs::read(file).with_context(|| format!("read `{}`", file.display()))?;
    let text = String::from_utf8(bytes).map_err(|error| unusable(format!("is no JSON object: {error}")))?;
    check_payload(&text).map_err(|why| unusable(why.to_string()))?;
    Ok(text)
}

fn describe(explanation: &Explanation) -> Vec<String> {
    let mut lines = vec![format!("policy    {} {}", explanation.policy, explanation.policy_digest)];
    lines.push(match &explanation.hidden_because {
        None => "visible   yes".to_owned(),
        Some(why) => format!("visible   no: {why}"),
    });
    describe_call(&explanation.call, &mut lines);
    if let Some(result) = &explanation.result {
        describe_result(result, &mut lines);
    }
    lines
}

fn describe_call(call: &CallExplained, lines: &mut Vec<String>) {
    lines.push(match (&call.reason, call.deadline_seconds) {
        (Some(reason), _) => format!("call      denied: {reason}"),
        (None, Some(seconds)) => format!("call      sent, answered within {seconds} s"),
        (None, None) => "call      sent".to_owned(),
    });
    if call.allowed {
        let how = if call.rewritten { "rewritten" } else { "as given" };
        lines.push(format!("arguments {how}: {}", call.arguments.as_deref().unwrap_or("none")));
    }
    decided(call.rule.as_deref(), call.steps, lines);
}

fn describe_result(result: &ResultExplained, lines: &mut Vec<String>) {
    lines.push(match (&result.reason, &result.payload, result.rewritten) {
        (Some(reason), ..) => format!("result    withheld: {reason}"),
        (None, Some(payload), true) => format!("result    rewritten: {payload}"),
        (None, ..) => "result    as the server sent it".to_owned(),
    });
    if let Some(why) = &result.structure_taken_out {
        lines.push(format!("structure taken out: what the policy left of it {why}"));
    }
    decided(result.rule.as_deref(), result.steps, lines);
}

fn decided(rule: Option<&str>, steps: u32, lines: &mut Vec<String>) {
    if let Some(rule) = rule {
        lines.push(format!("decided   {rule}"));
    }
    if steps > 0 {
        lines.push(format!("steps     {steps}"));
    }
}
