//! Servers ask, clients answer.

use std::time::Instant;

use serde_json::{Value, json};

use crate::support::{Backend, Session, Setup};
use crate::{SOON, all_of, answering, asking, heard, logged, methods, private, reply, saying, settle, shared};

const KINDS: [&str; 3] = ["sampling/createMessage", "elicitation/create", "roots/list"];

/// The answers that the servers have read.
fn answers(lines: &[String]) -> Vec<&str> {
    let is_answer = |line: &&String| serde_json::from_str::<Value>(line).is_ok_and(|line| line.get("method").is_none());
    lines.iter().filter(is_answer).map(String::as_str).collect()
}

/// The line of a question outside calls.
fn question(id: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"roots/list"}}"#)
}

#[test]
fn a_question_in_a_call_comes_on_its_stream_and_its_answer_to_the_server() {
    let broker = private();
    let session = Session::new(&broker, "fixture");
    let mut elsewhere = session.hear();
    let mut ids = Vec::new();
    for method in KINDS {
        for server_id in ["7", r#""a\u0062""#] {
            let mut call = session.stream(asking(server_id, method));
            let asked = call.message();
            assert_eq!(asked["method"], method);
            let id = asked["id"].as_u64().expect("the broker counts");
            ids.push(id);
            reply(&session, &asked, &json!({"for": method}));
            // The server takes an answer by the spelling of its own id alone.
            let answer = heard(&call.message());
            assert_eq!(answer["result"], json!({"for": method}));
            assert_eq!(call.data_or_end().unwrap(), None);
        }
    }
    let mut call = session.stream(asking("\"e\"", KINDS[0]));
    let id = call.message()["id"].clone();
    let error = json!({"code": -1, "message": "declined"});
    session.http.send(&session.post(json!({"jsonrpc": "2.0", "id": id, "error": error}).to_string()));
    assert_eq!(heard(&call.message()), json!({"jsonrpc": "2.0", "id": "e", "error": error}));
    ids.dedup();
    assert_eq!(ids.len(), 6, "an id never comes again: {ids:?}");
    session.send_raw(&saying(&json!(1), &[answering("done"), question("\"last\"")]));
    assert_eq!(elsewhere.message()["method"], "roots/list", "and none of the others came there");
    broker.finish();
}

#[test]
fn a_question_is_withdrawn_by_the_id_that_the_client_knows() {
    let broker = private();
    let session = Session::new(&broker, "fixture");
    let withdrawn = r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"x":1e2,"requestId":"q\u0031","reason":"no\u0021"}}"#;
    let lines = [question(r#""q\u0031""#), withdrawn.to_owned(), answering("done")];
    let mut call = session.stream(saying(&json!(1), &lines));
    let asked = call.message();
    assert_eq!(call.data(), withdrawn.replace(r#""q\u0031""#, &asked["id"].to_string()));
    assert_eq!(call.message()["id"], 1);
    // Now it is nobody's question any more.
    reply(&session, &asked, &json!({"roots": []}));
    settle(&session);
    assert_eq!(answers(&broker.lines("fixture")), [""; 0]);
    broker.finish();
}

#[test]
fn sessions_whose_servers_use_the_same_ids_do_not_cross() {
    let broker = private();
    let sessions: Vec<Session> = (0..4).map(|_| Session::new(&broker, "fixture")).collect();
    for _ in 0..5 {
        let mut calls: Vec<_> =
            sessions.iter().map(|session| session.stream(asking("\"same\"", "roots/list"))).collect();
        let asked: Vec<Value> = calls.iter_mut().map(|call| call.message()).collect();
        // The last one that was asked answers first.
        for (n, session) in sessions.iter().enumerate().rev() {
            reply(session, &asked[n], &json!({"of": n}));
        }
        for (n, call) in calls.iter_mut().enumerate() {
            assert_eq!(heard(&call.message()), json!({"jsonrpc": "2.0", "id": "same", "result": {"of": n}}));
        }
    }
    broker.finish();
}

#[test]
fn an_answer_to_no_question_reaches_nobody() {
    let broker = private();
    let (session, other) = (Session::new(&broker, "fixture"), Session::new(&broker, "fixture"));
    settle(&other);
    let mut call = session.stream(asking("5", "roots/list"));
    let asked = call.message();
    reply(&other, &asked, &json!({"x": "stolen"}));
    for id in [json!(5), json!("5"), json!(asked["id"].to_string()), json!(0), json!(-1), json!(1_u64 << 48)] {
        reply(&session, &json!({ "id": id }), &json!({"x": "guessed"}));
    }
    settle(&other);
    reply(&session, &asked, &json!({"x": "right"}));
    reply(&session, &asked, &json!({"x": "again"}));
    assert_eq!(heard(&call.message())["result"]["x"], "right");
    settle(&session);
    let expected = r#"{"jsonrpc":"2.0","id":5,"result":{"x":"right"}}"#;
    assert_eq!(answers(&broker.lines("fixture")), [expected], "of both servers");
    broker.finish();
}

#[test]
fn on_a_shared_instance_a_question_is_refused_at_once() {
    let broker = shared();
    let session = Session::new(&broker, "fixture");
    let _stream = session.hear();
    let begin = Instant::now();
    for method in KINDS {
        let reply = session.send_raw(&asking("\"q\"", method));
        assert_eq!(reply.before, [""; 0], "nobody was asked");
        let refused = reply.text_json();
        assert_eq!((&refused["id"], &refused["error"]["code"]), (&json!("q"), &json!(-32601)));
        let why = refused["error"]["message"].as_str().unwrap();
        assert!(why.contains(method) && why.contains("'fixture' is shared"), "{why}");
    }
    assert!(begin.elapsed() < SOON);
    broker.finish();
}

#[test]
fn a_question_outside_calls_comes_on_the_open_stream() {
    let broker = private();
    let session = Session::new(&broker, "fixture");
    let mut stream = session.hear();
    let reply_to_call = session.send_raw(&saying(&json!(1), &[answering("done"), question("\"later\"")]));
    assert_eq!(reply_to_call.before, [""; 0]);
    reply(&session, &stream.message(), &json!({"x": 1}));
    settle(&session);
    assert_eq!(answers(&broker.lines("fixture")), [r#"{"jsonrpc":"2.0","id":"later","result":{"x":1}}"#]);
    broker.finish();
}

#[test]
fn without_a_stream_a_question_waits_for_one_or_for_the_next_call() {
    let broker = private();
    let session = Session::new(&broker, "fixture");
    session.send_raw(&saying(&json!(1), &[answering("done"), question("\"one\"")]));
    // A call that is answered behind the question: it has been read when that comes.
    let next = session.call("echo", &json!({"text": "next"}));
    assert_eq!(next.text(), "next");
    // It was read before the answer to this call, so it came with it or waits for the one after.
    let mut messages = next.before.clone();
    messages.extend(session.call("echo", &json!({})).before);
    assert_eq!(messages.len(), 1, "{messages:?}");
    reply(&session, &serde_json::from_str(&messages[0]).unwrap(), &json!({"x": "with the call"}));
    session.send_raw(&saying(&json!(1), &[answering("done"), question("\"two\"")]));
    let mut stream = session.hear();
    reply(&session, &stream.message(), &json!({"x": "on the stream"}));
    settle(&session);
    let expected = [
        r#"{"jsonrpc":"2.0","id":"one","result":{"x":"with the call"}}"#,
        r#"{"jsonrpc":"2.0","id":"two","result":{"x":"on the stream"}}"#,
    ];
    assert_eq!(answers(&broker.lines("fixture")), expected);
    broker.finish();
}

#[test]
fn who_takes_no_stream_as_an_answer_is_asked_on_the_open_one() {
    let broker = private();
    let session = Session::new(&broker, "fixture");
    // It waits: the next call of such a client cannot take it along.
    session.send_raw(&saying(&json!(1), &[answering("done"), question("\"waits\"")]));
    let as_json = |body: String| session.post(body).header("accept", "application/json");
    let plain = saying(&json!(2), &[logged("info", "told"), answering("plain")]);
    assert_eq!(session.http.send(&as_json(plain)).messages().len(), 1);
    let mut stream = session.hear();
    assert_eq!(stream.message()["method"], "roots/list");
    assert_eq!(stream.message()["params"]["data"], "told");
    let call = session.http.send_aside(&as_json(asking("\"q\"", "sampling/createMessage")));
    let asked = stream.message();
    assert_eq!(asked["method"], "sampling/createMessage");
    reply(&session, &asked, &json!({"x": 1}));
    assert_eq!(heard(&call.join().unwrap().json())["result"], json!({"x": 1}));
    broker.finish();
}

/// The capabilities that the servers were greeted with, as they were spelled.
fn declared(lines: &[String]) -> Vec<&str> {
    let greetings = lines.iter().filter(|line| line.contains("\"initialize\""));
    greetings
        .map(|line| {
            let (_, rest) = line.split_once("\"capabilities\":").expect("a greeting declares something");
            rest.split_once(",\"clientInfo\"").expect("behind the capabilities").0
        })
        .collect()
}

#[test]
fn a_server_is_told_what_its_client_declared() {
    let broker =
        Setup::new().backend(all_of(Backend::session("fixture"))).backend(all_of(Backend::singleton("shared"))).start();
    let spelled = r#"{"x":1e2,"sampling":{ },"elicitation":{"form":{},"url":{}},"roots":{"listChanged":true},"experimental":{"tasks":[1.0]}}"#;
    settle(&Session::declaring(&broker, "fixture", spelled));
    settle(&Session::declaring(&broker, "fixture", r#"{"tasks":{"list":{}},"roots":{"x":-0},"ta\u0073ks":{}}"#));
    settle(&Session::declaring(&broker, "fixture", "[]"));
    assert_eq!(declared(&broker.lines("fixture")), [spelled, r#"{"roots":{"x":-0}}"#, "{}"]);
    settle(&Session::declaring(&broker, "shared", spelled));
    assert_eq!(declared(&broker.lines("shared")), ["{}"]);
    broker.finish();
}

#[test]
fn what_a_client_declares_over_several_lines_is_one_line_of_its_server() {
    let broker = private();
    // The line in the middle would be a call that nobody has looked at.
    let call = r#"{"jsonrpc":"2.0","id":9,"method":"tools/call","params":{"name":"env"}}"#;
    let spelled = format!("{{\n  \"roots\": {{\r\n    \"x\":\n{call}\n  }}\n}}");
    let session = Session::declaring(&broker, "fixture", &spelled);
    settle(&session);
    let lines = broker.lines("fixture");
    assert_eq!(declared(&lines), [spelled.replace(['\n', '\r'], " ")]);
    assert_eq!(broker.count("fixture", "call", "env"), 0, "{lines:#?}");
    assert_eq!(methods(&broker), ["initialize", "notifications/initialized", "tools/list", "tools/call"]);
    broker.finish();
}
