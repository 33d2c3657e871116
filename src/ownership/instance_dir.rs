//! The private directory of one generation: its TMPDIR, and whatever its command line puts there.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag};
use nix::sys::stat::{Mode, fchmod};
use nix::unistd::{UnlinkatFlags, unlinkat};

/// Below the state directory.
const PARENT: &str = "instances";
/// Bytes of a backend's or an instance's name; the three parts have to fit into a file name (255).
const PART_BYTES_MAX: usize = 100;
/// A browser profile is about 10 deep, a `node_modules` about 30; each level holds a descriptor while it is emptied.
const DEPTH_MAX: usize = 128;
/// Files and directories that one removal takes.
const ENTRIES_LEN_MAX: usize = 1_000_000;

/// An existing directory that nobody but this user can enter. It is not removed on drop: the tree may still use it.
#[derive(Debug)]
pub struct InstanceDir {
    path: PathBuf,
}

/// Why a directory of a generation could not be made or removed.
#[derive(Debug, thiserror::Error)]
pub enum InstanceDirError {
    #[error("name an instance directory after `{part}`: use 1 to 100 letters, digits, `-`, `_`, `.`, no `.` first")]
    Name { part: String },
    #[error("make instance directory `{path}`: {source}")]
    Create { path: PathBuf, source: io::Error },
    #[error("remove instance directory `{path}`: {source}; remove it by hand")]
    Remove { path: PathBuf, source: io::Error },
}

impl InstanceDir {
    /// Makes `<state_dir>/instances/<backend>-<instance>-<generation>` with mode 0700, empty: whatever has that name is
    /// older than the counter of generations and is removed. Blocks on the file system.
    ///
    /// # Errors
    /// A name that is none, or what the file system says.
    pub fn create(state_dir: &Path, backend: &str, instance: &str, generation: u64) -> Result<Self, InstanceDirError> {
        let path = path_of(state_dir, backend, instance, generation)?;
        let make = || {
            DirBuilder::new().recursive(true).mode(0o700).create(state_dir.join(PARENT))?;
            let make = || DirBuilder::new().mode(0o700).create(&path);
            match make() {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    remove_all(&path)?;
                    make()
                }
                made => made,
            }
        };
        match make() {
            Ok(()) => Ok(Self { path }),
            Err(source) => Err(InstanceDirError::Create { path, source }),
        }
    }

    /// The directory of a generation of an earlier broker, if it is still there.
    pub(super) fn find(state_dir: &Path, backend: &str, instance: &str, generation: u64) -> Option<Self> {
        let path = path_of(state_dir, backend, instance, generation).ok()?;
        path.symlink_metadata().is_ok().then_some(Self { path })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Removes the directory and all below it, and follows no link out of it. To be called after the proof that the
    /// tree is empty. Blocks on the file system; a browser profile takes some milliseconds.
    ///
    /// # Errors
    /// What the file system says; deeper than 128 levels or more than a million entries.
    pub fn remove(self) -> Result<(), InstanceDirError> {
        remove_all(&self.path).map_err(|source| InstanceDirError::Remove { path: self.path, source })
    }
}

fn path_of(state_dir: &Path, backend: &str, instance: &str, generation: u64) -> Result<PathBuf, InstanceDirError> {
    for part in [backend, instance] {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
        if part.is_empty() || part.len() > PART_BYTES_MAX || part.starts_with('.') || !part.bytes().all(is_plain) {
            return Err(InstanceDirError::Name { part: part.chars().take(PART_BYTES_MAX).collect() });
        }
    }
    Ok(state_dir.join(PARENT).join(format!("{backend}-{instance}-{generation}")))
}

fn remove_all(path: &Path) -> io::Result<()> {
    let mut entries_left = ENTRIES_LEN_MAX;
    let dir = match Dir::openat(AT_FDCWD, path, dir_flags(), Mode::empty()) {
        Ok(dir) => dir,
        Err(Errno::ENOENT) => return Ok(()),
        Err(errno) => return Err(errno.into()),
    };
    empty(dir, DEPTH_MAX, &mut entries_left)?;
    Ok(unlinkat(AT_FDCWD, path, UnlinkatFlags::RemoveDir)?)
}

/// Works from descriptor to descriptor, so that a directory that becomes a link meanwhile leads nowhere.
fn empty(mut dir: Dir, depth_left: usize, entries_left: &mut usize) -> io::Result<()> {
    // Caches are often written read-only.
    let _ = fchmod(&dir, Mode::S_IRWXU);
    let names: Vec<_> = dir
        .iter()
        .map(|entry| entry.map(|entry| entry.file_name().to_owned()))
        .filter(|name| !name.as_deref().is_ok_and(|name| matches!(name.to_bytes(), b"." | b"..")))
        .collect::<Result<_, _>>()?;
    for name in names {
        *entries_left =
            entries_left.checked_sub(1).ok_or_else(|| io::Error::other(format!("over {ENTRIES_LEN_MAX} entries")))?;
        let mut removed = unlinkat(&dir, name.as_c_str(), UnlinkatFlags::NoRemoveDir);
        if removed == Err(Errno::EISDIR) {
            let depth_left =
                depth_left.checked_sub(1).ok_or_else(|| io::Error::other(format!("deeper than {DEPTH_MAX}")))?;
            empty(Dir::openat(&dir, name.as_c_str(), dir_flags(), Mode::empty())?, depth_left, entries_left)?;
            removed = unlinkat(&dir, name.as_c_str(), UnlinkatFlags::RemoveDir);
        }
        match removed {
            Ok(()) | Err(Errno::ENOENT) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

fn dir_flags() -> OFlag {
    OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn is_private_and_goes_with_all_in_it_but_nothing_outside() {
        let state = tempfile::tempdir().unwrap();
        let outside = state.path().join("outside");
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("precious"), "").unwrap();
        let dir = InstanceDir::create(state.path(), "playwright", "0a1b", 3).unwrap();
        let path = dir.path().to_owned();
        assert_eq!(path, state.path().join("instances/playwright-0a1b-3"));
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o700);
        fs::create_dir_all(path.join("profile/cache/deep")).unwrap();
        fs::write(path.join("profile/cache/deep/file"), "").unwrap();
        fs::set_permissions(path.join("profile/cache/deep"), fs::Permissions::from_mode(0o500)).unwrap();
        symlink(&outside, path.join("profile/link")).unwrap();
        symlink("/nowhere", path.join("SingletonLock")).unwrap();
        dir.remove().unwrap();
        assert!(!path.exists());
        assert!(outside.join("precious").exists());
    }

    #[test]
    fn a_link_in_its_place_is_not_followed() {
        let state = tempfile::tempdir().unwrap();
        let outside = tempfile::tempdir().unwrap();
        fs::write(outside.path().join("precious"), "").unwrap();
        let dir = InstanceDir::create(state.path(), "b", "i", 1).unwrap();
        fs::remove_dir(dir.path()).unwrap();
        symlink(outside.path(), dir.path()).unwrap();
        assert!(matches!(dir.remove(), Err(InstanceDirError::Remove { .. })));
        assert!(outside.path().join("precious").exists());
    }

    #[test]
    fn starts_empty_and_is_removed_once() {
        let state = tempfile::tempdir().unwrap();
        let old = InstanceDir::create(state.path(), "b", "i", 1).unwrap();
        fs::write(old.path().join("stale"), "").unwrap();
        let new = InstanceDir::create(state.path(), "b", "i", 1).unwrap();
        assert_eq!(fs::read_dir(new.path()).unwrap().count(), 0);
        new.remove().unwrap();
        old.remove().unwrap();
    }

    #[test]
    fn too_deep_is_refused_and_says_so() {
        let state = tempfile::tempdir().unwrap();
        let dir = InstanceDir::create(state.path(), "b", "i", 1).unwrap();
        fs::create_dir_all(dir.path().join("d/".repeat(DEPTH_MAX + 1))).unwrap();
        let error = dir.remove().unwrap_err().to_string();
        assert!(error.contains("deeper than 128") && error.contains("b-i-1"), "{error}");
    }

    #[track_caller]
    fn refuses(part: &str) {
        let state = tempfile::tempdir().unwrap();
        assert!(matches!(InstanceDir::create(state.path(), part, "i", 1), Err(InstanceDirError::Name { .. })));
        assert!(matches!(InstanceDir::create(state.path(), "b", part, 1), Err(InstanceDirError::Name { .. })));
        assert_eq!(fs::read_dir(state.path()).unwrap().count(), 0);
    }

    #[test]
    fn names_that_lead_elsewhere_are_refused() {
        for part in ["", "..", ".", "../x", "a/b", "a\0b", "a b", &"x".repeat(PART_BYTES_MAX + 1)] {
            refuses(part);
        }
    }
}
