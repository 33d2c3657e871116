//! What a server says and asks, as the policy's rules leave it for its client.

use std::fmt;

use bytes::Bytes;

use super::Common;
use crate::policy::{PayloadKind, ResultRules};
use crate::protocol::call::parse_text;
use crate::protocol::envelope::Message;
use crate::protocol::error::{INTERNAL_ERROR, RpcError};
use crate::protocol::raw::{replaced, span};
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
    let Some(params) = params else { return Ok(message) };
    match rules.apply(params, PayloadKind::Params) {
        Ok(None) => Ok(message),
        Ok(Some(new)) => Ok(replaced(&message, &mut [(span(text, params), new.as_bytes())]).into()),
        Err(failure) => Err(Withheld::of(backend, question, &failure)),
    }
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
