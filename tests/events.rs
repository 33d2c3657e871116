//! What the broker tells of what happened: `/events`, `/metrics` and `lazy-mcp events`.

mod support;

use std::io::{Read as _, Write as _};
use std::time::Duration;

use serde_json::{Value, json};
use support::http::Frame;
use support::{Backend, Broker, Request, Session, Setup};

const SOON: Duration = Duration::from_secs(10);

fn history(broker: &Broker) -> Vec<Value> {
    events_of(broker.http().send(&Request::get("/events?follow=0")).text())
}

fn events_of(stream: &str) -> Vec<Value> {
    let data = stream.lines().filter_map(|line| line.strip_prefix("data: "));
    data.map(|data| serde_json::from_str(data).expect("each is JSON")).collect()
}

fn names(events: &[Value]) -> Vec<String> {
    let text = |event: &Value, field: &str| event[field].as_str().unwrap_or("none").to_owned();
    let name = |event: &Value| match &*text(event, "event") {
        "state_changed" => format!("{} to {}", text(event, "from"), text(event, "to")),
        other => other.to_owned(),
    };
    events.iter().map(name).collect()
}

#[test]
fn a_generation_is_told_from_start_to_proof() {
    let broker = Setup::new().backend(Backend::session("fixture")).start();
    let session = Session::new(&broker, "fixture");
    session.call("pid", &json!({"secret": "hunter2"}));
    session.delete();
    broker.wait_stopped("fixture", SOON);
    let events = history(&broker);
    assert_eq!(
        names(&events),
        [
            "broker_ready",
            "stopped to starting",
            "starting to ready",
            "ready to stopping",
            "root_exited",
            "proved_gone",
            "stopping to stopped"
        ]
    );
    let numbers: Vec<u64> = events.iter().map(|event| event["number"].as_u64().unwrap()).collect();
    assert_eq!(numbers, (1..=7).collect::<Vec<_>>());
    let proved = &events[5];
    assert_eq!((&proved["backend"], &proved["generation"]), (&json!("fixture"), &json!(1)));
    let all = serde_json::to_string(&events).unwrap();
    assert!(!all.contains("hunter2") && !all.contains(&session.id) && !all.contains("fixture-mcp"), "{all}");
    broker.finish();
}

#[test]
fn a_stream_follows_and_goes_on_where_it_broke_off() {
    let broker = Setup::new().backend(Backend::session("fixture")).start();
    let mut stream = broker.http().open(&Request::get("/events")).events(SOON);
    let session = Session::new(&broker, "fixture");
    session.call("pid", &json!({}));
    let last = loop {
        let frame = stream.next().expect("the stream goes on").expect("in time");
        if let Frame::Event { id, data, .. } = frame
            && data.contains("\"to\":\"ready\"")
        {
            break id;
        }
    };
    drop(stream);
    session.delete();
    broker.wait_stopped("fixture", SOON);
    let resumed = Request::get("/events?follow=0").header("last-event-id", &last.unwrap());
    let datas = events_of(broker.http().send(&resumed).text());
    assert_eq!(names(&datas).first().map(String::as_str), Some("ready to stopping"));
    // One of another broker says nothing of this one.
    let foreign = Request::get("/events?follow=0").header("last-event-id", "1234-5");
    assert!(broker.http().send(&foreign).text().contains("broker_ready"));
    broker.finish();
}

#[test]
fn metrics_say_what_status_says() {
    let broker = Setup::new().backend(Backend::singleton("fixture")).start();
    let session = Session::new(&broker, "fixture");
    session.call("pid", &json!({}));
    let metrics = broker.http().send(&Request::get("/metrics"));
    let text = metrics.text();
    for line in [
        r#"lazy_mcp_instances{backend="fixture",state="ready"} 1"#,
        r#"lazy_mcp_instances{backend="fixture",state="cleanup_failed"} 0"#,
        r#"lazy_mcp_events_total{backend="fixture",event="state_changed"} 2"#,
        r#"lazy_mcp_events_total{backend="",event="broker_ready"} 1"#,
        "lazy_mcp_sessions 1",
        "lazy_mcp_ready 1",
        "# EOF",
    ] {
        assert!(text.lines().any(|one| one == line), "{line} is not in\n{text}");
    }
    assert!(!text.contains(&session.id));
    broker.finish();
}

#[test]
fn a_failed_start_is_an_event_once_for_all_who_waited() {
    let broker = Setup::new().backend(Backend::singleton("fixture").flags("--exit-at-start 3")).start();
    std::thread::scope(|scope| {
        for _ in 0..5 {
            scope.spawn(|| Session::new(&broker, "fixture").call("pid", &json!({})));
        }
    });
    let events = history(&broker);
    let failures: Vec<&Value> = events.iter().filter(|event| event["event"] == "start_failed").collect();
    let starts = broker.starts("fixture");
    assert_eq!((failures.len(), &failures[0]["kind"]), (starts, &json!("exited")));
    broker.finish();
}

#[test]
fn the_command_prints_the_history() {
    let broker = Setup::new().backend(Backend::session("fixture")).known_port().start();
    let session = Session::new(&broker, "fixture");
    session.call("pid", &json!({}));
    let run = broker.cli(&["events"]);
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    let lines: Vec<&str> = run.stdout.lines().collect();
    assert!(lines[0].ends_with("broker  ready"), "{}", run.stdout);
    assert!(lines[2].contains("fixture/") && lines[2].ends_with("generation 1  starting → ready"), "{}", run.stdout);
    let json = broker.cli(&["events", "--json"]);
    assert!(json.stdout.lines().all(|line| serde_json::from_str::<Value>(line).is_ok()), "{}", json.stdout);
    assert_eq!(json.stdout.lines().count(), 3);
    broker.finish();
}

/// Something that answers `/status` as a broker does and `/events` with `answer`. It ends with the second request.
fn answering(answer: &'static str) -> (String, std::thread::JoinHandle<()>) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("loopback has a free port");
    let base = format!("http://{}", listener.local_addr().expect("it is bound"));
    let server = std::thread::spawn(move || {
        for (path, answer) in [("/status", "200 OK\r\n\r\n{\"broker\": {\"pid\": 1}}"), ("/events?follow=0", answer)] {
            let (mut stream, _) = listener.accept().expect("somebody asks");
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                stream.read_exact(&mut byte).expect("a whole head");
                head.push(byte[0]);
            }
            let head = String::from_utf8(head).expect("plain text");
            assert!(head.starts_with(&format!("GET {path} ")), "{head}");
            write!(stream, "HTTP/1.1 {}", answer.replacen("\r\n", "\r\nconnection: close\r\n", 1)).expect("it listens");
        }
    });
    (base, server)
}

#[test]
fn the_command_says_when_it_is_not_told_anything() {
    let dir = Setup::new().backend(Backend::singleton("fixture")).write();
    for (answer, code, said) in [
        (
            "429 Too Many Requests\r\n\r\n{\"jsonrpc\": \"2.0\", \"error\": {\"code\": -32600, \"message\": \"too many streams are open; close one\"}}",
            1,
            "refuses /events: too many streams are open; close one",
        ),
        ("503 Service Unavailable\r\n\r\n", 1, "refuses /events: 503 Service Unavailable"),
        ("404 Not Found\r\n\r\n", 4, "answers 404 Not Found, so it is another version"),
    ] {
        let (base, server) = answering(answer);
        let run = support::cli::run(&dir.path().join("config/broker.toml"), &["events", "--url", &base]);
        server.join().unwrap();
        assert_eq!((run.code, &*run.stdout), (Some(code), ""), "{run:#?}");
        assert!(run.stderr.contains(said), "{run:#?}");
    }
}

#[test]
fn a_start_that_outlives_its_callers_and_fails_is_told_all_the_same() {
    let slow = Backend::singleton("fixture").flags("--start-delay-ms 20000").start_seconds(2).queue(8, 1);
    let broker = Setup::new().backend(slow).start();
    let session = Session::new(&broker, "fixture");
    // It would not wait any longer, and the start goes on.
    assert_eq!(session.call("pid", &json!({})).refusal(), "start_timeout");
    let failed = support::wait::until("the start to run out of its own time", SOON, || {
        history(&broker).into_iter().find(|event| event["event"] == "start_failed")
    });
    assert_eq!(failed["kind"], "timed_out");
    let failure = &broker.backend_status("fixture")["instances"][0]["last_failure"];
    assert_eq!(failure["cause"], "no answer to `initialize` within 2 s");
    broker.finish();
}
