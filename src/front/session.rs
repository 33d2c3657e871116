//! Protocol sessions of legacy clients: they outlive idle backends and restarts of the broker.

use std::collections::HashMap;
use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio_util::sync::CancellationToken;

use super::places::Places;
use super::token::{self, Claims, Secret};
use crate::broker::{Audience, Recipient};
use crate::core::digest::Digest;

/// Event streams that one session may hold open.
const STREAMS_MAX: usize = 8;

/// One client's session with one backend.
#[derive(Debug)]
pub(super) struct Session {
    pub id: u128,
    pub backend: Arc<str>,
    /// What `initialize` agreed on.
    pub version: &'static str,
    pub ended: CancellationToken,
    token: Box<str>,
    /// Seconds since the Unix epoch.
    last_used: AtomicU64,
    /// Requests being answered and streams held open; a session with any does not expire.
    in_flight: AtomicU32,
    pub streams: Places,
    /// What servers know it by.
    pub recipient: Arc<Recipient>,
}

/// All sessions, by the random part of their ids.
#[derive(Debug)]
pub struct Sessions {
    secret: Secret,
    /// Seconds.
    ttl: AtomicU64,
    sessions_max: AtomicUsize,
    table: Mutex<HashMap<u128, Arc<Session>>>,
    audience: Arc<Audience>,
    ended: Mutex<Ended>,
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret")
    }
}

/// A request being answered, or a stream held open.
#[derive(Debug)]
pub(super) struct Hold {
    session: Arc<Session>,
}

impl Hold {
    pub fn session(&self) -> &Arc<Session> {
        &self.session
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.session.in_flight.fetch_sub(1, Ordering::Relaxed);
        self.session.last_used.store(now(), Ordering::Relaxed);
    }
}

impl Session {
    /// Marks the session as in use until the hold is dropped.
    pub fn hold(self: &Arc<Self>) -> Hold {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        Hold { session: self.clone() }
    }

    /// `ttl` in seconds.
    fn expires(&self, ttl: u64) -> u64 {
        self.last_used.load(Ordering::Relaxed).saturating_add(ttl)
    }

    fn is_in_use(&self) -> bool {
        self.in_flight.load(Ordering::Relaxed) > 0
    }
}

impl Sessions {
    /// Reads, or makes at first use, the signing key of the state directory, and the ids that were ended before.
    /// `ttl` is how long a session lives unused, or after a restart since its issue; `sessions_max` how many are kept in
    /// memory.
    pub fn open(state_dir: &Path, ttl: Duration, sessions_max: usize, audience: Arc<Audience>) -> io::Result<Self> {
        Ok(Self {
            secret: Secret(read_or_make_key(&state_dir.join("session.key"))?),
            ttl: AtomicU64::new(ttl.as_secs()),
            sessions_max: AtomicUsize::new(sessions_max),
            table: Mutex::default(),
            audience,
            ended: Mutex::new(Ended::open(state_dir.join("ended-sessions"))?),
        })
    }

    /// Other bounds from now on. Sessions above a lower number are forgotten as others come, as if that had always been
    /// the number.
    pub fn set_bounds(&self, ttl: Duration, sessions_max: usize) {
        self.ttl.store(ttl.as_secs(), Ordering::Relaxed);
        self.sessions_max.store(sessions_max, Ordering::Relaxed);
    }

    /// Opens a session and names it. `capabilities` is the raw object that the client declared.
    pub(super) fn begin(&self, backend: &Arc<str>, version: &'static str, capabilities: &str) -> io::Result<String> {
        let mut random = [0; 16];
        getrandom::fill(&mut random).map_err(io::Error::other)?;
        let digest = Digest::of(capabilities.as_bytes()).first_bytes();
        let claims = Claims { id: u128::from_be_bytes(random), version, capabilities: digest, issued: now() };
        let token = self.secret.seal(backend, &claims);
        match self.insert(backend, &claims, &token, capabilities) {
            Some(_) => Ok(token),
            None => Err(io::Error::other(format!("all {} sessions are in use; try again later", self.max()))),
        }
    }

    /// The session of an id, if it is one of ours, for this backend, and not over.
    pub(super) fn find(&self, backend: &Arc<str>, token: &str) -> Option<Arc<Session>> {
        let id = token::peek(token)?;
        let known = self.table().get(&id).cloned();
        if let Some(session) = known {
            let is_meant = *session.token == *token && session.backend == *backend;
            let is_alive = session.is_in_use() || now() < session.expires(self.ttl());
            if is_meant && is_alive {
                session.last_used.store(now(), Ordering::Relaxed);
            }
            return (is_meant && is_alive).then_some(session);
        }
        let claims = self.secret.open(backend, token)?;
        // When it was last used is not known any more; its issue is.
        let is_alive = now() < claims.issued.saturating_add(self.ttl()) && !self.ended().contains(id, claims.issued);
        if is_alive { self.insert(backend, &claims, token, "{}") } else { None }
    }

    /// Ends a session; its id is refused from now on, after a restart too.
    pub(super) fn end(&self, session: &Session) -> io::Result<()> {
        // Remembered before it is forgotten, so that nobody finds it in between and takes it back.
        let remembered = self.ended().add(session.id, self.forgettable(session));
        session.ended.cancel();
        self.table().remove(&session.id);
        remembered
    }

    /// Ends the sessions of backends that are not served any more, as `end` does each, and returns them.
    pub fn end_where(&self, is_gone: impl Fn(&str) -> bool) -> (Vec<(Arc<str>, u128)>, io::Result<()>) {
        let gone: Vec<_> = self.table().values().filter(|session| is_gone(&session.backend)).cloned().collect();
        let remembered = self.ended().add_all(gone.iter().map(|session| (session.id, self.forgettable(session))));
        let mut table = self.table();
        for session in &gone {
            session.ended.cancel();
            table.remove(&session.id);
        }
        (gone.iter().map(|session| (session.backend.clone(), session.id)).collect(), remembered)
    }

    /// Takes out the sessions that were not used for their lifetime, and returns them.
    pub fn expire(&self) -> Vec<(Arc<str>, u128)> {
        let now = now();
        let mut table = self.table();
        let mut over = Vec::new();
        table.retain(|_, session| {
            let is_over = !session.is_in_use() && session.expires(self.ttl()) <= now;
            if is_over {
                session.ended.cancel();
                over.push((session.backend.clone(), session.id));
            }
            !is_over
        });
        over
    }

    pub fn len(&self) -> usize {
        self.table().len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn max(&self) -> usize {
        self.sessions_max.load(Ordering::Relaxed)
    }

    fn ttl(&self) -> u64 {
        self.ttl.load(Ordering::Relaxed)
    }

    /// Until when the id of a session that ends now could be taken for that of one that lives.
    fn forgettable(&self, session: &Session) -> u64 {
        session.expires(self.ttl()).max(now() + self.ttl())
    }

    /// `None` when all places are taken by sessions in use.
    fn insert(&self, backend: &Arc<str>, claims: &Claims, token: &str, capabilities: &str) -> Option<Arc<Session>> {
        let made = || {
            Arc::new(Session {
                id: claims.id,
                backend: backend.clone(),
                version: claims.version,
                ended: CancellationToken::new(),
                token: token.into(),
                last_used: AtomicU64::new(now()),
                in_flight: AtomicU32::new(0),
                streams: Places::new(STREAMS_MAX),
                recipient: self.audience.enter(backend, claims.id, capabilities),
            })
        };
        let mut table = self.table();
        // One for the newcomer, and one more as long as there are more than a lower bound allows.
        for _ in 0..(table.len() + 1).saturating_sub(self.max()).min(2) {
            // Forgotten, not ended: its id still describes it, so a client that does come back is taken back.
            let oldest = table.values().filter(|s| !s.is_in_use()).min_by_key(|s| s.last_used.load(Ordering::Relaxed));
            let oldest = oldest.map(|session| session.id)?;
            table.remove(&oldest);
        }
        // Somebody may have taken it back in this moment; then that is the one, and no other is known to servers.
        Some(table.entry(claims.id).or_insert_with(made).clone())
    }

    fn table(&self) -> MutexGuard<'_, HashMap<u128, Arc<Session>>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ended(&self) -> MutexGuard<'_, Ended> {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ids remembered one by one; a few hundred KiB.
const ENDED_MAX: usize = 10_000;

/// Ids that were ended before they would have expired: a line each in a file, `<id> <expiry>`.
///
/// When there are too many, all that were issued until then count as ended, but for those that are in use: clients
/// recover from that by themselves, while an ended id that came back to life would be a lie.
#[derive(Debug)]
struct Ended {
    path: PathBuf,
    expiries: HashMap<u128, u64>,
    /// Seconds since the Unix epoch. The file has it as `before <seconds>`.
    all_before: u64,
}

impl Ended {
    fn open(path: PathBuf) -> io::Result<Self> {
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(e) if e.kind() == io::ErrorKind::NotFound => String::new(),
            Err(e) => return Err(e),
        };
        let now = now();
        let parse = |line: &str| {
            let (id, expiry) = line.split_once(' ')?;
            Some((u128::from_str_radix(id, 16).ok()?, expiry.parse().ok()?))
        };
        let before = text.lines().filter_map(|line| line.strip_prefix("before ")?.parse().ok()).max();
        let expiries: HashMap<u128, u64> = text.lines().filter_map(parse).filter(|(_, expiry)| *expiry > now).collect();
        let ended = Self { path, expiries, all_before: before.unwrap_or(0) };
        ended.write()?;
        Ok(ended)
    }

    /// The whole file anew, so that it is bounded by the ids that could still come back.
    fn write(&self) -> io::Result<()> {
        let ids = self.expiries.iter().map(|(id, expiry)| format!("{id:032x} {expiry}\n"));
        let text: String = std::iter::once(format!("before {}\n", self.all_before)).chain(ids).collect();
        write_private(&self.path, text.as_bytes())
    }

    fn contains(&self, id: u128, issued: u64) -> bool {
        issued < self.all_before || self.expiries.contains_key(&id)
    }

    fn add(&mut self, id: u128, expiry: u64) -> io::Result<()> {
        if self.make_room() {
            self.write()?;
        }
        self.expiries.insert(id, expiry);
        let mut file = fs::OpenOptions::new().append(true).create(true).open(&self.path)?;
        writeln!(file, "{id:032x} {expiry}")
    }

    /// Many at once, in one write.
    fn add_all(&mut self, ids: impl Iterator<Item = (u128, u64)>) -> io::Result<()> {
        // Their number says nothing: when there are too many, one is forgotten as one comes.
        let mut has_any = false;
        for (id, expiry) in ids {
            self.make_room();
            self.expiries.insert(id, expiry);
            has_any = true;
        }
        if has_any { self.write() } else { Ok(()) }
    }

    /// Whether something was forgotten for it.
    fn make_room(&mut self) -> bool {
        let now = now();
        if self.expiries.len() < ENDED_MAX {
            return false;
        }
        self.expiries.retain(|_, expiry| *expiry > now);
        if self.expiries.len() >= ENDED_MAX {
            self.expiries.clear();
            self.all_before = now + 1;
        }
        true
    }
}

fn read_or_make_key(path: &Path) -> io::Result<[u8; 32]> {
    match fs::read(path) {
        Ok(bytes) => match bytes.try_into() {
            Ok(key) => return Ok(key),
            Err(_) => tracing::warn!("the key of sessions was damaged; all sessions are over"),
        },
        Err(e) if e.kind() == io::ErrorKind::NotFound => {}
        Err(e) => return Err(e),
    }
    let mut key = [0; 32];
    getrandom::fill(&mut key).map_err(io::Error::other)?;
    write_private(path, &key)?;
    Ok(key)
}

/// Whole or not at all, readable by the owner alone.
pub(super) fn write_private(path: &Path, bytes: &[u8]) -> io::Result<()> {
    use std::os::unix::fs::OpenOptionsExt as _;
    let part = path.with_extension("part");
    let mut file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&part)?;
    file.write_all(bytes)?;
    fs::rename(&part, path)
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    fn backend() -> Arc<str> {
        "playwright".into()
    }

    fn opened(dir: &Path, ttl: Duration, sessions_max: usize) -> io::Result<Sessions> {
        Sessions::open(dir, ttl, sessions_max, Arc::default())
    }

    #[test]
    fn a_session_survives_a_restart_until_it_is_ended() {
        let dir = tempfile::tempdir().unwrap();
        let sessions = opened(dir.path(), HOUR, 10).unwrap();
        let (kept, ended) = (
            sessions.begin(&backend(), "2025-11-25", "{}").unwrap(),
            sessions.begin(&backend(), "2025-11-25", "{}").unwrap(),
        );
        let session = sessions.find(&backend(), &ended).unwrap();
        sessions.end(&session).unwrap();
        assert!(session.ended.is_cancelled());
        for sessions in [sessions, opened(dir.path(), HOUR, 10).unwrap()] {
            assert!(sessions.find(&backend(), &kept).is_some());
            assert!(sessions.find(&backend(), &ended).is_none());
            assert!(sessions.find(&"other".into(), &kept).is_none());
        }
    }

    #[test]
    fn a_session_expires_unless_it_is_in_use() {
        let dir = tempfile::tempdir().unwrap();
        let sessions = opened(dir.path(), Duration::ZERO, 10).unwrap();
        let id = sessions.begin(&backend(), "2025-11-25", "{}").unwrap();
        let session = sessions.table().values().next().unwrap().clone();
        let hold = session.hold();
        assert!(sessions.expire().is_empty() && sessions.find(&backend(), &id).is_some());
        drop(hold);
        assert_eq!(sessions.expire().len(), 1);
        assert!(sessions.find(&backend(), &id).is_none());
    }

    #[test]
    fn sessions_of_a_backend_that_is_gone_are_over_for_good_and_no_others() {
        let dir = tempfile::tempdir().unwrap();
        let sessions = opened(dir.path(), HOUR, 10).unwrap();
        let begin = |backend: &str| sessions.begin(&backend.into(), "2025-11-25", "{}").unwrap();
        let ids = ["gone", "gone", "kept"].map(begin);
        let streams = ids[..2].iter().map(|id| sessions.find(&"gone".into(), id).unwrap().ended.clone());
        let streams: Vec<_> = streams.collect();
        let (ended, remembered) = sessions.end_where(|backend| backend == "gone");
        remembered.unwrap();
        assert_eq!(ended.len(), 2);
        assert!(streams.iter().all(CancellationToken::is_cancelled));
        for sessions in [sessions, opened(dir.path(), HOUR, 10).unwrap()] {
            assert!(
                sessions.find(&"gone".into(), &ids[0]).is_none() && sessions.find(&"kept".into(), &ids[2]).is_some()
            );
            assert!(sessions.end_where(|backend| backend == "gone").0.is_empty());
        }
    }

    #[test]
    fn other_bounds_hold_for_those_that_are_there() {
        let dir = tempfile::tempdir().unwrap();
        let sessions = opened(dir.path(), HOUR, 10).unwrap();
        for _ in 0..5 {
            sessions.begin(&backend(), "2025-11-25", "{}").unwrap();
        }
        sessions.set_bounds(HOUR, 2);
        for _ in 0..3 {
            sessions.begin(&backend(), "2025-11-25", "{}").unwrap();
        }
        assert_eq!(sessions.len(), 2);
        sessions.set_bounds(Duration::ZERO, 2);
        assert_eq!(sessions.expire().len(), 2);
    }

    #[test]
    fn the_table_is_bounded_and_forgets_the_least_recently_used() {
        let dir = tempfile::tempdir().unwrap();
        let sessions = opened(dir.path(), HOUR, 2).unwrap();
        let ids: Vec<_> = (0..5).map(|_| sessions.begin(&backend(), "2025-11-25", "{}").unwrap()).collect();
        assert_eq!(sessions.len(), 2);
        assert!(ids.iter().all(|id| sessions.find(&backend(), id).is_some()), "forgotten ones are taken back");
    }

    #[test]
    fn ended_ids_are_bounded_and_none_comes_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ended");
        let mut ended = Ended::open(path.clone()).unwrap();
        for id in 0..=ENDED_MAX as u128 {
            ended.add(id, now() + 100).unwrap();
        }
        for ended in [ended, Ended::open(path).unwrap()] {
            assert_eq!(ended.expiries.len(), 1);
            assert!((0..=ENDED_MAX as u128).all(|id| ended.contains(id, now())));
            assert!(!ended.contains(5, now() + 2), "issued later");
        }
    }

    #[test]
    fn ids_that_end_together_are_written_also_when_as_many_are_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ended");
        let mut ended = Ended::open(path.clone()).unwrap();
        let ids = 1..ENDED_MAX as u128;
        ended.add_all(ids.map(|id| (id, now() + 100))).unwrap();
        // The place of one that has expired is taken by the next.
        ended.expiries.insert(0, now());
        ended.add_all(std::iter::once((7777 << 64, now() + 100))).unwrap();
        assert!(Ended::open(path.clone()).unwrap().contains(7777 << 64, now()));
        // One that was there may be remembered for longer.
        ended.add_all(std::iter::once((1, now() + 1000))).unwrap();
        assert!(Ended::open(path).unwrap().expiries[&1] > now() + 500);
    }
}
