//! Changes of resources, told to whoever wants to hear of them in the manner of its own era.

use std::io::BufReader;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::http::{Body, Events};
use crate::support::wait::{pause_because, until_true};
use crate::support::{Backend, Broker, Modern, Session, Setup};
use crate::{SOON, answering, keyed, legacy, modern, parsed, read, saying};

const WATCHED: &str = "test://watched-resource";
const SUBSCRIPTION_ID: &str = "io.modelcontextprotocol/subscriptionId";

type Stream = Events<BufReader<Body>>;

/// A stream that has been acknowledged, with what was agreed and the id of the subscription.
#[track_caller]
fn listening(client: &Modern, notifications: &Value) -> (Stream, Value, Value) {
    let mut stream = client.hear(notifications);
    let first = stream.message();
    assert_eq!(first["method"], "notifications/subscriptions/acknowledged", "{first}");
    let id = first["params"]["_meta"][SUBSCRIPTION_ID].clone();
    (stream, first["params"]["notifications"].clone(), id)
}

fn updated(uri: &str) -> String {
    json!({"jsonrpc": "2.0", "method": "notifications/resources/updated", "params": {"uri": uri}}).to_string()
}

#[track_caller]
fn check_update(stream: &mut Stream, uri: &str, id: &Value) {
    let update = stream.message();
    assert_eq!(update["method"], "notifications/resources/updated", "{update}");
    assert_eq!(update["params"]["uri"], uri);
    assert_eq!(update["params"]["_meta"][SUBSCRIPTION_ID], *id, "{update}");
}

fn trigger(client: &Modern) {
    client.call("test_trigger_resource_update", &json!({})).result();
}

/// Whoever listens, by era of the server and by whether it is shared.
fn each_server() -> [(Backend, &'static str); 4] {
    let shared = "/server/mcp";
    let own = "/server/s/k/mcp";
    let server = |backend: Backend, only: &str| backend.conformance().idle_seconds(2).list_flags(only);
    [
        (server(Backend::singleton("server"), "--only modern"), shared),
        (server(Backend::singleton("server"), "--only legacy"), shared),
        (server(Backend::session("server"), "--only modern"), own),
        (server(Backend::session("server"), "--only legacy"), own),
    ]
}

#[test]
fn a_listener_hears_under_its_own_subscription() {
    for (backend, path) in each_server() {
        let broker = Setup::new().backend(backend).start();
        let client = Modern::new(&broker, path);
        let (mut one, agreed, one_id) = listening(&client, &json!({"resourceSubscriptions": [WATCHED]}));
        assert_eq!(agreed, json!({"resourceSubscriptions": [WATCHED]}));
        let (mut other, agreed, other_id) =
            listening(&client, &json!({"resourceSubscriptions": [WATCHED], "toolsListChanged": true}));
        assert_eq!(agreed, json!({"toolsListChanged": true, "resourceSubscriptions": [WATCHED]}));
        assert_ne!(one_id, other_id);
        let (mut neither, agreed, _) = listening(&client, &json!({"toolsListChanged": true}));
        assert_eq!(agreed, json!({"toolsListChanged": true}));
        broker.assert_nothing_runs();
        for start in 0..2 {
            trigger(&client);
            check_update(&mut one, WATCHED, &one_id);
            check_update(&mut other, WATCHED, &other_id);
            if start == 0 {
                // Listening keeps nothing awake; what is wanted is asked for anew.
                broker.wait_stopped("server", SOON);
            }
        }
        let instances = broker.backend_status("server")["instances"].as_array().unwrap().len();
        assert_eq!(instances, 1, "all of them are about one");
        // What ends the streams is the first that the third one hears.
        broker.write(
            "policies/server.lua",
            &broker
                .read("policies/server.lua")
                .replace("\n}", "\n  tools = { exclude = { \"test_simple_text\" } },\n}"),
        );
        broker.reload();
        assert_eq!(neither.message()["method"], "notifications/tools/list_changed");
        broker.finish();
    }
}

#[test]
fn another_key_hears_nothing() {
    let broker = Setup::new().backend(Backend::session("server").conformance()).start();
    let [one, other] = ["one", "two"].map(|key| keyed(&broker, "server", key));
    let wanted = json!({"resourceSubscriptions": [WATCHED]});
    let (mut hears, _, id) = listening(&one, &wanted);
    let (mut hears_not, _, other_id) = listening(&other, &wanted);
    trigger(&one);
    check_update(&mut hears, WATCHED, &id);
    trigger(&other);
    check_update(&mut hears_not, WATCHED, &other_id);
    trigger(&one);
    check_update(&mut hears, WATCHED, &id);
    broker.finish();
}

#[test]
fn what_is_not_offered_is_not_agreed() {
    let broker = Setup::new().backend(Backend::singleton("fixture")).start();
    let client = Modern::new(&broker, "/fixture/mcp");
    let all = json!({"resourceSubscriptions": ["fixture://a"], "toolsListChanged": true, "promptsListChanged": true});
    let (_stream, agreed, _) = listening(&client, &all);
    assert_eq!(agreed, json!({"toolsListChanged": true}));
    broker.assert_nothing_runs();
    broker.finish();
}

/// What the server was asked to tell of, so far, in its own era's manner.
fn wanted(broker: &Broker, method: &str) -> Vec<Value> {
    let of = |message: Value| match method {
        "subscriptions/listen" => message["params"]["notifications"]["resourceSubscriptions"].clone(),
        _ => message["params"]["uri"].clone(),
    };
    parsed(broker, "fixture", method).into_iter().map(of).collect()
}

#[test]
fn a_legacy_server_is_unsubscribed_from_when_nobody_listens() {
    let broker = Setup::new().backend(legacy(Backend::singleton("fixture"))).start();
    let client = Modern::new(&broker, "/fixture/mcp");
    client.call("echo", &json!({"text": "x"})).result();
    let both = json!({"resourceSubscriptions": ["fixture://a", "fixture://b"]});
    let (one, agreed, _) = listening(&client, &both);
    assert_eq!(agreed, both);
    let (mut other, _, id) = listening(&client, &json!({"resourceSubscriptions": ["fixture://a"]}));
    drop(one);
    let over = |count| {
        until_true("the subscriptions to be over", SOON, || wanted(&broker, "resources/unsubscribe").len() == count)
    };
    over(1);
    assert_eq!(wanted(&broker, "resources/unsubscribe"), ["fixture://b"], "somebody listens to the other");
    assert_eq!(wanted(&broker, "resources/subscribe"), ["fixture://a", "fixture://b"], "once each");
    let lines = [updated("fixture://b"), updated("fixture://a"), answering("done")];
    client.send("tools/call", &saying(&lines)).result();
    check_update(&mut other, "fixture://a", &id);
    drop(other);
    over(2);
    assert_eq!(wanted(&broker, "resources/unsubscribe"), ["fixture://b", "fixture://a"]);
    broker.finish();
}

#[test]
fn a_modern_server_is_listened_to_by_one_subscription_for_all() {
    let broker = Setup::new().backend(modern(Backend::singleton("fixture"))).start();
    let client = Modern::new(&broker, "/fixture/mcp");
    let legacy = Session::new(&broker, "fixture");
    let mut session_stream = legacy.hear();
    legacy.send("resources/subscribe", &json!({"uri": "fixture://b"})).result();
    client.call("echo", &json!({"text": "x"})).result();
    let (mut stream, _, id) = listening(&client, &json!({"resourceSubscriptions": ["fixture://a"]}));
    until_true("the server to be asked", SOON, || wanted(&broker, "subscriptions/listen").len() == 2);
    let asked = parsed(&broker, "fixture", "subscriptions/listen");
    assert_eq!(asked[0]["params"]["notifications"], json!({"resourceSubscriptions": ["fixture://b"]}));
    assert_eq!(asked[1]["params"]["notifications"], json!({"resourceSubscriptions": ["fixture://a", "fixture://b"]}));
    assert_eq!(asked[1]["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"], "2026-07-28");
    let own = asked[1]["id"].to_string();
    broker.wait_event("fixture", "cancelled", &asked[0]["id"].to_string());
    let told = |uri: &str| {
        format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{{"x":1e2,"uri":"{uri}","_meta":{{"y":-0,"{SUBSCRIPTION_ID}":{own}}}}}}}"#
        )
    };
    client.send("tools/call", &saying(&[told("fixture://b"), told("fixture://a"), answering("done")])).result();
    check_update(&mut stream, "fixture://a", &id);
    let heard = session_stream.data();
    let without = told("fixture://b").replace(&format!(r#","{SUBSCRIPTION_ID}":{own}"#), "");
    assert_eq!(heard, without, "a legacy client knows no subscriptions");
    drop(stream);
    broker.wait_event("fixture", "cancelled", &own);
    assert_eq!(wanted(&broker, "subscriptions/listen")[2..], [json!(["fixture://b"])]);
    legacy.send("resources/unsubscribe", &json!({"uri": "fixture://b"})).result();
    let last = parsed(&broker, "fixture", "subscriptions/listen").pop().unwrap()["id"].to_string();
    broker.wait_event("fixture", "cancelled", &last);
    assert_eq!(wanted(&broker, "subscriptions/listen").len(), 3, "nobody wants anything any more");
    assert_eq!(read(&broker, "fixture", "resources/subscribe"), [""; 0]);
    broker.finish();
}

#[test]
fn a_modern_server_that_ends_what_it_tells_is_asked_anew() {
    let broker = Setup::new().backend(modern(Backend::singleton("fixture"))).start();
    let client = Modern::new(&broker, "/fixture/mcp");
    client.call("echo", &json!({"text": "x"})).result();
    let (mut stream, _, id) = listening(&client, &json!({"resourceSubscriptions": ["fixture://a"]}));
    let asked = |count: usize| {
        until_true("the server to be asked", SOON, || wanted(&broker, "subscriptions/listen").len() == count);
        let last = parsed(&broker, "fixture", "subscriptions/listen").pop().unwrap();
        assert_eq!(last["params"]["notifications"]["resourceSubscriptions"], json!(["fixture://a"]));
        last["id"].to_string()
    };
    let say = |line: String| _ = client.send("tools/call", &saying(&[line, answering("done")])).result();
    let ends = |id: &str, how: &str| say(format!(r#"{{"jsonrpc":"2.0","id":{id},{how}}}"#));
    let first = asked(1);
    pause_because("it has told for a while by then, unlike one that ends at once", Duration::from_millis(1100));
    let complete = r#""result":{"resultType":"complete"}"#;
    ends(&first, complete);
    let second = asked(2);
    say(updated("fixture://a"));
    check_update(&mut stream, "fixture://a", &id);
    pause_because("the same", Duration::from_millis(1100));
    ends(&second, r#""error":{"code":-32603,"message":"restarting"}"#);
    asked(3);
    // One that always ends at once is asked no more than once a second.
    let begin = Instant::now();
    for _ in 0..30 {
        let last = parsed(&broker, "fixture", "subscriptions/listen").pop().unwrap()["id"].to_string();
        ends(&last, complete);
    }
    let more = wanted(&broker, "subscriptions/listen").len() - 3;
    assert!(more as u64 <= begin.elapsed().as_secs() + 1, "{more} times in {:?}", begin.elapsed());
    broker.finish();
}

#[test]
fn a_session_hears_of_a_resource_of_a_modern_server() {
    for backend in [Backend::session("server"), Backend::singleton("server")] {
        let broker = Setup::new().backend(backend.conformance().idle_seconds(2).list_flags("--only modern")).start();
        let session = Session::new(&broker, "server");
        let other = Session::new(&broker, "server");
        let (mut stream, mut silent) = (session.hear(), other.hear());
        session.send("resources/subscribe", &json!({"uri": WATCHED})).result();
        broker.assert_nothing_runs();
        for start in 0..2 {
            session.call("test_trigger_resource_update", &json!({})).result();
            let update = stream.message();
            assert_eq!(update["method"], "notifications/resources/updated");
            assert_eq!(update["params"]["uri"], WATCHED);
            assert!(
                update["params"].pointer(&format!("/_meta/{}", SUBSCRIPTION_ID.replace('/', "~1"))).is_none(),
                "{update}"
            );
            if start == 0 {
                broker.wait_stopped("server", SOON);
            }
        }
        session.send("resources/unsubscribe", &json!({"uri": WATCHED})).result();
        session.call("test_trigger_resource_update", &json!({})).result();
        other.send("resources/subscribe", &json!({"uri": WATCHED})).result();
        other.call("test_trigger_resource_update", &json!({})).result();
        assert_eq!(silent.message()["method"], "notifications/resources/updated", "the first that it hears");
        session.delete();
        assert_eq!(stream.data_or_end().unwrap(), None, "nothing more came to who unsubscribed");
        broker.finish();
    }
}
