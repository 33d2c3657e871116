//! Limits of one generation: set in its cgroup before anybody is in it, and watched.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::Cgroup;
use super::controllers::{Controller, turn_on};
use crate::core::limits::TreeLimit;

/// `memory.events` has nine lines with counters of at most 20 digits.
const EVENTS_BYTES_MAX: usize = 512;

/// A limit could not be set or cannot be watched.
#[derive(Debug, thiserror::Error)]
#[error("use `{path}`: {source}")]
pub struct NotLimited {
    path: PathBuf,
    source: io::Error,
}

impl Cgroup {
    /// Sets the limits that it carries. To be called after `create` and before anybody enters, so that they hold from
    /// the first byte. What watches them, and why some of them do not hold.
    pub(in crate::ownership) fn limit(&self) -> (Vec<LimitWatch>, Option<String>) {
        let (mut watches, mut reasons) = (Vec::new(), Vec::new());
        for limit in self.limits().each() {
            match self.set(limit) {
                Ok(watch) => watches.push(watch),
                Err(reason) => reasons.push(reason.to_string()),
            }
        }
        (watches, (!reasons.is_empty()).then(|| reasons.join("; ")))
    }

    fn set(&self, limit: TreeLimit) -> Result<LimitWatch, NotLimited> {
        if let Some(home) = self.path().parent() {
            // Now that this cgroup is in it, it cannot be removed and made anew without.
            turn_on(home, &[Controller::of(limit)])
                .map_err(|source| NotLimited { path: home.join("cgroup.subtree_control"), source })?;
        }
        match limit {
            TreeLimit::Memory { max_mb } => {
                self.write("memory.max", &(max_mb << 20).to_string())?;
                match self.write("memory.swap.max", "0") {
                    // A kernel that does not account for swap, or has none.
                    Err(absent) if absent.source.kind() == io::ErrorKind::NotFound => {}
                    other => other?,
                }
                // Without its renderer or its browser a server is of no use, and would not say so.
                self.write("memory.oom.group", "1")?;
            }
            TreeLimit::Pids { max } => self.write("pids.max", &max.to_string())?,
        }
        LimitWatch::open(self.path(), limit)
    }

    fn write(&self, name: &str, value: &str) -> Result<(), NotLimited> {
        let path = self.path().join(name);
        fs::write(&path, value).map_err(|source| NotLimited { path, source })
    }
}

/// Where the kernel says that a limit was reached.
#[derive(Debug)]
pub(in crate::ownership) struct LimitWatch {
    pub limit: TreeLimit,
    /// Readable by POLLPRI when a counter has changed since it was last read.
    events: File,
    cgroup: PathBuf,
}

/// What a look at the counters came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::ownership) enum Level {
    Within,
    Over,
    /// The cgroup is not there any more, so there is nothing to wait for.
    Gone,
}

impl LimitWatch {
    fn open(cgroup: &Path, limit: TreeLimit) -> Result<Self, NotLimited> {
        let path = cgroup.join(match limit {
            TreeLimit::Memory { .. } => "memory.events",
            TreeLimit::Pids { .. } => "pids.events",
        });
        let events = File::open(&path).map_err(|source| NotLimited { path, source })?;
        Ok(Self { limit, events, cgroup: cgroup.to_owned() })
    }

    /// To be polled for POLLPRI, after a look.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }

    pub fn look(&self) -> Level {
        let mut bytes = [0; EVENTS_BYTES_MAX];
        let Ok(len) = self.events.read_at(&mut bytes, 0) else { return Level::Gone };
        let events = String::from_utf8_lossy(&bytes[..len]);
        let is_over = match self.limit {
            TreeLimit::Memory { .. } => is_over_memory(&events),
            TreeLimit::Pids { max } => is_over_pids(&events, self.peak(), max),
        };
        if is_over { Level::Over } else { Level::Within }
    }

    /// The most processes and threads that it ever had at once; kernels before 6.1 do not tell.
    fn peak(&self) -> Option<u64> {
        fs::read_to_string(self.cgroup.join("pids.peak")).ok()?.trim().parse().ok()
    }
}

/// `oom_kill` counts also whom the kernel killed because the machine, or a cgroup above, was out of memory; `oom` only
/// what this limit, or one below it, has brought about.
fn is_over_memory(events: &str) -> bool {
    counter(events, "oom") > 0 && counter(events, "oom_kill") + counter(events, "oom_group_kill") > 0
}

/// Before Linux 6.11 `max` counts as well the forks that a limit above has refused.
fn is_over_pids(events: &str, peak: Option<u64>, max: u64) -> bool {
    counter(events, "max") > 0 && peak.is_none_or(|peak| peak >= max)
}

/// The number after a name; 0 where a kernel does not count that.
fn counter(events: &str, name: &str) -> u64 {
    let value = events.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.and_then(|value| value.trim().parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_memory(events: &str, expected: bool) {
        assert_eq!(is_over_memory(events), expected, "{events}");
    }

    #[test]
    fn memory_is_over_when_this_limit_has_killed() {
        check_memory("low 0\nhigh 0\nmax 31\noom 1\noom_kill 3\noom_group_kill 1\n", true);
        check_memory("low 0\nhigh 0\nmax 31\noom 2\noom_kill 1\n", true);
        // Reclaimed in time.
        check_memory("low 0\nhigh 0\nmax 31\noom 0\noom_kill 0\noom_group_kill 0\n", false);
        // The allocation failed, and nobody had to go.
        check_memory("max 31\noom 1\noom_kill 0\noom_group_kill 0\n", false);
        // Killed because the whole machine was out of memory.
        check_memory("max 0\noom 0\noom_kill 2\noom_group_kill 1\n", false);
        check_memory("", false);
        check_memory("oom x\noom_kill -\n", false);
    }

    #[test]
    fn pids_are_over_when_this_limit_has_refused_a_fork() {
        assert!(is_over_pids("max 1\n", Some(20), 20));
        assert!(is_over_pids("max 7\n", None, 20), "a kernel that does not know the peak");
        assert!(!is_over_pids("max 0\n", Some(20), 20), "as many as it may have");
        assert!(!is_over_pids("max 3\n", Some(12), 20), "a limit above it");
        assert!(!is_over_pids("", None, 20));
    }
}
