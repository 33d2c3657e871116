//! What passes between legacy clients and legacy servers besides calls of tools and their results: what servers ask and
//! tell, what clients wish to hear, prompts and resources; at the right one of several, and with nothing started by it
//! that nobody has reviewed.

mod support;

#[path = "both_ways/crossing.rs"]
mod crossing;
#[path = "both_ways/questions.rs"]
mod questions;
#[path = "both_ways/rules.rs"]
mod rules;
#[path = "both_ways/starts.rs"]
mod starts;
#[path = "both_ways/wishes.rs"]
mod wishes;

use std::time::Duration;

use serde_json::{Value, json};
use support::{Backend, Broker, Session, Setup};

const SOON: Duration = Duration::from_secs(10);

/// A fixture that offers everything and logs what it reads.
fn all_of(backend: Backend) -> Backend {
    backend.list_flags("--more").flags("--log-lines")
}

fn private() -> Broker {
    Setup::new().backend(all_of(Backend::session("fixture"))).start()
}

fn shared() -> Broker {
    Setup::new().backend(all_of(Backend::singleton("fixture"))).start()
}

/// The answer to `$ID`, for `saying`.
fn answering(text: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":$ID,"result":{{"content":[{{"type":"text","text":"{text}"}}]}}}}"#)
}

/// A call with the id `id` that has the server write `lines`; those behind the answer are said outside the call.
fn saying(id: &Value, lines: &[String]) -> String {
    let params = json!({"name": "echo", "_meta": {"progressToken": id}, "x-say": lines});
    json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}).to_string()
}

/// A call that has the server ask `method` under the raw id `id`, and answers with the answer.
fn asking(id: &str, method: &str) -> String {
    asking_by(&format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{{}}}}"#), id)
}

/// The same by the question `line`, which has the raw id `id`.
fn asking_by(line: &str, id: &str) -> String {
    let params = json!({"name": "ask_client", "arguments": {"line": line, "id": id}});
    json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).to_string()
}

fn updated(uri: &str) -> String {
    json!({"jsonrpc": "2.0", "method": "notifications/resources/updated", "params": {"uri": uri}}).to_string()
}

fn logged(level: &str, data: &str) -> String {
    let params = json!({"level": level, "data": data});
    json!({"jsonrpc": "2.0", "method": "notifications/message", "params": params}).to_string()
}

/// The requests and notifications that the servers have read, in their order.
fn methods(broker: &Broker) -> Vec<String> {
    let events = broker.events("fixture").into_iter();
    events.filter(|one| one.event == "recv").map(|one| one.detail).collect()
}

/// Has everything read by the server that was sent to it before.
#[track_caller]
fn settle(session: &Session) {
    assert_eq!(session.call("echo", &json!({"text": "read"})).text(), "read");
}

/// The client answers `question` with `result`.
#[track_caller]
fn reply(session: &Session, question: &Value, result: &Value) {
    let answer = json!({"jsonrpc": "2.0", "id": question["id"], "result": result});
    assert_eq!(session.http.send(&session.post(answer.to_string())).status, 202);
}

/// The answer of a client that a server tells of in a result.
#[track_caller]
fn heard(result: &Value) -> Value {
    let text = result["result"]["content"][0]["text"].as_str().unwrap_or_else(|| panic!("no text in {result}"));
    serde_json::from_str(text).unwrap_or_else(|error| panic!("not JSON ({error}): {text}"))
}
