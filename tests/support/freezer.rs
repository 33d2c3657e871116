//! Processes that SIGKILL does not end: the nearest to one that hangs in a device.

use std::path::PathBuf;
use std::time::Duration;

use super::wait;

const SOON: Duration = Duration::from_secs(10);

/// A process in a freezer of cgroup v1, whose signals wait until it is thawed. Thawed on drop.
#[derive(Debug)]
pub struct Frozen(PathBuf);

impl Frozen {
    /// `None`, and a line that says so, where the machine has no such freezer or does not let us use it.
    #[track_caller]
    pub fn freeze(pid: u64) -> Option<Self> {
        let path = PathBuf::from(format!("/sys/fs/cgroup/freezer/lazy-mcp-test-{pid}"));
        if let Err(reason) = std::fs::create_dir(&path) {
            eprintln!("skipped: no freezer to hang a process with: {reason}");
            return None;
        }
        let frozen = Self(path);
        frozen.write("cgroup.procs", &pid.to_string());
        frozen.write("freezer.state", "FROZEN");
        wait::until_true("the process to be frozen", SOON, || frozen.state() == "FROZEN");
        Some(frozen)
    }

    pub fn thaw(self) {
        drop(self);
    }

    fn state(&self) -> String {
        std::fs::read_to_string(self.0.join("freezer.state")).unwrap_or_default().trim().to_owned()
    }

    #[track_caller]
    fn write(&self, file: &str, text: &str) {
        std::fs::write(self.0.join(file), text).expect("the cgroup was just made");
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        let _ = std::fs::write(self.0.join("freezer.state"), "THAWED");
        wait::until_true("the freezer to be removed", SOON, || std::fs::remove_dir(&self.0).is_ok());
    }
}
