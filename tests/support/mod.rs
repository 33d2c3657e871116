//! What the integration tests share: a broker in a folder of its own, an HTTP client that shows exact bytes, MCP
//! clients of both eras on top of it, and the process table as the last word.
//!
//! Nothing here uses the library's code: a test of the wire that speaks through the code under test proves nothing.
#![allow(dead_code, unused_imports, reason = "each test binary uses its own part")]

pub mod broker;
pub mod cli;
pub mod files;
pub mod freezer;
pub mod http;
pub mod lease;
pub mod managed;
pub mod mcp;
pub mod outside;
pub mod processes;
pub mod run;
pub mod setup;
pub mod wait;
pub mod wire;

pub use broker::Broker;
pub use http::{Http, Request, Response};
pub use managed::Managed;
pub use mcp::{Modern, Reply, Session};
pub use setup::{Backend, Setup};
