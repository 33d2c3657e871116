//! What hooks see, what they may answer, and what becomes of those that answer nothing good.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use lazy_mcp_broker::policy::{
    CallFacts, CallVerdict, ClientName, InputSchema, Judged, Policy, RequestFacts, ResultVerdict, ScopeVerdict, load,
};

use crate::directory_with;

/// A policy with these fields, from line 2, and the directory that keeps its file.
#[track_caller]
fn policy(fields: &str) -> (Policy, tempfile::TempDir) {
    let directory = directory_with(&format!("return broker.backend {{ api = 1, scope = 'session',\n{fields}\n}}"));
    (load(&directory.path().join("policy.lua")).unwrap(), directory)
}

fn call(arguments: &str) -> Arc<CallFacts> {
    Arc::new(CallFacts {
        tool: "t".into(),
        arguments: (!arguments.is_empty()).then(|| arguments.to_owned()),
        session: Some("c0ffee".into()),
        client: Some(ClientName { name: "tests".into(), version: "1".into() }),
    })
}

fn judged_call(body: &str, arguments: &str) -> Judged<CallVerdict> {
    let (policy, directory) = policy(&format!("on_call = {{ t = function(call)\n{body}\nend }}"));
    let mut judged = policy.judge_call_blocking(&call(arguments), None);
    let place = format!("{}/", directory.path().display());
    judged.rule = judged.rule.map(|rule| rule.replace(&place, ""));
    judged
}

/// The arguments that are sent: those given, unless they were rewritten.
#[track_caller]
fn check_sent(body: &str, arguments: &str, expected: &str) {
    match judged_call(body, arguments).verdict {
        CallVerdict::Send { arguments: sent, .. } => {
            assert_eq!(sent.as_deref().unwrap_or(arguments), expected, "{body}")
        }
        other => panic!("{body}\n{other:?}"),
    }
}

#[track_caller]
fn check_denied(body: &str, arguments: &str, expected: &str) {
    match judged_call(body, arguments).verdict {
        CallVerdict::Denied { reason } => assert_eq!(reason, expected, "{body}"),
        other => panic!("{body}\n{other:?}"),
    }
}

/// Line 3 is the first of the body.
#[track_caller]
fn check_fails(body: &str, arguments: &str, expected: &str) {
    match judged_call(body, arguments).verdict {
        CallVerdict::Failed(failure) => assert!(failure.to_string().contains(expected), "{body}\n{failure}"),
        other => panic!("{body}\n{other:?}"),
    }
}

#[test]
fn calls_are_allowed_and_denied() {
    for allows in ["", "return nil", "return broker.allow()", "return broker.allow {}"] {
        check_sent(allows, r#"{"a": 1}"#, r#"{"a": 1}"#);
    }
    check_denied("return broker.deny('no ' .. call.arguments.a)", r#"{"a":"\u0041"}"#, "no A");
    let judged = judged_call("local x = 1\nreturn broker.deny('no')", "");
    assert_eq!(judged.rule.as_deref(), Some("policy.lua:4"));
    assert!((1..100).contains(&judged.steps), "{}", judged.steps);
}

#[test]
fn a_call_shows_what_the_broker_knows_and_nothing_else() {
    check_denied(
        "return broker.deny(call.tool .. call.session .. call.client.name .. call.client.version)",
        "",
        "tc0ffeetests1",
    );
    check_denied(
        "local a = call.arguments return broker.deny(a.list[2] .. tostring(a.on) .. tostring(a.none == broker.null) .. #a.empty .. a.n)",
        r#"{"list":[1,"x"],"on":false,"none":null,"empty":[],"n":1e2}"#,
        "xfalsetrue0100",
    );
    check_sent("assert(next(call.arguments) == nil)", "", "");
    check_fails(
        "return call.argumens",
        "",
        "policy.lua:3: unknown field 'argumens' of the call (did you mean 'arguments'?)",
    );
    check_fails("call.arguments.a = 2", r#"{"a":1}"#, "policy.lua:3: attempt to modify a readonly table");
    check_fails("call.tool = 'x'", "", "policy.lua:3:");
    check_fails(
        "local x = call.arguments",
        r#"{"a":1,"\u0061":2}"#,
        "policy.lua:3: call.arguments cannot be shown to the policy: a key occurs twice",
    );
    check_fails("", &format!(r#"{{"a":"{}"}}"#, "x".repeat(256 << 10)), "over the 262144 that hooks see");
    let anonymous = Arc::new(CallFacts { tool: "t".into(), ..CallFacts::default() });
    let (policy, _directory) =
        policy("on_call = { t = function(call) assert(call.session == nil and call.client == nil) end }");
    assert!(matches!(policy.judge_call_blocking(&anonymous, None).verdict, CallVerdict::Send { .. }));
}

#[test]
fn a_patch_touches_what_it_names() {
    let arguments = r#"{ "n" : 1E2, "url":"http:\/\/a", "deep": {"x": [1.0], "y":1} }"#;
    let patch = |patch: &str| format!("return broker.allow {{ arguments = {patch} }}");
    check_sent(&patch("{ url = 'b' }"), arguments, r#"{ "n" : 1E2, "url":"b", "deep": {"x": [1.0], "y":1} }"#);
    check_sent(
        &patch("{ deep = { y = broker.null, z = { true, 'é' } } }"),
        arguments,
        r#"{ "n" : 1E2, "url":"http:\/\/a", "deep": {"x": [1.0],"z":[true,"é"]} }"#,
    );
    check_sent(&patch("{ n = broker.null, url = broker.null, deep = broker.null }"), arguments, "{  }");
    check_sent(&patch("{ a = 1, b = 0.5, c = -2 }"), "", r#"{"a":1,"b":0.5,"c":-2}"#);
    check_sent(
        &patch("{ again = call.arguments.list, none = call.arguments.empty }"),
        r#"{"list":[1,null],"empty":[]}"#,
        r#"{"list":[1,null],"empty":[],"again":[1,null],"none":[]}"#,
    );
    check_sent(&patch("{}"), arguments, arguments);
    check_fails(&patch("{ a = 0/0 }"), "", "policy.lua:3: 'arguments' of broker.allow: a number that is not finite");
    check_fails(&patch("{ a = function() end }"), "", "a function has no meaning in JSON");
    check_fails(&patch("{ a = { 1, x = 2 } }"), "", "a table is a list without gaps, or has names only");
    check_fails(&patch("{ 'x' }"), "", "'arguments' of broker.allow must be a table of names");
    check_fails("local t = {} t.t = t return broker.allow { arguments = t }", "", "nested deeper than 32 levels");
    check_fails(&patch(r"{ a = '\xff' }"), "", "a text that is not UTF-8");
    check_fails(
        "return broker.allow { argument = {} }",
        "",
        "unknown field 'argument' in broker.allow (did you mean 'arguments'?)",
    );
}

#[test]
fn what_is_no_verdict_denies() {
    for (body, got) in [("return true", "a boolean"), ("return {}", "a table"), ("return 'allow'", "a string")] {
        check_fails(
            body,
            "",
            &format!("policy.lua:2: on_call must return broker.allow(…), broker.deny(…) or nothing, got {got}"),
        );
    }
    check_fails("return broker.deny()", "", "policy.lua:3: broker.deny takes a reason of 1 to 1000 bytes, got nil");
    check_fails("return broker.deny('')", "", "takes a reason");
    check_fails("error('oh')", "", "policy.lua:3: oh");
    check_fails("error({})", "", "policy raised an error that is no text");
    // A name that the compiler does not see is found when it is asked for.
    check_fails(
        "local b, name = broker, 'denied' return b[name]('x')",
        "",
        "policy.lua:3: unknown name 'denied' in broker",
    );
    check_fails("return call.arguments.url.host", "", "policy.lua:3: attempt to index nil with 'host'");
    check_fails(
        "return broker.url_rule { schemes = { 'http' } }",
        "",
        "broker.url_rule is for the file itself, not for its hooks",
    );
    check_fails("return broker.import('x')", "", "broker.import is for the file itself");
}

#[test]
fn deadlines_come_from_the_hook_or_the_settings() {
    let deadline = |body: &str| {
        let (policy, _directory) = policy(&format!(
            "tools = {{ settings = {{ t = {{ deadline_seconds = 9 }} }} }}, on_call = {{ t = function() {body} end }}"
        ));
        match policy.judge_call_blocking(&call(""), None).verdict {
            CallVerdict::Send { deadline, .. } => Ok(deadline.unwrap()),
            other => Err(other),
        }
    };
    assert_eq!(deadline(""), Ok(Duration::from_secs(9)));
    assert_eq!(deadline("return broker.allow { deadline_seconds = 0.5 }"), Ok(Duration::from_millis(500)));
    for bad in ["0", "-1", "0/0", "1e9", "'5'"] {
        assert!(deadline(&format!("return broker.allow {{ deadline_seconds = {bad} }}")).is_err(), "{bad}");
    }
}

#[test]
fn rules_come_before_the_hook_and_after_its_patch() {
    let fields = |body: &str| {
        format!(
            "tools = {{ settings = {{ t = {{ arguments = {{\nurl = broker.url_rule {{ schemes = {{ 'https' }} }},\nn = broker.number_rule {{ max = 5, default = 3 }} }} }} }} }},\non_call = {{ t = function(call)\n{body}\nend }}"
        )
    };
    let judge = |body: &str, arguments: &str| {
        let (policy, directory) = policy(&fields(body));
        let judged = policy.judge_call_blocking(&call(arguments), None);
        let place = format!("{}/", directory.path().display());
        (format!("{:?}", judged.verdict).replace(&place, ""), judged.rule.map(|rule| rule.replace(&place, "")))
    };
    let (verdict, rule) = judge("error('is not asked')", r#"{"url":"file:///x"}"#);
    assert!(verdict.starts_with("Denied"), "{verdict}");
    assert_eq!(rule.as_deref(), Some("policy.lua:3"));
    let (verdict, rule) = judge("assert(call.arguments.n == 3)", "{}");
    assert!(verdict.contains(r#"{\"n\":3}"#), "{verdict}");
    assert_eq!(rule.as_deref(), Some("policy.lua:4"));
    let (verdict, rule) = judge("return broker.allow { arguments = { n = 77 } }", r#"{"n":9}"#);
    assert!(verdict.contains(r#"{\"n\":5}"#), "{verdict}");
    assert_eq!(rule.as_deref(), Some("policy.lua:6"));
    let (verdict, _) = judge("\nreturn broker.allow { arguments = { url = 'file:///x' } }", "{}");
    let expected = "what on_call made of the arguments of 't' is denied by policy.lua:3";
    assert!(verdict.contains("line: Some(7)") && verdict.contains(expected), "{verdict}");
}

#[test]
fn rewritten_arguments_must_fit_the_schema() {
    let schema = Arc::new(InputSchema::new(
        r#"{"type":"object","properties":{"n":{"type":"integer"},"s":{"type":"string"}},"required":["n"],"additionalProperties":false}"#,
    ));
    let judge = |patch: &str, arguments: &str| {
        let (policy, _directory) =
            policy(&format!("on_call = {{ t = function() return broker.allow {{ arguments = {patch} }} end }}"));
        match policy.judge_call_blocking(&call(arguments), Some(&schema)).verdict {
            CallVerdict::Send { arguments, .. } => Ok(arguments),
            CallVerdict::Failed(failure) => Err(failure.to_string()),
            CallVerdict::Denied { reason } => panic!("{reason}"),
        }
    };
    assert_eq!(judge("{ n = 2 }", "{}"), Ok(Some(r#"{"n":2}"#.to_owned())));
    // What the client sent is the server's to judge.
    assert_eq!(judge("{}", r#"{"x":1}"#), Ok(None));
    for patch in ["{ n = 'secret' }", "{ n = broker.null }", "{ secret = 1 }"] {
        let failure = judge(patch, r#"{"n":1}"#).unwrap_err();
        assert!(failure.contains("does not fit its inputSchema: see /"), "{failure}");
        assert!(!failure.contains("secret"), "{failure}");
    }
}

#[test]
fn the_most_specific_hook_is_asked_and_no_other() {
    let (policy, _directory) = policy(
        "on_call = { ['*'] = function() return broker.deny('all') end, ['br_*'] = function() return broker.deny('some') end, br_x = function() end }",
    );
    let verdict = |tool: &str| {
        let call = Arc::new(CallFacts { tool: tool.into(), ..CallFacts::default() });
        policy.judge_call_blocking(&call, None).verdict
    };
    assert!(matches!(verdict("br_x"), CallVerdict::Send { .. }));
    assert_eq!(verdict("br_y"), CallVerdict::Denied { reason: "some".into() });
    assert_eq!(verdict("z"), CallVerdict::Denied { reason: "all".into() });
}

#[test]
fn tools_without_a_hook_cost_no_lua() {
    let (policy, _directory) = policy("on_call = { t = function() end }, on_result = { u = function() end }");
    assert!(policy.plan("t").has_on_call() && !policy.plan("t").has_on_result());
    assert!(!policy.plan("u").has_on_call() && policy.plan("u").has_on_result());
    let other = Arc::new(CallFacts { tool: "v".into(), ..CallFacts::default() });
    assert_eq!(policy.judge_call_blocking(&other, None).steps, 0);
}

#[test]
fn names_of_hooks_are_checked_against_the_catalog() {
    let (policy, directory) = policy(
        "tools = { exclude = { 'hidden' } },\non_call = { navgate = function() end,\nhidden = function() end,\nnavigate = function() end },\non_result = { ['x*'] = function() end }",
    );
    let faults: Vec<String> = policy.check_names(&["navigate", "hidden"]).iter().map(ToString::to_string).collect();
    let shown = faults.join("\n").replace(&format!("{}/", directory.path().display()), "");
    insta::assert_snapshot!(shown, @r#"
policy.lua:3: 'navgate' in on_call matches no tool of the catalog (did you mean 'navigate'?)
policy.lua:6: 'x*' in on_result matches no tool of the catalog
policy.lua:4: 'hidden' in on_call is not shown to clients, so its hook never runs
"#);
}

#[test]
fn helpers_judge_urls_and_paths() {
    for holds in [
        "local u = broker.parse_url('HTTPS://A.example:8443/p/../q?x=1#f') assert(u.scheme == 'https' and u.host == 'a.example' and u.port == 8443 and u.path == '/q' and u.query == 'x=1')",
        "local u = broker.parse_url('http://0x7f.1') assert(u.host == '127.0.0.1' and u.port == 80 and u.query == nil)",
        "local u = broker.parse_url('data:text/plain,x') assert(u.scheme == 'data' and u.host == nil and u.port == nil)",
        "assert(broker.parse_url('no url') == nil)",
        "assert(broker.path_is_inside('/w/a/../b', '/w') and not broker.path_is_inside('/w/../x', '/w'))",
    ] {
        check_sent(holds, "", "");
    }
    check_fails("broker.parse_url(nil)", "", "policy.lua:3: broker.parse_url takes text, got nil");
    check_fails("broker.path_is_inside('/a')", "", "broker.path_is_inside takes text, got nil");
}

fn counter(more: &str) -> (Policy, tempfile::TempDir) {
    let directory = directory_with(&format!(
        "local n = 0 seen = 0\nreturn broker.backend {{ api = 1, scope = 'session', {more}\non_call = {{ t = function(call)\nn += 1 seen += 1\nif call.arguments.fail then error('on purpose') end\nreturn broker.deny(n .. '/' .. seen) end }} }}"
    ));
    (load(&directory.path().join("policy.lua")).unwrap(), directory)
}

fn reason(policy: &Policy, arguments: &str) -> Option<String> {
    match policy.judge_call_blocking(&call(arguments), None).verdict {
        CallVerdict::Denied { reason } => Some(reason),
        _ => None,
    }
}

#[test]
fn isolated_calls_share_nothing() {
    let (policy, _directory) = counter("isolate = true,");
    assert!((0..5).all(|_| reason(&policy, "").as_deref() == Some("1/1")));
    let (policy, _directory) = counter("");
    assert!((0..5).all(|_| reason(&policy.isolated(), "").as_deref() == Some("1/1")));
}

#[test]
fn warm_machines_are_kept_until_they_fail_and_serve_one_policy() {
    let (policy, _directory) = counter("");
    let (other, _other_directory) = counter("");
    let reasons: Vec<_> = (0..20).map(|_| reason(&policy, "").unwrap()).collect();
    assert!(reasons.iter().any(|reason| *reason != "1/1"), "no machine was kept: {reasons:?}");
    // Each thread may have one; none has seen the other policy.
    assert_eq!(reason(&other, "").as_deref(), Some("1/1"));
    for _ in 0..10 {
        assert_eq!(reason(&policy, r#"{"fail":true}"#), None);
    }
    assert_eq!(reason(&policy.clone(), "").as_deref(), Some("1/1"));
}

#[test]
fn hooks_run_the_bytes_that_were_loaded() {
    let directory = directory_with(
        "local names = broker.import('names')\nreturn broker.backend { api = 1, scope = 'session', on_call = { t = function() return broker.deny(names.word) end } }",
    );
    let names = directory.path().join("names.lua");
    fs::write(&names, "return { word = 'first' }").unwrap();
    let path = directory.path().join("policy.lua");
    let policy = load(&path).unwrap();
    fs::write(&names, "return { word = 'second' }").unwrap();
    fs::remove_file(&path).unwrap();
    assert_eq!(reason(&policy, "").as_deref(), Some("first"));
    assert_eq!(reason(&policy.isolated(), "").as_deref(), Some("first"));
}

#[test]
fn steps_are_the_same_each_time() {
    let (policy, _directory) = policy("on_call = { t = function(call) for i = 1, 100 do end end }");
    let steps = || policy.isolated().judge_call_blocking(&call(r#"{"a":[1,2,3]}"#), None).steps;
    let first = steps();
    assert!((100..300).contains(&first), "{first}");
    assert!((0..5).all(|_| steps() == first));
}

const RESULT: &str = r#"{"x-n": 1E2, "content": [ {"type":"text","text":"caf\u00e9 secret"} , {"type":"image","data":"iVBORw0=","mimeType":"image/png"}, {"type":"resource_link","uri":"file:\/\/a","name":"n"},{"type":"resource","resource":{"uri":"u","mimeType":"m","text":"inner"}} ], "structuredContent" :{"a":{"b":[ "one", 2 ]},"k.d":true,"z":null}, "isError": true }"#;

fn judged_result(body: &str, payload: &str) -> Judged<ResultVerdict> {
    let (policy, _directory) = policy(&format!("on_result = {{ t = function(call, result)\n{body}\nend }}"));
    policy.judge_result_blocking(&call(r#"{"q":1}"#), Bytes::copy_from_slice(payload.as_bytes()))
}

/// The result with `from` replaced by `to`, and nothing else changed.
#[track_caller]
fn check_result(body: &str, from: &str, to: &str) {
    assert!(from.is_empty() || RESULT.matches(from).count() == 1, "{from}");
    match judged_result(body, RESULT).verdict {
        ResultVerdict::Pass { payload: None } => assert_eq!(from, to, "nothing changed: {body}"),
        ResultVerdict::Pass { payload: Some(payload) } => {
            assert_eq!(payload, RESULT.replacen(from, to, 1), "{body}");
            assert!(serde_json::from_str::<serde_json::Value>(&payload).is_ok());
        }
        other => panic!("{body}\n{other:?}"),
    }
}

#[track_caller]
fn check_withheld(body: &str, payload: &str, expected: &str) {
    match judged_result(body, payload).verdict {
        ResultVerdict::Failed(failure) => assert!(failure.to_string().contains(expected), "{body}\n{failure}"),
        other => panic!("{body}\n{other:?}"),
    }
}

#[test]
fn a_result_shows_its_parts() {
    for holds in [
        "assert(result.is_error and #result.content == 4 and call.arguments.q == 1 and call.tool == 't')",
        "local i = result.content[1] assert(i.type == 'text' and i.text == 'café secret' and i.uri == nil and i.bytes == nil)",
        "local i = result.content[2] assert(i.type == 'image' and i.bytes == 5 and i.mime_type == 'image/png' and i.text == nil)",
        "local i = result.content[3] assert(i.type == 'resource_link' and i.uri == 'file://a' and i.name == 'n')",
        "local i = result.content[4] assert(i.type == 'resource' and i.uri == 'u' and i.mime_type == 'm' and i.text == 'inner')",
        "local n = 0 for _, item in result.content do n += 1 assert(item.type) end assert(n == 4)",
        "assert(result.content[1]:matches([[(?i)SECRET$]]) and not result.content[1]:matches('^secret') and not result.content[2]:matches('.'))",
        "assert(result:get_structured('a.b.1') == 'one' and result:get_structured('a.b.2') == 2 and result:get_structured({'k.d'}) == true)",
        "for _, path in {'a', 'a.b', 'a.b.3', 'a.b.0', 'z', 'k.d', 'x.y', 'a.b.1.c', ''} do assert(result:get_structured(path) == nil, path) end",
    ] {
        check_result(holds, "", "");
    }
}

#[test]
fn an_item_is_judged_by_what_clients_show() {
    let shown = |item: &str, holds: &str| {
        let judged = judged_result(
            &format!("local i = result.content[1] assert({holds})"),
            &format!(r#"{{"content":[{item}]}}"#),
        );
        assert_eq!(judged.verdict, ResultVerdict::Pass { payload: None }, "{item}");
    };
    // A client shows the text of a text item, whatever else is in it.
    shown(
        r#"{"type":"text","text":"outer","resource":{"text":"inner","uri":"u"}}"#,
        "i.text == 'outer' and i.uri == nil",
    );
    shown(r#"{"text":"outer","resource":{"text":"inner"}}"#, "i.text == 'outer' and i.type == nil");
    shown(r#"{"type":"resource","text":"outer","resource":{"uri":"u"}}"#, "i.text == 'outer' and i.uri == 'u'");
    shown(r#"{"type":"resource","text":"outer","resource":1}"#, "i.text == 'outer'");
    for key in ["text", "uri", "mimeType", "data", "blob"] {
        check_withheld(
            "local text = result.content[1].text",
            &format!(r#"{{"content":[{{"type":"resource","{key}":"outer","resource":{{"{key}":"inner"}}}}]}}"#),
            &format!("an item has \"{key}\" beside that of its resource"),
        );
    }
}

#[test]
fn changes_touch_what_they_name() {
    check_result("result.content[1]:set_text('new \"text\"')", r#""caf\u00e9 secret""#, r#""new \"text\"""#);
    check_result("result.content[1]:set_text('café secret')", r"caf\u00e9", "café");
    check_result("result.content[3]:set_uri('https://b')", r#""file:\/\/a""#, r#""https://b""#);
    check_result("result.content[4]:set_text('x') result.content[4]:set_text('y')", r#""inner""#, r#""y""#);
    check_result(
        "local i = result.content[4] i:set_text('x') assert(i.text == 'x' and i:matches('^x$'))",
        r#""inner""#,
        r#""x""#,
    );
    check_result("result.content[2]:remove()", r#" , {"type":"image","data":"iVBORw0=","mimeType":"image/png"}"#, "");
    check_result("result.content[1]:remove()", r#"{"type":"text","text":"caf\u00e9 secret"} , "#, "");
    check_result(
        "result.content[1]:set_text('x') result.content[1]:remove() result.content[2]:remove()",
        r#"{"type":"text","text":"caf\u00e9 secret"} , {"type":"image","data":"iVBORw0=","mimeType":"image/png"}, "#,
        "",
    );
    check_result("assert(result:set_structured('a.b.1', 'two'))", r#""one""#, r#""two""#);
    check_result(
        "assert(result:set_structured('z', 1.5) and result:get_structured('z') == 1.5)",
        r#""z":null"#,
        r#""z":1.5"#,
    );
    check_result(
        "result:set_structured('a.b.1', 'x') assert(result:set_structured('a', false)) assert(result:get_structured('a.b.1') == nil and not result:set_structured('a.b.2', 1))",
        r#"{"b":[ "one", 2 ]}"#,
        "false",
    );
    check_result("assert(not result:set_structured('nowhere', 1))", "", "");
    check_result(
        "result:set_structured('z', 1) result:drop_structured() assert(result:get_structured('z') == nil)",
        r#", "structuredContent" :{"a":{"b":[ "one", 2 ]},"k.d":true,"z":null}"#,
        "",
    );
    let all = judged_result(
        "for _, item in result.content do item:remove() end",
        r#"{"content":[{"type":"text","text":"a"},{}]}"#,
    );
    assert_eq!(all.verdict, ResultVerdict::Pass { payload: Some(r#"{"content":[]}"#.into()) });
    assert!(all.rule.unwrap().ends_with("policy.lua:2"));
}

#[test]
fn hooks_that_fail_withhold() {
    check_withheld("error('oh')", RESULT, "policy.lua:3: oh");
    check_withheld("return true", RESULT, "policy.lua:2: on_result must return nothing");
    check_withheld("return broker.allow()", RESULT, "on_result must return nothing");
    check_withheld(
        "local x = result.contents",
        RESULT,
        "unknown field 'contents' of the result (did you mean 'content'?)",
    );
    check_withheld("local x = result.content[1].txt", RESULT, "unknown field 'txt' of the item (did you mean 'text'?)");
    check_withheld("result.content[2]:set_text('x')", RESULT, "item:set_text: the item has none to change");
    check_withheld("result.content[1]:set_text(nil)", RESULT, "item:set_text takes text, got nil");
    check_withheld("result.content[1]:matches('(')", RESULT, "item:matches: not a valid regular expression");
    check_withheld(
        "result:set_structured('z', {})",
        RESULT,
        "result:set_structured takes a string, a number or a boolean, got table",
    );
    check_withheld("result:get_structured(1)", RESULT, "a path is text");
    check_withheld("result.content[1] = nil", RESULT, "readonly table");
    check_withheld("", "[]", "not JSON that can be judged");
    check_withheld("", r#"{"content":[{"text":"a","\u0074ext":"b"}]}"#, "has the key \"text\" twice");
    check_withheld("", r#"{"content":[],"content":[1]}"#, "has the key \"content\" twice");
    check_withheld("result:get_structured('a')", r#"{"structuredContent":{"a":1,"a":2}}"#, "has the key \"a\" twice");
    check_withheld("", &format!(r#"{{"content":[{}1]}}"#, "1,".repeat(10_000)), "over the 10000 that hooks see");
    let large = format!(r#"{{"content":[{}]}}"#, vec![r#"{"type":"text","text":""}"#; 40].join(","));
    check_withheld(
        "local s = string.rep('x', 1000000) for _, i in result.content do i:set_text(s) end",
        &large,
        "writes at most 16777216 bytes",
    );
}

#[test]
fn a_result_can_be_withheld_with_a_reason() {
    let judged = judged_result("result.content[1]:set_text('x')\nresult:withhold('a login page')", RESULT);
    assert_eq!(judged.verdict, ResultVerdict::Withheld { reason: "a login page".into() });
}

#[test]
fn a_kept_view_shows_nothing_of_an_earlier_result() {
    let directory = directory_with(
        "local kept\nreturn broker.backend { api = 1, scope = 'session', on_result = { t = function(call, result)\nif kept then local t = kept.content end\nkept = result end } }",
    );
    let policy = load(&directory.path().join("policy.lua")).unwrap();
    let verdicts: Vec<_> = (0..10)
        .map(|_| policy.judge_result_blocking(&call(""), Bytes::from_static(RESULT.as_bytes())).verdict)
        .filter(|verdict| matches!(verdict, ResultVerdict::Failed(failure) if failure.to_string().contains("belongs to an earlier call")))
        .collect();
    assert!(!verdicts.is_empty());
}

#[test]
fn rules_run_after_the_hook() {
    let (policy, _directory) = policy(
        "results = { broker.redact_text { pattern = 'secret' } }, on_result = { t = function(_, result) result.content[1]:set_text('a secret again') end }",
    );
    let verdict = policy.judge_result_blocking(&call(""), Bytes::from_static(RESULT.as_bytes())).verdict;
    let ResultVerdict::Pass { payload: Some(payload) } = verdict else { panic!("{verdict:?}") };
    assert!(payload.contains("a [redacted] again") && !payload.contains("secret"), "{payload}");
}

#[test]
fn scope_keys_are_made_of_the_request() {
    let key = |body: &str| {
        let directory =
            directory_with(&format!("return broker.backend {{ api = 1, scope_key = function(request)\n{body}\nend }}"));
        let policy = load(&directory.path().join("policy.lua")).unwrap();
        assert!(policy.has_scope_key());
        policy
            .judge_scope_blocking(RequestFacts {
                method: "tools/call".into(),
                tool: Some("t".into()),
                meta: Some(r#"{"work":"w1"}"#.into()),
                headers: vec![("lazy-mcp-user".into(), "ann".into())],
            })
            .verdict
    };
    let is = |key: &str| ScopeVerdict::Key(key.into());
    assert_eq!(key("return request.meta.work .. '-' .. request.headers['lazy-mcp-user']"), is("w1-ann"));
    assert_eq!(key("return (request.method:gsub('/', '.')) .. request.tool"), is("tools.callt"));
    assert_eq!(key("return request.meta.other"), ScopeVerdict::NoKey);
    for bad in [
        "return ''",
        "return 'a/b'",
        "return 7",
        "return true",
        "error('x')",
        "return string.rep('x', 65)",
        "return '\\xff'",
    ] {
        assert!(matches!(key(bad), ScopeVerdict::Failed(_)), "{bad}");
    }
}

#[tokio::test]
async fn futures_say_the_same() {
    let (policy, _directory) = policy(
        "on_call = { t = function() return broker.deny('no') end }, on_result = { t = function(_, result) result:withhold('w') end }",
    );
    let plan = policy.plan("t");
    assert_eq!(plan.judge_call(call(""), None).await, policy.judge_call_blocking(&call(""), None));
    let payload = Bytes::from_static(RESULT.as_bytes());
    let expected = policy.judge_result_blocking(&call(""), payload.clone());
    assert_eq!(plan.ask_on_result(call(""), payload).await, expected);
    assert_eq!(policy.judge_scope(RequestFacts::default()).await.verdict, ScopeVerdict::NoKey);
}

#[test]
fn arguments_do_not_fit_beside_what_a_policy_keeps() {
    // An empty list takes 48 bytes in Luau, and 16 in the list that it is in.
    let arguments = format!(r#"{{"a":[{}[]]}}"#, "[],".repeat(80_000));
    let body = |kept: u32| {
        format!(
            "local kept = {{}} for i = 1, {kept} do kept[i] = string.rep(i, 1048576 / #tostring(i)) end return broker.deny('' .. #call.arguments.a)"
        )
    };
    check_denied(&body(0), &arguments, "80001");
    check_fails(
        &body(5),
        &arguments,
        "policy.lua:3: call.arguments cannot be shown to the policy: policy used more than its 8 MiB of memory",
    );
}

#[test]
fn a_member_is_not_shown_that_has_no_room() {
    let body = "assert(#(result:get_structured('a') or '') ~= 1)";
    let result = |bytes: usize| format!(r#"{{"content":[],"structuredContent":{{"a":"{}"}}}}"#, "x".repeat(bytes));
    assert_eq!(judged_result(body, &result(1 << 20)).verdict, ResultVerdict::Pass { payload: None });
    match judged_result(body, &result(9 << 20)).verdict {
        ResultVerdict::Failed(failure) => {
            assert!(failure.to_string().contains("policy used more than its 8 MiB of memory"), "{failure}");
        }
        other => panic!("{other:?}"),
    }
}
