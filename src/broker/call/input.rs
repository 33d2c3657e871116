//! What a server wants to know of a client in the middle of a call, where the two speak of that in different manners
//! (2025-11-25, `client`; 2026-07-28, `basic/patterns/mrtr`).
//!
//! Where they speak alike, nothing is done here: a question is a message like others, and a result that asks is a result.
//! A legacy server that asks a modern client ends the client's request with `input_required`, and the call waits among
//! `parked.rs`. A modern server that asks a legacy client gets its answers by a second request of the same call, which
//! the client does not see.

use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

use bytes::Bytes;
use serde_json::Value;

use super::{Call, Ended, Phase, Reply};
use crate::broker::awaited::{Expected, Given};
use crate::broker::undecided::Asking;
use crate::link::{Outbox, Outcome};
use crate::protocol::call::{CallRequest, parse_text};
use crate::protocol::envelope::Message;
use crate::protocol::error::{INTERNAL_ERROR, RpcError};
use crate::protocol::raw::{entries, members, object, string, with_members};
use crate::protocol::version::Era;

/// Rounds of questions that one call may take: a server that asks for ever is no use to anybody.
const ROUNDS_MAX: u32 = 16;

/// Questions of one result.
const QUESTIONS_MAX: usize = 64;

/// Questions of a result, on their way to a legacy client and back.
#[derive(Debug)]
pub(super) struct Round {
    expected: Expected,
    /// The server's names for its questions, in the order of `expected`.
    keys: Vec<String>,
    given: BTreeMap<usize, String>,
    /// The server's own state, raw.
    state: Option<String>,
    /// What the client hears before and with the questions.
    to_send: VecDeque<Bytes>,
    /// No slot knows the call now, and it can be cancelled all the same.
    asking: Asking,
}

/// What a round comes to next.
pub(super) enum Step {
    Send(Bytes),
    Answered(usize, Given),
    Cancelled,
}

impl Round {
    /// Cancel safe: everything is kept.
    pub async fn next(&mut self) -> Step {
        if let Some(message) = self.to_send.pop_front() {
            return Step::Send(message);
        }
        tokio::select! {
            biased;
            () = self.asking.cancelled() => Step::Cancelled,
            (place, given) = self.expected.next() => Step::Answered(place, given),
        }
    }
}

/// A question of a result as a request under this id: its method and params, and whatever else it has but for what is
/// the broker's to say. `None` if nothing comes of it that a client could answer.
fn as_request(question: &str, id: u64) -> Option<Bytes> {
    let ours = format!(r#""jsonrpc":"2.0","id":{id}"#);
    let request: Bytes = match members(question, ["jsonrpc", "id", "params"]).ok()? {
        [None, None, params] if params != Some("null") => with_members(question, &ours),
        _ => {
            let is_theirs = |key: &str, value: &str| match key {
                "jsonrpc" | "id" => false,
                "params" => value != "null",
                _ => true,
            };
            let theirs = entries(question).ok()?.into_iter().filter(|(key, value)| is_theirs(key, value));
            with_members(&object(theirs), &ours)
        }
    }
    .into();
    matches!(parse_text(&request), Ok((_, Message::Request { .. }))).then_some(request)
}

impl Call {
    /// Of a modern server's result for a legacy client: what it asks, if it asks. The error is for the client, which
    /// could not make anything of the result.
    pub(super) fn round_of(&self, outcome: &Outcome, notices: &Outbox) -> Option<Result<Round, RpcError>> {
        let Outcome::Answered(answer) = outcome else { return None };
        let recipient = self.client.recipient.as_ref()?;
        if answer.is_error || self.passage().server == Era::Legacy {
            return None;
        }
        let [kind, requests, state] =
            members(answer.payload(), ["resultType", "inputRequests", "requestState"]).ok()?;
        if kind.and_then(string).as_deref() != Some("input_required") {
            return None;
        }
        let cannot = |why: &str| RpcError::new(INTERNAL_ERROR, format!("the server asked for input, and {why}"));
        let Ok(questions) = requests.map(entries).transpose().map(Option::unwrap_or_default) else {
            return Some(Err(cannot("its questions are no object")));
        };
        if questions.len() > QUESTIONS_MAX {
            return Some(Err(cannot(&format!("for more than {QUESTIONS_MAX} answers at once"))));
        }
        let expected = self.common.awaited.expect(recipient.session(), questions.len());
        let asked = expected.ids.iter().zip(&questions).map(|(id, (_, question))| as_request(question, *id));
        let Some(asked) = asked.collect::<Option<Vec<_>>>() else {
            return Some(Err(cannot("one of its questions is no request")));
        };
        let to_send = std::iter::from_fn(|| notices.take()).chain(asked).collect();
        Some(Ok(Round {
            expected,
            keys: questions.into_iter().map(|(key, _)| key.into_owned()).collect(),
            given: BTreeMap::new(),
            state: state.map(str::to_owned),
            to_send,
            asking: self.common.undecided.enter(self.client.key, self.request.id()),
        }))
    }

    /// Begins a round, or ends the call because there were too many.
    pub(super) fn ask(&mut self, round: Round) {
        self.rounds += 1;
        if self.rounds > ROUNDS_MAX {
            let error = RpcError::invalid_request("the server asked too often and the call was given up");
            self.phase = Phase::ended(Reply::Error(error));
            return;
        }
        // A result may ask nothing and only want to be asked anew.
        match round.keys.is_empty() {
            true => self.ask_anew(&round),
            false => self.phase = Phase::Asking(Box::new(round)),
        }
    }

    /// An answer of the client has come.
    pub(super) fn take_answer(&mut self, place: usize, given: Given) {
        let Phase::Asking(round) = &mut self.phase else { return };
        match given {
            Ok(result) => {
                round.given.insert(place, result);
            }
            Err(error) => {
                let [code, message] = members(&error, ["code", "message"]).unwrap_or_default();
                let message = message.and_then(string).unwrap_or_default();
                let code = code.and_then(|code| code.parse().ok()).unwrap_or(INTERNAL_ERROR);
                let error = RpcError::new(code, format!("the client did not answer what the server asked: {message}"));
                self.phase = Phase::ended(Reply::Error(error));
                return;
            }
        }
        if round.given.len() < round.keys.len() {
            return;
        }
        let nothing = Phase::Ending { notices: None, ended: Ended::Told };
        if let Phase::Asking(round) = std::mem::replace(&mut self.phase, nothing) {
            self.ask_anew(&round);
        }
    }

    /// The same request with what the client said: a new request of its own, not the old one written again.
    fn ask_anew(&mut self, round: &Round) {
        let mut extra = Vec::new();
        if !round.keys.is_empty() {
            let answers = object(round.given.iter().map(|(at, answer)| (&round.keys[*at], answer)));
            extra.push(format!(r#""inputResponses":{answers}"#));
        }
        extra.extend(round.state.as_ref().map(|state| format!(r#""requestState":{state}"#)));
        self.extra = extra.join(",");
        // The time that its client took is no time in the queue.
        self.queued_since = Instant::now();
        self.phase = self.enter();
        self.give_up_if_cancelled(&round.asking);
    }

    /// Whether a message is about a question of a legacy server to a modern client, which does not hear of it in this
    /// manner: a question is noted, and the client's request has to end with it; of one that is withdrawn the link knows.
    pub(super) fn notes_question(&mut self, message: &[u8]) -> bool {
        if self.client.era == Era::Legacy {
            return false;
        }
        match parse_text(message) {
            Ok((_, Message::Request { id, method, params })) => {
                self.questions.extend(Question::new(id, &method, params));
                true
            }
            Ok((_, Message::Notification { method, .. })) => method == "notifications/cancelled",
            _ => false,
        }
    }

    /// Ends the client's request with all that is asked now; the call waits for its next one. `None`: nothing is asked
    /// any more.
    pub(super) fn park(&mut self) -> Option<Reply> {
        let Phase::Running { link, call, .. } = &self.phase else { return None };
        let (link, upstream_id, notices) = (link.clone(), call.upstream_id, call.notices.clone());
        self.questions.retain(|question| link.is_asked(question.id));
        if self.questions.is_empty() {
            return None;
        }
        link.park(upstream_id);
        while let Some(next) = notices.take() {
            // Words between questions have no stream any more; what they were about is in the result.
            if let Some(next) = self.ruled(next) {
                self.notes_question(&next);
            }
        }
        let id = self.request.id();
        let asked = object(self.questions.iter().map(|question| (question.id.to_string(), &question.shown)));
        let parked = self.moved_out();
        Some(match self.common.parked.park(parked) {
            Some(state) => {
                let message = format!(
                    r#"{{"jsonrpc":"2.0","id":{},"result":{{"resultType":"input_required","inputRequests":{asked},"requestState":"{state}"}}}}"#,
                    String::from_utf8_lossy(&id)
                );
                Reply::Answer { message: message.into(), error: None }
            }
            None => Reply::Error(RpcError::new(
                INTERNAL_ERROR,
                "too many calls wait for answers of their clients; call again later",
            )),
        })
    }

    /// This call, to be gone on with by another request; what stays has ended.
    fn moved_out(&mut self) -> Self {
        let ended = Phase::Ending { notices: None, ended: Ended::Told };
        Self {
            common: self.common.clone(),
            backend: self.backend.clone(),
            client: self.client.clone(),
            request: self.request.clone(),
            arguments: self.arguments.take(),
            plan: self.plan.clone(),
            output: self.output.clone(),
            reach: self.reach,
            arrived: self.arrived,
            queued_since: self.queued_since,
            deadline: self.deadline,
            timer: None,
            extra: String::new(),
            rounds: self.rounds,
            questions: std::mem::take(&mut self.questions),
            phase: std::mem::replace(&mut self.phase, ended),
        }
    }

    /// The client has come back with `request`, to this very call. What it does not answer is asked again.
    pub(in crate::broker) fn resume(mut self, request: CallRequest) -> Self {
        self.request = request;
        let caller = self.as_caller();
        if let Phase::Running { link, call, .. } = &self.phase {
            link.resume(call.upstream_id, self.request.token(), caller);
            let answers = self.request.input_responses().and_then(|raw| entries(raw).ok()).unwrap_or_default();
            self.questions.retain(|question| {
                let key = question.id.to_string();
                let answer = answers.iter().find(|(known, _)| *known == key);
                answer.inspect(|(_, answer)| link.answer_with(question.id, answer)).is_none()
            });
        }
        self
    }
}

/// A question of a legacy server.
#[derive(Clone, Debug)]
pub(super) struct Question {
    pub id: u64,
    /// Method and params, as an input request has them.
    shown: String,
}

impl Question {
    fn new(id: &str, method: &str, params: Option<&str>) -> Option<Self> {
        let params = params.map(|params| format!(r#","params":{params}"#)).unwrap_or_default();
        Some(Self { id: id.parse().ok()?, shown: format!(r#"{{"method":{}{params}}}"#, Value::from(method)) })
    }
}
