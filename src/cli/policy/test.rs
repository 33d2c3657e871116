//! `lazy-mcp policy test`.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::Args;
use serde_json::{Value, json};

use super::super::{backend_of, eprint_line, print_line, replace_file};
use super::coverage::Coverage;
use super::{junit, policy_directories};
use crate::config::{Config, load_alone};
use crate::exit::{Exit, Failure};
use crate::policy::testing::{Subject, TestOutcome, run_file};
use crate::snapshot::build_backend;

#[derive(Clone, Debug, Args)]
pub(in crate::cli) struct TestArgs {
    /// Only tests whose file or name contains this.
    pattern: Option<String>,
    /// Write the outcome as JUnit XML too.
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
    /// List the tools that no test asked about, and the rules that decided nothing in any.
    #[arg(long)]
    coverage: bool,
    /// Print the outcome as JSON.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(path: &Path, args: &TestArgs) -> anyhow::Result<Exit> {
    let config = load_alone(path)?;
    let directories = policy_directories(&config, &[]);
    let outcomes = run_all(&config, &directories, args.pattern.as_deref().unwrap_or_default(), |outcome| {
        if !args.json {
            print_line(&line(outcome));
        }
    })?;
    if outcomes.is_empty() {
        let places: Vec<String> = directories.iter().map(|place| format!("`{}`", tests_in(place).display())).collect();
        let what = args.pattern.as_ref().map(|pattern| format!(" with '{pattern}' in its name")).unwrap_or_default();
        return Err(Failure::new(Exit::NotSo, format!("no test{what} in test_*.lua of {}", places.join(", "))).into());
    }
    let failed = outcomes.iter().filter(|outcome| outcome.failure.is_some()).count();
    if let Some(path) = &args.junit {
        replace_file(path, &junit::report(&outcomes)).with_context(|| format!("write `{}`", path.display()))?;
    }
    let coverage = args.coverage.then(|| Coverage::of(&config, &outcomes));
    if args.json {
        print_line(&report(&outcomes, coverage.as_ref()).to_string());
    } else {
        coverage.iter().flat_map(Coverage::lines).for_each(|line| print_line(&line));
        print_line(&format!("policy test: {} passed, {failed} failed", outcomes.len() - failed));
    }
    Ok(if failed == 0 { Exit::Done } else { Exit::NotSo })
}

/// Runs the tests beside the policies in `directories` whose file or name contains `pattern`, and hands each on when it
/// has ended.
pub(super) fn run_all(
    config: &Config,
    directories: &[PathBuf],
    pattern: &str,
    mut each: impl FnMut(&TestOutcome),
) -> anyhow::Result<Vec<TestOutcome>> {
    let load = |name: &str| subject(config, name);
    let mut outcomes = Vec::new();
    for directory in directories {
        for file in test_files(&tests_in(directory))? {
            let stem = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let is_wanted = |name: &str| stem.contains(pattern) || name.contains(pattern);
            for outcome in run_file(&file, &load, &is_wanted) {
                each(&outcome);
                outcomes.push(outcome);
            }
        }
    }
    Ok(outcomes)
}

/// The policy of a backend with what surrounds it, loaded anew.
fn subject(config: &Config, name: &str) -> Result<Subject, String> {
    let backend = backend_of(config, name).map_err(|error| error.to_string())?;
    build_backend(config, name, backend).map(|backend| backend.subject()).map_err(|faults| faults.to_string())
}

fn tests_in(directory: &Path) -> PathBuf {
    directory.join("tests")
}

fn test_files(directory: &Path) -> anyhow::Result<Vec<PathBuf>> {
    if !directory.is_dir() {
        return Ok(Vec::new());
    }
    let entries = std::fs::read_dir(directory).with_context(|| format!("read `{}`", directory.display()))?;
    let mut files: Vec<PathBuf> = entries
        .filter_map(Result::ok)
        .map(|entry| entry.path())
        .filter(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.starts_with("test_") && name.ends_with(".lua")
        })
        .collect();
    files.sort();
    Ok(files)
}

fn line(outcome: &TestOutcome) -> String {
    let file = outcome.file.file_name().unwrap_or_default().to_string_lossy();
    match &outcome.failure {
        None => format!("ok    {file} {} ({} steps)", outcome.name, outcome.steps),
        Some(fault) => {
            let fault = fault.to_string().replace('\n', "\n      ");
            format!("FAIL  {file} {} ({} steps)\n      {fault}", outcome.name, outcome.steps)
        }
    }
}

fn report(outcomes: &[TestOutcome], coverage: Option<&Coverage>) -> Value {
    let tests: Vec<Value> = outcomes
        .iter()
        .map(|outcome| {
            json!({
                "file": outcome.file.display().to_string(), "name": outcome.name, "ok": outcome.failure.is_none(),
                "steps": outcome.steps,
                "failure": outcome.failure.as_ref().map(|fault| json!({
                    "file": fault.file.display().to_string(), "line": fault.line, "message": fault.message,
                })),
            })
        })
        .collect();
    let is_ok = outcomes.iter().all(|outcome| outcome.failure.is_none());
    json!({"ok": is_ok, "tests": tests, "coverage": coverage.map(Coverage::to_json)})
}

/// Says what failed, for a command that needs all to pass.
pub(super) fn tell_failure(outcome: &TestOutcome) {
    if outcome.failure.is_some() {
        eprint_line(&line(outcome));
    }
}
