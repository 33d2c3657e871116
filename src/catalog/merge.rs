//! What a live server said, taken into a catalog: earlier decisions stay, what is new waits for one.

use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;

use serde_json::value::RawValue;

use super::model::{Catalog, CatalogTool, Decision, UNREVIEWED};
use super::write::{on_one_line, tool_parts};
use super::{TOOL_BYTES_MAX, TOOL_NAME_BYTES_MAX, TOOLS_MAX};
use crate::core::digest::Digest;

/// Everything that a live server says of itself, all pages of its lists.
#[derive(Clone, Debug)]
pub struct Capture {
    pub backend: String,
    pub package: String,
    pub version: String,
    /// RFC 3339 by habit; kept as it is.
    pub captured_at: String,
    pub protocol_version: String,
    /// The modern version that it speaks too, if it does.
    pub modern_version: Option<String>,
    /// A JSON object.
    pub server_info: Box<RawValue>,
    /// A JSON object.
    pub capabilities: Box<RawValue>,
    pub instructions: Option<String>,
    pub tools: Vec<Box<RawValue>>,
    pub resources: Vec<Box<RawValue>>,
    pub resource_templates: Vec<Box<RawValue>>,
    pub prompts: Vec<Box<RawValue>>,
}

/// The file to write, and what is different in it.
#[derive(Clone, Debug)]
pub struct MergedCatalog {
    pub text: String,
    /// Empty when nothing but the time of the capture differs.
    pub changes: Vec<Change>,
}

/// One difference to the catalog before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A tool that was not there: enabled by a first capture, else excluded until somebody decides.
    Added {
        tool: String,
        enabled: bool,
    },
    Removed {
        tool: String,
    },
    /// The definition is another; the decision stays.
    Changed {
        tool: String,
    },
    /// Something beside the tools, by its key in the file.
    Field {
        key: &'static str,
    },
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Added { tool, enabled: true } => write!(f, "new tool `{tool}`: enabled"),
            Self::Added { tool, enabled: false } => write!(f, "new tool `{tool}`: excluded, {UNREVIEWED}"),
            Self::Removed { tool } => write!(f, "tool `{tool}` is gone"),
            Self::Changed { tool } => write!(f, "tool `{tool}` has another definition"),
            Self::Field { key } => write!(f, "`{key}` is another"),
        }
    }
}

/// A server's answer that no catalog can be made of.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CaptureError {
    #[error("tool {index} of the server's list {reason}")]
    Tool { index: usize, reason: String },
    #[error("the server lists tool `{name}` twice")]
    Twice { name: String },
    #[error("tool `{name}` is {bytes} bytes long, more than {TOOL_BYTES_MAX}")]
    TooLarge { name: String, bytes: usize },
    #[error("the server lists {found} tools, more than {TOOLS_MAX}")]
    TooMany { found: usize },
    #[error("the server's `{key}` is no object")]
    NoObject { key: &'static str },
}

/// The catalog that follows from a capture.
///
/// A first capture enables every tool. A later one keeps all decisions, excludes new tools as [`UNREVIEWED`], and
/// forgets tools that are gone: should one come back, it is new.
pub fn merge(previous: Option<&Catalog>, capture: Capture) -> Result<MergedCatalog, CaptureError> {
    let decide = |name: &str| match previous {
        None => Decision::Enabled,
        Some(previous) => previous
            .tool(name)
            .map_or(Decision::Excluded { reason: UNREVIEWED.to_owned() }, |known| known.decision.clone()),
    };
    let tools = read_tools(&capture.tools, decide)?;
    for (key, raw) in [("server_info", &capture.server_info), ("capabilities", &capture.capabilities)] {
        if !raw.get().starts_with('{') {
            return Err(CaptureError::NoObject { key });
        }
    }
    let on_one_line = |raws: &[Box<RawValue>]| raws.iter().map(|raw| on_one_line(raw)).collect();
    let catalog = Catalog {
        path: PathBuf::new(),
        server_info: super::write::on_one_line(&capture.server_info),
        capabilities: super::write::on_one_line(&capture.capabilities),
        resources: on_one_line(&capture.resources),
        resource_templates: on_one_line(&capture.resource_templates),
        prompts: on_one_line(&capture.prompts),
        backend: capture.backend,
        package: capture.package,
        version: capture.version,
        captured_at: capture.captured_at,
        protocol_version: capture.protocol_version,
        modern_version: capture.modern_version,
        instructions: capture.instructions,
        // Computed when the text is made.
        digest: Digest::of(b""),
        file_digest: Digest::of(b""),
        tools,
    };
    Ok(MergedCatalog { changes: changes(previous, &catalog), text: catalog.text() })
}

fn read_tools(raws: &[Box<RawValue>], decide: impl Fn(&str) -> Decision) -> Result<Vec<CatalogTool>, CaptureError> {
    if raws.len() > TOOLS_MAX {
        return Err(CaptureError::TooMany { found: raws.len() });
    }
    let mut names = BTreeSet::new();
    let mut tools = Vec::with_capacity(raws.len());
    for (i, raw) in raws.iter().enumerate() {
        let fault = |reason: String| CaptureError::Tool { index: i + 1, reason };
        let (name, digest) = tool_parts(raw).map_err(fault)?;
        if name.is_empty() || name.len() > TOOL_NAME_BYTES_MAX || name.chars().any(char::is_control) {
            return Err(fault(format!(
                "has a name that is empty, longer than {TOOL_NAME_BYTES_MAX} bytes or has control characters"
            )));
        }
        if raw.get().len() > TOOL_BYTES_MAX {
            return Err(CaptureError::TooLarge { name, bytes: raw.get().len() });
        }
        if !names.insert(name.clone()) {
            return Err(CaptureError::Twice { name });
        }
        let decision = decide(&name);
        tools.push(CatalogTool { name, raw: on_one_line(raw), digest, decision });
    }
    Ok(tools)
}

fn changes(previous: Option<&Catalog>, now: &Catalog) -> Vec<Change> {
    let mut changes = Vec::new();
    for tool in &now.tools {
        let name = tool.name.clone();
        match previous.map(|previous| previous.tool(&name)) {
            None => changes.push(Change::Added { tool: name, enabled: true }),
            Some(None) => changes.push(Change::Added { tool: name, enabled: false }),
            Some(Some(before)) if before.digest != tool.digest => changes.push(Change::Changed { tool: name }),
            Some(Some(_)) => {}
        }
    }
    let Some(previous) = previous else { return changes };
    let gone = previous.tools.iter().filter(|before| now.tool(&before.name).is_none());
    changes.extend(gone.map(|before| Change::Removed { tool: before.name.clone() }));
    let same =
        |a: &[Box<RawValue>], b: &[Box<RawValue>]| a.iter().map(|raw| raw.get()).eq(b.iter().map(|raw| raw.get()));
    let fields = [
        ("package", previous.package == now.package),
        ("version", previous.version == now.version),
        ("protocol_version", previous.protocol_version == now.protocol_version),
        ("modern_version", previous.modern_version == now.modern_version),
        ("server_info", previous.server_info.get() == now.server_info.get()),
        ("capabilities", previous.capabilities.get() == now.capabilities.get()),
        ("instructions", previous.instructions == now.instructions),
        ("resources", same(&previous.resources, &now.resources)),
        ("resource_templates", same(&previous.resource_templates, &now.resource_templates)),
        ("prompts", same(&previous.prompts, &now.prompts)),
    ];
    changes.extend(fields.into_iter().filter(|(_, is_same)| !is_same).map(|(key, _)| Change::Field { key }));
    changes
}
