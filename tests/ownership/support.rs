//! A scene for one test: a private directory whose path is in the command line of every process that the test starts,
//! so that `/proc` can say who is left, however it forked and whatever it did to its environment.

#[path = "../support/run.rs"]
#[allow(dead_code, reason = "the broker's tests use more of it")]
mod run;

#[path = "../support/freezer.rs"]
mod freezer;
#[path = "../support/lease.rs"]
mod lease;
#[path = "../support/wait.rs"]
#[allow(dead_code, reason = "the broker's tests use more of it")]
mod wait;

pub use freezer::Frozen;
pub use lease::Leased;
pub use run::skipped;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use lazy_mcp_broker::core::launch::Launch;
use lazy_mcp_broker::ownership::{
    self, Cgroup, KeeperProgram, NotStarted, Owners, Pipes, Powershell, Process, ProcessId, ProcessTable, StartError,
    Started, Sweep, Tree,
};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio_util::task::TaskTracker;

/// Long enough for a machine under load; nothing waits it out unless it fails.
pub const BUDGET: Duration = Duration::from_secs(10);

pub struct Scene {
    dir: TempDir,
    pub tracker: TaskTracker,
}

impl Scene {
    pub fn new() -> Self {
        let dir = tempfile::Builder::new().prefix("scene-").tempdir().expect("temporary directory");
        Self { dir, tracker: TaskTracker::new() }
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    pub fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path().join(name);
        std::fs::write(&path, text).expect("write a script");
        path
    }

    pub fn perl(&self, code: &str) -> Launch {
        let prelude =
            "use POSIX ':sys_wait_h'; $| = 1; sub ready { print \"ready\\n\" } sub forever { sleep 1 while 1 }";
        launch("/usr/bin/perl", &self.file("server.pl", &format!("{prelude}\n{code}")))
    }

    pub fn sh(&self, code: &str) -> Launch {
        launch("/bin/sh", &self.file("server.sh", code))
    }

    pub async fn try_start(&self, launch: &Launch) -> Result<Started, StartError> {
        start(&program(), launch, &self.tracker).await.map_err(|failed| failed.error)
    }

    pub async fn start(&self, launch: &Launch) -> (Tree, Pipes) {
        let Started { tree, pipes } = self.try_start(launch).await.expect("starts");
        (tree, pipes)
    }

    /// Starts a server and waits for its first line, `ready`.
    pub async fn start_ready(&self, launch: &Launch) -> (Tree, Pipes) {
        let (tree, mut pipes) = self.start(launch).await;
        let line = BufReader::new(&mut pipes.stdout).lines().next_line().await.expect("readable").expect("a line");
        assert_eq!(line, "ready");
        (tree, pipes)
    }

    /// Everything that this scene started and that still lives.
    pub fn living(&self) -> Vec<Process> {
        living_with(&self.path().display().to_string())
    }

    /// The proof at the end of every test: no process of the scene, no task, no keeper, and no zombie of it.
    pub async fn assert_gone(&self, trees: &[&Tree]) {
        self.tracker.close();
        tokio::time::timeout(BUDGET, self.tracker.wait()).await.expect("every tree's task ends");
        assert_eq!(self.living(), []);
        for tree in trees {
            assert_ne!(ProcessId::of(tree.keeper().pid), Some(tree.keeper()), "the keeper is reaped");
            assert_ne!(ProcessId::of(tree.root().pid), Some(tree.root()), "the root is reaped");
        }
    }
}

/// Held by its keeper alone.
pub async fn start(program: &KeeperProgram, launch: &Launch, tracker: &TaskTracker) -> Result<Started, NotStarted> {
    start_in(None, program, launch, tracker).await
}

pub async fn start_in(
    cgroup: Option<Cgroup>,
    program: &KeeperProgram,
    launch: &Launch,
    tracker: &TaskTracker,
) -> Result<Started, NotStarted> {
    ownership::start(Owners { cgroup, windows: None }, program, launch, tracker).await
}

fn launch(program: &str, script: &Path) -> Launch {
    Launch {
        program: program.into(),
        args: vec![script.display().to_string()],
        env: BTreeMap::from([("PATH".to_owned(), "/usr/bin:/bin".to_owned())]),
        cwd: script.parent().expect("in the scene").to_owned(),
    }
}

pub fn program() -> KeeperProgram {
    KeeperProgram::at(run::broker_program())
}

/// Processes with this text in their command line. Zombies have none.
pub fn living_with(text: &str) -> Vec<Process> {
    let table = ProcessTable::read().expect("/proc");
    let has_text = |process: &&Process| process.pid != std::process::id() && command_line(process.pid).contains(text);
    table.iter().filter(|process| !process.is_zombie()).filter(has_text).cloned().collect()
}

pub fn command_line(pid: u32) -> String {
    String::from_utf8_lossy(&std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default()).into_owned()
}

/// By kill(1): what a test does to a process from outside is not the product's way of doing it.
#[track_caller]
pub fn signal(process: ProcessId, name: &str) {
    assert!(process.is_alive());
    let done = Command::new("kill").args(["-s", name, &process.pid.to_string()]).status();
    assert!(done.expect("kill(1)").success());
}

/// Waits for what only the process table shows, and says how long it took.
#[track_caller]
pub fn eventually(what: &str, within: Duration, mut holds: impl FnMut() -> bool) -> Duration {
    let started = Instant::now();
    while !holds() {
        assert!(started.elapsed() < within, "not within {within:?}: {what}");
        #[expect(clippy::disallowed_methods, reason = "the process table has no event to wait for")]
        std::thread::sleep(Duration::from_millis(2));
    }
    started.elapsed()
}

#[track_caller]
pub fn assert_empty(sweep: &Sweep) -> (usize, Duration) {
    match sweep {
        Sweep::Empty { killed, took } => (*killed, *took),
        Sweep::Busy { survivors, reason } => panic!("not empty: {survivors:?} {reason:?}"),
    }
}

/// For leftovers without a Windows side: to be asked is a failure.
pub fn no_windows(backend: &str) -> Result<Powershell, String> {
    panic!("`{backend}` has no Windows side here")
}

/// Sweeps as often as it takes: on a machine under load one budget may be too short, and then the answer is honest.
#[track_caller]
pub fn swept(tree: &Tree, budget: Duration) -> impl Future<Output = (usize, Duration)> {
    const TRIES: usize = 6;
    async move {
        for _ in 1..TRIES {
            if let Sweep::Empty { killed, took } = tree.sweep(budget).await {
                return (killed, took);
            }
        }
        assert_empty(&tree.sweep(BUDGET).await)
    }
}

/// Set in a process that runs one test alone.
const ALONE: &str = "OWNERSHIP_TEST_ALONE";

/// For tests about all children or descriptors of a process, which cannot share one with others: true in a process of
/// its own; elsewhere it runs the test there, passes its outcome on and is false.
#[track_caller]
pub fn is_alone(test: &str) -> bool {
    is_alone_with(test, &BTreeMap::new())
}

/// The same, with more in the environment of that process.
#[track_caller]
pub fn is_alone_with(test: &str, env: &BTreeMap<String, String>) -> bool {
    if std::env::var_os(ALONE).is_some() {
        return true;
    }
    let output = itself(test).envs(env).output().expect("runs itself");
    let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
    false
}

/// A process of the test's own, outside every tree; it does not outlive a test that fails.
pub struct Outsider(Child);

impl Outsider {
    pub fn spawn(command: &mut Command) -> Self {
        Self(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("runs"))
    }

    pub fn id(&self) -> ProcessId {
        ProcessId::of(self.0.id()).expect("not reaped yet")
    }
}

impl Drop for Outsider {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A process that plays the broker: the test named, which ends only by being killed, which dropping it does.
pub fn play_broker(test: &str, scene: &Path) -> Outsider {
    Outsider::spawn(itself(test).env(SCENE, scene))
}

const SCENE: &str = "OWNERSHIP_TEST_SCENE";

/// The scene of a broker that is being played; `None` in an ordinary run.
pub fn played_scene() -> Option<PathBuf> {
    std::env::var_os(SCENE).map(PathBuf::from)
}

fn itself(test: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this test"));
    command.args(["--exact", test, "--nocapture", "--test-threads=1"]).env(ALONE, "1");
    command
}
