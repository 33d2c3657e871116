//! What a reviewed Lua file decides about one backend: scope, idle time, queue, visible tools, what a call may carry
//! and what a result may contain.
//!
//! A policy file runs once, in a sandbox, when a snapshot is built ([`load()`]). Everything it says is data and becomes
//! a frozen [`Policy`]; the virtual machine is dropped, so a policy costs nothing at rest and a call costs no Lua. The
//! rules over arguments and results are compiled then and run by Rust over the raw JSON: bytes that no rule touches
//! leave as they came (invariant 10), and what a rule cannot finish is withheld by the caller (invariant 11).
//!
//! Only hooks (`on_call`, `on_result`, `scope_key`) run later, in machines of their own on threads of their own
//! (`hooks.rs`), and only for the tools that have one.
//!
//! Not here: when to load, what to do with a drifted catalog, how a denial looks on the wire.
//!
//! The sandbox is built on measurements of Luau 0.740 by mlua 0.12 (`sandbox.rs`); URLs are judged by the WHATWG URL
//! standard; result shapes are those of the MCP specification, 2024-11-05 to 2026-07-28.

mod arguments;
mod backend;
mod bytecode;
mod constructors;
mod decide;
mod edits;
mod fields;
mod frozen;
mod hooks;
mod json;
pub mod language;
mod load;
mod memory;
mod names;
mod output_schema;
mod results;
mod runs;
mod sandbox;
mod schema;
mod source;
mod structured;
pub mod testing;
mod url_rule;

pub use arguments::{ArgumentRules, Denied};
pub use decide::{
    CallFacts, CallVerdict, ClientName, Judged, PolicyFailure, RequestFacts, ResultVerdict, ScopeVerdict, decided_by,
};
pub use frozen::{DriftRule, OnCancel, Policy, QueueRules, Scope, ToolPlan};
pub use hooks::threads_abandoned;
pub use load::load;
pub use output_schema::{OutputSchema, Unfit};
pub use results::{Acted, Keep, Link, Media, MediaKind, PayloadKind, ResultRules, RuleFailure};
pub use schema::InputSchema;
pub use structured::{Fitting, fitting};
