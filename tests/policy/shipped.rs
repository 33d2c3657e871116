//! The policies that come with the broker, against the tools of the packages that they are written for.

use std::path::Path;
use std::time::Duration;

use lazy_mcp_broker::policy::{DriftRule, OnCancel, PayloadKind, Policy, QueueRules, Scope, load};

use crate::{directory_with, shipped};

const PLAYWRIGHT_TOOLS: [&str; 24] = [
    "browser_click",
    "browser_close",
    "browser_console_messages",
    "browser_drag",
    "browser_drop",
    "browser_evaluate",
    "browser_file_upload",
    "browser_fill_form",
    "browser_find",
    "browser_handle_dialog",
    "browser_hover",
    "browser_navigate",
    "browser_navigate_back",
    "browser_network_request",
    "browser_network_requests",
    "browser_press_key",
    "browser_resize",
    "browser_run_code_unsafe",
    "browser_select_option",
    "browser_snapshot",
    "browser_tabs",
    "browser_take_screenshot",
    "browser_type",
    "browser_wait_for",
];

const DEVTOOLS_TOOLS: [&str; 29] = [
    "click",
    "close_page",
    "drag",
    "emulate",
    "evaluate_script",
    "fill",
    "fill_form",
    "get_console_message",
    "get_network_request",
    "handle_dialog",
    "hover",
    "lighthouse_audit",
    "list_console_messages",
    "list_network_requests",
    "list_pages",
    "navigate_page",
    "new_page",
    "performance_analyze_insight",
    "performance_start_trace",
    "performance_stop_trace",
    "press_key",
    "resize_page",
    "select_page",
    "take_heapsnapshot",
    "take_screenshot",
    "take_snapshot",
    "type_text",
    "upload_file",
    "wait_for",
];

const AGENTATION_TOOLS: [&str; 9] = [
    "agentation_acknowledge",
    "agentation_dismiss",
    "agentation_get_all_pending",
    "agentation_get_pending",
    "agentation_get_session",
    "agentation_list_sessions",
    "agentation_reply",
    "agentation_resolve",
    "agentation_watch_annotations",
];

const RECYCLE: OnCancel = OnCancel::Recycle { grace: Duration::from_secs(2) };

#[track_caller]
fn check(policy: &Policy, scope: Scope, idle_seconds: u64, queue_limit: usize, on_cancel: OnCancel, tools: &[&str]) {
    assert_eq!(policy.scope, scope);
    assert_eq!(policy.idle_timeout, Duration::from_secs(idle_seconds));
    assert_eq!(policy.queue, QueueRules { len_max: queue_limit, wait: Duration::from_secs(60) });
    assert_eq!(policy.on_cancel, on_cancel);
    assert_eq!(policy.drift, DriftRule::Refuse);
    assert_eq!(policy.check_names(tools), []);
    assert!(tools.iter().all(|tool| policy.shows(tool)));
    assert!(tools.iter().all(|tool| policy.plan(tool).deadline.is_some()));
}

#[test]
fn scopes_and_limits() {
    check(&shipped("playwright"), Scope::Session, 120, 32, RECYCLE, &PLAYWRIGHT_TOOLS);
    check(&shipped("chrome-devtools"), Scope::Session, 120, 32, RECYCLE, &DEVTOOLS_TOOLS);
    check(
        &shipped("agentation"),
        Scope::Singleton,
        60,
        64,
        OnCancel::Keep { grace: OnCancel::GRACE },
        &AGENTATION_TOOLS,
    );
    assert!(shipped("agentation").max_concurrency > 1);
}

#[test]
fn slow_tools_have_longer_deadlines() {
    let seconds = |policy: &str, tool: &str| shipped(policy).plan(tool).deadline.unwrap().as_secs();
    assert_eq!(seconds("playwright", "browser_click"), 60);
    assert!(seconds("playwright", "browser_wait_for") > 60);
    assert!(seconds("playwright", "browser_navigate") > 60);
    assert!(seconds("chrome-devtools", "performance_start_trace") > 60);
    assert_eq!(seconds("agentation", "agentation_watch_annotations"), 300);
}

#[test]
fn browsers_go_where_developers_work_and_not_into_files() {
    for (policy, tool) in [
        ("playwright", "browser_navigate"),
        ("playwright", "browser_tabs"),
        ("chrome-devtools", "navigate_page"),
        ("chrome-devtools", "new_page"),
    ] {
        let arguments = shipped(policy).plan(tool).arguments;
        let judge = |url: &str| arguments.apply(Some(&serde_json::json!({"url": url}).to_string()));
        for good in [
            "https://example.com/",
            "http://localhost:3000/",
            "http://127.0.0.1:8080/x",
            "http://[::1]/",
            "about:blank",
            "data:text/html,<h1>x</h1>",
        ] {
            assert_eq!(judge(good), Ok(None), "{tool} {good}");
        }
        for bad in [
            "file:///etc/passwd",
            "FILE:/etc/passwd",
            "view-source:file:///etc/passwd",
            "chrome://settings",
            "javascript:alert(1)",
        ] {
            assert!(judge(bad).is_err(), "{tool} {bad}");
        }
        assert_eq!(judge("example.com").is_ok(), policy == "playwright");
        assert_eq!(arguments.apply(Some(r#"{"action":"list"}"#)), Ok(None));
    }
}

#[test]
fn a_watch_ends_before_its_deadline() {
    let arguments = shipped("agentation").plan("agentation_watch_annotations").arguments;
    assert_eq!(arguments.apply(None), Ok(None));
    assert_eq!(arguments.apply(Some(r#"{"timeoutSeconds":300}"#)), Ok(Some(r#"{"timeoutSeconds":230}"#.to_owned())));
}

#[test]
fn secrets_do_not_leave_the_network_tools() {
    for (policy, tools) in [
        ("playwright", &["browser_network_requests", "browser_network_request", "browser_console_messages"][..]),
        (
            "chrome-devtools",
            &["get_network_request", "list_network_requests", "get_console_message", "list_console_messages"],
        ),
    ] {
        for tool in tools {
            let payload = serde_json::json!({
                "content": [
                    {"type": "text", "text": "### Request Headers\n- cookie:sid=s3cret\n- accept:*/*\nset-cookie: a=s3cret\nb=s3cret"},
                    {"type": "text", "text": "[LOG] fetch with Bearer s3cret.s3cret-s3cret"},
                    {"type": "text", "text": "Result: {\"request\":{\"cookies\":[{\"name\":\"sid\",\"value\":\"s3cret\"}]}}"},
                ],
                "structuredContent": {"requestHeaders": {"Authorization": "s3cret"}, "har": [{"name": "X-Api-Key", "value": "s3cret"}]},
            });
            let new =
                shipped(policy).plan(tool).results.apply(&payload.to_string(), PayloadKind::Result).unwrap().unwrap();
            assert!(!new.contains("s3cret"), "{tool}: {new}");
            assert!(new.contains("- accept:*/*"));
        }
    }
    assert!(shipped("playwright").plan("browser_snapshot").results.is_empty());
}

fn policy(text: &str) -> Policy {
    load(
        &directory_with(&format!("return broker.backend {{ api = 1, scope = 'session', {text} }}"))
            .path()
            .join("policy.lua"),
    )
    .unwrap()
}

#[test]
fn exclusions_win_over_allowances() {
    let policy = policy("tools = { allow = { 'a_*', 'b' }, exclude = { 'a_x', '*_y' } }");
    let shown: Vec<&str> =
        ["a_1", "a_x", "a_y", "b", "c", "b_y"].into_iter().filter(|tool| policy.shows(tool)).collect();
    assert_eq!(shown, ["a_1", "b"]);
    assert!(!self::policy("tools = { allow = {} }").shows("a"));
    assert!(self::policy("").shows("a"));
}

#[test]
fn specific_settings_win_over_general_ones() {
    let policy = policy(
        "tools = { settings = {
            abc = { arguments = { x = broker.default(3) } },
            ['ab*'] = { deadline_seconds = 2.5, arguments = { y = broker.default(2) } },
            ['*'] = { deadline_seconds = 1, arguments = { x = broker.default(1), z = broker.default(1) } },
            ['a*'] = { deadline_seconds = 9 },
            ['{abc,x}'] = { arguments = { x = broker.default(9) } },
        } }",
    );
    let plan = policy.plan("abc");
    assert_eq!(plan.deadline, Some(Duration::from_millis(2500)));
    assert_eq!(plan.arguments.apply(None).unwrap().unwrap(), r#"{"x":3,"y":2,"z":1}"#);
    assert_eq!(policy.plan("axx").deadline, Some(Duration::from_secs(9)));
    assert_eq!(policy.plan("x").arguments.apply(None).unwrap().unwrap(), r#"{"x":9,"z":1}"#);
    assert_eq!(self::policy("").plan("x").deadline, None);
}

#[test]
fn names_that_match_no_tool_are_found() {
    let policy = policy(
        "tools = {
            allow = { 'browser_*', 'page_*' }, exclude = { 'browser_clik' },
            settings = { ['*'] = {}, zzz = {} } },
          results = { broker.limit_text { max_bytes = 1, tools = { 'browser_click', 'none_*' } } }",
    );
    let faults = policy.check_names(&["browser_click", "browser_type"]);
    let found: Vec<String> = faults.iter().map(|fault| format!("{}: {}", fault.line.unwrap(), fault.message)).collect();
    insta::assert_snapshot!(found.join("\n"), @r"
    2: 'page_*' in tools.allow matches no tool of the catalog
    2: 'browser_clik' in tools.exclude matches no tool of the catalog (did you mean 'browser_click'?)
    3: 'zzz' in tools.settings matches no tool of the catalog (known: browser_click, browser_type)
    4: 'none_*' in tools of broker.limit_text matches no tool of the catalog
    ");
}

#[test]
fn defaults_hold_where_a_policy_is_silent() {
    let policy = policy("");
    assert_eq!(policy.idle_timeout, Duration::from_secs(120));
    assert_eq!(policy.queue, QueueRules { len_max: 32, wait: Duration::from_secs(60) });
    assert_eq!((policy.max_concurrency, policy.on_cancel, policy.drift), (1, OnCancel::RECYCLE, DriftRule::Refuse));
}

/// What is shipped was looked through: who changes a policy or a catalog accepts it in the same step.
#[test]
fn what_is_shipped_is_accepted() {
    let snapshot = lazy_mcp_broker::snapshot::build(Path::new("config/broker.toml")).unwrap();
    let findings: Vec<String> = snapshot.reviewed.findings().map(ToString::to_string).collect();
    let how = "look through what changed, then `lazy-mcp policy accept --all --by lazy-mcp-broker`";
    assert!(findings.is_empty(), "{how}\n{}", findings.join("\n"));
}
