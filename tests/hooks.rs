//! Hooks of policies in a whole broker: what is sent, what comes back, and what never does.

mod support;

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use support::wait::until_true;
use support::{Backend, Broker, Modern, Reply, Request, Session, Setup};

const SECRET: &str = "hunter2";
const LIMIT: Duration = Duration::from_secs(10);

fn start(backend: Backend) -> Broker {
    Setup::new().known_port().backend(backend).start()
}

fn events(broker: &Broker, name: &str) -> Vec<Value> {
    let answer = broker.http().send(&Request::get("/events?follow=0"));
    let data = answer.text().lines().filter_map(|line| line.strip_prefix("data: ")).map(str::to_owned);
    let all = data.map(|data| serde_json::from_str::<Value>(&data).expect("each is JSON"));
    all.filter(|event| event["event"] == name).collect()
}

/// The one event of this name tells the tool, the rule and the policy, and nothing of the call.
#[track_caller]
fn check_told(broker: &Broker, name: &str, tool: &str, rule_ends_with: &str) {
    let found = events(broker, name);
    let [event] = &found[..] else { panic!("{name}: {found:#?}") };
    let digest = &broker.backend_status("fixture")["policy"]["digest"];
    assert_eq!((&event["backend"], &event["tool"], &event["policy_digest"]), (&json!("fixture"), &json!(tool), digest));
    assert!(event["rule"].as_str().is_some_and(|rule| rule.ends_with(rule_ends_with)), "{event}");
    let metrics = broker.http().send(&Request::get("/metrics"));
    let counted = format!(r#"lazy_mcp_events_total{{backend="fixture",event="{name}"}} 1"#);
    assert!(metrics.text().contains(&counted), "{}", metrics.text());
    let told = broker.cli(&["events"]).stdout;
    assert!(told.contains(tool) && !told.contains(SECRET), "{told}");
    assert!(!broker.log().contains(SECRET), "{}", broker.log());
}

fn is_sent(broker: &Broker, tool: &str) -> bool {
    broker.count("fixture", "call", tool) > 0
}

#[test]
fn a_denied_call_starts_nothing() {
    let broker = start(Backend::session("fixture").policy(
        "on_call = { echo = function(call)\nif call.arguments.text == 'hunter2' then return broker.deny('not that text') end end },",
    ));
    let session = Session::new(&broker, "fixture");
    let reply = session.call("echo", &json!({"text": SECRET}));
    assert_eq!(reply.refusal(), "denied");
    assert_eq!(reply.text(), "Denied by the policy of 'fixture': not that text");
    assert_eq!(broker.starts("fixture"), 0);
    check_told(&broker, "call_denied", "echo", "policies/fixture.lua:8");
    assert_eq!(session.call("echo", &json!({"text": "other"})).text(), "other");
    broker.finish();
}

/// The last call of a crowd is ended while it is still at its hook: it is told so, and nothing starts for it.
#[track_caller]
fn check_ended_at_its_hook(end: impl FnOnce(&Session)) {
    let broker = start(Backend::session("fixture").policy(
        "on_call = { echo = function(call)\nif call.arguments.text == 'last' then return end\nfor i = 1, 150000 do end\nreturn broker.deny('busy') end },",
    ));
    let (crowd, session) = (Session::new(&broker, "fixture"), Session::new(&broker, "fixture"));
    let under_way = || broker.status()["totals"]["requests"].as_u64().expect("it is a number");
    // They keep the policy threads busy for some tenths of a second, far below the 2 s that a call may wait for one.
    let busy: Vec<_> =
        (0..40).map(|_| crowd.http.send_aside(&crowd.call_request("echo", &json!({"text": "busy"})))).collect();
    // Those that came and those that are answered already, which are counted first: no answered one counts twice.
    let came = || busy.iter().filter(|call| call.is_finished()).count() as u64 + under_way();
    until_true("the crowd to be at its hook", LIMIT, || came() >= 40);
    let last = session.http.send_aside(&session.call_request("echo", &json!({"text": "last"})));
    until_true("the last call to be there", LIMIT, || came() > 40);
    end(&session);
    let last = Reply::new(last.join().expect("the client does not panic"));
    for call in busy {
        assert_eq!(Reply::new(call.join().expect("the client does not panic")).refusal(), "denied");
    }
    assert_eq!((broker.starts("fixture"), is_sent(&broker, "echo")), (0, false));
    assert_eq!(last.refusal(), "cancelled", "{}", last.raw);
    broker.finish();
}

#[test]
fn an_ended_session_starts_nothing_for_a_call_at_its_hook() {
    check_ended_at_its_hook(|session| assert_eq!(session.delete().status, 204));
}

#[test]
fn a_call_is_cancelled_at_its_hook() {
    // The session's first request after `initialize` has the id 1.
    let cancel = json!({"requestId": 1});
    check_ended_at_its_hook(|session| assert_eq!(session.notify("notifications/cancelled", &cancel).status, 202));
}

#[test]
fn rewritten_arguments_reach_the_server_and_the_rest_keeps_its_bytes() {
    let broker = start(Backend::session("fixture").policy(
        "on_call = { echo_raw = function(call) return broker.allow { arguments = { a = 'new', gone = broker.null, add = 1 } } end },",
    ));
    let session = Session::new(&broker, "fixture");
    let reply = session.send_raw(
        r#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"echo_raw","arguments":{ "n" : 1E2, "a":"hunter2", "gone":[], "u":"\u0041" }}}"#,
    );
    let expected = r#""arguments":{ "n" : 1E2, "a":"new", "u":"\u0041","add":1 }"#;
    assert!(reply.text().contains(expected), "{}", reply.text());
    check_told(&broker, "call_rewritten", "echo_raw", "policies/fixture.lua:7");
    broker.finish();
}

#[test]
fn what_does_not_fit_the_schema_is_not_sent() {
    let broker = start(
        Backend::session("fixture")
            .policy("on_call = { echo = function(call)\nreturn broker.allow { arguments = { text = 5 } } end },"),
    );
    let session = Session::new(&broker, "fixture");
    let reply = session.call("echo", &json!({"text": SECRET}));
    assert_eq!(reply.refusal(), "policy_failed");
    assert_eq!(reply.text(), "The policy of 'fixture' failed on this call; it was not sent.");
    assert!(!is_sent(&broker, "echo"));
    assert!(broker.log().contains("fixture.lua:8") && broker.log().contains("inputSchema"), "{}", broker.log());
    check_told(&broker, "call_denied", "echo", "policies/fixture.lua:7");
    broker.finish();
}

#[test]
fn deadlines_of_hooks_count_up_to_the_ceiling() {
    let broker = start(
        Backend::session("fixture")
            .call_seconds(2)
            .policy("on_cancel = { action = 'keep' }, tools = { settings = { sleep = { deadline_seconds = 1 } } }, on_call = { ['*'] = function(call) return broker.allow { deadline_seconds = call.arguments.deadline } end },"),
    );
    let session = Session::new(&broker, "fixture");
    assert_eq!(session.call("echo", &json!({"text": "warm", "deadline": 2})).text(), "warm");
    let took = |deadline: f64| {
        let begun = Instant::now();
        let reply = session.call("sleep", &json!({"ms": 4000, "deadline": deadline}));
        assert_eq!(reply.refusal(), "call_timeout", "{}", reply.raw);
        begun.elapsed()
    };
    let (short, ceiling) = (took(0.3), took(60.0));
    assert!(short < Duration::from_millis(1500), "{short:?}");
    assert!(ceiling >= Duration::from_millis(1900) && ceiling < Duration::from_millis(3500), "{ceiling:?}");
    // Raised over what the settings say.
    assert_eq!(session.call("sleep", &json!({"ms": 1300, "deadline": 2})).refusal(), "");
    broker.finish();
}

#[test]
fn a_failing_hook_denies_and_the_broker_goes_on() {
    let broker = start(Backend::session("fixture").policy(
        "on_call = { echo = function(call) while true do end end, sleep = function(call) return call.nothing end, odd = function() return 'yes' end },",
    ));
    let session = Session::new(&broker, "fixture");
    for (tool, arguments) in [("echo", json!({"text": SECRET})), ("sleep", json!({"ms": 1})), ("odd", json!({}))] {
        assert_eq!(session.call(tool, &arguments).refusal(), "policy_failed", "{tool}");
    }
    assert_eq!(broker.starts("fixture"), 0);
    assert_eq!(broker.status()["totals"]["policy_threads_abandoned"], 0);
    assert_eq!(session.call("pid", &json!({})).refusal(), "");
    assert!(!broker.log().contains(SECRET));
    broker.finish();
}

#[test]
fn a_rewritten_result_keeps_all_other_bytes() {
    let plain = start(Backend::session("fixture"));
    let before = Session::new(&plain, "fixture").call("unknown_fields", &json!({})).raw;
    plain.finish();
    let broker = start(Backend::session("fixture").policy(
        "on_result = { unknown_fields = function(call, result) result.content[1]:set_text(call.tool) result:set_structured('b', 2) end },",
    ));
    let after = Session::new(&broker, "fixture").call("unknown_fields", &json!({})).raw;
    let expected =
        before.replace(r#""caf\u00e9 \/ \ud83d\ude00""#, r#""unknown_fields""#).replace(r#""b":1.50"#, r#""b":2"#);
    assert_eq!(after, expected);
    check_told(&broker, "result_rewritten", "unknown_fields", "policies/fixture.lua:7");
    broker.finish();
}

#[test]
fn what_a_hook_fails_on_never_leaves() {
    let broker = start(Backend::session("fixture").policy(
        "on_result = { echo = function(call, result)\nlocal text = result.content[1].text\nerror('no') end, echo_raw = function(call, result) while true do end end, big = function(call, result) return result end },",
    ));
    let session = Session::new(&broker, "fixture");
    let calls =
        [("echo", json!({"text": SECRET})), ("echo_raw", json!({"x": SECRET})), ("big", json!({"bytes": 3_000_000}))];
    for (tool, arguments) in &calls {
        let reply = session.call(tool, arguments);
        assert_eq!(reply.refusal(), "policy_failed", "{tool}");
        assert_eq!(
            reply.text(),
            "The tool ran, but its result was withheld because the policy of 'fixture' failed on it."
        );
        assert!(!reply.raw.contains(SECRET) && reply.raw.len() < 1000, "{}", reply.raw);
        assert!(is_sent(&broker, tool));
    }
    let withheld = events(&broker, "result_withheld");
    assert_eq!(withheld.len(), 3, "{withheld:#?}");
    assert!(broker.log().contains("fixture.lua:9: no") && !broker.log().contains(SECRET), "{}", broker.log());
    broker.finish();
}

#[test]
fn a_hook_withholds_with_a_reason_and_cannot_undo_a_redaction() {
    let broker = start(Backend::session("fixture").policy(
        "results = { broker.redact_text { pattern = 'hunter2' } },\non_result = { echo = function(call, result)\nif call.arguments.text == 'login' then result:withhold('a login page') else result.content[1]:set_text('again hunter2') end end },",
    ));
    let session = Session::new(&broker, "fixture");
    let reply = session.call("echo", &json!({"text": "login"}));
    assert_eq!(reply.refusal(), "denied");
    assert_eq!(reply.text(), "The tool ran, but its result was withheld by the policy of 'fixture': a login page");
    check_told(&broker, "result_withheld", "echo", "policies/fixture.lua:8");
    assert_eq!(session.call("echo", &json!({"text": "x"})).text(), "again [redacted]");
    let told = events(&broker, "result_rewritten").pop().expect("both have changed it");
    let by: Vec<&str> = told["rule"].as_str().unwrap().split(", ").collect();
    assert!(by.len() == 2 && by[0].ends_with("fixture.lua:8") && by[1].ends_with("fixture.lua:7"), "{by:?}");
    broker.finish();
}

#[test]
fn a_session_is_shown_as_the_same_word_and_never_as_its_id() {
    let broker = start(Backend::session("fixture").policy(
        "on_call = { echo = function(call) return broker.deny(tostring(call.session) .. ' ' .. (call.client and call.client.name or 'nobody')) end },",
    ));
    let (one, other) = (Session::new(&broker, "fixture"), Session::new(&broker, "fixture"));
    let shown = |session: &Session| session.call("echo", &json!({"text": ""})).text().to_owned();
    assert_eq!(shown(&one), shown(&one));
    assert_ne!(shown(&one), shown(&other));
    assert!(!shown(&one).contains(&one.id) && shown(&one).ends_with(" nobody"), "{}", shown(&one));
    let modern = Modern::new(&broker, "/fixture/s/key/mcp");
    assert!(modern.call("echo", &json!({"text": ""})).text().ends_with(" test"));
    broker.finish();
}

#[test]
fn modern_clients_are_scoped_by_the_policy() {
    let broker = start(Backend::session("fixture").policy(
        "scope_key = function(request)\nfor key in request.meta do assert(not string.find(key, 'modelcontextprotocol')) end\nassert(request.headers['mcp-session-id'] == nil and request.headers['user-agent'] == nil)\nif request.meta.work == 'bad' then error('bad') end\nreturn request.meta.work or request.headers['lazy-mcp-work'] end,",
    ));
    let modern = Modern::new(&broker, "/fixture/mcp");
    let call =
        |work: Value| modern.send("tools/call", &json!({"name": "pid", "arguments": {}, "_meta": {"work": work}}));
    let pid = |work: &str| call(json!(work)).text_json()["pid"].clone();
    let (ann, bob) = (pid("ann"), pid("bob"));
    assert_ne!(ann, bob);
    assert_eq!(pid("ann"), ann);
    let by_header = modern.http.send(&modern.call_request("pid", &json!({})).header("lazy-mcp-work", "ann"));
    assert!(by_header.text().contains(&ann.to_string()), "{}", by_header.text());
    assert_eq!(broker.live_instances("fixture").len(), 2);
    // The same key in the URL or the header is the same instance, and the policy is not asked.
    let named = Modern::new(&broker, "/fixture/s/ann/mcp");
    assert_eq!(named.call("pid", &json!({})).text_json()["pid"], ann);
    let params = json!({"name": "pid", "arguments": {}, "_meta": {"work": "bad"}});
    let in_header = modern.request("tools/call", &params).header("lazy-mcp-scope", "ann");
    assert!(modern.http.send(&in_header).text().contains(&ann.to_string()));
    let none = modern.http.send(&modern.call_request("pid", &json!({})));
    assert_eq!((none.status, none.json()["error"]["code"].as_i64()), (400, Some(-32601)));
    for bad in [json!("bad"), json!("a/b"), json!(7)] {
        let refused = call(bad);
        assert_eq!((refused.response.status, refused.error_code()), (500, -32603), "{}", refused.raw);
        assert_eq!(refused.json()["error"]["data"]["lazy-mcp/error"]["code"], "policy_failed");
    }
    assert_eq!(Session::new(&broker, "fixture").call("pid", &json!({})).refusal(), "");
    assert_eq!(broker.live_instances("fixture").len(), 3);
    broker.finish();
}
