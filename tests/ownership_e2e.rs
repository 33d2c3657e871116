//! Whatever a server starts is gone with it, and with the broker: said by the process table alone.

mod support;

use std::time::Duration;

use serde_json::json;
use support::broker::EMPTY_WITHIN;
use support::processes::{Process, Table, kill_9};
use support::wait::{until, until_true};
use support::{Backend, Broker, Session, Setup};

const SOON: Duration = Duration::from_secs(15);

/// Ways out of the tree: of the group and session, of the ancestry, of the environment.
const WAYS: [&str; 4] = ["child", "setsid", "double_fork", "double_fork_clean_env"];

fn start(backend: Backend) -> Broker {
    Setup::new().backend(backend.stop_seconds(4)).start()
}

/// Starts processes in every way, and shows that the table sees them.
#[track_caller]
fn spawn_all(session: &Session, ignore_term: bool) {
    for how in WAYS {
        let reply = session.call("spawn", &json!({"how": how, "ignore_term": ignore_term}));
        let pid = reply.text_json()["pids"][0].as_u64().and_then(|pid| u32::try_from(pid).ok()).expect("a pid");
        assert!(Table::read().get(pid).is_some(), "{how}: process {pid} does not run");
    }
}

#[track_caller]
fn check_idle_stop_takes(broker: Broker, at_least: usize) {
    let before = broker.owned_processes();
    assert!(before.len() > at_least, "the test sees what it is about: {before:#?}");
    broker.wait_stopped("fixture", SOON);
    broker.finish();
}

#[test]
fn an_idle_stop_takes_everything_along() {
    let broker = start(Backend::singleton("fixture").idle_seconds(1));
    spawn_all(&Session::new(&broker, "fixture"), false);
    check_idle_stop_takes(broker, 4);
}

#[test]
fn an_idle_stop_takes_what_ignores_sigterm() {
    let broker = start(Backend::singleton("fixture").flags("--ignore-term --ignore-eof").idle_seconds(1));
    spawn_all(&Session::new(&broker, "fixture"), true);
    check_idle_stop_takes(broker, 4);
}

#[test]
fn an_idle_stop_takes_what_never_holds_still() {
    let broker = start(Backend::singleton("fixture").idle_seconds(1));
    Session::new(&broker, "fixture").call("fork_loop", &json!({"pause_ms": 2})).text();
    check_idle_stop_takes(broker, 0);
}

#[test]
fn a_crash_leaves_no_orphans() {
    let broker = start(Backend::singleton("fixture"));
    let session = Session::new(&broker, "fixture");
    spawn_all(&session, true);
    // One that keeps the pipes of the dead server open: their end is not the tree's end.
    session.call("spawn", &json!({"how": "setsid", "hold_pipes": true})).text_json();
    session.call("crash", &json!({"code": 1}));
    until_true("the tree of the crashed server to be swept", SOON, || broker.live_instances("fixture").is_empty());
    broker.assert_nothing_runs();
    assert_eq!(session.call("echo", &json!({"text": "again"})).text(), "again");
    broker.finish();
}

#[test]
fn a_server_killed_from_outside_leaves_no_orphans() {
    let broker = start(Backend::singleton("fixture"));
    let session = Session::new(&broker, "fixture");
    spawn_all(&session, true);
    let pid = session.call("pid", &json!({})).text_json()["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok());
    let root = Table::read().get(pid.expect("a pid")).expect("the server runs").identity;
    kill_9(root);
    until_true("the tree of the killed server to be swept", SOON, || broker.live_instances("fixture").is_empty());
    broker.assert_nothing_runs();
    broker.finish();
}

/// How a server can end by itself: in its call, after its answer, by each kind of signal.
const EXITS: [(&str, &str); 5] = [
    ("crash", r#"{"code": 0}"#),
    ("crash", r#"{"code": 3}"#),
    ("exit_after_reply", "{}"),
    ("crash", r#"{"signal": 11}"#),
    ("crash", r#"{"signal": 9}"#),
];

#[track_caller]
fn exit_by_itself(broker: &Broker, number: usize) {
    let session = Session::new(broker, "fixture");
    let (tool, arguments) = EXITS[number % EXITS.len()];
    let reply = session.call(tool, &serde_json::from_str(arguments).expect("JSON"));
    match tool {
        "exit_after_reply" => assert_eq!(reply.text(), "bye"),
        _ => assert!(matches!(reply.refusal(), "backend_exited" | "outcome_unknown"), "{}", reply.raw),
    }
}

#[test]
fn two_hundred_servers_that_exit_by_themselves_leave_nothing() {
    let broker = start(Backend::session("fixture"));
    let is_over = || broker.live_instances("fixture").is_empty();
    exit_by_itself(&broker, 0);
    until_true("the first tree to be swept", SOON, is_over);
    let before = broker.descriptors();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let broker = &broker;
            scope.spawn(move || (0..50).for_each(|number| exit_by_itself(broker, thread * 50 + number)));
        }
    });
    until_true("all trees to be swept", SOON, is_over);
    broker.assert_nothing_runs();
    assert_eq!(broker.starts("fixture"), 201);
    assert_eq!(broker.backend_status("fixture")["proofs"], 201);
    broker.assert_no_zombies();
    broker.assert_no_files();
    broker.assert_descriptors(&before);
    broker.finish();
}

#[test]
fn a_killed_keeper_loses_nothing() {
    let broker = start(Backend::singleton("fixture").flags("--ignore-eof --ignore-term"));
    let session = Session::new(&broker, "fixture");
    spawn_all(&session, true);
    let keeper = broker.owned_processes().into_iter().find(Process::is_keeper);
    kill_9(keeper.expect("each generation has a keeper").identity);
    broker.assert_nothing_left("its keeper was killed", SOON);
    until_true("the loss to be seen", SOON, || broker.live_instances("fixture").is_empty());
    assert_eq!(session.call("echo", &json!({"text": "again"})).text(), "again");
    broker.finish();
}

#[test]
fn a_killed_broker_takes_everything_along() {
    let mut broker = start(Backend::session("fixture").flags("--ignore-eof --ignore-term"));
    let sessions = [Session::new(&broker, "fixture"), Session::new(&broker, "fixture")];
    sessions.iter().for_each(|session| spawn_all(session, true));
    sessions[0].call("fork_loop", &json!({"pause_ms": 2})).text();
    assert!(broker.owned_processes().len() > 10, "the test sees what it is about");
    broker.kill_9();
    broker.assert_nothing_left("kill -9 of the broker", EMPTY_WITHIN);

    broker.restart();
    broker.assert_nothing_runs();
    assert_eq!(broker.status()["totals"]["owned_processes"], 0);
    for session in sessions {
        let session = session.at(&broker);
        assert_eq!(session.call("echo", &json!({"text": "same session"})).text(), "same session");
    }
    broker.finish();
}

#[test]
fn a_broker_killed_during_a_start_leaves_nothing() {
    let mut broker = start(Backend::singleton("fixture").flags("--start-delay-ms 20000 --ignore-term --ignore-eof"));
    let session = Session::new(&broker, "fixture");
    let _call = broker.http().start(&session.call_request("echo", &json!({"text": "x"}))).unwrap();
    until_true("the start to begin", SOON, || broker.starts("fixture") == 1);
    broker.kill_9();
    broker.assert_nothing_left("kill -9 of the broker during a start", EMPTY_WITHIN);
    broker.restart();
    broker.finish();
}

/// Two brokers of the same configuration on one machine, as two checkouts or two users have it: what one sweeps must
/// not be the other's, though backend, scope and generation are called the same.
#[test]
fn a_restarted_broker_leaves_the_trees_of_others_alone() {
    let (mut killed, other) = (start(Backend::singleton("fixture")), start(Backend::singleton("fixture")));
    let sessions = [Session::new(&killed, "fixture"), Session::new(&other, "fixture")];
    let pid = |session: &Session| session.call("pid", &json!({})).text_json()["pid"].clone();
    let [_, before] = [pid(&sessions[0]), pid(&sessions[1])];
    killed.kill_9();
    killed.restart();
    assert_eq!((pid(&sessions[1]), other.starts("fixture")), (before, 1));
    killed.finish();
    other.finish();
}

#[test]
fn a_generation_number_never_comes_again() {
    let mut broker = start(Backend::singleton("fixture"));
    let session = Session::new(&broker, "fixture");
    let generation = |session: &Session| {
        let place = session.call("pid", &json!({})).text_json();
        place["generation"].as_str().and_then(|number| number.parse::<u64>().ok()).expect("a number")
    };
    let first = generation(&session);
    broker.kill_9();
    broker.assert_nothing_left("kill -9 of the broker", EMPTY_WITHIN);
    broker.restart();
    let session = session.at(&broker);
    let second = generation(&session);
    assert!(broker.terminate().success());
    broker.restart();
    let third = generation(&session.at(&broker));
    assert!(first < second && second < third, "{first} {second} {third}");
    broker.finish();
}

#[test]
fn a_deleted_session_stays_deleted_over_a_restart() {
    let mut broker = start(Backend::singleton("fixture"));
    let (kept, deleted) = (Session::new(&broker, "fixture"), Session::new(&broker, "fixture"));
    deleted.delete();
    broker.kill_9();
    broker.restart();
    let (kept, deleted) = (kept.at(&broker), deleted.at(&broker));
    assert_eq!(kept.send("ping", &json!({})).response.status, 200);
    let gone = deleted.send("ping", &json!({}));
    assert_eq!((gone.response.status, gone.error_code()), (404, -32001));
    broker.finish();
}

#[test]
fn a_broker_that_is_terminated_during_a_call_ends_in_order() {
    let mut broker = start(Backend::singleton("fixture"));
    let session = Session::new(&broker, "fixture");
    spawn_all(&session, true);
    let _call = broker.http().start(&session.call_request("hang", &json!({}))).unwrap();
    broker.wait_event("fixture", "call", "hang");
    let status = broker.terminate();
    assert!(status.success(), "{status}: {}", broker.log());
    broker.assert_nothing_left("SIGTERM of the broker", Duration::from_millis(100));
}

/// To a service it means "read your files again"; and a terminal that goes away must not take a browser along.
#[test]
fn a_hangup_ends_neither_the_broker_nor_a_server() {
    let broker = start(Backend::singleton("fixture"));
    let session = Session::new(&broker, "fixture");
    let place = |session: &Session| session.call("pid", &json!({})).text_json()["pid"].clone();
    let before = place(&session);
    broker.hang_up();
    assert_eq!(place(&session), before);
    broker.finish();
}

#[test]
fn a_status_counts_what_the_process_table_has() {
    let broker = start(Backend::singleton("fixture"));
    let session = Session::new(&broker, "fixture");
    spawn_all(&session, false);
    // The server, and one process for each way; keepers may count or not.
    let counted = until("the count to be up to date", SOON, || {
        broker.status()["totals"]["owned_processes"].as_u64().filter(|count| *count >= 5)
    });
    let seen = broker.owned_processes();
    let keepers = seen.iter().filter(|process| process.is_keeper()).count();
    let servers = seen.len() - keepers;
    assert!((servers..=seen.len()).contains(&usize::try_from(counted).unwrap()), "{counted} of {seen:#?}");
    let instance = &broker.live_instances("fixture")[0];
    assert_eq!(instance["state"], "ready");
    assert!(instance["rss_bytes"].as_u64().is_some_and(|bytes| bytes > 0), "{instance:#}");
    let owners = &broker.status()["broker"];
    if owners["owner_kinds"] == json!(["keeper", "cgroup"]) {
        assert_eq!(
            (&instance["owner"], &owners["cgroup_unavailable_because"]),
            (&json!("keeper+cgroup"), &json!(null))
        );
    } else {
        assert_eq!((&instance["owner"], &owners["owner_kinds"]), (&json!("keeper"), &json!(["keeper"])));
        assert!(owners["cgroup_unavailable_because"].as_str().is_some_and(|reason| !reason.is_empty()), "{owners:#}");
    }
    broker.finish();
}
