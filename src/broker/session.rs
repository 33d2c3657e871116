//! What a legacy client says to its server besides requests for an answer: what it wants to hear of, and its answers.
//!
//! Neither starts a server nor keeps one awake (invariant 1).

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::Broker;
use super::audience::Recipient;
use super::fault::Fault;
use super::ruled::ruled;
use crate::link::{Link, RequestError};
use crate::policy::PayloadKind;
use crate::protocol::call::CallRequest;
use crate::protocol::envelope::Answer;
use crate::protocol::error::{INTERNAL_ERROR, INVALID_PARAMS, RpcError, shown};
use crate::protocol::logging::LogLevel;
use crate::protocol::raw::{members, string};
use crate::protocol::version::Era;
use crate::snapshot::Backend;
use crate::supervisor::{InstanceKey, ScopeKey};

/// How long a server may take to say whether a resource can be subscribed to.
const SUBSCRIBE_MAX: Duration = Duration::from_secs(10);

impl Broker {
    /// `logging/setLevel`: from now on, and of each server that is started for the session.
    ///
    /// # Errors
    /// Not offered, or no level.
    pub fn set_log_level(
        &self,
        backend: &Backend,
        key: &InstanceKey,
        recipient: &Recipient,
        params: Option<&str>,
    ) -> Result<(), RpcError> {
        if !backend.offers.logging {
            return Err(RpcError::method_not_found("logging/setLevel"));
        }
        let level = LogLevel::of(params, "level").ok_or_else(|| {
            RpcError::invalid_params("`params.level` of logging/setLevel must be a level from debug to emergency")
        })?;
        recipient.set_level(level);
        if let (Some(link), Some(level)) = (self.greeted_link(key), self.audience.level(key)) {
            link.hear_logs_from(level);
        }
        Ok(())
    }

    /// `resources/subscribe` and `resources/unsubscribe`. A server that runs is asked at once, if nobody else of its
    /// clients has asked it before, or wants to go on hearing of it.
    ///
    /// # Errors
    /// Not offered, no address, too many; or what the server said to it.
    pub async fn subscribe(
        &self,
        backend: &Backend,
        key: &InstanceKey,
        recipient: &Arc<Recipient>,
        method: &str,
        request: &CallRequest,
    ) -> Result<(), RpcError> {
        if !backend.offers.subscriptions {
            return Err(RpcError::method_not_found(method));
        }
        let uri = request.params().and_then(|params| members(params, ["uri"]).ok()?[0]).and_then(string);
        let lacks = || RpcError::invalid_params(format!("`params.uri` of {method} must be a string"));
        let uri = uri.ok_or_else(lacks)?;
        let is_new = method == "resources/subscribe";
        if is_new {
            recipient.subscribe(&uri).map_err(|many| RpcError::new(INVALID_PARAMS, many.to_string()))?;
        } else {
            recipient.unsubscribe(&uri);
        }
        let Some(link) = self.greeted_link(key) else { return Ok(()) };
        let is_wanted_anyway = self.audience.is_wanted_by_others(key, recipient.session(), &uri);
        if link.era() == Era::Modern || (is_wanted_anyway && !is_new) {
            link.tell_of(|| self.audience.wanted(key));
            return Ok(());
        }
        let asked = tokio::time::timeout(SUBSCRIBE_MAX, link.tell_of_one(&uri, is_new, request)).await;
        match asked {
            Ok(Err(RequestError::Refused { code, error })) if is_new => {
                recipient.unsubscribe(&uri);
                Err(refused(backend, code, &error))
            }
            // A server that says nothing, or has just ended: what is wanted is known, and asked for at the next start.
            _ => Ok(()),
        }
    }

    /// A modern client listens to resources of an instance, with a stream of this key. What is more than it can is
    /// left out of what is agreed, which its recipient has.
    pub fn listen(self: &Arc<Self>, key: InstanceKey, stream: u128, uris: &[String]) -> Listening {
        let recipient = self.audience.enter_listening(&key, stream);
        // An error leaves the rest out.
        let agreed: Vec<&String> = uris.iter().take_while(|uri| recipient.subscribe(uri).is_ok()).collect();
        if !agreed.is_empty() {
            self.tell_of_wishes(&key);
        }
        Listening { broker: self.clone(), key, recipient }
    }

    /// Somebody does not listen any more: what nobody else wants to hear of, the server is told.
    pub(super) fn let_go(&self, key: &InstanceKey, recipient: &Recipient) {
        let wanted = recipient.subscriptions();
        wanted.iter().for_each(|uri| recipient.unsubscribe(uri));
        if !wanted.is_empty() {
            self.tell_of_wishes(key);
        }
    }

    /// Has a server that runs tell of what is wanted now.
    pub(super) fn tell_of_wishes(&self, key: &InstanceKey) {
        if let Some(link) = self.greeted_link(key) {
            link.tell_of(|| self.audience.wanted(key));
        }
    }

    /// A client has answered a question of its server. An answer to nothing is nothing.
    pub fn answered(
        &self,
        key: &InstanceKey,
        session: u128,
        message: &Bytes,
        text: &str,
        id: &str,
        answer: Answer<'_>,
    ) -> bool {
        // On an instance of its own the server may be asking in the middle of a call; else only a result can have asked.
        let is_own = matches!(key.scope, ScopeKey::Session(_));
        // It may ask as soon as it is initialized, which is before it has been greeted.
        let link = || self.supervisor.find(key).and_then(|slot| slot.link());
        if is_own && link().is_some_and(|link| link.answer(message, text, id)) {
            return true;
        }
        let given = match answer {
            Answer::Result(result) => Ok(result.to_owned()),
            Answer::Error(error) => Err(error.to_owned()),
        };
        id.parse().is_ok_and(|id| self.common.awaited.give(session, id, given))
    }

    /// A notification of a client, for the server that runs, if one does.
    pub fn notify(&self, key: &InstanceKey, method: &str, message: &Bytes) {
        // What the broker does itself, and what would speak for other clients too.
        let is_own = matches!(method, "notifications/initialized" | "notifications/cancelled");
        let is_of_one = matches!(method, "notifications/roots/list_changed" | "notifications/progress");
        if is_own || (is_of_one && key.scope.is_shared()) {
            return;
        }
        if let Some(link) = self.greeted_link(key) {
            link.pass_on(message);
        }
    }

    /// A message that waited for `recipient`, as the rules of the revision that is served now leave it.
    pub fn ruled_for_all(&self, recipient: &Recipient, message: Bytes) -> Option<Bytes> {
        let instance = recipient.instance();
        let snapshot = self.snapshot();
        let backend = snapshot.backend(&instance.backend)?;
        let ruled = ruled(&backend.for_all.results, &backend.name, message);
        ruled.map_err(|withheld| self.common.answer_withheld(&instance, recipient.session(), &withheld)).ok()
    }

    fn greeted_link(&self, key: &InstanceKey) -> Option<Link> {
        self.supervisor.find(key)?.greeted_link()
    }
}

/// A stream by which a modern client listens to resources. Dropped, it does not any more.
#[derive(Debug)]
pub struct Listening {
    broker: Arc<Broker>,
    key: InstanceKey,
    pub recipient: Arc<Recipient>,
}

impl Listening {
    /// The addresses that it hears of.
    pub fn agreed(&self) -> Vec<String> {
        self.recipient.subscriptions().into_iter().collect()
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.broker.let_go(&self.key, &self.recipient);
    }
}

/// In the server's words, as the rules leave them.
fn refused(backend: &Backend, code: i64, error: &str) -> RpcError {
    let ruled = match backend.for_all.results.apply(error, PayloadKind::Error) {
        Ok(ruled) => ruled,
        Err(failure) => {
            tracing::warn!(backend = %backend.name, %failure, "an error was withheld");
            return Fault::policy_failed_on_answer(&backend.name).as_error(&backend.name);
        }
    };
    let [message, data] = members(ruled.as_deref().unwrap_or(error), ["message", "data"]).unwrap_or_default();
    let message = message.and_then(string).unwrap_or_else(|| "refused by the server".into());
    let code = if code == 0 { INTERNAL_ERROR } else { code };
    let refusal = RpcError::new(code, shown(&message));
    match data.and_then(|data| serde_json::from_str(data).ok()) {
        Some(data) => refusal.with_data(data),
        None => refusal,
    }
}
