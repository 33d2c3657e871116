//! `reviewed.lock`: which policies and catalogs somebody has looked through and accepted.
//!
//! It shows that a file is not the one that was accepted, and makes accepting a step that a person takes. It is no
//! defence against who can write the files: that one can write the lock as well.
//!
//! Responsible for the file and for comparing it with what is there. Leaves to others what an unaccepted file means
//! (`snapshot`), and when something may be accepted (`lazy-mcp policy accept`).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::core::diagnostic::{Diagnostic, Diagnostics};
use crate::core::digest::Digest;

/// The form of the file that this version reads and writes.
const FORMAT: u32 = 1;
/// Far beyond what any number of backends needs.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// What was accepted, by backend.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReviewLock {
    format: u32,
    pub backends: BTreeMap<String, Accepted>,
}

/// What was accepted of one backend, by whom.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Accepted {
    pub policy: AcceptedPolicy,
    pub catalog: AcceptedCatalog,
    /// RFC 3339.
    pub accepted_at: String,
    pub accepted_by: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AcceptedPolicy {
    pub digest: Digest,
    /// By path relative to the directory of the policy: the policy itself and its imports.
    pub files: BTreeMap<String, Digest>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AcceptedCatalog {
    pub package: String,
    pub version: String,
    pub digest: Digest,
}

/// The files of one backend as they are now.
#[derive(Clone, Copy, Debug)]
pub struct Present<'a> {
    pub policy_digest: Digest,
    /// The policy itself, then its imports.
    pub policy_files: &'a [(PathBuf, Digest)],
    pub catalog_path: &'a Path,
    pub catalog_package: &'a str,
    pub catalog_version: &'a str,
    pub catalog_digest: Digest,
}

/// Which of a backend's files are as they were accepted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Review {
    pub policy: bool,
    pub catalog: bool,
}

impl Default for ReviewLock {
    fn default() -> Self {
        Self { format: FORMAT, backends: BTreeMap::new() }
    }
}

impl ReviewLock {
    /// Where the lock of a configuration is: `reviewed.lock` beside it.
    pub fn path_for(config: &Path) -> PathBuf {
        config.with_file_name("reviewed.lock")
    }

    /// A file that is not there has accepted nothing.
    ///
    /// # Errors
    /// A file that is there and cannot be understood.
    pub fn read(path: &Path) -> Result<Self, Diagnostics> {
        let fault = |line, message: String| Diagnostics::from(Diagnostic::new(path, line, message));
        match path.metadata() {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(error) => return Err(fault(None, format!("cannot be read: {error}"))),
            Ok(meta) if !meta.is_file() || meta.len() > FILE_BYTES_MAX => {
                return Err(fault(None, format!("is no regular file of at most {FILE_BYTES_MAX} bytes")));
            }
            Ok(_) => {}
        }
        let text = std::fs::read_to_string(path).map_err(|error| fault(None, format!("cannot be read: {error}")))?;
        let lock: Self = serde_json::from_str(&text).map_err(|error| {
            let message = error.to_string();
            let message = message.split(" at line ").next().unwrap_or_default();
            fault(
                Some(error.line()),
                format!("{message}; 'lazy-mcp policy accept' writes this file: take back what was changed by hand"),
            )
        })?;
        match lock.format {
            FORMAT => Ok(lock),
            other => Err(fault(None, format!("'format' is {other}, but this version reads {FORMAT}"))),
        }
    }

    /// The file whole or not at all.
    pub fn write(&self, path: &Path) -> std::io::Result<()> {
        let part = path.with_extension("lock.part");
        std::fs::write(&part, self.to_text())?;
        std::fs::rename(&part, path)
    }

    /// The whole file. The same acceptances are the same text.
    pub fn to_text(&self) -> String {
        let mut text = serde_json::to_string_pretty(self).expect("the keys are names");
        text.push('\n');
        text
    }

    /// What is accepted of `backend`, and a finding for each file that is not.
    pub fn look(&self, backend: &str, present: &Present<'_>) -> (Review, Vec<Diagnostic>) {
        let Some(accepted) = self.backends.get(backend) else {
            let nobody = |path: &Path| {
                let message =
                    format!("nobody has accepted it: look it through, then 'lazy-mcp policy accept {backend}'");
                Diagnostic::new(path, None, message)
            };
            let policy = present.policy_files.first().map(|(path, _)| nobody(path));
            return (Review::default(), policy.into_iter().chain([nobody(present.catalog_path)]).collect());
        };
        let review = Review {
            policy: accepted.policy.digest == present.policy_digest,
            catalog: accepted.catalog.digest == present.catalog_digest,
        };
        let mut findings = Vec::new();
        if !review.policy {
            accepted.policy.compare(backend, present.policy_files, &mut findings);
        }
        if !review.catalog {
            findings.push(changed(backend, present.catalog_path, accepted.catalog.digest, present.catalog_digest));
        }
        (review, findings)
    }
}

impl Accepted {
    /// Whether both are of the same files.
    pub fn is_of_same(&self, other: &Self) -> bool {
        self.policy == other.policy && self.catalog == other.catalog
    }
}

impl AcceptedPolicy {
    /// One finding for each file that differs; for the policy itself if only its set of imports does.
    fn compare(&self, backend: &str, files: &[(PathBuf, Digest)], findings: &mut Vec<Diagnostic>) {
        let before = findings.len();
        for ((path, now), name) in files.iter().zip(names(files)) {
            match self.files.get(&name) {
                Some(then) if then == now => {}
                Some(then) => findings.push(changed(backend, path, *then, *now)),
                None => {
                    let message = format!(
                        "is part of a policy that was accepted without it: look it through, then 'lazy-mcp policy accept {backend}'"
                    );
                    findings.push(Diagnostic::new(path, None, message));
                }
            }
        }
        if findings.len() == before
            && let Some((path, _)) = files.first()
        {
            let message = format!(
                "has other imports than when it was accepted: 'lazy-mcp policy accept {backend}' takes that in"
            );
            findings.push(Diagnostic::new(path, None, message));
        }
    }
}

impl Present<'_> {
    /// To be written into the lock.
    pub fn accepted(&self, at: String, by: String, note: Option<String>) -> Accepted {
        let digests = self.policy_files.iter().map(|(_, digest)| *digest);
        Accepted {
            policy: AcceptedPolicy {
                digest: self.policy_digest,
                files: names(self.policy_files).into_iter().zip(digests).collect(),
            },
            catalog: AcceptedCatalog {
                package: self.catalog_package.to_owned(),
                version: self.catalog_version.to_owned(),
                digest: self.catalog_digest,
            },
            accepted_at: at,
            accepted_by: by,
            note,
        }
    }
}

/// Paths relative to the directory of the first.
fn names(files: &[(PathBuf, Digest)]) -> Vec<String> {
    let directory = files.first().and_then(|(path, _)| path.parent()).unwrap_or(Path::new(""));
    files.iter().map(|(path, _)| path.strip_prefix(directory).unwrap_or(path).display().to_string()).collect()
}

fn changed(backend: &str, path: &Path, then: Digest, now: Digest) -> Diagnostic {
    let (then, now) = (then.short(8), now.short(8));
    let message = format!(
        "changed since it was accepted ({then} -> {now}): look at what has changed in it, then 'lazy-mcp policy accept {backend}'"
    );
    Diagnostic::new(path, None, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(digests: &[(&str, &str)]) -> Vec<(PathBuf, Digest)> {
        digests.iter().map(|(path, text)| (PathBuf::from(path), Digest::of(text.as_bytes()))).collect()
    }

    fn present<'a>(files: &'a [(PathBuf, Digest)], catalog: &str) -> Present<'a> {
        let all: String = files.iter().map(|(path, digest)| format!("{} {digest}", path.display())).collect();
        Present {
            policy_digest: Digest::of(all.as_bytes()),
            policy_files: files,
            catalog_path: Path::new("catalogs/b.json"),
            catalog_package: "p",
            catalog_version: "1",
            catalog_digest: Digest::of(catalog.as_bytes()),
        }
    }

    #[track_caller]
    fn check(now: &[(&str, &str)], catalog: &str, expected: &str) {
        let accepted = files(&[("policies/b.lua", "1"), ("policies/lib/x.lua", "2")]);
        let mut lock = ReviewLock::default();
        let entry = present(&accepted, "c").accepted("2026-01-01T00:00:00Z".into(), "me".into(), None);
        lock.backends.insert("b".into(), entry);
        let lock: ReviewLock = serde_json::from_str(&lock.to_text()).unwrap();
        let (review, findings) = lock.look("b", &present(&files(now), catalog));
        assert_eq!(review.policy && review.catalog, findings.is_empty());
        let text: Vec<String> = findings.iter().map(ToString::to_string).collect();
        let text = text.join("\n");
        let text = text.split(": look").next().unwrap_or_default().split(" (").next().unwrap_or_default();
        assert_eq!(text, expected);
    }

    #[test]
    fn every_changed_file_is_named() {
        let same = [("policies/b.lua", "1"), ("policies/lib/x.lua", "2")];
        check(&same, "c", "");
        check(&same, "d", "catalogs/b.json: changed since it was accepted");
        check(&[("policies/b.lua", "9"), same[1]], "c", "policies/b.lua: changed since it was accepted");
        check(&[same[0], ("policies/lib/x.lua", "9")], "c", "policies/lib/x.lua: changed since it was accepted");
        let more = [same[0], same[1], ("policies/lib/y.lua", "3")];
        check(&more, "c", "policies/lib/y.lua: is part of a policy that was accepted without it");
        check(
            &same[..1],
            "c",
            "policies/b.lua: has other imports than when it was accepted: 'lazy-mcp policy accept b' takes that in",
        );
    }

    #[test]
    fn what_nobody_accepted_is_told_for_policy_and_catalog() {
        let files = files(&[("policies/b.lua", "1")]);
        let (review, findings) = ReviewLock::default().look("b", &present(&files, "c"));
        assert_eq!((review, findings.len()), (Review::default(), 2));
    }

    #[test]
    fn a_lock_that_cannot_be_understood_is_a_fault_with_its_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("reviewed.lock");
        assert_eq!(ReviewLock::read(&path), Ok(ReviewLock::default()));
        let read = |text: &str| {
            std::fs::write(&path, text).unwrap();
            let faults = ReviewLock::read(&path).unwrap_err().to_string();
            faults.replace(&format!("{}/", dir.path().display()), "")
        };
        assert!(read("{\n\"format\": 1,\n\"backend\": {}}").starts_with("reviewed.lock:3: unknown field `backend`"));
        assert!(read("{\n\"format\": 2, \"backends\": {}}").contains("'format' is 2"));
        assert!(read("").contains("reviewed.lock:1: EOF"));
    }
}
