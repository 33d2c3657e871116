//! Resources that the broker makes itself: large images of results, kept as files of the generation that made them.
//!
//! They are found by whoever shares the instance, for as long as that generation lives. To ask for them makes no slot,
//! starts nothing and refreshes no idle clock (invariant 1). What a server offers as its own resources is no part of
//! this.

use std::fs::File;
use std::io::{self, Read as _};
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde_json::{Value, json};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::Broker;
use crate::core::generation::Generation;
use crate::ownership::{KeptFile, KeptFiles};
use crate::policy::{Link, Media, MediaKind};
use crate::protocol::error::{INTERNAL_ERROR, RpcError};
use crate::protocol::version::Era;
use crate::snapshot::Backend;
use crate::supervisor::{InstanceKey, Slot};

/// What `lazy-mcp` stands before in the addresses of what is kept: `lazy-mcp://BACKEND/INSTANCE/GENERATION/KEY`.
const SCHEME: &str = "lazy-mcp";
/// What every address of something kept begins with.
pub const KEPT_SCHEME: &str = "lazy-mcp://";
/// Bytes read at once; a multiple of three, so that pieces of base64 can be joined.
const CHUNK: usize = 48 * 1024;
/// How long a modern client may keep what it read, in milliseconds: what is behind an address never changes.
const READ_TTL_MS: u64 = 300_000;
/// The list is another one after each call.
const LIST_TTL_MS: u64 = 0;

/// Reads under way, from the file to the last byte that the socket has taken. Each has its answer in memory, a third
/// more than the file, which may have tens of megabytes.
const READS_MAX: usize = 4;
/// How long a read waits for a place. Those before it take some tens of milliseconds, unless a client does not take its
/// answer.
const READ_WAIT: Duration = Duration::from_secs(5);

/// The places of reads.
#[derive(Clone, Debug)]
pub(super) struct Reads(Arc<Semaphore>);

/// An answer with the place that it takes until nobody has it any more.
struct Placed {
    answer: String,
    _place: OwnedSemaphorePermit,
}

impl Default for Reads {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(READS_MAX)))
    }
}

impl Reads {
    /// For the status: those under way, and how many there may be.
    pub fn occupancy(&self) -> (usize, usize) {
        (READS_MAX - self.0.available_permits(), READS_MAX)
    }

    async fn place(&self) -> Result<OwnedSemaphorePermit, RpcError> {
        let place = tokio::time::timeout(READ_WAIT, self.0.clone().acquire_owned()).await;
        place.ok().and_then(Result::ok).ok_or_else(|| {
            RpcError::new(INTERNAL_ERROR, format!("{READS_MAX} resources are being read already; try again"))
        })
    }
}

impl AsRef<[u8]> for Placed {
    fn as_ref(&self) -> &[u8] {
        self.answer.as_bytes()
    }
}

/// Where a call keeps what its result is too small for: the files of the generation that answers it.
#[derive(Clone, Debug)]
pub(super) struct Shelf {
    files: Arc<KeptFiles>,
    /// Of the addresses of these files.
    prefix: String,
    /// For the log.
    slot: String,
}

impl Shelf {
    /// `None` when that generation is gone.
    pub fn of_generation(slot: &Slot, generation: Generation) -> Option<Self> {
        Self::of_slot(slot, |live| live == generation)
    }

    /// Of the generation that lives.
    fn of_live(slot: &Slot) -> Option<Self> {
        Self::of_slot(slot, |_| true)
    }

    fn of_slot(slot: &Slot, is_meant: impl Fn(Generation) -> bool) -> Option<Self> {
        let (generation, files) = slot.kept_files().filter(|(live, _)| is_meant(*live))?;
        let prefix = format!("{SCHEME}://{}/{}/{}/", slot.key.backend, slot.id, generation.number());
        Some(Self { files, prefix, slot: slot.to_string() })
    }

    /// Blocks on the file system. What cannot be kept is logged.
    pub fn keep(&self, media: &Media<'_>) -> Option<Link> {
        let kind = match media.kind {
            MediaKind::Image => "image",
            MediaKind::Audio => "audio",
        };
        match self.files.keep(kind, shown_type(&media.mime_type), media.size, |file| media.write_to(file)) {
            Ok(file) => Some(Link { uri: format!("{}{}", self.prefix, file.key), name: file.name }),
            Err(error) => {
                tracing::warn!(slot = self.slot, kind, size = media.size, %error, "failed to take it out of a result");
                None
            }
        }
    }

    fn list(&self) -> Vec<Value> {
        let entry = |file: KeptFile| {
            let uri = format!("{}{}", self.prefix, file.key);
            json!({"uri": uri, "name": file.name, "mimeType": file.mime_type, "size": file.size})
        };
        self.files.list().into_iter().map(entry).collect()
    }

    /// The answer with the `contents` of an address.
    fn read(&self, uri: &str, era: Era) -> Option<String> {
        match self.files.open(uri.strip_prefix(&self.prefix)?)?.and_then(|(file, from)| contents(uri, &file, from, era))
        {
            Ok(answer) => Some(answer),
            Err(error) => {
                tracing::warn!(slot = self.slot, %error, "failed to read what was kept");
                None
            }
        }
    }
}

/// In one piece, which is never copied: it may be as large as all else that the broker has in memory.
fn contents(uri: &str, file: &KeptFile, mut from: File, era: Era) -> io::Result<String> {
    let (head, mut tail) = frame(READ_TTL_MS, era);
    tail.insert_str(0, "\"}]");
    let mut contents = format!(
        r#"{head}"contents":[{{"uri":{},"mimeType":{},"blob":""#,
        Value::from(uri),
        Value::from(file.mime_type.as_str())
    );
    contents.reserve_exact(usize::try_from(file.size).unwrap_or_default().div_ceil(3) * 4 + tail.len());
    let (mut piece, mut read) = (Vec::with_capacity(CHUNK), 0);
    while { &mut from }.take(CHUNK as u64).read_to_end(&mut piece)? > 0 {
        read += piece.len() as u64;
        STANDARD.encode_string(&piece, &mut contents);
        piece.clear();
    }
    contents.push_str(&tail);
    if read == file.size { Ok(contents) } else { Err(io::Error::other("a file has another size than was written")) }
}

/// Words of a server that are repeated to clients, if they can be a media type.
fn shown_type(mime_type: &str) -> &str {
    const BYTES_MAX: usize = 100;
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/+-._;= ".contains(&byte);
    let is_type = mime_type.len() <= BYTES_MAX && mime_type.contains('/') && mime_type.bytes().all(is_plain);
    if is_type { mime_type } else { "application/octet-stream" }
}

impl Broker {
    /// The answer to `resources/list`, from behind the id on: what was reviewed of the server, and what is kept.
    pub async fn list_resources(&self, backend: &Backend, key: &InstanceKey, era: Era) -> Bytes {
        let kept = self.on_shelf(key, |shelf| Some(shelf.list())).await.unwrap_or_default();
        let kept = kept.iter().map(Value::to_string).collect::<Vec<_>>().join(",");
        let reviewed = backend.surface.list("resources/list").map(|list| list.items.clone()).unwrap_or_default();
        let reviewed = String::from_utf8_lossy(&reviewed);
        let comma = if reviewed.is_empty() || kept.is_empty() { "" } else { "," };
        answer(&format!(r#""resources":[{reviewed}{comma}{kept}]"#), LIST_TTL_MS, era)
    }

    /// The answer to `resources/read`, from behind the id on.
    ///
    /// Cancel safe: what is being read is read in vain.
    ///
    /// # Errors
    /// An address that was never given out to this scope, or not by a generation that lives; or too many reads.
    pub async fn read_resource(&self, key: &InstanceKey, uri: &str, era: Era) -> Result<Bytes, RpcError> {
        let place = self.reads.place().await?;
        let asked = uri.to_owned();
        // The place goes along, so that it counts for as long as the bytes are there, whoever has gone away.
        let read = move |shelf: Shelf| Some(Placed { answer: shelf.read(&asked, era)?, _place: place });
        match self.on_shelf(key, read).await {
            Some(placed) => Ok(Bytes::from_owner(placed)),
            None => Err(RpcError::resource_not_found(uri, era)),
        }
    }

    /// Looks at what is kept for a scope, off the runtime's threads.
    async fn on_shelf<T: Send + 'static>(
        &self,
        key: &InstanceKey,
        look: impl FnOnce(Shelf) -> Option<T> + Send + 'static,
    ) -> Option<T> {
        let shelf = Shelf::of_live(&*self.supervisor.find(key)?)?;
        tokio::task::spawn_blocking(move || look(shelf)).await.ok()?
    }
}

fn answer(members: &str, ttl_ms: u64, era: Era) -> Bytes {
    let (head, tail) = frame(ttl_ms, era);
    [head, members, &tail].concat().into()
}

/// What stands before and behind the members of a result. What is kept belongs to a scope, so no cache may share it.
fn frame(ttl_ms: u64, era: Era) -> (&'static str, String) {
    match era {
        Era::Legacy => (r#","result":{"#, "}}".to_owned()),
        Era::Modern => {
            let tail = format!(r#","ttlMs":{ttl_ms},"cacheScope":"private"}}}}"#);
            (r#","result":{"resultType":"complete","#, tail)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_looks_like_a_type_is_repeated() {
        for good in ["image/png", "image/svg+xml", "audio/ogg; codecs=opus"] {
            assert_eq!(shown_type(good), good);
        }
        for bad in ["", "png", "image/\"png\"", "image/png\n", &format!("a/{}", "b".repeat(100)), "image/é"] {
            assert_eq!(shown_type(bad), "application/octet-stream");
        }
    }
}
