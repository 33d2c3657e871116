//! What came back: an answer and what the policy makes of it, or why there is none.

use bytes::Bytes;

use super::{Call, Ended, Phase, Reply};
use crate::broker::decisions::{Later, facts, withheld};
use crate::broker::fault::Fault;
use crate::broker::finish::{Finish, Hooked};
use crate::broker::resources::Shelf;
use crate::broker::ruled::ruled;
use crate::events::What;
use crate::link::Outcome;
use crate::policy::ResultVerdict;
use crate::protocol::answer::{Answer, Passage};

impl Call {
    pub(super) fn end(&self, outcome: Outcome) -> Ended {
        let backend = &self.backend.name;
        Ended::Now(Reply::Fault(match outcome {
            Outcome::Answered(answer) => return self.answer(answer),
            Outcome::TooLarge { len, max } => Fault::result_too_large(backend, len, max),
            Outcome::Cancelled => Fault::cancelled(),
            Outcome::TimedOut => Fault::call_timeout(backend, self.allowed()),
            Outcome::Lost(loss) => Fault::lost(backend, loss),
        }))
    }

    fn answer(&self, answer: Answer) -> Ended {
        // A hook is about results; errors are the rules' alone.
        if self.plan.has_on_result() && !answer.is_error {
            return Ended::Aside(self.judged_result(answer));
        }
        if self.plan.results.is_empty() {
            return Ended::Now(Reply::of(&answer, &self.request.id(), None, self.passage()));
        }
        let finish = self.finish();
        if finish.is_aside(&answer) {
            Ended::Aside(Later::new(finish.settle(answer, Hooked::default())))
        } else {
            Ended::Now(finish.finish(&answer, Hooked::default()))
        }
    }

    /// The reply as `on_result` and then the rules leave it.
    fn judged_result(&self, answer: Answer) -> Later<Reply> {
        let facts = facts(&self.client, &self.request, self.arguments.as_deref().or(self.request.arguments()));
        let asked = self.plan.ask_on_result(facts, answer.payload_bytes());
        let finish = self.finish();
        Later::new(async move {
            let judged = asked.await;
            let payload = match judged.verdict {
                ResultVerdict::Pass { payload } => payload,
                ResultVerdict::Withheld { reason } => {
                    finish.decider.tell(judged.rule, |decision| What::ResultWithheld { decision });
                    return Reply::Fault(Fault::withheld(&finish.decider.backend.name, &reason));
                }
                ResultVerdict::Failed(failure) => return withheld(&finish.decider, judged.rule, &failure),
            };
            finish.settle(answer, Hooked { payload, rule: judged.rule }).await
        })
    }

    fn finish(&self) -> Finish {
        let keeps_media = self.plan.results.keeps_media_from().is_some();
        Finish {
            id: self.request.id(),
            passage: self.passage(),
            plan: self.plan.clone(),
            output: self.output.clone(),
            shelf: if keeps_media { self.shelf() } else { None },
            decider: self.decider(),
        }
    }

    /// Between whom the answer goes.
    pub(super) fn passage(&self) -> Passage {
        let server = match &self.phase {
            Phase::Running { link, .. } => link.era(),
            _ => self.client.era,
        };
        Passage { client: self.client.era, server, is_read: self.request.is_read() }
    }

    /// Where the generation that answers keeps what is too large for the answer.
    fn shelf(&self) -> Option<Shelf> {
        match &self.phase {
            Phase::Running { slot, generation, .. } => Shelf::of_generation(slot, *generation),
            _ => None,
        }
    }

    /// A message of the server as the policy's rules leave it.
    pub(super) fn ruled(&self, message: Bytes) -> Option<Bytes> {
        let ruled = ruled(&self.plan.results, &self.backend.name, message);
        ruled.map_err(|withheld| self.common.answer_withheld(&self.instance(), self.client.key, &withheld)).ok()
    }
}
