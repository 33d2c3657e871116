//! What a caller is told when a server fails, and that the next caller is served.

mod support;

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use support::wait::until_true;
use support::{Backend, Broker, Reply, Session, Setup};

const SOON: Duration = Duration::from_secs(15);

fn start(backend: Backend) -> Broker {
    Setup::new().backend(backend).start()
}

/// One call, and the broker's code in its answer.
#[track_caller]
fn check_refused(session: &Session, tool: &str, expected: &str) -> Reply {
    let reply = session.call(tool, &json!({"text": "x"}));
    assert_eq!(reply.refusal(), expected, "{}", reply.raw);
    assert_eq!(reply.result()["_meta"]["lazy-mcp/error"]["backend"], "fixture", "{}", reply.raw);
    assert!(!reply.text().is_empty(), "a refusal says what the matter is");
    reply
}

#[track_caller]
fn check_works(session: &Session) {
    assert_eq!(session.call("echo", &json!({"text": "works"})).text(), "works");
}

fn wait_queued(broker: &Broker, calls: u64) {
    until_true("the call to be queued", SOON, || broker.status()["totals"]["queued_calls"] == calls);
}

fn generation(session: &Session) -> Value {
    session.call("pid", &json!({})).text_json()["generation"].clone()
}

#[test]
fn a_crash_fails_its_call_and_no_other() {
    let broker = start(Backend::singleton("fixture"));
    let session = Session::new(&broker, "fixture");
    let first = generation(&session);
    let reply = session.call("crash", &json!({"code": 7}));
    assert!(matches!(reply.refusal(), "backend_exited" | "outcome_unknown"), "{}", reply.raw);
    check_works(&session);
    assert_ne!(generation(&session), first);
    assert_eq!(broker.count("fixture", "call", "crash"), 1, "a call that was written is never written again");
    broker.finish();
}

#[test]
fn a_queued_call_survives_a_crash() {
    let broker = start(Backend::singleton("fixture").max_concurrency(1));
    let session = Session::new(&broker, "fixture");
    std::thread::scope(|scope| {
        let crash = scope.spawn(|| session.call("crash", &json!({"ms": 800, "code": 1})));
        broker.wait_event("fixture", "call", "crash");
        let queued = scope.spawn(|| session.call("echo", &json!({"text": "next generation"})));
        wait_queued(&broker, 1);
        assert!(matches!(crash.join().unwrap().refusal(), "backend_exited" | "outcome_unknown"));
        assert_eq!(queued.join().unwrap().text(), "next generation");
    });
    assert_eq!(broker.starts("fixture"), 2);
    assert_eq!(broker.count("fixture", "call", "crash"), 1);
    broker.finish();
}

#[test]
fn a_server_that_exits_after_its_answer_is_started_again() {
    let broker = start(Backend::singleton("fixture"));
    let session = Session::new(&broker, "fixture");
    assert_eq!(session.call("exit_after_reply", &json!({})).text(), "bye");
    until_true("the exit to be seen", SOON, || broker.live_instances("fixture").is_empty());
    check_works(&session);
    assert_eq!(broker.starts("fixture"), 2);
    broker.finish();
}

#[test]
fn a_program_that_is_missing_is_named() {
    let broker = start(Backend::singleton("fixture").command("/nonexistent/server"));
    let session = Session::new(&broker, "fixture");
    let reply = check_refused(&session, "echo", "start_failed");
    assert!(reply.text().contains("/nonexistent/server"), "{}", reply.text());
    broker.assert_nothing_left("a start that failed", Duration::from_secs(2));
    broker.finish();
}

#[test]
fn a_server_that_exits_at_start_is_quoted() {
    let flags = Backend::singleton("fixture").flags("--exit-at-start 3").flag("--stderr-at-start", "no license found");
    let broker = start(flags);
    let session = Session::new(&broker, "fixture");
    let reply = check_refused(&session, "echo", "start_failed");
    assert!(reply.text().contains("no license found"), "{}", reply.text());
    broker.assert_nothing_left("a start that failed", Duration::from_secs(2));
    broker.finish();
}

#[test]
fn a_server_that_refuses_to_initialize_did_not_start() {
    let broker = start(Backend::singleton("fixture").flags("--refuse-initialize"));
    let session = Session::new(&broker, "fixture");
    check_refused(&session, "echo", "start_failed");
    broker.assert_nothing_left("a start that failed", SOON);
    broker.finish();
}

#[test]
fn a_server_that_says_nothing_times_out() {
    let broker = start(
        Backend::singleton("fixture")
            .flags("--never-answer-initialize --ignore-term --ignore-eof")
            .flag("--stderr-at-start", "waiting for a display")
            .start_seconds(1)
            .stop_seconds(3),
    );
    let session = Session::new(&broker, "fixture");
    let reply = check_refused(&session, "echo", "start_timeout");
    assert!(reply.text().contains("waiting for a display"), "{}", reply.text());
    broker.assert_nothing_left("a start that timed out", SOON);
    broker.finish();
}

#[test]
fn starts_that_fail_again_and_again_are_held_back() {
    let broker = start(Backend::singleton("fixture").flags("--exit-at-start 3"));
    let session = Session::new(&broker, "fixture");
    let held_back = (0..30)
        .map(|_| session.call("echo", &json!({"text": "x"})))
        .find(|reply| reply.refusal() == "cooling_down")
        .expect("thirty failed starts in a row are not let through");
    let error = &held_back.result()["_meta"]["lazy-mcp/error"];
    assert!(error["retry_after_ms"].as_u64().is_some_and(|ms| ms > 0), "{error}");
    let starts = broker.starts("fixture");
    check_refused(&session, "echo", "cooling_down");
    assert_eq!(broker.starts("fixture"), starts);
    broker.finish();
}

#[test]
fn a_full_queue_refuses_at_once() {
    let broker = start(Backend::singleton("fixture").max_concurrency(1).queue(1, 30));
    let session = Session::new(&broker, "fixture");
    std::thread::scope(|scope| {
        let running = scope.spawn(|| session.call("sleep", &json!({"ms": 1500})));
        broker.wait_event("fixture", "call", "sleep");
        let queued = scope.spawn(|| session.call("echo", &json!({"text": "waited"})));
        wait_queued(&broker, 1);
        check_refused(&session, "echo", "queue_full");
        assert_eq!(running.join().unwrap().text(), "slept");
        assert_eq!(queued.join().unwrap().text(), "waited");
    });
    broker.finish();
}

#[test]
fn a_call_waits_no_longer_than_the_queue_allows() {
    let broker = start(Backend::singleton("fixture").max_concurrency(1).queue(4, 1));
    let session = Session::new(&broker, "fixture");
    std::thread::scope(|scope| {
        let running = scope.spawn(|| session.call("sleep", &json!({"ms": 3000})));
        broker.wait_event("fixture", "call", "sleep");
        check_refused(&session, "echo", "queue_timeout");
        assert_eq!(running.join().unwrap().text(), "slept");
    });
    assert_eq!(broker.count("fixture", "call", "echo"), 0, "a call that was given up is not written");
    broker.finish();
}

#[test]
fn a_call_that_hangs_times_out_and_the_next_works() {
    let recycle = "on_cancel = { action = \"recycle\", grace_seconds = 0.1 },";
    let broker = start(Backend::singleton("fixture").call_seconds(1).policy(recycle));
    let session = Session::new(&broker, "fixture");
    let begin = Instant::now();
    check_refused(&session, "hang", "call_timeout");
    let took = begin.elapsed();
    assert!(took < Duration::from_secs(4), "a deadline of 1 s came after {took:?}");
    // The generation that hangs is replaced meanwhile, which may take longer than one more call's deadline.
    until_true("the next call to work", SOON, || {
        let reply = session.call("echo", &json!({"text": "works"}));
        reply.refusal().is_empty() && reply.text() == "works"
    });
    assert_eq!(broker.count("fixture", "call", "hang"), 1);
    broker.finish();
}

#[test]
fn a_cancelled_call_is_cancelled_at_the_server() {
    let broker = start(Backend::singleton("fixture").policy("on_cancel = { action = \"keep\" },"));
    let session = Session::new(&broker, "fixture");
    let before = generation(&session);
    let reply = cancel(&broker, &session, "cancellable");
    assert_eq!(reply.refusal(), "cancelled", "{}", reply.raw);
    broker.wait_event("fixture", "stopped", "cancellable");
    assert_eq!(generation(&session), before, "the policy keeps the server");
    broker.finish();
}

#[test]
fn a_cancelled_call_that_is_not_answered_keeps_no_place() {
    let keep = "on_cancel = { action = \"keep\", grace_seconds = 0.2 },";
    let broker = start(Backend::singleton("fixture").max_concurrency(1).idle_seconds(1).policy(keep));
    let session = Session::new(&broker, "fixture");
    let before = generation(&session);
    assert_eq!(cancel(&broker, &session, "hang").refusal(), "cancelled");
    assert_eq!(generation(&session), before, "the next call has its place, at the same server");
    broker.wait_stopped("fixture", SOON);
    broker.finish();
}

#[test]
fn a_server_that_ignores_a_cancellation_is_recycled() {
    let recycle = "on_cancel = { action = \"recycle\", grace_seconds = 1 },";
    let broker = start(Backend::singleton("fixture").policy(recycle));
    let session = Session::new(&broker, "fixture");
    let before = generation(&session);
    assert_eq!(cancel(&broker, &session, "hang").refusal(), "cancelled");
    until_true("the generation to be replaced", SOON, || generation(&session) != before);
    broker.finish();
}

#[test]
fn a_queued_call_can_be_cancelled() {
    let broker = start(Backend::singleton("fixture").max_concurrency(1));
    let session = Session::new(&broker, "fixture");
    std::thread::scope(|scope| {
        let running = scope.spawn(|| session.call("sleep", &json!({"ms": 1500})));
        broker.wait_event("fixture", "call", "sleep");
        let queued = scope.spawn(|| session.send_raw(&named_call("echo")));
        wait_queued(&broker, 1);
        session.notify("notifications/cancelled", &json!({"requestId": "named"}));
        assert_eq!(queued.join().unwrap().refusal(), "cancelled");
        running.join().unwrap();
    });
    assert_eq!(broker.count("fixture", "call", "echo"), 0, "it was never written");
    assert_eq!(broker.count("fixture", "cancelled", ""), 0, "so there was nothing to cancel there");
    broker.finish();
}

#[test]
fn one_session_cannot_cancel_for_another() {
    let broker = start(Backend::singleton("fixture"));
    let (mine, theirs) = (Session::new(&broker, "fixture"), Session::new(&broker, "fixture"));
    let body = named_call("cancellable").replace("{}", r#"{"ms":1000}"#);
    std::thread::scope(|scope| {
        let call = scope.spawn(|| mine.send_raw(&body));
        broker.wait_event("fixture", "call", "cancellable");
        theirs.notify("notifications/cancelled", &json!({"requestId": "named"}));
        assert_eq!(call.join().unwrap().text(), "not cancelled");
    });
    broker.finish();
}

fn named_call(tool: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":"named","method":"tools/call","params":{{"name":"{tool}","arguments":{{}}}}}}"#)
}

/// Calls `tool`, cancels the call once the server has it, and returns its answer.
fn cancel(broker: &Broker, session: &Session, tool: &str) -> Reply {
    let body = named_call(tool).replace("{}", r#"{"ms":20000}"#);
    std::thread::scope(|scope| {
        let call = scope.spawn(|| session.send_raw(&body));
        broker.wait_event("fixture", "call", tool);
        session.notify("notifications/cancelled", &json!({"requestId": "named", "reason": "changed my mind"}));
        call.join().expect("the call was answered")
    })
}

#[test]
fn a_server_that_reads_nothing_blocks_nobody_for_long() {
    let broker = start(
        Backend::singleton("fixture")
            .flags("--never-read-stdin-after-init")
            .call_seconds(1)
            .stop_seconds(3)
            .idle_seconds(1),
    );
    let session = Session::new(&broker, "fixture");
    // More than a pipe holds, so the broker's writer is stuck.
    let large = json!({"text": "x".repeat(1 << 20)});
    std::thread::scope(|scope| {
        let calls: Vec<_> = (0..3).map(|_| scope.spawn(|| session.call("echo", &large))).collect();
        for call in calls {
            let reply = call.join().unwrap();
            let refusal = reply.refusal();
            assert!(
                ["call_timeout", "backend_exited", "outcome_unknown", "unavailable"].contains(&refusal),
                "{refusal}"
            );
        }
    });
    broker.wait_stopped("fixture", SOON);
    broker.finish();
}

#[test]
fn a_server_that_ignores_eof_and_sigterm_is_gone_all_the_same() {
    let fixture = Backend::singleton("fixture").flags("--ignore-eof --ignore-term").idle_seconds(1).stop_seconds(4);
    let broker = start(fixture);
    let session = Session::new(&broker, "fixture");
    check_works(&session);
    broker.wait_stopped("fixture", SOON);
    check_works(&session);
    broker.finish();
}

#[test]
fn half_a_line_is_no_answer() {
    let broker = start(Backend::singleton("fixture").call_seconds(1).idle_seconds(1));
    let session = Session::new(&broker, "fixture");
    check_refused(&session, "partial_line", "call_timeout");
    broker.wait_stopped("fixture", SOON);
    check_works(&session);
    broker.finish();
}

#[test]
fn a_tool_that_changed_since_its_review_is_refused() {
    let broker = start(Backend::singleton("fixture").flags("--drift echo --add-tool unreviewed"));
    let session = Session::new(&broker, "fixture");
    session.call("pid", &json!({})).text_json();
    let drifted = session.call("echo", &json!({"text": "x"}));
    assert!(drifted.json().get("error").is_some() || !drifted.refusal().is_empty(), "{}", drifted.raw);
    assert_eq!(broker.count("fixture", "call", "echo"), 0, "it never reached the server");
    assert_eq!(session.call("unreviewed", &json!({})).error_code(), -32602);
    assert!(!session.list().raw.contains("unreviewed"));
    broker.finish();
}

#[test]
fn a_short_stop_is_proved_and_no_false_alarm() {
    let fixture = Backend::singleton("fixture").flags("--ignore-eof --ignore-term").idle_seconds(1).stop_seconds(1);
    let broker = start(fixture);
    let session = Session::new(&broker, "fixture");
    check_works(&session);
    broker.wait_stopped("fixture", SOON);
    let backend = broker.status()["backends"][0].clone();
    assert_eq!(backend["last_cleanup"]["ok"], true, "{backend:#}");
    assert_eq!((&backend["starts"], &backend["proofs"]), (&json!(1), &json!(1)), "{backend:#}");
    assert!(!broker.log().contains("could not be proved"), "{}", broker.log());
    broker.finish();
}

#[test]
fn progress_extends_a_call_up_to_a_ceiling() {
    let policy = r#"tools = { settings = { sleep = { deadline_seconds = 1, progress_extends_to_seconds = 3 } } },
        on_cancel = { action = "recycle", grace_seconds = 0.1 },"#;
    let broker = start(Backend::session("fixture").call_seconds(5).policy(policy));
    let ended = |ms: u64, progress: u64| {
        let session = Session::new(&broker, "fixture");
        session.call("echo", &json!({"text": "started"}));
        let arguments = json!({"ms": ms, "progress": progress});
        let params = json!({"name": "sleep", "arguments": arguments, "_meta": {"progressToken": 1}});
        let begun = Instant::now();
        let refusal = session.send("tools/call", &params).refusal().to_owned();
        (refusal, begun.elapsed())
    };
    assert_eq!(ended(2000, 7).0, "", "each report gives it a second more");
    assert_eq!(ended(2000, 0).0, "call_timeout", "a silent call has its deadline");
    let (code, took) = ended(20_000, 79);
    assert_eq!(code, "call_timeout", "no report goes beyond the ceiling");
    assert!(took >= Duration::from_secs(3), "it had the whole of it: {took:?}");
    broker.finish();
}
