//! What crosses between a client and a server of different eras: questions, answers, subscriptions, metadata.
//!
//! Behind the broker stands `conformance-mcp` where the protocol matters, and the scripted fixture where bytes do.

mod support;

#[path = "eras/listening.rs"]
mod listening;
#[path = "eras/metadata.rs"]
mod metadata;
#[path = "eras/parked.rs"]
mod parked;
#[path = "eras/refused.rs"]
mod refused;
#[path = "eras/rounds.rs"]
mod rounds;
#[path = "eras/spoken.rs"]
mod spoken;

use std::time::Duration;

use serde_json::{Value, json};
use support::{Backend, Broker, Modern, Session};

const SOON: Duration = Duration::from_secs(10);

/// A fixture that knows the modern era alone, offers everything and logs what it reads.
fn modern(backend: Backend) -> Backend {
    backend.list_flags("--more --modern --refuse-initialize").flags("--log-lines")
}

/// A fixture that knows the legacy era alone, offers everything and logs what it reads.
fn legacy(backend: Backend) -> Backend {
    backend.list_flags("--more").flags("--log-lines")
}

/// A modern client that can be asked everything, with a key in its URL.
fn keyed(broker: &Broker, backend: &str, key: &str) -> Modern {
    let all = json!({"roots": {}, "sampling": {}, "elicitation": {"form": {}}});
    Modern::declaring(broker, &format!("/{backend}/s/{key}/mcp"), all)
}

/// A legacy client that can be asked everything.
fn session(broker: &Broker, backend: &str) -> Session {
    Session::declaring(broker, backend, r#"{"roots":{},"sampling":{},"elicitation":{}}"#)
}

/// The params of a call that is answered by `lines`.
fn saying(lines: &[String]) -> Value {
    json!({"name": "echo", "x-say": lines})
}

/// The answer to `$ID`, for `saying`.
fn answering(text: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":$ID,"result":{{"content":[{{"type":"text","text":"{text}"}}]}}}}"#)
}

/// The requests and notifications of one kind that the servers of a backend have read, as they were spelled.
fn read(broker: &Broker, backend: &str, method: &str) -> Vec<String> {
    let is_meant = |line: &String| serde_json::from_str::<Value>(line).is_ok_and(|line| line["method"] == method);
    broker.lines(backend).into_iter().filter(is_meant).collect()
}

/// The same, parsed.
fn parsed(broker: &Broker, backend: &str, method: &str) -> Vec<Value> {
    read(broker, backend, method).iter().map(|line| serde_json::from_str(line).expect("it was parsed before")).collect()
}

/// The legacy client answers `question` with `result`.
#[track_caller]
fn answer(session: &Session, question: &Value, result: &Value) {
    let answer = json!({"jsonrpc": "2.0", "id": question["id"], "result": result});
    assert_eq!(session.http.send(&session.post(answer.to_string())).status, 202);
}
