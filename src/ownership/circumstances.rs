//! What can be seen of a survivor now, for the reason why it is one. Reads only; signals nobody.
//!
//! On whose word: proc(5) `/proc/pid/status` and `/proc/pid/mountinfo`, kill(2) for who may signal whom, and the
//! kernel's Documentation/admin-guide/cgroup-v1/freezer-subsystem.rst.

use std::fs;
use std::path::PathBuf;

use nix::libc;
use nix::unistd::{geteuid, getuid};

use super::process_table::Process;
use super::wire::Survivor;
use crate::core::survivor::Facts;

impl Survivor {
    /// `None` when it is gone. Blocks on `/proc` for some microseconds.
    pub fn facts(&self) -> Option<Facts> {
        let process = Process::read(self.pid).filter(|process| process.start_time == self.start_time)?;
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid)).ok()?;
        let ids: Vec<u32> = field(&status, "Uid:")?.split_ascii_whitespace().map_while(|id| id.parse().ok()).collect();
        let [real, _effective, saved, ..] = ids[..] else { return None };
        let own = [geteuid().as_raw(), getuid().as_raw()];
        Some(Facts {
            state: process.state,
            uid: real,
            may_be_signalled: geteuid().is_root() || own.contains(&real) || own.contains(&saved),
            is_kill_pending: ["SigPnd:", "ShdPnd:"].iter().any(|set| field(&status, set).is_some_and(has_sigkill)),
            is_frozen: is_frozen(self.pid),
        })
    }
}

fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim)
}

/// A set of signals is a hexadecimal number, the first signal its lowest bit.
fn has_sigkill(set: &str) -> bool {
    u64::from_str_radix(set, 16).is_ok_and(|set| set >> (libc::SIGKILL - 1) & 1 == 1)
}

/// Whether the freezer of cgroup v1 holds it.
fn is_frozen(pid: u32) -> bool {
    let read = |path: &str| fs::read_to_string(path).ok();
    let state = || {
        let cgroups = read(&format!("/proc/{pid}/cgroup"))?;
        let state = freezer_of(&cgroups, &read("/proc/self/mountinfo")?)?.join("freezer.state");
        fs::read_to_string(state).ok()
    };
    state().is_some_and(|state| matches!(state.trim(), "FROZEN" | "FREEZING"))
}

/// Where the freezer's cgroup of a process is to be seen; `None` on machines without one.
fn freezer_of(cgroups: &str, mountinfo: &str) -> Option<PathBuf> {
    let is_freezer = |list: &str| list.split(',').any(|one| one == "freezer");
    // `6:freezer:/a`
    let path = cgroups.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        parts.next().filter(|controllers| is_freezer(controllers)).and_then(|_| parts.next())
    })?;
    // `37 31 0:34 / /sys/fs/cgroup/freezer rw - cgroup cgroup rw,freezer`
    mountinfo.lines().find_map(|line| {
        let (mount, fs) = line.split_once(" - cgroup ")?;
        let mut fields = mount.split(' ').skip(3);
        let (root, point) = (fields.next()?, fields.next()?);
        let below = PathBuf::from(path).strip_prefix(root).ok()?.to_owned();
        is_freezer(fs.rsplit(' ').next()?).then(|| PathBuf::from(point).join(below))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_freezer_is_found_where_it_is_mounted() {
        let mounts = "38 31 0:41 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n\
                      36 31 0:33 / /sys/fs/cgroup/pids rw,relatime - cgroup cgroup rw,pids\n\
                      37 31 0:34 / /sys/fs/cgroup/freezer rw,relatime shared:3 - cgroup cgroup rw,freezer";
        let found = |cgroups| freezer_of(cgroups, mounts);
        assert_eq!(found("8:pids:/x\n6:freezer:/a/b\n0::/"), Some("/sys/fs/cgroup/freezer/a/b".into()));
        assert_eq!(found("8:pids:/x\n0::/freezer"), None);
        assert_eq!(freezer_of("6:freezer:/a", ""), None);
    }

    #[test]
    fn sets_of_signals() {
        assert!(has_sigkill("0000000000000100") && has_sigkill("ffffffffffffffff"));
        assert!(!has_sigkill("0000000000000080") && !has_sigkill("none"));
    }

    #[test]
    fn this_process_has_facts_and_one_of_its_pid_born_at_another_time_has_none() {
        let me = Process::read(std::process::id()).unwrap();
        let survivor = Survivor::from(me.clone());
        let facts = survivor.facts().unwrap();
        assert_eq!((facts.uid, facts.may_be_signalled, facts.is_kill_pending), (getuid().as_raw(), true, false));
        assert_eq!(Survivor { start_time: me.start_time + 1, ..survivor }.facts(), None);
    }
}
