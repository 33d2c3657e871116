//! `/admin/mcp`: who may ask, what a client of each era sees, and that looking starts nothing.

mod support;

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use rmcp::ServiceExt as _;
use rmcp::model::{CallToolRequestParams, CallToolResult};
use rmcp::service::{RoleClient, RunningService};
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::transport::streamable_http_client::StreamableHttpClientTransportConfig;
use serde_json::{Map, Value, json};
use support::mcp::{LEGACY, MODERN, initialize};
use support::{Backend, Broker, Modern, Reply, Request, Session, Setup};

const PATH: &str = "/admin/mcp";
const TOOLS: [&str; 12] = [
    "broker_status",
    "list_backends",
    "inspect_backend",
    "list_tools",
    "get_tool",
    "explain_policy",
    "recent_events",
    "broker_reload",
    "enable_backend",
    "disable_backend",
    "stop_instance",
    "recover_instance",
];
/// Those that change something.
const DEEDS: [&str; 5] = ["broker_reload", "enable_backend", "disable_backend", "stop_instance", "recover_instance"];

fn start() -> Broker {
    Setup::new().backend(Backend::singleton("fixture")).start()
}

fn token_path(broker: &Broker) -> PathBuf {
    broker.dir().join("state/admin.token")
}

fn token(broker: &Broker) -> String {
    std::fs::read_to_string(token_path(broker)).expect("made at the first start")
}

fn authorized(broker: &Broker, request: Request) -> Request {
    request.header("authorization", &format!("Bearer {}", token(broker)))
}

fn call(tool: &str, arguments: &Value) -> Request {
    let params = json!({"name": tool, "arguments": arguments});
    Request::post(PATH, json!({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params}).to_string())
}

#[test]
fn the_token_is_the_state_directorys_and_private() {
    let mut broker = start();
    let path = token_path(&broker);
    let mode = || std::fs::metadata(&path).unwrap().permissions().mode() & 0o777;
    let first = token(&broker);
    assert_eq!((mode(), first.len()), (0o600, 64));
    assert!(first.bytes().all(|b| b.is_ascii_hexdigit()), "{first}");
    broker.restart();
    assert_eq!(token(&broker), first, "it outlives the broker");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
    broker.restart();
    assert_ne!(token(&broker), first, "others may have read it");
    assert_eq!(mode(), 0o600);
    let log = broker.log();
    assert!(log.contains("others could read it") && !log.contains(&first) && !log.contains(&token(&broker)), "{log}");
    broker.finish();
}

#[test]
fn without_the_token_nobody_is_answered() {
    let broker = start();
    let right = token(&broker);
    let wrong = "0".repeat(64);
    let headers = [None, Some(right.clone()), Some(format!("Basic {right}")), Some(format!("Bearer {wrong}"))];
    let requests =
        [initialize(PATH, LEGACY), call("broker_status", &json!({})), Request::get(PATH), Request::new("DELETE", PATH)];
    for header in headers {
        for request in &requests {
            let request = header.iter().fold(request.clone(), |request, value| request.header("authorization", value));
            let answer = broker.http().send(&request);
            assert_eq!(answer.status, 401, "{header:?} {request:?}");
            assert!(answer.header("www-authenticate").is_some_and(|how| how.starts_with("Bearer")), "{answer:?}");
            assert_eq!(answer.json()["error"]["code"], -32600, "{answer:?}");
        }
    }
    // Who is at the door comes first.
    let foreign = authorized(&broker, call("broker_status", &json!({}))).header("origin", "http://evil.example");
    assert_eq!(broker.http().send(&foreign).status, 403);
    broker.finish();
}

#[track_caller]
fn check(broker: &Broker, request: Request, status: u16, code: i64) {
    let answer = broker.http().send(&authorized(broker, request.clone()));
    assert_eq!(answer.status, status, "{request:?}: {}", answer.text());
    let body = answer.json();
    assert_eq!((&body["jsonrpc"], &body["error"]["code"]), (&json!("2.0"), &json!(code)), "{request:?}: {body}");
}

#[test]
fn what_is_no_request_is_told_as_json_rpc() {
    let broker = start();
    check(&broker, Request::get(PATH), 405, -32600);
    check(&broker, Request::new("DELETE", PATH), 405, -32600);
    check(&broker, Request::post(PATH, "{"), 400, -32700);
    check(&broker, Request::post(PATH, "[]"), 400, -32600);
    check(&broker, Request::post(PATH, r#"{"hello": 1}"#), 400, -32600);
    check(&broker, Request::post(PATH, "{}").header("content-type", "text/plain"), 415, -32600);
    check(&broker, Request::post(PATH, "{}").header("accept", "text/html"), 406, -32600);
    check(&broker, Request::post(PATH, " ".repeat(70_000)), 413, -32600);
    check(&broker, call("broker_statu", &json!({})), 200, -32602);
    let strange = call("broker_status", &json!({})).header("mcp-protocol-version", "1999-01-01");
    check(&broker, strange, 400, -32600);
    // Who takes JSON alone gets it.
    let plain = call("list_backends", &json!({})).header("accept", "application/json");
    let answer = broker.http().send(&authorized(&broker, plain));
    assert_eq!(answer.json()["result"]["structuredContent"]["backends"][0]["name"], "fixture");
    broker.finish();
}

async fn connect(broker: &Broker) -> RunningService<RoleClient, ()> {
    let url = format!("http://{}{PATH}", broker.http().0);
    let config = StreamableHttpClientTransportConfig::with_uri(url).auth_header(token(broker));
    let http = reqwest::Client::builder().no_proxy().build().expect("a client");
    ().serve(StreamableHttpClientTransport::with_client(http, config)).await.expect("initialized")
}

async fn ask(client: &RunningService<RoleClient, ()>, tool: &'static str, arguments: Value) -> CallToolResult {
    let arguments: Map<String, Value> = arguments.as_object().cloned().unwrap_or_default();
    client.call_tool(CallToolRequestParams::new(tool).with_arguments(arguments)).await.expect("a result")
}

/// What comes back has what its schema asks for, on the first level.
#[track_caller]
fn fits(result: &CallToolResult, schema: &Map<String, Value>) -> Value {
    let content = result.structured_content.clone().unwrap_or_else(|| panic!("nothing structured: {result:?}"));
    for name in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        assert!(content.get(name).is_some(), "{name} is missing in {content:#}");
    }
    for name in content.as_object().expect("an object").keys() {
        assert!(schema["properties"].get(name).is_some(), "{name} is not in {schema:#?}");
    }
    content
}

#[tokio::test]
async fn a_client_finds_typed_tools_and_looking_starts_nothing() {
    let broker = start();
    let client = connect(&broker).await;
    let server = client.peer_info().expect("greeted").clone();
    assert_eq!(server.server_info.clone().expect("named").name, "lazy-mcp-broker");
    let tools = client.list_all_tools().await.expect("a list");
    assert_eq!(tools.iter().map(|tool| &*tool.name).collect::<Vec<_>>(), TOOLS);
    for tool in &tools {
        assert_eq!(tool.input_schema["type"], "object", "{tool:?}");
        assert_eq!(tool.input_schema["additionalProperties"], false, "{tool:?}");
        let hints = tool.annotations.as_ref().expect("hints");
        let is_look = !DEEDS.contains(&&*tool.name);
        assert_eq!(hints.read_only_hint, Some(is_look), "{}", tool.name);
    }
    let schema = |name: &str| {
        let tool = tools.iter().find(|tool| tool.name == name).expect("listed");
        tool.output_schema.clone().expect("every result has one")
    };
    let status = ask(&client, "broker_status", json!({})).await;
    let status = fits(&status, &schema("broker_status"));
    assert_eq!(status["broker"]["pid"], broker.pid());
    assert!(status["totals"]["sessions"].is_u64(), "what the front counts is in it: {status:#}");
    let backends = ask(&client, "list_backends", json!({})).await;
    let backends = fits(&backends, &schema("list_backends"));
    let fixture = &backends["backends"][0];
    assert_eq!((&fixture["mount"], &fixture["live_instances"]), (&json!("/fixture/mcp"), &json!(0)));
    let inspected = ask(&client, "inspect_backend", json!({"backend": "fixture"})).await;
    let inspected = fits(&inspected, &schema("inspect_backend"));
    assert!(inspected["tool_names"].as_array().unwrap().contains(&json!("echo")), "{inspected:#}");
    let recovered = ask(&client, "recover_instance", json!({"backend": "fixture"})).await;
    let recovered = fits(&recovered, &schema("recover_instance"));
    assert_eq!(recovered["outcome"], "nothing_to_do");
    for (tool, arguments) in [
        ("list_tools", json!({"backend": "fixture", "limit": 2})),
        ("get_tool", json!({"backend": "fixture", "tool": "echo"})),
        ("explain_policy", json!({"backend": "fixture", "tool": "echo"})),
        ("recent_events", json!({"limit": 2})),
        ("broker_reload", json!({"dry_run": true})),
        ("enable_backend", json!({"backend": "fixture"})),
    ] {
        fits(&ask(&client, tool, arguments).await, &schema(tool));
    }
    assert_eq!(broker.starts("fixture"), 0);
    broker.assert_nothing_runs();

    let called = Session::new(&broker, "fixture").call("pid", &json!({}));
    assert!(called.text_json()["pid"].is_u64());
    let stopped = ask(&client, "stop_instance", json!({"backend": "fixture"})).await;
    let stopped = fits(&stopped, &schema("stop_instance"));
    assert_eq!((&stopped["outcome"], &stopped["instances"][0]["state"]), (&json!("proved"), &json!("stopped")));
    broker.assert_nothing_runs();
    client.cancel().await.expect("ended");
    let log = broker.log();
    assert!(log.contains("stop ordered by an operator") && !log.contains("initialized as server"), "{log}");
    broker.finish();
}

#[test]
fn wrong_arguments_are_told_to_whoever_can_correct_them() {
    let broker = start();
    let said = |tool: &str, arguments: Value| {
        let reply = Reply::new(broker.http().send(&authorized(&broker, call(tool, &arguments))));
        (reply.refusal().to_owned(), reply.text().to_owned())
    };
    for (tool, arguments, code, text) in [
        ("inspect_backend", json!({"backend": "fixtur"}), "no_such_backend", "did you mean 'fixture'?"),
        ("recent_events", json!({"backend": "fixtur"}), "no_such_backend", "did you mean 'fixture'?"),
        ("stop_instance", json!({"backend": "fixture", "instance": "0"}), "no_such_instance", "no instance '0'"),
        ("stop_instance", json!({}), "invalid_arguments", "backend"),
        ("stop_instance", json!({"backend": 7}), "invalid_arguments", "string"),
        ("recover_instance", json!({"backend": "fixture", "forse": true}), "invalid_arguments", "forse"),
        ("recover_instance", json!({"backend": "fixture", "force": true}), "invalid_arguments", "force needs"),
        ("broker_status", json!({"command": "sh"}), "invalid_arguments", "command"),
        ("broker_reload", json!({"config": "/etc/passwd"}), "invalid_arguments", "config"),
        ("get_tool", json!({"backend": "fixture", "tool": "ecko"}), "no_such_tool", "did you mean 'echo'?"),
        ("disable_backend", json!({"backend": "x"}), "no_such_backend", "no backend 'x'"),
    ] {
        let (found, sentence) = said(tool, arguments);
        assert_eq!(found, code, "{tool}: {sentence}");
        assert!(sentence.contains(text), "{tool} should say {text:?}: {sentence}");
    }
    broker.finish();
}

#[test]
fn both_eras_are_served_without_sessions() {
    let broker = start();
    let greeted = broker.http().send(&authorized(&broker, initialize(PATH, LEGACY)));
    assert_eq!(greeted.header("mcp-session-id"), None);
    assert_eq!(Reply::new(greeted).result()["protocolVersion"], LEGACY);
    let modern = Modern::new(&broker, PATH);
    let send = |request: Request| Reply::new(broker.http().send(&authorized(&broker, request)));
    let discovered = send(modern.request("server/discover", &json!({})));
    assert!(discovered.result()["supportedVersions"].to_string().contains(MODERN), "{}", discovered.raw);
    let listed = send(modern.request("tools/list", &json!({})));
    assert_eq!(listed.result()["tools"].as_array().map(Vec::len), Some(TOOLS.len()));
    assert_eq!(listed.result()["resultType"], "complete");
    let called = send(modern.call_request("broker_status", &json!({})));
    assert_eq!(called.result()["structuredContent"]["broker"]["pid"], broker.pid());
    broker.finish();
}

#[test]
fn no_backend_can_take_its_place() {
    let dir = Setup::new().backend(Backend::singleton("fixture")).write_whole();
    let path = dir.path().join("config/broker.toml");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replace("[backends.fixture", "[backends.admin")).unwrap();
    let run = support::cli::run(&path, &["check"]);
    assert_eq!(run.code, Some(3), "{run:#?}");
}
