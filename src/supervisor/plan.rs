//! What a slot must know of its backend; replaced as a whole when a revision is published.

use std::sync::Arc;

use crate::catalog::Catalog;
use crate::config::{BackendConfig, Vars};
use crate::core::digest::Digest;
use crate::core::lifecycle::Limits;
use crate::link::LinkLimits;

/// How to start the backend and how long everything may take.
#[derive(Debug)]
pub struct Plan {
    pub backend: Arc<str>,
    /// What makes its processes what they are: another one needs another generation.
    pub fingerprint: Digest,
    /// One instance for everyone.
    pub is_shared: bool,
    pub config: BackendConfig,
    pub vars: Vars,
    pub catalog: Arc<Catalog>,
    pub limits: Limits,
    pub link: LinkLimits,
}
