//! What a broker is started with: fixture servers as backends, written down the way an operator would.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use serde_json::Value;
use tempfile::TempDir;

use super::broker::Broker;
use super::{cli, run};

/// Which server is behind the broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Program {
    Fixture,
    Conformance,
}

/// A server of the tests as a backend of the broker: the fixture, unless told otherwise.
#[derive(Clone, Debug)]
pub struct Backend {
    name: String,
    program: Program,
    scope: &'static str,
    flags: Vec<String>,
    list_flags: Vec<String>,
    idle_seconds: u64,
    queue: (u64, u64),
    max_concurrency: u64,
    deadlines: (u64, u64, u64),
    polite_seconds: f64,
    policy: String,
    toml: String,
    command: Option<String>,
}

impl Backend {
    /// One instance for all.
    pub fn singleton(name: &str) -> Self {
        Self::new(name, "singleton")
    }

    /// One instance a session.
    pub fn session(name: &str) -> Self {
        Self::new(name, "session")
    }

    fn new(name: &str, scope: &'static str) -> Self {
        Self {
            name: name.to_owned(),
            program: Program::Fixture,
            scope,
            flags: Vec::new(),
            list_flags: Vec::new(),
            idle_seconds: 120,
            queue: (64, 30),
            max_concurrency: 16,
            deadlines: (15, 30, 5),
            polite_seconds: 1.0,
            policy: String::new(),
            toml: String::new(),
            command: None,
        }
    }

    /// The server of MCP's conformance suite instead of the fixture: it keeps to the protocol, and logs nothing.
    pub fn conformance(mut self) -> Self {
        self.program = Program::Conformance;
        self
    }

    /// Flags of the fixture, split at blanks, that its catalog was not captured with.
    pub fn flags(mut self, flags: &str) -> Self {
        self.flags.extend(flags.split_whitespace().map(str::to_owned));
        self
    }

    /// One flag whose value may hold blanks.
    pub fn flag(mut self, name: &str, value: &str) -> Self {
        self.flags.extend([name.to_owned(), value.to_owned()]);
        self
    }

    /// Flags of the fixture, split at blanks, that shape its list: the catalog is captured with them.
    pub fn list_flags(mut self, flags: &str) -> Self {
        self.list_flags.extend(flags.split_whitespace().map(str::to_owned));
        self
    }

    pub fn idle_seconds(mut self, seconds: u64) -> Self {
        self.idle_seconds = seconds;
        self
    }

    pub fn queue(mut self, limit: u64, wait_seconds: u64) -> Self {
        self.queue = (limit, wait_seconds);
        self
    }

    pub fn max_concurrency(mut self, calls: u64) -> Self {
        self.max_concurrency = calls;
        self
    }

    pub fn start_seconds(mut self, seconds: u64) -> Self {
        self.deadlines.0 = seconds;
        self
    }

    pub fn call_seconds(mut self, seconds: u64) -> Self {
        self.deadlines.1 = seconds;
        self
    }

    pub fn stop_seconds(mut self, seconds: u64) -> Self {
        self.deadlines.2 = seconds;
        self
    }

    /// The part of a stop that a server gets to end by itself.
    pub fn polite_seconds(mut self, seconds: f64) -> Self {
        self.polite_seconds = seconds;
        self
    }

    /// More fields of `broker.backend { … }`, as Lua.
    pub fn policy(mut self, lua: &str) -> Self {
        self.policy.push_str(lua);
        self
    }

    /// More keys of `[backends.NAME]`, as TOML.
    pub fn toml(mut self, lines: &str) -> Self {
        self.toml.push_str(lines);
        self
    }

    /// Another program than the fixture, for starts that cannot succeed.
    pub fn command(mut self, command: &str) -> Self {
        self.command = Some(command.to_owned());
        self
    }

    fn to_toml(&self, log: &Path) -> String {
        let folder = log.parent().expect("the log is in the folder of the test").display().to_string();
        // By the folder a process is known as one of this test: on the command line, or in the environment.
        let (program, mut args, more) = match self.program {
            Program::Fixture => {
                (run::fixture_program(), vec!["--log".to_owned(), log.display().to_string()], String::new())
            }
            Program::Conformance => {
                (run::conformance_program(), Vec::new(), format!("env = {{ LAZY_MCP_TEST_FOLDER = {folder:?} }}\n"))
            }
        };
        args.extend(self.list_flags.iter().chain(&self.flags).cloned());
        let args: Vec<String> = args.iter().map(|arg| Value::from(arg.as_str()).to_string()).collect();
        let program = program.display().to_string();
        let command = self.command.as_deref().unwrap_or(&program);
        let (start, call, stop) = self.deadlines;
        format!(
            "[backends.{name}]\ncommand = {command:?}\nargs = [{args}]\ncatalog = \"../catalogs/{name}.json\"\n\
             policy = \"../policies/{name}.lua\"\n{more}\n[backends.{name}.deadlines]\nstart_seconds = {start}\n\
             call_seconds = {call}\nstop_seconds = {stop}\npolite_seconds = {polite}\n\n",
            name = self.name,
            args = args.join(", "),
            more = more + &self.toml,
            polite = self.polite_seconds,
        )
    }

    fn to_lua(&self) -> String {
        let (limit, wait) = self.queue;
        format!(
            "return broker.backend {{\n  api = 1,\n  scope = \"{}\",\n  idle_timeout_seconds = {},\n  \
             queue = {{ limit = {limit}, wait_seconds = {wait} }},\n  max_concurrency = {},\n  {}\n}}\n",
            self.scope, self.idle_seconds, self.max_concurrency, self.policy
        )
    }
}

/// What a broker is to be started with.
#[derive(Clone, Debug, Default)]
pub struct Setup {
    /// 0 lets the kernel choose.
    port: u16,
    /// 2 when nothing else is asked for.
    drain_seconds: Option<u64>,
    server: String,
    backends: Vec<Backend>,
}

impl Setup {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn backend(mut self, backend: Backend) -> Self {
        self.backends.push(backend);
        self
    }

    /// A port that was free a moment ago, for commands that find the broker by its configuration.
    pub fn known_port(mut self) -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("loopback has a free port");
        self.port = listener.local_addr().expect("a bound socket has an address").port();
        self
    }

    /// How long calls may go on when the broker is told to end.
    pub fn drain_seconds(mut self, seconds: u64) -> Self {
        self.drain_seconds = Some(seconds);
        self
    }

    /// More keys of `[server]`, as TOML.
    pub fn server(mut self, lines: &str) -> Self {
        self.server.push_str(lines);
        self
    }

    /// Writes everything but the catalogs, and returns the folder.
    pub fn write(&self) -> TempDir {
        // Named after the run, so that tests/left_running.py knows its processes from those of another run.
        let prefix = format!("lazy-mcp-test-{}-", run::name());
        let dir = tempfile::Builder::new().prefix(&prefix).tempdir().expect("a temporary folder can be made");
        for folder in ["config", "catalogs", "policies", "state"] {
            std::fs::create_dir(dir.path().join(folder)).expect("the folder is new");
        }
        let mut toml = format!(
            "[server]\nlisten = \"127.0.0.1:{}\"\nstate_dir = \"../state\"\ndrain_seconds = {}\n{}\n\n",
            self.port,
            self.drain_seconds.unwrap_or(2),
            self.server
        );
        for backend in &self.backends {
            let log = dir.path().join(format!("{}.log", backend.name));
            write!(toml, "{}", backend.to_toml(&log)).expect("writing to a string does not fail");
            write_file(&dir.path().join(format!("policies/{}.lua", backend.name)), &backend.to_lua());
        }
        write_file(&dir.path().join("config/broker.toml"), &toml);
        dir
    }

    /// Writes everything, catalogs too, and returns the folder.
    #[track_caller]
    pub fn write_whole(&self) -> TempDir {
        let dir = self.write();
        for backend in &self.backends {
            let path = dir.path().join(format!("catalogs/{}.json", backend.name));
            std::fs::write(path, catalog(backend)).expect("the folder was just made");
        }
        dir
    }

    /// Starts the broker and waits until it is ready.
    #[track_caller]
    pub fn start(&self) -> Broker {
        Broker::start(self.write_whole())
    }
}

/// The catalog of `backend` as `lazy-mcp catalog capture` writes it, made once a test process.
#[track_caller]
fn catalog(backend: &Backend) -> Vec<u8> {
    /// By the backend's name, its program and the flags that shape its list.
    type Captured = BTreeMap<(String, Program, Vec<String>), Vec<u8>>;
    static CAPTURED: Mutex<Captured> = Mutex::new(BTreeMap::new());
    let mut captured = CAPTURED.lock().unwrap_or_else(PoisonError::into_inner);
    let key = (backend.name.clone(), backend.program, backend.list_flags.clone());
    captured.entry(key).or_insert_with(|| capture(backend)).clone()
}

fn capture(backend: &Backend) -> Vec<u8> {
    let list_flags = backend.list_flags.clone();
    let well_behaved = Backend { program: backend.program, list_flags, ..Backend::singleton(&backend.name) };
    let dir = Setup::new().backend(well_behaved).write();
    let done = cli::run(&dir.path().join("config/broker.toml"), &["catalog", "capture", &backend.name]);
    assert_eq!(done.code, Some(0), "catalog capture {}: {}", backend.name, done.stderr);
    std::fs::read(dir.path().join(format!("catalogs/{}.json", backend.name))).expect("the capture wrote the catalog")
}

fn write_file(path: &Path, text: &str) {
    std::fs::write(path, text).expect("the folder was just made");
}
