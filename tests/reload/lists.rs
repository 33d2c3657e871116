//! Who listens is told when the list of its backend is another, once, and of no other backend.

use serde_json::{Value, json};

use crate::SOON;
use crate::support::http::{Body, Events};
use crate::support::{Backend, Broker, Modern, Session, Setup};

type Stream = Events<std::io::BufReader<Body>>;

/// All messages until the stream ends.
#[track_caller]
fn rest(stream: &mut Stream) -> Vec<Value> {
    let mut messages = Vec::new();
    while let Some(frame) = stream.next().expect("the stream ends in time") {
        if let crate::support::http::Frame::Event { data, .. } = frame
            && !data.is_empty()
        {
            messages.push(serde_json::from_str(&data).expect("JSON"));
        }
    }
    messages
}

fn listen_modern(broker: &Broker, backend: &str) -> Stream {
    let modern = Modern::new(broker, &format!("/{backend}/mcp"));
    let request = modern.request("subscriptions/listen", &json!({"notifications": {"toolsListChanged": true}}));
    let mut stream = broker.http().open(&request).events(SOON * 2);
    assert_eq!(stream.message()["method"], "notifications/subscriptions/acknowledged");
    stream
}

#[test]
fn a_list_that_changed_is_told_once_to_those_whom_it_concerns() {
    let broker = Setup::new().backend(Backend::singleton("one")).backend(Backend::singleton("two")).start();
    let sessions = ["one", "two"].map(|backend| Session::new(&broker, backend));
    let mut legacy = sessions.each_ref().map(|session| broker.http().open(&session.listen()).events(SOON * 2));
    let mut modern = ["one", "two"].map(|backend| listen_modern(&broker, backend));
    let changed = "notifications/tools/list_changed";
    for hidden in ["echo", "sleep"] {
        broker.change_policy("one", &format!("tools = {{ exclude = {{ \"{hidden}\" }} }},"));
        broker.reload();
        assert_eq!(legacy[0].message()["method"], changed);
        assert_eq!(modern[0].message()["method"], changed);
        // Rules alone, nothing, and a fault: no list is another.
        broker.change_policy(
            "two",
            &format!("on_cancel = {{ action = \"recycle\", grace_seconds = {} }},", hidden.len()),
        );
        broker.reload();
        broker.reload();
        broker.edit("policies/two.lua", "api = 1", "api = 7");
        broker.reload_refused();
        broker.edit("policies/two.lua", "api = 7", "api = 1");
    }
    let names: Vec<Value> = sessions[0].list().result()["tools"].as_array().unwrap().clone();
    assert!(names.iter().any(|tool| tool["name"] == "echo") && !names.iter().any(|tool| tool["name"] == "sleep"));
    let whole = broker.read("config/broker.toml");
    broker.write("config/broker.toml", whole.split("[backends.one]").next().unwrap());
    broker.reload();
    for stream in &mut legacy {
        assert_eq!(rest(stream), Vec::<Value>::new());
    }
    for stream in &mut modern {
        let rest = rest(stream);
        assert!(rest.len() == 1 && rest[0]["result"]["resultType"] == "complete", "{rest:?}");
    }
    broker.finish();
}
