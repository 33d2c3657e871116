//! Changes of the files of a running broker: what is taken in at once, what keeps its processes, what is replaced and
//! proved gone, and that a file with a fault changes nothing.

mod support;

#[path = "reload/lists.rs"]
mod lists;
#[path = "reload/refusals.rs"]
mod refusals;
#[path = "reload/signals.rs"]
mod signals;
#[path = "reload/switches.rs"]
mod switches;

use std::time::Duration;

use serde_json::{Value, json};
use support::files::of;
use support::processes::Table;
use support::{Backend, Broker, Request, Session, Setup};

const SOON: Duration = Duration::from_secs(10);
const REDACTION: &str = "results = { broker.redact_text { pattern = [[secret-\\d+]], replace_with = \"[gone]\" } },";

fn two() -> Broker {
    Setup::new().backend(Backend::session("one")).backend(Backend::session("two")).start()
}

fn pid(session: &Session) -> u32 {
    let pid = session.call("pid", &json!({})).text_json()["pid"].as_u64().expect("a number");
    u32::try_from(pid).expect("pids are small")
}

fn is_running(pid: u32) -> bool {
    Table::read().get(pid).is_some()
}

fn echo(session: &Session, text: &str) -> String {
    session.call("echo", &json!({"text": text})).text().to_owned()
}

fn ids(backend: &Value, key: &str) -> usize {
    backend[key].as_array().unwrap_or_else(|| panic!("no {key} in {backend:#}")).len()
}

#[track_caller]
fn check_change(report: &Value, backend: &str, change: &str, [kept, draining, retired]: [usize; 3]) {
    let found = of(report, backend);
    assert_eq!(found["change"], change, "{report:#}");
    let counts = ["instances_kept", "instances_draining", "instances_retired"].map(|key| ids(found, key));
    assert_eq!(counts, [kept, draining, retired], "{report:#}");
}

#[test]
fn a_policy_applies_to_the_next_call_of_a_session_whose_server_stays() {
    let broker = two();
    let (one, two) = (Session::new(&broker, "one"), Session::new(&broker, "two"));
    let before = (pid(&one), pid(&two));
    assert_eq!(echo(&one, "secret-1"), "secret-1");
    broker.change_policy("one", REDACTION);
    let report = broker.reload();
    assert_eq!(echo(&one, "secret-1"), "[gone]");
    assert_eq!(echo(&two, "secret-1"), "secret-1");
    assert_eq!((pid(&one), pid(&two)), before);
    check_change(&report, "one", "live", [1, 0, 0]);
    check_change(&report, "two", "unchanged", [1, 0, 0]);
    assert_eq!(of(&report, "one")["fingerprint_before"], of(&report, "one")["fingerprint_after"]);
    assert_eq!((&report["revision"], &report["backend_count"]), (&json!(2), &json!(2)));
    assert_eq!(report["mounted_backends"], json!(["one", "two"]));
    assert_eq!(broker.status()["broker"]["revision"], 2);
    broker.finish();
}

#[test]
fn a_call_under_way_keeps_the_rules_it_began_with() {
    let broker = Setup::new().backend(Backend::singleton("one")).start();
    let session = Session::new(&broker, "one");
    std::thread::scope(|scope| {
        let slow = scope.spawn(|| session.call("sleep", &json!({"ms": 800})));
        broker.wait_event("one", "call", "sleep");
        broker.change_policy("one", "tools = { exclude = { \"sleep\" } },");
        broker.reload();
        assert_eq!(session.call("sleep", &json!({"ms": 1})).error_code(), -32602);
        assert_eq!(slow.join().unwrap().refusal(), "");
    });
    broker.finish();
}

#[test]
fn another_launch_replaces_its_own_instances_and_each_is_proved_gone() {
    let broker = two();
    let (one, other, two) = (Session::new(&broker, "one"), Session::new(&broker, "one"), Session::new(&broker, "two"));
    let (old, kept) = ([pid(&one), pid(&other)], pid(&two));
    broker.change_launch("one", "1");
    let report = broker.reload();
    check_change(&report, "one", "launch", [0, 2, 0]);
    check_change(&report, "two", "unchanged", [1, 0, 0]);
    assert_ne!(of(&report, "one")["fingerprint_before"], of(&report, "one")["fingerprint_after"]);
    // The same sessions, other processes.
    for (session, old) in [(&one, old[0]), (&other, old[1])] {
        assert_ne!(pid(session), old);
        assert!(!is_running(old), "the next generation starts after the proof of the last");
    }
    assert_eq!(pid(&two), kept);
    let events = broker.admin("recent_events", json!({"backend": "one"}));
    let proved = events["events"].as_array().unwrap().iter().filter(|event| event["event"] == "proved_gone");
    assert_eq!(proved.count(), 2, "{events:#}");
    assert_eq!(broker.backend_status("one")["proofs"], 2);
    broker.finish();
}

#[test]
fn who_waits_gets_the_next_generation_and_nothing_is_sent_twice() {
    let broker = Setup::new().backend(Backend::singleton("one").max_concurrency(1)).drain_seconds(20).start();
    let session = Session::new(&broker, "one");
    std::thread::scope(|scope| {
        let running = scope.spawn(|| session.call("sleep", &json!({"ms": 1500})));
        broker.wait_event("one", "call", "sleep");
        let waits = scope.spawn(|| session.call("echo", &json!({"text": "waited"})));
        let queued = || broker.backend_status("one")["instances"][0]["queued"] == 1;
        support::wait::until_true("the second call to wait", SOON, queued);
        broker.change_launch("one", "1");
        check_change(&broker.reload(), "one", "launch", [0, 1, 0]);
        assert_eq!(running.join().unwrap().refusal(), "", "it had begun");
        assert_eq!(waits.join().unwrap().text(), "waited");
    });
    assert_eq!((broker.starts("one"), broker.count("one", "call", "sleep")), (2, 1));
    assert_eq!(broker.count("one", "call", "echo"), 1);
    broker.finish();
}

#[test]
fn what_is_removed_ends_its_calls_is_proved_gone_and_is_not_found() {
    let broker =
        Setup::new().backend(Backend::singleton("one")).backend(Backend::session("two")).drain_seconds(20).start();
    let (one, two) = (Session::new(&broker, "one"), Session::new(&broker, "two"));
    pid(&two);
    let whole = broker.read("config/broker.toml");
    let report = std::thread::scope(|scope| {
        let running = scope.spawn(|| one.call("sleep", &json!({"ms": 1000})));
        broker.wait_event("one", "call", "sleep");
        broker.write("config/broker.toml", whole.split("[backends.one]").next().unwrap());
        let report = broker.reload();
        assert_eq!(broker.http().send(&one.call_request("pid", &json!({}))).status, 404);
        // It is shown until it is gone.
        let left = broker.backend_status("one");
        assert_eq!((&left["enabled"], &left["configured"]), (&json!(false), &json!(false)));
        assert_eq!(running.join().unwrap().refusal(), "", "it had begun");
        report
    });
    check_change(&report, "one", "removed", [0, 0, 1]);
    check_change(&report, "two", "removed", [0, 0, 1]);
    assert_eq!((&report["backend_count"], &report["mounted_backends"]), (&json!(0), &json!([])));
    broker.assert_nothing_left("the removal", SOON);
    support::wait::until_true("the sessions to be over", SOON, || broker.status()["totals"]["sessions"] == 0);
    support::wait::until_true("the slots to be forgotten", SOON, || broker.status()["backends"] == json!([]));
    // Back again, it is served at once; a session that was ended stays so, as after DELETE.
    broker.write("config/broker.toml", &whole);
    check_change(&broker.reload(), "one", "added", [0, 0, 0]);
    let again = broker.http().send(&two.call_request("pid", &json!({})));
    assert_eq!((again.status, &again.json()["error"]["code"]), (404, &json!(-32001)));
    pid(&Session::new(&broker, "one"));
    broker.finish();
}

#[test]
fn what_is_back_before_its_last_generation_is_gone_waits_for_the_proof() {
    let broker = Setup::new().backend(Backend::singleton("one")).drain_seconds(20).start();
    let session = Session::new(&broker, "one");
    let whole = broker.read("config/broker.toml");
    std::thread::scope(|scope| {
        let running = scope.spawn(|| session.call("sleep", &json!({"ms": 1000})));
        broker.wait_event("one", "call", "sleep");
        broker.write("config/broker.toml", whole.split("[backends.one]").next().unwrap());
        broker.reload();
        broker.write("config/broker.toml", &whole);
        check_change(&broker.reload(), "one", "added", [0, 1, 0]);
        assert_eq!(echo(&Session::new(&broker, "one"), "waited"), "waited");
        assert_eq!(running.join().unwrap().refusal(), "");
    });
    assert_eq!(broker.starts("one"), 2);
    broker.finish();
}

#[test]
fn what_is_added_is_served_when_the_answer_comes() {
    let setup = Setup::new().backend(Backend::singleton("one")).backend(Backend::session("two"));
    let dir = setup.write_whole();
    let path = dir.path().join("config/broker.toml");
    let whole = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, whole.split("[backends.two]").next().unwrap()).unwrap();
    let broker = Broker::start(dir);
    let kept = pid(&Session::new(&broker, "one"));
    assert_eq!(broker.http().send(&support::mcp::initialize("/two/mcp", "2025-11-25")).status, 404);
    broker.write("config/broker.toml", &whole);
    let report = broker.reload();
    let session = Session::new(&broker, "two");
    assert_eq!(echo(&session, "new"), "new");
    check_change(&report, "two", "added", [0, 0, 0]);
    assert!(of(&report, "two")["fingerprint_before"].is_null());
    assert!(of(&report, "two")["tools_added"].as_array().unwrap().contains(&json!("echo")));
    assert_eq!(pid(&Session::new(&broker, "one")), kept);
    broker.finish();
}

#[test]
fn another_scope_retires_what_does_not_fit_it_and_keeps_the_sessions() {
    let broker = two();
    let (first, second, two) =
        (Session::new(&broker, "one"), Session::new(&broker, "one"), Session::new(&broker, "two"));
    let own = [pid(&first), pid(&second)];
    let kept = pid(&two);
    assert_ne!(own[0], own[1]);
    broker.edit("policies/one.lua", "\"session\"", "\"singleton\"");
    check_change(&broker.reload(), "one", "launch", [0, 0, 2]);
    let shared = pid(&first);
    assert!(shared == pid(&second) && !own.contains(&shared));
    support::wait::until_true("the old ones to be gone", SOON, || !own.into_iter().any(is_running));
    // And back, at once.
    broker.edit("policies/one.lua", "\"singleton\"", "\"session\"");
    check_change(&broker.reload(), "one", "launch", [0, 0, 1]);
    assert_ne!(pid(&first), pid(&second));
    assert_eq!(pid(&two), kept);
    broker.finish();
}

#[test]
fn limits_apply_to_what_runs() {
    let broker = two();
    let (one, two) = (Session::new(&broker, "one"), Session::new(&broker, "two"));
    let kept = (pid(&one), pid(&two)).1;
    broker.edit("policies/one.lua", "idle_timeout_seconds = 120", "idle_timeout_seconds = 0.1");
    check_change(&broker.reload(), "one", "live", [1, 0, 0]);
    support::wait::until_true("the idle stop", SOON, || broker.live_instances("one").is_empty());
    assert_eq!(pid(&two), kept);
    broker.edit("config/broker.toml", "drain_seconds = 2", "drain_seconds = 2\nmax_live_instances = 1");
    let report = broker.reload();
    check_change(&report, "two", "unchanged", [1, 0, 0]);
    assert_eq!(broker.status()["totals"]["live_instances_max"], 1);
    // The one that runs makes room.
    pid(&one);
    assert!(broker.live_instances("two").is_empty());
    broker.finish();
}

#[test]
fn what_takes_a_start_is_named() {
    let broker = two();
    broker.edit("config/broker.toml", "drain_seconds = 2", "drain_seconds = 3\nworker_threads = 2\nlog = \"debug\"");
    let report = broker.reload();
    assert_eq!(report["needs_restart"], json!(["worker_threads"]), "{report:#}");
    assert!(broker.log().contains("take effect with the next start"), "{}", broker.log());
    // Still, as long as it is so.
    assert_eq!(broker.reload()["needs_restart"], json!(["worker_threads"]));
    broker.edit("config/broker.toml", "worker_threads = 2", "");
    assert_eq!(broker.reload()["needs_restart"], json!([]));
    broker.finish();
}

#[test]
fn a_start_that_failed_holds_back_nobody_once_it_is_put_right() {
    let broker = Setup::new().backend(Backend::singleton("one").flags("--exit-at-start 3")).start();
    let session = Session::new(&broker, "one");
    let held_back = |_| session.call("echo", &json!({"text": "x"})).refusal() == "cooling_down";
    assert!((0..30).any(held_back), "starts that fail are held back");
    broker.edit("config/broker.toml", "\"--exit-at-start\", \"3\"", "");
    check_change(&broker.reload(), "one", "launch", [0, 0, 0]);
    assert_eq!(echo(&session, "works"), "works");
    broker.finish();
}

#[test]
fn a_reviewed_change_of_a_tool_is_taken_in_without_another_server() {
    let broker = Setup::new().known_port().backend(Backend::singleton("one").flags("--drift echo")).start();
    let session = Session::new(&broker, "one");
    assert_eq!(session.call("echo", &json!({"text": "x"})).refusal(), "unavailable");
    let before = pid(&session);
    let captured = broker.cli(&["catalog", "capture", "one"]);
    assert_eq!(captured.code, Some(0), "{captured:#?}");
    check_change(&broker.reload(), "one", "live", [1, 0, 0]);
    assert_eq!(echo(&session, "reviewed"), "reviewed");
    assert_eq!(pid(&session), before);
    broker.finish();
}

#[test]
fn a_dry_run_says_all_of_it_and_changes_nothing() {
    let broker = Setup::new().known_port().backend(Backend::session("one")).backend(Backend::session("two")).start();
    let (one, two) = (Session::new(&broker, "one"), Session::new(&broker, "two"));
    let before = (pid(&one), pid(&two));
    broker.change_launch("one", "1");
    broker.change_policy("two", "tools = { exclude = { \"echo\" } },");
    let run = broker.cli(&["reload", "--dry-run", "--json"]);
    assert_eq!(run.code, Some(0), "{run:#?}");
    let report = run.json();
    assert_eq!((&report["dry_run"], &report["revision"]), (&json!(true), &json!(1)));
    check_change(&report, "one", "launch", [0, 1, 0]);
    check_change(&report, "two", "live", [1, 0, 0]);
    assert_eq!(of(&report, "two")["tools_removed"], json!(["echo"]));
    assert_eq!((pid(&one), pid(&two)), before);
    assert_eq!(echo(&two, "still there"), "still there");
    broker.write("policies/two.lua", "return 1");
    let refused = broker.cli(&["reload", "--dry-run"]);
    assert_eq!(refused.code, Some(3), "{refused:#?}");
    assert!(refused.stderr.contains("two.lua") && refused.stderr.contains("would be refused"), "{refused:#?}");
    let status = broker.status();
    assert_eq!((&status["broker"]["revision"], &status["broker"]["last_reload"]["ok"]), (&json!(1), &json!(true)));
    assert_eq!(broker.http().send(&Request::get("/ready")).status, 200);
    broker.finish();
}

#[test]
fn whoever_asks_for_a_reload_gets_what_was_written_before() {
    let names = ["one", "two", "three", "four", "five", "six"];
    let setup = names.into_iter().fold(Setup::new(), |setup, name| setup.backend(Backend::singleton(name)));
    let broker = setup.start();
    std::thread::scope(|scope| {
        for name in names {
            let broker = &broker;
            scope.spawn(move || {
                let session = Session::new(broker, name);
                let file = format!("policies/{name}.lua");
                let policy = broker.read(&file).replace("api = 1,", "api = 1, tools = { exclude = { \"echo\" } },");
                // Whole at every moment, because others reload at the same time.
                broker.write(&format!("{file}.new"), &policy);
                std::fs::rename(broker.path(&format!("{file}.new")), broker.path(&file)).unwrap();
                broker.reload();
                assert_eq!(session.call("echo", &json!({"text": "x"})).error_code(), -32602, "{name}");
            });
        }
    });
    let revision = broker.status()["broker"]["revision"].as_u64().unwrap();
    assert!((2..=7).contains(&revision), "{revision}");
    broker.finish();
}
