//! Why a process is still there although everything was done to end it: facts in, a reason out, in words for whoever
//! has to solve it.

use std::fmt;

/// What can be seen of a process that should be gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// As in proc(5), `/proc/pid/stat`.
    pub state: char,
    /// Whom it runs as.
    pub uid: u32,
    /// Whether kill(2) lets the broker signal it.
    pub may_be_signalled: bool,
    /// SIGKILL was sent, and the kernel has not acted on it.
    pub is_kill_pending: bool,
    /// A freezer of cgroup v1 holds it; that of v2 lets SIGKILL pass.
    pub is_frozen: bool,
}

/// The nearest reason that can be told from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// It is not there any more.
    Gone,
    /// Dead, and its parent has not looked.
    Unreaped,
    Foreign {
        uid: u32,
    },
    Frozen,
    /// Uninterruptible sleep.
    Device,
    Dying,
    /// It runs on Windows, where this broker sees no more of it.
    OnWindows,
    /// Nothing keeps it that could be seen.
    Unknown,
}

impl Reason {
    /// `None`: there is no such process.
    pub fn of(facts: Option<Facts>) -> Self {
        match facts {
            None => Self::Gone,
            Some(Facts { state: 'Z' | 'X', .. }) => Self::Unreaped,
            Some(Facts { may_be_signalled: false, uid, .. }) => Self::Foreign { uid },
            Some(Facts { is_frozen: true, .. }) => Self::Frozen,
            Some(Facts { state: 'D', .. }) => Self::Device,
            Some(Facts { is_kill_pending: true, .. }) => Self::Dying,
            Some(_) => Self::Unknown,
        }
    }

    /// One word for programs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Gone => "gone",
            Self::Unreaped => "unreaped",
            Self::Foreign { .. } => "foreign",
            Self::Frozen => "frozen",
            Self::Device => "device",
            Self::Dying => "dying",
            Self::OnWindows => "on_windows",
            Self::Unknown => "unknown",
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gone => f.write_str("gone since; the next attempt will prove it"),
            Self::Unreaped => f.write_str("dead, but its parent has not taken notice of it: end or repair the parent"),
            Self::Foreign { uid } => {
                write!(f, "runs as uid {uid}, which this broker may not signal: end it as that user or as root")
            }
            Self::Frozen => {
                f.write_str("frozen by a cgroup freezer: thaw it, and the SIGKILL that it has takes effect")
            }
            Self::Device => f.write_str("waits for a device or a file system: SIGKILL takes effect when that answers"),
            Self::OnWindows => f.write_str("runs on Windows and did not end there: end it in its Task Manager"),
            Self::Dying => f.write_str("SIGKILL was sent and the kernel is still ending it"),
            Self::Unknown => {
                f.write_str("was not ended yet, for no reason that shows; the next attempt kills it again")
            }
        }
    }
}

/// By what a tree was to be ended that did not end by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Means {
    pub keeper_is_lost: bool,
    pub has_cgroup: bool,
    /// Whether it may have processes on Windows, which are ended there by their marker.
    pub has_windows: bool,
}

impl fmt::Display for Means {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.keeper_is_lost {
            "SIGKILL by the broker to what a lost keeper left it"
        } else {
            "SIGKILL by its keeper to all below it"
        })?;
        f.write_str(if self.has_cgroup { ", and cgroup.kill" } else { "" })?;
        f.write_str(if self.has_windows { "; on Windows, by marker" } else { "" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Facts = Facts { state: 'S', uid: 7, may_be_signalled: true, is_kill_pending: false, is_frozen: false };

    #[track_caller]
    fn check(facts: Option<Facts>, expected: Reason, said: &str) {
        let reason = Reason::of(facts);
        assert_eq!(reason, expected);
        assert!(reason.to_string().contains(said), "{reason}");
    }

    #[test]
    fn the_nearest_reason_is_told() {
        check(None, Reason::Gone, "next attempt");
        check(Some(Facts { state: 'Z', may_be_signalled: false, ..PLAIN }), Reason::Unreaped, "parent");
        let foreign = Facts { may_be_signalled: false, is_frozen: true, uid: 0, ..PLAIN };
        check(Some(foreign), Reason::Foreign { uid: 0 }, "uid 0");
        // A frozen process is shown as one that waits for a device.
        let frozen = Facts { state: 'D', is_frozen: true, is_kill_pending: true, ..PLAIN };
        check(Some(frozen), Reason::Frozen, "thaw");
        check(Some(Facts { is_frozen: false, ..frozen }), Reason::Device, "device");
        check(Some(Facts { is_kill_pending: true, ..PLAIN }), Reason::Dying, "SIGKILL");
        check(Some(PLAIN), Reason::Unknown, "again");
    }

    #[test]
    fn means_name_whoever_kills() {
        let told = |keeper_is_lost, has_cgroup| Means { keeper_is_lost, has_cgroup, has_windows: false }.to_string();
        assert!(told(false, false).contains("by its keeper") && told(true, false).contains("by the broker"));
        assert!(told(false, true).ends_with("cgroup.kill") && !told(false, false).contains("cgroup"));
        let windows = Means { keeper_is_lost: false, has_cgroup: true, has_windows: true };
        assert!(windows.to_string().ends_with("by marker"));
    }
}
