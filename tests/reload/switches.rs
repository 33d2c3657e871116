//! An operator's word on one backend, and what else an operator can ask.

use serde_json::{Value, json};

use crate::support::files::of;
use crate::support::{Backend, Broker, Session, Setup};
use crate::{SOON, check_change, pid, two};

#[test]
fn a_backend_is_disabled_and_enabled_until_the_restart() {
    let mut broker = two();
    let (one, two) = (Session::new(&broker, "one"), Session::new(&broker, "two"));
    let (old, kept) = (pid(&one), pid(&two));
    // A file that somebody is editing is in nobody's way.
    let whole = broker.read("config/broker.toml");
    broker.edit("config/broker.toml", "[backends.two]", "[backends.two");
    let report = broker.admin("disable_backend", json!({"backend": "one"}));
    check_change(&report, "one", "disabled", [0, 0, 1]);
    check_change(&report, "two", "unchanged", [1, 0, 0]);
    assert_eq!((&report["backend_count"], &report["enabled_backend_count"]), (&json!(2), &json!(1)));
    assert_eq!(broker.http().send(&one.call_request("pid", &json!({}))).status, 404);
    crate::support::wait::until_true("it to be gone", SOON, || !crate::is_running(old));
    let again = broker.admin("disable_backend", json!({"backend": "one"}));
    assert_eq!((&of(&again, "one")["change"], &again["revision"]), (&json!("unchanged"), &report["revision"]));
    let shown = broker.backend_status("one");
    assert_eq!((&shown["enabled"], &shown["enabled_by"]), (&json!(false), &json!("operator")));
    // It holds over a reload.
    broker.write("config/broker.toml", &whole);
    check_change(&broker.reload(), "one", "unchanged", [0, 0, 0]);
    let report = broker.admin("enable_backend", json!({"backend": "one"}));
    check_change(&report, "one", "enabled", [0, 0, 0]);
    assert_ne!(pid(&Session::new(&broker, "one")), old);
    assert_eq!(pid(&two), kept);
    let events = broker.admin("recent_events", json!({}));
    let told: Vec<&Value> = events["events"].as_array().unwrap().iter().map(|event| &event["event"]).collect();
    assert!(told.contains(&&json!("backend_disabled")) && told.contains(&&json!("backend_enabled")), "{told:?}");
    // What is so already is nobody's word: the file has its say.
    broker.admin("enable_backend", json!({"backend": "two"}));
    assert_eq!(broker.backend_status("two")["enabled_by"], "file");
    broker.admin("disable_backend", json!({"backend": "two"}));
    broker.restart();
    assert_eq!(broker.backend_status("two")["enabled_by"], "file");
    assert_eq!(broker.backend_status("two")["enabled"], true);
    broker.finish();
}

#[test]
fn a_backend_that_its_file_disables_can_be_served() {
    let dir = Setup::new().backend(Backend::singleton("one").toml("enabled = false")).write_whole();
    let broker = Broker::start(dir);
    assert_eq!(broker.ask("list_tools", json!({"backend": "one"})).refusal(), "unavailable");
    broker.edit("policies/one.lua", "api = 1", "api = 7");
    let refused = broker.admin("enable_backend", json!({"backend": "one"}));
    assert_eq!(refused["ok"], false, "{refused:#}");
    assert_eq!(broker.backend_status("one")["enabled_by"], "file");
    broker.edit("policies/one.lua", "api = 7", "api = 1");
    check_change(&broker.admin("enable_backend", json!({"backend": "one"})), "one", "enabled", [0, 0, 0]);
    pid(&Session::new(&broker, "one"));
    check_change(&broker.reload(), "one", "unchanged", [1, 0, 0]);
    assert_eq!(broker.ask("enable_backend", json!({"backend": "on"})).refusal(), "no_such_backend");
    broker.finish();
}

#[test]
fn what_was_accepted_of_another_backend_is_in_nobodys_way() {
    let setup = Setup::new().known_port().backend(Backend::singleton("one")).backend(Backend::singleton("two"));
    let dir = setup.write_whole();
    let path = dir.path().join("config/broker.toml");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replacen("[backends.one]", "[review]\nmode = \"enforce\"\n[backends.one]", 1)).unwrap();
    let accept = |path, which: &str| crate::support::cli::run(path, &["policy", "accept", which]);
    assert_eq!(accept(&path, "--all").code, Some(0));
    let broker = Broker::start(dir);
    broker.admin("disable_backend", json!({"backend": "two"}));
    // Accepted, and to be served from the next reload on: what is served of it until then is not in the lock any more.
    broker.edit("policies/one.lua", "idle_timeout_seconds = 120", "idle_timeout_seconds = 60");
    assert_eq!(accept(&path, "one").code, Some(0));
    check_change(&broker.admin("enable_backend", json!({"backend": "two"})), "two", "enabled", [0, 0, 0]);
    let reviewed = |backend: &str| broker.backend_status(backend)["policy"]["reviewed"].clone();
    assert_eq!((reviewed("one"), reviewed("two")), (json!(true), json!(true)));
    // One's own files are looked at.
    broker.admin("disable_backend", json!({"backend": "two"}));
    broker.edit("policies/two.lua", "idle_timeout_seconds = 120", "idle_timeout_seconds = 60");
    let refused = broker.admin("enable_backend", json!({"backend": "two"}));
    let errors = refused["errors"].as_array().expect("a list");
    assert!(refused["ok"] == false && errors.len() == 1, "{refused:#}");
    assert!(errors[0]["file"].as_str().is_some_and(|file| file.ends_with("two.lua")), "{refused:#}");
    broker.assert_nothing_runs();
    broker.finish();
}

#[test]
fn only_reloads_are_the_last_reload() {
    let broker = two();
    let last = || broker.status()["broker"]["last_reload"].clone();
    broker.admin("disable_backend", json!({"backend": "two"}));
    let first = last();
    assert_eq!(first["ok"], true);
    // A switch that is refused is no reload that was.
    broker.edit("policies/two.lua", "api = 1", "api = 7");
    assert_eq!(broker.admin("enable_backend", json!({"backend": "two"}))["ok"], false);
    assert_eq!(last(), first);
    // Nor does one that succeeds hide that one was.
    broker.edit("policies/two.lua", "api = 7", "api = 1");
    broker.edit("policies/one.lua", "api = 1", "api = 7");
    let report = broker.reload_refused();
    let refused = last();
    assert_eq!((&refused["ok"], &refused["errors"]), (&json!(false), &report["errors"]));
    check_change(&broker.admin("enable_backend", json!({"backend": "two"})), "two", "enabled", [0, 0, 0]);
    assert_eq!(last(), refused);
    broker.edit("policies/one.lua", "api = 7", "api = 1");
    broker.reload();
    assert_eq!(last()["ok"], true);
    broker.finish();
}

#[test]
fn a_tool_that_answers_by_tasks_alone_is_hidden_in_every_answer() {
    let broker = Setup::new().backend(Backend::singleton("one").list_flags("--more")).start();
    let asked = json!({"backend": "one", "tool": "task_only"});
    let shown = broker.admin("get_tool", asked.clone());
    assert_eq!(shown["visible"], false, "{shown:#}");
    assert_eq!(shown["hidden_because"], "it answers by a task alone, and the broker relays none");
    assert_eq!(broker.admin("explain_policy", asked)["decision"], "unknown_tool");
    assert_eq!(Session::new(&broker, "one").call("task_only", &json!({})).error_code(), -32602);
    broker.finish();
}

#[test]
fn tools_are_listed_with_why_clients_do_not_see_them() {
    let policy = "tools = { exclude = { \"crash\" }, settings = { sleep = { deadline_seconds = 3, arguments = { ms = broker.number_rule { max = 5 } } }, echo = { arguments = { text = broker.string_rule { max_bytes = 3 } } } } },";
    let broker = Setup::new().backend(Backend::singleton("one").policy(policy)).start();
    let all = broker.admin("list_tools", json!({"backend": "one"}));
    let total = all["total"].as_u64().expect("a number");
    assert_eq!(all["tools"].as_array().map(Vec::len), usize::try_from(total).ok());
    let mut paged = Vec::new();
    let mut cursor = Value::Null;
    loop {
        let page = broker.admin("list_tools", json!({"backend": "one", "limit": 4, "cursor": cursor}));
        paged.extend(page["tools"].as_array().expect("a list").clone());
        cursor = page["next_cursor"].clone();
        if cursor.is_null() {
            break;
        }
    }
    assert_eq!(Value::from(paged), all["tools"]);
    let found = broker.admin("list_tools", json!({"backend": "one", "query": "EXITS without"}));
    assert_eq!((&found["total"], &found["tools"][0]["name"]), (&json!(1), &json!("crash")));
    let why = found["tools"][0]["hidden_because"].as_str().expect("a reason");
    assert!(why.starts_with("'crash' in tools.exclude at ") && why.ends_with("one.lua:7"), "{why}");
    assert_eq!(broker.ask("list_tools", json!({"backend": "one", "cursor": "x"})).refusal(), "invalid_arguments");

    let odd = broker.admin("get_tool", json!({"backend": "one", "tool": "odd"}));
    assert!(odd["raw"].as_str().is_some_and(|raw| raw.contains("123456789012345678901234567890")), "{odd:#}");
    assert_eq!((&odd["visible"], &odd["tool"]["name"]), (&json!(true), &json!("odd")));
    let sleep = broker.admin("get_tool", json!({"backend": "one", "tool": "sleep"}));
    assert_eq!(sleep["deadline_seconds"], 3.0);
    assert_eq!(broker.ask("get_tool", json!({"backend": "one", "tool": "slep"})).refusal(), "no_such_tool");

    for (tool, arguments, decision) in [
        ("echo", json!({"text": "abc"}), "allow"),
        ("echo", json!({"text": "abcd"}), "deny"),
        ("sleep", json!({"ms": 50}), "rewrite"),
        ("crash", json!({}), "unknown_tool"),
    ] {
        let asked = json!({"backend": "one", "tool": tool, "arguments": arguments});
        let explained = broker.admin("explain_policy", asked);
        assert_eq!(explained["decision"], decision, "{explained:#}");
        assert_eq!(explained["reason"].is_null(), matches!(decision, "allow" | "rewrite"), "{explained:#}");
        if decision == "rewrite" {
            assert_eq!(explained["arguments"], json!({"ms": 5}));
        }
        assert!(explained["policy_digest"].as_str().is_some_and(|digest| digest.starts_with("sha256:")));
    }
    broker.assert_nothing_runs();
    broker.finish();
}

#[test]
fn events_are_read_on_from_where_one_was() {
    let broker = Setup::new().backend(Backend::singleton("one")).backend(Backend::singleton("two")).start();
    pid(&Session::new(&broker, "one"));
    let first = broker.admin("recent_events", json!({"limit": 1}));
    let newest = &first["events"][0];
    assert_eq!((&newest["to"], &first["last"]), (&json!("ready"), &newest["number"]));
    pid(&Session::new(&broker, "two"));
    let next = broker.admin("recent_events", json!({"after": first["last"], "limit": 1}));
    assert_eq!((&next["events"][0]["backend"], &next["last"]), (&json!("two"), &next["events"][0]["number"]));
    let of_one = broker.admin("recent_events", json!({"after": 0, "backend": "one"}));
    let mut backends = of_one["events"].as_array().unwrap().iter().map(|event| &event["backend"]);
    assert!(backends.all(|backend| backend == "one"), "{of_one:#}");
    broker.finish();
}

#[test]
fn a_number_of_an_earlier_broker_hides_nothing() {
    let mut broker = Setup::new().backend(Backend::singleton("one")).start();
    pid(&Session::new(&broker, "one"));
    let last = broker.admin("recent_events", json!({}))["last"].clone();
    broker.restart();
    let told = broker.admin("recent_events", json!({"after": last}));
    let events = told["events"].as_array().expect("a list");
    assert_eq!(events.iter().map(|event| &event["event"]).collect::<Vec<_>>(), ["broker_ready"], "{told:#}");
    assert_eq!((&told["last"], &told["missed"]), (&json!(1), &json!(0)));
    // One that is this broker's newest is no such number.
    assert_eq!(broker.admin("recent_events", json!({"after": told["last"]}))["events"], json!([]));
    broker.finish();
}
