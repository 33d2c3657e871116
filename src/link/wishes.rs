//! What a server has been asked to tell of: log messages from a level on, and changes of resources.
//!
//! Who wants what is known to others; the link knows what its server was told of it, and tells it the difference.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::sync::{MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::conversation::Link;
use super::handshake::RequestError;
use crate::protocol::call::{CallRequest, one_line};
use crate::protocol::logging::LogLevel;
use crate::protocol::version::Era;

/// The resources of which the server tells.
#[derive(Debug, Default)]
pub(super) struct Told {
    uris: BTreeSet<String>,
    /// The broker's own request by which a modern server tells, and since when.
    listening: Option<(u64, Instant)>,
}

/// A server that ends what it is to tell sooner than this is not asked again before somebody wants something else: it
/// would be asked without pause.
const SHORT: Duration = Duration::from_secs(1);

impl Link {
    /// Has the server tell of changes of the resources that `wanted` says, and of no others. It is asked under a lock,
    /// so that of two who want something the later one's view holds.
    pub fn tell_of(&self, wanted: impl FnOnce() -> BTreeSet<String>) {
        let mut told = self.told();
        let wanted = wanted();
        if wanted == told.uris {
            return;
        }
        let before = std::mem::replace(&mut told.uris, wanted);
        match self.era() {
            Era::Legacy => {
                told.uris.difference(&before).for_each(|uri| self.ask_for("resources/subscribe", uri));
                before.difference(&told.uris).for_each(|uri| self.ask_for("resources/unsubscribe", uri));
            }
            Era::Modern => {
                let listening = (!told.uris.is_empty()).then(|| self.listen(&told.uris));
                // The new one first, so that no change falls between the two.
                let replaced = std::mem::replace(&mut told.listening, listening);
                if let Some((replaced, _)) = replaced {
                    self.notify(&format!(
                        r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"requestId":{replaced},"reason":"another subscription takes its place"}}}}"#
                    ));
                }
            }
        }
    }

    /// A server has answered a request of the broker's own that nobody waits for. Where it is the one by which a modern
    /// server tells, the server tells no more, for reasons of its own: then it is asked anew, because whoever wants to
    /// hear has not changed their mind.
    pub(super) fn own_request_answered(&self, id: u64) {
        let mut told = self.told();
        let Some((_, since)) = told.listening.filter(|(listening, _)| *listening == id) else { return };
        if since.elapsed() < SHORT {
            *told = Told::default();
        } else {
            told.listening = Some(self.listen(&told.uris));
        }
    }

    /// [`Self::tell_of`] for one resource, by a client's own request, if the server has to be asked at all.
    ///
    /// # Errors
    /// What the server said to it; then it tells of it no more than before.
    pub async fn tell_of_one(&self, uri: &str, is_wanted: bool, request: &CallRequest) -> Result<(), RequestError> {
        {
            let mut told = self.told();
            let changed = if is_wanted { told.uris.insert(uri.to_owned()) } else { told.uris.remove(uri) };
            if !changed {
                return Ok(());
            }
        }
        match self.request_of(request).await {
            Err(refused @ RequestError::Refused { .. }) => {
                if is_wanted {
                    self.told().uris.remove(uri);
                }
                Err(refused)
            }
            // One that has just ended is told at its next start.
            _ => Ok(()),
        }
    }

    /// Has the server tell of log messages from this level on. What was asked for last holds.
    pub fn hear_logs_from(&self, level: LogLevel) {
        // A modern server is told with each request.
        if self.era() == Era::Legacy && self.0.log_level.swap(level as u8, Ordering::Relaxed) != level as u8 {
            self.request_aside("logging/setLevel", &format!(r#"{{"level":"{}"}}"#, level.name()));
        }
    }

    fn listen(&self, uris: &BTreeSet<String>) -> (u64, Instant) {
        let uris = Value::from(uris.iter().map(String::as_str).collect::<Vec<_>>());
        let params = format!(r#"{{"notifications":{{"resourceSubscriptions":{uris}}}}}"#);
        (self.request_aside("subscriptions/listen", &params), Instant::now())
    }

    fn ask_for(&self, method: &str, uri: &str) {
        self.request_aside(method, &format!(r#"{{"uri":{}}}"#, Value::from(uri)));
    }

    /// Asks for something in the background, under this id; what the server answers is of no consequence, so nobody
    /// waits for it.
    fn request_aside(&self, method: &str, params: &str) -> u64 {
        let id = self.own_id();
        self.write(one_line(self.own_message(id, method, params).into_bytes()).into());
        id
    }

    fn told(&self) -> MutexGuard<'_, Told> {
        self.0.told.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
