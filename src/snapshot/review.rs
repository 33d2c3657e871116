//! What of a revision is as it was accepted, and the step of accepting it.

use std::collections::BTreeMap;
use std::path::Path;

use nix::unistd::{User, getuid};

use super::{Backend, Snapshot};
use crate::config::ReviewMode;
use crate::core::diagnostic::{Diagnostic, Diagnostics};
use crate::review::{Accepted, Present, Review, ReviewLock};

/// Every enabled backend held against `reviewed.lock`.
#[derive(Clone, Debug, Default)]
pub struct Reviewed(BTreeMap<String, (Review, Vec<Diagnostic>)>);

/// What accepting a backend changed.
#[derive(Clone, Debug)]
pub struct Acceptance {
    pub backend: String,
    /// What was accepted of it until now.
    pub before: Option<Accepted>,
    pub now: Accepted,
}

/// Who accepts, when, and what they say about it.
#[derive(Clone, Debug)]
pub struct Signature {
    /// RFC 3339.
    pub at: String,
    pub by: String,
    pub note: Option<String>,
}

impl Reviewed {
    pub fn of(&self, backend: &str) -> Review {
        self.0.get(backend).map(|(review, _)| *review).unwrap_or_default()
    }

    /// One for each policy and catalog that is not as it was accepted.
    pub fn findings(&self) -> impl Iterator<Item = &Diagnostic> {
        self.0.values().flat_map(|(_, findings)| findings)
    }

    pub fn is_whole(&self) -> bool {
        self.findings().next().is_none()
    }

    pub(super) fn forget(&mut self, backend: &str) {
        self.0.remove(backend);
    }
}

impl Signature {
    /// Of the user of this process, unless there is another name.
    pub fn now(by: Option<String>, note: Option<String>) -> Self {
        let uid = getuid();
        let user = || User::from_uid(uid).ok().flatten().map_or_else(|| format!("uid {uid}"), |user| user.name);
        Self { at: format!("{:.0}", jiff::Timestamp::now()), by: by.unwrap_or_else(user), note }
    }
}

impl Snapshot {
    /// Holds a revision against the lock beside its configuration. Where the configuration asks for it, what nobody
    /// accepted is a fault.
    pub fn reviewed(mut self) -> Result<Self, Diagnostics> {
        let lock = ReviewLock::read(&ReviewLock::path_for(&self.config.path))?;
        let looked = self.backends.iter().map(|(name, backend)| (name.clone(), lock.look(name, &backend.present())));
        self.reviewed = Reviewed(looked.collect());
        let mut faults = Diagnostics::default();
        if self.config.review == ReviewMode::Enforce {
            self.reviewed.findings().cloned().for_each(|finding| faults.push(finding));
        }
        faults.into_result(self)
    }

    /// The same for one backend. Of the others stays what was found when they were read: somebody may have accepted
    /// since what is not served yet.
    pub(super) fn reviewed_anew(mut self, name: &str) -> Result<Self, Diagnostics> {
        let lock = ReviewLock::read(&ReviewLock::path_for(&self.config.path))?;
        let mut faults = Diagnostics::default();
        if let Some(backend) = self.backends.get(name) {
            let (review, findings) = lock.look(name, &backend.present());
            if self.config.review == ReviewMode::Enforce {
                findings.iter().cloned().for_each(|finding| faults.push(finding));
            }
            self.reviewed.0.insert(name.to_owned(), (review, findings));
        }
        faults.into_result(self)
    }
}

impl Backend {
    /// The files that a review is about.
    pub fn present(&self) -> Present<'_> {
        Present {
            policy_digest: self.policy.digest,
            policy_files: &self.policy.files,
            catalog_path: &self.catalog.path,
            catalog_package: &self.catalog.package,
            catalog_version: &self.catalog.version,
            catalog_digest: self.catalog.digest,
        }
    }
}

/// Records the policies and catalogs of these backends as accepted, in the lock beside `config`. What was accepted
/// already keeps its entry, unless there is something new to say about it. Entries of others stay: another configuration
/// in the same directory may have them.
pub fn accept<'a>(
    config: &Path,
    backends: impl IntoIterator<Item = &'a Backend>,
    signature: &Signature,
) -> Result<Vec<Acceptance>, Diagnostics> {
    let path = ReviewLock::path_for(config);
    let mut lock = ReviewLock::read(&path)?;
    let mut accepted = Vec::new();
    for backend in backends {
        let present = backend.present();
        let before = lock.backends.get(&*backend.name).cloned();
        let Signature { at, by, note } = signature.clone();
        let mut now = present.accepted(at, by, note.clone());
        if let Some(before) =
            before.as_ref().filter(|before| before.is_of_same(&now) && (note.is_none() || note == before.note))
        {
            now = before.clone();
        }
        lock.backends.insert(backend.name.to_string(), now.clone());
        accepted.push(Acceptance { backend: backend.name.to_string(), before, now });
    }
    lock.write(&path).map_err(|error| Diagnostic::new(&path, None, format!("cannot be written: {error}")))?;
    Ok(accepted)
}
