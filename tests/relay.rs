//! Bytes arrive as they were sent, at the one who is to have them.

mod support;

use std::time::Duration;

use serde_json::{Value, json};
use support::{Backend, Broker, Session, Setup};

/// How long a stream is read for what is expected on it.
const LIMIT: Duration = Duration::from_secs(10);

/// What the fixture's `unknown_fields` writes, `ID` being the call's id.
const UNKNOWN_FIELDS: &str = r#"{"x-before":{"z":1,"a":2},"result":{"content":[{"type":"text","text":"caf\u00e9 \/ \ud83d\ude00","x-n":1e2,"annotations":{"x":[1.0,-0,1E+2]}},{"type":"x-unknown","data":null}],"x-big":123456789012345678901234567890,"isError":false,"structuredContent":{"b":1.50,"a":{"":0.1e-7}},"_meta":{"vendor/key":[ ]}}, "jsonrpc":"2.0","id":ID ,"x-after":true}"#;

/// The fixture's tool with the oddest definition, as it spells it.
const ODD_TOOL: &str = r#"{"name":"odd","title":"Odd \u0073pelling","description":"Numbers and members that a typed model loses.","inputSchema":{"type":"object","properties":{"n":{"type":"number","default":1e2,"maximum":123456789012345678901234567890,"multipleOf":1.0}},"x-vendor":{"keep":null}},"annotations":{"readOnlyHint":true,"category":"vendor"},"x-unknown":[1.50,-0.0]}"#;

fn broker() -> Broker {
    start(Backend::singleton("fixture"))
}

fn start(backend: Backend) -> Broker {
    Setup::new().backend(backend).start()
}

#[test]
fn a_call_reaches_the_server_as_it_was_spelled() {
    let broker = broker();
    let session = Session::new(&broker, "fixture");
    // ID and TOKEN are the client's; the server sees others in their place and nothing else changed.
    let spelled = r#"{"x-top":1e2,"method":"tools/call","params":{"arguments":{"n":1.0,"big":123456789012345678901234567890,"s":"\u00e9\/\t","z":{},"a":[ 1,2 ],"neg":-0.0},"x-more":null,"_meta":{"progressToken":TOKEN,"vendor/x":1E5},"name":"echo_raw"}, "id":ID,"jsonrpc":"2.0"}"#;
    for (id, token) in [("\"abc\"", "\"tok\""), ("7", "8"), ("\"7\"", "1"), ("9007199254740993", "\"\"")] {
        let reply = session.send_raw(&spelled.replace("TOKEN", token).replace("ID", id));
        let seen = reply.text();
        let message: Value = serde_json::from_str(seen).unwrap();
        let own_id = message["id"].to_string();
        let own_token = message["params"]["_meta"]["progressToken"].to_string();
        assert_eq!(seen, spelled.replace("TOKEN", &own_token).replace("ID", &own_id));
    }
    broker.finish();
}

#[test]
fn the_server_sees_ids_and_tokens_of_the_broker() {
    let broker = broker();
    let session = Session::new(&broker, "fixture");
    let seen = || {
        let params = json!({"name": "echo_raw", "arguments": {}, "_meta": {"progressToken": "same"}});
        let message = session.send("tools/call", &params).text_json();
        (message["id"].to_string(), message["params"]["_meta"]["progressToken"].to_string())
    };
    let (first, second) = (seen(), seen());
    assert_ne!(first.0, second.0, "ids never come again on one link");
    assert_ne!(first.1, second.1, "nor do tokens");
    broker.finish();
}

#[test]
fn a_body_over_several_lines_becomes_one() {
    let broker = broker();
    let session = Session::new(&broker, "fixture");
    let body = "{\r\n\t\"jsonrpc\": \"2.0\",\n \"id\": 1,\n \"method\": \"tools/call\",\n \"params\":\n {\"name\": \"echo\",\n \
                \"arguments\": {\"text\":\n \"two\\nlines\"}}\n}\n";
    assert_eq!(session.send_raw(body).text(), "two\nlines");
    broker.finish();
}

#[test]
fn a_result_reaches_the_client_as_it_was_spelled() {
    let broker = broker();
    let session = Session::new(&broker, "fixture");
    for id in ["\"abc\"", "7", "\"\"", "9007199254740993", "-1", r#""\u00e9\/""#] {
        let body =
            format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{{"name":"unknown_fields"}}}}"#);
        let reply = session.send_raw(&body);
        assert_eq!(reply.raw, UNKNOWN_FIELDS.replace("ID", id));
    }
    broker.finish();
}

#[test]
fn a_list_shows_tools_as_the_server_spelled_them() {
    let broker = broker();
    let session = Session::new(&broker, "fixture");
    let list = session.list();
    assert!(list.raw.contains(ODD_TOOL), "{}", list.raw);
    broker.finish();
}

#[test]
fn errors_of_the_server_pass() {
    let broker = broker();
    let session = Session::new(&broker, "fixture");
    let failed = session.call("tool_error", &json!({}));
    assert_eq!((failed.text(), failed.refusal()), ("the tool failed", ""));
    let refused = session.call("rpc_error", &json!({}));
    let expected = json!({"code": -32050, "message": "the server refused", "data": {"from": "fixture"}});
    assert_eq!((refused.response.status, &refused.json()["error"]), (200, &expected));
    broker.finish();
}

#[test]
fn progress_comes_to_its_caller_alone() {
    let broker = broker();
    let call = |token: Value, ms: u64| {
        let session = Session::new(&broker, "fixture");
        let params =
            json!({"name": "sleep", "arguments": {"ms": ms, "progress": 3}, "_meta": {"progressToken": token}});
        session.send("tools/call", &params)
    };
    std::thread::scope(|scope| {
        let calls: Vec<_> = [(json!("same"), 300), (json!("same"), 400), (json!(1), 350), (json!("1"), 250)]
            .into_iter()
            .map(|(token, ms)| (token.clone(), scope.spawn(move || call(token, ms))))
            .collect();
        for (token, call) in calls {
            let reply = call.join().unwrap();
            let expected: Vec<String> = (1..=3)
                .map(|n| {
                    format!(
                        r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"x-first":1e2,"progressToken":{token},"progress":{n},"total":3.0}}}}"#
                    )
                })
                .collect();
            assert_eq!(reply.before, expected);
        }
    });
    broker.finish();
}

#[test]
fn a_quick_call_overtakes_a_slow_one() {
    let broker = broker();
    let session = Session::new(&broker, "fixture");
    std::thread::scope(|scope| {
        let slow = scope.spawn(|| session.call("cancellable", &json!({"ms": 1500})));
        broker.wait_event("fixture", "call", "cancellable");
        assert_eq!(session.call("echo", &json!({"text": "quick"})).text(), "quick");
        assert_eq!(broker.count("fixture", "answered", "cancellable"), 0);
        assert_eq!(slow.join().unwrap().text(), "not cancelled");
    });
    broker.finish();
}

#[test]
fn lines_that_are_no_messages_are_skipped() {
    let broker = start(Backend::singleton("fixture").flags("--junk-on-stdout"));
    let session = Session::new(&broker, "fixture");
    assert_eq!(session.call("echo", &json!({"text": "through"})).text(), "through");
    assert_eq!(session.call("stdout_junk", &json!({"lines": 2000})).text(), "done");
    assert_eq!(session.call("notify", &json!({"method": "notifications/unknown"})).text(), "sent");
    assert_eq!(session.call("echo", &json!({"text": "still"})).text(), "still");
    broker.finish();
}

#[test]
fn stderr_is_drained() {
    let broker = broker();
    let session = Session::new(&broker, "fixture");
    assert_eq!(session.call("stderr_flood", &json!({"bytes": 5 << 20})).text(), "flooded");
    broker.finish();
}

#[test]
fn a_line_of_twenty_megabytes_passes() {
    let broker = broker();
    let session = Session::new(&broker, "fixture");
    let reply = session.call("big", &json!({"bytes": 20_000_000}));
    assert_eq!(reply.text().len(), 20_000_000);
    let text = "y".repeat(1 << 20);
    assert_eq!(session.call("echo", &json!({"text": text})).text(), text);
    broker.finish();
}

#[test]
fn a_line_over_the_limit_fails_its_call_alone() {
    let broker = Setup::new().server("frame_bytes_max = 1048576").backend(Backend::singleton("fixture")).start();
    let session = Session::new(&broker, "fixture");
    assert_eq!(session.call("big", &json!({"bytes": 1_000_000})).text().len(), 1_000_000);
    let reply = session.call("big", &json!({"bytes": 2_000_000}));
    assert_eq!(reply.refusal(), "result_too_large", "{}", reply.raw);
    assert_eq!(session.call("echo", &json!({"text": "next"})).text(), "next");
    broker.finish();
}

#[test]
fn the_broker_answers_the_servers_pings_and_refuses_the_rest() {
    let broker = broker();
    let session = Session::new(&broker, "fixture");
    let answer = |method: &str| session.call("ask_client", &json!({"method": method})).text_json();
    assert_eq!(answer("ping")["result"], json!({}));
    for method in ["roots/list", "sampling/createMessage", "elicitation/create", "unknown"] {
        assert_eq!(answer(method)["error"]["code"], -32601, "{method}");
    }
    broker.finish();
}

#[test]
fn a_late_answer_goes_to_nobody() {
    let broker = start(Backend::singleton("fixture").policy("on_cancel = { action = \"keep\" },"));
    let session = Session::new(&broker, "fixture");
    let pid = session.call("pid", &json!({})).text_json()["pid"].clone();
    let body =
        r#"{"jsonrpc":"2.0","id":"late","method":"tools/call","params":{"name":"late_answer","arguments":{"ms":100}}}"#;
    std::thread::scope(|scope| {
        let call = scope.spawn(|| session.send_raw(body));
        broker.wait_event("fixture", "call", "late_answer");
        session.notify("notifications/cancelled", &json!({"requestId": "late"}));
        assert_eq!(call.join().unwrap().refusal(), "cancelled");
    });
    broker.wait_event("fixture", "stopped", "late_answer");
    assert_eq!(session.call("echo", &json!({"text": "next"})).text(), "next");
    assert_eq!(session.call("pid", &json!({})).text_json()["pid"], pid, "the server was kept");
    broker.finish();
}

#[test]
fn the_server_has_an_environment_of_its_own() {
    let broker = broker();
    let session = Session::new(&broker, "fixture");
    let text = session.call("env", &json!({})).text().to_owned();
    let names: Vec<&str> = text.lines().collect();
    for expected in ["LAZY_MCP_GENERATION", "LAZY_MCP_INSTANCE_ID", "PATH", "TMPDIR"] {
        assert!(names.contains(&expected), "{expected} in {names:?}");
    }
    let foreign: Vec<&&str> = names.iter().filter(|name| name.starts_with("CARGO")).collect();
    assert!(foreign.is_empty(), "the test's own variables arrived: {foreign:?}");
    broker.finish();
}

#[test]
fn result_rules_cover_progress_too() {
    let rules = "results = { broker.redact_keys { keys = { \"x-first\" } } },";
    let broker = Setup::new().backend(Backend::singleton("fixture").policy(rules)).start();
    let session = Session::new(&broker, "fixture");
    let params = json!({"name": "sleep", "arguments": {"ms": 20, "progress": 2}, "_meta": {"progressToken": "mine"}});
    let reply = session.send("tools/call", &params);
    assert_eq!(reply.before.len(), 2);
    for notice in &reply.before {
        assert!(
            notice.contains(r#""x-first":"[redacted]""#) && notice.contains(r#""progressToken":"mine""#),
            "{notice}"
        );
    }
    broker.finish();
}

/// A server that knows its roots has no reason to refuse its first call.
#[test]
fn what_a_server_asks_when_it_is_initialized_is_answered_before_its_first_call() {
    let broker = start(Backend::session("fixture").flags("--ask-roots"));
    let session = Session::new(&broker, "fixture");
    let mut stream = broker.http().open(&session.listen()).events(LIMIT);
    std::thread::scope(|scope| {
        let call = scope.spawn(|| session.call("echo", &json!({"text": "x"})));
        let question = stream.message();
        assert_eq!(question["method"], "roots/list");
        broker.wait_event("fixture", "recv", "tools/list");
        let answer = json!({"jsonrpc": "2.0", "id": question["id"], "result": {"roots": []}});
        assert_eq!(broker.http().send(&session.post(answer.to_string())).status, 202);
        call.join().expect("no panic").result();
    });
    broker.wait_event("fixture", "rooted", "");
    let events: Vec<String> = broker.events("fixture").into_iter().map(|one| one.event).collect();
    let place = |event| events.iter().position(|one| one == event);
    assert!(place("rooted") < place("call"), "{events:?}");
    broker.finish();
}

#[test]
fn a_question_that_nobody_answers_delays_the_first_call_and_no_more() {
    let broker = start(Backend::session("fixture").flags("--ask-roots"));
    let session = Session::new(&broker, "fixture");
    let _stream = broker.http().open(&session.listen()).events(LIMIT);
    session.call("echo", &json!({"text": "x"})).result();
    assert_eq!(broker.count("fixture", "rooted", ""), 0);
    broker.finish();
}
