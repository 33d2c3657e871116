//! Limits of a backend from outside: a server that goes over one fails its call with a sentence that names it, and the
//! next call is served; and where a limit does not hold, everybody is told so.

#![expect(clippy::print_stdout, reason = "why a test shows nothing on this machine is shown")]

mod support;

use std::time::Duration;

use serde_json::{Value, json};
use support::wait::until_true;
use support::{Backend, Broker, Session, Setup};

const SOON: Duration = Duration::from_secs(15);

fn start(limits: &str, flags: &str) -> Broker {
    let limits = format!("[backends.fixture.ownership]\n{limits}\n");
    let backend = Backend::singleton("fixture").flags(flags).toml(&limits).stop_seconds(4);
    Setup::new().backend(backend).known_port().start()
}

/// Whether limits hold on this machine; otherwise that is what the test is about, and it is shown.
fn holds(broker: &Broker) -> bool {
    let (status, limits) = (broker.status(), broker.backend_status("fixture")["limits"].clone());
    if limits["enforced"] == true {
        assert_eq!(limits["because"], Value::Null, "{limits}");
        return true;
    }
    let reason = limits["because"].as_str().unwrap_or_default();
    println!("does not hold here: {reason}");
    assert!(limits["enforced"] == false && !reason.is_empty(), "{limits}");
    let works =
        |name: &str| status["broker"]["cgroup_controllers"].as_array().is_some_and(|all| all.contains(&json!(name)));
    let asked =
        [("memory", "memory_max_mb"), ("pids", "pids_max")].into_iter().filter(|(_, key)| limits[*key] != Value::Null);
    assert!(asked.into_iter().any(|(name, _)| !works(name)), "{status:#}");
    assert!(broker.log().contains("limits are asked for and do not hold"), "{}", broker.log());
    let said = broker.cli(&["status"]).stdout;
    assert!(said.contains("limits NOT ENFORCED (asked: ") && said.contains(reason), "{said}");
    false
}

#[test]
fn a_limit_is_shown_whether_or_not_it_holds() {
    let broker = start("memory_max_mb = 512\npids_max = 100", "");
    let session = Session::new(&broker, "fixture");
    assert_eq!(session.call("allocate", &json!({"mib": 8})).text(), "allocated");
    let (backend, instance) = (broker.backend_status("fixture"), broker.live_instances("fixture")[0].clone());
    let enforced = holds(&broker);
    assert_eq!(instance["limits"], backend["limits"]);
    assert_eq!((&backend["limits"]["memory_max_mb"], &backend["limits"]["pids_max"]), (&json!(512), &json!(100)));
    assert_eq!(instance["last_over_limit"], Value::Null);
    if enforced {
        assert_eq!(broker.status()["broker"]["cgroup_controllers"], json!(["memory", "pids"]));
        let said = broker.cli(&["status"]).stdout;
        assert!(said.contains("limited to 512 MiB of memory and 100 processes and threads"), "{said}");
    }
    broker.finish();
}

#[test]
fn where_none_is_asked_for_none_is_shown() {
    let broker = start("", "");
    assert_eq!(Session::new(&broker, "fixture").call("echo", &json!({"text": "x"})).text(), "x");
    let backend = broker.backend_status("fixture");
    assert_eq!((&backend["limits"], &backend["instances"][0]["limits"]), (&Value::Null, &Value::Null));
    assert_eq!(broker.status()["broker"]["cgroup_controllers"], json!([]));
    assert!(!broker.cli(&["status"]).stdout.to_lowercase().contains("limited"));
    broker.finish();
}

/// One call that goes over the limit, what it says of that, and that the next is served by another generation.
#[track_caller]
fn check(limits: &str, tool: &str, arguments: &Value, named: &str) {
    let broker = start(limits, "");
    if !holds(&broker) {
        return broker.finish();
    }
    let session = Session::new(&broker, "fixture");
    let reply = session.call(tool, arguments);
    assert_eq!(reply.refusal(), "backend_exited", "{}", reply.raw);
    let expected = format!(
        "The server 'fixture' went over its limit of {named} and was ended. \
         Whether the call took effect is unknown; it was not sent again."
    );
    assert_eq!(reply.text(), expected);
    until_true("the next call to be served", SOON, || session.call("echo", &json!({"text": "x"})).text() == "x");
    assert_eq!((broker.starts("fixture"), broker.count("fixture", "call", tool)), (2, 1));
    let instance = &broker.live_instances("fixture")[0];
    assert_eq!(instance["last_over_limit"]["limit"], named, "{instance:#}");
    assert_eq!(instance["limits"]["enforced"], true, "{instance:#}");
    let said = broker.cli(&["status"]).stdout;
    assert!(said.contains(&format!("went over its limit of {named}")), "{said}");
    assert!(broker.log().contains("went over its limit"), "{}", broker.log());
    broker.finish();
}

#[test]
fn a_call_over_the_memory_is_told_so() {
    let arguments = json!({"mib": 200});
    check("memory_max_mb = 64", "allocate", &arguments, "64 MiB of memory (`memory_max_mb`)");
}

#[test]
fn a_call_over_the_processes_is_told_so() {
    let arguments = json!({"count": 40});
    check("pids_max = 20", "fork_many", &arguments, "20 processes and threads (`pids_max`)");
}

#[track_caller]
fn check_start(limits: &str, flags: &str, named: &str) {
    let broker = start(limits, flags);
    if !holds(&broker) {
        return broker.finish();
    }
    let reply = Session::new(&broker, "fixture").call("echo", &json!({"text": "x"}));
    assert_eq!(reply.refusal(), "start_failed", "{}", reply.raw);
    let expected = format!("the server went over its limit of {named} and was ended before it had answered");
    assert!(reply.text().contains(&expected), "{}", reply.text());
    broker.assert_nothing_left("a start over a limit", SOON);
    broker.finish();
}

#[test]
fn a_start_over_the_memory_is_told_so() {
    check_start("memory_max_mb = 64", "--allocate-at-start 200", "64 MiB of memory (`memory_max_mb`)");
}

#[test]
fn a_start_over_the_processes_is_told_so() {
    check_start("pids_max = 20", "--fork-at-start 40", "20 processes and threads (`pids_max`)");
}
