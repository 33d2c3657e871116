//! What a server says and asks, as the policy's rules leave it for its client.

use std::fmt;
use std::ops::Range;

use bytes::Bytes;

use super::Common;
use crate::policy::{PayloadKind, ResultRules, RuleFailure};
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
    let (params, question) = match said {
        Message::Request { id, params, .. } => (params, id.parse().ok()),
        Message::Notification { params, .. } => (params, None),
        // An answer goes through `finish.rs`.
        Message::Response { .. } => return Err(Withheld::of(backend, None, &"a response to nothing")),
    };
    let params = params.map_or(Ok(None), |params| {
        rules.apply(params, PayloadKind::Params).map(|new| new.map(|new| (span(text, params), new)))
    });
    match params.and_then(|params| Ok(params.into_iter().chain(ruled_strangers(rules, text)?).collect())) {
        Ok(edits) => Ok(edited(message, edits)),
        Err(failure) => Err(Withheld::of(backend, question, &failure)),
    }
}

/// What the rules make of a response beside its payload: of members that JSON-RPC gives no meaning, and that a client may
/// show all the same. `None` if they change nothing.
pub(super) fn ruled_around(rules: &ResultRules, answer: &Answer) -> Result<Option<Answer>, RuleFailure> {
    if rules.is_empty() || !answer.has_strangers() {
        return Ok(None);
    }
    let text = std::str::from_utf8(answer.line()).unwrap_or_default();
    let edits = ruled_strangers(rules, text)?;
    if edits.is_empty() {
        return Ok(None);
    }
    let line = edited(answer.line().clone(), edits);
    Ok(Some(Answer::read(&line).expect("it is the response that it was, but for values that make it none")))
}

/// A span of a message and what stands there instead.
type Edit = (Range<usize>, String);

fn ruled_strangers(rules: &ResultRules, text: &str) -> Result<Vec<Edit>, RuleFailure> {
    let mut edits = Vec::new();
    for (key, value) in strangers(text) {
        // With its key, because rules go by keys too.
        if let Some(new) = rules.apply(&object([(&key, value)]), PayloadKind::Params)? {
            let new = entries(&new).ok().and_then(|entries| Some(entries.first()?.1.to_owned()));
            edits.push((span(text, value), new.unwrap_or_else(|| "null".to_owned())));
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
