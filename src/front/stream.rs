//! Event streams: calls that have something to say before their answer, and streams that wait for news.
//!
//! Server-sent events as the WHATWG HTML standard frames them; comments keep idle streams alive.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use futures_util::stream::unfold;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::places::Place;
use super::replay::EventId;
use super::respond;
use super::resume::Reader;
use crate::broker::{Broker, Call, CallEvent, Listening, OpenStream, Recipient, Reply};
use crate::protocol::raw::Pieces;
use crate::protocol::subscription::of_subscription;
use crate::snapshot::ListDigests;

/// Between two comments on a silent stream. Proxies and clients commonly give up after 30 to 60 seconds.
pub(super) const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// One message as one event, with an id where somebody can come back for what follows it. A server's message has no line feed, but it may have a carriage return between tokens,
/// which ends a line of an event as well; a space there means the same.
pub(super) fn event(id: Option<EventId>, message: &[u8]) -> Bytes {
    let id = id.map(|id| format!("id: {id}\n")).unwrap_or_default();
    let mut event = [id.as_bytes(), b"event: message\ndata: ", message, b"\n\n"].concat();
    if message.contains(&b'\r') {
        event.iter_mut().filter(|byte| **byte == b'\r').for_each(|byte| *byte = b' ');
    }
    event.into()
}

/// A sign of life.
pub(super) fn comment() -> Bytes {
    Bytes::from_static(b": still here\n\n")
}

/// The rest of a call as a stream: `first` is what it said already, `None` for a sign of life. Dropping the body is
/// the caller's going away. Sessions have `resume::of_call`.
pub(super) fn of_call(call: Call, first: Option<Bytes>) -> Body {
    struct State {
        call: Call,
        first: Option<Bytes>,
        is_over: bool,
    }
    let first = first.map_or_else(comment, |message| event(None, &message));
    let state = State { call, first: Some(first), is_over: false };
    Body::from_stream(unfold(state, |mut state| async move {
        if let Some(first) = state.first.take() {
            return Some((Ok::<_, Infallible>(first), state));
        }
        if state.is_over {
            return None;
        }
        let chunk = match state.call.next().await {
            CallEvent::Notice(message) => event(None, &message),
            CallEvent::Quiet => comment(),
            CallEvent::Ended(reply) => {
                state.is_over = true;
                event(None, &answer(&state.call, reply).joined())
            }
        };
        Some((Ok(chunk), state))
    }))
}

/// How a call ended, as one message.
pub(super) fn answer(call: &Call, reply: Reply) -> Pieces {
    let id = call.id();
    respond::reply(reply, &String::from_utf8_lossy(&id), &call.backend().name, call.era())
}

/// One message as a stream of one event, for a client that takes nothing else.
pub(super) fn of_message(message: Pieces) -> Body {
    Body::from(event(None, &message.joined()))
}

/// What a stream that waits for news is told.
pub(super) struct News {
    pub broker: Arc<Broker>,
    pub backend: Arc<str>,
    pub revisions: watch::Receiver<u64>,
    /// The lists that the client has been told of, or can have seen when it came.
    pub known: ListDigests,
    /// Ends the stream: its session's end.
    pub ended: Option<CancellationToken>,
    pub shutdown: CancellationToken,
    /// Sent first.
    pub greeting: Option<String>,
    pub changed: Changed,
    /// Sent when the broker ends the stream.
    pub farewell: Option<String>,
    /// What servers say to the stream's session, or of what the stream listens to.
    pub mail: Option<OpenStream>,
    /// What makes a modern client hear of resources, for as long as it holds the stream open.
    #[expect(dead_code, reason = "held for as long as the stream, never looked into")]
    pub listening: Option<Listening>,
    /// The id of a modern client's subscription, raw.
    pub subscription: Option<String>,
    /// A place among the streams, given back with this one.
    #[expect(dead_code, reason = "held for as long as the stream, never looked into")]
    pub place: Place,
    /// Of a session's stream: what was said goes through it, so that its client can come back.
    pub reader: Option<Reader>,
}

/// The messages for each change of a list; `None` if the client did not ask.
#[derive(Clone, Debug, Default)]
pub(super) struct Changed {
    pub tools: Option<String>,
    pub prompts: Option<String>,
    pub resources: Option<String>,
}

impl Changed {
    /// As legacy streams carry them: all that the backend may offer.
    pub fn legacy() -> Self {
        let changed = |of: &str| Some(format!(r#"{{"jsonrpc":"2.0","method":"notifications/{of}/list_changed"}}"#));
        Self { tools: changed("tools"), prompts: changed("prompts"), resources: changed("resources") }
    }
}

impl News {
    /// The stream; it costs a task nothing and keeps nothing awake.
    pub fn into_body(self) -> Body {
        let opening = self.reader.as_ref().and_then(Reader::opening);
        let greeting = self.greeting.as_ref().map(|greeting| event(None, greeting.as_bytes()));
        let first = Some(opening.or(greeting).unwrap_or_else(comment));
        Body::from_stream(unfold((self, first, false), |(mut news, first, is_over)| async move {
            if let Some(first) = first {
                return Some((Ok::<_, Infallible>(first), (news, None, is_over)));
            }
            if is_over {
                return None;
            }
            match news.next().await {
                Some(chunk) => Some((Ok(chunk), (news, None, false))),
                None => {
                    let farewell = news.farewell.take()?;
                    Some((Ok(event(None, farewell.as_bytes())), (news, None, true)))
                }
            }
        }))
    }

    /// The message for one list that is another now, if there is such a list that the client wants to hear of.
    fn told_of(&mut self, lists: ListDigests) -> Option<String> {
        let Self { known, changed, .. } = self;
        let each = [
            (&mut known.tools, lists.tools, &changed.tools),
            (&mut known.prompts, lists.prompts, &changed.prompts),
            (&mut known.resources, lists.resources, &changed.resources),
        ];
        for (known, list, message) in each {
            if std::mem::replace(known, list) != list
                && let Some(message) = message
            {
                return Some(message.clone());
            }
        }
        None
    }

    /// The event of a message, unless it comes by way of the reader.
    fn said(&self, message: &[u8]) -> Option<Bytes> {
        match &self.reader {
            Some(reader) => {
                reader.say(message);
                None
            }
            None => Some(event(None, message)),
        }
    }

    async fn next(&mut self) -> Option<Bytes> {
        let quiet = tokio::time::sleep(KEEP_ALIVE);
        tokio::pin!(quiet);
        loop {
            // First what is there already: a stream that its client has come back to begins with what it missed.
            if let Some(reader) = &mut self.reader
                && let Some(chunk) = reader.take()?
            {
                return Some(chunk);
            }
            // However many revisions came since, the list is another one or it is not.
            let lists = lists_of(&self.broker, &self.backend)?;
            if let Some(message) = self.told_of(lists) {
                match self.said(message.as_bytes()) {
                    Some(chunk) => return Some(chunk),
                    None => continue,
                }
            }
            tokio::select! {
                // Each arm is cancel safe: tokens stay cancelled, a watch keeps what was not seen, the timer is ours.
                () = self.shutdown.cancelled() => return None,
                () = ended(self.ended.as_ref()) => return None,
                () = &mut quiet => return Some(comment()),
                () = ended(self.mail.as_ref().map(|mail| &mail.unread)) => return None,
                // A message that was taken is sent: nothing is awaited in between.
                Some((recipient, message)) = next_of(self.mail.as_ref()) => {
                    let ruled = self.broker.ruled_for_all(recipient, message);
                    let told = ruled.map(|message| of_subscription(message, self.subscription.as_deref()));
                    if let Some(chunk) = told.and_then(|message| self.said(&message)) {
                        return Some(chunk);
                    }
                }
                () = changed(self.reader.as_mut()) => {}
                changed = self.revisions.changed() => changed.ok()?,
            }
        }
    }
}

/// The lists that clients of a backend see now; `None` if it is not served any more.
fn lists_of(broker: &Broker, backend: &str) -> Option<ListDigests> {
    broker.snapshot().backend(backend).map(|backend| backend.surface.digests())
}

async fn next_of(mail: Option<&OpenStream>) -> Option<(&Recipient, Bytes)> {
    match mail {
        Some(mail) => Some((&mail.recipient, mail.recipient.mail.next().await?)),
        None => std::future::pending().await,
    }
}

async fn changed(reader: Option<&mut Reader>) {
    match reader {
        Some(reader) => reader.changed().await,
        None => std::future::pending().await,
    }
}

async fn ended(token: Option<&CancellationToken>) {
    match token {
        Some(token) => token.cancelled().await,
        None => std::future::pending().await,
    }
}
