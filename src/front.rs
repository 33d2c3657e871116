//! HTTP: both protocol eras on each URL, sessions, event streams and pages. Starts no process and waits for none
//! but through `broker`.
//!
//! Streamable HTTP by MCP 2025-11-25 and 2026-07-28, `transports`.

mod admin;
mod body;
mod events;
mod guard;
mod legacy;
mod modern;
mod pages;
mod places;
mod post;
mod relay;
mod replay;
mod resources;
mod respond;
mod resume;
mod serve;
mod session;
mod stream;
mod token;

pub use admin::AdminToken;
pub use resume::Replays;
pub use serve::{Front, bind, serve};
pub use session::Sessions;
