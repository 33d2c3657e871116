//! SIGHUP.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;

use crate::support::wait::until_true;
use crate::support::{Backend, Broker, Session, Setup};
use crate::{SOON, echo, two};

#[expect(clippy::disallowed_methods, reason = "a child that was not waited for keeps its pid")]
fn signal(broker: &Broker, signal: Signal) {
    kill(Pid::from_raw(i32::try_from(broker.pid()).expect("pids are small")), signal).expect("it runs");
}

#[test]
fn a_hangup_reloads_and_tells_what_came_of_it() {
    let broker = two();
    broker.change_policy("one", "tools = { exclude = { \"crash\" } },");
    signal(&broker, Signal::SIGHUP);
    until_true("the second revision", SOON, || broker.status()["broker"]["revision"] == 2);
    let told = broker.admin("recent_events", json!({}));
    let last = told["events"].as_array().and_then(|events| events.last()).expect("some");
    assert_eq!((&last["event"], &last["revision"], &last["changed"]), (&json!("reload_done"), &json!(2), &json!(1)));
    broker.edit("policies/one.lua", "api = 1", "api = 7");
    signal(&broker, Signal::SIGHUP);
    until_true("the refusal", SOON, || broker.status()["broker"]["last_reload"]["ok"] == false);
    assert_eq!(broker.status()["broker"]["revision"], 2);
    assert!(broker.log().contains("SIGHUP") && broker.log().contains("one.lua"), "{}", broker.log());
    assert_eq!(echo(&Session::new(&broker, "one"), "served"), "served");
    broker.finish();
}

#[test]
fn a_hangup_during_the_shutdown_does_nothing() {
    let mut broker = Setup::new().backend(Backend::singleton("one")).drain_seconds(60).start();
    let session = Session::new(&broker, "one");
    let (http, request) = (broker.http(), session.call_request("sleep", &json!({"ms": 1500})));
    let call = std::thread::spawn(move || http.send(&request));
    broker.wait_event("one", "call", "sleep");
    signal(&broker, Signal::SIGTERM);
    until_true("the broker to drain", SOON, || broker.status()["broker"]["ready"] == false);
    broker.change_launch("one", "1");
    signal(&broker, Signal::SIGHUP);
    // Nor does an operator, who is told.
    let refused = broker.reload_refused();
    assert!(refused["errors"][0]["message"].as_str().is_some_and(|text| text.contains("shutting down")), "{refused:#}");
    assert_eq!(broker.status()["broker"]["revision"], 1);
    assert!(call.join().unwrap().status == 200);
    assert!(!broker.log().contains("SIGHUP"), "{}", broker.log());
    assert!(broker.terminate().success());
    broker.assert_nothing_left("its end", std::time::Duration::from_millis(100));
}
