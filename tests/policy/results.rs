//! What result rules change, and that they change nothing else. The rules come from Lua, as an operator writes them.

use lazy_mcp_broker::policy::{Acted, PayloadKind, Policy, ResultRules, RuleFailure, load};

use crate::directory_with;

pub fn policy_with(results: &str) -> Policy {
    let text = format!("return broker.backend {{ api = 1, scope = 'session', results = {{ {results} }} }}");
    load(&directory_with(&text).path().join("policy.lua")).unwrap()
}

pub fn rules(results: &str) -> ResultRules {
    policy_with(results).rules_for_all().clone()
}

/// `expected` is the changed payload; `None`: nothing changes.
#[track_caller]
pub fn check<'a>(rules: &ResultRules, payload: &str, expected: impl Into<Option<&'a str>>) {
    check_kind(rules, PayloadKind::Result, payload, expected);
}

#[track_caller]
fn check_kind<'a>(rules: &ResultRules, kind: PayloadKind, payload: &str, expected: impl Into<Option<&'a str>>) {
    let outcome = rules.apply(payload, kind).unwrap();
    if let Some(new) = &outcome {
        serde_json::from_str::<&serde_json::value::RawValue>(new)
            .map(drop)
            .unwrap_or_else(|error| panic!("{error}: {new}"));
    }
    assert_eq!(outcome.as_deref(), expected.into(), "{payload}");
}

#[test]
fn no_rules_are_empty_and_change_nothing() {
    let policy = policy_with("");
    assert!(policy.rules_for_all().is_empty() && policy.plan("x").results.is_empty());
    check(policy.rules_for_all(), "not even JSON", None);
}

#[test]
fn rules_for_some_tools_are_not_for_others() {
    let policy = policy_with(
        "broker.redact_keys { keys = { 'a' }, tools = { 'net_*' } }, broker.redact_keys { keys = { 'b' } }",
    );
    let payload = r#"{"a":1,"b":2}"#;
    check(&policy.plan("net_x").results, payload, r#"{"a":"[redacted]","b":"[redacted]"}"#);
    check(&policy.plan("other").results, payload, r#"{"a":1,"b":"[redacted]"}"#);
    check(policy.rules_for_all(), payload, r#"{"a":1,"b":"[redacted]"}"#);
}

#[test]
fn keys_are_redacted_at_any_depth_in_any_spelling() {
    let rules = rules("broker.redact_keys { keys = { 'cookie', 'pin' } }");
    check(&rules, r#"{"cookie":"a"}"#, r#"{"cookie":"[redacted]"}"#);
    check(&rules, r#"{ "COOKIE" : "a" , "x":1 }"#, r#"{ "COOKIE" : "[redacted]" , "x":1 }"#);
    check(&rules, r#"{"\u0063oo\u006bie":"a"}"#, r#"{"\u0063oo\u006bie":"[redacted]"}"#);
    check(&rules, r#"[[{"x":[{"pin":1234}]}]]"#, r#"[[{"x":[{"pin":"[redacted]"}]}]]"#);
    check(
        &rules,
        r#"{"cookie":"a","cookie":["b"],"Cookie":{"c":{}}}"#,
        r#"{"cookie":"[redacted]","cookie":"[redacted]","Cookie":"[redacted]"}"#,
    );
    check(&rules, r#"{"cookie":null,"pin":false}"#, None);
    check(&rules, r#"{"cookies":"a","xcookie":"b","x":"cookie"}"#, None);
    check(&rules, r#"{"cookie":"[redacted]"}"#, None);
    check(&rules, r#""cookie""#, None);
}

#[test]
fn name_and_value_pairs_are_redacted() {
    let rules = rules("broker.redact_keys { keys = { 'cookie' }, replace_with = '\"#' }");
    check(&rules, r#"[{"name":"Cookie","value":"a"}]"#, r##"[{"name":"Cookie","value":"\"#"}]"##);
    check(
        &rules,
        r#"{"value":{"deep":["a"]},"x":1,"name":"cook\u0069e"}"#,
        r##"{"value":"\"#","x":1,"name":"cook\u0069e"}"##,
    );
    check(
        &rules,
        r#"{"name":"cookie","name":"x","value":"a","value":"b"}"#,
        r##"{"name":"cookie","name":"x","value":"\"#","value":"\"#"}"##,
    );
    check(&rules, r#"{"name":"accept","value":"a"}"#, None);
    check(&rules, r#"{"name":"cookie","value":null}"#, None);
    check(&rules, r#"{"name":"cookie","inner":{"value":"a"}}"#, None);
    check(&rules, r#"{"value":{"cookie":"a"}}"#, r##"{"value":{"cookie":"\"#"}}"##);
    check(&rules, r#"{"value":{"cookie":"a"},"name":"cookie"}"#, r##"{"value":"\"#","name":"cookie"}"##);
}

#[test]
fn json_inside_texts_is_redacted() {
    let all = rules("broker.redact_keys { keys = { 'cookie' } }");
    let text = |text: &str| serde_json::json!({"content": [{"type": "text", "text": text}]}).to_string();
    let check_text = |before: &str, after: &str| {
        check(&all, &text(before), (before != after).then(|| text(after)).as_deref());
    };
    check_text(r#"{"cookie":"a"}"#, r#"{"cookie":"[redacted]"}"#);
    check_text(r#" [1, {"headers": {"Cookie" : "a"}}] "#, r#" [1, {"headers": {"Cookie" : "[redacted]"}}] "#);
    check_text("### Result\n{ \"cookie\": [1] }\n### Code", "### Result\n{ \"cookie\": \"[redacted]\" }\n### Code");
    check_text(
        r#"[LOG] {"cookie":"a"} @ x {"cookie":"b"}"#,
        r#"[LOG] {"cookie":"[redacted]"} @ x {"cookie":"[redacted]"}"#,
    );
    check_text(r#"{"name":"cookie","value":"a"}"#, r#"{"name":"cookie","value":"[redacted]"}"#);
    check_text(r#"{"body":"{\"cookie\":\"a\"}"}"#, r#"{"body":"{\"cookie\":\"[redacted]\"}"}"#);
    // What breaks off is redacted as far as it goes.
    check_text(r#"{"cookie":"a... <truncated>"#, r#"{"cookie":"[redacted]""#);
    check_text(r#"{"x":{"value":["a","#, r#"{"x":{"value":["a","#);
    check_text(r#"{"x":{"name":"cookie","value":["a","#, r#"{"x":{"name":"cookie","value":"[redacted]""#);
    check_text(
        r#"{"a":1,"cookie":"b",oops {"cookie":"c"}"#,
        r#"{"a":1,"cookie":"[redacted]",oops {"cookie":"[redacted]"}"#,
    );
    check_text(r#"he said {"hello} and {"cookie":"a"}"#, r#"he said {"hello} and {"cookie":"[redacted]"}"#);
    check_text(r#"{"x":1} {y} {} { "z" }"#, r#"{"x":1} {y} {} { "z" }"#);
    let flat = rules("broker.redact_keys { keys = { 'cookie' }, parse_json_text = false }");
    check(&flat, &text(r#"{"cookie":"a"}"#), None);
}

/// Each of the nested objects could be read to the far end before it turns out to be broken.
#[test]
fn a_hostile_text_does_not_make_the_work_quadratic() {
    let rules = rules("broker.redact_keys { keys = { 'cookie' } }");
    let time = |text: &str| {
        let payload = serde_json::json!([text]).to_string();
        let started = std::time::Instant::now();
        rules.apply(&payload, PayloadKind::Result).unwrap();
        started.elapsed()
    };
    let tail = "1,".repeat(400_000);
    let plain = time(&format!("{}{tail}", r#"{"a":["#));
    let hostile = time(&format!("{}{tail}", r#"{"a":["#.repeat(60)));
    assert!(hostile < plain * 25, "{plain:?} {hostile:?}");
    for piece in [
        r#"{"a":["#,
        r#"{"a":"#,
        r#"{"a"#,
        "{\"",
        r#"{"a":1,"#,
        r#"[{"a":"x"},"#,
        "{",
        "cookie:",
        "cookie: \"",
        "'cookie:",
    ] {
        assert!(time(&piece.repeat(50_000)).as_secs() < 20, "{piece}");
    }
}

#[test]
fn texts_are_matched_after_decoding() {
    let rules = rules(r"broker.redact_text { pattern = [[(?i)(bearer) [a-z0-9]+]], replace_with = '$1 #' }");
    check(
        &rules,
        r#"{"content":[{"type":"text","text":"x Bearer abc y"}]}"#,
        r##"{"content":[{"type":"text","text":"x Bearer # y"}]}"##,
    );
    check(
        &rules,
        r#"{"structuredContent":{"a":["\u0042earer\u0020abc"]}}"#,
        r##"{"structuredContent":{"a":["Bearer #"]}}"##,
    );
    check(&rules, r#"{"a":"caf\u00e9","b":"Bearer a\n\"x\""}"#, r##"{"a":"caf\u00e9","b":"Bearer #\n\"x\""}"##);
    check(
        &rules,
        r#"{"a":"half \ud83d","b":"half \ud83d Bearer a"}"#,
        "{\"a\":\"half \\ud83d\",\"b\":\"half \u{fffd} Bearer #\"}",
    );
    check(&rules, r#"{"Bearer abc":1}"#, None);
    check(&rules, r#"{"_meta":{"type":"Bearer a"}}"#, r##"{"_meta":{"type":"Bearer #"}}"##);
    check(
        &rules,
        r#"{"content":[{"type":"resource","resource":{"uri":"x:Bearer a","text":"Bearer a"}}]}"#,
        r##"{"content":[{"type":"resource","resource":{"uri":"x:Bearer #","text":"Bearer #"}}]}"##,
    );
}

#[test]
fn words_of_the_protocol_and_bytes_are_no_text() {
    let rules = rules("broker.redact_text { pattern = '[a-z]+', replace_with = '#' }");
    for kept in [
        r#"{"type":"image","mimeType":"image/png","data":"abcd"}"#,
        r#"{"data":"abcd","type":"audio"}"#,
        r#"{"contents":[{"mimeType":"x","blob":"abcd"}]}"#,
        r#"{"messages":[{"role":"user"}],"nextCursor":"abc"}"#,
        r#"{"resultType":"input_required","inputRequests":{"a":{"method":"roots/list"}},"requestState":"abc"}"#,
    ] {
        check(&rules, kept, None);
    }
    check(&rules, r#"{"type":"text","data":"abcd"}"#, r##"{"type":"text","data":"#"}"##);
    check(&rules, r#"{"type":"image","data":"abcd","type":"text"}"#, r##"{"type":"image","data":"#","type":"text"}"##);
    check(
        &rules,
        r#"{"structuredContent":{"type":"image","data":"abcd","role":"x"}}"#,
        r##"{"structuredContent":{"type":"#","data":"#","role":"#"}}"##,
    );
    check_kind(
        &rules,
        PayloadKind::Params,
        r#"{"level":"info","progressToken":"a","data":"b"}"#,
        r##"{"level":"info","progressToken":"a","data":"#"}"##,
    );
    check_kind(
        &rules,
        PayloadKind::Error,
        r#"{"code":-32000,"message":"a","data":{"type":"b"}}"#,
        r##"{"code":-32000,"message":"#","data":{"type":"#"}}"##,
    );
}

#[test]
fn rules_over_texts_run_in_order() {
    let rules = rules(
        "broker.redact_text { pattern = 'a', replace_with = 'bb' }, broker.redact_text { pattern = 'b+', replace_with = 'c' },
         broker.limit_text { max_bytes = 3, note = 'cut' }",
    );
    check(&rules, r#"{"text":"xaaxyz"}"#, r#"{"text":"xcx\n[cut]"}"#);
}

#[test]
fn long_texts_are_cut_at_a_character() {
    let rules = rules("broker.limit_text { max_bytes = 5, note = 'cut' }");
    check(&rules, r#"{"text":"12345"}"#, None);
    check(&rules, r#"{"text":"123456"}"#, r#"{"text":"12345\n[cut]"}"#);
    check(&rules, r#"{"text":"1234é"}"#, r#"{"text":"1234\n[cut]"}"#);
    check(&rules, r#"{"text":"\u0031\u0032345"}"#, None);
    check(
        &rules,
        r#"{"content":[{"type":"resource","resource":{"text":"1234567"}}]}"#,
        r#"{"content":[{"type":"resource","resource":{"text":"12345\n[cut]"}}]}"#,
    );
    check(&rules, r#"{"structuredContent":{"text":"1234567"},"description":"1234567"}"#, None);
}

#[test]
fn uris_are_rewritten_by_prefix() {
    let rules = rules("broker.rewrite_uri { from_prefix = 'file:///out/', to_prefix = 'http://h/' }");
    let link = |uri: &str| format!(r#"{{"content":[{{"uri":"{uri}","type":"resource_link"}}]}}"#);
    let embedded = |uri: &str| format!(r#"{{"content":[{{"resource":{{"uri":"{uri}"}},"type":"resource"}}]}}"#);
    for item in [&link as &dyn Fn(&str) -> String, &embedded] {
        check(&rules, &item("file:///out/a.png"), item("http://h/a.png").as_str());
        check(&rules, &item(r"file:\u002f\/\/out/a"), item("http://h/a").as_str());
        check(&rules, &item("file:///other/a"), None);
        for climbing in ["../a", "x/../../a", "x/%2E%2e/a", "..", "x%2f../a", "..\\\\a"] {
            check(&rules, &item(&format!("file:///out/{climbing}")), None);
        }
        check(&rules, &item("file:///out/a..b"), item("http://h/a..b").as_str());
    }
    check(
        &rules,
        r#"{"uri":"file:///out/a","structuredContent":{"type":"resource_link","uri":"file:///out/a"}}"#,
        None,
    );
    check(
        &rules,
        r#"{"type":"resource_link","uri":"file:///out/a","uri":"file:///out/b"}"#,
        r#"{"type":"resource_link","uri":"http://h/a","uri":"http://h/b"}"#,
    );
}

#[test]
fn items_with_foreign_uris_are_dropped() {
    let rules = rules(
        "broker.rewrite_uri { from_prefix = 'a:', to_prefix = 'b:', otherwise = 'drop', content_types = { 'resource_link' } }",
    );
    let keep = r#"{"type":"resource_link","uri":"a:1"}"#;
    let kept = r#"{"type":"resource_link","uri":"b:1"}"#;
    let drop = r#"{"type":"resource_link","uri":"x:1"}"#;
    let text = r#"{"type":"text","text":"t"}"#;
    let list = |items: &[&str]| format!(r#"{{"content":[ {} ]}}"#, items.join(" , "));
    check(&rules, &list(&[keep, drop, text]), list(&[kept, text]).as_str());
    check(&rules, &list(&[drop, drop, keep, drop, drop]), list(&[kept]).as_str());
    check(&rules, &list(&[drop, text, drop, text]), list(&[text, text]).as_str());
    check(&rules, &list(&[drop]), r#"{"content":[  ]}"#);
    check(&rules, &list(&[drop, drop]), r#"{"content":[  ]}"#);
    check(
        &rules,
        r#"{"messages":[{"content":{"uri":"x:1","type":"resource_link"}}]}"#,
        r#"{"messages":[{"content":{"type":"text","text":"[removed by policy]"}}]}"#,
    );
    check(&rules, r#"{"content":[{"type":"resource","resource":{"uri":"x:1"}}]}"#, None);
}

#[test]
fn the_first_prefix_that_fits_wins() {
    let rules = rules(
        "broker.rewrite_uri { from_prefix = 'a:', to_prefix = 'x:' },
         broker.rewrite_uri { from_prefix = 'b:', to_prefix = 'y:', otherwise = 'drop' }",
    );
    let payload = r#"[{"type":"resource_link","uri":"a:1"},{"type":"resource_link","uri":"b:1"},{"type":"resource_link","uri":"c:1"}]"#;
    check(&rules, payload, r#"[{"type":"resource_link","uri":"x:1"},{"type":"resource_link","uri":"y:1"}]"#);
}

#[test]
fn what_is_not_json_is_never_passed_on() {
    let rules = rules("broker.redact_keys { keys = { 'cookie' } }, broker.redact_text { pattern = 'x' }");
    for broken in [
        "",
        "{",
        r#"{"a":1"#,
        r#"{"a":1}}"#,
        "[1,]",
        r#"{"a" 1}"#,
        r#"{"a":"\x"}"#,
        r#"{"\q":1}"#,
        "nul",
        "[1] 2",
        r#"{"cookie":"#,
        r#"{"cookie":[}"#,
    ] {
        let failure = rules.apply(broken, PayloadKind::Result).unwrap_err();
        assert!(matches!(failure, RuleFailure::NotJson { .. }), "{broken}: {failure}");
    }
    let deep = format!("{}{}", "[".repeat(500), "]".repeat(500));
    assert!(matches!(rules.apply(&deep, PayloadKind::Result), Err(RuleFailure::TooDeep { .. })));
}

/// The lines of the rules that acted, by their last figures.
#[track_caller]
fn check_acted(rules: &ResultRules, payload: &str, lines: &[&str]) {
    let mut acted = Acted::default();
    let outcome = rules.apply_telling(payload, PayloadKind::Result, &mut |_| None, &mut acted).unwrap();
    assert_eq!(outcome.is_some(), !lines.is_empty(), "{payload}");
    let places: Vec<&str> = rules.places(acted).map(|place| place.rsplit_once(':').unwrap().1).collect();
    assert_eq!(places, lines, "{payload}");
}

#[test]
fn each_rule_that_acts_is_told_by_its_line() {
    let rules = rules(
        "\nbroker.redact_keys { keys = { 'cookie' } },\nbroker.redact_headers_in_text { names = { 'x-key' } },\nbroker.redact_text { pattern = 'secret' },\nbroker.limit_text { max_bytes = 40 },\nbroker.rewrite_uri { from_prefix = 'file:', to_prefix = 'x:', otherwise = 'drop' },\nbroker.image_to_link { when_bytes_over = 1 },\nbroker.redact_keys { keys = { 'token' } },\n",
    );
    let text = |text: &str| format!(r#"{{"content":[{{"type":"text","text":{}}}]}}"#, serde_json::Value::from(text));
    check_acted(&rules, &text("nothing"), &[]);
    check_acted(&rules, r#"{"structuredContent":{"cookie":"x"}}"#, &["2"]);
    check_acted(&rules, r#"{"structuredContent":[{"name":"token","value":"x"}]}"#, &["8"]);
    check_acted(&rules, &text(r#"{"cookie":"x"}"#), &["2"]);
    check_acted(&rules, &text("x-key: 1 and a secret"), &["3"]);
    check_acted(&rules, &text("a secret"), &["4"]);
    check_acted(&rules, &text(&"secret ".repeat(20)), &["4", "5"]);
    for uri in ["file:a", "https://a"] {
        check_acted(&rules, &format!(r#"{{"content":[{{"type":"resource_link","uri":"{uri}"}}]}}"#), &["6"]);
    }
    check_acted(&rules, r#"{"content":[{"type":"image","data":"iVBORw0K"}]}"#, &["7"]);
    check_acted(
        &rules,
        r#"{"a":{"cookie":"x","token":"y"},"content":[{"type":"text","text":"secret"}]}"#,
        &["2", "4", "8"],
    );
}
