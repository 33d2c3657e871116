//! The wire of the legacy era (`initialize`, 2024-11-05 to 2025-11-25): statuses, headers, bodies.

mod support;

use std::io::ErrorKind;
use std::time::Duration;

use serde_json::{Value, json};
use support::http::Frame;
use support::mcp::initialize;
use support::wire::{render, render_message};
use support::{Backend, Broker, Reply, Request, Session, Setup};

const PATH: &str = "/fixture/mcp";

fn broker() -> Broker {
    Setup::new().backend(Backend::singleton("fixture").policy("tools = { exclude = { \"crash\" } },")).start()
}

/// Ends a test that must not have started anything.
#[track_caller]
fn finish_lazy(broker: Broker) {
    broker.assert_nothing_runs();
    assert_eq!(broker.starts("fixture"), 0, "something was started");
    broker.finish();
}

/// Checks the status and, where one is expected, the JSON-RPC code: `404 -32001`.
#[track_caller]
fn check(broker: &Broker, request: &Request, expected: &str) {
    let answer = broker.http().send(request);
    let code = serde_json::from_slice::<Value>(&answer.body).ok().and_then(|body| body["error"]["code"].as_i64());
    let seen = match code {
        Some(code) => format!("{} {code}", answer.status),
        None => answer.status.to_string(),
    };
    assert_eq!(seen, expected, "{request:?}\nanswered {answer:?}");
}

#[test]
fn initialize_negotiates_the_version() {
    let broker = broker();
    for (asked, answered) in [
        ("2024-11-05", "2024-11-05"),
        ("2025-03-26", "2025-03-26"),
        ("2025-06-18", "2025-06-18"),
        ("2025-11-25", "2025-11-25"),
        ("2026-07-28", "2025-11-25"),
        ("1999-01-01", "2025-11-25"),
    ] {
        let answer = Reply::new(broker.http().send(&initialize(PATH, asked)));
        assert_eq!(answer.result()["protocolVersion"], answered, "asked for {asked}");
    }
    finish_lazy(broker);
}

#[test]
fn initialize_shows_the_server_and_mints_a_session() {
    let broker = broker();
    let answer = broker.http().send(&initialize(PATH, "2025-06-18"));
    insta::assert_snapshot!(render(&answer), @r#"
    200
    content-type: application/json
    mcp-session-id: [id]
    {"id":0,"jsonrpc":"2.0","result":{"capabilities":{"tools":{"listChanged":true}},"instructions":"A scripted server for tests.","protocolVersion":"2025-06-18","serverInfo":{"name":"fixture","title":"Scripted fixture","version":"1.0.0"}}}
    "#);
    let id = answer.header("mcp-session-id").unwrap();
    assert!(id.len() >= 32 && id.bytes().all(|byte| (0x21..=0x7e).contains(&byte)), "{id}");
    let other = broker.http().send(&initialize(PATH, "2025-06-18"));
    assert_ne!(Some(id), other.header("mcp-session-id"));
    finish_lazy(broker);
}

#[test]
fn the_handshake_and_pings_need_no_server() {
    let broker = broker();
    let session = Session::new(&broker, "fixture");
    let initialized = session.notify("notifications/initialized", &json!({}));
    insta::assert_snapshot!(render(&initialized), @"202");
    insta::assert_snapshot!(render(&session.send("ping", &json!({})).response), @r#"
    200
    content-type: application/json
    {"id":1,"jsonrpc":"2.0","result":{}}
    "#);
    // Whatever else is accepted and needs no answer.
    assert_eq!(session.notify("notifications/unknown", &json!({})).status, 202);
    assert_eq!(session.notify("notifications/cancelled", &json!({"requestId": "never seen"})).status, 202);
    let answer = broker.http().send(&session.post(r#"{"jsonrpc":"2.0","id":"asked","result":{}}"#));
    assert_eq!(answer.status, 202, "{}", answer.text());
    finish_lazy(broker);
}

#[test]
fn the_list_has_the_visible_tools_in_order() {
    let broker = broker();
    let session = Session::new(&broker, "fixture");
    let list = session.list();
    let tools = list.result()["tools"].as_array().unwrap();
    let names: Vec<&str> = tools.iter().filter_map(|tool| tool["name"].as_str()).collect();
    assert_eq!(names[..4], ["echo", "echo_raw", "odd", "sleep"]);
    assert_eq!(names.len(), 26, "{names:?}");
    assert!(!names.contains(&"crash"), "the policy excludes it");
    let members: Vec<&String> = list.result().as_object().unwrap().keys().collect();
    assert_eq!(members, ["tools"], "hints of the modern era do not belong here");
    insta::assert_snapshot!(render_message(&tools[0].to_string()), @r#"{"description":"Returns the text as it was spelled.","inputSchema":{"properties":{"text":{"type":"string"}},"required":["text"],"type":"object"},"name":"echo"}"#);
    let cursor = session.send("tools/list", &json!({"cursor": "anything"}));
    assert_eq!((cursor.response.status, cursor.error_code()), (200, -32602));
    finish_lazy(broker);
}

#[test]
fn params_may_be_missing_where_nothing_is_asked() {
    let broker = broker();
    let session = Session::new(&broker, "fixture");
    // As the TypeScript and Python clients send them.
    for (body, member) in [
        (r#"{"method":"tools/list","jsonrpc":"2.0","id":1}"#, "tools"),
        (r#"{"jsonrpc":"2.0","id":2,"method":"tools/list","params":{"_meta":{"progressToken":1}}}"#, "tools"),
    ] {
        assert!(session.send_raw(body).result()[member].is_array(), "{body}");
    }
    assert_eq!(session.send_raw(r#"{"jsonrpc":"2.0","id":3,"method":"ping"}"#).result(), &json!({}));
    let bare = broker.http().send(&session.post(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#));
    assert_eq!(bare.status, 202);
    let no_params = session.send_raw(r#"{"jsonrpc":"2.0","id":4,"method":"tools/call"}"#);
    assert_eq!(no_params.error_code(), -32602);
    finish_lazy(broker);
}

#[test]
fn a_call_is_answered_in_json() {
    let broker = broker();
    let session = Session::new(&broker, "fixture");
    session.call("echo", &json!({"text": "warm"}));
    insta::assert_snapshot!(render(&session.call("echo", &json!({"text": "hello"})).response), @r#"
    200
    content-type: application/json
    {"id":2,"jsonrpc":"2.0","result":{"content":[{"text":"hello","type":"text"}]}}
    "#);
    broker.finish();
}

#[test]
fn a_call_with_progress_is_answered_in_events() {
    let broker = broker();
    let session = Session::new(&broker, "fixture");
    let params = json!({"name": "sleep", "arguments": {"ms": 20, "progress": 2}, "_meta": {"progressToken": "mine"}});
    insta::assert_snapshot!(render(&session.send("tools/call", &params).response), @r#"
    200
    content-type: text/event-stream
    {"jsonrpc":"2.0","method":"notifications/progress","params":{"progress":1,"progressToken":"mine","total":2.0,"x-first":100.0}}
    {"jsonrpc":"2.0","method":"notifications/progress","params":{"progress":2,"progressToken":"mine","total":2.0,"x-first":100.0}}
    {"id":1,"jsonrpc":"2.0","result":{"content":[{"text":"slept","type":"text"}]}}
    "#);
    broker.finish();
}

#[test]
fn unknown_names_are_refused_without_a_start() {
    let broker = broker();
    let session = Session::new(&broker, "fixture");
    insta::assert_snapshot!(render(&session.send("tools/nope", &json!({})).response), @r#"
    200
    content-type: application/json
    {"error":{"code":-32601,"message":"[words]"},"id":1,"jsonrpc":"2.0"}
    "#);
    insta::assert_snapshot!(render(&session.call("nope", &json!({})).response), @r#"
    200
    content-type: application/json
    {"error":{"code":-32602,"message":"[words]"},"id":2,"jsonrpc":"2.0"}
    "#);
    let excluded = session.call("crash", &json!({}));
    assert_eq!((excluded.response.status, excluded.error_code()), (200, -32602));
    check(&broker, &initialize("/nope/mcp", "2025-11-25"), "404 -32600");
    finish_lazy(broker);
}

#[test]
fn what_is_not_one_message_is_refused() {
    let broker = broker();
    let session = Session::new(&broker, "fixture");
    for (body, expected) in [
        ("", "400 -32700"),
        ("{", "400 -32700"),
        ("not json", "400 -32700"),
        (r#"{"jsonrpc":"2.0","id":1,"method":"ping"} trailing"#, "400 -32700"),
        ("[]", "400 -32600"),
        (r#"[{"jsonrpc":"2.0","id":1,"method":"ping"}]"#, "400 -32600"),
        ("1", "400 -32600"),
        ("null", "400 -32600"),
        ("{}", "400 -32600"),
        (r#"{"jsonrpc":"2.0","id":1}"#, "400 -32600"),
        (r#"{"jsonrpc":"1.0","id":1,"method":"ping"}"#, "400 -32600"),
        (r#"{"jsonrpc":"2.0","id":null,"method":"ping"}"#, "400 -32600"),
        (r#"{"jsonrpc":"2.0","id":{},"method":"ping"}"#, "400 -32600"),
        (r#"{"jsonrpc":"2.0","id":1,"method":7}"#, "400 -32600"),
    ] {
        check(&broker, &session.post(body), expected);
    }
    let not_utf8 = session.post(b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"\xff\"}".as_slice());
    check(&broker, &not_utf8, "400 -32700");
    insta::assert_snapshot!(render(&broker.http().send(&session.post("{"))), @r#"
    400
    content-type: application/json
    {"error":{"code":-32700,"message":"[words]"},"id":null,"jsonrpc":"2.0"}
    "#);
    finish_lazy(broker);
}

#[test]
fn bodies_of_another_kind_or_size_are_refused() {
    let broker = broker();
    let session = Session::new(&broker, "fixture");
    let ping = || session.request("ping", &json!({}));
    for (request, expected) in [
        (ping().header("content-type", "text/plain"), 415),
        (ping().without("content-type"), 415),
        (ping().header("content-type", "application/json; charset=utf-8"), 200),
        (session.post(vec![b' '; 65 << 20]), 413),
    ] {
        let kind = request.headers.clone();
        let answer = broker.http().send(&request);
        assert_eq!(answer.status, expected, "{kind:?}");
        assert!(answer.json()["jsonrpc"] == "2.0", "every answer carries JSON-RPC: {}", answer.text());
    }
    finish_lazy(broker);
}

#[test]
fn sessions_that_are_not_known_are_gone() {
    let broker = broker();
    let session = Session::new(&broker, "fixture");
    let ping = || session.request("ping", &json!({}));
    let forged = {
        let mut bytes = session.id.clone().into_bytes();
        let last = bytes.last_mut().unwrap();
        *last = if *last == b'A' { b'B' } else { b'A' };
        String::from_utf8(bytes).unwrap()
    };
    check(&broker, &ping(), "200");
    check(&broker, &ping().without("mcp-session-id"), "400 -32600");
    check(&broker, &ping().header("mcp-session-id", "unknown"), "404 -32001");
    check(&broker, &ping().header("mcp-session-id", &forged), "404 -32001");
    check(&broker, &session.listen().header("mcp-session-id", "unknown"), "404 -32001");
    let deleted = session.delete();
    assert!(matches!(deleted.status, 200 | 202 | 204), "{deleted:?}");
    check(&broker, &ping(), "404 -32001");
    check(&broker, &session.listen(), "404 -32001");
    check(&broker, &session.call_request("echo", &json!({"text": "x"})), "404 -32001");
    finish_lazy(broker);
}

#[test]
fn a_session_belongs_to_its_backend() {
    let broker = Setup::new().backend(Backend::singleton("fixture")).backend(Backend::singleton("other")).start();
    let session = Session::new(&broker, "fixture");
    let mut ping = session.request("ping", &json!({}));
    ping.target = "/other/mcp".to_owned();
    check(&broker, &ping, "404 -32001");
    finish_lazy(broker);
}

#[test]
fn a_version_header_must_be_one_that_is_served() {
    let broker = broker();
    let session = Session::new(&broker, "fixture");
    let ping = || session.request("ping", &json!({}));
    check(&broker, &ping().without("mcp-protocol-version"), "200");
    check(&broker, &ping().header("mcp-protocol-version", "2025-06-18"), "200");
    let answer = broker.http().send(&ping().header("mcp-protocol-version", "1999-01-01"));
    assert_eq!(answer.status, 400, "{}", answer.text());
    finish_lazy(broker);
}

#[test]
fn foreign_hosts_and_origins_are_forbidden() {
    let broker = broker();
    let port = broker.http().0.port();
    let request = || initialize(PATH, "2025-11-25");
    for (request, expected) in [
        (request().header("host", "evil.example"), 403),
        (request().header("host", &format!("evil.example:{port}")), 403),
        (request().header("host", &format!("127.0.0.1.evil.example:{port}")), 403),
        (request().header("origin", "http://evil.example"), 403),
        (request().header("origin", "https://localhost.evil.example"), 403),
        (request().header("origin", "null"), 403),
        (Request::get("/status").header("host", "evil.example"), 403),
        (Request::get("/health").header("origin", "http://evil.example"), 403),
        (request().header("host", &format!("localhost:{port}")), 200),
        (request().header("host", &format!("[::1]:{port}")), 200),
        (request().header("origin", &format!("http://127.0.0.1:{port}")), 200),
        (request().header("origin", "http://localhost:3000"), 200),
    ] {
        let answer = broker.http().send(&request);
        assert_eq!(answer.status, expected, "{:?}", request.headers);
    }
    finish_lazy(broker);
}

#[test]
fn the_get_stream_is_kept_alive_by_comments() {
    let broker = broker();
    let session = Session::new(&broker, "fixture");
    let stream = broker.http().open(&session.listen());
    assert_eq!(stream.status(), 200);
    assert_eq!(stream.header("content-type"), Some("text/event-stream"));
    let mut events = stream.events(Duration::from_secs(35));
    match events.next() {
        Ok(Some(Frame::Comment(_))) => {}
        other => panic!("the first part is a comment, within half a minute; not {other:?}"),
    }
    finish_lazy(broker);
}

#[test]
fn a_deleted_session_ends_its_stream() {
    let broker = broker();
    let session = Session::new(&broker, "fixture");
    let stream = broker.http().open(&session.listen());
    let mut events = stream.events(Duration::from_secs(10));
    session.delete();
    loop {
        match events.next() {
            Ok(Some(Frame::Comment(_))) => {}
            Ok(None) => break,
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => break,
            other => panic!("the stream should end: {other:?}"),
        }
    }
    finish_lazy(broker);
}

#[test]
fn broken_http_harms_nobody() {
    let broker = broker();
    let host = broker.http().0;
    for bytes in [
        &b"\x16\x03\x01\x02\x00"[..],
        b"GET\r\n\r\n",
        b"POST /fixture/mcp HTTP/1.1\r\n\r\n",
        b"POST /fixture/mcp HTTP/9.9\r\nhost: x\r\n\r\n",
        b"POST /fixture/mcp HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: -1\r\n\r\n",
    ] {
        let answer = broker.http().send_bytes(bytes);
        assert!(answer.as_ref().map_or(true, |answer| (400..500).contains(&answer.status)), "{answer:?}");
    }
    let half = format!("POST {PATH} HTTP/1.1\r\nhost: {host}\r\ncontent-length: 100\r\n\r\n{{\"json");
    drop(broker.http().start(&Request::post(PATH, half)).unwrap());
    assert_eq!(broker.http().send(&Request::get("/health")).status, 200);
    finish_lazy(broker);
}

#[test]
fn the_connection_of_a_call_may_break_without_cancelling_it() {
    let broker = broker();
    let session = Session::new(&broker, "fixture");
    let request = session.call_request("cancellable", &json!({"ms": 600}));
    let connection = broker.http().start(&request).unwrap();
    broker.wait_event("fixture", "call", "cancellable");
    drop(connection);
    broker.wait_event("fixture", "answered", "cancellable");
    assert_eq!(broker.count("fixture", "cancelled", ""), 0);
    broker.finish();
}
