//! The cgroup of one generation.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use nix::libc;
use nix::sys::statfs::{CGROUP2_SUPER_MAGIC, statfs};
use serde::{Deserialize, Serialize};

use super::home::{group_name, home_name};
use crate::core::limits::TreeLimits;
use crate::ownership::process_table::{Process, ProcessId};

/// Cgroups that a server may make in its own and that are still removed; a container engine makes two a container.
const NESTED_LEN_MAX: usize = 10_000;
/// The last cgroup beside this one may be removed, and the directory of all with it, while this one is made.
const ATTEMPTS: usize = 8;

/// A name below our own directory of cgroups; whether it exists is the kernel's knowledge.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cgroup {
    path: PathBuf,
    /// To be set before anybody is in it.
    limits: TreeLimits,
}

impl Cgroup {
    pub(super) fn at(path: PathBuf) -> Self {
        Self { path, limits: TreeLimits::default() }
    }

    /// The same with limits, which `limit` sets.
    #[must_use]
    pub fn limited(self, limits: TreeLimits) -> Self {
        Self { limits, ..self }
    }

    pub fn limits(&self) -> TreeLimits {
        self.limits
    }

    /// The cgroup that a journal names for a generation. `None` when it is gone, or not one that this installation
    /// could have made for exactly that generation: a forged path touches nothing.
    pub(in crate::ownership) fn recorded(
        path: &Path,
        installation: &str,
        instance: &str,
        generation: u64,
    ) -> Option<Self> {
        let is_of_generation = path.file_name()? == group_name(instance, generation).as_str();
        let is_at_home = path.parent()?.file_name()? == home_name(installation).as_str();
        // Neither a link nor a `..` on the way.
        let is_there = path.canonicalize().is_ok_and(|real| real == path);
        let is_cgroup = || statfs(path).is_ok_and(|fs| fs.filesystem_type() == CGROUP2_SUPER_MAGIC);
        (is_of_generation && is_at_home && is_there && is_cgroup()).then(|| Self::at(path.to_owned()))
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes it, empty, and opens its `cgroup.procs`: who writes `0` there is in it.
    ///
    /// # Errors
    /// What the kernel says; one of this name that is in use.
    pub(in crate::ownership) fn create(&self) -> io::Result<File> {
        let mut made = self.make();
        for _ in 1..ATTEMPTS {
            match &made {
                Err(error) if error.kind() == io::ErrorKind::NotFound => made = self.make(),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    self.remove()?;
                    made = self.make();
                }
                _ => break,
            }
        }
        made?;
        OpenOptions::new().write(true).open(self.path.join("cgroup.procs"))
    }

    fn make(&self) -> io::Result<()> {
        match self.path.parent().map(fs::create_dir) {
            Some(Err(error)) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        fs::create_dir(&self.path)
    }

    /// Whether a living process is in it or below it. One that does not exist has none: the kernel does not let a
    /// cgroup with processes be removed. What cannot be asked is not empty.
    pub(in crate::ownership) fn is_populated(&self) -> bool {
        match fs::read_to_string(self.path.join("cgroup.events")) {
            Ok(events) => !events.lines().any(|line| line == "populated 0"),
            Err(error) => !is_absent(&error),
        }
    }

    /// Lets the kernel kill all that is in it and below it, those included that are born meanwhile. Whom it saw there
    /// just before; nobody when the kernel refused.
    pub(in crate::ownership) fn kill(&self) -> Vec<ProcessId> {
        if !self.is_populated() {
            return Vec::new();
        }
        let seen = self.processes().iter().map(Process::id).collect();
        let done = OpenOptions::new()
            .write(true)
            .open(self.path.join("cgroup.kill"))
            .and_then(|mut file| io::Write::write_all(&mut file, b"1"));
        done.map(|()| seen).unwrap_or_default()
    }

    /// Who is in it or below it. Not complete while they fork, or where they are in another pid namespace.
    pub(in crate::ownership) fn processes(&self) -> Vec<Process> {
        // A process that moves meanwhile is seen twice; a threaded cgroup cannot be asked, but its process is listed above.
        let lists =
            self.with_nested().into_iter().filter_map(|path| fs::read_to_string(path.join("cgroup.procs")).ok());
        let pids: BTreeSet<u32> =
            lists.flat_map(|list| list.lines().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>()).collect();
        pids.into_iter().filter_map(Process::read).collect()
    }

    /// Adds to `left` who is in the cgroup and not there yet; whether it is populated, also by such as are not seen.
    pub(in crate::ownership) fn hold(cgroup: Option<&Self>, left: &mut Vec<Process>) -> bool {
        let Some(cgroup) = cgroup.filter(|cgroup| cgroup.is_populated()) else { return false };
        let known: BTreeSet<u32> = left.iter().map(|process| process.pid).collect();
        left.extend(cgroup.processes().into_iter().filter(|process| !known.contains(&process.pid)));
        true
    }

    /// Removes it with all below it, from the bottom up, and the directory of all cgroups when this was the last. To be
    /// called after the proof; one that is gone already is no error.
    ///
    /// # Errors
    /// What the kernel says; EBUSY while somebody is in it.
    pub(in crate::ownership) fn remove(&self) -> io::Result<()> {
        for path in self.with_nested().iter().rev() {
            match fs::remove_dir(path) {
                Err(error) if !is_absent(&error) => return Err(error),
                _ => {}
            }
        }
        if let Some(home) = self.path.parent() {
            // Not empty as a rule: then others need it.
            let _ = fs::remove_dir(home);
        }
        Ok(())
    }

    /// Itself and all below it; each stands behind the one that it is in.
    fn with_nested(&self) -> Vec<PathBuf> {
        let mut found = vec![self.path.clone()];
        let mut looked_into = 0;
        while looked_into < found.len() && found.len() < NESTED_LEN_MAX {
            let entries = fs::read_dir(&found[looked_into]).into_iter().flatten().flatten();
            let nested = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
            found.extend(nested.map(|entry| entry.path()));
            looked_into += 1;
        }
        found
    }
}

/// Removed before or while it was read.
fn is_absent(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ENODEV)
}
