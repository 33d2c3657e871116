//! Who hears what servers say of their own accord, and who answers what they ask.
//!
//! A session's own instance speaks to that session: on the stream of its newest call, because what a server says in the
//! middle of a call is about it; else on the stream that the session holds open; else it waits for either. On an
//! instance that several share, a message is for somebody only if it says for whom: progress by its token, a changed
//! resource by who subscribed to it. Of everything else only what is said while one client alone has used it can be that
//! client's; what cannot be attributed is nobody's, and a question is refused at once (docs/reference/protocol.md).
//!
//! Nothing here starts a server or keeps one awake: what a session asked to hear of is remembered, and asked for anew
//! whenever its server has been started for another reason.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use bytes::Bytes;
use tokio_util::sync::CancellationToken;

use crate::link::{Caller, Link, Listener, Outbox, Unasked};
use crate::protocol::logging::LogLevel;
use crate::protocol::raw::{entries, members, object, string};
use crate::supervisor::{self, InstanceKey, ScopeKey};

/// Resources that one session can ask to hear of.
const SUBSCRIPTIONS_MAX: usize = 256;

/// Messages up to this length, in bytes, are copied into the mail.
const COPIED_LEN_MAX: usize = 16 << 10;
/// What a client may say of what it can be asked, in bytes; more is taken as nothing.
const CAPABILITIES_LEN_MAX: usize = 16 << 10;
/// The longest address that can be subscribed to, in bytes.
const URI_LEN_MAX: usize = 8 << 10;

/// Keys of which it is known what their clients can be asked.
const DECLARED_MAX: usize = 1024;

/// Everybody who can be told something.
#[derive(Debug, Default)]
pub struct Audience {
    /// What clients without a session declared last, of those who name a key.
    declared: Mutex<HashMap<InstanceKey, String>>,
    recipients: Mutex<HashMap<u128, Weak<Recipient>>>,
}

/// A legacy session as servers meet it, or a stream by which a modern client listens. Dropped with it.
#[derive(Debug)]
pub struct Recipient {
    backend: Arc<str>,
    /// Of the session; of a listening stream of a client without one, of that stream alone.
    session: u128,
    /// The scope of such a stream.
    listens_in: Option<ScopeKey>,
    /// What the client declared, raw: `{}` for one that was taken back after a restart, because a session's id does not
    /// say it.
    capabilities: Box<str>,
    /// What no call's stream is for. Read by the streams that the session holds open.
    pub mail: Arc<Outbox>,
    streams: AtomicUsize,
    wishes: Mutex<Wishes>,
    among: Weak<Audience>,
}

#[derive(Debug, Default)]
struct Wishes {
    level: Option<LogLevel>,
    /// Addresses of resources, as the client wrote them.
    subscriptions: BTreeSet<String>,
    /// Ends the streams that do not keep up with their mail.
    unread: CancellationToken,
}

/// A stream of a session that is held open.
#[derive(Debug)]
pub struct OpenStream {
    pub recipient: Arc<Recipient>,
    /// It does not keep up with its mail, and is to end.
    pub unread: CancellationToken,
}

/// A session wants to hear of more resources than it can.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a session can subscribe to {SUBSCRIPTIONS_MAX} resources at the same time, with addresses of {URI_LEN_MAX} bytes"
)]
pub(super) struct TooManySubscriptions;

impl Audience {
    /// A session begins, or is taken back after a restart: then with nothing that it could declare.
    pub fn enter(self: &Arc<Self>, backend: &Arc<str>, session: u128, capabilities: &str) -> Arc<Recipient> {
        self.insert(backend, session, None, capabilities)
    }

    /// A modern client listens, on a stream that has this key for itself.
    pub(super) fn enter_listening(self: &Arc<Self>, instance: &InstanceKey, key: u128) -> Arc<Recipient> {
        self.insert(&instance.backend, key, Some(instance.scope.clone()), "{}")
    }

    fn insert(
        self: &Arc<Self>,
        backend: &Arc<str>,
        session: u128,
        listens_in: Option<ScopeKey>,
        capabilities: &str,
    ) -> Arc<Recipient> {
        let recipient = Arc::new(Recipient {
            backend: backend.clone(),
            session,
            listens_in,
            capabilities: without_tasks(capabilities).into(),
            mail: Arc::default(),
            streams: AtomicUsize::new(0),
            wishes: Mutex::default(),
            among: Arc::downgrade(self),
        });
        self.lock().insert(session, Arc::downgrade(&recipient));
        recipient
    }

    /// The session of this number.
    pub(super) fn session(&self, session: u128) -> Option<Arc<Recipient>> {
        self.lock().get(&session)?.upgrade()
    }

    /// Those whom an instance is for.
    fn of(&self, instance: &InstanceKey) -> Vec<Arc<Recipient>> {
        // Whoever is let go here may be the last one's, and a recipient that ends needs the lock.
        let known: Vec<Arc<Recipient>> = match instance.scope {
            ScopeKey::Session(session) => self.session(session).into_iter().collect(),
            ScopeKey::Named(_) | ScopeKey::Shared => self.lock().values().filter_map(Weak::upgrade).collect(),
        };
        let is_meant = |recipient: &Arc<Recipient>| match &recipient.listens_in {
            Some(scope) => *scope == instance.scope,
            // Clients of a key that have no session are reached by their streams.
            None => !matches!(instance.scope, ScopeKey::Named(_)),
        };
        let of_backend = known.into_iter().filter(|recipient| recipient.backend == instance.backend);
        of_backend.filter(is_meant).collect()
    }

    /// All resources that somebody of an instance wants to hear of.
    pub(super) fn wanted(&self, instance: &InstanceKey) -> BTreeSet<String> {
        self.of(instance).iter().flat_map(|recipient| recipient.wishes().subscriptions.clone()).collect()
    }

    /// A client of an instance that a key names has said what it can be asked.
    pub(super) fn declared(&self, instance: &InstanceKey, capabilities: &str) {
        if capabilities.len() > CAPABILITIES_LEN_MAX {
            return;
        }
        let mut declared = self.declared.lock().unwrap_or_else(PoisonError::into_inner);
        if declared.get(instance).is_some_and(|known| known == capabilities) {
            return;
        }
        if declared.len() >= DECLARED_MAX && !declared.contains_key(instance) {
            // Whoever is forgotten says it again with its next request.
            declared.clear();
        }
        declared.insert(instance.clone(), capabilities.to_owned());
    }

    /// Whether others than `session` want to hear of a resource of this instance.
    pub(super) fn is_wanted_by_others(&self, instance: &InstanceKey, session: u128, uri: &str) -> bool {
        self.of(instance).iter().any(|other| other.session != session && other.wishes().subscriptions.contains(uri))
    }

    /// The lowest level that anybody of the instance wants; none if nobody has said.
    pub(super) fn level(&self, instance: &InstanceKey) -> Option<LogLevel> {
        self.of(instance).iter().filter_map(|recipient| recipient.wishes().level).min()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u128, Weak<Recipient>>> {
        self.recipients.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Recipient {
    pub fn session(&self) -> u128 {
        self.session
    }

    /// Whose server it hears of its own; a session of a shared one hears of that too.
    pub(super) fn instance(&self) -> InstanceKey {
        let scope = self.listens_in.clone().unwrap_or(ScopeKey::Session(self.session));
        InstanceKey { backend: self.backend.clone(), scope }
    }

    /// What the client declared, raw.
    pub(super) fn capabilities(&self) -> &str {
        &self.capabilities
    }

    /// The least severe log message that it hears: all, until it says otherwise.
    pub(super) fn level(&self) -> LogLevel {
        self.wishes().level.unwrap_or(LogLevel::Debug)
    }

    pub(super) fn set_level(&self, level: LogLevel) {
        self.wishes().level = Some(level);
    }

    pub(super) fn subscribe(&self, uri: &str) -> Result<(), TooManySubscriptions> {
        let mut wishes = self.wishes();
        let is_full = wishes.subscriptions.len() >= SUBSCRIPTIONS_MAX && !wishes.subscriptions.contains(uri);
        if is_full || uri.len() > URI_LEN_MAX {
            return Err(TooManySubscriptions);
        }
        wishes.subscriptions.insert(uri.to_owned());
        Ok(())
    }

    pub(super) fn subscriptions(&self) -> BTreeSet<String> {
        self.wishes().subscriptions.clone()
    }

    pub(super) fn unsubscribe(&self, uri: &str) {
        self.wishes().subscriptions.remove(uri);
    }

    /// A stream of the session opens.
    pub fn open(self: &Arc<Self>) -> OpenStream {
        self.streams.fetch_add(1, Ordering::Relaxed);
        OpenStream { recipient: self.clone(), unread: self.wishes().unread.clone() }
    }

    fn has_stream(&self) -> bool {
        self.streams.load(Ordering::Relaxed) > 0
    }

    /// What waits for a stream that nobody holds open, for the next call to take along.
    pub(super) fn hand_over(&self, to: &Outbox) {
        while !self.has_stream() {
            let Some(message) = self.mail.take() else { return };
            to.push(message);
        }
    }

    /// `false` if it is not taken: then whoever does not read is told so by the end of its streams.
    fn tell(&self, notice: Unasked<'_>) -> bool {
        // A slice of the reader's buffer would keep the whole of that for as long as it waits.
        let is_short = notice.line.len() <= COPIED_LEN_MAX;
        let line = if is_short { Bytes::copy_from_slice(notice.line) } else { notice.line.clone() };
        let is_taken = self.mail.push(line);
        if !is_taken {
            std::mem::take(&mut self.wishes().unread).cancel();
        }
        is_taken
    }

    fn wishes(&self) -> MutexGuard<'_, Wishes> {
        self.wishes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Recipient {
    fn drop(&mut self) {
        let Some(audience) = self.among.upgrade() else { return };
        let mut recipients = audience.lock();
        // Taken back in the meantime, it is another one.
        if recipients.get(&self.session).is_some_and(|known| known.strong_count() == 0) {
            recipients.remove(&self.session);
        }
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.recipient.streams.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The supervisor's way to them: one for the whole broker.
#[derive(Debug, Default)]
pub struct Ears(pub Arc<Audience>);

impl supervisor::Audience for Ears {
    fn listener(&self, instance: &InstanceKey) -> Arc<dyn Listener> {
        Arc::new(Hearing { audience: self.0.clone(), instance: instance.clone() })
    }

    fn capabilities(&self, instance: &InstanceKey) -> String {
        match instance.scope {
            ScopeKey::Session(_) => {
                let recipient = self.0.of(instance).into_iter().next();
                recipient.map_or_else(|| "{}".to_owned(), |recipient| recipient.capabilities.to_string())
            }
            ScopeKey::Named(_) => {
                let declared = self.0.declared.lock().unwrap_or_else(PoisonError::into_inner);
                declared.get(instance).map_or_else(|| "{}".to_owned(), |declared| as_legacy(declared))
            }
            // Nobody could be asked who is not somebody else to others.
            ScopeKey::Shared => "{}".to_owned(),
        }
    }

    fn is_listening(&self, instance: &InstanceKey) -> bool {
        self.0.of(instance).iter().any(|recipient| recipient.has_stream())
    }

    fn greeted(&self, instance: &InstanceKey, link: &Link) {
        if let Some(level) = self.0.level(instance) {
            link.hear_logs_from(level);
        }
        link.tell_of(|| self.0.wanted(instance));
    }
}

/// What the server of one instance says.
#[derive(Debug)]
struct Hearing {
    audience: Arc<Audience>,
    instance: InstanceKey,
}

impl Hearing {
    /// The stream of the newest call of those whom a message can only be for.
    fn call(&self, link: &Link, hears: impl Fn(&Caller) -> bool) -> Option<Arc<Outbox>> {
        match self.instance.scope {
            ScopeKey::Session(session) => link.newest_call(|caller| caller.client == session && hears(caller)),
            ScopeKey::Named(_) | ScopeKey::Shared => {
                let sole = link.sole_client()?;
                link.newest_call(|caller| caller.client == sole && hears(caller))
            }
        }
    }

    /// The session whose instance it is.
    fn owner(&self) -> Option<Arc<Recipient>> {
        match self.instance.scope {
            ScopeKey::Session(_) => self.audience.of(&self.instance).into_iter().next(),
            ScopeKey::Named(_) | ScopeKey::Shared => None,
        }
    }

    fn tell(&self, link: &Link, notice: Unasked<'_>, hears: impl Fn(&Caller) -> bool) -> bool {
        match self.call(link, hears) {
            Some(call) => call.push(notice.line.clone()),
            None => self.owner().is_some_and(|owner| owner.tell(notice)),
        }
    }
}

const TOO_MANY: &str = "the client does not keep up with what it is told";

impl Listener for Hearing {
    fn notified(&self, link: &Link, notice: Unasked<'_>) -> bool {
        match notice.method {
            // The lists that clients see are the reviewed ones; they do not change with the server's.
            "notifications/tools/list_changed"
            | "notifications/prompts/list_changed"
            | "notifications/resources/list_changed" => false,
            // Of the broker's own subscription.
            "notifications/subscriptions/acknowledged" => true,
            "notifications/resources/updated" => {
                let uri = notice.params.and_then(|params| members(params, ["uri"]).ok()?[0]).and_then(string);
                let Some(uri) = uri else { return false };
                let wants = |recipient: &Arc<Recipient>| recipient.wishes().subscriptions.contains(&*uri);
                let wanting = self.audience.of(&self.instance).into_iter().filter(wants);
                wanting.filter(|recipient| recipient.tell(notice)).count() > 0
            }
            "notifications/message" => {
                let level = LogLevel::of(notice.params, "level").unwrap_or(LogLevel::Emergency);
                if self.owner().is_some_and(|owner| level < owner.level()) {
                    return false;
                }
                self.tell(link, notice, |caller| caller.logs.is_some_and(|least| level >= least))
            }
            _ => self.tell(link, notice, |_| true),
        }
    }

    fn asked(&self, link: &Link, question: Unasked<'_>, id: &str) -> Result<(), String> {
        let backend = &self.instance.backend;
        let owner = match self.instance.scope {
            ScopeKey::Session(_) => self.owner().ok_or("the session has ended")?,
            ScopeKey::Named(_) => {
                // All of the key's requests are one client's; which of them it is about matters to nobody.
                let takes = |caller: &Caller| caller.answers.takes(question.method);
                // Else that of a client who is about to come back: it is asked then.
                let call = link.newest_call(takes).or_else(|| link.newest_parked_call(takes));
                let call = call.ok_or("no call of its client is out, or it has not said that it can be asked this")?;
                return if link.ask(question, id, &call) { Ok(()) } else { Err(TOO_MANY.to_owned()) };
            }
            ScopeKey::Shared => {
                return Err(format!("'{backend}' is shared, and whose question this is cannot be told"));
            }
        };
        let to = self.call(link, |_| true).unwrap_or_else(|| owner.mail.clone());
        if link.ask(question, id, &to) { Ok(()) } else { Err(TOO_MANY.to_owned()) }
    }
}

/// What a modern client declares, of what a legacy server can make something of.
fn as_legacy(capabilities: &str) -> String {
    let all = entries(capabilities).unwrap_or_default().into_iter();
    object(all.filter(|(key, _)| matches!(&**key, "roots" | "sampling" | "elicitation" | "experimental")))
}

/// Tasks are not relayed, so a server must not think that its client takes them.
fn without_tasks(capabilities: &str) -> String {
    match entries(capabilities) {
        Ok(all) if capabilities.len() <= CAPABILITIES_LEN_MAX => {
            let has_tasks = all.iter().any(|(key, _)| key == "tasks");
            let kept = all.into_iter().filter(|(key, _)| key != "tasks");
            if has_tasks { object(kept) } else { capabilities.to_owned() }
        }
        _ => "{}".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recipient_is_known_for_as_long_as_its_session() {
        let audience = Arc::new(Audience::default());
        let backend: Arc<str> = "x".into();
        let one = audience.enter(&backend, 1, "{}");
        let again = audience.enter(&backend, 1, "{}");
        drop(one);
        let instance = InstanceKey { backend: backend.clone(), scope: ScopeKey::Session(1) };
        assert_eq!(audience.of(&instance).len(), 1, "the first one's end is not the second one's");
        drop(again);
        assert!(audience.of(&instance).is_empty() && audience.lock().is_empty());
    }

    #[test]
    fn wishes_are_bounded_and_shared_ones_are_counted() {
        let audience = Arc::new(Audience::default());
        let backend: Arc<str> = "x".into();
        let [a, b] = [1, 2].map(|session| audience.enter(&backend, session, "{}"));
        let shared = InstanceKey { backend, scope: ScopeKey::Shared };
        a.subscribe("u").unwrap();
        assert!(!audience.is_wanted_by_others(&shared, 1, "u") && audience.is_wanted_by_others(&shared, 2, "u"));
        b.set_level(LogLevel::Error);
        a.set_level(LogLevel::Info);
        assert_eq!(audience.level(&shared), Some(LogLevel::Info));
        for n in 1..SUBSCRIPTIONS_MAX {
            a.subscribe(&n.to_string()).unwrap();
        }
        assert_eq!((a.subscribe("more"), a.subscribe("u")), (Err(TooManySubscriptions), Ok(())));
    }

    #[test]
    fn tasks_are_not_declared() {
        assert_eq!(without_tasks(r#"{"roots":{ },"tasks":{}}"#), r#"{"roots":{ }}"#);
        assert_eq!(without_tasks(r#"{ "roots":{ } }"#), r#"{ "roots":{ } }"#);
        assert_eq!(without_tasks("[]"), "{}");
    }
}
