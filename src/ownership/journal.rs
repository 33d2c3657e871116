//! What the next broker needs to know if this one dies: a file for each generation that may have processes, and the
//! highest generation number of each backend.
//!
//! One broker a state directory: a lock (flock(2)) that the kernel releases with its holder.
//! Files are replaced as wholes (rename(2)) and not synced: what they tell of ends with the boot anyway. After a power
//! failure a generation number could come again, but none of the processes that had it the first time.

mod leftovers;

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use nix::fcntl::{Flock, FlockArg};
use serde::{Deserialize, Serialize};

use super::cgroup::Cgroup;
use super::instance_dir;
use super::process_table::{ProcessId, boot_id};
use super::windows::Marker;
use crate::core::digest::Digest;

pub use leftovers::{Leftover, LeftoversBudget};

/// The open journal of the one broker that has this state directory.
#[derive(Debug)]
pub struct Journal {
    state_dir: PathBuf,
    broker: ProcessId,
    boot_id: String,
    installation: String,
    generations: Mutex<BTreeMap<String, u64>>,
    _lock: Flock<File>,
}

/// One generation that may have processes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    pub backend: String,
    pub instance: String,
    pub generation: u64,
    pub boot_id: String,
    pub broker: ProcessId,
    /// `None` when the broker died before it had noted them.
    pub keeper: Option<ProcessId>,
    pub root: Option<ProcessId>,
    /// Where the server was to be put; entries of older brokers have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<PathBuf>,
    /// There is a Windows side. What binds its marker to this installation: without that a record copied from another
    /// state directory, or made up, would end what is somebody else's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub windows: Option<Digest>,
}

/// The file of a generation of ours. Dropping it leaves the file: only a proof removes it.
#[derive(Debug)]
pub struct Entry {
    path: PathBuf,
    record: Record,
}

/// Why the journal cannot be kept.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    #[error("use state directory `{state_dir}`: another broker{} has it; stop that one or set another `state_dir`",
            .pid.map(|pid| format!(" (pid {pid})")).unwrap_or_default())]
    Held { state_dir: PathBuf, pid: Option<u32> },
    #[error("read `{path}`: {reason}; move it away to count generations anew")]
    Corrupt { path: PathBuf, reason: String },
    #[error("keep the journal: `{path}`: {source}")]
    Io { path: PathBuf, source: io::Error },
}

impl Journal {
    /// Makes `state_dir` if need be, and locks it for as long as the journal lives.
    ///
    /// # Errors
    /// Another broker has it; its files cannot be written or, for the generation numbers, understood.
    pub fn open(state_dir: &Path) -> Result<Self, JournalError> {
        let dir = journal_dir(state_dir);
        DirBuilder::new().recursive(true).mode(0o700).create(&dir).map_err(at(&dir))?;
        let lock = lock(state_dir, &dir.join("lock"))?;
        let boot_id = boot_id().map_err(at(Path::new("/proc")))?;
        let broker = ProcessId::of(std::process::id())
            .ok_or(io::ErrorKind::NotFound)
            .map_err(|kind| at(Path::new("/proc"))(kind.into()))?;
        let generations = Mutex::new(read_generations(&generations_path(state_dir))?);
        let installation = read_or_make_installation(&state_dir.join("installation"))?;
        Ok(Self { state_dir: state_dir.to_owned(), broker, boot_id, installation, generations, _lock: lock })
    }

    /// What tells this state directory from every other on the machine: it goes into the ids of instances, so that the
    /// marker of a process is that of one broker alone. Two brokers that had the same marker would sweep each other.
    pub fn installation(&self) -> &str {
        &self.installation
    }

    /// Where instance directories go.
    pub fn instances(&self) -> PathBuf {
        instance_dir::parent(&self.installation)
    }

    /// The highest generation number that this backend ever had; 0 when it had none.
    pub fn high_water(&self, backend: &str) -> u64 {
        self.generations().get(backend).copied().unwrap_or(0)
    }

    /// Notes a generation number before it is used. A lower one than before changes nothing.
    ///
    /// # Errors
    /// It is not noted, so it must not be used.
    pub fn record(&self, backend: &str, generation: u64) -> Result<(), JournalError> {
        let mut generations = self.generations();
        if generations.get(backend).is_some_and(|known| *known >= generation) {
            return Ok(());
        }
        let mut next = generations.clone();
        next.insert(backend.to_owned(), generation);
        replace(&generations_path(&self.state_dir), &next)?;
        *generations = next;
        Ok(())
    }

    /// Notes a generation, and its number, before its keeper is started.
    ///
    /// # Errors
    /// It is not noted, so it must not be started.
    pub fn begin(
        &self,
        backend: &str,
        instance: &str,
        generation: u64,
        cgroup: Option<&Cgroup>,
    ) -> Result<Entry, JournalError> {
        self.record(backend, generation)?;
        let record = Record {
            backend: backend.to_owned(),
            instance: instance.to_owned(),
            generation,
            boot_id: self.boot_id.clone(),
            broker: self.broker,
            keeper: None,
            root: None,
            cgroup: cgroup.map(|cgroup| cgroup.path().to_owned()),
            windows: None,
        };
        let path = journal_dir(&self.state_dir).join(format!("{backend}-{instance}-{generation}.json"));
        replace(&path, &record)?;
        Ok(Entry { path, record })
    }

    /// Notes as well, before its keeper is started, that the generation has a Windows side.
    ///
    /// # Errors
    /// It is not noted, so it must not be started.
    pub fn with_windows(&self, entry: &mut Entry, marker: &Marker) -> Result<(), JournalError> {
        entry.record.windows = Some(self.seal(marker));
        replace(&entry.path, &entry.record)
    }

    fn seal(&self, marker: &Marker) -> Digest {
        Digest::of(format!("{}\n{marker}", self.installation).as_bytes())
    }

    fn generations(&self) -> MutexGuard<'_, BTreeMap<String, u64>> {
        self.generations.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Entry {
    /// Adds who they are, so that the next broker finds them without the marker.
    ///
    /// # Errors
    /// The file keeps what it had.
    pub fn started(&mut self, keeper: ProcessId, root: ProcessId) -> Result<(), JournalError> {
        self.record.keeper = Some(keeper);
        self.record.root = Some(root);
        replace(&self.path, &self.record)
    }

    /// The tree is proved empty: there is nothing to find any more.
    ///
    /// # Errors
    /// The file is still there; the next broker finds nobody by it and removes it.
    pub fn proved(self) -> Result<(), JournalError> {
        remove(&self.path)
    }
}

fn journal_dir(state_dir: &Path) -> PathBuf {
    state_dir.join("journal")
}

fn generations_path(state_dir: &Path) -> PathBuf {
    state_dir.join("generations.json")
}

fn lock(state_dir: &Path, path: &Path) -> Result<Flock<File>, JournalError> {
    // Not truncated: the holder's pid is in it.
    let options = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).clone();
    let file = options.open(path).map_err(at(path))?;
    let mut lock = Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(mut file, _)| {
        let mut holder = String::new();
        let read = file.read_to_string(&mut holder);
        let pid = read.ok().and_then(|_| holder.trim().parse().ok());
        JournalError::Held { state_dir: state_dir.to_owned(), pid }
    })?;
    lock.set_len(0).and_then(|()| writeln!(lock, "{}", std::process::id())).map_err(at(path))?;
    Ok(lock)
}

fn read_generations(path: &Path) -> Result<BTreeMap<String, u64>, JournalError> {
    match fs::read(path) {
        Ok(bytes) => serde_json::from_slice(&bytes)
            .map_err(|error| JournalError::Corrupt { path: path.to_owned(), reason: error.to_string() }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(BTreeMap::new()),
        Err(error) => Err(at(path)(error)),
    }
}

/// 64 random bits in hex, made at the first start.
fn read_or_make_installation(path: &Path) -> Result<String, JournalError> {
    match fs::read_to_string(path).map(|text| text.trim().to_owned()) {
        Ok(known) if known.len() == 16 && known.bytes().all(|b| b.is_ascii_hexdigit()) => return Ok(known),
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(at(path)(error)),
    }
    let mut random = [0; 8];
    getrandom::fill(&mut random).map_err(|error| at(path)(io::Error::other(error)))?;
    let made = format!("{:016x}", u64::from_be_bytes(random));
    fs::write(path, format!("{made}\n")).map_err(at(path))?;
    Ok(made)
}

/// Puts a whole new file in the place of the old one. One caller a path at a time.
fn replace(path: &Path, content: &impl Serialize) -> Result<(), JournalError> {
    let new = path.with_extension("new");
    let write = || {
        let mut bytes = serde_json::to_vec(content)?;
        bytes.push(b'\n');
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
        file.write_all(&bytes)?;
        fs::rename(&new, path)
    };
    write().map_err(at(path))
}

fn remove(path: &Path) -> Result<(), JournalError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(at(path)(error)),
        _ => Ok(()),
    }
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> JournalError {
    let path = path.to_owned();
    move |source| JournalError::Io { path, source }
}
