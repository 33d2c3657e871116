//! A hundred reloads under load: no call is lost or sent twice, who has not changed keeps its process, and nothing grows.

mod support;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use support::files::of;
use support::wait::until_true;
use support::{Backend, Broker, Session, Setup};

const SOON: Duration = Duration::from_secs(20);
const CLIENTS_EACH: usize = 4;
const RELOADS: usize = 100;

/// Calls until told to end; how many were answered. Each has to be, and as one of the policies says.
fn call_on(broker: &Broker, backend: &str, is_over: &AtomicBool, answered: &AtomicU64) {
    let session = Session::new(broker, backend);
    while !is_over.load(Ordering::Relaxed) {
        let reply = session.call("echo", &json!({"text": "secret-1"}));
        assert_eq!(reply.refusal(), "", "{backend}: {}", reply.raw);
        let text = reply.text();
        let is_told = text == "secret-1" || backend == "steady" && text == "[gone]";
        assert!(is_told, "{backend}: {text}");
        answered.fetch_add(1, Ordering::Relaxed);
    }
}

/// One change of the files, and a reload: rules, half a policy, a launch, half a configuration. Whatever was broken is
/// whole again afterwards.
#[track_caller]
fn reload(broker: &Broker, n: usize) {
    match n % 4 {
        0 => {
            let rule = "results = { broker.redact_text { pattern = [[secret-\\d+]], replace_with = \"[gone]\" } },";
            broker.change_policy("steady", if n.is_multiple_of(8) { rule } else { "" });
            let report = broker.reload();
            assert_eq!(of(&report, "steady")["change"], "live", "{report:#}");
        }
        1 => refused(broker, "policies/steady.lua"),
        2 => {
            broker.change_launch("changing", &n.to_string());
            let report = broker.reload();
            assert_eq!(of(&report, "steady")["change"], "unchanged", "{report:#}");
            assert_eq!(of(&report, "changing")["change"], "launch", "{report:#}");
        }
        _ => refused(broker, "config/broker.toml"),
    }
}

#[track_caller]
fn refused(broker: &Broker, file: &str) {
    let whole = broker.read(file);
    let half = whole.rfind('=').expect("keys and values") + 1;
    broker.write(file, &whole[..half]);
    broker.reload_refused();
    broker.write(file, &whole);
}

fn descriptors(broker: &Broker) -> usize {
    std::fs::read_dir(format!("/proc/{}/fd", broker.pid())).expect("it runs").count()
}

/// Anonymous memory: what is of files comes and goes.
fn memory_kib(broker: &Broker) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", broker.pid())).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect("Linux 4.5");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

fn pid(session: &Session) -> Value {
    session.call("pid", &json!({})).text_json()["pid"].clone()
}

/// No call is out, and every connection of a client is gone.
#[track_caller]
fn wait_calm(broker: &Broker) {
    until_true("all calls to end", SOON, || {
        let totals = broker.status()["totals"].clone();
        totals["active_calls"] == 0 && totals["queued_calls"] == 0 && broker.live_instances("changing").len() == 1
    });
}

#[test]
fn a_hundred_reloads_under_load_lose_nothing() {
    let backend = |name| Backend::singleton(name).max_concurrency(4);
    let broker = Setup::new().backend(backend("steady")).backend(backend("changing")).drain_seconds(20).start();
    let (steady, changing) = (Session::new(&broker, "steady"), Session::new(&broker, "changing"));
    let kept = pid(&steady);
    pid(&changing);
    let is_over = AtomicBool::new(false);
    let answered = [AtomicU64::new(0), AtomicU64::new(0)];
    let under_load = |reloads: std::ops::Range<usize>| {
        is_over.store(false, Ordering::Relaxed);
        std::thread::scope(|scope| {
            for (backend, answered) in ["steady", "changing"].into_iter().zip(&answered) {
                for _ in 0..CLIENTS_EACH {
                    scope.spawn(|| call_on(&broker, backend, &is_over, answered));
                }
            }
            let reloaded = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                reloads.for_each(|n| {
                    let before = answered.each_ref().map(|answered| answered.load(Ordering::Relaxed));
                    reload(&broker, n);
                    // The steady one is never in anybody's way.
                    until_true("calls to go on", SOON, || answered[0].load(Ordering::Relaxed) > before[0]);
                });
            }));
            is_over.store(true, Ordering::Relaxed);
            if let Err(panic) = reloaded {
                std::panic::resume_unwind(panic);
            }
        });
        wait_calm(&broker);
    };
    // What is made once is made in the first of them.
    under_load(0..RELOADS / 5);
    let before = (descriptors(&broker), memory_kib(&broker));
    under_load(RELOADS / 5..RELOADS);
    assert_eq!(pid(&steady), kept);
    until_true("descriptors to be closed", SOON, || descriptors(&broker) <= before.0 + 4);
    let grown = memory_kib(&broker).saturating_sub(before.1);
    assert!(grown < 4096, "{grown} KiB more than {} after {RELOADS} reloads", before.1);

    for (backend, answered) in ["steady", "changing"].into_iter().zip(&answered) {
        let sent = broker.count(backend, "call", "echo") as u64;
        assert_eq!(sent, answered.load(Ordering::Relaxed), "{backend}: each call was sent once and answered");
    }
    let changing = broker.backend_status("changing");
    let starts = changing["starts"].as_u64().expect("a number");
    assert!(starts > 10, "{changing:#}");
    assert_eq!(changing["proofs"], starts - 1, "all but the one that runs: {changing:#}");
    assert_eq!(broker.backend_status("steady")["starts"], 1);
    assert_eq!(broker.status()["broker"]["revision"], 1 + RELOADS as u64 / 2);
    eprintln!("{starts} generations, {answered:?} calls, {grown} KiB grown from {}", before.1);
    broker.finish();
}
