//! What was taken out of a generation's results because it was too large: files in a directory beside the generation's
//! own, which go with it.
//!
//! Beside it and not in it, because that one is the server's TMPDIR, which it may list, empty or fill with names of its
//! own. Says neither what is kept nor who may read it.

use std::collections::VecDeque;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use nix::fcntl::OFlag;

use super::InstanceDir;

/// Files kept for one generation. The oldest goes when there are more.
pub const FILES_MAX: usize = 64;
/// Bytes kept for one generation: 256 MiB. The oldest files go when there are more.
pub const BYTES_MAX: u64 = 256 << 20;

/// The files kept for one generation. All but [`Self::usage`] block on the file system.
#[derive(Debug)]
pub struct KeptFiles {
    dir: PathBuf,
    state: Mutex<State>,
    /// The same numbers as in `state`, for those who must not wait for a disk.
    files: AtomicU64,
    bytes: AtomicU64,
    evicted: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    /// The oldest first.
    files: VecDeque<KeptFile>,
    bytes: u64,
    /// How many were ever kept.
    count: u64,
    /// Set when the generation is gone: what would be written now would stay for ever.
    is_closed: bool,
}

/// One file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptFile {
    /// Its name in the directory: 128 random bits in hex, and an extension.
    pub key: String,
    /// What people call it, such as `image-3.png`.
    pub name: String,
    pub mime_type: String,
    pub size: u64,
}

/// How much is kept, and how many files had to go for others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    pub files: u64,
    pub bytes: u64,
    pub evicted: u64,
}

/// Why something could not be kept.
#[derive(Debug, thiserror::Error)]
pub enum KeepError {
    #[error("keep a file for a generation that has ended")]
    Closed,
    #[error("keep a file of {size} bytes: the limit is {BYTES_MAX}")]
    TooLarge { size: u64 },
    #[error("keep a file in `{dir}`: {source}")]
    Write { dir: PathBuf, source: io::Error },
}

impl KeptFiles {
    /// Makes nothing yet: the directory is made for the first file.
    pub fn beside(dir: &InstanceDir) -> Self {
        Self {
            dir: dir.kept_path(),
            state: Mutex::default(),
            files: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            evicted: AtomicU64::new(0),
        }
    }

    /// Keeps `size` bytes that `write` writes, with mode 0600. `kind` begins its name: `image`. Files that are kept at
    /// the same time wait for each other, so that the bounds hold on the disk too.
    ///
    /// # Errors
    /// Nothing is left of it then, but older files may have gone.
    pub fn keep(
        &self,
        kind: &str,
        mime_type: &str,
        size: u64,
        write: impl FnOnce(&mut File) -> io::Result<()>,
    ) -> Result<KeptFile, KeepError> {
        if size > BYTES_MAX {
            return Err(KeepError::TooLarge { size });
        }
        let mut state = self.lock();
        if state.is_closed {
            return Err(KeepError::Closed);
        }
        let failed = |source| KeepError::Write { dir: self.dir.clone(), source };
        while state.files.len() >= FILES_MAX || state.bytes + size > BYTES_MAX {
            self.evict(&mut state).map_err(failed)?;
        }
        let mut random = [0; 16];
        getrandom::fill(&mut random).map_err(|e| failed(io::Error::other(e)))?;
        let extension = extension(mime_type);
        state.count += 1;
        let file = KeptFile {
            key: format!("{:032x}.{extension}", u128::from_be_bytes(random)),
            name: format!("{kind}-{}.{extension}", state.count),
            mime_type: mime_type.to_owned(),
            size,
        };
        self.write(&file, write).map_err(failed)?;
        state.bytes += size;
        state.files.push_back(file.clone());
        self.publish(&state);
        Ok(file)
    }

    /// The oldest first.
    pub fn list(&self) -> Vec<KeptFile> {
        self.lock().files.iter().cloned().collect()
    }

    /// `None` if there is none of this key. It can be read to its end though it goes meanwhile.
    pub fn open(&self, key: &str) -> Option<io::Result<(KeptFile, File)>> {
        let state = self.lock();
        let file = state.files.iter().find(|file| file.key == key)?;
        // The server runs as the same user: what it may have put in the file's place is not followed.
        let opened = OpenOptions::new().read(true).custom_flags(OFlag::O_NOFOLLOW.bits()).open(self.path(file));
        Some(opened.map(|opened| (file.clone(), opened)))
    }

    /// Nothing is kept from now on, and nothing found. Waits for what is being written. To be called before the
    /// directory is removed.
    pub fn close(&self) {
        let mut state = self.lock();
        *state = State { is_closed: true, count: state.count, ..State::default() };
        self.publish(&state);
    }

    pub fn usage(&self) -> Usage {
        let read = |number: &AtomicU64| number.load(Ordering::Relaxed);
        Usage { files: read(&self.files), bytes: read(&self.bytes), evicted: read(&self.evicted) }
    }

    fn write(&self, file: &KeptFile, write: impl FnOnce(&mut File) -> io::Result<()>) -> io::Result<()> {
        match DirBuilder::new().mode(0o700).create(&self.dir) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        let path = self.path(file);
        let mut opened = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        let written = write(&mut opened);
        if written.is_err() {
            // If even that fails, it goes with the directory.
            let _ = fs::remove_file(&path);
        }
        written
    }

    fn evict(&self, state: &mut State) -> io::Result<()> {
        let Some(oldest) = state.files.front() else { return Err(io::ErrorKind::StorageFull.into()) };
        match fs::remove_file(self.path(oldest)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        state.bytes -= oldest.size;
        state.files.pop_front();
        self.evicted.fetch_add(1, Ordering::Relaxed);
        self.publish(state);
        Ok(())
    }

    fn publish(&self, state: &State) {
        self.files.store(state.files.len() as u64, Ordering::Relaxed);
        self.bytes.store(state.bytes, Ordering::Relaxed);
    }

    fn path(&self, file: &KeptFile) -> PathBuf {
        self.dir.join(&file.key)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// From a list of ours: nothing that a server says becomes part of a path.
fn extension(mime_type: &str) -> &'static str {
    match mime_type.to_ascii_lowercase().as_str() {
        "image/png" => "png",
        "image/jpeg" | "image/jpg" => "jpg",
        "image/webp" => "webp",
        "image/gif" => "gif",
        "image/svg+xml" => "svg",
        "image/avif" => "avif",
        "image/bmp" => "bmp",
        "audio/wav" | "audio/x-wav" | "audio/wave" => "wav",
        "audio/mpeg" | "audio/mp3" => "mp3",
        "audio/ogg" => "ogg",
        "audio/webm" => "webm",
        "audio/mp4" => "m4a",
        "audio/flac" => "flac",
        _ => "bin",
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    fn place() -> (tempfile::TempDir, InstanceDir, KeptFiles) {
        let temp = tempfile::tempdir().unwrap();
        let dir = InstanceDir::create(temp.path(), "0a1b", 3).unwrap();
        let kept = KeptFiles::beside(&dir);
        (temp, dir, kept)
    }

    fn keep(kept: &KeptFiles, bytes: &[u8]) -> Result<KeptFile, KeepError> {
        kept.keep("image", "image/png", bytes.len() as u64, |file| file.write_all(bytes))
    }

    fn read(kept: &KeptFiles, key: &str) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        kept.open(key)?.ok()?.1.read_to_end(&mut bytes).ok()?;
        Some(bytes)
    }

    #[test]
    fn what_is_kept_is_found_and_goes_with_the_generation() {
        let (temp, dir, kept) = place();
        assert!(!dir.kept_path().exists(), "made when it is needed");
        let (first, second) = (keep(&kept, b"one").unwrap(), keep(&kept, b"two").unwrap());
        assert_eq!((&*first.name, &*second.name, first.key.len()), ("image-1.png", "image-2.png", 36));
        assert_eq!(kept.list(), [first.clone(), second.clone()]);
        assert_eq!(kept.usage(), Usage { files: 2, bytes: 6, evicted: 0 });
        assert_eq!(read(&kept, &second.key).unwrap(), b"two");
        assert_eq!(read(&kept, "../0a1b-3"), None);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "the server's own directory is left alone");
        let mode = |path: PathBuf| path.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(dir.kept_path()), mode(dir.kept_path().join(&first.key))), (0o700, 0o600));
        kept.close();
        assert!(kept.list().is_empty() && kept.open(&first.key).is_none());
        assert!(matches!(keep(&kept, b"late"), Err(KeepError::Closed)));
        dir.remove().unwrap();
        assert!(!temp.path().exists(), "nothing is left");
    }

    #[test]
    fn the_oldest_goes_when_there_are_too_many() {
        let (_temp, dir, kept) = place();
        let first = keep(&kept, b"first").unwrap();
        let second = keep(&kept, b"second").unwrap();
        for _ in 2..=FILES_MAX {
            keep(&kept, b"x").unwrap();
        }
        assert!(read(&kept, &first.key).is_none() && read(&kept, &second.key).is_some());
        assert_eq!(kept.usage(), Usage { files: FILES_MAX as u64, bytes: 6 + FILES_MAX as u64 - 1, evicted: 1 });
        assert_eq!(fs::read_dir(dir.kept_path()).unwrap().count(), FILES_MAX);
    }

    #[test]
    fn bytes_are_bounded_too() {
        let (_temp, _dir, kept) = place();
        // Nobody writes that much in a test: the bound is on what was announced.
        let announce = |size| kept.keep("audio", "x/y", size, |_| Ok(()));
        announce(BYTES_MAX / 2).unwrap();
        announce(BYTES_MAX / 2).unwrap();
        assert_eq!(announce(1).unwrap().name, "audio-3.bin");
        assert_eq!(kept.usage(), Usage { files: 2, bytes: BYTES_MAX / 2 + 1, evicted: 1 });
        announce(BYTES_MAX).unwrap();
        assert_eq!(kept.usage(), Usage { files: 1, bytes: BYTES_MAX, evicted: 3 });
        assert!(matches!(announce(BYTES_MAX + 1), Err(KeepError::TooLarge { .. })));
        assert_eq!(kept.usage().files, 1);
    }

    #[test]
    fn of_a_failed_write_nothing_is_left() {
        let (_temp, dir, kept) = place();
        let full = kept.keep("image", "image/png", 9, |file| {
            file.write_all(b"half")?;
            Err(io::ErrorKind::StorageFull.into())
        });
        assert!(matches!(full, Err(KeepError::Write { .. })));
        assert_eq!((kept.usage(), fs::read_dir(dir.kept_path()).unwrap().count()), (Usage::default(), 0));
    }

    #[test]
    fn a_link_in_the_place_of_a_file_is_not_followed() {
        let (temp, dir, kept) = place();
        let file = keep(&kept, b"kept").unwrap();
        fs::write(temp.path().join("secret"), "secret").unwrap();
        fs::remove_file(dir.kept_path().join(&file.key)).unwrap();
        symlink(temp.path().join("secret"), dir.kept_path().join(&file.key)).unwrap();
        assert!(kept.open(&file.key).unwrap().is_err());
    }
}
