//! Catalogs: the reviewed surface of one pinned version of a server, served without starting it.
//!
//! Responsible for the file format, its verification (an edited file refuses the start), merging what a live server
//! says into earlier decisions, and comparing a live list with the saved one.
//! Leaves to others: talking to the server, writing the file, and what drift means for a call (policy).
//!
//! **Invariant:** a tool goes from a server's bytes through the file to clients unchanged: it is a
//! [`RawValue`](serde_json::value::RawValue) everywhere, with key order, number spelling and unknown fields.
//! Only line breaks and the spaces around them are taken out of a pretty-printed one, because the file has one tool
//! on a line.

mod drift;
mod load;
mod merge;
mod model;
mod strict;
mod write;

pub use drift::{Drift, LiveTools, drift};
pub use load::load;
pub use merge::{Capture, CaptureError, Change, MergedCatalog, merge};
pub use model::{Catalog, CatalogTool, Decision, UNREVIEWED, UnknownTool, WrongPackage};

/// Bytes of a catalog file. The largest of the servers looked at needs 40 KB; generated ones reach some megabytes.
pub const FILE_BYTES_MAX: u64 = 16 << 20;
/// Tools in one catalog.
pub const TOOLS_MAX: usize = 4096;
/// Bytes of one tool's definition.
pub const TOOL_BYTES_MAX: usize = 1 << 20;
/// Bytes of a tool's name. The specification recommends at most 128 characters and demands nothing.
pub const TOOL_NAME_BYTES_MAX: usize = 256;
