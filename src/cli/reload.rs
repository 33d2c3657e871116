//! `lazy-mcp reload`: through `/admin/mcp` of a running broker.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::Value;

use super::changes::{self, list, word};
use super::check::counted;
use super::ending::OperatorArgs;
use super::{eprint_line, full_url};
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
    let answer = changes::ask(&base, &token, args.dry_run, args.accept);
    match answer {
        Ok(answer) => Ok(changes::show(&answer, args.operator.json, describe)),
        Err(error) => not_asked(path.as_deref(), error),
    }
}

const NO_TOKEN: &str = "its configuration does not say where its token is; \
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

fn describe(answer: &Value) -> Vec<String> {
    let mut lines = changes::backends(answer);
    let keys: Vec<&str> = list(&answer["needs_restart"]).iter().map(word).collect();
    if !keys.is_empty() {
        lines.push(format!("with the next start of the broker: {}", keys.join(", ")));
    }
    let mounted = counted(list(&answer["mounted_backends"]).len(), "backend");
    lines.push(match answer["dry_run"] == true {
        true => format!("would be published: {mounted}; revision {} goes on", answer["revision"]),
        false => format!("revision {}: {mounted}, in {} ms", answer["revision"], answer["took_ms"]),
    });
    lines
}
