//! Logging. Events carry fields, never arguments, results, URLs, credentials or command lines (invariant 13).

use std::io::IsTerminal as _;
use std::sync::OnceLock;

use tracing_subscriber::EnvFilter;

/// `rmcp` logs each request of `/admin/mcp`, and at finer levels whole messages, whatever is asked for.
const QUIET: &str = "rmcp=warn";

/// Logs to stderr from here on. `level` is a filter as `RUST_LOG` has it, which overrides it if set.
pub fn init(level: &str) {
    let is_terminal = std::io::stderr().is_terminal();
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter(level))
        .with_writer(std::io::stderr)
        .with_ansi(is_terminal)
        .with_target(false)
        .with_filter_reloading();
    let handle = builder.reload_handle();
    // An error means that logging is set up already, which is what was wanted.
    if builder.try_init().is_ok() {
        let _ = SET_FILTER.set(Box::new(move |filter| {
            if let Err(error) = handle.reload(filter) {
                tracing::warn!(%error, "the level of the log could not be changed");
            }
        }));
    }
}

/// Logs by another filter from here on. `RUST_LOG` goes on overriding it.
pub fn set_level(level: &str) {
    if let Some(set) = SET_FILTER.get() {
        set(filter(level));
    }
}

/// Set once, by whoever set up the log.
static SET_FILTER: OnceLock<Box<dyn Fn(EnvFilter) + Send + Sync>> = OnceLock::new();

fn filter(level: &str) -> EnvFilter {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(level));
    filter.add_directive(QUIET.parse().expect("a directive"))
}

/// Names of metrics, without their common prefix `lazy_mcp_`; counters get `_total` behind. Labels are names of the
/// configuration and words of ours alone.
pub mod metric {
    pub const PREFIX: &str = "lazy_mcp";
    /// 1; labelled with the version.
    pub const BUILD: &str = "build";
    pub const READY: &str = "ready";
    pub const SESSIONS: &str = "sessions";
    /// By backend and public state.
    pub const INSTANCES: &str = "instances";
    pub const LIVE_INSTANCES_MAX: &str = "live_instances_max";
    pub const WAITING_FOR_A_PLACE: &str = "waiting_for_a_place";
    /// By backend.
    pub const ACTIVE_CALLS: &str = "active_calls";
    /// By backend.
    pub const QUEUED_CALLS: &str = "queued_calls";
    /// By backend.
    pub const OWNED_PROCESSES: &str = "owned_processes";
    /// By backend.
    pub const OWNED_RSS_BYTES: &str = "owned_rss_bytes";
    /// By backend (empty for the broker's own) and name of the event.
    pub const EVENTS: &str = "events";
}
