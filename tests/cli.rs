//! The command line as a user meets it: exit codes, what goes to stdout, and messages that say what to do.
//!
//! 0 done and proved, 1 checked and not so, 2 usage, 3 configuration refused, 4 broker not reached, 5 cleanup not
//! proved.

mod support;

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use support::cli::{Run, finish, run};
use support::processes::Table;
use support::run::broker_program;
use support::{Backend, Session, Setup};
use tempfile::TempDir;

fn setup() -> Setup {
    Setup::new().known_port().backend(Backend::singleton("fixture").toml(
        "[backends.fixture.probe]\ntool = \"echo\"\narguments = { text = \"harmless\" }\nexpect = \"^harmless$\"\n",
    ))
}

fn config(dir: &TempDir) -> std::path::PathBuf {
    dir.path().join("config/broker.toml")
}

/// Changes a file of the setup.
fn edit(dir: &TempDir, file: &str, change: impl FnOnce(String) -> String) {
    let path = dir.path().join(file);
    let text = std::fs::read_to_string(&path).expect("the setup wrote it");
    std::fs::write(path, change(text)).expect("the setup wrote it");
}

/// Neither `check` nor `serve` accepts the setup; both say each of `said` on stderr and nothing on stdout.
#[track_caller]
fn check_refused(dir: &TempDir, said: &[&str]) {
    for command in ["check", "serve"] {
        let run = run(&config(dir), &[command]);
        assert_eq!(run.code, Some(3), "{command}: {run:#?}");
        for part in said {
            assert!(run.stderr.contains(part), "{command} should say {part:?}: {run:#?}");
        }
    }
    assert!(Table::read().mentioning(dir.path().to_str().expect("a plain path")).is_empty(), "something runs");
}

#[track_caller]
fn check_done(run: &Run) {
    assert_eq!(run.code, Some(0), "{run:#?}");
}

#[test]
fn a_good_configuration_passes() {
    let dir = setup().write_whole();
    check_done(&run(&config(&dir), &["check"]));
}

#[test]
fn every_fault_is_shown_with_its_line_and_the_nearest_name() {
    let dir = setup().write_whole();
    edit(&dir, "config/broker.toml", |text| {
        text.replace("drain_seconds", "drain_second")
            .replace("call_seconds", "call_secnds")
            .replace("command =", "comand =")
    });
    let broken = std::fs::read_to_string(config(&dir)).unwrap();
    let line = |key: &str| {
        let number = broken.lines().position(|line| line.starts_with(key)).expect("the key is there") + 1;
        format!("broker.toml:{number}: ")
    };
    let places = [line("drain_second"), line("comand"), line("call_secnds")];
    let mut said: Vec<&str> = places.iter().map(String::as_str).collect();
    said.extend(["did you mean 'drain_seconds'?", "did you mean 'command'?", "did you mean 'call_seconds'?"]);
    check_refused(&dir, &said);
}

#[test]
fn a_missing_file_is_named() {
    let dir = setup().write_whole();
    std::fs::remove_file(dir.path().join("catalogs/fixture.json")).unwrap();
    check_refused(&dir, &["fixture.json", "catalog capture fixture"]);
    let nothing = run(Path::new("/nonexistent/broker.toml"), &["check"]);
    assert_eq!(nothing.code, Some(3), "{nothing:#?}");
    assert!(nothing.stderr.contains("/nonexistent/broker.toml"), "{nothing:#?}");
}

#[test]
fn a_catalog_that_was_tampered_with_is_refused() {
    let dir = setup().write_whole();
    edit(&dir, "catalogs/fixture.json", |text| {
        text.replace("Returns the text as it was spelled.", "Returns the text.")
    });
    check_refused(&dir, &["fixture.json", "digest"]);
}

#[test]
fn a_policy_that_does_not_fit_is_refused_with_its_line() {
    let dir = setup().write_whole();
    edit(&dir, "policies/fixture.lua", |text| text.replace("idle_timeout_seconds", "idle_timeout"));
    check_refused(&dir, &["fixture.lua:4", "idle_timeout_seconds"]);
    edit(&dir, "policies/fixture.lua", |_| "return broker.backend {\n  api = 1,\n  scope = \n}\n".to_owned());
    check_refused(&dir, &["fixture.lua:4"]);
}

#[test]
fn an_address_that_others_can_reach_is_refused() {
    let dir = setup().write_whole();
    edit(&dir, "config/broker.toml", |text| text.replace("127.0.0.1:", "0.0.0.0:"));
    check_refused(&dir, &["broker.toml:2", "loopback"]);
}

#[test]
fn wrong_usage_is_another_code() {
    let dir = setup().write_whole();
    for args in [&["nonsense"][..], &["call"], &["status", "--nonsense"], &[]] {
        let run = run(&config(&dir), args);
        assert_eq!(run.code, Some(2), "{args:?}: {run:#?}");
        assert!(!run.stderr.is_empty());
    }
}

#[test]
fn help_and_version_are_there() {
    for (args, said) in [
        (&["--help"][..], &["serve", "check", "status", "stop", "recover", "call", "catalog", "probe", "--config"][..]),
        (&["call", "--help"], &["BACKEND", "TOOL"]),
        (&["--version"], &[env!("CARGO_PKG_VERSION")]),
    ] {
        let mut command = Command::new(broker_program());
        command.args(args);
        let run = finish(command);
        check_done(&run);
        for part in said {
            assert!(run.stdout.contains(part), "{args:?} should say {part:?}: {run:#?}");
        }
    }
}

#[test]
fn a_broker_that_does_not_run_is_not_reached() {
    let dir = setup().write_whole();
    for args in [&["status"][..], &["status", "--json"], &["call", "fixture", "echo", "text=x"], &["probe"]] {
        let run = run(&config(&dir), args);
        assert_eq!(run.code, Some(4), "{args:?}: {run:#?}");
        assert_eq!(run.stdout, "", "{args:?}");
        assert!(run.stderr.contains("serve"), "the message says what to do: {run:#?}");
    }
}

#[test]
fn status_tells_what_runs() {
    let broker = setup().start();
    let status = broker.cli(&["status", "--json"]);
    check_done(&status);
    assert_eq!(status.json()["broker"]["pid"], broker.pid());
    assert_eq!(status.json()["backends"][0]["name"], "fixture");
    let plain = broker.cli(&["status"]);
    check_done(&plain);
    assert!(plain.stdout.contains("fixture"), "{plain:#?}");
    broker.assert_nothing_runs();
    broker.finish();
}

#[test]
fn call_calls() {
    let broker = setup().start();
    for args in [&["text=hello"][..], &["--json", r#"{"text": "hello"}"#]] {
        let run = broker.cli(&[&["call", "fixture", "echo"], args].concat());
        check_done(&run);
        assert!(run.stdout.contains("hello"), "{run:#?}");
    }
    let failed = broker.cli(&["call", "fixture", "tool_error"]);
    assert_eq!(failed.code, Some(1), "{failed:#?}");
    assert!(format!("{}{}", failed.stdout, failed.stderr).contains("the tool failed"), "{failed:#?}");
    for args in [["call", "fixture", "ecko"], ["call", "fixtur", "echo"]] {
        let run = broker.cli(&args);
        assert!(matches!(run.code, Some(1 | 2)), "{args:?}: {run:#?}");
        assert!(!run.stderr.is_empty(), "{run:#?}");
    }
    broker.finish();
}

#[test]
fn probe_proves_the_way_up_and_down() {
    let broker = Setup::new()
        .known_port()
        .backend(Backend::singleton("fixture").idle_seconds(1).toml(
            "[backends.fixture.probe]\ntool = \"echo\"\narguments = { text = \"harmless\" }\nexpect = \"^harmless$\"\n",
        ))
        .start();
    let report = broker.dir().join("report.json");
    let run = broker.cli(&["probe", "fixture", "--report", report.to_str().expect("a plain path")]);
    check_done(&run);
    assert_eq!((broker.starts("fixture"), broker.count("fixture", "call", "echo")), (1, 1));
    serde_json::from_slice::<Value>(&std::fs::read(report).unwrap()).unwrap();
    broker.assert_nothing_runs();
    broker.finish();
}

#[test]
fn probe_fails_when_the_call_does() {
    let broker = Setup::new()
        .known_port()
        .backend(
            Backend::singleton("fixture")
                .idle_seconds(1)
                .toml("[backends.fixture.probe]\ntool = \"echo\"\narguments = { text = \"x\" }\nexpect = \"^y$\"\n"),
        )
        .start();
    let run = broker.cli(&["probe", "fixture"]);
    assert_eq!(run.code, Some(1), "{run:#?}");
    broker.finish();
}

#[test]
fn a_capture_follows_all_pages_and_leaves_nothing() {
    for flags in ["", "--page-size 5", "--tools 60 --catalog-bytes 50000 --page-size 7"] {
        let dir = Setup::new().backend(Backend::singleton("fixture").list_flags(flags)).write();
        check_done(&run(&config(&dir), &["catalog", "capture", "fixture"]));
        let catalog = std::fs::read(dir.path().join("catalogs/fixture.json")).unwrap();
        let catalog: Value = serde_json::from_slice(&catalog).unwrap();
        let count = |member: &str| catalog[member].as_array().map_or(0, Vec::len);
        let expected = if flags.contains("60") { 60 } else { 27 };
        assert_eq!(
            (count("tools"), count("enabled_tools"), count("excluded_tools")),
            (expected, expected, 0),
            "{flags}"
        );
        assert_eq!(catalog["server_info"]["name"], "fixture");
        let left = Table::read();
        assert!(left.mentioning(dir.path().to_str().expect("a plain path")).is_empty(), "the capture left {left:#?}");
    }
}

#[test]
fn a_second_capture_keeps_decisions_and_enables_nothing_new() {
    let dir = Setup::new().backend(Backend::singleton("fixture")).write();
    check_done(&run(&config(&dir), &["catalog", "capture", "fixture"]));
    edit(&dir, "config/broker.toml", |text| text.replace(r#"args = ["#, r#"args = ["--add-tool", "fresh", "#));
    check_done(&run(&config(&dir), &["catalog", "capture", "fixture"]));
    let catalog = std::fs::read(dir.path().join("catalogs/fixture.json")).unwrap();
    let catalog: Value = serde_json::from_slice(&catalog).unwrap();
    let excluded = catalog["excluded_tools"].to_string();
    assert!(excluded.contains("fresh") && excluded.contains("unreviewed"), "{excluded}");
    assert!(!catalog["enabled_tools"].to_string().contains("fresh"));
}

#[test]
fn a_capture_that_fails_writes_nothing() {
    let dir = Setup::new().backend(Backend::singleton("fixture").flags("--exit-at-start 3")).write();
    let run = run(&config(&dir), &["catalog", "capture", "fixture"]);
    assert_eq!(run.code, Some(1), "{run:#?}");
    assert!(!dir.path().join("catalogs/fixture.json").exists());
}

#[test]
fn two_brokers_do_not_share_their_state() {
    let broker = setup().start();
    // Another port, so that only the state is in the way.
    let other = broker.dir().join("config/other.toml");
    let text = std::fs::read_to_string(broker.config()).unwrap();
    std::fs::write(&other, text.replace(&broker.http().0.to_string(), "127.0.0.1:0")).unwrap();
    let second = run(&other, &["serve"]);
    assert!(!matches!(second.code, Some(0) | None), "{second:#?}");
    assert!(second.stderr.contains("state"), "{second:#?}");
    broker.finish();
}

#[test]
fn a_taken_port_is_told() {
    let broker = setup().start();
    // Its own state, so that only the port is in the way.
    let other = broker.dir().join("config/other.toml");
    let text = std::fs::read_to_string(broker.config()).unwrap();
    std::fs::write(&other, text.replace("../state", "../other-state")).unwrap();
    let second = run(&other, &["serve"]);
    assert!(!matches!(second.code, Some(0) | None), "{second:#?}");
    assert!(second.stderr.contains(&broker.http().0.port().to_string()), "{second:#?}");
    let session = Session::new(&broker, "fixture");
    assert_eq!(session.call("echo", &json!({"text": "x"})).text(), "x", "the first goes on serving");
    broker.finish();
}

#[test]
fn a_probe_calls_what_clients_see() {
    for (tool, code, said) in [("ehco", 3, "did you mean 'echo'?"), ("task_only", 3, "'task_only'"), ("echo", 0, "")] {
        let probed =
            Backend::singleton("fixture").list_flags("--more").toml(&format!("probe = {{ tool = '{tool}' }}\n"));
        let checked = run(&config(&Setup::new().backend(probed).write_whole()), &["check"]);
        assert_eq!(checked.code, Some(code), "{tool}: {checked:#?}");
        let told = format!("names '{tool}', which clients do not see");
        assert_eq!(checked.stderr.contains(&told), code == 3, "{tool}: {checked:#?}");
        assert!(checked.stderr.contains(said), "{tool}: {checked:#?}");
    }
}
