//! Calls that run beside the mix, and what may come of them: the token that went in, for the session that sent it, or
//! an error with a documented code.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Shutdown;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::{Broker, Http, Modern, Request, Session, wait};

/// The page that lists the codes: what is not there is not promised to anybody.
const ERRORS: &str = include_str!("../../docs/reference/errors.md");

/// A client with one session.
#[derive(Debug)]
pub struct Client {
    pub backend: &'static str,
    pub session: Session,
    /// Stands in each of its tokens, and in no other client's.
    number: u64,
    tokens: AtomicU64,
    /// How often the session was ended: 0 or 1.
    ended: AtomicU64,
}

impl Client {
    pub fn new(broker: &Broker, backend: &'static str, number: u64) -> Arc<Self> {
        let session = Session::new(broker, backend);
        Arc::new(Self { backend, session, number, tokens: AtomicU64::new(0), ended: AtomicU64::new(0) })
    }

    pub fn token(&self) -> String {
        format!("{}{}-", self.own(), self.tokens.fetch_add(1, Ordering::Relaxed))
    }

    /// What each of its tokens begins with. No other client's does, since a number is followed by a dash.
    fn own(&self) -> String {
        format!("token-{}-", self.number)
    }

    pub fn end(&self, http: Http) {
        self.ended.store(1, Ordering::SeqCst);
        let answer = http.try_send(&self.session.with_session(Request::new("DELETE", &self.session.path)));
        let status = answer.expect("the broker answers").status;
        assert_eq!(status, 204, "DELETE of a session");
    }
}

/// What the answer of a call has to be, if it is no error.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Expected {
    /// The text is the token.
    Token,
    /// The token is in the text somewhere: a page of a browser.
    TokenInside,
    /// The text tells where the server runs; it is remembered.
    Place,
    /// Any result.
    Anything,
    /// Nothing: the call is of a kind that never comes back with a result.
    Failure,
}

/// How a call ends on the client's side.
#[derive(Clone, Copy, Debug)]
pub enum Ending {
    Answer,
    /// The client says after a time that it wants no answer any more.
    Cancel(Duration),
    /// The client goes away after a time.
    Disconnect(Duration),
}

/// The status and the messages of an answer, as far as there was one; `None` of a client that went away.
type Answered = Option<std::io::Result<(u16, Vec<String>)>>;

/// A call as it is to be made.
#[derive(Debug)]
pub struct Call {
    pub client: Arc<Client>,
    pub tool: &'static str,
    pub arguments: Value,
    pub token: String,
    pub expected: Expected,
    pub ending: Ending,
    pub is_modern: bool,
}

/// A call under way, or what came of it.
#[derive(Debug)]
pub struct Calling {
    call: Arc<Call>,
    /// Deaths of the broker before the call.
    deaths: u64,
    thread: JoinHandle<Answered>,
}

impl Call {
    pub fn begin(self, broker: &Broker, deaths: u64) -> Calling {
        let (http, call) = (broker.http(), Arc::new(self));
        let request = call.request(broker);
        let running = call.clone();
        Calling { call, deaths, thread: std::thread::spawn(move || running.run(http, &request)) }
    }

    /// The id is the token: it is unique, and that it comes back is checked as well.
    fn request(&self, broker: &Broker) -> Request {
        if self.is_modern {
            return Modern::new(broker, &self.client.session.path).call_request(self.tool, &self.arguments);
        }
        let params =
            json!({"name": self.tool, "arguments": self.arguments, "_meta": {"progressToken": self.token.as_str()}});
        self.client.session.post(
            json!({"jsonrpc": "2.0", "id": self.token.as_str(), "method": "tools/call", "params": params}).to_string(),
        )
    }

    fn run(&self, http: Http, request: &Request) -> Answered {
        let why = "a client that gives up does so after a time";
        match self.ending {
            Ending::Answer => {}
            Ending::Cancel(after) => {
                let params = json!({"requestId": self.token.as_str()});
                let body = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params});
                let cancel = self.client.session.post(body.to_string());
                std::thread::spawn(move || {
                    wait::pause_because(why, after);
                    // Failed: the broker is dead.
                    http.try_send(&cancel).ok();
                });
            }
            Ending::Disconnect(after) => {
                let stream = http.start(request).ok()?;
                wait::pause_because(why, after);
                stream.shutdown(Shutdown::Both).ok();
                return None;
            }
        }
        Some(http.try_send(request).map(|answer| (answer.status, answer.messages())))
    }
}

impl Calling {
    pub fn is_over(&self) -> bool {
        self.thread.is_finished()
    }

    /// Waits for the end, and says what is wrong with it if anything is. `deaths`: of the broker until now.
    pub fn judge(self, deaths: u64, tally: &mut Tally) -> Result<(), String> {
        let Self { call, deaths: before, thread } = self;
        let verdict = match thread.join().map_err(|_| "the client's thread panicked".to_owned())? {
            None => Ok("gave up".to_owned()),
            Some(Err(_)) if deaths != before => Ok("lost with the broker".to_owned()),
            Some(Err(error)) => Err(format!("the connection broke: {error}")),
            Some(Ok((status, messages))) => call.judge(status, &messages, tally),
        };
        let verdict = verdict.map_err(|fault| format!("{fault}\nof {call:?}"))?;
        tally.add(call.tool, verdict);
        Ok(())
    }
}

impl Call {
    /// How the call came out, in a word.
    fn judge(&self, status: u16, messages: &[String], tally: &mut Tally) -> Result<String, String> {
        let (raw, before) = messages.split_last().ok_or("no message")?;
        let own = self.client.own();
        for message in messages {
            let foreign = message.split("token-").skip(1).find(|rest| !format!("token-{rest}").starts_with(&own));
            if foreign.is_some() {
                return Err(format!("another session's token in {message}"));
            }
        }
        let progress = format!(r#""progressToken":{}"#, Value::from(self.token.as_str()));
        if let Some(message) = before.iter().find(|message| !message.contains(&progress)) {
            return Err(format!("not this call's: {message}"));
        }
        let answer: Value = serde_json::from_str(raw).map_err(|error| format!("not JSON ({error}): {raw}"))?;
        if status == 404 && answer["error"]["code"] == -32001 && self.client.ended.load(Ordering::SeqCst) > 0 {
            return Ok("session ended".to_owned());
        }
        let is_answered = status == 200 && (self.is_modern || answer["id"] == self.token.as_str());
        let Some(result) = answer.get("result").filter(|_| is_answered) else {
            return Err(format!("{status} {raw}"));
        };
        if let Some(code) = result["_meta"]["lazy-mcp/error"]["code"].as_str() {
            let is_known = documented().contains(code) && result["isError"] == true;
            return if is_known { Ok(code.to_owned()) } else { Err(format!("an undocumented error: {raw}")) };
        }
        let text = result["content"][0]["text"].as_str().unwrap_or_default();
        let is_error = result["isError"] == true;
        match self.expected {
            Expected::Token if text == self.token && !is_error => Ok(ANSWERED.to_owned()),
            Expected::TokenInside if text.contains(&self.token) && !is_error => Ok(ANSWERED.to_owned()),
            Expected::TokenInside if is_error => Ok("the browser's own error".to_owned()),
            Expected::Place => {
                let place: Value = serde_json::from_str(text).map_err(|error| format!("{error}: {raw}"))?;
                tally.seen_at(&self.client, place["instance"].as_str().unwrap_or_default())?;
                Ok(ANSWERED.to_owned())
            }
            Expected::Anything if !is_error => Ok(ANSWERED.to_owned()),
            _ => Err(format!("not the answer to this call: {raw}")),
        }
    }
}

const ANSWERED: &str = "answered";

/// The codes of the table, which stands in the first column.
fn documented() -> BTreeSet<&'static str> {
    let rows = ERRORS.lines().filter_map(|line| line.strip_prefix("| `")?.split_once('`'));
    rows.map(|(code, _)| code).collect()
}

/// What came of all calls.
#[derive(Debug, Default)]
pub struct Tally {
    by_outcome: BTreeMap<String, u64>,
    answered: BTreeMap<&'static str, u64>,
    /// Which client of a backend with a server for each session was seen at which instance.
    places: BTreeMap<String, u64>,
}

impl Tally {
    fn add(&mut self, tool: &'static str, outcome: String) {
        if outcome == ANSWERED {
            *self.answered.entry(tool).or_default() += 1;
        }
        *self.by_outcome.entry(outcome).or_default() += 1;
    }

    fn seen_at(&mut self, client: &Client, instance: &str) -> Result<(), String> {
        if client.backend == crate::mix::SHARED {
            return Ok(());
        }
        let known = *self.places.entry(instance.to_owned()).or_insert(client.number);
        if known == client.number && !instance.is_empty() {
            return Ok(());
        }
        Err(format!("instance {instance} served the sessions {known} and {}", client.number))
    }

    pub fn answered(&self, tool: &str) -> u64 {
        self.answered.get(tool).copied().unwrap_or_default()
    }

    /// All that came to an end.
    pub fn len(&self) -> u64 {
        self.by_outcome.values().sum()
    }

    pub fn describe(&self) -> String {
        let outcomes: Vec<_> = self.by_outcome.iter().map(|(outcome, count)| format!("{count} {outcome}")).collect();
        outcomes.join(", ")
    }
}
