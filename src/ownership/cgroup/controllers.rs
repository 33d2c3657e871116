//! The controllers that limits need, and turning them on for the cgroups of generations.
//!
//! A controller works in a cgroup when the one above has it in `cgroup.subtree_control`, and so on up to the root. The
//! kernel lets no cgroup but the root have processes of its own beside that ("No Internal Process Constraint"). So the
//! broker, which systemd puts into the very cgroup that it delegates, goes into a leaf below first; its keepers are
//! started there and stay there. Not done unless a limit is asked for.
//!
//! `pids` is a threaded controller: above processes the kernel does turn it on, and makes the cgroups below invalid for
//! processes instead ("Threads"). So nothing is turned on before the place is seen empty, and it is looked at after.
//!
//! On whose word: the kernel's Documentation/admin-guide/cgroup-v2.rst; systemd's CGROUP_DELEGATION (`user.delegate`
//! on what it delegates, since 248), systemd.resource-control(5) `Delegate=` and `DelegateSubgroup=` (since 254).

use std::collections::BTreeSet;
use std::ffi::{CStr, CString};
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nix::libc;

use crate::core::limits::TreeLimit;
use crate::ownership::process_table::Process;

/// The name of the leaf that the broker goes into, beside the cgroups of generations.
const LEAF: &str = "broker";
/// Processes in the way that a reason names.
const NAMED_MAX: usize = 5;

/// What the kernel keeps a limit with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Controller {
    Memory,
    Pids,
}

impl Controller {
    pub fn of(limit: TreeLimit) -> Self {
        match limit {
            TreeLimit::Memory { .. } => Self::Memory,
            TreeLimit::Pids { .. } => Self::Pids,
        }
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Pids => "pids",
        }
    }
}

/// Why a controller does not reach the cgroups of generations.
#[derive(Debug, thiserror::Error)]
pub(super) enum NoController {
    #[error(
        "`{path}` has no controller `{}`: it is bound to cgroup v1, or the cgroup above does not pass it on",
        .controller.as_str()
    )]
    Absent { path: PathBuf, controller: Controller },
    #[error("systemd keeps `{path}` for itself; set Delegate=yes in the unit of the broker")]
    NotDelegated { path: PathBuf },
    #[error(
        "the kernel turns on no controllers above processes, and `{path}` has others than the broker: {others}; \
         start the broker in a cgroup of its own, for example as a systemd service"
    )]
    Occupied { path: PathBuf, others: String },
    #[error("write `{path}`: {source}")]
    Refused { path: PathBuf, source: io::Error },
    #[error("with controllers `{path}` became a cgroup for threads: somebody came into it meanwhile")]
    Threaded { path: PathBuf },
}

/// Whether the cgroup itself knows the controller.
pub(super) fn available(base: &Path, controller: Controller) -> Result<(), NoController> {
    let is_there = words(&base.join("cgroup.controllers")).contains(controller.as_str());
    is_there.then_some(()).ok_or_else(|| NoController::Absent { path: base.to_owned(), controller })
}

/// Turns controllers on for what is below `base`, where `home` is. This process leaves `base` for a leaf in `home` if
/// it must, and is back if that was in vain.
pub(super) fn pass_on(base: &Path, home: &Path, controllers: &[Controller]) -> Result<(), NoController> {
    let passed = words(&base.join("cgroup.subtree_control"));
    if controllers.iter().all(|controller| passed.contains(controller.as_str())) {
        return Ok(());
    }
    if is_unit(base) && !is_delegated(base) {
        return Err(NoController::NotDelegated { path: base.to_owned() });
    }
    if is_root(base) {
        return turn_on(base, controllers).map_err(refused(&base.join("cgroup.subtree_control")));
    }
    let others = processes(base)?.into_iter().filter(|pid| *pid != std::process::id());
    let others: Vec<String> = others.take(NAMED_MAX).map(named).collect();
    if !others.is_empty() {
        return Err(NoController::Occupied { path: base.to_owned(), others: others.join(", ") });
    }
    // Not so where systemd has put it into a leaf beside.
    let has_moved = processes(base)?.contains(&std::process::id());
    if has_moved {
        let leaf = home.join(LEAF);
        fs::create_dir_all(&leaf).map_err(refused(&leaf))?;
        enter(&leaf)?;
    }
    let done = turn_on_seen(base, controllers);
    if done.is_err() && has_moved {
        // Failed: where it is does as well.
        let _ = enter(base);
    }
    done.inspect_err(|_| remove_leaf(home))
}

/// Removes the leaf that an earlier broker left, and `home` if that was all. Nobody is thrown out of it.
pub(super) fn remove_leaf(home: &Path) {
    // Failed: it is in use, or was never made.
    let _ = fs::remove_dir(home.join(LEAF));
    let _ = fs::remove_dir(home);
}

/// Turns controllers on for the cgroups below `path`.
pub(super) fn turn_on(path: &Path, controllers: &[Controller]) -> io::Result<()> {
    switch(path, '+', controllers)
}

/// The same, with a look at what became of `path`.
fn turn_on_seen(path: &Path, controllers: &[Controller]) -> Result<(), NoController> {
    turn_on(path, controllers).map_err(refused(&path.join("cgroup.subtree_control")))?;
    if fs::read_to_string(path.join("cgroup.type")).is_ok_and(|kind| kind.trim() == "domain") {
        return Ok(());
    }
    // Failed: then no cgroup below takes processes, and that is told for each generation.
    let _ = switch(path, '-', controllers);
    Err(NoController::Threaded { path: path.to_owned() })
}

fn switch(path: &Path, sign: char, controllers: &[Controller]) -> io::Result<()> {
    let words: Vec<String> = controllers.iter().map(|controller| format!("{sign}{}", controller.as_str())).collect();
    fs::write(path.join("cgroup.subtree_control"), words.join(" "))
}

fn enter(cgroup: &Path) -> Result<(), NoController> {
    let procs = cgroup.join("cgroup.procs");
    // All threads of this process go with it.
    fs::write(&procs, "0").map_err(refused(&procs))
}

/// Zombies are not among them; those of another pid namespace are 0.
fn processes(cgroup: &Path) -> Result<BTreeSet<u32>, NoController> {
    let procs = cgroup.join("cgroup.procs");
    let list = fs::read_to_string(&procs).map_err(refused(&procs))?;
    Ok(list.lines().filter_map(|pid| pid.parse().ok()).collect())
}

fn named(pid: u32) -> String {
    match Process::read(pid) {
        Some(process) => format!("{pid} ({})", process.comm),
        None => pid.to_string(),
    }
}

fn words(path: &Path) -> BTreeSet<String> {
    fs::read_to_string(path).unwrap_or_default().split_whitespace().map(str::to_owned).collect()
}

fn refused(path: &Path) -> impl FnOnce(io::Error) -> NoController {
    let path = path.to_owned();
    move |source| NoController::Refused { path, source }
}

/// Where the cgroups of an installation may be made for a broker that runs in `own`, the best first.
pub(super) fn bases(own: &Path, home_name: &str) -> Vec<PathBuf> {
    let above = own.parent();
    match (above, above.and_then(Path::parent)) {
        // Started from the leaf of a broker before it.
        (Some(home), Some(base)) if home.ends_with(home_name) && own.ends_with(LEAF) => vec![base.to_owned()],
        // A unit whose own cgroup is left empty for this very purpose, by DelegateSubgroup=.
        (Some(unit), _) if is_unit(unit) && !is_unit(own) && is_delegated(unit) && !is_delegated(own) => {
            vec![unit.to_owned(), own.to_owned()]
        }
        _ => vec![own.to_owned()],
    }
}

/// The real root of the hierarchy alone lacks this file; that of a cgroup namespace has it.
fn is_root(cgroup: &Path) -> bool {
    !cgroup.join("cgroup.type").exists()
}

/// Whether systemd made it and may put processes or settings of its own there.
fn is_unit(cgroup: &Path) -> bool {
    cgroup.extension().is_some_and(|kind| kind == "service" || kind == "scope")
}

fn is_delegated(cgroup: &Path) -> bool {
    attribute(cgroup, c"user.delegate").is_some_and(|value| value == b"1")
}

#[expect(unsafe_code, reason = "neither std nor nix reads extended attributes")]
fn attribute(path: &Path, name: &CStr) -> Option<Vec<u8>> {
    let path = CString::new(path.as_os_str().as_bytes()).ok()?;
    let mut value = vec![0; 16];
    // SAFETY: both names end with a zero byte, and the kernel writes at most as many bytes as the buffer has.
    let len = unsafe { libc::getxattr(path.as_ptr(), name.as_ptr(), value.as_mut_ptr().cast(), value.len()) };
    value.truncate(usize::try_from(len).ok()?);
    Some(value)
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    const BOTH: [Controller; 2] = [Controller::Memory, Controller::Pids];

    /// Plain files that look like a cgroup of that name.
    struct Fake {
        dir: TempDir,
        name: &'static str,
    }

    impl Fake {
        fn new(name: &'static str, files: &[(&str, &str)]) -> Self {
            let fake = Self { dir: TempDir::new().unwrap(), name };
            fs::create_dir(fake.base()).unwrap();
            for (file, text) in files {
                fs::write(fake.base().join(file), text).unwrap();
            }
            fake
        }

        fn base(&self) -> PathBuf {
            self.dir.path().join(self.name)
        }

        fn home(&self) -> PathBuf {
            self.base().join("lazy-mcp-0123")
        }

        fn pass_on(&self) -> Result<(), String> {
            let place = format!("{}/", self.dir.path().display());
            pass_on(&self.base(), &self.home(), &BOTH).map_err(|reason| reason.to_string().replace(&place, ""))
        }

        fn passed(&self) -> String {
            fs::read_to_string(self.base().join("cgroup.subtree_control")).unwrap()
        }
    }

    #[test]
    fn above_no_processes_they_are_turned_on() {
        let fake = Fake::new("a", &[("cgroup.procs", ""), ("cgroup.type", "domain\n"), ("cgroup.subtree_control", "")]);
        fake.pass_on().unwrap();
        assert_eq!(fake.passed(), "+memory +pids");
        assert!(!fake.home().exists(), "the broker is elsewhere and stays there");
    }

    #[test]
    fn the_broker_goes_into_a_leaf_first() {
        let own = std::process::id().to_string();
        let fake =
            Fake::new("a", &[("cgroup.procs", &own), ("cgroup.type", "domain\n"), ("cgroup.subtree_control", "")]);
        fake.pass_on().unwrap();
        assert_eq!(fs::read_to_string(fake.home().join("broker/cgroup.procs")).unwrap(), "0");
        assert_eq!(fake.passed(), "+memory +pids");
    }

    #[test]
    fn the_real_root_keeps_its_processes() {
        let fake = Fake::new("a", &[("cgroup.procs", "1\n2\n"), ("cgroup.subtree_control", "cpu")]);
        fake.pass_on().unwrap();
        assert_eq!(fake.passed(), "+memory +pids");
        assert!(!fake.home().exists());
    }

    #[test]
    fn what_is_on_already_is_left_alone() {
        let fake = Fake::new("a.service", &[("cgroup.subtree_control", "cpu memory pids\n")]);
        fake.pass_on().unwrap();
        assert_eq!(fake.passed(), "cpu memory pids\n");
    }

    #[track_caller]
    fn check_refused(name: &'static str, procs: &str, kind: &str, expected: &str) -> Fake {
        let files = [("cgroup.procs", procs), ("cgroup.type", kind), ("cgroup.subtree_control", "")];
        let fake = Fake::new(name, &files);
        assert_eq!(fake.pass_on(), Err(expected.to_owned()));
        fake
    }

    #[test]
    fn who_is_in_the_way_is_named() {
        let procs = format!("{}\n4194999\n0\n", std::process::id());
        let expected = "the kernel turns on no controllers above processes, and `a` has others than the broker: \
                        0, 4194999; start the broker in a cgroup of its own, for example as a systemd service";
        let fake = check_refused("a", &procs, "domain\n", expected);
        assert!(!fake.home().exists() && fake.passed().is_empty(), "nothing was touched");
    }

    #[test]
    fn what_systemd_keeps_is_not_touched() {
        let expected = "systemd keeps `a.service` for itself; set Delegate=yes in the unit of the broker";
        let fake = check_refused("a.service", "", "domain\n", expected);
        assert!(fake.passed().is_empty());
    }

    #[test]
    fn a_cgroup_for_threads_is_undone() {
        let expected = "with controllers `a` became a cgroup for threads: somebody came into it meanwhile";
        let fake = check_refused("a", "", "domain threaded\n", expected);
        assert_eq!(fake.passed(), "-memory -pids");
        assert!(!fake.home().exists());
    }

    #[test]
    fn an_absent_controller_is_named() {
        let fake = Fake::new("a", &[("cgroup.controllers", "hugetlb pids\n")]);
        assert!(available(&fake.base(), Controller::Pids).is_ok());
        let reason = available(&fake.base(), Controller::Memory).unwrap_err().to_string();
        assert!(reason.contains("has no controller `memory`: it is bound to cgroup v1"), "{reason}");
    }

    #[expect(unsafe_code, reason = "neither std nor nix sets extended attributes")]
    fn delegate(path: &Path) -> bool {
        let path = CString::new(path.as_os_str().as_bytes()).unwrap();
        // SAFETY: both names end with a zero byte, and the kernel reads one byte of the value.
        unsafe { libc::setxattr(path.as_ptr(), c"user.delegate".as_ptr(), c"1".as_ptr().cast(), 1, 0) == 0 }
    }

    #[test]
    fn the_leaf_of_a_broker_before_it_is_no_base() {
        let own = Path::new("/sys/fs/cgroup/a.service/lazy-mcp-0123/broker");
        assert_eq!(bases(own, "lazy-mcp-0123"), [Path::new("/sys/fs/cgroup/a.service")]);
        assert_eq!(bases(own, "lazy-mcp-4567"), [own], "of another installation");
        assert_eq!(bases(Path::new("/"), "lazy-mcp-0123"), [Path::new("/")]);
    }

    #[test]
    fn beside_the_subgroup_that_systemd_has_made_for_it() {
        let dir = TempDir::new().unwrap();
        let (unit, bare) = (dir.path().join("a.service"), dir.path().join("b.service"));
        let (leaf, unit_below, other) = (unit.join("main"), unit.join("c.service"), bare.join("main"));
        for path in [&leaf, &unit_below, &other] {
            fs::create_dir_all(path).unwrap();
        }
        if !delegate(&unit) {
            println!("skipped: no extended attributes in the temporary directory");
            return;
        }
        assert_eq!(bases(&leaf, "x"), [unit.clone(), leaf.clone()]);
        assert_eq!(bases(&unit, "x"), [&*unit]);
        assert_eq!(bases(&unit_below, "x"), [&*unit_below], "a unit of its own, below a delegated manager");
        assert_eq!(bases(&other, "x"), [&*other]);
        assert!(delegate(&leaf));
        assert_eq!(bases(&leaf, "x"), [&*leaf]);
    }
}
