//! A fault anywhere refuses all of it, and is told in three places.

use serde_json::{Value, json};

use crate::support::files::of;
use crate::support::{Backend, Broker, Request, Session, Setup};
use crate::{echo, pid};

fn start() -> Broker {
    Setup::new().known_port().backend(Backend::session("one")).backend(Backend::session("two")).start()
}

#[test]
fn every_error_is_told_by_the_command_the_status_and_the_log() {
    let broker = start();
    let session = Session::new(&broker, "one");
    let before = pid(&session);
    broker.edit("policies/one.lua", "idle_timeout_seconds", "idle_timeout");
    broker.edit("catalogs/two.json", "\"echo\"", "\"ecko\"");
    broker.edit("config/broker.toml", "drain_seconds = 2", "drain_secs = 2");
    let run = broker.cli(&["reload", "--json"]);
    assert_eq!(run.code, Some(3), "{run:#?}");
    let report = run.json();
    assert_eq!((&report["ok"], &report["revision"]), (&json!(false), &json!(1)));
    let errors = report["errors"].as_array().expect("a list");
    for (file, line, words) in [
        ("broker.toml", Some(4), "did you mean 'drain_seconds'?"),
        ("one.lua", Some(4), "did you mean 'idle_timeout_seconds'?"),
        ("two.json", None, "lazy-mcp catalog capture"),
    ] {
        let found = errors.iter().find(|error| error["file"].as_str().is_some_and(|path| path.ends_with(file)));
        let found = found.unwrap_or_else(|| panic!("nothing of {file} in {report:#}"));
        assert!(found["message"].as_str().is_some_and(|text| text.contains(words)), "{found:#}");
        assert!(found["line"].is_u64(), "{found:#}");
        if let Some(line) = line {
            assert_eq!(found["line"], line, "{found:#}");
        }
        let place = format!("{file}:{}: ", found["line"]);
        assert!(run.stderr.lines().any(|said| said.contains(&place) && said.contains(words)), "{}", run.stderr);
        assert!(broker.log().lines().any(|said| said.contains(file) && said.contains(words)), "{}", broker.log());
    }
    let status = broker.status();
    let last = &status["broker"]["last_reload"];
    assert_eq!((&last["ok"], &last["errors"]), (&json!(false), &report["errors"]));
    assert_eq!(broker.http().send(&Request::get("/ready")).status, 200);
    assert_eq!(pid(&session), before);
    let told = broker.admin("recent_events", json!({}));
    let last = told["events"].as_array().and_then(|events| events.last()).expect("some");
    assert_eq!((&last["event"], &last["errors"]), (&json!("reload_rejected"), &json!(errors.len())));
    broker.finish();
}

/// Takes `cut` of a file away and reloads; the file is whole again afterwards.
#[track_caller]
fn check_cut(broker: &Broker, session: &Session, file: &str, cut: impl Fn(&str) -> Option<String>) {
    let whole = broker.read(file);
    match cut(&whole) {
        Some(text) => broker.write(file, &text),
        None => std::fs::remove_file(broker.path(file)).expect("it was there"),
    }
    let report = broker.reload_refused();
    let is_named = |error: &Value| error["message"].as_str().is_some_and(|text| !text.is_empty());
    assert!(report["errors"].as_array().is_some_and(|errors| !errors.is_empty() && errors.iter().all(is_named)));
    assert_eq!(echo(session, "served"), "served");
    broker.write(file, &whole);
}

#[test]
fn half_a_file_is_refused_like_any_other_fault() {
    let broker = start();
    let session = Session::new(&broker, "one");
    let before = pid(&session);
    for file in ["policies/one.lua", "catalogs/one.json", "config/broker.toml"] {
        for part in [3, 2] {
            check_cut(&broker, &session, file, |text| {
                let cut = text.len() - text.len() / part;
                // In the middle of a word, and not by chance at the end of a table.
                let cut = text[..cut].rfind(['=', ':']).expect("keys and values") + 1;
                Some(text[..cut].to_owned())
            });
        }
        check_cut(&broker, &session, file, |_| None);
    }
    for file in ["policies/one.lua", "catalogs/one.json"] {
        check_cut(&broker, &session, file, |_| Some(String::new()));
    }
    // All is well again, and nothing has changed.
    let report = broker.reload();
    assert_eq!((&of(&report, "one")["change"], &report["revision"]), (&json!("unchanged"), &json!(2)));
    assert_eq!(pid(&session), before);
    broker.finish();
}

#[test]
fn the_command_tells_what_is_wrong_whether_or_not_a_broker_is_there() {
    let mut broker = start();
    let whole = broker.read("config/broker.toml");
    // The broker is found by what is left of its file …
    broker.write("config/broker.toml", &whole[..whole.rfind("polite").expect("written")]);
    broker.edit("config/broker.toml", "[backends.one]", "[backends.one");
    let run = broker.cli(&["reload"]);
    assert_eq!(run.code, Some(3), "{run:#?}");
    assert!(run.stderr.contains("broker.toml:") && run.stderr.contains("revision 1 goes on"), "{run:#?}");
    assert_eq!(broker.status()["broker"]["last_reload"]["ok"], false);
    // … and not asked when it cannot be.
    std::fs::remove_file(broker.config()).expect("it was there");
    let run = broker.cli(&["reload"]);
    assert_eq!(run.code, Some(3), "{run:#?}");
    assert!(run.stderr.contains("broker.toml: cannot be read") && run.stderr.contains("not asked"), "{run:#?}");
    broker.write("config/broker.toml", &whole);
    let run = broker.cli(&["reload"]);
    assert_eq!(run.code, Some(0), "{run:#?}");
    assert!(run.stdout.contains("one  unchanged\n") && run.stdout.contains("revision 2: 2 backends"), "{run:#?}");
    assert_eq!(broker.status()["broker"]["reviewed"], false);
    let run = broker.cli(&["reload", "--accept"]);
    assert_eq!(run.code, Some(0), "{run:#?}");
    assert_eq!(broker.status()["broker"]["reviewed"], true);
    assert!(broker.terminate().success());
    assert_eq!(broker.cli(&["reload"]).code, Some(4));
    broker.assert_nothing_left("its end", std::time::Duration::from_millis(100));
}
