//! Header lines in running text, as the shipped servers and common tools print them.

use lazy_mcp_broker::policy::PayloadKind;

use crate::results::rules;

const RULE: &str =
    "broker.redact_headers_in_text { names = { 'cookie', 'set-cookie', 'authorization' }, replace_with = '#' }";

#[track_caller]
fn check(before: &str, after: &str) {
    let payload = |text: &str| serde_json::json!({"content": [{"type": "text", "text": text}]}).to_string();
    let outcome = rules(RULE).apply(&payload(before), PayloadKind::Result).unwrap();
    let expected = (before != after).then(|| payload(after));
    assert_eq!(outcome, expected, "{before}");
}

#[test]
fn lines_and_lists() {
    check("cookie: a=b", "cookie: #");
    check("Cookie:a=b; c=d\r\nhost: x", "Cookie:#\r\nhost: x");
    check("- cookie:a=b\n- accept:*/*", "- cookie:#\n- accept:*/*");
    check("> Authorization: Bearer x\n> accept: y", "> Authorization: #\n> accept: y");
    check("  * set-cookie :  a  \n", "  * set-cookie :  #  \n");
    check("x\nCOOKIE: a", "x\nCOOKIE: #");
    check("**Cookie:** a", "**Cookie:#");
    check("`cookie`: a", "`cookie`: #");
    check("cookie:\naccept: x", "cookie:\naccept: x");
}

#[test]
fn only_whole_names_count() {
    for kept in [
        "x-cookie: a",
        "cookies: a",
        "cookie a",
        "cookie",
        ":",
        "a:b",
        "cookie2: a",
        "mycookie : a",
        "See cookie policy: x",
    ] {
        check(kept, kept);
    }
}

#[test]
fn quoted_keys_and_values() {
    check(r#"{"cookie": "a=b", "x": 1}"#, r##"{"cookie": "#", "x": 1}"##);
    check(r#"{'cookie':'a', 'x': 1}"#, r##"{'cookie':'#', 'x': 1}"##);
    check(r#"{"cookie": "a\"b", "x": 1}"#, r##"{"cookie": "#", "x": 1}"##);
    check(r#"{"cookie": "a\\", "x": 1}"#, r##"{"cookie": "#", "x": 1}"##);
    check(r#"{\"cookie\": \"a\\\"b\", \"x\": 1}"#, r##"{\"cookie\": \"#\", \"x\": 1}"##);
    check("{\"cookie\": \"a\nb\", \"x\": 1}", "{\"cookie\": \"#\", \"x\": 1}");
    check("{\"set-cookie\": [\n  \"a]\",\n  \"b\"\n], \"x\": 1}", "{\"set-cookie\": #, \"x\": 1}");
    check("{\"set-cookie\": [\n  \"a\", ... <truncated>", "{\"set-cookie\": #");
    check("{\"cookie\": \"a ... <truncated>\nmore", "{\"cookie\": \"#");
    check("{ cookie: 'a', x: 1 }", "{ cookie: '#', x: 1 }");
    check("{\"cookie\": \"\", \"x\": 1}", "{\"cookie\": \"\", \"x\": 1}");
}

#[test]
fn quotation_marks_inside_values() {
    check("cookie: \"a\"; b=c", "cookie: #");
    check("cookie: a=\"b\"; c=d", "cookie: #");
    check("sent \"Cookie: a=\"b\"; c=d\" twice", "sent \"Cookie: #\" twice");
    check("cookie: \"a\nhost: x", "cookie: #\nhost: x");
    check("cookie: \"a\" b=c", "cookie: #");
    check("set-cookie: \"a\"; x\nb=c", "set-cookie: #");
}

#[test]
fn command_lines() {
    check("curl -H 'Cookie: a=b' -H 'x: y' http://h", "curl -H 'Cookie: #' -H 'x: y' http://h");
    check(r#"curl -H "Authorization: Bearer \"x\"" http://h"#, r#"curl -H "Authorization: #" http://h"#);
    check("curl -H 'Cookie: a=b\nrest", "curl -H 'Cookie: #\nrest");
}

#[test]
fn values_over_several_lines() {
    check(
        "set-cookie: a=1; Path=/\nb=2; Expires=Wed, 21 Oct 2015 07:28:00 GMT\nc=3\nserver: x",
        "set-cookie: #\nserver: x",
    );
    check("- set-cookie:a=1\nb=2; Path=/\n### Response Body\nx=1", "- set-cookie:#\n### Response Body\nx=1");
    check("    set-cookie: a=1\nb=2\n    server: x", "    set-cookie: #\n    server: x");
    check("authorization: Digest a,\n  b=c\nhost: x", "authorization: #\nhost: x");
    check("authorization: x\nb=c", "authorization: #\nb=c");
    check("cookie: |\n  a=b\n  c=d\nx: 1", "cookie: #\nx: 1");
    check("set-cookie:\n  - a=1\n  - b=2\nx: 1", "set-cookie:#\nx: 1");
    check("cookie: a\n\nText = more", "cookie: #\n\nText = more");
    check("cookie: a\n- link \"x\" = 1", "cookie: #\n- link \"x\" = 1");
}

#[test]
fn several_headers() {
    check("cookie: a\nauthorization: b\ncookie: c", "cookie: #\nauthorization: #\ncookie: #");
}

/// `get_network_request` of chrome-devtools-mcp 1.8.0.
#[test]
fn as_chrome_devtools_prints_them() {
    check(
        "## Request http://h/\nStatus: 200\n### Request Headers\n- cookie:sid=1; t=2\n- user-agent:x\n### Response Headers\n- set-cookie:sid=1; Path=/\nt=2\n- date:Mon, 01 Jan 2024 00:00:00 GMT\n### Response Body\n{\"a\":1}",
        "## Request http://h/\nStatus: 200\n### Request Headers\n- cookie:#\n- user-agent:x\n### Response Headers\n- set-cookie:#\n- date:Mon, 01 Jan 2024 00:00:00 GMT\n### Response Body\n{\"a\":1}",
    );
}

/// `browser_network_request` of @playwright/mcp 0.0.79.
#[test]
fn as_playwright_prints_them() {
    check(
        "#1 [GET] http://h/\n\n  General\n    status:    [200] OK\n\n  Request headers\n    cookie: sid=1\n    accept: */*\n\n  Response headers\n    set-cookie: a=1\nb=2\n    x: y\n",
        "#1 [GET] http://h/\n\n  General\n    status:    [200] OK\n\n  Request headers\n    cookie: #\n    accept: */*\n\n  Response headers\n    set-cookie: #\n    x: y\n",
    );
}
