//! Logging. Events carry fields, never arguments, results, URLs, credentials or command lines (invariant 13).

use std::io::IsTerminal as _;

use tracing_subscriber::EnvFilter;

/// `rmcp` logs each request of `/admin/mcp`, and at finer levels whole messages, whatever is asked for.
const QUIET: &str = "rmcp=warn";

/// Logs to stderr from here on. `level` is a filter as `RUST_LOG` has it, which overrides it if set.
pub fn init(level: &str) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(level));
    let filter = filter.add_directive(QUIET.parse().expect("a directive"));
    let is_terminal = std::io::stderr().is_terminal();
    // An error means that logging is set up already, which is what was wanted.
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(is_terminal)
        .with_target(false)
        .try_init();
}
