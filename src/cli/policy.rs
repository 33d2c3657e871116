//! `lazy-mcp policy …`: what somebody does who writes, reads or accepts policies.
//!
//! Everything here takes the path that `serve` takes: what is checked, tested and explained is what will run.

mod accept;
mod check;
mod coverage;
mod diff;
mod explain;
mod junit;
mod test;
mod types;

use std::path::{Path, PathBuf};

use clap::Subcommand;

use super::{backend_of, base_url, eprint_line, token_file};
use crate::config::Config;
use crate::core::diagnostic::Diagnostics;
use crate::exit::Exit;

#[derive(Debug, Subcommand)]
pub(super) enum PolicyCommand {
    /// Load policies as `serve` does, and tell every fault with file and line: fields, names, tools, arguments.
    Check {
        /// Only this backend, as the configuration names it.
        backend: Option<String>,
        /// Print the result as JSON.
        #[arg(long)]
        json: bool,
    },
    /// Run the tests in `tests/test_*.lua` beside the policies, through the code that judges real calls.
    #[command(after_help = "Examples:\n  lazy-mcp policy test\n  lazy-mcp policy test playwright --coverage")]
    Test(test::TestArgs),
    /// Tell what a reload of the files on disk would change in the running broker, and change nothing.
    Diff(diff::DiffArgs),
    /// Judge one call, and a result, as if it happened: what decides, where, and what comes out.
    #[command(
        after_help = "Example:\n  lazy-mcp policy explain playwright browser_navigate --args '{\"url\":\"file:///etc/passwd\"}'"
    )]
    Explain(explain::ExplainArgs),
    /// Print the policy language for editors (luau-lsp), or as a reference.
    Types(types::TypesArgs),
    /// Record that somebody has looked through policies and catalogs, in reviewed.lock beside the configuration.
    ///
    /// Checks and tests them first, and refuses what fails. It shows later what was changed since; it is no defence
    /// against who can write the files.
    Accept(accept::AcceptArgs),
}

pub(super) fn run(command: &PolicyCommand, config: impl Fn() -> anyhow::Result<PathBuf>) -> anyhow::Result<Exit> {
    match command {
        PolicyCommand::Check { backend, json } => check::run(&config()?, backend.as_deref(), *json),
        PolicyCommand::Test(args) => test::run(&config()?, args),
        PolicyCommand::Diff(args) => {
            let token = token_file(&args.operator, &config)?;
            diff::run(&base_url(&args.operator.broker, &config)?, &token, args)
        }
        PolicyCommand::Explain(args) => explain::run(&config()?, args),
        PolicyCommand::Types(args) => types::run(config, args),
        PolicyCommand::Accept(args) => accept::run(&config()?, args),
    }
}

/// The backends meant: those named, else all that are enabled.
fn chosen<'a>(config: &'a Config, named: &[&'a str]) -> anyhow::Result<Vec<&'a str>> {
    if named.is_empty() {
        return Ok(config.enabled().map(|backend| backend.name.as_str()).collect());
    }
    named.iter().map(|name| backend_of(config, name).map(|backend| backend.name.as_str())).collect()
}

/// The directories of the policies of the enabled backends and of those named, each once.
fn policy_directories(config: &Config, named: &[&str]) -> Vec<PathBuf> {
    let parent = |path: &Path| path.parent().unwrap_or(Path::new("")).to_owned();
    let named = named.iter().filter_map(|name| config.backends.get(*name));
    let mut directories: Vec<PathBuf> = config.enabled().chain(named).map(|backend| parent(&backend.policy)).collect();
    directories.sort();
    directories.dedup();
    directories
}

fn tell(faults: &Diagnostics) {
    faults.iter().for_each(|fault| eprint_line(&fault.to_string()));
}
