//! `lazy-mcp catalog enable` and `exclude`: an operator's decision on one tool.

use std::path::Path;

use anyhow::Context as _;

use super::{backend_of, print_line, replace_file};
use crate::catalog::{self, Decision};
use crate::config;
use crate::exit::{Exit, Failure};

pub(super) fn run(path: &Path, name: &str, tool: &str, decision: Decision) -> anyhow::Result<Exit> {
    let config = config::load_alone(path)?;
    let backend = backend_of(&config, name)?;
    let catalog = catalog::load(&backend.catalog)?;
    let file = backend.catalog.display();
    let said = match &decision {
        Decision::Enabled => format!("`{tool}` is enabled in {file}"),
        Decision::Excluded { reason } => format!("`{tool}` is excluded in {file}: {reason}"),
    };
    let text = catalog.text_with(tool, decision).map_err(|e| Failure::new(Exit::Usage, e.to_string()))?;
    replace_file(&backend.catalog, &text).with_context(|| format!("write the catalog `{file}`"))?;
    print_line(&format!("{said}; `lazy-mcp reload` takes it in"));
    Ok(Exit::Done)
}
