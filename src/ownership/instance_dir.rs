//! The private directory of one generation: its TMPDIR, and whatever its command line puts there.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag};
use nix::sys::stat::{Mode, fchmod};
use nix::unistd::{UnlinkatFlags, geteuid, unlinkat};

/// Bytes of an instance's name; with the generation it has to fit into a file name (255).
const PART_BYTES_MAX: usize = 100;
/// Longest temporary directory that instance directories are put into, in bytes.
///
/// Chromium makes a Unix socket in its TMPDIR and aborts when the path is too long: 107 bytes are allowed (unix(7)), its
/// own part is 45, ours (`/lazy-mcp-01234567/0123456789ab-123456`) is 38.
const TEMP_BYTES_MAX: usize = 107 - 45 - 38;
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
    /// Makes `<parent>/<instance>-<generation>` with mode 0700, empty: whatever has that name is older than the counter
    /// of generations and is removed. `parent` is made too if need be. Blocks on the file system.
    ///
    /// # Errors
    /// A name that is none, a parent that belongs to somebody else, or what the file system says.
    pub fn create(parent: &Path, instance: &str, generation: u64) -> Result<Self, InstanceDirError> {
        let path = path_of(parent, instance, generation)?;
        let make_once = || {
            make_parent(parent)?;
            remove_all(&kept_path_of(&path))?;
            let make = || DirBuilder::new().mode(0o700).create(&path);
            match make() {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    remove_all(&path)?;
                    make()
                }
                made => made,
            }
        };
        let make = || match make_once() {
            // The last directory beside this one was removed in this moment, and the parent with it.
            Err(error) if error.kind() == io::ErrorKind::NotFound => make_once(),
            made => made,
        };
        match make() {
            Ok(()) => Ok(Self { path }),
            Err(source) => Err(InstanceDirError::Create { path, source }),
        }
    }

    /// The directory of a generation of an earlier broker, if it is still there.
    pub(super) fn find(parent: &Path, instance: &str, generation: u64) -> Option<Self> {
        let path = path_of(parent, instance, generation).ok()?;
        let is_there = |path: &Path| path.symlink_metadata().is_ok();
        (is_there(&path) || is_there(&kept_path_of(&path))).then_some(Self { path })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The directory beside it for what the broker keeps for the same generation. Made by whoever needs it, removed with
    /// this one.
    pub fn kept_path(&self) -> PathBuf {
        kept_path_of(&self.path)
    }

    /// Removes the directory, what was kept beside it, and all below them, and follows no link out of them; the parent
    /// too when it is empty then. To be called after the proof that the tree is empty. Blocks on the file system; a browser profile takes some milliseconds.
    ///
    /// # Errors
    /// What the file system says; deeper than 128 levels or more than a million entries.
    pub fn remove(self) -> Result<(), InstanceDirError> {
        let (kept, own) = (remove_all(&self.kept_path()), remove_all(&self.path));
        own.and(kept).map_err(|source| InstanceDirError::Remove { path: self.path.clone(), source })?;
        if let Some(parent) = self.path.parent() {
            // Not empty as a rule: then others need it.
            let _ = std::fs::remove_dir(parent);
        }
        Ok(())
    }
}

/// Where the instance directories of an installation go: short, and below the temporary directory, because they are
/// the TMPDIR of their servers.
pub fn parent(installation: &str) -> PathBuf {
    let temp = std::env::temp_dir();
    let is_short = temp.is_absolute() && temp.as_os_str().len() <= TEMP_BYTES_MAX;
    let temp = if is_short { temp } else { PathBuf::from("/tmp") };
    temp.join(format!("lazy-mcp-{}", installation.get(..8).unwrap_or(installation)))
}

/// The temporary directory is everybody's, so what is there already must be ours alone.
fn make_parent(parent: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(parent) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        made => return made,
    }
    let meta = parent.symlink_metadata()?;
    if meta.is_dir() && meta.uid() == geteuid().as_raw() && meta.mode() & 0o022 == 0 {
        return Ok(());
    }
    Err(io::Error::new(
        io::ErrorKind::PermissionDenied,
        format!("`{}` is not a directory of ours alone", parent.display()),
    ))
}

fn path_of(parent: &Path, instance: &str, generation: u64) -> Result<PathBuf, InstanceDirError> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    let is_name = (1..=PART_BYTES_MAX).contains(&instance.len()) && !instance.starts_with('.');
    if !is_name || !instance.bytes().all(is_plain) {
        return Err(InstanceDirError::Name { part: instance.chars().take(PART_BYTES_MAX).collect() });
    }
    Ok(parent.join(format!("{instance}-{generation}")))
}

/// No instance has this name, since theirs end with the number of a generation.
fn kept_path_of(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".kept");
    name.into()
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
        let dir = InstanceDir::create(state.path(), "0a1b", 3).unwrap();
        let path = dir.path().to_owned();
        assert_eq!(path, state.path().join("0a1b-3"));
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
    fn leaves_room_for_the_sockets_of_a_browser() {
        let own = "/org.chromium.Chromium.XXXXXX/SingletonSocket".len();
        let parent = parent("0123456789abcdef");
        let longest = path_of(&parent, "0123456789ab", 999_999).unwrap();
        assert!(longest.as_os_str().len() + own <= 107, "{}", longest.display());
    }

    #[test]
    fn a_parent_of_somebody_else_is_refused() {
        let temp = tempfile::tempdir().unwrap();
        let open = temp.path().join("open");
        fs::create_dir(&open).unwrap();
        fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).unwrap();
        let link = temp.path().join("link");
        symlink(temp.path(), &link).unwrap();
        for parent in [open, link] {
            let error = InstanceDir::create(&parent, "i", 1).unwrap_err();
            assert!(matches!(error, InstanceDirError::Create { .. }), "{error}");
        }
    }

    #[test]
    fn a_link_in_its_place_is_not_followed() {
        let state = tempfile::tempdir().unwrap();
        let outside = tempfile::tempdir().unwrap();
        fs::write(outside.path().join("precious"), "").unwrap();
        let dir = InstanceDir::create(state.path(), "i", 1).unwrap();
        fs::remove_dir(dir.path()).unwrap();
        symlink(outside.path(), dir.path()).unwrap();
        assert!(matches!(dir.remove(), Err(InstanceDirError::Remove { .. })));
        assert!(outside.path().join("precious").exists());
    }

    #[test]
    fn starts_empty_and_is_removed_once() {
        let state = tempfile::tempdir().unwrap();
        let old = InstanceDir::create(state.path(), "i", 1).unwrap();
        fs::write(old.path().join("stale"), "").unwrap();
        let new = InstanceDir::create(state.path(), "i", 1).unwrap();
        assert_eq!(fs::read_dir(new.path()).unwrap().count(), 0);
        new.remove().unwrap();
        old.remove().unwrap();
    }

    #[test]
    fn too_deep_is_refused_and_says_so() {
        let state = tempfile::tempdir().unwrap();
        let dir = InstanceDir::create(state.path(), "i", 1).unwrap();
        fs::create_dir_all(dir.path().join("d/".repeat(DEPTH_MAX + 1))).unwrap();
        let error = dir.remove().unwrap_err().to_string();
        assert!(error.contains("deeper than 128") && error.contains("i-1"), "{error}");
    }

    #[track_caller]
    fn refuses(part: &str) {
        let state = tempfile::tempdir().unwrap();
        assert!(matches!(InstanceDir::create(state.path(), part, 1), Err(InstanceDirError::Name { .. })));
        assert_eq!(fs::read_dir(state.path()).unwrap().count(), 0);
    }

    #[test]
    fn names_that_lead_elsewhere_are_refused() {
        for part in ["", "..", ".", "../x", "a/b", "a\0b", "a b", &"x".repeat(PART_BYTES_MAX + 1)] {
            refuses(part);
        }
    }
}
