//! An instance that cannot be proved gone, as an operator meets it: what is shown, what is refused, what each command
//! does and what it says by its exit code. The processes that do not die are frozen ones.

mod support;

use std::time::Duration;

use serde_json::{Value, json};
use support::cli::Run;
use support::freezer::Frozen;
use support::lease::Leased;
use support::processes::Table;
use support::wait::{until, until_true};
use support::{Backend, Broker, Session, Setup, run};

const SOON: Duration = Duration::from_secs(15);

fn start() -> Broker {
    let backend = Backend::singleton("fixture").start_seconds(3).stop_seconds(2);
    Setup::new().known_port().backend(backend).start()
}

/// A broker whose one instance is in `cleanup_failed`.
struct Stuck {
    // Dropped in this order: first the process may die, then the broker ends.
    frozen: Option<Frozen>,
    pid: u64,
    id: String,
    generation: u64,
    session: Session,
    broker: Broker,
}

impl Stuck {
    fn new() -> Option<Self> {
        let broker = start();
        let session = Session::new(&broker, "fixture");
        let spawned = session.call("spawn", &json!({"how": "child"})).text_json();
        let pid = spawned["pids"][0].as_u64().expect("a pid");
        broker.owned_processes();
        let Some(frozen) = Frozen::freeze(pid) else {
            broker.finish();
            return None;
        };
        let instance = broker.live_instances("fixture").remove(0);
        let id = instance["id"].as_str().expect("an id").to_owned();
        let generation = instance["generation"].as_u64().expect("a number");
        let stuck = Self { frozen: Some(frozen), pid, id, generation, session, broker };
        let stop = stuck.broker.cli(&["stop", "fixture"]);
        stuck.check(&stop, 5, &[&stuck.name(), "NOT proved gone", &format!("pid {pid}"), "frozen"]);
        Some(stuck)
    }

    fn name(&self) -> String {
        format!("fixture/{}", self.id)
    }

    fn cli(&self, args: &[&str]) -> Run {
        self.broker.cli(args)
    }

    #[track_caller]
    fn check(&self, run: &Run, code: i32, said: &[&str]) {
        assert_eq!(run.code, Some(code), "{run:#?}\n{}", self.broker.log());
        for part in said {
            assert!(run.stdout.contains(part), "it should say {part:?}: {run:#?}");
        }
    }

    fn thaw(&mut self) {
        self.frozen.take().expect("frozen until now").thaw();
    }

    /// Instances that are not proved gone.
    fn unproved(&self) -> Vec<Value> {
        let mut instances = self.broker.live_instances("fixture");
        instances.retain(|instance| instance["state"] == "cleanup_failed");
        instances
    }

    #[track_caller]
    fn generation_of_a_call(&self) -> u64 {
        let place = self.session.call("pid", &json!({})).text_json();
        place["generation"].as_str().and_then(|number| number.parse().ok()).expect("a number")
    }

    fn is_there(&self) -> bool {
        Table::read().get(u32::try_from(self.pid).expect("pids are small")).is_some()
    }
}

#[test]
fn it_is_shown_with_its_evidence_refuses_calls_and_is_recovered() {
    let Some(mut stuck) = Stuck::new() else { return };
    let status = stuck.broker.status();
    assert_eq!(status["totals"]["cleanup_failed"], 1, "{status:#}");
    let instance = stuck.unproved().remove(0);
    assert_eq!((&instance["set_aside"], &instance["generation"]), (&json!(false), &json!(stuck.generation)));
    let cleanup = &instance["cleanup"];
    let attempts = cleanup["attempts"].as_u64().expect("a number");
    assert!(attempts >= 3, "{cleanup:#}");
    assert!(cleanup["next_attempt_in_ms"].is_u64() || cleanup["next_attempt_in_ms"].is_null(), "{cleanup:#}");
    assert!(cleanup["last_attempt_at"].as_str().is_some_and(|at| at.starts_with("20")), "{cleanup:#}");
    assert!(cleanup["means"].as_str().is_some_and(|means| means.contains("SIGKILL by its keeper")), "{cleanup:#}");
    assert_eq!(cleanup["command"], format!("lazy-mcp recover {}", stuck.name()));
    let survivors = instance["survivors"].as_array().expect("a list");
    assert_eq!(survivors.len(), 1, "{instance:#}");
    assert_eq!((&survivors[0]["pid"], &survivors[0]["reason"]), (&json!(stuck.pid), &json!("frozen")), "{instance:#}");
    assert!(survivors[0]["explanation"].as_str().is_some_and(|why| why.contains("thaw")), "{instance:#}");

    let refused = stuck.session.call("echo", &json!({"text": "x"}));
    assert_eq!(refused.refusal(), "cleanup_failed");
    assert!(refused.text().contains("lazy-mcp recover fixture"), "{}", refused.text());
    let shown = stuck.cli(&["status"]);
    stuck.check(&shown, 5, &[&format!("lazy-mcp recover {}", stuck.name()), &format!("pid {}", stuck.pid), "frozen"]);

    let refused = stuck.cli(&["recover", &stuck.name()]);
    stuck.check(&refused, 5, &[&stuck.name(), "NOT proved gone", &format!("pid {}", stuck.pid), "frozen"]);
    let now = stuck.unproved().remove(0);
    assert!(now["cleanup"]["attempts"].as_u64() > Some(attempts), "{now:#}");
    assert!(stuck.is_there());

    stuck.thaw();
    let recovered = stuck.cli(&["recover", "fixture", "--json"]);
    assert_eq!(recovered.code, Some(0), "{recovered:#?}");
    let answer = recovered.json();
    // The broker's own next attempt may have come first.
    assert!(answer["outcome"] == "proved" || answer["instances"][0]["state"] == "stopped", "{answer:#}");
    assert!(!stuck.is_there());
    stuck.broker.assert_nothing_runs();
    assert!(stuck.generation_of_a_call() > stuck.generation);
    stuck.check(&stuck.cli(&["status"]), 0, &["ready"]);
    stuck.broker.finish();
}

/// What hangs is on its way from fork to exec, so there is no server, and what is left is seen by sweeps alone.
#[test]
fn a_start_that_fails_and_leaves_something_is_one_too() {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("server");
    std::fs::copy(run::fixture_program(), &program).unwrap();
    let lease = Leased::hold(&program);
    let backend = Backend::singleton("fixture").command(program.to_str().unwrap()).start_seconds(3).stop_seconds(2);
    let broker = Setup::new().known_port().backend(backend).start();
    let session = Session::new(&broker, "fixture");
    let call = broker.http().send_aside(&session.call_request("echo", &json!({"text": "x"})));
    let pid = until("a server on its way", SOON, || {
        let table = Table::read();
        let mut below = table.descendants(broker.pid()).into_iter();
        below.find(|process| process.ppid != broker.pid()).map(|process| process.pid())
    });
    broker.owned_processes();
    let Some(frozen) = Frozen::freeze(pid.into()) else {
        drop(lease);
        call.join().unwrap();
        return broker.finish();
    };
    assert_eq!(support::Reply::new(call.join().unwrap()).refusal(), "start_timeout");
    // 8 s until its keeper gives it up, a moment for the broker, three sweeps.
    let instance = until("the start to be shown as not cleaned up", Duration::from_secs(40), || {
        broker.live_instances("fixture").pop().filter(|instance| instance["state"] == "cleanup_failed")
    });
    let survivors = instance["survivors"].as_array().expect("a list");
    assert_eq!(survivors.len(), 1, "{instance:#}");
    assert_eq!((&survivors[0]["pid"], &survivors[0]["reason"]), (&json!(pid), &json!("frozen")), "{instance:#}");
    assert_eq!(session.call("echo", &json!({"text": "x"})).refusal(), "cleanup_failed");
    let refused = broker.cli(&["recover", "fixture"]);
    assert_eq!(refused.code, Some(5), "{refused:#?}");

    frozen.thaw();
    let recovered = broker.cli(&["recover", "fixture"]);
    assert_eq!(recovered.code, Some(0), "{recovered:#?}");
    broker.assert_nothing_runs();
    drop(lease);
    let served = || session.call("echo", &json!({"text": "x"}));
    until_true("the pause after the failure to be over", SOON, || served().refusal().is_empty());
    assert_eq!(broker.starts("fixture"), 1, "nothing was executed before");
    broker.finish();
}

#[test]
fn set_aside_it_makes_place_for_a_new_generation_and_goes_with_its_proof() {
    let Some(mut stuck) = Stuck::new() else { return };
    let whole = stuck.cli(&["recover", "fixture", "--force"]);
    assert_eq!(whole.code, Some(2), "{whole:#?}");
    assert!(whole.stderr.contains("--force takes one instance"), "{whole:#?}");

    let forced = stuck.cli(&["recover", &stuck.name(), "--force"]);
    stuck.check(&forced, 5, &["NOT proved gone", "set aside", &format!("pid {}", stuck.pid)]);
    assert!(stuck.generation_of_a_call() > stuck.generation);
    let instances = stuck.broker.live_instances("fixture");
    let states: Vec<_> = instances.iter().map(|one| (one["state"].as_str().unwrap(), &one["set_aside"])).collect();
    assert_eq!(states, [("ready", &json!(false)), ("cleanup_failed", &json!(true))], "{instances:#?}");
    assert_eq!(instances[0]["id"], instances[1]["id"]);
    assert_eq!(instances[1]["generation"], stuck.generation);
    assert_eq!(stuck.broker.status()["totals"]["cleanup_failed"], 1);
    stuck.check(&stuck.cli(&["status"]), 5, &["SET ASIDE", "lazy-mcp recover"]);

    let again = stuck.cli(&["recover", &stuck.name(), "--force"]);
    stuck.check(&again, 5, &["set aside before"]);
    // The one that serves is stopped; the one that is set aside keeps the answer from being "proved".
    let stopped = stuck.cli(&["stop", &stuck.name()]);
    stuck.check(&stopped, 5, &["proved gone", "set aside before"]);
    assert_eq!(stuck.broker.live_instances("fixture").len(), 1);
    assert!(stuck.is_there());

    stuck.thaw();
    let recovered = stuck.cli(&["recover", "fixture"]);
    assert_eq!(recovered.code, Some(0), "{recovered:#?}");
    until_true("it to leave the status", SOON, || stuck.unproved().is_empty());
    let status = stuck.broker.backend_status("fixture");
    assert_eq!(status["starts"], status["proofs"], "{status:#}");
    assert_eq!(status["instances"].as_array().map(Vec::len), Some(1), "{status:#}");
    stuck.check(&stuck.cli(&["status"]), 0, &["ready"]);
    stuck.broker.finish();
}

#[test]
fn a_broker_that_ends_with_one_says_so_and_its_keeper_goes_on() {
    let Some(mut stuck) = Stuck::new() else { return };
    let forced = stuck.cli(&["recover", &stuck.name(), "--force"]);
    stuck.check(&forced, 5, &["set aside"]);
    stuck.generation_of_a_call();
    let ended = stuck.broker.terminate();
    assert_eq!(ended.code(), Some(5), "{}", stuck.broker.log());
    let log = stuck.broker.log();
    assert!(log.contains("could not be proved gone") && log.contains(&stuck.name()), "{log}");
    assert!(stuck.is_there());
    stuck.thaw();
    stuck.broker.assert_nothing_left("the thaw, by its keeper alone", SOON);
}

#[test]
fn a_stop_waits_for_the_calls_and_for_the_proof() {
    let broker = start();
    let nothing = broker.cli(&["stop", "fixture"]);
    assert_eq!(nothing.code, Some(0), "{nothing:#?}");
    let session = Session::new(&broker, "fixture");
    let call = broker.http().send_aside(&session.call_request("sleep", &json!({"ms": 700})));
    broker.wait_event("fixture", "call", "sleep");
    let stopped = broker.cli(&["stop", "fixture"]);
    assert_eq!(stopped.code, Some(0), "{stopped:#?}");
    assert!(stopped.stdout.contains("proved gone"), "{stopped:#?}");
    broker.assert_nothing_runs();
    assert_eq!(support::Reply::new(call.join().unwrap()).text(), "slept");
    let id = broker.backend_status("fixture")["instances"][0]["id"].as_str().unwrap().to_owned();
    let again = broker.cli(&["stop", &format!("fixture/{id}"), "--json"]);
    assert_eq!((again.code, &again.json()["outcome"]), (Some(0), &json!("nothing_to_do")), "{again:#?}");
    broker.finish();
}

#[test]
fn what_is_wrong_is_said_with_the_nearest_name() {
    let mut broker = start();
    let session = Session::new(&broker, "fixture");
    session.call("echo", &json!({"text": "x"}));
    let id = broker.live_instances("fixture")[0]["id"].as_str().unwrap().to_owned();
    // Another last digit than its own.
    let last = if id.ends_with('0') { '1' } else { '0' };
    let (name, near) = (format!("fixture/{id}"), format!("fixture/{}{last}", &id[..11]));
    let other = broker.dir().join("other.token");
    std::fs::write(&other, "0".repeat(64)).unwrap();
    let (other, none) = (other.to_str().unwrap(), broker.dir().join("none"));
    let none = none.to_str().unwrap();
    let check = |broker: &Broker, args: &[&str], code: i32, said: &[&str]| {
        let run = broker.cli(args);
        assert_eq!(run.code, Some(code), "{args:?}: {run:#?}");
        let text = format!("{}{}", run.stdout, run.stderr);
        said.iter().for_each(|part| assert!(text.contains(part), "{args:?} should say {part:?}: {run:#?}"));
    };
    for command in ["recover", "stop"] {
        check(&broker, &[command, "fixtur"], 1, &["no backend 'fixtur'", "did you mean 'fixture'?"]);
        check(&broker, &[command, &near], 1, &["no instance", &id]);
        check(&broker, &[command, "fixture", "--token-file", other], 1, &["refuses the token", other]);
        check(&broker, &[command, "fixture", "--token-file", none], 1, &["failed to read", none, "--token-file"]);
        check(&broker, &[command], 2, &["BACKEND"]);
    }
    check(&broker, &["recover", &name], 1, &["ready, not cleanup_failed", "lazy-mcp stop"]);
    check(&broker, &["recover", &name, "--force"], 1, &["ready, not cleanup_failed"]);
    assert_eq!(broker.live_instances("fixture")[0]["state"], "ready", "force alone ends nothing");
    check(&broker, &["recover", "fixture", "--force"], 2, &["--force takes one instance"]);
    check(&broker, &["stop", &name], 0, &["proved gone"]);
    check(&broker, &["recover", "fixture"], 0, &["stopped; nothing to do"]);
    assert!(broker.terminate().success());
    for command in ["recover", "stop"] {
        check(&broker, &[command, "fixture"], 4, &["no broker reached"]);
    }
}
