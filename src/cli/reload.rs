//! `lazy-mcp reload`: through `/admin/mcp` of a running broker.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::{Map, Value};

use super::check::counted;
use super::client::Admin;
use super::ending::OperatorArgs;
use super::{block_on, eprint_line, full_url, print_line};
use crate::app::admin_token_path;
use crate::config::{self, DEFAULT_LISTEN};
use crate::exit::{Exit, Failure, code_of};

#[derive(Clone, Debug, Args)]
pub(super) struct ReloadArgs {
    /// Say what would change, and change nothing.
    #[arg(long)]
    dry_run: bool,
    /// Record the policies and catalogs as accepted, if they can be served.
    #[arg(long)]
    accept: bool,
    #[command(flatten)]
    operator: OperatorArgs,
}

/// `path` is the configuration: that it may be wrong is what this command is for, so it is read for no more than where
/// the broker is.
pub(super) fn run(path: Option<PathBuf>, args: &ReloadArgs) -> anyhow::Result<Exit> {
    let known = path.as_deref().and_then(config::whereabouts);
    let base = match &args.operator.broker.url {
        Some(url) => full_url(url),
        None => format!("http://{}", known.as_ref().map_or(DEFAULT_LISTEN, |(listen, _): &(SocketAddr, _)| *listen)),
    };
    let token = args.operator.token_file.clone().or_else(|| Some(admin_token_path(&known.as_ref()?.1)));
    let Some(token) = token else {
        return not_asked(path.as_deref(), Failure::new(Exit::NotReached, NO_TOKEN).into());
    };
    let mut arguments = Map::new();
    arguments.insert("dry_run".into(), args.dry_run.into());
    arguments.insert("accept".into(), args.accept.into());
    let answer = block_on(async {
        let admin = Admin::open(&base, &token).await?;
        let answer = admin.ask("broker_reload", arguments).await;
        admin.close().await;
        answer
    });
    match answer {
        Ok(answer) => Ok(show(&answer, args.operator.json)),
        Err(error) => not_asked(path.as_deref(), error),
    }
}

const NO_TOKEN: &str = "the broker was not asked: its configuration does not say where its token is; \
name that with --token-file, and the broker with --url";

/// A file that does not say where its broker is tells why, which is more than that no broker was found.
fn not_asked(path: Option<&Path>, error: anyhow::Error) -> anyhow::Result<Exit> {
    let faults = path.and_then(|path| config::load_alone(path).err());
    match faults {
        Some(faults) if code_of(&error) == Exit::NotReached => {
            faults.iter().for_each(|fault| eprint_line(&fault.to_string()));
            eprint_line(&format!("lazy-mcp: the broker was not asked: {error}"));
            Ok(Exit::Refused)
        }
        _ => Err(error),
    }
}

fn show(answer: &Value, as_json: bool) -> Exit {
    let errors = answer["errors"].as_array().map(Vec::as_slice).unwrap_or_default();
    for error in errors {
        let line = error["line"].as_u64().map(|line| format!(":{line}")).unwrap_or_default();
        eprint_line(&format!("{}{line}: {}", text_of(&error["file"]), text_of(&error["message"])));
    }
    let is_ok = answer["ok"] == true;
    if as_json {
        print_line(&answer.to_string());
    } else if is_ok {
        describe(answer).iter().for_each(|line| print_line(line));
    }
    if !is_ok {
        let goes_on = if answer["dry_run"] == true { "would be refused" } else { "refused" };
        let found = counted(errors.len(), "error");
        eprint_line(&format!("lazy-mcp: {goes_on}: {found}; revision {} goes on", answer["revision"]));
        return Exit::Refused;
    }
    Exit::Done
}

fn describe(answer: &Value) -> Vec<String> {
    let backends = answer["backends"].as_array().map(Vec::as_slice).unwrap_or_default();
    let mut lines: Vec<String> = backends.iter().map(describe_backend).collect();
    let keys: Vec<&str> = answer["needs_restart"].as_array().into_iter().flatten().map(text_of).collect();
    if !keys.is_empty() {
        lines.push(format!("with the next start of the broker: {}", keys.join(", ")));
    }
    let mounted = counted(answer["mounted_backends"].as_array().map_or(0, Vec::len), "backend");
    lines.push(match answer["dry_run"] == true {
        true => format!("would be published: {mounted}; revision {} goes on", answer["revision"]),
        false => format!("revision {}: {mounted}, in {} ms", answer["revision"], answer["took_ms"]),
    });
    lines
}

/// `playwright: launch; instances draining 0a1b2c3d4e5f; tools added a, b`.
fn describe_backend(backend: &Value) -> String {
    let mut text = format!("{}: {}", text_of(&backend["name"]), text_of(&backend["change"]));
    for (key, what) in [
        ("instances_kept", "instances kept"),
        ("instances_draining", "instances draining"),
        ("instances_retired", "instances retired"),
        ("tools_added", "tools added"),
        ("tools_removed", "tools removed"),
    ] {
        let named: Vec<&str> = backend[key].as_array().into_iter().flatten().map(text_of).collect();
        if !named.is_empty() {
            text += &format!("; {what} {}", named.join(", "));
        }
    }
    text
}

fn text_of(value: &Value) -> &str {
    value.as_str().unwrap_or("?")
}
