//! `broker.toml`: what runs on this machine.
//!
//! Responsible for reading the operator's file into typed values with every fault found at once, for turning a
//! backend into a [`Launch`](crate::core::launch::Launch) when it starts (and not before), and for the fingerprint
//! that says whether a reload changes what a process is.
//! Leaves to others: the contents of catalogs and policies (only that the files exist is looked at here), comparing a
//! catalog's package with [`BackendConfig::package`], and creating directories.
//!
//! Secrets come by reference and never show: no type here prints a value of the environment or an argument.

mod backends;
mod environment;
mod fingerprint;
mod load;
mod model;
mod package;
mod paths;
mod reader;
mod resolve;
mod template;
mod vars;

pub use environment::{ALLOWED_ALWAYS, EnvValue, Surroundings};
pub use load::{load, load_alone, read, whereabouts};
pub use model::{
    BackendConfig, Config, DEFAULT_LISTEN, Deadlines, Ownership, Probe, RESERVED_NAMES, ReviewMode, ServerConfig,
    Switches, Var, Vars,
};
pub use package::{Package, package_of};
pub use resolve::{InstanceContext, ResolveError, Unresolved, powershell};
pub use template::Template;
