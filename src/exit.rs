//! Exit codes: the one place that chooses them. Documented in `docs/reference/cli.md`.

use std::process::ExitCode;

/// How a command ended, as scripts see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// Done, and where something was to be proved, proved.
    Done = 0,
    /// Checked, and it is not so.
    NotSo = 1,
    /// The command line was wrong.
    Usage = 2,
    /// The configuration, a catalog or a policy was refused.
    Refused = 3,
    /// No broker answered.
    NotReached = 4,
    /// Something could not be proved gone.
    NotProved = 5,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// An error with the exit code that it means. What has no such mark is `NotSo`.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    pub exit: Exit,
    pub message: String,
}

impl Failure {
    pub fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self { exit, message: message.into() }
    }
}

/// The exit code of an error.
pub fn code_of(error: &anyhow::Error) -> Exit {
    match error.downcast_ref::<Failure>() {
        Some(failure) => failure.exit,
        None if error.is::<crate::core::diagnostic::Diagnostics>() => Exit::Refused,
        None => Exit::NotSo,
    }
}
