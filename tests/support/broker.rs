//! A real broker process over fixture servers, in a temporary folder laid out as an operator would.
//!
//! `config/broker.toml`, `catalogs/NAME.json`, `policies/NAME.lua`, `state/`, `NAME.log` (what the fixture did) and
//! `broker.log` (what the broker said).

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::channel;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tempfile::TempDir;

use super::http::{Http, Request};
use super::processes::{Identity, Owned, Process, Table, describe};
use super::{cli, run, wait};

/// What the first line of the broker's stdout begins with; the address follows.
const LISTENING: &str = "lazy-mcp listening on http://";
/// How long a broker may take until `/ready`.
const READY_WITHIN: Duration = Duration::from_secs(20);
/// How long a broker may take to end after SIGTERM.
const ENDS_WITHIN: Duration = Duration::from_secs(20);
/// How long a tree may outlive its broker (DESIGN, invariant 6).
pub const EMPTY_WITHIN: Duration = Duration::from_secs(5);

/// A broker process. Ended on drop; a test ends with `finish`, which proves that nothing is left.
#[derive(Debug)]
pub struct Broker {
    running: Running,
    owned: Mutex<Owned>,
    dir: TempDir,
}

impl Broker {
    /// Starts the broker over the files in `dir` and waits until it is ready.
    #[track_caller]
    pub fn start(dir: TempDir) -> Self {
        let running = Running::start(dir.path());
        let broker = Self { owned: Mutex::new(Owned::new(dir.path())), dir, running };
        broker.wait_ready();
        broker
    }

    pub fn http(&self) -> Http {
        self.running.http
    }

    pub fn pid(&self) -> u32 {
        self.running.child.id()
    }

    #[track_caller]
    pub fn identity(&self) -> Identity {
        Table::read().get(self.pid()).expect("the broker runs").identity
    }

    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub fn config(&self) -> PathBuf {
        self.dir.path().join("config/broker.toml")
    }

    /// Everything that the broker wrote to stderr.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("broker.log")).unwrap_or_default()
    }

    /// `lazy-mcp --config CONFIG ARGS…`.
    #[track_caller]
    pub fn cli(&self, args: &[&str]) -> cli::Run {
        cli::run(&self.config(), args)
    }

    #[track_caller]
    pub fn wait_ready(&self) {
        let ready = || self.http().try_send(&Request::get("/ready")).is_ok_and(|answer| answer.status == 200);
        wait::until_true("the broker's /ready", READY_WITHIN, ready);
    }

    #[track_caller]
    pub fn status(&self) -> Value {
        self.http().send(&Request::get("/status")).json()
    }

    /// The entry of `backend` in `/status`.
    #[track_caller]
    pub fn backend_status(&self, backend: &str) -> Value {
        let status = self.status();
        let found = status["backends"].as_array().and_then(|all| all.iter().find(|one| one["name"] == backend));
        found.cloned().unwrap_or_else(|| panic!("no backend `{backend}` in {status:#}"))
    }

    /// Instances of `backend` in `/status` that are in another state than `stopped`.
    #[track_caller]
    pub fn live_instances(&self, backend: &str) -> Vec<Value> {
        let status = self.backend_status(backend);
        let instances = status["instances"].as_array().cloned().unwrap_or_default();
        instances.into_iter().filter(|instance| instance["state"] != "stopped").collect()
    }

    /// Waits until `/status` shows no live instance of `backend` and the process table shows nothing at all.
    #[track_caller]
    pub fn wait_stopped(&self, backend: &str, limit: Duration) {
        wait::until_true("all instances to be stopped", limit, || self.live_instances(backend).is_empty());
        let left = self.owned_processes();
        assert!(left.is_empty(), "`stopped` was said while there were\n{}", describe(&left));
    }

    /// Lines of the fixture's log of `backend`.
    pub fn events(&self, backend: &str) -> Vec<FixtureEvent> {
        let path = self.dir.path().join(format!("{backend}.log"));
        let text = std::fs::read_to_string(path).unwrap_or_default();
        text.lines().filter_map(FixtureEvent::parse).collect()
    }

    /// How often `event` stands in the fixture's log, with `detail` if that is not empty.
    pub fn count(&self, backend: &str, event: &str, detail: &str) -> usize {
        let fits = |one: &FixtureEvent| one.event == event && (detail.is_empty() || one.detail == detail);
        self.events(backend).iter().filter(|one| fits(one)).count()
    }

    /// Every line that the servers of `backend` have read, as it was spelled, if their fixture has `--log-lines`.
    pub fn lines(&self, backend: &str) -> Vec<String> {
        let lines = self.events(backend).into_iter().filter(|one| one.event == "line");
        lines.map(|one| one.detail).collect()
    }

    /// How many processes of `backend` were started, as told by themselves.
    pub fn starts(&self, backend: &str) -> usize {
        self.count(backend, "start", "")
    }

    /// Waits until the fixture's log holds `event` with `detail`.
    #[track_caller]
    pub fn wait_event(&self, backend: &str, event: &str, detail: &str) {
        let what = format!("`{backend}` to log `{event} {detail}`");
        wait::until_true(&what, Duration::from_secs(15), || self.count(backend, event, detail) > 0);
    }

    /// What runs for this broker now, by the process table.
    pub fn owned_processes(&self) -> Vec<Process> {
        self.owned.lock().unwrap_or_else(PoisonError::into_inner).look(self.pid())
    }

    #[track_caller]
    pub fn assert_nothing_runs(&self) {
        let left = self.owned_processes();
        assert!(left.is_empty(), "nothing should run, but there are\n{}", describe(&left));
    }

    /// Waits until the process table shows nothing of this broker's; prints it otherwise.
    #[track_caller]
    pub fn assert_nothing_left(&self, why: &str, limit: Duration) {
        let end = std::time::Instant::now() + limit;
        loop {
            let left = self.owned_processes();
            if left.is_empty() {
                return;
            }
            assert!(
                std::time::Instant::now() < end,
                "nothing should be left {limit:?} after {why}, but there are\n{}",
                describe(&left)
            );
            wait::pause_because("the process table sends no events", Duration::from_millis(20));
        }
    }

    /// SIGHUP, which must not end a broker.
    #[track_caller]
    pub fn hang_up(&self) {
        self.running.signal(Signal::SIGHUP);
        // A signal that nobody handles has ended the process before kill(2) returns: nothing is answered any more.
        assert_eq!(self.http().send(&Request::get("/ready")).status, 200, "after SIGHUP");
    }

    /// Kills the broker as the kernel would, and nothing else.
    pub fn kill_9(&mut self) {
        self.owned_processes();
        self.running.child.kill().expect("it is our child");
        self.running.child.wait().expect("it is our child");
    }

    /// Starts the broker again over the same files; its port may be another.
    #[track_caller]
    pub fn restart(&mut self) {
        self.running.end();
        self.running = Running::start(self.dir.path());
        self.wait_ready();
    }

    /// Sends SIGTERM and waits for the end.
    #[track_caller]
    pub fn terminate(&mut self) -> ExitStatus {
        self.owned_processes();
        self.running.signal(Signal::SIGTERM);
        wait::until("the broker to end after SIGTERM", ENDS_WITHIN, || {
            self.running.child.try_wait().expect("it is our child")
        })
    }

    /// Ends the broker and proves from the process table that nothing is left.
    #[track_caller]
    pub fn finish(mut self) {
        let status = self.terminate();
        let left = self.owned_processes();
        assert!(left.is_empty(), "the broker ended ({status}) and left\n{}", describe(&left));
        assert_eq!(status.code(), Some(0), "signal {:?}; its log:\n{}", status.signal(), self.log());
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = self.log();
            let tail: Vec<&str> = log.lines().rev().take(40).collect();
            eprintln!("--- the end of broker.log");
            tail.iter().rev().for_each(|line| eprintln!("{line}"));
        }
        self.running.end();
    }
}

#[derive(Debug)]
struct Running {
    child: Child,
    http: Http,
}

impl Running {
    /// By the program in the folder, where a test has put one there: then its keepers are known by their path.
    #[track_caller]
    fn start(dir: &Path) -> Self {
        let log = File::options().create(true).append(true).open(dir.join("broker.log")).expect("the folder is ours");
        let own = dir.join("lazy-mcp");
        let program = if own.exists() { own } else { run::broker_program() };
        let mut child = Command::new(program)
            .arg("--config")
            .arg(dir.join("config/broker.toml"))
            .arg("serve")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .expect("the broker can be started");
        let stdout = child.stdout.take().expect("piped");
        match first_address(stdout) {
            Some(address) => Self { child, http: Http(address) },
            None => {
                child.kill().ok();
                let status = child.wait();
                let log = std::fs::read_to_string(dir.join("broker.log")).unwrap_or_default();
                panic!("the broker said no address ({status:?}):\n{log}");
            }
        }
    }

    #[expect(clippy::disallowed_methods, reason = "a child that was not waited for keeps its pid")]
    fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).expect("pids are small");
        kill(Pid::from_raw(pid), signal).ok();
    }

    /// Ends the process, politely at first.
    fn end(&mut self) {
        if matches!(self.child.try_wait(), Ok(Some(_))) {
            return;
        }
        self.signal(Signal::SIGTERM);
        let end = std::time::Instant::now() + ENDS_WITHIN;
        while std::time::Instant::now() < end {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            wait::pause_because("the end of a child is polled", Duration::from_millis(20));
        }
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// A line of the fixture's log.
#[derive(Clone, Debug)]
pub struct FixtureEvent {
    pub at_ms: u64,
    pub pid: u32,
    pub event: String,
    pub detail: String,
}

impl FixtureEvent {
    fn parse(line: &str) -> Option<Self> {
        let mut parts = line.splitn(4, ' ');
        Some(Self {
            at_ms: parts.next()?.parse().ok()?,
            pid: parts.next()?.parse().ok()?,
            event: parts.next()?.to_owned(),
            detail: parts.next()?.to_owned(),
        })
    }
}

/// The address of the first line; the rest of stdout is read and dropped, so that the broker never blocks on it.
fn first_address(stdout: impl std::io::Read + Send + 'static) -> Option<SocketAddr> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let mut lines = BufReader::new(stdout).lines().map_while(Result::ok);
        sender.send(lines.next()).ok();
        lines.for_each(drop);
    });
    let line = receiver.recv_timeout(READY_WITHIN).ok()??;
    line.strip_prefix(LISTENING)?.parse().ok()
}
