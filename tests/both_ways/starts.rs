//! What a server is started for, and what is only asked of one that runs.

use serde_json::{Value, json};

use crate::support::processes::{Table, kill_9};
use crate::support::wait::until_true;
use crate::support::{Backend, Broker, Reply, Session, Setup};
use crate::{SOON, all_of, private, settle};

fn completion(of: &Value) -> Value {
    json!({"ref": of, "argument": {"name": "who", "value": "a"}})
}

#[test]
fn what_was_reviewed_starts_a_server() {
    let cases = [
        ("prompts/get", json!({"name": "greet", "arguments": {"who": "you"}}), "messages"),
        ("resources/read", json!({"uri": "fixture://b"}), "contents"),
        ("resources/read", json!({"uri": "fixture://item/7"}), "contents"),
        ("completion/complete", completion(&json!({"type": "ref/prompt", "name": "greet"})), "completion"),
        (
            "completion/complete",
            completion(&json!({"type": "ref/resource", "uri": "fixture://item/{id}"})),
            "completion",
        ),
    ];
    let broker = private();
    for (started, (method, params, member)) in cases.iter().enumerate() {
        let session = Session::new(&broker, "fixture");
        assert!(session.send(method, params).result().get(member).is_some(), "{method}");
        assert_eq!(broker.starts("fixture"), started + 1, "{method} {params}");
    }
    broker.finish();
}

#[test]
fn what_nobody_has_reviewed_starts_nothing() {
    let broker = private();
    let session = Session::new(&broker, "fixture");
    let unknown: Vec<(&str, Value, i64)> = vec![
        ("prompts/get", json!({"name": "gret"}), -32602),
        ("prompts/get", json!({}), -32602),
        ("resources/read", json!({"uri": "fixture://c"}), -32002),
        ("resources/read", json!({"uri": "fixture://ite/7"}), -32002),
        ("completion/complete", completion(&json!({"type": "ref/prompt", "name": "gret"})), -32602),
        ("completion/complete", completion(&json!({"type": "ref/resource", "uri": "fixture://c"})), -32602),
        ("completion/complete", completion(&json!({"type": "ref/other", "uri": "fixture://a"})), -32602),
        ("vendor/method", json!({}), -32601),
        ("tools/call", json!({"name": "nobody"}), -32602),
        // Those that only the broker could answer, or that only clients are asked.
        ("tasks/get", json!({"taskId": "1"}), -32601),
        ("sampling/createMessage", json!({}), -32601),
        ("subscriptions/listen", json!({}), -32601),
    ];
    let ask = |(method, params, code): &(&str, Value, i64)| {
        assert_eq!(session.send(method, params).error_code(), *code, "{method} {params}");
    };
    unknown.iter().for_each(ask);
    let read = session.send("resources/read", &json!({"uri": "fixture://c"}));
    assert_eq!(read.json()["error"]["data"], json!({"uri": "fixture://c"}));
    session.notify("notifications/roots/list_changed", &json!({}));
    session.notify("notifications/vendor", &json!({}));
    session.http.send(&session.post(r#"{"jsonrpc":"2.0","id":1,"result":{}}"#));
    broker.assert_nothing_runs();
    assert_eq!(broker.starts("fixture"), 0);
    // A server that runs is asked itself; what a name stands for that nobody has reviewed, not even then.
    settle(&session);
    assert!(session.send("resources/read", &json!({"uri": "fixture://c"})).result().get("contents").is_some());
    assert!(session.send("completion/complete", &unknown[5].1).result().get("completion").is_some());
    let own = session.send("vendor/method", &json!({}));
    assert_eq!(own.json()["error"]["data"], json!({"from": "fixture"}));
    for case in [&unknown[0], &unknown[9], &unknown[10], &unknown[11]] {
        ask(case);
    }
    broker.finish();
}

#[test]
fn a_server_that_speaks_more_is_started_for_methods_that_the_broker_does_not_know() {
    let backend = all_of(Backend::session("fixture")).list_flags("--experimental");
    let broker = Setup::new().backend(backend).start();
    let session = Session::new(&broker, "fixture");
    assert_eq!(session.send("tasks/get", &json!({})).error_code(), -32601);
    assert_eq!(broker.starts("fixture"), 0);
    let answer = r#"{"jsonrpc":"2.0","id":$ID,"result":{"x":1e2}}"#;
    let reply = session.send("vendor/method", &json!({"x-say": [answer]}));
    assert!(reply.raw.ends_with(r#""result":{"x":1e2}}"#), "{}", reply.raw);
    assert_eq!(broker.starts("fixture"), 1);
    broker.finish();
}

/// What is offered, by a session of its own, and with which lists.
fn offered(broker: &Broker, backend: &str) -> (Value, Vec<Reply>) {
    let session = Session::new(broker, backend);
    let answer = broker.http().send(&crate::support::mcp::initialize(&session.path, "2025-11-25"));
    let capabilities = answer.json()["result"]["capabilities"].clone();
    let lists = ["prompts/list", "resources/list", "resources/templates/list"];
    (capabilities, lists.iter().map(|method| session.send(method, &json!({}))).collect())
}

#[test]
fn lists_come_out_of_the_catalog() {
    let broker = Setup::new().backend(all_of(Backend::singleton("fixture"))).backend(Backend::session("plain")).start();
    let (capabilities, lists) = offered(&broker, "fixture");
    let changes = json!({"listChanged": true});
    assert_eq!(
        capabilities,
        json!({"tools": changes, "prompts": changes, "resources": {"subscribe": true, "listChanged": true}, "completions": {}, "logging": {}})
    );
    for (list, expected) in lists.iter().zip([
        r#""result":{"prompts":[{"name":"greet","x-odd":1e2,"arguments":[{"name":"who","description":"c\u0061fé"}]}]}}"#,
        r#""result":{"resources":[{"uri":"fixture://a","name":"a","x-odd":[1.0]},{"uri":"fixture://b","name":"b"}]}}"#,
        r#""result":{"resourceTemplates":[{"uriTemplate":"fixture://item/{id}","name":"item","x-odd":-0}]}}"#,
    ]) {
        assert!(list.raw.ends_with(expected), "{}", list.raw);
    }
    let session = Session::new(&broker, "fixture");
    for method in ["tools/list", "prompts/list", "resources/list", "resources/templates/list"] {
        assert_eq!(session.send(method, &json!({"cursor": "from-1"})).error_code(), -32602, "{method}");
        assert_eq!(session.send(method, &json!({"cursor": ""})).error_code(), -32602, "{method}");
    }
    // Where the catalog offers nothing of a kind, nothing is known of it.
    let (capabilities, lists) = offered(&broker, "plain");
    assert_eq!(capabilities, json!({"tools": changes}));
    assert_eq!(lists.iter().map(Reply::error_code).collect::<Vec<_>>(), [-32601; 3]);
    let plain = Session::new(&broker, "plain");
    for (method, params) in [
        ("prompts/get", json!({"name": "greet"})),
        ("resources/read", json!({"uri": "fixture://a"})),
        ("resources/subscribe", json!({"uri": "fixture://a"})),
        ("logging/setLevel", json!({"level": "info"})),
        ("completion/complete", completion(&json!({"type": "ref/prompt", "name": "greet"}))),
    ] {
        assert_eq!(plain.send(method, &params).error_code(), -32601, "{method}");
    }
    broker.assert_nothing_runs();
    assert_eq!((broker.starts("fixture"), broker.starts("plain")), (0, 0));
    broker.finish();
}

#[test]
fn a_tool_that_answers_with_a_task_alone_is_not_there() {
    let broker = private();
    let session = Session::new(&broker, "fixture");
    let list = session.list();
    assert!(list.raw.contains(r#""name":"flood""#) && !list.raw.contains("task_only"), "{}", list.raw);
    assert_eq!(session.send("tools/call", &json!({"name": "task_only"})).error_code(), -32602);
    broker.assert_nothing_runs();
    settle(&session);
    assert_eq!(session.send("tools/call", &json!({"name": "task_only"})).error_code(), -32602);
    assert_eq!(broker.count("fixture", "call", "task_only"), 0);
    broker.finish();
}

#[test]
fn what_waits_for_a_server_that_runs_starts_no_other() {
    let one_by_one = all_of(Backend::singleton("fixture")).max_concurrency(1);
    let broker = Setup::new().backend(one_by_one).start();
    let session = Session::new(&broker, "fixture");
    let pid = session.call("pid", &json!({})).text_json()["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok());
    let server = Table::read().get(pid.expect("a pid")).expect("the server runs").identity;
    let busy = broker.http().send_aside(&session.call_request("hang", &json!({})));
    broker.wait_event("fixture", "call", "hang");
    let read = |uri: &str| broker.http().send_aside(&session.request("resources/read", &json!({"uri": uri})));
    let unknown = read("fixture://c");
    until_true("it to wait", SOON, || broker.status()["totals"]["queued_calls"] == 1);
    kill_9(server);
    assert_eq!(Reply::new(busy.join().unwrap()).refusal(), "backend_exited");
    assert_eq!(Reply::new(unknown.join().unwrap()).error_code(), -32002);
    broker.assert_nothing_runs();
    assert_eq!(broker.starts("fixture"), 1);
    broker.finish();
}
