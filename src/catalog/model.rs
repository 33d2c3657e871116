//! A catalog whose file has been verified.

use std::path::PathBuf;

use serde_json::value::RawValue;

use crate::core::digest::Digest;
use crate::protocol::version::{Era, MODERN};

/// The reason that a tool gets which appeared after the first capture, until somebody decides on it.
pub const UNREVIEWED: &str = "unreviewed";

/// One `catalogs/<backend>.json`: what a package's version offers, and what of it clients may see.
#[derive(Clone, Debug)]
pub struct Catalog {
    pub path: PathBuf,
    /// Name of the backend that it was captured for; two backends may share a catalog.
    pub backend: String,
    pub package: String,
    pub version: String,
    /// As the capturing command wrote it; nothing is computed from it.
    pub captured_at: String,
    /// Negotiated with the server at the capture.
    pub protocol_version: String,
    /// The version whose requests carry their own metadata, if the server speaks that too.
    pub modern_version: Option<String>,
    /// A JSON object.
    pub server_info: Box<RawValue>,
    /// A JSON object.
    pub capabilities: Box<RawValue>,
    pub instructions: Option<String>,
    pub resources: Vec<Box<RawValue>>,
    pub resource_templates: Vec<Box<RawValue>>,
    pub prompts: Vec<Box<RawValue>>,
    /// Of everything in the file but itself.
    pub digest: Digest,
    /// Of the bytes of the file as it was read.
    pub(super) file_digest: Digest,
    pub(super) tools: Vec<CatalogTool>,
}

/// One tool, with the decision on it.
#[derive(Clone, Debug)]
pub struct CatalogTool {
    pub name: String,
    /// The whole definition, on one line.
    pub raw: Box<RawValue>,
    /// Of the canonical JSON of `raw`.
    pub digest: Digest,
    pub decision: Decision,
}

/// Whether clients may see a tool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    Enabled,
    Excluded { reason: String },
}

impl Catalog {
    /// Every tool in the server's order.
    pub fn tools(&self) -> &[CatalogTool] {
        &self.tools
    }

    /// The tools that may be seen, in the server's order.
    pub fn enabled(&self) -> impl Iterator<Item = &CatalogTool> {
        self.tools.iter().filter(|tool| tool.decision == Decision::Enabled)
    }

    /// The others, each with its reason.
    pub fn excluded(&self) -> impl Iterator<Item = (&CatalogTool, &str)> {
        self.tools.iter().filter_map(|tool| match &tool.decision {
            Decision::Enabled => None,
            Decision::Excluded { reason } => Some((tool, reason.as_str())),
        })
    }

    /// Whether the server speaks in this manner.
    pub fn speaks(&self, era: Era) -> bool {
        match era {
            Era::Legacy => self.protocol_version != MODERN,
            Era::Modern => self.modern_version.is_some(),
        }
    }

    /// By name; looks through all of them.
    pub fn tool(&self, name: &str) -> Option<&CatalogTool> {
        self.tools.iter().find(|tool| tool.name == name)
    }

    /// Whether this catalog is the one for what a configuration would start.
    pub fn check_package(&self, package: &str, version: &str) -> Result<(), WrongPackage> {
        if self.package == package && self.version == version {
            return Ok(());
        }
        let started = if self.package == package { version.to_owned() } else { format!("{package} {version}") };
        Err(WrongPackage {
            package: self.package.clone(),
            version: self.version.clone(),
            started,
            backend: self.backend.clone(),
        })
    }
}

/// A catalog of another package or version than the one that the configuration starts.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "catalog is for {package} {version}, config starts {started}: \
     review the new one with `lazy-mcp catalog capture {backend}`, or start the old one"
)]
pub struct WrongPackage {
    pub package: String,
    pub version: String,
    pub started: String,
    pub backend: String,
}

/// A decision on a tool that the catalog does not have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no tool `{name}` in this catalog{near}")]
pub struct UnknownTool {
    pub name: String,
    /// The nearest name, ready to be shown, or nothing.
    pub near: String,
}
