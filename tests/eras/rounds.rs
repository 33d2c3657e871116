//! A modern server asks a legacy client: by a result, which becomes requests on the stream of the call, and is asked
//! anew with the answers.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::wait::pause_because;
use crate::support::{Backend, Broker, Reply, Session, Setup};
use crate::{SOON, answer, answering, modern, parsed, read, session};

fn fixture() -> Broker {
    Setup::new().backend(modern(Backend::session("fixture"))).start()
}

/// A result that asks, each question under its key, as they are spelled; for `calling`.
fn requiring(requests: &str, state: &str) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","id":$ID,"result":{{"resultType":"input_required","inputRequests":{{{requests}}},"requestState":{state}}}}}"#
    )
}

const ROOTS: &str = r#""r":{"method":"roots/list"}"#;

/// A call that the server answers with `first`, and with `then` when it brings what that asked for.
fn calling(id: &Value, first: &str, then: &str) -> String {
    let params = json!({"name": "echo", "x-say": [first], "x-then": [then]});
    json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}).to_string()
}

#[test]
fn what_a_result_asks_comes_as_requests_on_the_stream_of_the_call() {
    for backend in [Backend::session("server"), Backend::singleton("server")] {
        let broker = Setup::new().backend(backend.conformance().list_flags("--only modern")).start();
        let session = session(&broker, "server");
        let mut elsewhere = session.hear();
        let mut ids = Vec::new();
        let call = |tool: &str| session.stream(session.call_request(tool, &json!({})).body.unwrap());
        let mut several = call("test_input_required_result_multiple_inputs");
        for _ in 0..3 {
            let question = several.message();
            ids.push(question["id"].as_u64().expect("the broker counts"));
            let given = match question["method"].as_str().unwrap() {
                "elicitation/create" => json!({"action": "accept", "content": {"name": "Ada"}}),
                "sampling/createMessage" => {
                    json!({"role": "assistant", "content": {"type": "text", "text": "Hello"}, "model": "m"})
                }
                _ => json!({"roots": [{"uri": "file:///r"}]}),
            };
            answer(&session, &question, &given);
        }
        let end = several.message();
        let text = end["result"]["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{end}"));
        for expected in ["state-ok", "Ada", "Hello", "file:///r"] {
            assert!(text.contains(expected), "{text}");
        }
        for foreign in ["resultType", "requestState", "inputRequests"] {
            assert!(end["result"].get(foreign).is_none(), "{end}");
        }
        assert_eq!(several.data_or_end().unwrap(), None);
        let mut twice = call("test_input_required_result_multi_round");
        for word in ["name", "color"] {
            let question = twice.message();
            ids.push(question["id"].as_u64().unwrap());
            answer(&session, &question, &json!({"action": "accept", "content": {word: "blue"}}));
        }
        assert!(twice.message()["result"]["content"][0]["text"].as_str().unwrap().contains("blue"));
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), 5, "an id never comes again");
        // The first on the other stream is what is said later.
        session.send("resources/subscribe", &json!({"uri": "test://watched-resource"})).result();
        session.call("test_trigger_resource_update", &json!({})).result();
        assert_eq!(elsewhere.message()["method"], "notifications/resources/updated");
        broker.finish();
    }
}

#[test]
fn keys_answers_and_state_arrive_as_they_were_spelled() {
    let broker = fixture();
    let session = Session::declaring(&broker, "fixture", r#"{"roots":{ "x":1e2 }}"#);
    let state = r#""s\u0074ate\/\"""#;
    let requests =
        r#""a b":{"x-more":1.0,"method":"roots/list"},"7":{"method":"elicitation/create","params":{"x":[1e2, -0]}}"#;
    let then = r#"{"jsonrpc":"2.0","id":$ID,"result":{"x":1e2,"resultType":"complete","content":[ ],"ttlMs":5,"cacheScope":"public"}}"#;
    let body = calling(&json!("c"), &requiring(requests, state), then);
    let mut call = session.stream(body.clone());
    let questions: Vec<String> = (0..2).map(|_| call.data()).collect();
    let parsed: Vec<Value> = questions.iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    let ids: Vec<String> = parsed.iter().map(|question| question["id"].to_string()).collect();
    assert_eq!(
        questions,
        [
            format!(r#"{{"jsonrpc":"2.0","id":{},"x-more":1.0,"method":"roots/list"}}"#, ids[0]),
            format!(r#"{{"jsonrpc":"2.0","id":{},"method":"elicitation/create","params":{{"x":[1e2, -0]}}}}"#, ids[1]),
        ]
    );
    // The last one is answered first.
    let spelled = [r#"{"roots":[ ],"x":1.50}"#, r#"{"action":"acc\u0065pt","content":{"n":1e2}}"#];
    for n in [1, 0] {
        let answer = format!(r#"{{"result":{},"id":{},"jsonrpc":"2.0"}}"#, spelled[n], ids[n]);
        assert_eq!(session.http.send(&session.post(answer)).status, 202);
    }
    assert_eq!(call.data(), r#"{"jsonrpc":"2.0","id":"c","result":{"x":1e2,"content":[ ]}}"#);
    let calls = read(&broker, "fixture", "tools/call");
    let meta = r#""_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"lazy-mcp-broker","version":"#;
    for (line, extra) in calls.iter().zip([
        String::new(),
        format!(r#""inputResponses":{{"a b":{},"7":{}}},"requestState":{state},"#, spelled[0], spelled[1]),
    ]) {
        let seen: Value = serde_json::from_str(line).unwrap();
        let (before, rest) = line.split_once(meta).unwrap_or_else(|| panic!("no metadata in {line}"));
        let (declared, after) = rest.split_once(r#""io.modelcontextprotocol/logLevel":"debug"},"#).unwrap();
        assert!(declared.ends_with(r#""io.modelcontextprotocol/clientCapabilities":{"roots":{ "x":1e2 }},"#), "{line}");
        // Nothing else is another: what was put in stands before the client's own, in either order.
        let (before, after) = (before.replace(&extra, ""), after.replace(&extra, ""));
        assert_eq!(format!("{before}{after}"), body.replace("\"c\"", &seen["id"].to_string()), "{line}");
        assert!(line.contains(&extra), "{line}");
    }
    assert_eq!(calls.len(), 2);
    broker.finish();
}

/// What names a message is the broker's to say, whatever a server has put there.
#[test]
fn a_question_has_one_id_and_one_version() {
    let broker = fixture();
    let session = session(&broker, "fixture");
    let requests = r#""r":{"id":"own","method":"roots/list","jsonrpc":"1.0","params":{"x":1e2}}"#;
    let mut call = session.stream(calling(&json!(1), &requiring(requests, "\"s\""), &answering("done")));
    let question = call.data();
    let parsed: Value = serde_json::from_str(&question).unwrap();
    let expected = format!(r#"{{"jsonrpc":"2.0","id":{},"method":"roots/list","params":{{"x":1e2}}}}"#, parsed["id"]);
    assert_eq!(question, expected);
    answer(&session, &parsed, &json!({"roots": []}));
    assert_eq!(call.message()["result"]["content"][0]["text"], "done");
    assert!(read(&broker, "fixture", "tools/call")[1].contains(r#""inputResponses":{"r":{"roots":[]}}"#));
    broker.finish();
}

/// Neither the client nor the rules could make anything of these, and the call would wait for its deadline.
#[test]
fn what_is_no_question_ends_the_call() {
    let rules = "results = { broker.redact_text { pattern = [[secret]], replace_with = \"[gone]\" } },";
    for policy in ["", rules] {
        let broker = Setup::new().backend(modern(Backend::session("fixture")).policy(policy)).start();
        let session = session(&broker, "fixture");
        let many: Vec<String> = (0..65).map(|n| format!(r#""q{n}":{{"method":"roots/list"}}"#)).collect();
        for (requests, why) in [
            (r#""r":{"method":"roots/list","result":{}}"#, "one of its questions is no request"),
            (r#""r":{"method":5}"#, "one of its questions is no request"),
            (r#""r":{"method":"roots/list","params":{},"params":{}}"#, "one of its questions is no request"),
            (r#""r":7"#, "one of its questions is no request"),
            (&many.join(","), "for more than 64 answers at once"),
        ] {
            let reply = session.send_raw(&calling(&json!(1), &requiring(requests, "\"s\""), &answering("done")));
            let error = &reply.json()["error"];
            assert_eq!(error["code"], -32603, "{error}");
            assert_eq!(error["message"], format!("the server asked for input, and {why}"));
        }
        // No parameters at all is what this means.
        let none = requiring(r#""r":{"method":"roots/list","params":null}"#, "\"s\"");
        let mut call = session.stream(calling(&json!(2), &none, &answering("done")));
        let question = call.data();
        assert!(question.ends_with(r#","method":"roots/list"}"#), "{question}");
        answer(&session, &serde_json::from_str(&question).unwrap(), &json!({"roots": []}));
        assert_eq!(call.message()["result"]["content"][0]["text"], "done");
        broker.finish();
    }
}

#[test]
fn sessions_that_share_a_server_do_not_answer_for_each_other() {
    let broker = Setup::new().backend(modern(Backend::singleton("fixture"))).start();
    let sessions = [session(&broker, "fixture"), session(&broker, "fixture")];
    let body = calling(&json!(1), &requiring(ROOTS, "\"s\""), &answering("$RESPONSES"));
    let mut calls = sessions.each_ref().map(|session| session.stream(body.clone()));
    let questions = calls.each_mut().map(|call| call.message());
    assert_ne!(questions[0]["id"], questions[1]["id"]);
    for (session, question) in sessions.iter().zip([&questions[1], &questions[0]]) {
        answer(session, question, &json!({"x": "stolen"}));
    }
    for id in [json!(0), json!(questions[0]["id"].to_string()), json!(-1), json!(1_u64 << 48)] {
        answer(&sessions[0], &json!({ "id": id }), &json!({"x": "guessed"}));
    }
    for (n, session) in sessions.iter().enumerate().rev() {
        answer(session, &questions[n], &json!({"of": n}));
        assert_eq!(calls[n].message()["id"], 1);
        answer(session, &questions[n], &json!({"x": "again"}));
    }
    let brought: Vec<Value> = parsed(&broker, "fixture", "tools/call")
        .into_iter()
        .filter_map(|call| call["params"].get("inputResponses").cloned())
        .collect();
    assert_eq!(brought, [json!({"r": {"of": 1}}), json!({"r": {"of": 0}})]);
    assert_eq!(broker.starts("fixture"), 1);
    broker.finish();
}

#[test]
fn a_client_that_answers_with_an_error_has_ended_its_call() {
    let broker = fixture();
    let session = session(&broker, "fixture");
    let mut call = session.stream(calling(&json!(1), &requiring(ROOTS, "\"s\""), &answering("done")));
    let error = json!({"jsonrpc": "2.0", "id": call.message()["id"], "error": {"code": -1, "message": "declined"}});
    session.http.send(&session.post(error.to_string()));
    let end = call.message();
    assert_eq!((&end["id"], &end["error"]["code"]), (&json!(1), &json!(-1)));
    assert!(end["error"]["message"].as_str().unwrap().contains("declined"), "{end}");
    assert_eq!(parsed(&broker, "fixture", "tools/call").len(), 1);
    broker.finish();
}

#[test]
fn a_call_can_be_cancelled_while_its_client_is_asked() {
    let broker = Setup::new().backend(modern(Backend::singleton("fixture"))).start();
    let sessions = [session(&broker, "fixture"), session(&broker, "fixture")];
    let body = calling(&json!("same"), &requiring(ROOTS, "\"s\""), &answering("done"));
    let mut calls = sessions.each_ref().map(|session| session.stream(body.clone()));
    let questions = calls.each_mut().map(|call| call.message());
    sessions[0].notify("notifications/cancelled", &json!({"requestId": "other"}));
    sessions[0].notify("notifications/cancelled", &json!({"requestId": "same"}));
    let end = calls[0].message();
    assert_eq!(end["result"]["_meta"]["lazy-mcp/error"]["code"], "cancelled", "{end}");
    answer(&sessions[0], &questions[0], &json!({"x": "late"}));
    answer(&sessions[1], &questions[1], &json!({"roots": []}));
    assert_eq!(calls[1].message()["result"]["content"][0]["text"], "done", "the other one's goes on");
    assert_eq!(parsed(&broker, "fixture", "tools/call").len(), 3);
    broker.finish();
}

#[test]
fn the_end_of_a_session_ends_what_it_is_asked() {
    let broker = fixture();
    let session = session(&broker, "fixture");
    let mut call = session.stream(calling(&json!(1), &requiring(ROOTS, "\"s\""), &answering("done")));
    call.message();
    assert_eq!(session.delete().status, 204);
    assert_eq!(call.message()["result"]["_meta"]["lazy-mcp/error"]["code"], "cancelled");
    broker.assert_nothing_left("the end of the session", SOON);
    broker.finish();
}

#[test]
fn a_client_that_does_not_answer_runs_into_the_deadline() {
    let broker = Setup::new().backend(modern(Backend::session("fixture")).call_seconds(2).idle_seconds(1)).start();
    let session = session(&broker, "fixture");
    let begin = Instant::now();
    let mut call = session.stream(calling(&json!(1), &requiring(ROOTS, "\"s\""), &answering("done")));
    call.message();
    let end = call.message();
    assert_eq!(end["result"]["_meta"]["lazy-mcp/error"]["code"], "call_timeout", "{end}");
    assert!(begin.elapsed() >= Duration::from_millis(1900), "{:?}", begin.elapsed());
    broker.wait_stopped("fixture", SOON);
    broker.finish();
}

const QUEUE_SECONDS: u64 = 1;

#[test]
fn who_thought_for_long_may_wait_in_the_queue_like_others() {
    let backend = modern(Backend::session("fixture")).max_concurrency(1).queue(4, QUEUE_SECONDS);
    let broker = Setup::new().backend(backend).start();
    let session = session(&broker, "fixture");
    let mut call = session.stream(calling(&json!("a"), &requiring(ROOTS, "\"s\""), &answering("done")));
    let question = call.message();
    pause_because("the client thinks for longer than a call may queue", Duration::from_millis(QUEUE_SECONDS * 1200));
    let busy = session.http.send_aside(&session.call_request("sleep", &json!({"ms": 500})));
    broker.wait_event("fixture", "call", "sleep");
    answer(&session, &question, &json!({"roots": []}));
    let end = call.message();
    assert_eq!(end["result"]["content"][0]["text"], "done", "{end}");
    assert_eq!(Reply::new(busy.join().unwrap()).text(), "slept");
    broker.finish();
}

/// Rounds that a call may take.
const ROUNDS: usize = 16;

#[test]
fn a_server_that_asks_for_ever_is_given_up() {
    let broker = fixture();
    let session = session(&broker, "fixture");
    let asks = requiring(ROOTS, "\"s\"");
    let mut call = session.stream(calling(&json!(1), &asks, &asks));
    for _ in 0..ROUNDS {
        answer(&session, &call.message(), &json!({"roots": []}));
    }
    let end = call.message();
    assert!(end["error"]["message"].as_str().is_some_and(|why| why.contains("too often")), "{end}");
    assert_eq!(parsed(&broker, "fixture", "tools/call").len(), ROUNDS + 1);
    // One that asks nothing and wants to be asked anew is no better.
    let empty = r#"{"jsonrpc":"2.0","id":$ID,"result":{"resultType":"input_required","requestState":"s"}}"#;
    let reply = session.send_raw(&calling(&json!(2), empty, empty));
    assert!(reply.raw.contains("too often"), "{}", reply.raw);
    let calls = parsed(&broker, "fixture", "tools/call");
    assert_eq!(calls.len(), 2 * (ROUNDS + 1));
    assert_eq!(calls.last().unwrap()["params"]["requestState"], "s");
    assert!(calls.last().unwrap()["params"].get("inputResponses").is_none());
    broker.finish();
}

#[test]
fn rules_of_the_policy_hold_for_questions() {
    let rules = r#"
        on_call = { hang = function() return broker.deny("never") end },
        results = { broker.redact_text { pattern = "secret-[0-9]+" } },
    "#;
    let broker = Setup::new().backend(modern(Backend::session("fixture")).policy(rules)).start();
    let session = session(&broker, "fixture");
    let asks = requiring(
        r#""q":{"method":"elicitation/create","params":{"message":"is it secret-42?","requestedSchema":{"type":"object"}}}"#,
        "\"s\"",
    );
    let mut call = session.stream(calling(&json!(1), &asks, &answering("done")));
    let question = call.message();
    let message = question["params"]["message"].as_str().unwrap();
    assert!(message.starts_with("is it ") && !message.contains("secret-42"), "{question}");
    answer(&session, &question, &json!({"action": "decline"}));
    assert_eq!(call.message()["result"]["content"][0]["text"], "done");
    let mut denied: Value = serde_json::from_str(&calling(&json!(2), &asks, &answering("done"))).unwrap();
    denied["params"]["name"] = "hang".into();
    let reply = session.send_raw(&denied.to_string());
    assert_eq!((reply.refusal(), reply.before.len()), ("denied", 0), "{}", reply.raw);
    assert_eq!(parsed(&broker, "fixture", "tools/call").len(), 2);
    // What the rules fail on is asked of nobody, and nobody waits for it.
    let deep = "[".repeat(200) + &"]".repeat(200);
    let asks = requiring(&format!(r#""q":{{"method":"roots/list","params":{{"x":{deep}}}}}"#), "\"s\"");
    let begin = Instant::now();
    let reply = session.send_raw(&calling(&json!(3), &asks, &answering("done")));
    assert_eq!((reply.error_code(), reply.before.len()), (-32603, 0), "{}", reply.raw);
    assert!(reply.raw.contains("the question was withheld: the policy of 'fixture' failed on it"), "{}", reply.raw);
    assert!(begin.elapsed() < SOON);
    assert_eq!(parsed(&broker, "fixture", "tools/call").len(), 3);
    broker.finish();
}
