//! How a broker ends: in order, at once when told twice, and never without the proof; and what it tells the service
//! manager meanwhile.

mod support;

use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;
use support::wait::until_true;
use support::{Backend, Broker, Managed, Response, Session, Setup};

const SOON: Duration = Duration::from_secs(10);

#[expect(clippy::disallowed_methods, reason = "a child that was not waited for keeps its pid")]
fn signal(pid: u32, signal: Signal) {
    kill(Pid::from_raw(i32::try_from(pid).expect("pids are small")), signal).expect("it runs");
}

fn with_a_hanging_call(broker: &Broker) -> (Session, JoinHandle<Response>) {
    let session = Session::new(broker, "fixture");
    let (http, request) = (broker.http(), session.call_request("hang", &json!({})));
    let call = std::thread::spawn(move || http.send(&request));
    broker.wait_event("fixture", "call", "hang");
    (session, call)
}

#[test]
fn a_second_signal_ends_the_wait_for_calls_and_not_the_proof() {
    let mut broker = Setup::new().backend(Backend::singleton("fixture")).drain_seconds(60).start();
    let (_session, call) = with_a_hanging_call(&broker);
    signal(broker.pid(), Signal::SIGINT);
    until_true("the broker to drain", SOON, || broker.backend_status("fixture")["instances"][0]["state"] == "draining");
    let told_twice = Instant::now();
    let status = broker.terminate();
    assert!(status.success(), "{status}: {}", broker.log());
    assert!(told_twice.elapsed() < Duration::from_secs(15), "{:?}", told_twice.elapsed());
    assert!(call.join().unwrap().text().contains("\"retired\""));
    broker.assert_nothing_left("the second signal", Duration::from_millis(100));
    assert!(broker.log().contains("proved gone"), "{}", broker.log());
}

#[test]
fn nothing_new_is_started_while_it_drains() {
    let mut broker = Setup::new()
        .backend(Backend::singleton("fixture"))
        .backend(Backend::session("other"))
        .drain_seconds(60)
        .start();
    let (_session, _call) = with_a_hanging_call(&broker);
    let late = Session::new(&broker, "other");
    signal(broker.pid(), Signal::SIGTERM);
    until_true("the broker to drain", SOON, || broker.status()["broker"]["ready"] == false);
    assert_eq!(late.call("pid", &json!({})).refusal(), "retired");
    assert_eq!(broker.starts("other"), 0);
    assert!(broker.terminate().success());
}

#[test]
fn the_service_manager_is_told() {
    let dir = Setup::new().backend(Backend::singleton("fixture")).write_whole();
    let mut managed = Managed::start(dir.path(), Duration::from_millis(200));
    let ready = managed.wait_for("READY=1");
    assert!(ready.contains("STATUS=ready"), "{ready}");
    // Again and again while it turns …
    managed.wait_for("WATCHDOG=1");
    managed.wait_for("WATCHDOG=1");
    // … and not when it hangs.
    managed.signal(Signal::SIGSTOP);
    managed.drain();
    assert_eq!(managed.heard(), None);
    managed.signal(Signal::SIGCONT);
    managed.wait_for("WATCHDOG=1");
    // A reload begins and ends.
    managed.signal(Signal::SIGHUP);
    let reloading = managed.wait_for("RELOADING=1");
    assert!(reloading.contains("MONOTONIC_USEC="), "{reloading}");
    managed.wait_for("READY=1");
    managed.signal(Signal::SIGTERM);
    managed.wait_for("STOPPING=1");
    let status = managed.wait_end();
    assert!(status.success(), "{status}");
}
