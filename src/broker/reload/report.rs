//! What a reload says of itself: to the command line, to `/admin/mcp`, and of its errors to the status.

use std::time::Instant;

use schemars::JsonSchema;
use serde::Serialize;

use crate::core::diagnostic::Diagnostic;
use crate::snapshot::{BackendDifference, Change, Snapshot};
use crate::supervisor::Handover;

/// What came of a reload, or would come of it.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct ReloadReport {
    /// Published; of a dry run, that it would be.
    pub ok: bool,
    pub dry_run: bool,
    /// The one that is served now.
    pub revision: u64,
    /// Every backend that this revision or the one before names; none when it was refused.
    pub backends: Vec<BackendReport>,
    /// Everything that is wrong with the files; none when it was published.
    pub errors: Vec<ErrorReport>,
    /// Keys of the configuration whose new values take effect with the next start of the broker.
    pub needs_restart: Vec<&'static str>,
    /// Names of the backends that are served.
    pub mounted_backends: Vec<String>,
    /// Backends of the configuration.
    pub backend_count: usize,
    pub enabled_backend_count: usize,
    pub took_ms: f64,
}

#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct BackendReport {
    pub name: String,
    pub change: Change,
    /// Null when it was not served.
    pub fingerprint_before: Option<String>,
    /// Null when it is not served.
    pub fingerprint_after: Option<String>,
    /// Ids of instances that go on with their processes.
    pub instances_kept: Vec<String>,
    /// Ids of instances that end their calls and are stopped and proved gone; who waits gets the next generation.
    pub instances_draining: Vec<String>,
    /// The same, but nothing follows them.
    pub instances_retired: Vec<String>,
    pub tools_added: Vec<String>,
    pub tools_removed: Vec<String>,
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ErrorReport {
    pub file: String,
    /// From 1; null where it is about the file as a whole.
    pub line: Option<usize>,
    pub message: String,
}

impl ReloadReport {
    /// Nothing but what `snapshot` has.
    pub(super) fn of(snapshot: &Snapshot) -> Self {
        Self {
            ok: true,
            dry_run: false,
            revision: snapshot.revision,
            backends: Vec::new(),
            errors: Vec::new(),
            needs_restart: Vec::new(),
            mounted_backends: snapshot.backends.keys().cloned().collect(),
            backend_count: snapshot.config.backends.len(),
            enabled_backend_count: snapshot.backends.len(),
            took_ms: 0.0,
        }
    }

    /// To the tenth of a millisecond.
    pub(super) fn took(mut self, since: Instant) -> Self {
        self.took_ms = (since.elapsed().as_secs_f64() * 10_000.0).round() / 10.0;
        self
    }
}

impl BackendReport {
    pub(super) fn new(difference: &BackendDifference, handover: Handover) -> Self {
        Self {
            name: difference.name.clone(),
            change: difference.change,
            fingerprint_before: difference.fingerprint_before.map(|digest| digest.to_string()),
            fingerprint_after: difference.fingerprint_after.map(|digest| digest.to_string()),
            instances_kept: handover.kept,
            instances_draining: handover.draining,
            instances_retired: handover.retired,
            tools_added: difference.tools_added.clone(),
            tools_removed: difference.tools_removed.clone(),
        }
    }
}

impl ErrorReport {
    pub(super) fn of(fault: &Diagnostic) -> Self {
        Self { file: fault.file.display().to_string(), line: fault.line, message: fault.message.clone() }
    }
}
