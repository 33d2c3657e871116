//! `lazy-mcp check`.

use std::path::Path;

use serde_json::json;

use super::{eprint_line, print_line};
use crate::core::diagnostic::Diagnostics;
use crate::exit::Exit;
use crate::snapshot::{self, Snapshot};

pub(super) fn run(config: &Path, as_json: bool) -> anyhow::Result<Exit> {
    let built = snapshot::build(config);
    if as_json {
        print_line(&report(&built).to_string());
    } else {
        match &built {
            Ok(snapshot) => describe(snapshot),
            Err(faults) => {
                faults.iter().for_each(|fault| eprint_line(&fault.to_string()));
                eprint_line(&format!("lazy-mcp: refused: {}", counted(faults.iter().count(), "fault")));
            }
        }
    }
    Ok(if built.is_ok() { Exit::Done } else { Exit::Refused })
}

fn describe(snapshot: &Snapshot) {
    for backend in snapshot.backends.values() {
        let excluded = match backend.excluded_count() {
            0 => String::new(),
            n => format!(", {n} excluded"),
        };
        print_line(&format!(
            "{}: {} {}, {}{excluded}, {}, idle {} s",
            backend.name,
            backend.catalog.package,
            backend.catalog.version,
            counted(backend.tool_count(), "tool"),
            backend.scope_name(),
            backend.policy.idle_timeout.as_secs_f64(),
        ));
    }
    for backend in snapshot.config.backends.values().filter(|backend| !backend.enabled) {
        print_line(&format!("{}: disabled", backend.name));
    }
    snapshot.reviewed.findings().for_each(|finding| eprint_line(&format!("warning: {finding}")));
    print_line(&format!("ok: {}", counted(snapshot.backends.len(), "backend")));
}

fn report(built: &Result<Snapshot, Diagnostics>) -> serde_json::Value {
    match built {
        Ok(snapshot) => {
            let backends: Vec<_> = snapshot
                .backends
                .values()
                .map(|backend| {
                    json!({
                        "name": &*backend.name, "scope": backend.scope_name(),
                        "tools": backend.tool_count(), "excluded": backend.excluded_count(),
                        "fingerprint": backend.fingerprint, "policy_digest": backend.policy.digest,
                        "catalog_digest": backend.catalog.digest,
                    })
                })
                .collect();
            json!({"ok": true, "backends": backends, "errors": []})
        }
        Err(faults) => {
            let errors: Vec<_> = faults
                .iter()
                .map(|fault| json!({"file": fault.file.display().to_string(), "line": fault.line, "message": fault.message}))
                .collect();
            json!({"ok": false, "backends": [], "errors": errors})
        }
    }
}

pub(super) fn counted(n: usize, what: &str) -> String {
    if n == 1 { format!("1 {what}") } else { format!("{n} {what}s") }
}
