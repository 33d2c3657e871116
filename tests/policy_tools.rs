//! `lazy-mcp policy …` as an operator meets it: what is checked, tested, explained and accepted is what would run.

#![expect(clippy::unwrap_used, reason = "a helper that fails, fails its test")]

mod support;

use std::path::PathBuf;

use insta::assert_snapshot;
use serde_json::{Value, json};
use support::cli::{Run, run};
use support::processes::Table;
use support::{Backend, Session, Setup};
use tempfile::TempDir;

const RULES: &str = r#"
  tools = {
    exclude = { "crash" },
    settings = { echo = { deadline_seconds = 7, arguments = { text = broker.string_rule { max_bytes = 5 } } } },
  },
  results = { broker.redact_keys { keys = { "secret" } } },
"#;

/// A folder with one backend, `fixture`, whose policy starts at line 1 and has `RULES` from line 7.
fn folder() -> TempDir {
    Setup::new().known_port().backend(Backend::singleton("fixture").policy(RULES)).write_whole()
}

fn path(dir: &TempDir, file: &str) -> PathBuf {
    dir.path().join(file)
}

fn write(dir: &TempDir, file: &str, text: &str) {
    let path = path(dir, file);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
}

fn edit(dir: &TempDir, file: &str, from: &str, to: &str) {
    let text = std::fs::read_to_string(path(dir, file)).unwrap();
    assert!(text.contains(from), "{from} in {text}");
    write(dir, file, &text.replace(from, to));
}

#[track_caller]
fn policy(dir: &TempDir, args: &[&str]) -> Run {
    let args: Vec<&str> = ["policy"].iter().chain(args).copied().collect();
    let run = run(&path(dir, "config/broker.toml"), &args);
    assert!(Table::read().mentioning(dir.path().to_str().unwrap()).is_empty(), "{args:?} left something running");
    run
}

/// What a run said, without where the folder is.
fn said(dir: &TempDir, run: &Run) -> String {
    let place = format!("{}/", dir.path().display());
    let text = format!("exit {}\n{}{}", run.code.unwrap_or(-1), run.stdout, run.stderr);
    let text = text.replace(&format!("{place}config/../"), "").replace(&place, "");
    // Digests and times differ from one run to the next where the folder's name is in the files.
    let words = text.split_inclusive([' ', '\n']).map(|word| match word.trim_end().trim_end_matches([',', ')']) {
        hex if hex.len() == 8 && hex.bytes().all(|c| c.is_ascii_hexdigit()) => word.replace(hex, "########"),
        _ => word.to_owned(),
    });
    words.collect()
}

#[test]
fn check_says_what_a_policy_is() {
    let dir = folder();
    let run = policy(&dir, &["check"]);
    let text = said(&dir, &run);
    let steps = text.split("loaded in ").nth(1).and_then(|text| text.split(' ').next()).unwrap_or_default();
    assert!(steps.parse::<u32>().is_ok_and(|steps| steps > 0), "{text}");
    let facts = policy(&dir, &["check", "fixture", "--json"]).json();
    assert_eq!((&facts["ok"], &facts["backends"][0]["policy"]["reviewed"]), (&json!(true), &json!(false)));
    assert_eq!(facts["backends"][0]["policy"]["files"].as_array().map(Vec::len), Some(1));
}

#[test]
fn check_finds_names_in_functions_and_tools_that_do_not_exist() {
    let dir = folder();
    edit(&dir, "policies/fixture.lua", "\"crash\"", "\"crsh\"");
    let run = policy(&dir, &["check"]);
    assert_eq!(run.code, Some(3));
    assert!(run.stderr.contains("fixture.lua:9: 'crsh' in tools.exclude matches no tool of the catalog"), "{run:#?}");
    edit(&dir, "policies/fixture.lua", "return broker", "local function later() return deny() end\nreturn broker");
    let run = policy(&dir, &["check", "--json"]);
    let errors = run.json()["backends"][0]["errors"].clone();
    assert_eq!((run.code, &errors[0]["line"]), (Some(3), &json!(1)));
    assert!(errors[0]["message"].as_str().unwrap().starts_with("unknown name 'deny'"), "{errors}");
}

const TESTS: &str = r#"local policy = broker.load_policy("fixture")
return {
  test_passes = function()
    expect.equal(policy.scope, "singleton")
    expect.hidden(policy, "crash")
    local call = policy:call { tool = "echo", arguments = { text = "short" } }
    expect.allowed(call)
    expect.equal(call.deadline_seconds, 7)
    expect.redacted(policy:result { tool = "echo", fixture = "fixtures/secret.json" }, "s3cret")
  end,
  test_fails = function()
    expect.allowed(policy:call { tool = "echo", arguments = { text = "too long" } })
  end,
  test_breaks = function()
    local nothing = nil
    return nothing.at_all
  end,
}
"#;

fn with_tests() -> TempDir {
    let dir = folder();
    write(&dir, "policies/tests/test_fixture.lua", TESTS);
    write(
        &dir,
        "policies/tests/fixtures/secret.json",
        r#"{"content":[],"structuredContent":{"secret":"s3cr\u0065t"}}"#,
    );
    dir
}

#[test]
fn failing_tests_say_where_and_what() {
    let dir = with_tests();
    let run = policy(&dir, &["test"]);
    assert_snapshot!(said(&dir, &run), @r#"
exit 1
ok    test_fixture.lua test_passes (22 steps)
FAIL  test_fixture.lua test_fails (9 steps)
      policies/tests/test_fixture.lua:12: expected the call to be allowed, but: argument `text` must not be longer than 5 bytes
FAIL  test_fixture.lua test_breaks (4 steps)
      policies/tests/test_fixture.lua:16: attempt to index nil with 'at_all'
policy test: 1 passed, 2 failed
"#);
}

#[test]
fn tests_are_chosen_by_name_and_reported_for_machines() {
    let dir = with_tests();
    let report = path(&dir, "junit.xml");
    let run = policy(&dir, &["test", "test_passes", "--json", "--coverage", "--junit", report.to_str().unwrap()]);
    assert_eq!(run.code, Some(0), "{run:#?}");
    let facts = run.json();
    assert_eq!(facts["tests"].as_array().map(Vec::len), Some(1));
    let coverage = &facts["coverage"][0];
    assert!(coverage["untested"].as_array().is_some_and(|tools| !tools.contains(&json!("echo")) && !tools.is_empty()));
    let xml = std::fs::read_to_string(report).unwrap();
    assert!(xml.contains("tests=\"1\" failures=\"0\"") && xml.contains("name=\"test_passes\""), "{xml}");
    let run = policy(&dir, &["test", "test_f", "--junit", path(&dir, "junit.xml").to_str().unwrap()]);
    assert_eq!(run.code, Some(1));
    let xml = std::fs::read_to_string(path(&dir, "junit.xml")).unwrap();
    assert!(xml.contains("test_fixture.lua:12: expected the call to be allowed") && !xml.contains("`\"text"), "{xml}");
    let run = policy(&dir, &["test", "no_such"]);
    assert!(run.code == Some(1) && run.stderr.contains("no test with 'no_such'"), "{run:#?}");
}

/// Each claim holds of one thing and not of the other, and the message says what was found.
#[test]
fn every_claim_can_fail() {
    let dir = folder();
    let claims = [
        ("expect.equal({ a = { 1, 2 } }, { a = { 1, 3 } })", "expected { a = { 1, 3 } }, got { a = { 1, 2 } }"),
        ("expect.contains('abc', 'x')", "expected a text with \"x\", got abc"),
        ("expect.denied(p:call { tool = 'sleep' })", "expected the call to be denied, but it is allowed"),
        ("expect.denied(p:call { tool = 'crash' }, 'scheme')", "which is \"Unknown tool: crash\""),
        ("expect.hidden(p, 'echo')", "expected `echo` to be hidden, but clients see it"),
        ("expect.visible(p, 'crash')", "clients do not see it"),
        ("expect.withheld(r('{}'))", "expected the result to be withheld, but the client gets it"),
        ("expect.same_bytes(r('{\"secret\":1}'))", "expected the bytes of the server, got {\"secret\":\"[redacted]\"}"),
        ("expect.redacted(r('{\"other\":\"s3\"}'), 's3')", "expected \"s3\" to be gone"),
        ("expect.redacted(r('{}'), 's3')", "so this shows nothing"),
        ("expect.allowed(1)", "expect.allowed takes what policy:call gave, got number"),
        ("expect.allow(1)", "unknown name 'allow' in expect"),
        ("p:call { tol = 'x' }", "'tool' must be the name of a tool"),
        ("p:call { tool = 'echo', argument = {} }", "did you mean 'arguments'?"),
        ("p:call { tool = 'ecoh' }", "the catalog of `fixture` has no tool 'ecoh' (did you mean 'echo'?)"),
        ("p:result { tool = 'ecoh', json = '{}' }", "has no tool 'ecoh' (did you mean 'echo'?)"),
        ("expect.hidden(p, 'crahs')", "has no tool 'crahs' (did you mean 'crash'?)"),
        ("expect.visible(p, 'ecoh')", "has no tool 'ecoh' (did you mean 'echo'?)"),
        (
            "p:call { tool = 'echo', arguments_json = '{\"a\":}' }",
            "'arguments_json' is no JSON object: expected value at",
        ),
        (
            "p:call { tool = 'echo', arguments_json = '[]' }",
            "'arguments_json' is no JSON object: invalid type: sequence",
        ),
        ("p:call { tool = 'echo', arguments = { 'a' } }", "'arguments' is no JSON object: invalid type: sequence"),
        ("return p.idle", "unknown field 'idle' of the policy"),
        ("p:result { tool = 'echo', fixture = '../fixture.lua' }", "is not below the directory of the test"),
        ("broker.load_policy('fixtur')", "did you mean 'fixture'?"),
        ("os.exit()", "unknown name 'os': tests see"),
        ("exepct.allowed(1)", "unknown name 'exepct' (did you mean 'expect'?): tests see"),
        ("while true do end", "the test used more than its 10000000 steps"),
        ("while true do pcall(function() while true do end end) end", "the test used more than its 10000000 steps"),
    ];
    for (claim, expected) in claims {
        let head = "local p = broker.load_policy('fixture')\nlocal function r(json, f) return p:result { tool = 'echo', json = json, fixture = f } end";
        write(&dir, "policies/tests/test_x.lua", &format!("{head}\nreturn {{ test_x = function()\n{claim}\nend }}"));
        let run = policy(&dir, &["test"]);
        assert_eq!(run.code, Some(1), "{claim}: {run:#?}");
        assert!(run.stdout.contains("test_x.lua:4: ") && run.stdout.contains(expected), "{claim}: {}", run.stdout);
    }
}

#[test]
fn a_test_that_takes_all_memory_fails_alone() {
    let dir = folder();
    let hungry = "local t = {} for i = 1, 1e7 do t[i] = string.rep('x', 1e6) .. i end";
    write(
        &dir,
        "policies/tests/test_x.lua",
        &format!("return {{ test_a = function() {hungry} end, test_b = function() end }}"),
    );
    let run = policy(&dir, &["test"]);
    assert!(run.code == Some(1) && run.stdout.contains("the test used more than its 64 MiB of memory"), "{run:#?}");
    assert!(run.stdout.contains("policy test: 1 passed, 1 failed"), "{run:#?}");
}

#[test]
fn a_broken_test_file_and_a_broken_policy_are_told_with_their_lines() {
    let dir = folder();
    write(&dir, "policies/tests/test_a.lua", "return {\n  test_x = function( end }");
    write(&dir, "policies/tests/test_b.lua", "\nreturn 7");
    write(&dir, "policies/tests/test_c.lua", "broker.load_policy('fixture')\nreturn { test_x = function() end }");
    write(&dir, "policies/tests/test_d.lua", "return { test_x = function() end,\ntets_y = function() end }");
    write(&dir, "policies/tests/test_e.lua", "return { test_x = function() end,\n\nfunction() end }");
    edit(&dir, "policies/fixture.lua", "scope =", "scop =");
    let run = policy(&dir, &["test"]);
    assert_snapshot!(said(&dir, &run), @r#"
exit 1
FAIL  test_a.lua test_a (0 steps)
      policies/tests/test_a.lua:2: Expected identifier when parsing variable name, got 'end'
FAIL  test_b.lua test_b (0 steps)
      policies/tests/test_b.lua: must return a table of functions named test_*
FAIL  test_c.lua test_c (0 steps)
      policies/tests/test_c.lua:1: policies/fixture.lua:1: broker.backend needs the field 'scope'
      policies/fixture.lua:3: unknown field 'scop' in broker.backend (did you mean 'scope'?)
FAIL  test_d.lua test_d (0 steps)
      policies/tests/test_d.lua:2: 'tets_y' is no test: the names of tests must begin with 'test_'
FAIL  test_e.lua test_e (0 steps)
      policies/tests/test_e.lua:3: a function without a name is no test: the names of tests must begin with 'test_'
policy test: 0 passed, 5 failed
"#);
}

#[test]
fn explain_says_what_decides() {
    let dir = folder();
    let result = path(&dir, "result.json");
    std::fs::write(&result, r#"{"content":[],"secret":"s3cret"}"#).unwrap();
    let run = policy(&dir, &["explain", "fixture", "echo", "--args", r#"{"text":"too long"}"#]);
    assert!(
        run.code == Some(0) && run.stdout.contains("denied: argument `text` must not be longer than 5 bytes"),
        "{run:#?}"
    );
    let args =
        ["explain", "fixture", "echo", "--args", r#"{"text":"a"}"#, "--result", result.to_str().unwrap(), "--json"];
    let facts = policy(&dir, &args).json();
    assert_eq!((&facts["visible"], &facts["call"]["allowed"]), (&json!(true), &json!(true)));
    assert_eq!(facts["call"]["deadline_seconds"], json!(7.0));
    assert_eq!(facts["result"]["payload"], json!(r#"{"content":[],"secret":"[redacted]"}"#));
    let facts = policy(&dir, &["explain", "fixture", "crash", "--json"]).json();
    let why = facts["hidden_because"].as_str().unwrap();
    assert!(why.starts_with("'crash' in tools.exclude at ") && why.ends_with("fixture.lua:9"), "{why}");
    assert_eq!(policy(&dir, &["explain", "fixture", "echo", "--args", "[]"]).code, Some(2));
    assert_eq!(policy(&dir, &["explain", "fixtur", "echo"]).code, Some(2));
}

/// The policy is asked about what a server could send alone.
#[test]
fn what_is_no_result_is_told_before_the_policy_is_asked() {
    let cases: [(&[u8], &str); 4] = [
        (b"{\n\"content\":}", "is no JSON object: expected value at line 2 column 11"),
        (b"[]", "is no JSON object: invalid type: sequence"),
        (b"{\"a\":\"\xff\"}", "is no JSON object: invalid utf-8 sequence of 1 bytes from index 6"),
        (b"{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}", "is a whole JSON-RPC response: give its `result` alone"),
    ];
    let dir = folder();
    let test = "local p = broker.load_policy('fixture')\nreturn { test_x = function()\n\
        p:result { tool = 'echo', fixture = 'result.json' }\nend }";
    write(&dir, "policies/tests/test_x.lua", test);
    let file = path(&dir, "policies/tests/result.json");
    for (bytes, expected) in cases {
        std::fs::write(&file, bytes).unwrap();
        let run = policy(&dir, &["explain", "fixture", "echo", "--result", file.to_str().unwrap()]);
        assert_eq!(run.code, Some(2), "{run:#?}");
        let said = format!("--result `{}` {expected}", file.display());
        assert!(run.stdout.is_empty() && run.stderr.contains(&said), "{expected}: {run:#?}");
        // Read as text at once, without a place.
        if std::str::from_utf8(bytes).is_ok() {
            let run = policy(&dir, &["test"]);
            let said = format!("test_x.lua:3: the fixture \"result.json\" {expected}");
            assert!(run.code == Some(1) && run.stdout.contains(&said), "{expected}: {run:#?}");
        }
    }
}

/// What `images.rs` shows on the wire.
#[test]
fn a_structure_that_fits_no_more_is_taken_out_in_tests_and_explanations_too() {
    let redact = "results = { broker.redact_keys { keys = { \"count\" } } },";
    let dir = Setup::new().known_port().backend(Backend::singleton("fixture").policy(redact)).write_whole();
    let given = r#"{"structuredContent":{"count":1,"label":"a"},"x":1e2,"content":[{"type":"text","text":"hello"}]}"#;
    write(&dir, "policies/tests/result.json", given);
    let result = path(&dir, "policies/tests/result.json");
    let args = ["explain", "fixture", "structured", "--args", "{}", "--result", result.to_str().unwrap()];
    let facts = policy(&dir, &[&args[..], &["--json"]].concat()).json();
    let shown: Value = serde_json::from_str(facts["result"]["payload"].as_str().unwrap()).unwrap();
    let broker = support::Broker::start(dir);
    let reply = Session::new(&broker, "fixture").call("structured", &json!({"count": 1}));
    let mut sent = reply.result().clone();
    assert_eq!(sent["content"][1]["text"], "c\u{61}f\u{e9}");
    sent["content"][1]["text"] = json!("hello");
    assert_eq!(shown, sent, "what is explained is what is sent");
    let run = broker.cli(&[&["policy"], &args[..]].concat());
    let said = "structure taken out: what the policy left of it does not fit the outputSchema of its tool";
    assert!(run.code == Some(0) && run.stdout.contains(said), "{run:#?}");
    let test = "local p = broker.load_policy('fixture')\nlocal function r(f) return p:result { tool = 'structured', \
        fixture = f } end\nreturn { test_x = function()\nlocal r = r('result.json')\n\
        expect.equal(r.value.structuredContent, nil)\nexpect.equal(r.value.isError, true)\n\
        expect.contains(r, 'was taken out')\nexpect.equal(r.structure_taken_out, true) end,\n\
        test_same = function() expect.equal(p:result({ tool = 'structured', json = { structuredContent = { label = 'a' } } \
        }).structure_taken_out, false) end }";
    broker.write("policies/tests/test_fixture.lua", test);
    let run = broker.cli(&["policy", "test"]);
    assert_eq!(run.code, Some(0), "{run:#?}");
    broker.finish();
}

#[test]
fn types_are_printed_without_a_configuration_and_checked_beside_policies() {
    let dir = folder();
    let run = policy(&dir, &["types"]);
    assert!(run.code == Some(0) && run.stdout.contains("declare broker: {"), "{run:#?}");
    assert_eq!(policy(&dir, &["types", "--check"]).code, Some(1));
    write(&dir, "policies/types/broker.d.luau", &run.stdout);
    assert_eq!(policy(&dir, &["types", "--check"]).code, Some(0));
}

#[track_caller]
fn accept(dir: &TempDir) -> Run {
    policy(dir, &["accept", "--all", "--by", "somebody"])
}

#[test]
fn accepting_needs_a_good_policy_and_passing_tests() {
    let dir = with_tests();
    let run = accept(&dir);
    assert!(run.code == Some(1) && run.stderr.contains("test_fixture.lua:12: expected"), "{run:#?}");
    assert!(run.stderr.ends_with("nothing is accepted: tests fail\n"), "{run:#?}");
    edit(&dir, "policies/fixture.lua", "scope =", "scop =");
    let run = accept(&dir);
    assert!(run.code == Some(3) && run.stderr.contains("fixture.lua:3: unknown field 'scop'"), "{run:#?}");
    assert!(!path(&dir, "config/reviewed.lock").exists());
}

/// Beside `fixture` another backend, `other`.
fn with_another(other: Backend, other_policy: &str) -> TempDir {
    let fixture = Backend::singleton("fixture").policy(RULES);
    let dir = Setup::new().known_port().backend(fixture).backend(other).write_whole();
    write(
        &dir,
        "policies/tests/test_fixture.lua",
        "local p = broker.load_policy(\"fixture\")\n\
        return { test_x = function() expect.hidden(p, \"crash\") end }",
    );
    write(&dir, other_policy, "return 7");
    dir
}

#[test]
fn a_broken_policy_of_another_backend_is_in_nobodys_way() {
    let dir = with_another(Backend::singleton("other"), "policies/other.lua");
    write(
        &dir,
        "policies/tests/test_other.lua",
        "local p = broker.load_policy(\"other\")\n\
        return { test_x = function() expect.hidden(p, \"crash\") end }",
    );
    let accept = |which: &str| policy(&dir, &["accept", which]);
    let run = accept("fixture");
    assert!(run.code == Some(0) && run.stdout.starts_with("fixture: accepted"), "{run:#?}");
    assert!(accept("other").stderr.contains("other.lua"));
    // A file that is about both says nothing of either if it cannot be run.
    write(
        &dir,
        "policies/tests/test_both.lua",
        "local o, p = broker.load_policy(\"other\"), broker.load_policy('fixture')\n\
        return { test_x = function() expect.hidden(p, \"crash\") end }",
    );
    let run = accept("fixture");
    assert!(
        run.code == Some(1) && run.stderr.contains("test_both.lua:1: ") && run.stderr.contains("other.lua"),
        "{run:#?}"
    );
    // Nor does one of which nobody knows whom it is about.
    write(&dir, "policies/tests/test_both.lua", "return {");
    let run = accept("fixture");
    assert!(run.code == Some(1) && run.stderr.contains("test_both.lua:1: "), "{run:#?}");
}

#[test]
fn tests_of_a_disabled_backend_are_run_before_it_is_accepted() {
    let other = Backend::singleton("other").toml("enabled = false");
    let dir = with_another(other, "unused.lua");
    edit(&dir, "config/broker.toml", "../policies/other.lua", "../others/other.lua");
    let text = std::fs::read_to_string(path(&dir, "policies/other.lua")).unwrap();
    write(&dir, "others/other.lua", &text);
    let test =
        "local p = broker.load_policy(\"other\")\nreturn { test_x = function() expect.hidden(p, \"crash\") end }";
    write(&dir, "others/tests/test_other.lua", test);
    let run = policy(&dir, &["accept", "other"]);
    assert!(run.code == Some(1) && run.stderr.contains("test_other.lua:2: expected `crash` to be hidden"), "{run:#?}");
    assert!(!path(&dir, "config/reviewed.lock").exists());
    edit(&dir, "others/tests/test_other.lua", "hidden", "visible");
    assert_eq!(policy(&dir, &["accept", "other"]).code, Some(0));
}

#[test]
fn what_is_accepted_is_recorded_once() {
    let dir = folder();
    let run = accept(&dir);
    assert!(run.code == Some(0) && run.stdout.starts_with("fixture: accepted for the first time"), "{run:#?}");
    let lock = std::fs::read_to_string(path(&dir, "config/reviewed.lock")).unwrap();
    let run = accept(&dir);
    assert!(run.stdout.starts_with("fixture: accepted already by somebody"), "{run:#?}");
    assert_eq!(std::fs::read_to_string(path(&dir, "config/reviewed.lock")).unwrap(), lock);
    let facts: Value = serde_json::from_str(&lock).unwrap();
    assert_eq!(facts["backends"]["fixture"]["accepted_by"], "somebody");
    assert!(facts["backends"]["fixture"]["policy"]["files"]["fixture.lua"].is_string(), "{lock}");
    edit(&dir, "policies/fixture.lua", "seconds = 7", "seconds = 8");
    let run = accept(&dir);
    assert!(run.stdout.contains("accepted (policy ") && run.stdout.contains("catalog unchanged"), "{run:#?}");
    assert_eq!(policy(&dir, &["accept"]).code, Some(2));
    assert_eq!(policy(&dir, &["accept", "fixtur"]).code, Some(2));
}

#[test]
fn enforced_reviews_refuse_what_changed_and_warnings_tell_it() {
    let dir = folder();
    let check = || run(&path(&dir, "config/broker.toml"), &["check"]);
    let warned = check();
    assert!(warned.code == Some(0) && warned.stderr.contains("fixture.lua: nobody has accepted it"), "{warned:#?}");
    edit(&dir, "config/broker.toml", "[backends.fixture]\n", "[review]\nmode = \"enforce\"\n[backends.fixture]\n");
    assert_eq!(check().code, Some(3));
    assert_eq!(accept(&dir).code, Some(0));
    let good = check();
    assert_eq!((good.code, good.stderr.as_str()), (Some(0), ""));
    edit(&dir, "policies/fixture.lua", "seconds = 7", "seconds = 8");
    let refused = check();
    assert_eq!(refused.code, Some(3), "{refused:#?}");
    let expected = "changed since it was accepted (";
    assert!(
        refused.stderr.contains(expected) && refused.stderr.contains("then 'lazy-mcp policy accept fixture'"),
        "{refused:#?}"
    );
    assert_eq!(accept(&dir).code, Some(0));
    assert_eq!(check().code, Some(0));
}

#[test]
fn the_status_says_what_is_reviewed() {
    let dir = folder();
    assert_eq!(accept(&dir).code, Some(0));
    edit(&dir, "policies/fixture.lua", "seconds = 7", "seconds = 8");
    let broker = support::Broker::start(dir);
    let status = broker.status();
    assert_eq!(status["broker"]["reviewed"], json!(false));
    assert_eq!(status["backends"][0]["policy"]["reviewed"], json!(false));
    assert_eq!(status["backends"][0]["catalog"]["reviewed"], json!(true));
    broker.finish();
}

const HOOKS: &str = r#"
  on_call = {
    echo = function(call)
      if call.arguments.text == "no" then return broker.deny("not that") end
    end,
    sleep = function(call) return broker.allow { arguments = { ms = 1 } } end,
  },
"#;

/// A policy with hooks, and with a test.
fn with_hooks(policy: &str, test: &str) -> TempDir {
    let dir = Setup::new().backend(Backend::singleton("fixture").policy(policy)).write_whole();
    write(&dir, "policies/tests/test_hooks.lua", test);
    dir
}

#[test]
fn hooks_are_tested_and_explained() {
    let test = "local p = broker.load_policy('fixture')\nreturn { test_x = function()\n\
        expect.denied(p:call { tool = 'echo', arguments = { text = 'no' } }, 'not that')\n\
        expect.equal(p:call({ tool = 'sleep', arguments = { ms = 9 } }).arguments_json, '{\"ms\":1}') end }";
    let dir = with_hooks(HOOKS, test);
    let run = policy(&dir, &["test", "--coverage"]);
    assert!(run.code == Some(0) && !run.stdout.contains("never decided"), "{run:#?}");
    let run = policy(&dir, &["test", "--coverage", "nothing"]);
    assert_eq!(run.code, Some(1));
    let facts = policy(&dir, &["explain", "fixture", "echo", "--args", r#"{"text":"no"}"#, "--json"]).json();
    let rule = facts["call"]["rule"].as_str().unwrap();
    assert!(rule.ends_with("fixture.lua:10") && facts["call"]["steps"].as_u64() > Some(0), "{facts:#}");
}

/// Production calls it `policy_failed`, whatever a test hoped for.
#[test]
fn a_hook_that_crashes_is_no_decision() {
    let hooks =
        "on_call = { echo = function() error('boom') end },\non_result = { echo = function() error('bang') end },";
    let claims = [
        ("expect.denied(p:call { tool = 'echo' })", Err("the call to be denied, but the policy failed: ")),
        ("expect.denied(p:call { tool = 'echo' }, '')", Err("fixture.lua:7: boom")),
        (
            "expect.denied(p:call { tool = 'echo' }, 'url')",
            Err("with \"url\" in the reason, which is \"the policy failed: "),
        ),
        ("expect.withheld(r)", Err("the result to be withheld, but the policy failed: ")),
        ("expect.withheld(r)", Err("fixture.lua:8: bang")),
        ("expect.redacted(r, 's3')", Err("\"s3\" to be gone, but the policy failed: ")),
        ("expect.denied(p:call { tool = 'echo' }, 'boom')", Ok(())),
        ("expect.withheld(r, 'fixture.lua:8: bang')", Ok(())),
    ];
    for (claim, expected) in claims {
        let head =
            "local p = broker.load_policy('fixture')\nlocal r = p:result { tool = 'echo', json = '{\"a\":\"s3\"}' }";
        let dir = with_hooks(hooks, &format!("{head}\nreturn {{ test_x = function()\n{claim}\nend }}"));
        let run = policy(&dir, &["test"]);
        assert_eq!(run.code == Some(0), expected.is_ok(), "{claim}: {run:#?}");
        let said = expected.err().unwrap_or_default();
        assert!(run.stdout.contains(said), "{claim}: {}", run.stdout);
    }
}

#[test]
fn a_policy_that_remembers_fails_its_tests() {
    let hooks = "on_call = { echo = function(call) seen = (rawget(table, 'x') or seen_before()) return nil end },";
    let counting = "on_call = { echo = (function() local n = 0 return function() n = n + 1 \
        if n > 1 then return broker.deny('once only') end end end)() },";
    let test = "local p = broker.load_policy('fixture')\nreturn { test_x = function()\n\
        expect.allowed(p:call { tool = 'echo', arguments = { text = 'a' } }) end }";
    let run = policy(&with_hooks(counting, test), &["test"]);
    assert!(run.code == Some(1) && run.stdout.contains("does not answer the same each time"), "{run:#?}");
    let isolated = format!("{counting} isolate = true,");
    assert_eq!(policy(&with_hooks(&isolated, test), &["test"]).code, Some(0));
    let run = policy(&with_hooks(hooks, test), &["check"]);
    assert!(run.code == Some(3) && run.stderr.contains("unknown name 'seen_before'"), "{run:#?}");
}

#[test]
fn diff_says_what_a_reload_would_do_and_does_nothing() {
    let dir = folder();
    let broker = support::Broker::start(dir);
    let session = Session::new(&broker, "fixture");
    session.call("echo", &json!({"text": "a"}));
    let diff = |args: &[&str]| broker.cli(&[&["policy", "diff"], args].concat());
    let edit = |file: &str, from: &str, to: &str| {
        let path = broker.dir().join(file);
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.contains(from), "{from} in {text}");
        std::fs::write(path, text.replace(from, to)).unwrap();
    };
    let said = |run: &Run| {
        let id = broker.live_instances("fixture")[0]["id"].as_str().unwrap().to_owned();
        run.stdout.replace(&id, "ID")
    };
    assert_snapshot!(said(&diff(&[])), @r#"
fixture  unchanged
         instance ID: keeps its process
"#);
    edit("policies/fixture.lua", "\"crash\"", "\"hang\"");
    assert_snapshot!(said(&diff(&[])), @r#"
fixture  live fields only
         instance ID: keeps its process
         tools: + crash  - hang
"#);
    edit("config/broker.toml", "[backends.fixture]\n", "[backends.fixture]\nenv = { MORE = \"1\" }\n");
    let facts = diff(&["--json"]).json();
    assert_eq!((&facts["ok"], &facts["dry_run"]), (&json!(true), &json!(true)));
    assert!(diff(&[]).stdout.contains("LAUNCH changed: fingerprint "), "{facts:#}");
    edit("policies/fixture.lua", "scope =", "scop =");
    let run = diff(&[]);
    assert!(run.code == Some(3) && run.stderr.contains("fixture.lua:3: unknown field 'scop'"), "{run:#?}");
    assert_eq!(broker.status()["broker"]["revision"], 1);
    broker.finish();
}
