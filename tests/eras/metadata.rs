//! What a request carries in the modern era: as it was spelled where both sides know it, put in and taken out where one
//! does not.

use serde_json::{Value, json};

use crate::support::{Backend, Broker, Modern, Reply, Session, Setup};
use crate::{keyed, modern, read};

fn shared() -> Broker {
    Setup::new().backend(modern(Backend::singleton("fixture"))).start()
}

const VERSION: &str = r#""io.modelcontextprotocol/protocolVersion":"2026-07-28""#;

#[test]
fn between_modern_sides_nothing_changes_but_id_and_token() {
    let broker = shared();
    let client = Modern::new(&broker, "/fixture/mcp");
    let said = r#"{"x-before":1e2,"result":{"ttlMs":5.0,"resultType":"input_\u0072equired","inputRequests":{"k\u0031":{"method":"roots/list","x":[ ]}},"requestState":"s\u0074ate","x":-0}, "jsonrpc":"2.0","id":$ID }"#;
    let spelled = format!(
        r#"{{"x-top":1e2, "params":{{"x-say":{},"requestState":"\u0061\/b","inputResponses":{{"k\u0031":{{"roots":[ ],"n":1.50}}}},"x-more":null,"_meta":{{ {VERSION},"vendor/x":1E5,"progressToken":TOKEN,"io.modelcontextprotocol/clientCapabilities":{{"roots":{{ }},"x":-0}},"io.modelcontextprotocol/clientInfo":{{"name":"\u0074","version":"1"}},"io.modelcontextprotocol/logLevel":"error"}},"name":"echo"}},"method":"tools/call","id":CALLED,"jsonrpc":"2.0"}}"#,
        json!([said])
    );
    for (n, (id, token)) in [("\"a\\u0062\"", "\"tok\""), ("7", "1")].into_iter().enumerate() {
        let body = spelled.replace("TOKEN", token).replace("CALLED", id);
        let reply = Reply::new(client.http.send(&client.post("tools/call", Some("echo"), body)));
        assert_eq!(reply.raw, said.replace("$ID", id));
        let line = read(&broker, "fixture", "tools/call").remove(n);
        let own: Value = serde_json::from_str(&line).unwrap();
        let (own_id, own_token) = (own["id"].to_string(), own["params"]["_meta"]["progressToken"].to_string());
        assert_eq!(line, spelled.replace("TOKEN", &own_token).replace("CALLED", &own_id));
    }
    broker.finish();
}

#[test]
fn a_legacy_client_meets_a_modern_server_as_if_it_were_one_of_its_own() {
    let broker = shared();
    let session = Session::declaring(&broker, "fixture", r#"{"roots":{ }}"#);
    let raw = |method: &str, params: &str| {
        session.send_raw(&format!(r#"{{"jsonrpc":"2.0","id":"i","method":"{method}","params":{params}}}"#))
    };
    let say = |method: &str, rest: &str, line: &str| raw(method, &format!(r#"{{{rest},"x-say":{}}}"#, json!([line])));
    let read_a = r#""uri":"fixture://a""#;
    let hints = r#"{"jsonrpc":"2.0","id":$ID,"result":{"contents":[ 1.0 ],"ttlMs":5,"x":1e2,"cacheScope":"public","resultType":"complete"}}"#;
    let reply = say("resources/read", read_a, hints);
    assert_eq!(reply.raw, r#"{"jsonrpc":"2.0","id":"i","result":{"contents":[ 1.0 ],"x":1e2}}"#);
    let unknown = r#"{"jsonrpc":"2.0","id":$ID,"error":{"code":-32602,"message":"m","data":{"uri":"x"}}}"#;
    let reply = say("resources/read", read_a, unknown);
    assert_eq!(reply.raw, unknown.replace("$ID", "\"i\"").replace("-32602", "-32002"));
    let reply = say("tools/call", r#""name":"echo""#, unknown);
    assert_eq!(reply.raw, unknown.replace("$ID", "\"i\""), "of a tool it means what it says");
    let meta = r#""_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"lazy-mcp-broker","version":"VERSION"},"io.modelcontextprotocol/clientCapabilities":{"roots":{ }},"io.modelcontextprotocol/logLevel":"debug""#
        .replace("VERSION", env!("CARGO_PKG_VERSION"));
    for (given, sent) in [
        (
            r#"{"name":"echo","arguments":{"text":1e2}}"#,
            format!(r#"{{{meta}}},"name":"echo","arguments":{{"text":1e2}}}}"#),
        ),
        (r#"{"_meta":{ },"name":"echo"}"#, format!(r#"{{{meta} }},"name":"echo"}}"#)),
        (r#"{"name":"echo","_meta":null}"#, format!(r#"{{"name":"echo",{meta}}}}}"#)),
        (r#"{"name":"echo","_meta":{"vendor/x":1E5}}"#, format!(r#"{{"name":"echo",{meta},"vendor/x":1E5}}}}"#)),
    ] {
        raw("tools/call", given).result();
        let line = read(&broker, "fixture", "tools/call").pop().unwrap();
        let (_, params) = line.split_once(r#""params":"#).unwrap();
        assert_eq!(params, format!("{sent}}}"), "{given}");
    }
    broker.finish();
}

#[test]
fn a_modern_client_meets_a_legacy_server_as_if_it_were_one_of_its_own() {
    let broker = Setup::new().backend(crate::legacy(Backend::session("fixture"))).start();
    let client = keyed(&broker, "fixture", "k");
    let say = |method: &str, mut params: Value, line: &str| {
        params["x-say"] = json!([line]);
        client.send(method, &params)
    };
    let read_a = json!({"uri": "fixture://a"});
    let contents = r#"{"jsonrpc":"2.0","id":$ID,"result":{"contents":[ 1.0 ]}}"#;
    let reply = say("resources/read", read_a.clone(), contents);
    assert!(
        reply
            .raw
            .ends_with(r#""result":{"resultType":"complete","ttlMs":0,"cacheScope":"private","contents":[ 1.0 ]}}"#),
        "{}",
        reply.raw
    );
    let gone = r#"{"jsonrpc":"2.0","id":$ID,"error":{"code":-32002,"message":"m"}}"#;
    assert_eq!(say("resources/read", read_a, gone).error_code(), -32602);
    client.send("tools/call", &json!({"name": "echo", "_meta": {"vendor/x": 1}})).result();
    let line = read(&broker, "fixture", "tools/call").pop().unwrap();
    assert!(line.contains(r#""vendor/x":1"#) && !line.contains("io.modelcontextprotocol/"), "{line}");
    broker.finish();
}

#[test]
fn capabilities_are_those_of_the_request() {
    let broker = Setup::new().backend(Backend::singleton("server").conformance()).start();
    let path = "/server/mcp";
    let (able, unable) = (Modern::declaring(&broker, path, json!({"sampling": {}})), Modern::new(&broker, path));
    let keeper = |broker: &Broker| broker.backend_status("server")["instances"][0]["generation"].clone();
    for _ in 0..2 {
        assert_eq!(able.call("test_missing_capability", &json!({})).text(), "The client has declared sampling.");
        let reply = unable.call("test_missing_capability", &json!({}));
        assert_eq!((reply.response.status, reply.error_code()), (400, -32021), "{}", reply.raw);
        let asked = able.call("test_sampling", &json!({"prompt": "x"}));
        assert_eq!(asked.result()["resultType"], "input_required", "{}", asked.raw);
        let reply = unable.call("test_sampling", &json!({"prompt": "x"}));
        assert_eq!((reply.response.status, reply.error_code()), (400, -32021), "{}", reply.raw);
    }
    assert_eq!(keeper(&broker), 1, "one server for both");
    broker.finish();
}

#[test]
fn statuses_are_those_of_the_era() {
    let broker = Setup::new().backend(Backend::singleton("server").conformance()).start();
    let client = Modern::new(&broker, "/server/mcp");
    let status = |method: &str, params: Value| {
        let reply = client.send(method, &params);
        (reply.response.status, reply.error_code())
    };
    for method in ["vendor/method", "logging/setLevel", "resources/subscribe", "tasks/get", "initialize"] {
        assert_eq!(status(method, json!({"uri": "test://static-text"})), (404, -32601), "{method}");
    }
    broker.assert_nothing_runs();
    client.call("test_simple_text", &json!({})).result();
    assert_eq!(status("vendor/method", json!({})), (404, -32601), "of the server itself");
    assert_eq!(status("resources/read", json!({"uri": "test://no-such"})), (200, -32602));
    let mut other = client.request("tools/list", &json!({}));
    other = other.header("mcp-protocol-version", "2025-11-25");
    let reply = Reply::new(client.http.send(&other));
    assert_eq!((reply.response.status, reply.error_code()), (400, -32020));
    broker.finish();
}

#[test]
fn arguments_that_are_headers_too_have_to_agree() {
    let broker = Setup::new().backend(Backend::singleton("server").conformance()).start();
    let client = Modern::new(&broker, "/server/mcp");
    let call = || client.call_request("test_custom_header", &json!({"region": "Zürich"}));
    for (given, status) in [
        (call(), 400),
        (call().header("mcp-param-region", "Bern"), 400),
        (call().header("mcp-param-region", "=?base64?WsO8cmljaA==?="), 200),
    ] {
        let reply = Reply::new(client.http.send(&given));
        assert_eq!(reply.response.status, status, "{}", reply.raw);
        match status {
            200 => assert_eq!(reply.text(), "The region is Zürich."),
            _ => assert_eq!(reply.error_code(), -32020),
        }
    }
    broker.finish();
}
