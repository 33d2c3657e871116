//! What a test is told about the run that it belongs to: the only place that reads it from the environment.
//!
//! `LAZY_MCP_BINARY`, `LAZY_MCP_FIXTURE` and `LAZY_MCP_CONFORMANCE` name other builds, or copies where this user can
//! reach them, instead of those that cargo has just made. `LAZY_MCP_TEST_SKIPS` names a file for a line about each test that had nothing to test
//! here, so that tests/run.sh does not count it. `LAZY_MCP_TEST_RUN` names the run, `LAZY_MCP_TEST_DEPS` the folder of
//! what tests/run.sh installed.

use std::fmt::Display;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::panic::Location;
use std::path::PathBuf;

/// The broker under test.
pub fn broker_program() -> PathBuf {
    path("LAZY_MCP_BINARY").unwrap_or_else(|| env!("CARGO_BIN_EXE_lazy-mcp").into())
}

/// The scripted server.
pub fn fixture_program() -> PathBuf {
    path("LAZY_MCP_FIXTURE").unwrap_or_else(|| env!("CARGO_BIN_EXE_fixture-mcp").into())
}

/// The server that keeps to the protocol.
pub fn conformance_program() -> PathBuf {
    path("LAZY_MCP_CONFORMANCE").unwrap_or_else(|| env!("CARGO_BIN_EXE_conformance-mcp").into())
}

/// Where npm's cache and the clients' SDKs are, if they were installed.
pub fn deps() -> Option<PathBuf> {
    path("LAZY_MCP_TEST_DEPS")
}

/// The name of the run; empty when a test is run by hand.
pub fn name() -> String {
    std::env::var("LAZY_MCP_TEST_RUN").unwrap_or_default()
}

/// Says that the test that calls this cannot test what it is about, and why; then it returns without having passed.
#[track_caller]
#[expect(clippy::print_stdout, reason = "what a test says of itself")]
pub fn skipped(reason: impl Display) {
    let line = format!("skipped: {}: {reason}\n", Location::caller());
    print!("{line}");
    if let Some(path) = path("LAZY_MCP_TEST_SKIPS") {
        // One write a line: several processes write to it.
        let file = OpenOptions::new().create(true).append(true).open(path);
        file.and_then(|mut file| file.write_all(line.as_bytes())).expect("a test that was skipped can be noted");
    }
}

fn path(variable: &str) -> Option<PathBuf> {
    std::env::var_os(variable).filter(|value| !value.is_empty()).map(PathBuf::from)
}
