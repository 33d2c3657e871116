//! How many servers run and start at the same time, and who makes room for whom.

mod support;

use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::json;
use support::wait::until_true;
use support::{Backend, Broker, Request, Response, Session, Setup};

const SOON: Duration = Duration::from_secs(10);

fn pid(session: &Session) -> u64 {
    session.call("pid", &json!({})).text_json()["pid"].as_u64().expect("the fixture tells its pid")
}

/// Servers that run, by the process table.
fn servers(broker: &Broker) -> Vec<u64> {
    let owned = broker.owned_processes();
    let servers = owned.iter().filter(|process| process.command.contains("fixture-mcp"));
    servers.map(|process| u64::from(process.pid())).collect()
}

fn in_background(broker: &Broker, request: Request) -> JoinHandle<Response> {
    let http = broker.http();
    std::thread::spawn(move || http.send(&request))
}

#[test]
fn the_longest_idle_makes_room_for_a_new_one() {
    let backend = Backend::session("fixture");
    let broker = Setup::new().backend(backend).server("max_live_instances = 2\n").start();
    let [first, second, third] = [(); 3].map(|()| Session::new(&broker, "fixture"));
    let (pid_first, pid_second) = (pid(&first), pid(&second));
    // Used again, so that the second is idle for longer.
    assert_eq!(pid(&first), pid_first);
    let pid_third = pid(&third);
    let mut expected = [pid_first, pid_third];
    expected.sort_unstable();
    let mut running = servers(&broker);
    running.sort_unstable();
    assert_eq!(running, expected, "the second, {pid_second}, was idle for longest");
    let totals = &broker.status()["totals"];
    assert_eq!((&totals["live_instances"], &totals["live_instances_max"]), (&json!(2), &json!(2)));
    // Who made room comes back as any other.
    assert_ne!(pid(&second), pid_second);
    assert_eq!(servers(&broker).len(), 2);
    broker.finish();
}

#[test]
fn a_busy_instance_makes_no_room_and_the_waiter_is_told() {
    let backend = Backend::session("fixture").queue(8, 1);
    let broker = Setup::new().backend(backend).server("max_live_instances = 1\n").start();
    let (busy, waiting) = (Session::new(&broker, "fixture"), Session::new(&broker, "fixture"));
    let call = in_background(&broker, busy.call_request("sleep", &json!({"ms": 3000})));
    broker.wait_event("fixture", "call", "sleep");
    let refused = waiting.call("pid", &json!({}));
    assert_eq!(refused.refusal(), "queue_timeout");
    assert!(refused.text().contains("max_live_instances"), "{}", refused.text());
    assert_eq!((broker.starts("fixture"), servers(&broker).len()), (1, 1));
    let served = call.join().unwrap();
    assert!(!served.text().contains("isError\":true"), "{}", served.text());
    broker.finish();
}

#[test]
fn a_waiter_gets_the_place_of_a_call_that_ends() {
    let backend = Backend::session("fixture");
    let broker = Setup::new().backend(backend).server("max_live_instances = 1\n").start();
    let (busy, waiting) = (Session::new(&broker, "fixture"), Session::new(&broker, "fixture"));
    let call = in_background(&broker, busy.call_request("sleep", &json!({"ms": 700})));
    broker.wait_event("fixture", "call", "sleep");
    assert!(pid(&waiting) > 0);
    call.join().unwrap();
    // The proof of the first came before the start of the second.
    let log = broker.log();
    let (proof, start) = (log.find("proved gone"), log.rfind("starting"));
    assert!(proof.is_some() && proof < start, "{log}");
    assert_eq!(servers(&broker).len(), 1);
    broker.finish();
}

#[test]
fn starts_take_turns() {
    let backend = Backend::session("fixture").flags("--start-delay-ms 150");
    let broker = Setup::new().backend(backend).server("max_concurrent_starts = 1\n").start();
    let sessions: Vec<Session> = (0..5).map(|_| Session::new(&broker, "fixture")).collect();
    std::thread::scope(|scope| {
        for session in &sessions {
            scope.spawn(|| pid(session));
        }
    });
    let mut starts: Vec<u64> =
        broker.events("fixture").iter().filter(|event| event.event == "start").map(|event| event.at_ms).collect();
    starts.sort_unstable();
    assert_eq!(starts.len(), 5);
    // Each answers no sooner than 150 ms after its start, and the next one starts after that.
    assert!(starts.windows(2).all(|pair| pair[1] - pair[0] >= 140), "{starts:?}");
    broker.finish();
}

#[test]
fn who_gives_up_waiting_for_a_place_starts_nothing() {
    let backend = Backend::session("fixture");
    let broker = Setup::new().backend(backend).server("max_live_instances = 1\n").start();
    let (busy, waiting) = (Session::new(&broker, "fixture"), Session::new(&broker, "fixture"));
    let call = in_background(&broker, busy.call_request("sleep", &json!({"ms": 1000})));
    broker.wait_event("fixture", "call", "sleep");
    let given_up = broker.http().start(&waiting.call_request("pid", &json!({}))).unwrap();
    until_true("the second to wait", SOON, || broker.status()["totals"]["waiting_for_a_place"] == 1);
    drop(given_up);
    until_true("nobody to wait", SOON, || broker.status()["totals"]["waiting_for_a_place"] == 0);
    call.join().unwrap();
    assert_eq!(broker.starts("fixture"), 1);
    broker.finish();
}
