//! What becomes of a server's answer before a client sees it: the policy's rules, what is too large for the answer, and
//! the schema that it has to fit.

use std::sync::Arc;

use bytes::Bytes;

use super::call::Reply;
use super::decisions::{Decider, withheld};
use super::resources::Shelf;
use super::ruled::ruled_around;
use crate::events::What;
use crate::policy::{Acted, Media, OutputSchema, PayloadKind, ToolPlan, decided_by, fitting};
use crate::protocol::answer::{Answer, Passage};

/// Results from this length on, in bytes, are rewritten off the runtime's threads.
const ASIDE_LEN: usize = 128 * 1024;

/// The name in events of all rules over one answer, where they failed on it together.
const RULES: &str = "results";

/// Everything that an answer goes through, in one piece that can be handed to another thread.
#[derive(Debug)]
pub(super) struct Finish {
    /// The client's id, raw.
    pub id: Bytes,
    pub passage: Passage,
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
    /// Whether it is nothing for the runtime's threads: much to read, or something that may have to go to a disk.
    pub fn is_aside(&self, answer: &Answer) -> bool {
        let len = answer.line().len();
        len >= ASIDE_LEN || self.plan.results.keeps_media_from().is_some_and(|from| len as u64 >= from)
    }

    /// Finishes where that may be done. Cancelled, it is done in vain.
    pub async fn settle(self, answer: Answer, hooked: Hooked) -> Reply {
        if !self.is_aside(&answer) {
            return self.finish(&answer, hooked);
        }
        let decider = self.decider.clone();
        let task = tokio::task::spawn_blocking(move || self.finish(&answer, hooked));
        // A task that panics has rewritten nothing.
        task.await.unwrap_or_else(|panic| withheld(&decider, Some(RULES.to_owned()), &panic))
    }

    /// Rules run after the hook, so that it cannot undo what they do; the schema is held against what is left then.
    /// May take a millisecond and write files.
    pub fn finish(&self, answer: &Answer, hooked: Hooked) -> Reply {
        let kind = if answer.is_error { PayloadKind::Error } else { PayloadKind::Result };
        let current = hooked.payload.as_deref().unwrap_or(answer.payload());
        let mut keep = |media: &Media<'_>| self.shelf.as_ref()?.keep(media);
        let rules = &self.plan.results;
        let mut acted = Acted::default();
        let ruled = rules.apply_telling(current, kind, &mut keep, &mut acted);
        let (ruled, around) = match ruled.and_then(|ruled| Ok((ruled, ruled_around(rules, answer, &mut acted)?))) {
            Ok(both) => both,
            Err(failure) => return withheld(&self.decider, Some(RULES.to_owned()), &failure),
        };
        let has_ruled = ruled.is_some() || around.is_some();
        let rules_that_did = rules.places(acted).filter(|_| has_ruled);
        let rule = decided_by(hooked.rule.as_deref().into_iter().chain(rules_that_did));
        let mut payload = ruled.or(hooked.payload);
        if let (Some(schema), false) = (&self.output, answer.is_error)
            && let Some(changed) = payload.take()
        {
            let backend = &*self.decider.backend.name;
            match fitting(schema, backend, answer.payload(), changed) {
                Ok(fitting) => {
                    if let Some(unfit) = fitting.unfit {
                        tracing::warn!(backend, %unfit, "a structured result that a policy changed was taken out");
                    }
                    payload = Some(fitting.payload);
                }
                Err(failure) => return withheld(&self.decider, rule, &failure),
            }
        }
        if payload.is_some() || around.is_some() {
            self.decider.tell(rule, |decision| What::ResultRewritten { decision });
        }
        Reply::of(around.as_ref().unwrap_or(answer), &self.id, payload, self.passage)
    }
}
