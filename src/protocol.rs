//! The JSON-RPC envelope over raw bytes, and what both protocol eras say about it.
//!
//! Pure: text in, spans and text out. Nothing here builds a value of `params` or `result`; a message is looked at
//! one level deep, its spans are replaced, and all other bytes stay as they came (invariant 10).
//! On the word of the MCP specification 2025-11-25 and 2026-07-28 (`basic`, `transports`, `versioning`).

pub mod answer;
pub mod call;
pub mod envelope;
pub mod error;
pub mod frame;
pub mod logging;
pub mod raw;
mod subject;
pub mod subscription;
pub mod version;
