//! Where cgroups of generations can be made: below the cgroup that the broker runs in.

use std::fs::{self, OpenOptions};
use std::io;
use std::path::{Component, Path, PathBuf};

use super::Cgroup;
use super::controllers::{Controller, available, bases, pass_on, remove_leaf};
use crate::core::limits::TreeLimits;

/// What a limit is tried with; nobody is ever under it.
const TRIED: TreeLimits = TreeLimits { memory_max_mb: Some(64), pids_max: Some(64) };

/// The place for the cgroups of one installation; one was made there and removed again to see that it can be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cgroups {
    home: PathBuf,
    /// Those that were asked for and work.
    controllers: Vec<Controller>,
    /// Those that were asked for and do not, and why.
    missing: Vec<(Controller, String)>,
}

/// Why the keeper is the only owner.
#[derive(Debug, thiserror::Error)]
pub enum NoCgroups {
    #[error("no cgroup2 file system is mounted")]
    NoMount,
    #[error("the cgroup of this process is below no cgroup2 mount that it can see")]
    OutOfSight,
    #[error("not writable: `{path}`: {source}; run under a systemd user service with Delegate=yes")]
    NotWritable { path: PathBuf, source: io::Error },
    #[error("the cgroup of this process is threaded, so it can hold no other processes")]
    Threaded,
    #[error("the kernel has no cgroup.kill, which Linux has since 5.14")]
    NoKill,
    #[error("read `{path}`: {source}")]
    Unreadable { path: PathBuf, source: io::Error },
}

impl Cgroups {
    /// Finds the place, and tries it. Blocks on the kernel for some milliseconds.
    ///
    /// # Errors
    /// Nothing can be made there, and why.
    pub fn find(installation: &str) -> Result<Self, NoCgroups> {
        Self::find_limiting(installation, &[])
    }

    /// The same, with what it takes to limit trees. For that this process may have to go into a cgroup below its own,
    /// so it is done before anything is started. What cannot be had is no error: [`Self::why_unlimited`] tells.
    ///
    /// # Errors
    /// As for [`find`](Self::find).
    pub fn find_limiting(installation: &str, wanted: &[Controller]) -> Result<Self, NoCgroups> {
        let mounts = read("/proc/self/mountinfo")?;
        let own = own_cgroup(&read("/proc/self/cgroup")?).ok_or(NoCgroups::NoMount)?;
        let mounts: Vec<Mount> = mounts.lines().filter_map(Mount::parse).collect();
        if mounts.is_empty() {
            return Err(NoCgroups::NoMount);
        }
        let seen = mounts.iter().filter_map(|mount| mount.path_of(&own)).find(|path| path.is_dir());
        let own = seen.ok_or(NoCgroups::OutOfSight)?;
        let name = home_name(installation);
        let mut refusal = NoCgroups::OutOfSight;
        for base in bases(&own, &name) {
            let mut place = Self { home: base.join(&name), controllers: Vec::new(), missing: Vec::new() };
            match place.probe(&base) {
                Ok(()) => {
                    place.reach_for(&base, wanted);
                    return Ok(place);
                }
                Err(reason) => refusal = reason,
            }
        }
        Err(refusal)
    }

    /// The cgroup of a generation, which need not exist.
    pub fn of(&self, instance: &str, generation: u64) -> Cgroup {
        Cgroup::at(self.home.join(group_name(instance, generation)))
    }

    /// Controllers that work in the cgroups of generations.
    pub fn controllers(&self) -> &[Controller] {
        &self.controllers
    }

    /// Those of the limits that can be had here.
    #[must_use]
    pub fn attainable(&self, limits: TreeLimits) -> TreeLimits {
        limits.only(|limit| self.controllers.contains(&Controller::of(limit)))
    }

    /// Why not all of the limits can be had here.
    pub fn why_unlimited(&self, limits: TreeLimits) -> Option<String> {
        let reason = |limit| {
            let needed = Controller::of(limit);
            let known = self.missing.iter().find(|(controller, _)| *controller == needed);
            match known {
                Some((_, reason)) => Some(reason.clone()),
                None if self.controllers.contains(&needed) => None,
                None => Some(format!(
                    "no backend had a limit that needs the controller `{}` when the broker started; restart it",
                    needed.as_str()
                )),
            }
        };
        let mut reasons: Vec<String> = limits.each().filter_map(reason).collect();
        reasons.dedup();
        (!reasons.is_empty()).then(|| reasons.join("; "))
    }

    /// Gets the controllers to where generations are, and tries each.
    fn reach_for(&mut self, base: &Path, wanted: &[Controller]) {
        let mut present = Vec::new();
        for controller in wanted {
            match available(base, *controller) {
                Ok(()) => present.push(*controller),
                Err(reason) => self.missing.push((*controller, reason.to_string())),
            }
        }
        if present.is_empty() {
            remove_leaf(&self.home);
        } else if let Err(reason) = pass_on(base, &self.home, &present) {
            let reason = reason.to_string();
            self.missing.extend(present.into_iter().map(|controller| (controller, reason.clone())));
        } else {
            for controller in present {
                match self.try_limit(controller) {
                    None => self.controllers.push(controller),
                    Some(reason) => self.missing.push((controller, reason)),
                }
            }
        }
    }

    /// Sets a limit where nobody is; why that did not succeed.
    fn try_limit(&self, controller: Controller) -> Option<String> {
        let cgroup = self.probed().limited(TRIED.only(|limit| Controller::of(limit) == controller));
        let reason = match cgroup.create() {
            Ok(_) => cgroup.limit().1,
            Err(error) => Some(format!("make `{}`: {error}", cgroup.path().display())),
        };
        // Failed: it is empty and in nobody's way, and the next broker has another.
        let _ = cgroup.remove();
        reason
    }

    fn probed(&self) -> Cgroup {
        Cgroup::at(self.home.join(format!("probe-{}", std::process::id())))
    }

    /// Makes a cgroup and removes it. Who moves a process needs the right to write in the cgroup above both as well.
    fn probe(&self, own: &Path) -> Result<(), NoCgroups> {
        let cgroup = self.probed();
        let not_writable = |path: &Path| {
            let path = path.to_owned();
            move |source| NoCgroups::NotWritable { path, source }
        };
        let tried = || {
            cgroup.create().map_err(not_writable(own))?;
            let above = own.join("cgroup.procs");
            OpenOptions::new().write(true).open(&above).map_err(not_writable(&above))?;
            if !cgroup.path().join("cgroup.kill").exists() {
                return Err(NoCgroups::NoKill);
            }
            match fs::read_to_string(cgroup.path().join("cgroup.type")) {
                Ok(kind) if kind.trim() != "domain" => Err(NoCgroups::Threaded),
                _ => Ok(()),
            }
        };
        let tried = tried();
        let removed = cgroup.remove().map_err(not_writable(cgroup.path()));
        tried.and(removed)
    }
}

/// The directory of all cgroups of an installation.
pub(super) fn home_name(installation: &str) -> String {
    format!("lazy-mcp-{}", installation.get(..8).unwrap_or(installation))
}

pub(super) fn group_name(instance: &str, generation: u64) -> String {
    format!("{instance}-{generation}")
}

fn read(path: &str) -> Result<String, NoCgroups> {
    fs::read_to_string(path).map_err(|source| NoCgroups::Unreadable { path: path.into(), source })
}

/// `0::/user.slice/…` is the line of the second version.
fn own_cgroup(lines: &str) -> Option<PathBuf> {
    lines.lines().find_map(|line| line.strip_prefix("0::")).map(PathBuf::from)
}

/// Where a part of the hierarchy is to be seen.
#[derive(Debug, PartialEq, Eq)]
struct Mount {
    /// The cgroup that is at the mount point.
    root: PathBuf,
    point: PathBuf,
}

impl Mount {
    /// `38 31 0:41 / /sys/fs/cgroup rw,relatime shared:9 - cgroup2 cgroup2 rw`; `None` for other file systems.
    fn parse(line: &str) -> Option<Self> {
        let (mount, fs) = line.split_once(" - ")?;
        if fs.split(' ').next()? != "cgroup2" {
            return None;
        }
        let mut fields = mount.split(' ').skip(3);
        Some(Self { root: unescape(fields.next()?).into(), point: unescape(fields.next()?).into() })
    }

    fn path_of(&self, cgroup: &Path) -> Option<PathBuf> {
        let below = cgroup.strip_prefix(&self.root).ok()?;
        // Outside of its cgroup namespace a process is shown as `/../…`.
        let is_plain = below.components().all(|part| matches!(part, Component::Normal(_)));
        is_plain.then(|| self.point.components().chain(below.components()).collect())
    }
}

/// Blanks in paths are octal there.
fn unescape(path: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .iter()
        .fold(path.to_owned(), |path, (octal, plain)| path.replace(octal, plain))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(mountinfo: &str, cgroup: &str, expected: Option<&str>) {
        let own = own_cgroup(cgroup).expect("a line of the second version");
        let found = mountinfo.lines().filter_map(Mount::parse).find_map(|mount| mount.path_of(&own));
        assert_eq!(found.as_deref(), expected.map(Path::new), "{mountinfo}");
    }

    #[test]
    fn the_place_is_found_wherever_it_is_mounted() {
        let unified = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate";
        check(unified, "0::/user.slice/a.service", Some("/sys/fs/cgroup/user.slice/a.service"));
        check(unified, "0::/", Some("/sys/fs/cgroup"));
        let hybrid = "37 31 0:40 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd\n\
                      38 31 0:41 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw";
        check(hybrid, "1:name=systemd:/x\n0::/a", Some("/sys/fs/cgroup/unified/a"));
        check("38 31 0:41 / /mnt/my\\040cgroups rw - cgroup2 cgroup2 rw", "0::/a", Some("/mnt/my cgroups/a"));
    }

    #[test]
    fn only_what_the_mount_shows_is_found() {
        let bound = "38 31 0:41 /docker/7 /sys/fs/cgroup ro - cgroup2 cgroup rw";
        check(bound, "0::/docker/7/a", Some("/sys/fs/cgroup/a"));
        check(bound, "0::/docker/8", None);
        let namespaced = "38 31 0:41 / /sys/fs/cgroup rw - cgroup2 cgroup rw";
        check(namespaced, "0::/../outside", None);
        check("31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw", "0::/", None);
        check("", "0::/", None);
    }
}
