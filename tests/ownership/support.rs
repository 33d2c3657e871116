//! A scene for one test: a private directory whose path is in the command line of every process that the test starts,
//! so that `/proc` can say who is left, however it forked and whatever it did to its environment.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use lazy_mcp_broker::core::launch::Launch;
use lazy_mcp_broker::ownership::{
    KeeperProgram, Pipes, Process, ProcessId, ProcessTable, StartError, Started, Sweep, Tree, start,
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

    pub fn python(&self, code: &str) -> Launch {
        self.launch("/usr/bin/python3", &self.file("server.py", code))
    }

    pub fn sh(&self, code: &str) -> Launch {
        self.launch("/bin/sh", &self.file("server.sh", code))
    }

    fn launch(&self, program: &str, script: &Path) -> Launch {
        Launch {
            program: if Path::new(program).exists() { program.into() } else { which(program) },
            args: vec![script.display().to_string()],
            env: BTreeMap::from([("PATH".to_owned(), "/usr/bin:/bin".to_owned())]),
            cwd: self.path().to_owned(),
        }
    }

    pub async fn try_start(&self, launch: &Launch) -> Result<Started, StartError> {
        start(&program(), launch, &self.tracker).await
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
            assert_eq!(ProcessId::of(tree.keeper().pid).filter(|now| *now == tree.keeper()), None, "keeper is reaped");
            assert!(!tree.root().is_alive());
        }
    }
}

pub fn program() -> KeeperProgram {
    KeeperProgram::at(env!("CARGO_BIN_EXE_lazy-mcp"))
}

fn which(program: &str) -> PathBuf {
    let name = Path::new(program).file_name().expect("a name");
    let path = std::env::var_os("PATH").expect("PATH");
    std::env::split_paths(&path).map(|dir| dir.join(name)).find(|path| path.exists()).expect("installed")
}

/// Processes with this text in their command line. Zombies have none.
pub fn living_with(text: &str) -> Vec<Process> {
    let table = ProcessTable::read().expect("/proc");
    let has_text = |process: &&Process| {
        let line = std::fs::read(format!("/proc/{}/cmdline", process.pid)).unwrap_or_default();
        process.pid != std::process::id() && String::from_utf8_lossy(&line).contains(text)
    };
    table.iter().filter(|process| !process.is_zombie()).filter(has_text).cloned().collect()
}

/// By kill(1): what a test does to a process from outside is not the product's way of doing it.
pub fn signal(process: ProcessId, name: &str) {
    assert!(process.is_alive());
    let done = std::process::Command::new("kill").args(["-s", name, &process.pid.to_string()]).status();
    assert!(done.expect("kill(1)").success());
}

/// Waits for an event that only the process table shows.
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
        Sweep::Busy { survivors } => panic!("not empty: {survivors:?}"),
    }
}
