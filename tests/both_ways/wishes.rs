//! What clients wish to hear: levels of log messages, and changes of resources.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::wait::until_true;
use crate::support::{Backend, Broker, Session, Setup};
use crate::{SOON, all_of, answering, logged, methods, private, saying, settle, shared, updated};

const LEVELS: [&str; 8] = ["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"];

#[track_caller]
fn set_level(session: &Session, level: &str) {
    assert_eq!(session.send("logging/setLevel", &json!({"level": level})).result(), &json!({}));
}

#[track_caller]
fn subscribe(session: &Session, uri: &str) {
    assert_eq!(session.send("resources/subscribe", &json!({"uri": uri})).result(), &json!({}));
}

#[track_caller]
fn unsubscribe(session: &Session, uri: &str) {
    assert_eq!(session.send("resources/unsubscribe", &json!({"uri": uri})).result(), &json!({}));
}

/// What the servers were asked of one kind: the member `key` of each request's params.
fn asked(broker: &Broker, method: &str, key: &str) -> Vec<String> {
    let messages = broker.lines("fixture").into_iter().filter_map(|line| serde_json::from_str::<Value>(&line).ok());
    let meant = messages.filter(|message| message["method"] == method);
    meant.map(|message| message["params"][key].as_str().unwrap_or_default().to_owned()).collect()
}

#[test]
fn wishes_start_nothing_and_are_made_anew_before_the_first_call() {
    for (is_shared, broker) in [(false, private()), (true, shared())] {
        let (one, other) = (Session::new(&broker, "fixture"), Session::new(&broker, "fixture"));
        set_level(&one, "error");
        set_level(&other, "warning");
        subscribe(&one, "fixture://a");
        subscribe(&one, "fixture://dropped");
        subscribe(&other, "fixture://a");
        subscribe(&other, "fixture://b");
        unsubscribe(&one, "fixture://dropped");
        broker.assert_nothing_runs();
        assert_eq!(broker.starts("fixture"), 0);
        for (session, level) in [(&other, "warning"), (&one, "error")] {
            settle(session);
            let heard = methods(&broker);
            let greeting = ["initialize", "notifications/initialized", "tools/list", "logging/setLevel"];
            assert_eq!(heard[..4], greeting);
            assert_eq!(heard.last().unwrap(), "tools/call", "{heard:?}");
            assert_eq!(asked(&broker, "logging/setLevel", "level").last().unwrap(), level);
            let wanted = asked(&broker, "resources/subscribe", "uri");
            if is_shared {
                // Once for both, at the lowest level that anybody wants.
                assert_eq!(wanted, ["fixture://a", "fixture://b"]);
                assert_eq!((broker.starts("fixture"), heard[4].as_str()), (1, "resources/subscribe"));
                break;
            }
        }
        if !is_shared {
            assert_eq!(asked(&broker, "resources/subscribe", "uri"), ["fixture://a", "fixture://b", "fixture://a"]);
            assert_eq!(methods(&broker).iter().filter(|method| *method == "tools/call").count(), 2);
        }
        broker.finish();
    }
}

#[test]
fn what_is_wished_while_a_server_runs_is_told_to_it() {
    let broker = private();
    let session = Session::new(&broker, "fixture");
    settle(&session);
    set_level(&session, "error");
    set_level(&session, "error");
    set_level(&session, "info");
    settle(&session);
    assert_eq!(asked(&broker, "logging/setLevel", "level"), ["error", "info"]);
    broker.finish();
}

#[test]
fn a_subscription_passes_as_it_was_spelled() {
    let broker = private();
    let session = Session::new(&broker, "fixture");
    settle(&session);
    // The line in the middle would be a call that nobody has looked at; the token is that of another call.
    let call = r#"{"jsonrpc":"2.0","id":9,"method":"tools/call","params":{"name":"env"}}"#;
    for method in ["resources/subscribe", "resources/unsubscribe"] {
        let spelled = format!(
            "{{\"id\":ID,\n\"params\":{{\"x\":\n{call}\r\n, \"_meta\":{{\"progressToken\":ID}},\"uri\":\"fixture:\\/\\/a\"}},\n\"method\":\"{method}\",\"jsonrpc\":\"2.0\"}}"
        );
        assert_eq!(session.send_raw(&spelled.replace("ID", "1")).result(), &json!({}));
        let seen = broker.lines("fixture").pop().unwrap();
        let id = serde_json::from_str::<Value>(&seen).unwrap()["id"].to_string();
        assert_eq!(seen, spelled.replace("ID", &id).replace(['\n', '\r'], " "));
        assert_ne!(id, "1");
    }
    assert_eq!(broker.count("fixture", "call", "env"), 0);
    broker.finish();
}

#[test]
fn what_a_server_refuses_is_not_subscribed() {
    let broker = private();
    let session = Session::new(&broker, "fixture");
    settle(&session);
    let error = r#"{"jsonrpc":"2.0","id":$ID,"error":{"code":-32002,"message":"not here","data":{"uri":"x"}}}"#;
    let refused = session.send("resources/subscribe", &json!({"uri": "fixture://a", "x-say": [error]}));
    assert_eq!(refused.json()["error"], json!({"code": -32002, "message": "not here", "data": {"uri": "x"}}));
    let mut stream = session.hear();
    subscribe(&session, "fixture://b");
    session.send_raw(&saying(&json!(1), &[updated("fixture://a"), updated("fixture://b"), answering("done")]));
    assert_eq!(stream.message()["params"]["uri"], "fixture://b");
    broker.finish();
}

#[test]
fn log_messages_are_heard_from_a_level_on() {
    let broker = private();
    let session = Session::new(&broker, "fixture");
    let mut stream = session.hear();
    let said = LEVELS.map(|level| logged(level, level));
    let in_call: Vec<String> = said.iter().cloned().chain([answering("done")]).collect();
    let outside: Vec<String> = [answering("done")].into_iter().chain(said.iter().cloned()).collect();
    assert_eq!(session.send_raw(&saying(&json!(1), &in_call)).before, said, "all, before anything is said");
    for (n, level) in LEVELS.iter().enumerate() {
        set_level(&session, level);
        assert_eq!(session.send_raw(&saying(&json!(1), &in_call)).before, said[n..], "{level}");
        assert_eq!(session.send_raw(&saying(&json!(1), &outside)).before, [""; 0]);
        for expected in &said[n..] {
            assert_eq!(&stream.data(), expected);
        }
    }
    assert_eq!(session.send("logging/setLevel", &json!({"level": "loud"})).error_code(), -32602);
    broker.finish();
}

#[test]
fn what_a_shared_server_logs_is_for_one_who_alone_has_used_it() {
    let broker = shared();
    let (one, other) = (Session::new(&broker, "fixture"), Session::new(&broker, "fixture"));
    set_level(&one, "error");
    set_level(&other, "info");
    let said = [logged("info", "a"), logged("error", "b"), answering("done")];
    assert_eq!(one.send_raw(&saying(&json!(1), &said)).before, said[1..2], "at its own level");
    // From now on a message that comes late may be about the other's call.
    for session in [&other, &one] {
        assert_eq!(session.send_raw(&saying(&json!(1), &said)).before, [""; 0]);
    }
    broker.finish();
}

#[test]
fn a_change_is_told_to_those_who_subscribed() {
    let broker = shared();
    let sessions: [Session; 3] = std::array::from_fn(|_| Session::new(&broker, "fixture"));
    let mut streams = sessions.each_ref().map(Session::hear);
    let [one, other, neither] = &sessions;
    subscribe(one, "fixture://a");
    settle(one);
    subscribe(other, "fixture://a");
    subscribe(other, "fixture://b");
    subscribe(other, "fixture://\u{e9}");
    let spelled =
        r#"{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"fixture:\/\/\u00e9"}}"#;
    let changes = [updated("fixture://a"), updated("fixture://b"), spelled.to_owned(), updated("fixture://c")];
    let say = || {
        let lines: Vec<String> = changes.iter().cloned().chain([answering("done")]).collect();
        assert_eq!(neither.send_raw(&saying(&json!(1), &lines)).before, [""; 0], "on the stream of no call");
    };
    say();
    assert_eq!(streams[0].data(), changes[0]);
    for expected in &changes[..3] {
        assert_eq!(&streams[1].data(), expected);
    }
    unsubscribe(one, "fixture://a");
    assert_eq!(asked(&broker, "resources/unsubscribe", "uri"), [""; 0], "the other one still wants it");
    subscribe(one, "fixture://c");
    say();
    assert_eq!(streams[0].data(), changes[3]);
    for expected in &changes[..3] {
        assert_eq!(&streams[1].data(), expected);
    }
    unsubscribe(other, "fixture://a");
    assert_eq!(asked(&broker, "resources/unsubscribe", "uri"), ["fixture://a"], "nobody wants it any more");
    assert_eq!(asked(&broker, "resources/subscribe", "uri")[..2], ["fixture://a", "fixture://b"]);
    // Who wanted nothing has heard nothing: what is sent now is the first on its stream.
    subscribe(neither, "fixture://c");
    say();
    assert_eq!(streams[2].data(), changes[3]);
    broker.finish();
}

#[test]
fn what_only_an_ended_session_wanted_is_not_wanted_any_more() {
    let broker = shared();
    let (one, other) = (Session::new(&broker, "fixture"), Session::new(&broker, "fixture"));
    for session in [&one, &other] {
        subscribe(session, "fixture://a");
    }
    subscribe(&one, "fixture://\u{e9}");
    settle(&one);
    one.delete();
    settle(&other);
    assert_eq!(asked(&broker, "resources/unsubscribe", "uri"), ["fixture://\u{e9}"]);
    other.delete();
    settle(&Session::new(&broker, "fixture"));
    assert_eq!(asked(&broker, "resources/unsubscribe", "uri"), ["fixture://\u{e9}", "fixture://a"]);
    broker.finish();
}

#[test]
fn wishes_and_answers_keep_nothing_awake() {
    let broker = Setup::new().backend(all_of(Backend::session("fixture").idle_seconds(2))).start();
    let session = Session::new(&broker, "fixture");
    settle(&session);
    let begin = Instant::now();
    let mut level = LEVELS.iter().cycle();
    until_true("an instance that is only told of wishes to stop", SOON, || {
        set_level(&session, level.next().unwrap());
        subscribe(&session, "fixture://a");
        unsubscribe(&session, "fixture://a");
        session.notify("notifications/roots/list_changed", &json!({}));
        session.http.send(&session.post(r#"{"jsonrpc":"2.0","id":1,"result":{}}"#));
        broker.live_instances("fixture").is_empty()
    });
    assert!(begin.elapsed() >= Duration::from_millis(1500), "stopped before it was idle: {:?}", begin.elapsed());
    broker.assert_nothing_left("the idle stop", Duration::from_secs(1));
    assert_eq!(broker.starts("fixture"), 1);
    broker.finish();
}
