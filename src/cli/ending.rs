//! `lazy-mcp stop` and `lazy-mcp recover`: through `/admin/mcp` of a running broker.

use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::{Map, Value};

use super::client::Admin;
use super::{BrokerArgs, block_on, call, print_line, status};
use crate::exit::{Exit, Failure};

/// How the broker is asked as an operator.
#[derive(Clone, Debug, Args)]
pub(super) struct OperatorArgs {
    #[command(flatten)]
    pub broker: BrokerArgs,
    /// The file with the broker's admin token [default: admin.token in `state_dir` of the configuration].
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// Print what the broker answers as JSON.
    #[arg(long)]
    pub json: bool,
}

#[derive(Clone, Debug, Args)]
pub(super) struct StopArgs {
    /// A backend for all of its instances, or one instance by the id that `status` shows.
    #[arg(value_name = "BACKEND[/INSTANCE]")]
    which: String,
    #[command(flatten)]
    pub operator: OperatorArgs,
}

#[derive(Clone, Debug, Args)]
pub(super) struct RecoverArgs {
    /// A backend for all of its instances in cleanup_failed, or one instance by the id that `status` shows.
    #[arg(value_name = "BACKEND[/INSTANCE]")]
    which: String,
    /// If it still cannot be proved gone, let the next call start a new generation beside it. Needs an INSTANCE.
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    pub operator: OperatorArgs,
}

impl RecoverArgs {
    /// What is set aside is typed, never meant by accident.
    pub fn check(&self) -> anyhow::Result<()> {
        let is_one = split(&self.which).1.is_some();
        if self.force && !is_one {
            let why = format!(
                "--force takes one instance: `lazy-mcp recover {}/INSTANCE --force`, with an id of `lazy-mcp status`",
                self.which
            );
            return Err(Failure::new(Exit::Usage, why).into());
        }
        Ok(())
    }
}

pub(super) fn stop(base: &str, token: &Path, args: &StopArgs) -> anyhow::Result<Exit> {
    let answer = ask(base, token, "stop_instance", &args.which, Map::new())?;
    show(&answer, args.operator.json);
    Ok(match answer["outcome"].as_str() {
        Some("proved" | "nothing_to_do") => Exit::Done,
        _ => Exit::NotProved,
    })
}

pub(super) fn recover(base: &str, token: &Path, args: &RecoverArgs) -> anyhow::Result<Exit> {
    let mut arguments = Map::new();
    arguments.insert("force".into(), args.force.into());
    let answer = ask(base, token, "recover_instance", &args.which, arguments)?;
    show(&answer, args.operator.json);
    if answer["outcome"] == "not_proved" && !args.force && !args.operator.json {
        print_line(
            "Solve what holds them; or, for one that others wait for, see --force in `lazy-mcp recover --help`.",
        );
    }
    let mut instances = answer["instances"].as_array().into_iter().flatten();
    Ok(match answer["outcome"].as_str() {
        Some("proved") => Exit::Done,
        Some("nothing_to_do") if instances.all(|instance| instance["state"] == "stopped") => Exit::Done,
        Some("nothing_to_do") => Exit::NotSo,
        // Set aside means out of the way, not gone.
        _ => Exit::NotProved,
    })
}

fn ask(
    base: &str,
    token: &Path,
    tool: &'static str,
    which: &str,
    mut arguments: Map<String, Value>,
) -> anyhow::Result<Value> {
    let (backend, instance) = split(which);
    arguments.insert("backend".into(), backend.into());
    if let Some(instance) = instance {
        arguments.insert("instance".into(), instance.into());
    }
    block_on(async {
        let admin = Admin::open(base, token).await?;
        let answer = call::watched(which, admin.ask(tool, arguments)).await;
        admin.close().await;
        answer
    })
}

fn split(which: &str) -> (&str, Option<&str>) {
    which.split_once('/').map_or((which, None), |(backend, instance)| (backend, Some(instance)))
}

fn show(answer: &Value, as_json: bool) {
    if as_json {
        return print_line(&answer.to_string());
    }
    print_line(answer["text"].as_str().unwrap_or_default());
    for instance in answer["instances"].as_array().into_iter().flatten() {
        for survivor in instance["survivors"].as_array().into_iter().flatten() {
            print_line(&status::describe_survivor(survivor));
        }
    }
}
