//! What a broker holds or leaves outside of its processes, seen without asking it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::processes::{Process, describe, zombies};
use super::{Broker, wait};

/// How long what is closed or erased after an answer may take.
const SETTLES_WITHIN: Duration = Duration::from_secs(10);

impl Broker {
    /// What each open descriptor of the broker is, and how many there are of it, when no client is connected.
    #[track_caller]
    pub fn descriptors(&self) -> BTreeMap<String, usize> {
        wait::until_true("the broker to close its connections", SETTLES_WITHIN, || self.connections() == 0);
        self.descriptors_now()
    }

    fn descriptors_now(&self) -> BTreeMap<String, usize> {
        let mut counted = BTreeMap::new();
        for entry in fs::read_dir(format!("/proc/{}/fd", self.pid())).expect("the broker runs").flatten() {
            if let Ok(to) = fs::read_link(entry.path()) {
                *counted.entry(kind(&to)).or_insert(0) += 1;
            }
        }
        counted
    }

    /// Waits until the broker has the descriptors that it had.
    #[track_caller]
    pub fn assert_descriptors(&self, before: &BTreeMap<String, usize>) {
        wait::is_true_within(SETTLES_WITHIN, || self.descriptors_now() == *before);
        assert_eq!(self.descriptors_now(), *before, "descriptors of the broker, now and before");
    }

    /// Connections that the broker has not closed (proc_pid_net(5), `tcp`): a socket that no process has any more, but
    /// the kernel still knows, has inode 0; state 0A listens.
    fn connections(&self) -> usize {
        let port = format!(":{:04X}", self.http().0.port());
        let table = fs::read_to_string("/proc/net/tcp").expect("/proc is mounted");
        let rows = table.lines().skip(1).map(|line| line.split_whitespace().collect::<Vec<_>>());
        let is_open = |row: &Vec<&str>| row[1].ends_with(&port) && row[3] != "0A" && row[9] != "0";
        rows.filter(is_open).count()
    }

    #[track_caller]
    pub fn assert_no_zombies(&self) {
        wait::is_true_within(SETTLES_WITHIN, || zombies(self.pid()).is_empty());
        let left = zombies(self.pid());
        assert!(left.is_empty(), "not reaped by the broker:\n{}", describe(&left));
    }

    /// Journal entries, instance directories and cgroups of this broker's installation.
    pub fn files(&self) -> Vec<PathBuf> {
        let journal = list(&self.dir().join("state/journal"));
        let mut found: Vec<PathBuf> = journal.into_iter().filter(|path| !path.ends_with("lock")).collect();
        let name = self.installation_name();
        // A temporary folder with a long name is not used, because a browser could make no socket in it.
        let temporary = [std::env::temp_dir(), PathBuf::from("/tmp")];
        found.extend(temporary.iter().flat_map(|folder| list(&folder.join(&name))));
        found.extend(cgroup_mounts().iter().flat_map(|mount| named_below(mount, &name)));
        found.sort();
        found.dedup();
        found
    }

    #[track_caller]
    pub fn assert_no_files(&self) {
        wait::is_true_within(SETTLES_WITHIN, || self.files().is_empty());
        assert_eq!(self.files(), Vec::<PathBuf>::new(), "left by a broker with nothing running");
    }

    /// Private memory of the broker in KiB: pages of its program that it happens to have read are not its growth.
    pub fn private_kib(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid())).expect("the broker runs");
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")?.strip_suffix("kB"));
        line.and_then(|kib| kib.trim().parse().ok()).expect("Linux 4.5 and newer tell")
    }

    /// The cgroup that the broker runs in, where generations get one below it.
    pub fn cgroup(&self) -> Option<PathBuf> {
        if self.status()["broker"]["owner_kinds"].as_array().is_none_or(|kinds| kinds.len() < 2) {
            return None;
        }
        let lines = fs::read_to_string(format!("/proc/{}/cgroup", self.pid())).expect("the broker runs");
        let own = lines.lines().find_map(|line| line.strip_prefix("0::/"))?.to_owned();
        cgroup_mounts().into_iter().map(|mount| mount.join(&own)).find(|path| path.is_dir())
    }

    /// Keepers that run for this broker now.
    pub fn keepers(&self) -> Vec<Process> {
        self.owned_processes().into_iter().filter(Process::is_keeper).collect()
    }

    /// The name of what this broker makes for its state directory, in the file system and among the cgroups.
    fn installation_name(&self) -> String {
        let installation = fs::read_to_string(self.dir().join("state/installation")).expect("made at the first start");
        format!("lazy-mcp-{}", &installation[..8])
    }
}

/// `socket:[123]` and `socket:[456]` are the same kind; a file is itself.
fn kind(to: &Path) -> String {
    let text = to.to_string_lossy();
    text.split_once(":[").map_or_else(|| text.clone().into_owned(), |(kind, _)| kind.to_owned())
}

fn list(folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

fn cgroup_mounts() -> Vec<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mounts").expect("/proc is mounted");
    let fields = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    fields.filter(|fields| fields.get(2) == Some(&"cgroup2")).map(|fields| PathBuf::from(fields[1])).collect()
}

/// Directories of that name, at any depth.
fn named_below(folder: &Path, name: &str) -> Vec<PathBuf> {
    let folders = list(folder).into_iter().filter(|path| path.is_dir());
    folders.flat_map(|path| if path.ends_with(name) { vec![path] } else { named_below(&path, name) }).collect()
}
