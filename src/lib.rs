//! `lazy-mcp-broker`: a loopback service between MCP clients and expensive stdio MCP servers.
//!
//! Clients see each server at a stable URL with its native, reviewed tool schemas.
//! Nothing heavy runs until a real `tools/call`; when it has been idle, the generation and every process that it
//! owns are gone, and the broker has seen the proof.
//!
//! The layers and the one walk of a call through them are in `docs/architecture.md`; the arrows between the modules
//! below are checked by `tests/architecture.rs`.

pub mod app;
pub mod broker;
pub mod catalog;
pub mod cli;
pub mod config;
pub mod core;
pub mod events;
pub mod exit;
pub mod front;
pub mod link;
pub mod ownership;
pub mod policy;
pub mod protocol;
pub mod review;
pub mod snapshot;
pub mod supervisor;
pub mod telemetry;
