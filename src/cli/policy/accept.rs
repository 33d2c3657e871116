//! `lazy-mcp policy accept`.

use std::path::Path;
use std::sync::Arc;

use clap::Args;

use super::super::{eprint_line, print_line};
use super::{chosen, policy_directories, tell, test};
use crate::config::{Config, load_alone};
use crate::core::digest::Digest;
use crate::exit::{Exit, Failure};
use crate::policy::testing::TestOutcome;
use crate::review::ReviewLock;
use crate::snapshot::{Acceptance, Backend, Signature, accept, build_backend};

#[derive(Clone, Debug, Args)]
pub(in crate::cli) struct AcceptArgs {
    /// The backends, as the configuration names them.
    #[arg(required_unless_present = "all", conflicts_with = "all")]
    backends: Vec<String>,
    /// All that are enabled.
    #[arg(long)]
    all: bool,
    /// What is to be said about it.
    #[arg(long, value_name = "TEXT")]
    note: Option<String>,
    /// Who accepts [default: the user's name].
    #[arg(long, value_name = "NAME")]
    by: Option<String>,
}

pub(super) fn run(path: &Path, args: &AcceptArgs) -> anyhow::Result<Exit> {
    let config = load_alone(path)?;
    let named: Vec<&str> = args.backends.iter().map(String::as_str).collect();
    let names = chosen(&config, &named)?;
    let Some(backends) = checked(&config, &names) else {
        return Err(Failure::new(Exit::Refused, "nothing is accepted: the check fails").into());
    };
    if !tested(&config, &names)? {
        return Err(Failure::new(Exit::NotSo, "nothing is accepted: tests fail").into());
    }
    let signature = Signature::now(args.by.clone(), args.note.clone());
    let accepted = accept(path, backends.iter().map(|backend| &**backend), &signature)?;
    accepted.iter().for_each(|acceptance| print_line(&describe(acceptance)));
    eprint_line(&format!("written: {}", ReviewLock::path_for(path).display()));
    Ok(Exit::Done)
}

fn checked(config: &Config, names: &[&str]) -> Option<Vec<Arc<Backend>>> {
    let built = names.iter().map(|name| build_backend(config, name, &config.backends[*name]));
    let (good, bad): (Vec<_>, Vec<_>) = built.partition(Result::is_ok);
    bad.iter().filter_map(|bad| bad.as_ref().err()).for_each(tell);
    bad.is_empty().then(|| good.into_iter().filter_map(Result::ok).collect())
}

/// Tests that are about others only may fail: a backend that somebody else works on is in nobody's way.
fn tested(config: &Config, names: &[&str]) -> anyhow::Result<bool> {
    let is_meant = |outcome: &TestOutcome| is_about(outcome, names);
    let outcomes = test::run_all(config, &policy_directories(config, names), "", |outcome| {
        if is_meant(outcome) {
            test::tell_failure(outcome);
        }
    })?;
    Ok(!outcomes.iter().any(|outcome| outcome.failure.is_some() && is_meant(outcome)))
}

/// By what it asked; if it asked nothing, by the policies that it loaded or wanted to. One that failed before it came to
/// that may be about any, and one that failed over the policy of another may have come to these: so the text of the file
/// decides, where it is not clear.
fn is_about(outcome: &TestOutcome, names: &[&str]) -> bool {
    if !outcome.seen.is_empty() {
        return outcome.seen.iter().any(|seen| names.contains(&seen.backend.as_str()));
    }
    let is_named =
        |text: &str, name: &str| ['"', '\''].iter().any(|quote| text.contains(&format!("{quote}{name}{quote}")));
    match std::fs::read_to_string(&outcome.file) {
        Ok(text) if !outcome.loaded.is_empty() => {
            names.iter().any(|name| outcome.loaded.contains(*name) || is_named(&text, name))
        }
        _ => true,
    }
}

fn describe(acceptance: &Acceptance) -> String {
    let Acceptance { backend, before, now } = acceptance;
    let Some(before) = before else {
        let (policy, catalog) = (now.policy.digest.short(8), now.catalog.digest.short(8));
        return format!("{backend}: accepted for the first time (policy {policy}, catalog {catalog})");
    };
    if before == now {
        return format!("{backend}: accepted already by {} at {}", now.accepted_by, now.accepted_at);
    }
    let step = |what: &str, before: Digest, now: Digest| match before == now {
        true => format!("{what} unchanged"),
        false => format!("{what} {} -> {}", before.short(8), now.short(8)),
    };
    let policy = step("policy", before.policy.digest, now.policy.digest);
    let catalog = step("catalog", before.catalog.digest, now.catalog.digest);
    format!("{backend}: accepted ({policy}, {catalog})")
}
