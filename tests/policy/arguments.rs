//! What argument rules deny, bound and add, and that they leave the rest of the arguments as the client wrote them.

use lazy_mcp_broker::policy::{ArgumentRules, load};

use crate::directory_with;

fn rules(arguments: &str) -> ArgumentRules {
    let text = format!(
        "return broker.backend {{ api = 1, scope = 'session', tools = {{ settings = {{ t = {{ arguments = {{ {arguments} }} }} }} }} }}"
    );
    load(&directory_with(&text).path().join("policy.lua")).unwrap().plan("t").arguments
}

#[track_caller]
fn check<'a>(rules: &ArgumentRules, arguments: impl Into<Option<&'a str>>, expected: Result<Option<&str>, &str>) {
    let outcome = rules.apply(arguments.into());
    let outcome = outcome.as_ref().map(|new| new.as_deref()).map_err(|denied| denied.reason.as_str());
    assert_eq!(outcome, expected);
}

#[test]
fn no_rules_let_everything_pass() {
    let rules = rules("");
    assert!(rules.is_empty());
    check(&rules, None, Ok(None));
    check(&rules, "[not an object", Ok(None));
}

#[test]
fn defaults_are_added_where_an_argument_is_absent() {
    let rules = rules("type = broker.default('jp\"eg'), full = broker.default(true), n = broker.default(1.5)");
    let added = r#""full":true,"n":1.5,"type":"jp\"eg""#;
    check(&rules, None, Ok(Some(&format!("{{{added}}}"))));
    check(&rules, "null", Ok(Some(&format!("{{{added}}}"))));
    check(&rules, " { } ", Ok(Some(&format!("{{{added} }}"))));
    check(&rules, r#"{ "x" : 1.0 }"#, Ok(Some(&format!(r#"{{ "x" : 1.0,{added} }}"#))));
    check(&rules, r#"{"type":null,"full":1,"n":[]}"#, Ok(None));
    check(&rules, r#"{"t\u0079pe":1,"n":1}"#, Ok(Some(r#"{"t\u0079pe":1,"n":1,"full":true}"#)));
}

#[test]
fn numbers_are_moved_to_the_nearest_bound() {
    let rules = rules("n = broker.number_rule { min = 0, max = 60 }");
    check(&rules, r#"{"n":5}"#, Ok(None));
    check(&rules, r#"{"n":60.0}"#, Ok(None));
    check(&rules, r#"{"n":5e1, "big": 9007199254740993}"#, Ok(None));
    check(&rules, r#"{"n":1e999}"#, Ok(Some(r#"{"n":60}"#)));
    check(&rules, r#"{ "n" : -0.5 , "big": 9007199254740993}"#, Ok(Some(r#"{ "n" : 0 , "big": 9007199254740993}"#)));
    check(&rules, r#"{"n":61,"n":-1}"#, Ok(Some(r#"{"n":60,"n":0}"#)));
    check(&rules, "{}", Ok(None));
    for wrong in ["\"5\"", "null", "true", "[5]", "{}"] {
        check(&rules, format!(r#"{{"n":{wrong}}}"#).as_str(), Err("argument `n` must be a number"));
    }
    let half_open = self::rules("n = broker.number_rule { min = 0.25, default = 5 }");
    check(&half_open, r#"{"n":1e999}"#, Err("argument `n` must be a finite number"));
    check(&half_open, r#"{"n":0}"#, Ok(Some(r#"{"n":0.25}"#)));
    check(&half_open, None, Ok(Some(r#"{"n":5}"#)));
}

#[test]
fn strings_are_measured_and_matched() {
    let rules = rules("s = broker.string_rule { max_bytes = 4, pattern = '^[a-zé]*$', required = true }");
    check(&rules, r#"{"s":"abcd"}"#, Ok(None));
    check(&rules, r#"{"s":"\u0061b"}"#, Ok(None));
    check(&rules, r#"{"s":"abcde"}"#, Err("argument `s` must not be longer than 4 bytes"));
    check(&rules, r#"{"s":"abcé"}"#, Err("argument `s` must not be longer than 4 bytes"));
    check(&rules, r#"{"s":"A"}"#, Err("argument `s` does not match the pattern that the policy asks for"));
    check(&rules, r#"{"s":"a","s":"A"}"#, Err("argument `s` does not match the pattern that the policy asks for"));
    check(&rules, r#"{"s":5}"#, Err("argument `s` must be a string"));
    check(&rules, "{}", Err("argument `s` is required"));
    check(&rules, None, Err("argument `s` is required"));
}

#[test]
fn urls_are_judged_after_decoding() {
    let rules = rules("url = broker.url_rule { schemes = { 'HTTPS' }, private_hosts = 'deny' }");
    check(&rules, r#"{"url":"https://example.com/"}"#, Ok(None));
    check(&rules, r#"{"x":1}"#, Ok(None));
    let scheme = Err("argument `url` must be a URL with the scheme https");
    check(&rules, r#"{"url":"http://example.com/"}"#, scheme);
    check(&rules, r#"{"url":"\u0066ile:///etc/passwd"}"#, scheme);
    check(&rules, r#"{"\u0075rl":"file:///etc/passwd"}"#, scheme);
    check(&rules, r#"{"url":"https://a.b","url":"file:///etc/passwd"}"#, scheme);
    check(
        &rules,
        r#"{"url":"https://127.1/"}"#,
        Err("argument `url` must not lead to a loopback, private or local host"),
    );
    check(&rules, r#"{"url":["https://example.com"]}"#, Err("argument `url` must be a string"));
}

#[test]
fn reasons_keep_values_secret() {
    let rules = rules(
        "u = broker.url_rule { schemes = { 'https' } }, s = broker.string_rule { pattern = '^$' }, n = broker.number_rule {}",
    );
    for arguments in
        [r#"{"u":"s3cret://s3cret"}"#, r#"{"u":"s3cret"}"#, r#"{"s":"s3cret"}"#, r#"{"n":"s3cret"}"#, r#"{"s3cret"}"#]
    {
        let denied = rules.apply(Some(arguments)).unwrap_err();
        assert!(!denied.reason.contains("s3cret"), "{denied}");
    }
}

#[test]
fn arguments_that_are_no_object_are_denied() {
    let rules = rules("n = broker.default(1)");
    for wrong in ["[]", "5", "\"x\"", "", "{", "{\"a\":1", "{} {}", "{\"a\":1,}", "{\"\\q\":1}"] {
        check(&rules, wrong, Err("arguments are not a JSON object"));
    }
}
