//! `lazy-mcp policy check`.

use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};

use super::super::check::counted;
use super::super::{eprint_line, print_line};
use super::{chosen, tell};
use crate::config::load_alone;
use crate::core::diagnostic::Diagnostics;
use crate::exit::Exit;
use crate::review::{Review, ReviewLock};
use crate::snapshot::{Backend, build_backend};

pub(super) fn run(path: &Path, backend: Option<&str>, as_json: bool) -> anyhow::Result<Exit> {
    let config = load_alone(path)?;
    let lock = ReviewLock::read(&ReviewLock::path_for(path))?;
    let names = chosen(&config, backend.as_slice())?;
    let mut reports = Vec::new();
    let mut is_ok = true;
    for name in names {
        let built = build_backend(&config, name, &config.backends[name]);
        is_ok &= built.is_ok();
        match (&built, as_json) {
            (_, true) => reports.push(report(name, &built, &lock)),
            (Ok(backend), false) => describe(backend, &lock),
            (Err(faults), false) => {
                print_line(&format!("{name}: refused, {}", counted(faults.iter().count(), "fault")));
                tell(faults);
            }
        }
    }
    if as_json {
        print_line(&json!({"ok": is_ok, "backends": reports}).to_string());
    }
    Ok(if is_ok { Exit::Done } else { Exit::Refused })
}

fn describe(backend: &Backend, lock: &ReviewLock) {
    let (review, findings) = lock.look(&backend.name, &backend.present());
    let policy = &backend.policy;
    let imports = match policy.files.len() - 1 {
        0 => String::new(),
        n => format!(", {}", counted(n, "import")),
    };
    let hidden = match backend.excluded_count() {
        0 => String::new(),
        n => format!(", {n} hidden"),
    };
    print_line(&format!(
        "{}: ok, {} {}{imports}, loaded in {}, {}{hidden}, {}",
        backend.name,
        policy.path.display(),
        policy.digest.short(8),
        counted(policy.load_steps as usize, "step"),
        counted(backend.tool_count(), "tool"),
        if review == (Review { policy: true, catalog: true }) { "reviewed" } else { "not reviewed" },
    ));
    findings.iter().for_each(|finding| eprint_line(&format!("warning: {finding}")));
}

fn report(name: &str, built: &Result<Arc<Backend>, Diagnostics>, lock: &ReviewLock) -> Value {
    match built {
        Ok(backend) => {
            let (review, _) = lock.look(name, &backend.present());
            let files: Vec<Value> = backend
                .policy
                .files
                .iter()
                .map(|(path, digest)| json!({"path": path.display().to_string(), "digest": digest}))
                .collect();
            json!({
                "name": name, "ok": true,
                "policy": {
                    "path": backend.policy.path.display().to_string(), "digest": backend.policy.digest,
                    "files": files, "reviewed": review.policy, "load_steps": backend.policy.load_steps,
                },
                "catalog": {
                    "path": backend.catalog.path.display().to_string(), "digest": backend.catalog.digest,
                    "reviewed": review.catalog,
                },
                "tools": backend.tool_count(), "hidden": backend.excluded_count(), "errors": [],
            })
        }
        Err(faults) => json!({"name": name, "ok": false, "errors": errors(faults)}),
    }
}

fn errors(faults: &Diagnostics) -> Vec<Value> {
    let error = |fault: &crate::core::diagnostic::Diagnostic| json!({"file": fault.file.display().to_string(), "line": fault.line, "message": fault.message});
    faults.iter().map(error).collect()
}
