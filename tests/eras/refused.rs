//! States that are no good, clients that cannot be asked, and too many calls that wait.

use serde_json::json;

use crate::parked::{asking, call, fixture, park, parked_calls, retry};
use crate::support::{Backend, Modern, Setup};
use crate::{keyed, legacy, parsed};

#[test]
fn a_state_is_good_once_and_for_its_own_call() {
    let broker =
        Setup::new().backend(legacy(Backend::session("fixture"))).backend(legacy(Backend::session("twin"))).start();
    let client = keyed(&broker, "fixture", "k");
    let params = asking("\"q\"", "roots/list");
    let (state, key) = park(&client, &params);
    let answer = [(key.as_str(), json!({"x": "stolen"}))];
    let refused = |client: &Modern, params: &serde_json::Value, state: &str| {
        let reply = call(client, &retry(params, state, &answer));
        assert_eq!(reply.error_code(), -32602, "{}", reply.raw);
        assert_eq!(parked_calls(&broker), 1, "it waits on");
    };
    let (rest, last) = state.split_at(state.len() - 1);
    for forged in [
        "lazy-mcp:".to_owned(),
        "lazy-mcp:AAAAAAAAAAAAAAAAAAAAAA".to_owned(),
        format!("{rest}{}", if last == "A" { "Q" } else { "A" }),
        format!("{state}A"),
    ] {
        refused(&client, &params, &forged);
    }
    refused(&keyed(&broker, "fixture", "other"), &params, &state);
    refused(&keyed(&broker, "twin", "k"), &params, &state);
    let mut other_tool = params.clone();
    other_tool["name"] = "echo".into();
    refused(&client, &other_tool, &state);
    let reply = call(&client, &retry(&params, &state, &[(&key, json!({"x": "right"}))]));
    assert_eq!(reply.text_json()["result"], json!({"x": "right"}));
    assert_eq!(call(&client, &retry(&params, &state, &answer)).error_code(), -32602, "used");
    assert_eq!((broker.starts("fixture"), broker.starts("twin")), (1, 0));
    assert_eq!(parsed(&broker, "fixture", "tools/call").len(), 1, "no other call was made of any of them");
    broker.finish();
}

#[test]
fn who_has_not_declared_it_is_not_asked() {
    let broker = fixture();
    let methods = ["roots/list", "sampling/createMessage", "elicitation/create"];
    for (n, declared) in ["roots", "sampling", "elicitation"].into_iter().enumerate() {
        let path = format!("/fixture/s/{declared}/mcp");
        let client = Modern::declaring(&broker, &path, json!({declared: {}}));
        let nobody = Modern::new(&broker, &path);
        for (m, method) in methods.into_iter().enumerate() {
            let params = asking("\"q\"", method);
            if m == n {
                let (state, key) = park(&client, &params);
                call(&client, &retry(&params, &state, &[(&key, json!({}))])).result();
                continue;
            }
            for client in [&client, &nobody] {
                let answer = call(client, &params).text_json();
                assert_eq!((&answer["id"], &answer["error"]["code"]), (&json!("q"), &json!(-32601)));
                let why = answer["error"]["message"].as_str().unwrap();
                assert!(why.contains(method) && why.contains("has not said that it can be asked"), "{why}");
            }
        }
    }
    assert_eq!(parked_calls(&broker), 0);
    broker.finish();
}

#[test]
fn what_the_request_that_comes_back_does_not_declare_is_not_asked() {
    let broker = fixture();
    let client = keyed(&broker, "fixture", "k");
    let mut params = asking("\"q\"", "roots/list");
    // The answer is followed by another question.
    let second = r#"{"jsonrpc":"2.0","id":"again","method":"roots/list"}"#;
    params["arguments"]["after"] = json!([second]);
    let (state, key) = park(&client, &params);
    let shy = Modern::new(&broker, &client.path);
    let reply = call(&shy, &retry(&params, &state, &[(&key, json!({"roots": []}))]));
    assert_eq!(reply.text_json()["id"], "q", "{}", reply.raw);
    broker.finish();
}

const KEYS: usize = 5;
/// Places for calls that wait.
const PLACES: usize = 256;

#[test]
fn one_too_many_is_refused_and_cancelled() {
    let broker = Setup::new().backend(legacy(Backend::session("fixture").max_concurrency(60))).start();
    assert_eq!(broker.status()["totals"]["parked_calls_max"], PLACES);
    let clients: Vec<Modern> = (0..KEYS).map(|n| keyed(&broker, "fixture", &format!("k{n}"))).collect();
    std::thread::scope(|scope| {
        for (n, client) in clients.iter().enumerate() {
            let count = PLACES / KEYS + usize::from(n < PLACES % KEYS);
            scope.spawn(move || {
                for call in 0..count {
                    park(client, &asking(&call.to_string(), "roots/list"));
                }
            });
        }
    });
    assert_eq!(parked_calls(&broker), PLACES as u64);
    assert_eq!(broker.count("fixture", "cancelled", ""), 0);
    let reply = call(&clients[0], &asking("\"more\"", "roots/list"));
    assert_eq!(reply.error_code(), -32603, "{}", reply.raw);
    broker.wait_event("fixture", "cancelled", "");
    assert_eq!(parked_calls(&broker), PLACES as u64);
    broker.finish();
}
