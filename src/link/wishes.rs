//! What a server has been asked to tell of: log messages from a level on, and changes of resources.
//!
//! Who wants what is known to others; the link knows what its server was told of it, and tells it the difference.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::sync::{MutexGuard, PoisonError};

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
    /// The broker's own request by which a modern server tells; 0 for none.
    listening: u64,
}

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
                let id = if told.uris.is_empty() { 0 } else { self.listen(&told.uris) };
                // The new one first, so that no change falls between the two.
                let replaced = std::mem::replace(&mut told.listening, id);
                if replaced != 0 {
                    self.notify(&format!(
                        r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"requestId":{replaced},"reason":"another subscription takes its place"}}}}"#
                    ));
                }
            }
        }
    }

    /// The same for one resource, by a client's own request, if the server has to be asked at all.
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

    fn listen(&self, uris: &BTreeSet<String>) -> u64 {
        let uris = Value::from(uris.iter().map(String::as_str).collect::<Vec<_>>());
        let params = format!(r#"{{"notifications":{{"resourceSubscriptions":{uris}}}}}"#);
        self.request_aside("subscriptions/listen", &params)
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
