//! The process table as Linux shows it, for the proof that nothing is left.
//!
//! A process counts as a broker's if it descends from the broker, if the folder of the broker's test is in its command
//! line, environment or program (the fixture hands it to everything that it starts), or if it was seen to be one before.
//! Zombies do not count: they run nothing, and whoever inherited them reaps them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// The variable that the broker sets in each server's environment.
pub const INSTANCE_VARIABLE: &str = "LAZY_MCP_INSTANCE_ID";

/// A process that cannot be taken for a later one of the same pid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Identity {
    pub pid: u32,
    /// Clock ticks since boot (`/proc/PID/stat`, field 22).
    pub started: u64,
}

impl Identity {
    pub fn is_alive(self) -> bool {
        Process::look(self.pid).is_some_and(|process| process.identity == self)
    }
}

#[derive(Clone, Debug)]
pub struct Process {
    pub identity: Identity,
    pub ppid: u32,
    pub session: u32,
    pub state: char,
    /// Arguments joined by blanks.
    pub command: String,
    /// The file that it executes; empty for a kernel thread, or if it may not be read.
    program: String,
    /// As the kernel shows it; empty if it may not be read or the process gave it away, as Chrome does.
    environment: String,
}

impl Process {
    pub fn pid(&self) -> u32 {
        self.identity.pid
    }

    /// As it is now; `None` if there is none, and also of a zombie.
    pub fn look(pid: u32) -> Option<Self> {
        Self::read(pid).filter(|process| !process.is_zombie())
    }

    fn read(pid: u32) -> Option<Self> {
        let folder = Path::new("/proc").join(pid.to_string());
        let stat = std::fs::read_to_string(folder.join("stat")).ok()?;
        // The name in parentheses may hold anything, so the fields are counted from its end.
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        let command = std::fs::read(folder.join("cmdline")).unwrap_or_default();
        Some(Self {
            identity: Identity { pid, started: fields.get(19)?.parse().ok()? },
            state: fields.first()?.chars().next()?,
            ppid: fields.get(1)?.parse().ok()?,
            session: fields.get(3)?.parse().ok()?,
            command: String::from_utf8_lossy(&command).replace('\0', " ").trim().to_owned(),
            program: std::fs::read_link(folder.join("exe"))
                .map_or_else(|_| String::new(), |path| path.to_string_lossy().into_owned()),
            environment: String::from_utf8_lossy(&std::fs::read(folder.join("environ")).unwrap_or_default())
                .into_owned(),
        })
    }

    fn is_zombie(&self) -> bool {
        matches!(self.state, 'Z' | 'X')
    }

    fn mentions(&self, text: &str) -> bool {
        self.command.contains(text) || self.program.contains(text) || self.environment.contains(text)
    }

    /// Whether it is one of the broker's keepers.
    pub fn is_keeper(&self) -> bool {
        self.command == "lazy-mcp keeper"
    }

    /// Whether the broker's own marker is in the environment.
    pub fn is_marked(&self) -> bool {
        self.environment.contains(&format!("{INSTANCE_VARIABLE}="))
    }
}

/// All processes at one moment, zombies left out.
#[derive(Debug)]
pub struct Table(BTreeMap<u32, Process>);

impl Table {
    pub fn read() -> Self {
        Self(all().filter(|process| !process.is_zombie()).map(|process| (process.pid(), process)).collect())
    }

    pub fn get(&self, pid: u32) -> Option<&Process> {
        self.0.get(&pid)
    }

    pub fn has(&self, identity: Identity) -> bool {
        self.get(identity.pid).is_some_and(|process| process.identity == identity)
    }

    /// Everything below `root`, without it.
    pub fn descendants(&self, root: u32) -> Vec<&Process> {
        self.0.values().filter(|process| self.is_below(process, root)).collect()
    }

    /// Every process whose command line or environment holds `text`.
    pub fn mentioning(&self, text: &str) -> Vec<&Process> {
        self.0.values().filter(|process| process.mentions(text)).collect()
    }

    fn is_below(&self, process: &Process, root: u32) -> bool {
        // Each step goes to a parent; the table is finite, so a chain longer than it is a reused pid.
        let mut pid = process.ppid;
        for _ in 0..self.0.len() {
            if pid == root {
                return true;
            }
            match self.get(pid) {
                Some(parent) => pid = parent.ppid,
                None => return false,
            }
        }
        false
    }
}

/// What belongs to one broker, over its whole life.
#[derive(Debug)]
pub struct Owned {
    /// The folder of the broker's test.
    mark: String,
    seen: BTreeSet<Identity>,
}

impl Owned {
    pub fn new(mark: &Path) -> Self {
        Self { mark: mark.to_str().expect("temporary folders have plain names").to_owned(), seen: BTreeSet::new() }
    }

    /// What runs now for the broker of pid `broker`, which itself and the test do not count.
    pub fn look(&mut self, broker: u32) -> Vec<Process> {
        let table = Table::read();
        let own = std::process::id();
        let below: BTreeSet<u32> = table.descendants(broker).iter().map(|process| process.pid()).collect();
        let belongs = |process: &Process| {
            below.contains(&process.pid()) || process.mentions(&self.mark) || self.seen.contains(&process.identity)
        };
        let found: Vec<Process> = table
            .0
            .values()
            .filter(|process| process.pid() != broker && process.pid() != own && belongs(process))
            .cloned()
            .collect();
        self.seen.extend(found.iter().map(|process| process.identity));
        found
    }
}

/// Kills a process from outside, as an operator or the kernel's memory killer might.
#[track_caller]
pub fn kill_9(identity: Identity) {
    assert!(send(identity, Signal::SIGKILL), "{identity:?} is gone");
}

/// Sends a signal from outside; false if the process is gone.
#[expect(clippy::disallowed_methods, reason = "its start time was compared a moment ago, and tests run briefly")]
pub fn send(identity: Identity, signal: Signal) -> bool {
    let is_the_same = identity.is_alive();
    let pid = i32::try_from(identity.pid).expect("pids are small");
    is_the_same && kill(Pid::from_raw(pid), signal).is_ok()
}

/// The dead children of a process that it has not reaped.
pub fn zombies(parent: u32) -> Vec<Process> {
    all().filter(|process| process.ppid == parent && process.is_zombie()).collect()
}

fn all() -> impl Iterator<Item = Process> {
    let pids = std::fs::read_dir("/proc").expect("/proc is mounted");
    let pids = pids.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    pids.filter_map(Process::read)
}

/// For a failure message: one process a line.
pub fn describe(processes: &[Process]) -> String {
    let mut text = String::from("   pid   ppid    sid st mark command\n");
    for process in processes {
        let mark = if process.is_marked() { 'y' } else { 'n' };
        let command: String = process.command.chars().take(160).collect();
        writeln!(
            text,
            "{:6} {:6} {:6} {}  {mark}    {command}",
            process.pid(),
            process.ppid,
            process.session,
            process.state
        )
        .expect("writing to a string does not fail");
    }
    text
}
