//! `lazy-mcp policy diff`: what a reload would do, by the running broker's own word.

use std::path::Path;

use clap::Args;
use serde_json::{Map, Value};

use super::super::check::counted;
use super::super::client::Admin;
use super::super::ending::OperatorArgs;
use super::super::{block_on, eprint_line, print_line};
use crate::exit::Exit;

#[derive(Clone, Debug, Args)]
pub(in crate::cli) struct DiffArgs {
    #[command(flatten)]
    pub operator: OperatorArgs,
}

/// 0 when nothing would change or all of it could be taken in, 3 when the broker would refuse it.
pub(super) fn run(base: &str, token: &Path, args: &DiffArgs) -> anyhow::Result<Exit> {
    let mut arguments = Map::new();
    arguments.insert("dry_run".into(), true.into());
    let answer = block_on(async {
        let admin = Admin::open(base, token).await?;
        let answer = admin.ask("broker_reload", arguments).await;
        admin.close().await;
        answer
    })?;
    if args.operator.json {
        print_line(&answer.to_string());
    } else {
        describe(&answer).iter().for_each(|line| print_line(line));
    }
    let errors = list(&answer["errors"]);
    if answer["ok"] == true {
        return Ok(Exit::Done);
    }
    if !args.operator.json {
        for error in errors {
            let line = error["line"].as_u64().map(|line| format!(":{line}")).unwrap_or_default();
            eprint_line(&format!("{}{line}: {}", word(&error["file"]), word(&error["message"])));
        }
        let found = counted(errors.len(), "error");
        eprint_line(&format!("lazy-mcp: a reload would be refused: {found}; revision {} goes on", answer["revision"]));
    }
    Ok(Exit::Refused)
}

fn describe(answer: &Value) -> Vec<String> {
    let backends = list(&answer["backends"]);
    let width = backends.iter().map(|backend| word(&backend["name"]).len()).max().unwrap_or_default();
    backends.iter().flat_map(|backend| describe_backend(backend, width)).collect()
}

fn describe_backend(backend: &Value, width: usize) -> Vec<String> {
    let fingerprint =
        |key: &str| backend[key].as_str().map(|digest| digest.chars().skip(7).take(12).collect::<String>());
    let change = match word(&backend["change"]) {
        "unchanged" => "unchanged".to_owned(),
        "live" => "live fields only".to_owned(),
        "launch" | "fingerprint" => "LAUNCH changed".to_owned(),
        other => other.to_owned(),
    };
    let change = match (fingerprint("fingerprint_before"), fingerprint("fingerprint_after")) {
        (Some(before), Some(after)) if before != after => format!("{change}: fingerprint {before} -> {after}"),
        _ => change,
    };
    let mut lines = vec![format!("{:width$}  {change}", word(&backend["name"]))];
    let ends = [
        ("instances_kept", "keeps its process"),
        ("instances_draining", "ends its calls and is stopped; a new one follows"),
        ("instances_retired", "ends its calls and is stopped"),
    ];
    for (key, what) in ends {
        lines.extend(list(&backend[key]).iter().map(|id| format!("{:width$}  instance {}: {what}", "", word(id))));
    }
    let tools = [("+", "tools_added"), ("-", "tools_removed")];
    let tools = tools.iter().flat_map(|(sign, key)| list(&backend[*key]).iter().map(move |tool| (sign, word(tool))));
    let tools: Vec<String> = tools.map(|(sign, tool)| format!("{sign} {tool}")).collect();
    if !tools.is_empty() {
        lines.push(format!("{:width$}  tools: {}", "", tools.join("  ")));
    }
    lines
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

fn word(value: &Value) -> &str {
    value.as_str().unwrap_or("?")
}
