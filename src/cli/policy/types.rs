//! `lazy-mcp policy types`.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::Args;

use super::super::{eprint_line, print_line};
use super::policy_directories;
use crate::config::load_alone;
use crate::exit::Exit;
use crate::policy::language::{reference, stubs};

#[derive(Clone, Debug, Args)]
pub(in crate::cli) struct TypesArgs {
    /// Print the reference in Markdown instead.
    #[arg(long, conflicts_with = "check")]
    markdown: bool,
    /// Say whether `types/broker.d.luau` beside the policies is that of this version.
    #[arg(long)]
    check: bool,
}

pub(super) fn run(config: impl Fn() -> anyhow::Result<PathBuf>, args: &TypesArgs) -> anyhow::Result<Exit> {
    if args.check {
        return check(&config()?);
    }
    let text = if args.markdown { reference() } else { stubs() };
    print_line(text.trim_end());
    Ok(Exit::Done)
}

fn check(path: &Path) -> anyhow::Result<Exit> {
    let mut exit = Exit::Done;
    for directory in policy_directories(&load_alone(path)?, &[]) {
        let file = directory.join("types/broker.d.luau");
        let shown = file.display();
        match std::fs::read_to_string(&file) {
            Ok(text) if text == stubs() => print_line(&format!("{shown}: up to date")),
            Ok(_) => {
                eprint_line(&format!("{shown}: of another version: 'lazy-mcp policy types > {shown}'"));
                exit = Exit::NotSo;
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                eprint_line(&format!("{shown}: not there: 'lazy-mcp policy types > {shown}'"));
                exit = Exit::NotSo;
            }
            Err(error) => return Err(error).with_context(|| format!("read `{shown}`")),
        }
    }
    Ok(exit)
}
