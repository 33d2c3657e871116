//! Nothing runs that no call asked for, and what ran is gone when it has been idle.

mod support;

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::json;
use support::wait::{pause_because, until_true};
use support::{Backend, Broker, Modern, Request, Session, Setup};

/// Idle time, its check and a stop on a loaded machine.
const SOON: Duration = Duration::from_secs(10);

fn pid(session: &Session) -> u64 {
    session.call("pid", &json!({})).text_json()["pid"].as_u64().expect("the fixture tells its pid")
}

#[test]
fn twenty_clients_that_look_start_nothing() {
    let broker = Setup::new().backend(Backend::singleton("fixture")).backend(Backend::session("private")).start();
    std::thread::scope(|scope| {
        for number in 0..20 {
            let broker = &broker;
            scope.spawn(move || look(broker, if number % 2 == 0 { "fixture" } else { "private" }));
        }
    });
    broker.assert_nothing_runs();
    assert_eq!((broker.starts("fixture"), broker.starts("private")), (0, 0));
    let status = broker.status();
    assert_eq!(status["totals"]["sessions"], 20, "{status:#}");
    assert_eq!(status["totals"]["owned_processes"], 0, "{status:#}");
    broker.finish();
}

fn look(broker: &Broker, backend: &str) {
    let session = Session::new(broker, backend);
    assert_eq!(session.list().result()["tools"].as_array().map(Vec::len), Some(27));
    session.send("ping", &json!({})).result();
    Modern::new(broker, "/fixture/mcp").send("server/discover", &json!({})).result();
    for page in ["/health", "/ready", "/status"] {
        assert_eq!(broker.http().send(&Request::get(page)).status, 200, "{page}");
    }
}

#[test]
fn fifty_first_calls_make_one_start() {
    let fixture = Backend::singleton("fixture").flags("--start-delay-ms 500");
    let broker = Setup::new().backend(fixture).start();
    let pids: BTreeSet<u64> = std::thread::scope(|scope| {
        let calls: Vec<_> = (0..50).map(|_| scope.spawn(|| pid(&Session::new(&broker, "fixture")))).collect();
        calls.into_iter().map(|call| call.join().unwrap()).collect()
    });
    assert_eq!(pids.len(), 1, "{pids:?}");
    assert_eq!(broker.starts("fixture"), 1);
    assert_eq!(broker.count("fixture", "call", "pid"), 50);
    broker.finish();
}

#[test]
fn sessions_have_instances_of_their_own() {
    let broker = Setup::new().backend(Backend::session("fixture")).start();
    let (one, two) = (Session::new(&broker, "fixture"), Session::new(&broker, "fixture"));
    let (pid_one, pid_two) = (pid(&one), pid(&two));
    assert_ne!(pid_one, pid_two);
    assert_eq!((pid(&one), pid(&two)), (pid_one, pid_two));
    assert_eq!(broker.live_instances("fixture").len(), 2);
    broker.finish();
}

#[test]
fn a_deleted_session_takes_its_instance_along() {
    let broker = Setup::new().backend(Backend::session("fixture")).start();
    let session = Session::new(&broker, "fixture");
    pid(&session);
    session.delete();
    broker.wait_stopped("fixture", SOON);
    broker.finish();
}

#[test]
fn an_idle_instance_stops_and_leaves_nothing() {
    let broker = Setup::new().backend(Backend::singleton("fixture").idle_seconds(1)).start();
    let session = Session::new(&broker, "fixture");
    let place = session.call("pid", &json!({})).text_json();
    let folder = place["tmpdir"].as_str().expect("a generation has a TMPDIR of its own").to_owned();
    assert!(Path::new(&folder).is_dir(), "{folder}");
    broker.wait_stopped("fixture", SOON);
    assert!(!Path::new(&folder).exists(), "the instance's folder is removed after the sweep");
    let totals = broker.status()["totals"].clone();
    assert_eq!((&totals["live_instances"], &totals["owned_processes"]), (&json!(0), &json!(0)), "{totals:#}");
    assert_eq!(broker.count("fixture", "exit", "eof"), 1, "the close was polite");
    broker.finish();
}

#[test]
fn a_session_outlives_its_idle_instance() {
    let broker = Setup::new().backend(Backend::session("fixture").idle_seconds(1)).start();
    let session = Session::new(&broker, "fixture");
    let first = session.call("pid", &json!({})).text_json();
    broker.wait_stopped("fixture", SOON);
    let second = session.call("pid", &json!({})).text_json();
    let generation = |place: &serde_json::Value| place["generation"].as_str().and_then(|text| text.parse::<u64>().ok());
    assert!(generation(&second) > generation(&first), "{first} then {second}");
    broker.finish();
}

#[test]
fn looking_keeps_nothing_awake() {
    let broker = Setup::new().backend(Backend::singleton("fixture").idle_seconds(2)).start();
    let session = Session::new(&broker, "fixture");
    let _stream = broker.http().open(&session.listen());
    pid(&session);
    let begin = Instant::now();
    until_true("an instance that is only looked at to stop", SOON, || {
        for page in ["/health", "/ready", "/status", "/metrics", "/"] {
            broker.http().send(&Request::get(page));
        }
        session.list();
        session.send("ping", &json!({}));
        Session::new(&broker, "fixture");
        broker.live_instances("fixture").is_empty()
    });
    assert!(begin.elapsed() >= Duration::from_millis(1500), "stopped before it was idle: {:?}", begin.elapsed());
    broker.assert_nothing_left("the idle stop", Duration::from_secs(1));
    broker.finish();
}

#[test]
fn a_long_call_is_not_idle() {
    let broker = Setup::new().backend(Backend::singleton("fixture").idle_seconds(1)).start();
    let session = Session::new(&broker, "fixture");
    let before = pid(&session);
    assert_eq!(session.call("sleep", &json!({"ms": 3000})).text(), "slept");
    assert_eq!(pid(&session), before);
    broker.finish();
}

#[test]
fn calls_renew_the_idle_time() {
    let broker = Setup::new().backend(Backend::singleton("fixture").idle_seconds(2)).start();
    let session = Session::new(&broker, "fixture");
    let before = pid(&session);
    for _ in 0..4 {
        pause_because("longer than the idle time in sum, shorter in each step", Duration::from_millis(900));
        assert_eq!(pid(&session), before);
    }
    assert_eq!(broker.starts("fixture"), 1);
    broker.finish();
}
