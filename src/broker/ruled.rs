//! What a server says and asks, as the policy's rules leave it for its client.

use std::fmt;
use std::ops::Range;

use bytes::Bytes;

use super::Common;
use crate::policy::{Acted, PayloadKind, ResultRules, RuleFailure};
use crate::protocol::answer::Answer;
use crate::protocol::call::parse_text;
use crate::protocol::envelope::{Message, strangers};
use crate::protocol::error::{INTERNAL_ERROR, RpcError};
use crate::protocol::raw::{entries, object, replaced, span};
use crate::supervisor::InstanceKey;

/// A message that the rules failed on, or that is none. Nobody knows what they would have taken out, so it never leaves
/// (invariant 11).
#[derive(Debug)]
pub(super) struct Withheld {
    /// The id that the client would have known it by, of a question.
    question: Option<u64>,
}

impl Withheld {
    fn of(backend: &str, question: Option<u64>, failure: &dyn fmt::Display) -> Self {
        tracing::warn!(backend, %failure, "a message of a server was withheld");
        Self { question }
    }
}

/// A notification or question of a server as the rules leave it.
pub(super) fn ruled(rules: &ResultRules, backend: &str, message: Bytes) -> Result<Bytes, Withheld> {
    if rules.is_empty() {
        return Ok(message);
    }
    let (text, said) = parse_text(&message).map_err(|none| Withheld::of(backend, None, &none.error.message))?;
    let (params, question) = match &said {
        Message::Request { id, params, .. } => (*params, id.parse().ok()),
        Message::Notification { params, .. } => (*params, None),
        // An answer goes through `finish.rs`.
        Message::Response { .. } => return Err(Withheld::of(backend, None, &"a response to nothing")),
    };
    match edits_of(rules, text, &said, params, &mut Acted::default()) {
        Ok(edits) => Ok(edited(message, edits)),
        Err(failure) => Err(Withheld::of(backend, question, &failure)),
    }
}

/// What the rules make of a response beside its payload: of members that JSON-RPC gives no meaning, and that a client may
/// show all the same. `None` if they change nothing.
pub(super) fn ruled_around(
    rules: &ResultRules,
    answer: &Answer,
    acted: &mut Acted,
) -> Result<Option<Answer>, RuleFailure> {
    if rules.is_empty() || !answer.has_strangers() {
        return Ok(None);
    }
    let (text, response) = parse_text(answer.line()).map_err(|_| RuleFailure::NotJson { at: 0 })?;
    let edits = edits_of(rules, text, &response, None, acted)?;
    if edits.is_empty() {
        return Ok(None);
    }
    let line = edited(answer.line().clone(), edits);
    Ok(Some(Answer::read(&line).expect("it is the response that it was, but for values that make it none")))
}

/// A span of a message and what stands there instead.
type Edit = (Range<usize>, String);

/// What the rules want changed in a message: in its `params`, and in what JSON-RPC gives no meaning.
fn edits_of(
    rules: &ResultRules,
    text: &str,
    message: &Message<'_>,
    params: Option<&str>,
    acted: &mut Acted,
) -> Result<Vec<Edit>, RuleFailure> {
    let mut apply = |payload: &str, kind| rules.apply_telling(payload, kind, &mut |_| None, acted);
    let mut edits = Vec::new();
    if let Some(params) = params
        && let Some(new) = apply(params, PayloadKind::Params)?
    {
        edits.push((span(text, params), new));
    }
    let strangers = strangers(text, message).map_err(|_| RuleFailure::NotJson { at: 0 })?;
    // Together, because rules go by names beside values too.
    let Some(new) = apply(&object(strangers.clone()), PayloadKind::Unknown)? else { return Ok(edits) };
    let new = entries(&new).map_err(|_| RuleFailure::NotJson { at: 0 })?;
    let are_the_same = new.iter().map(|(key, _)| key).eq(strangers.iter().map(|(key, _)| key));
    for (at, (_, value)) in strangers.iter().enumerate() {
        // Of what was dropped as a whole nothing stays.
        let new = if are_the_same { new[at].1 } else { "null" };
        if new != *value {
            edits.push((span(text, value), new.to_owned()));
        }
    }
    Ok(edits)
}

fn edited(message: Bytes, edits: Vec<Edit>) -> Bytes {
    if edits.is_empty() {
        return message;
    }
    let mut edits: Vec<_> = edits.iter().map(|(span, new)| (span.clone(), new.as_bytes())).collect();
    replaced(&message, &mut edits).into()
}

impl Common {
    /// A question that its client never sees is answered in the client's place: whoever asked would wait for the end of
    /// its call.
    pub(super) fn answer_withheld(&self, instance: &InstanceKey, session: u128, withheld: &Withheld) {
        let Some(id) = withheld.question else { return };
        let why = format!("the question was withheld: the policy of '{}' failed on it", instance.backend);
        // No id is given twice, so it is one of these two at most: a question of the server, or one out of a result.
        if let Some(link) = self.supervisor.find(instance).and_then(|slot| slot.link()) {
            link.refuse_to_answer(id, &why);
        }
        self.awaited.give(session, id, Err(RpcError::new(INTERNAL_ERROR, why).to_json()));
    }
}
