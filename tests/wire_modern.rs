//! The wire of the modern era (2026-07-28): no session, each request stands alone.

mod support;

use std::time::Duration;

use serde_json::{Value, json};
use support::mcp::MODERN;
use support::wire::render;
use support::{Backend, Broker, Modern, Request, Session, Setup};

const PATH: &str = "/fixture/mcp";

fn broker() -> Broker {
    Setup::new().backend(Backend::singleton("fixture").policy("tools = { exclude = { \"crash\" } },")).start()
}

#[track_caller]
fn finish_lazy(broker: Broker) {
    broker.assert_nothing_runs();
    assert_eq!(broker.starts("fixture"), 0, "something was started");
    broker.finish();
}

/// Checks the status and the JSON-RPC code, and that the answer is for this request.
#[track_caller]
fn check(broker: &Broker, request: &Request, status: u16, code: i64) {
    let answer = broker.http().send(request);
    let body = answer.json();
    assert_eq!((answer.status, body["error"]["code"].as_i64()), (status, Some(code)), "{request:?}\n{answer:?}");
    let sent = request.body.as_deref().and_then(|body| serde_json::from_slice::<Value>(body).ok());
    let id = sent.map_or(Value::Null, |sent| sent["id"].clone());
    assert_eq!(body["id"], id, "{}", answer.text());
    assert_eq!(answer.header("mcp-session-id"), None);
}

#[test]
fn discover_tells_what_the_catalog_tells() {
    let broker = broker();
    let answer = Modern::new(&broker, PATH).send("server/discover", &json!({}));
    assert_eq!(answer.response.status, 200);
    let result = answer.result();
    assert!(result["supportedVersions"].as_array().unwrap().contains(&MODERN.into()), "{result}");
    assert_eq!(result["resultType"], "complete");
    assert_eq!(result["capabilities"]["tools"], json!({"listChanged": true}));
    assert_eq!(result["instructions"], "A scripted server for tests.");
    assert_eq!(result["_meta"]["io.modelcontextprotocol/serverInfo"]["name"], "fixture");
    check_hints(result);
    finish_lazy(broker);
}

#[track_caller]
fn check_hints(result: &Value) {
    assert!(result["ttlMs"].as_u64().is_some_and(|ttl| ttl >= 1000), "0 would make every client ask again: {result}");
    assert!(matches!(result["cacheScope"].as_str(), Some("public" | "private")), "{result}");
}

#[test]
fn the_list_carries_type_and_hints() {
    let broker = broker();
    let answer = Modern::new(&broker, PATH).send("tools/list", &json!({}));
    assert_eq!((answer.response.status, answer.response.header("mcp-session-id")), (200, None));
    let result = answer.result();
    assert_eq!(result["resultType"], "complete");
    assert_eq!(result["tools"].as_array().unwrap().len(), 26);
    check_hints(result);
    finish_lazy(broker);
}

#[test]
fn a_call_carries_its_type() {
    let broker = broker();
    let modern = Modern::new(&broker, PATH);
    let answer = modern.call("echo", &json!({"text": "hello"}));
    assert_eq!(answer.response.status, 200);
    assert_eq!(answer.result()["resultType"], "complete");
    assert_eq!(answer.text(), "hello");
    // Members that nobody knows stay beside the added one, in their spelling.
    let odd = modern.call("unknown_fields", &json!({}));
    assert_eq!(odd.result()["resultType"], "complete");
    assert!(odd.raw.contains(r#""x-big":123456789012345678901234567890"#), "{}", odd.raw);
    assert!(odd.raw.contains(r#""annotations":{"x":[1.0,-0,1E+2]}"#), "{}", odd.raw);
    broker.finish();
}

#[test]
fn progress_comes_on_the_stream_of_its_call() {
    let broker = broker();
    let params = json!({"name": "sleep", "arguments": {"ms": 20, "progress": 2}, "_meta": {"progressToken": 7}});
    let answer = Modern::new(&broker, PATH).send("tools/call", &params);
    assert_eq!(answer.before.len(), 2, "{:?}", answer.before);
    assert!(answer.before.iter().all(|message| message.contains(r#""progressToken":7,"#)), "{:?}", answer.before);
    assert_eq!(answer.text(), "slept");
    broker.finish();
}

#[test]
fn headers_must_agree_with_the_body() {
    let broker = broker();
    let modern = Modern::new(&broker, PATH);
    let list = || modern.request("tools/list", &json!({}));
    let call = || modern.call_request("echo", &json!({"text": "x"}));
    for request in [
        list().header("mcp-method", "tools/call"),
        list().without("mcp-method"),
        list().header("mcp-protocol-version", "2025-11-25"),
        list().without("mcp-protocol-version"),
        call().header("mcp-name", "echo_raw"),
        call().without("mcp-name"),
    ] {
        check(&broker, &request, 400, -32020);
    }
    finish_lazy(broker);
}

#[test]
fn a_name_may_be_spelled_in_base64() {
    let broker = broker();
    let modern = Modern::new(&broker, PATH);
    let call = modern.call_request("echo", &json!({"text": "x"})).header("mcp-name", "=?base64?ZWNobw==?=");
    let answer = broker.http().send(&call);
    assert_eq!(answer.status, 200, "{}", answer.text());
    let wrong = modern.call_request("echo", &json!({"text": "x"})).header("mcp-name", "=?base64?ZWNob18=?=");
    check(&broker, &wrong, 400, -32020);
    broker.finish();
}

#[test]
fn another_version_is_refused_with_those_that_are_served() {
    let broker = broker();
    let body = json!({"jsonrpc": "2.0", "id": 5, "method": "tools/list", "params": {"_meta": {
        "io.modelcontextprotocol/protocolVersion": "2031-01-01",
        "io.modelcontextprotocol/clientCapabilities": {},
    }}});
    let request = Request::post(PATH, body.to_string())
        .header("mcp-protocol-version", "2031-01-01")
        .header("mcp-method", "tools/list");
    let answer = broker.http().send(&request);
    let error = &answer.json()["error"];
    assert_eq!((answer.status, error["code"].as_i64()), (400, Some(-32022)), "{}", answer.text());
    assert_eq!(error["data"]["requested"], "2031-01-01");
    assert!(error["data"]["supported"].as_array().unwrap().contains(&MODERN.into()), "{error}");
    finish_lazy(broker);
}

#[test]
fn metadata_that_is_required_is_missed() {
    let broker = broker();
    let body = json!({"jsonrpc": "2.0", "id": 5, "method": "tools/list", "params": {"_meta": {
        "io.modelcontextprotocol/protocolVersion": MODERN,
    }}});
    let request =
        Request::post(PATH, body.to_string()).header("mcp-protocol-version", MODERN).header("mcp-method", "tools/list");
    check(&broker, &request, 400, -32602);
    finish_lazy(broker);
}

#[test]
fn methods_of_the_other_era_are_not_found() {
    let broker = broker();
    let modern = Modern::new(&broker, PATH);
    for method in ["ping", "logging/setLevel", "resources/subscribe", "tools/nope", "tasks/get"] {
        check(&broker, &modern.request(method, &json!({})), 404, -32601);
    }
    check(&broker, &modern.call_request("nope", &json!({})), 200, -32602);
    check(&broker, &modern.call_request("crash", &json!({})), 200, -32602);
    finish_lazy(broker);
}

#[test]
fn streams_and_sessions_of_the_other_era_are_not_allowed() {
    let broker = broker();
    for method in ["GET", "DELETE"] {
        let request = Request::new(method, PATH).header("mcp-protocol-version", MODERN);
        assert_eq!(broker.http().send(&request).status, 405, "{method}");
    }
    let put = broker.http().send(&Request::new("PUT", PATH));
    assert_eq!(put.status, 405);
    let modern = Modern::new(&broker, PATH);
    let list = modern.request("tools/list", &json!({})).header("mcp-session-id", "stale");
    let answer = broker.http().send(&list);
    assert_eq!((answer.status, answer.header("mcp-session-id")), (200, None), "a stale session id is ignored");
    finish_lazy(broker);
}

#[test]
fn a_subscription_is_acknowledged_and_starts_nothing() {
    let broker = broker();
    let modern = Modern::new(&broker, PATH);
    let request = modern.request("subscriptions/listen", &json!({"notifications": {"toolsListChanged": true}}));
    let stream = broker.http().open(&request);
    assert_eq!((stream.status(), stream.header("content-type")), (200, Some("text/event-stream")));
    let first = stream.events(Duration::from_secs(10)).message();
    assert_eq!(first["method"], "notifications/subscriptions/acknowledged");
    assert_eq!(first["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"], 1, "{first}");
    assert_eq!(first["params"]["notifications"], json!({"toolsListChanged": true}), "{first}");
    finish_lazy(broker);
}

#[test]
fn a_held_subscription_keeps_nothing_awake() {
    let broker = Setup::new().backend(Backend::singleton("fixture").idle_seconds(1)).start();
    let modern = Modern::new(&broker, PATH);
    let request = modern.request("subscriptions/listen", &json!({"notifications": {"toolsListChanged": true}}));
    let mut events = broker.http().open(&request).events(Duration::from_secs(30));
    events.message();
    modern.call("echo", &json!({"text": "x"}));
    broker.wait_stopped("fixture", Duration::from_secs(10));
    broker.finish();
}

#[test]
fn closing_the_stream_cancels() {
    let keep = "on_cancel = { action = \"keep\" },";
    let broker = Setup::new().backend(Backend::singleton("fixture").policy(keep)).start();
    let modern = Modern::new(&broker, PATH);
    let call = broker.http().start(&modern.call_request("cancellable", &json!({"ms": 20_000}))).unwrap();
    broker.wait_event("fixture", "call", "cancellable");
    drop(call);
    broker.wait_event("fixture", "stopped", "cancellable");
    assert_eq!(broker.count("fixture", "cancelled", ""), 1);
    broker.finish();
}

/// The answer that makes dual-era clients fall back to `initialize` (recorded with Claude Code, Python mcp, fastmcp and
/// the TypeScript v2 client).
#[test]
fn a_session_scoped_backend_without_a_key_sends_clients_back_to_initialize() {
    let broker = Setup::new().backend(Backend::session("fixture")).start();
    let modern = Modern::new(&broker, PATH);
    for request in [
        modern.request("server/discover", &json!({})),
        modern.request("tools/list", &json!({})),
        modern.call_request("echo", &json!({"text": "x"})),
        modern.request("subscriptions/listen", &json!({"notifications": {}})),
    ] {
        check(&broker, &request, 400, -32601);
    }
    insta::assert_snapshot!(render(&broker.http().send(&modern.request("server/discover", &json!({})))), @r#"
    400
    content-type: application/json
    {"error":{"code":-32601,"message":"[words]"},"id":5,"jsonrpc":"2.0"}
    "#);
    let session = Session::new(&broker, "fixture");
    assert_eq!(session.call("echo", &json!({"text": "legacy"})).text(), "legacy");
    broker.finish();
}

#[test]
fn a_scope_key_makes_an_instance() {
    let broker = Setup::new().backend(Backend::session("fixture")).start();
    let by_url = |key: &str| Modern::new(&broker, &format!("/fixture/s/{key}/mcp"));
    let pid = |reply: &support::Reply| reply.text_json()["pid"].clone();
    let one = pid(&by_url("one").call("pid", &json!({})));
    let two = pid(&by_url("two").call("pid", &json!({})));
    assert_ne!(one, two, "a key is an instance");
    assert_eq!(one, pid(&by_url("one").call("pid", &json!({}))), "and stays one");
    let plain = Modern::new(&broker, PATH);
    let by_header = plain.call_request("pid", &json!({})).header("lazy-mcp-scope", "one");
    assert_eq!(one, pid(&support::Reply::new(broker.http().send(&by_header))), "however it is said");
    assert_eq!(broker.starts("fixture"), 2);
    broker.finish();
}
