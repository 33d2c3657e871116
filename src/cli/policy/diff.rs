//! `lazy-mcp policy diff`: what a reload would do, by the running broker's own word.

use std::path::Path;

use clap::Args;

use super::super::changes;
use super::super::ending::OperatorArgs;
use crate::exit::Exit;

#[derive(Clone, Debug, Args)]
pub(in crate::cli) struct DiffArgs {
    #[command(flatten)]
    pub operator: OperatorArgs,
}

/// 0 when nothing would change or all of it could be taken in, 3 when the broker would refuse it.
pub(super) fn run(base: &str, token: &Path, args: &DiffArgs) -> anyhow::Result<Exit> {
    let answer = changes::ask(base, token, true, false)?;
    Ok(changes::show(&answer, args.operator.json, changes::backends))
}
