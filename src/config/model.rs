//! The typed result of a load: every value here is one that the broker can work with.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use regex::Regex;

use super::environment::EnvValue;
use super::package::{Package, package_of};
use super::template::Template;
use crate::core::limits::TreeLimits;

/// Where the broker listens when the file says nothing.
pub const DEFAULT_LISTEN: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 8788);

/// Names that no backend can have, because the broker answers on these paths itself.
pub const RESERVED_NAMES: [&str; 8] = ["admin", "mcp", "health", "ready", "status", "events", "metrics", "s"];

/// One `broker.toml`, checked.
#[derive(Clone, Debug)]
pub struct Config {
    /// The file as it was named to [`load`](super::load()).
    pub path: PathBuf,
    pub server: ServerConfig,
    pub review: ReviewMode,
    pub vars: Vars,
    /// By name, disabled ones included.
    pub backends: BTreeMap<String, BackendConfig>,
}

impl Config {
    /// Those that are mounted.
    pub fn enabled(&self) -> impl Iterator<Item = &BackendConfig> {
        self.backends.values().filter(|backend| backend.enabled)
    }
}

/// Backends that are enabled (true) or not whatever the file says of them, by name.
pub type Switches = BTreeMap<String, bool>;

/// `[server]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerConfig {
    /// Always a loopback address. Port 0 lets the kernel choose.
    pub listen: SocketAddr,
    /// Absolute; need not exist yet.
    pub state_dir: PathBuf,
    /// Bytes of one request body; default 4 MiB, as the Rust SDK for MCP has it.
    pub body_bytes_max: usize,
    /// Bytes of one line of a server; default 64 MiB, because full-page screenshots pass 16 MiB.
    pub frame_bytes_max: usize,
    pub sessions_max: usize,
    /// From the last use of a session; default 24 hours.
    pub session_ttl: Duration,
    /// Threads of the runtime; `None` leaves the choice to the broker.
    pub worker_threads: Option<usize>,
    /// How long calls in flight may finish when the broker is told to stop; zero waits for none.
    pub drain: Duration,
    /// Instances that run at the same time, of all backends; a new one takes the place of the one that has been idle for
    /// longest. Default 32.
    pub live_instances_max: usize,
    /// Instances that start at the same time; default 4, because a start keeps a processor busy for a second.
    pub concurrent_starts_max: usize,
    /// A filter in the form of `tracing`: a level, or `target=level` entries with commas.
    pub log: String,
}

/// What a policy or catalog that nobody has accepted means for the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReviewMode {
    /// It serves, and says so.
    #[default]
    Warn,
    /// It refuses.
    Enforce,
}

/// `[vars]` by name.
pub type Vars = BTreeMap<String, Var>;

/// One entry of `[vars]`: how to find a value on this machine when a backend starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Var {
    /// The first that is there: absolute paths that exist, or bare names that are found in PATH.
    FirstOf(Vec<Template>),
    /// The value of a variable of the broker's own environment.
    Env(String),
    Literal(Template),
    /// `as_root` when the broker runs as root, `otherwise` when not.
    ByUser {
        as_root: Template,
        otherwise: Template,
    },
}

/// `[backends.NAME]`: how to start a server, and where its catalog and policy are.
#[derive(Clone, Debug, PartialEq)]
pub struct BackendConfig {
    pub name: String,
    /// A disabled backend is checked as well, but its files need not exist.
    pub enabled: bool,
    pub command: Template,
    pub args: Vec<Template>,
    /// Working directory; `None` is the instance directory.
    pub cwd: Option<Template>,
    pub catalog: PathBuf,
    pub policy: PathBuf,
    pub env: BTreeMap<String, EnvValue>,
    /// Names passed on from the broker's environment beside [`ALLOWED_ALWAYS`](super::ALLOWED_ALWAYS); a final `*`
    /// stands for any rest.
    pub env_allow: BTreeSet<String>,
    pub deadlines: Deadlines,
    pub ownership: Ownership,
    pub probe: Option<Probe>,
    /// What `package = { … }` says.
    pub(super) declared_package: Option<Package>,
    /// Directory of the configuration file, absolute: where relative commands and directories start.
    pub(super) base: PathBuf,
}

impl BackendConfig {
    /// The package and version that this configuration starts, where it says so: `package = { … }`, else an exact
    /// `name@version` among the arguments. `None` means: believe the catalog.
    pub fn package(&self) -> Option<Package> {
        self.declared_package.clone().or_else(|| package_of(self.args.iter().map(Template::text)))
    }
}

/// `[backends.NAME.deadlines]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadlines {
    /// From spawn to the answer to `initialize`; default 60 s, because a first `npx` downloads the package.
    pub start: Duration,
    /// The ceiling of one call, whatever its policy says; default 120 s.
    pub call: Duration,
    /// The whole stop, polite close to proof; default 10 s.
    pub stop: Duration,
    /// The part of `stop` that a server gets to end by itself once its input is closed; default 3 s.
    pub polite: Duration,
}

impl Default for Deadlines {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self { start: seconds(60), call: seconds(120), stop: seconds(10), polite: seconds(3) }
    }
}

/// `[backends.NAME.ownership]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ownership {
    /// Whether processes on the Windows side of a WSL are owned too.
    pub windows: bool,
    /// Enforced where the generation has a cgroup with the controllers for it; `/status` says where not.
    pub limits: TreeLimits,
    /// The program that is asked about them; `None`: `powershell.exe` of PATH, else where Windows has it.
    pub powershell: Option<Template>,
}

/// `[backends.NAME.probe]`: one harmless call that shows that the whole chain works.
#[derive(Clone, Debug)]
pub struct Probe {
    pub tool: String,
    pub arguments: serde_json::Map<String, serde_json::Value>,
    /// What the text of the result is to match.
    pub expect: Option<Regex>,
}

impl PartialEq for Probe {
    fn eq(&self, other: &Self) -> bool {
        let expected = |probe: &Self| probe.expect.as_ref().map(|expect| expect.as_str().to_owned());
        self.tool == other.tool && self.arguments == other.arguments && expected(self) == expected(other)
    }
}
