//! What becomes of a server's answer before a client sees it: the policy's rules, what is too large for the answer, and
//! the schema that it has to fit.

use bytes::Bytes;

use super::call::Reply;
use super::decisions::{Decider, withheld};
use super::resources::Shelf;
use super::structured;
use crate::events::What;
use crate::policy::{Media, PayloadKind, ToolPlan};
use crate::protocol::call::Answer;
use crate::protocol::version::Era;
use crate::snapshot::OutputSchema;
use std::sync::Arc;

/// The rules over one answer have this name in events; they have no lines of their own yet.
const RULES: &str = "results";

/// Everything that an answer goes through, in one piece that can be handed to another thread.
#[derive(Debug)]
pub(super) struct Finish {
    /// The client's id, raw.
    pub id: Bytes,
    pub era: Era,
    pub plan: Arc<ToolPlan>,
    pub output: Option<Arc<OutputSchema>>,
    /// Where the generation that answered keeps what is too large; only if a rule asks for it.
    pub shelf: Option<Shelf>,
    pub decider: Decider,
}

/// What a hook made of a result, and which.
#[derive(Debug, Default)]
pub(super) struct Hooked {
    pub payload: Option<String>,
    pub rule: Option<String>,
}

impl Finish {
    /// Rules run after the hook, so that it cannot undo what they do; the schema is held against what is left then.
    /// May take a millisecond and write files.
    pub fn finish(&self, answer: &Answer, hooked: Hooked) -> Reply {
        let kind = if answer.is_error { PayloadKind::Error } else { PayloadKind::Result };
        let current = hooked.payload.as_deref().unwrap_or(answer.payload());
        let mut keep = |media: &Media<'_>| self.shelf.as_ref()?.keep(media);
        let ruled = match self.plan.results.apply_keeping(current, kind, &mut keep) {
            Ok(ruled) => ruled,
            Err(failure) => return withheld(&self.decider, Some(RULES.to_owned()), &failure),
        };
        let rule = hooked.rule.or(ruled.is_some().then(|| RULES.to_owned()));
        let mut payload = ruled.or(hooked.payload);
        if let (Some(schema), false) = (&self.output, answer.is_error)
            && let Some(changed) = payload.take()
        {
            match structured::fitting(schema, &self.decider.backend.name, answer.payload(), changed) {
                Ok(fitting) => payload = Some(fitting),
                Err(failure) => return withheld(&self.decider, rule, &failure),
            }
        }
        if payload.is_some() {
            self.decider.tell(rule, |decision| What::ResultRewritten { decision });
        }
        Reply::Message(answer.reply(&self.id, payload, self.era))
    }
}
