//! One revision: configuration, catalogs and policies, built and checked whole, immutable once published.
//!
//! The answers to every list are made here, once, as bytes; a request only writes its id in front of them.

mod backend;
mod build;
mod difference;
mod explain;
mod mirrored;
mod offers;
mod review;
mod surface;

use std::collections::BTreeMap;
use std::sync::Arc;

pub use backend::{Backend, Tool};
pub use build::{build, build_backend, rebuild, rebuild_unreviewed, switched};
pub use difference::{AtStart, BackendDifference, Change, differences};
pub use explain::{CallExplained, Explanation, ResultExplained};
pub use mirrored::Mirrored;
pub use offers::{Offers, Reach};
pub use review::{Acceptance, Reviewed, Signature, accept};
pub use surface::{List, ListDigests, Surface};

use crate::config::Config;
pub use crate::config::Switches;
pub use crate::policy::OutputSchema;
use crate::supervisor::Plan;

/// What all requests of one moment see. A clone shares the backends.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// Counts published revisions of this broker's life, from 1.
    pub revision: u64,
    pub config: Config,
    /// The enabled ones: a disabled backend needs no files.
    pub backends: BTreeMap<String, Arc<Backend>>,
    /// What of them is as it was accepted.
    pub reviewed: Reviewed,
}

impl Snapshot {
    /// An enabled backend by its name in the URL.
    pub fn backend(&self, name: &str) -> Option<&Arc<Backend>> {
        self.backends.get(name)
    }

    /// What the supervisor has to know of those that are served.
    pub fn plans(&self) -> Vec<Arc<Plan>> {
        self.backends.values().map(|backend| backend.plan.clone()).collect()
    }
}
