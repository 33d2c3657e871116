//! One revision: configuration, catalogs and policies, built and checked whole, immutable once published.
//!
//! The answers to every list are made here, once, as bytes; a request only writes its id in front of them.

mod backend;
mod build;
mod output_schema;
mod surface;

use std::collections::BTreeMap;
use std::sync::Arc;

pub use backend::{Backend, Tool};
pub use build::build;
pub use output_schema::{OutputSchema, Unfit};
pub use surface::Surface;

use crate::config::Config;

/// What all requests of one moment see.
#[derive(Debug)]
pub struct Snapshot {
    /// Counts published revisions of this broker's life, from 1.
    pub revision: u64,
    pub config: Config,
    /// The enabled ones: a disabled backend needs no files.
    pub backends: BTreeMap<String, Arc<Backend>>,
}

impl Snapshot {
    /// An enabled backend by its name in the URL.
    pub fn backend(&self, name: &str) -> Option<&Arc<Backend>> {
        self.backends.get(name)
    }
}
