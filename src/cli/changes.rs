//! What a reload changes, or would change: asked of the running broker and shown, for the commands that do.

use std::path::Path;

use serde_json::{Map, Value};

use super::check::counted;
use super::client::Admin;
use super::{block_on, eprint_line, print_line};
use crate::exit::Exit;

/// What `broker_reload` answers.
pub(super) fn ask(base: &str, token: &Path, dry_run: bool, accept: bool) -> anyhow::Result<Value> {
    let mut arguments = Map::new();
    arguments.insert("dry_run".into(), dry_run.into());
    arguments.insert("accept".into(), accept.into());
    block_on(async {
        let admin = Admin::open(base, token).await?;
        let answer = admin.ask("broker_reload", arguments).await;
        admin.close().await;
        answer
    })
}

/// Prints an answer, in the words of `describe` unless JSON is wanted; what is wrong goes to stderr either way.
pub(super) fn show(answer: &Value, as_json: bool, describe: impl FnOnce(&Value) -> Vec<String>) -> Exit {
    let errors = list(&answer["errors"]);
    for error in errors {
        let line = error["line"].as_u64().map(|line| format!(":{line}")).unwrap_or_default();
        eprint_line(&format!("{}{line}: {}", word(&error["file"]), word(&error["message"])));
    }
    let is_ok = answer["ok"] == true;
    if as_json {
        print_line(&answer.to_string());
    } else if is_ok {
        describe(answer).iter().for_each(|line| print_line(line));
    }
    if is_ok {
        return Exit::Done;
    }
    let refused = if answer["dry_run"] == true { "would be refused" } else { "refused" };
    let found = counted(errors.len(), "error");
    eprint_line(&format!("lazy-mcp: {refused}: {found}; revision {} goes on", answer["revision"]));
    Exit::Refused
}

/// Each backend with its change, its instances and its tools.
pub(super) fn backends(answer: &Value) -> Vec<String> {
    let backends = list(&answer["backends"]);
    let width = backends.iter().map(|backend| word(&backend["name"]).len()).max().unwrap_or_default();
    backends.iter().flat_map(|backend| describe(backend, width)).collect()
}

fn describe(backend: &Value, width: usize) -> Vec<String> {
    let fingerprint =
        |key: &str| backend[key].as_str().map(|digest| digest.chars().skip(7).take(12).collect::<String>());
    let change = match word(&backend["change"]) {
        "unchanged" => "unchanged".to_owned(),
        "live" => "live fields only".to_owned(),
        "launch" => "LAUNCH changed".to_owned(),
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

pub(super) fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

pub(super) fn word(value: &Value) -> &str {
    value.as_str().unwrap_or("?")
}
