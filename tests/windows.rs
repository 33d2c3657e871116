//! A backend with a Windows side, as an operator sees it, with a stand-in for `powershell.exe`.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use support::wait::{until, until_true};
use support::{Backend, Broker, Managed, Session, Setup, cli};

const SOON: Duration = Duration::from_secs(15);

/// The stand-in in the folder of a broker: its processes, how it misbehaves, and what it was asked.
struct Windows(PathBuf);

impl Windows {
    fn in_folder(dir: &Path) -> Self {
        let windows = Self(dir.join("windows"));
        fs::create_dir(&windows.0).unwrap();
        let program = windows.0.join("powershell.exe");
        fs::copy(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/stand_in/powershell.exe"), &program).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        windows
    }

    fn be(&self, mode: &str) {
        fs::write(self.0.join("mode.new"), mode).unwrap();
        fs::rename(self.0.join("mode.new"), self.0.join("mode")).unwrap();
    }

    /// Two processes of the generation that runs, and two of others.
    fn populate(&self, broker: &Broker) {
        let instance = &broker.live_instances("fixture")[0];
        let id = instance["id"].as_str().unwrap();
        let generation = instance["generation"].as_u64().unwrap();
        let process = |pid: u64, of: String| {
            let command = format!("chrome.exe --user-data-dir=\"C:\\Temp\\lazy-mcp\\fixture-{of}\" --token=s3cret");
            json!({"pid": pid, "created": format!("638000000000000{pid}"), "name": "chrome.exe", "command": command})
        };
        let table = [
            process(100, format!("{id}-{generation}")),
            process(101, format!("{id}-{generation}\\Default")),
            process(200, format!("{id}-{generation}0")),
            process(201, format!("0{id}-{generation}")),
        ];
        fs::write(self.0.join("table.json"), json!(table).to_string()).unwrap();
    }

    fn pids(&self) -> Vec<u64> {
        let table: Vec<Value> = serde_json::from_slice(&fs::read(self.0.join("table.json")).unwrap()).unwrap();
        table.iter().map(|process| process["pid"].as_u64().unwrap()).collect()
    }

    fn questions(&self) -> usize {
        let log = fs::read_to_string(self.0.join("log")).unwrap_or_default();
        log.lines().filter(|line| line.starts_with("query ")).count()
    }
}

fn start(idle_seconds: u64) -> (Broker, Windows) {
    let ownership = "[backends.fixture.ownership]\nwindows = true\npowershell = \"../windows/powershell.exe\"\n";
    let backend = Backend::singleton("fixture").flag("--stderr-at-start", "${marker}").stop_seconds(4);
    let dir = Setup::new().known_port().backend(backend.toml(ownership).idle_seconds(idle_seconds)).write_whole();
    let windows = Windows::in_folder(dir.path());
    (Broker::start(dir), windows)
}

fn instance(broker: &Broker) -> Value {
    broker.backend_status("fixture")["instances"][0].clone()
}

#[test]
fn an_idle_stop_is_proved_on_windows_too() {
    let (broker, windows) = start(1);
    let session = Session::new(&broker, "fixture");
    assert_eq!(session.call("echo", &json!({"text": "hello"})).text(), "hello");
    windows.populate(&broker);
    let owner = instance(&broker)["owner"].as_str().unwrap().to_owned();
    assert!(["keeper+windows", "keeper+cgroup+windows"].contains(&&*owner), "{owner}");
    let kinds = broker.status()["broker"]["owner_kinds"].clone();
    assert!(kinds.as_array().unwrap().contains(&json!("windows")), "{kinds}");
    broker.wait_stopped("fixture", SOON);
    assert_eq!(windows.pids(), [200, 201], "those of others live on");
    broker.finish();
}

#[test]
fn what_windows_does_not_prove_is_shown_with_its_reason_and_tried_again() {
    let (broker, windows) = start(1);
    let session = Session::new(&broker, "fixture");
    session.call("echo", &json!({"text": "x"})).text();
    windows.populate(&broker);
    windows.be("error");
    let said = "powershell.exe says that Windows did not answer: CimException";
    let failed = until("the cleanup to fail", SOON, || {
        let instance = instance(&broker);
        assert_ne!(instance["state"], "stopped", "not proved");
        assert_ne!(instance["last_cleanup"]["ok"], true, "not proved");
        (instance["state"] == "cleanup_failed").then_some(instance)
    });
    assert_eq!(failed["last_cleanup"]["ok"], false);
    assert_eq!(failed["last_cleanup"]["reason"], said);
    assert_eq!(broker.status()["totals"]["cleanup_failed"], 1);
    let shown = broker.cli(&["status"]);
    assert_eq!(shown.code, Some(5), "{shown:#?}");
    assert!(shown.stdout.contains(&format!("{said}; tried: SIGKILL by its keeper")), "{}", shown.stdout);
    let refused = session.call("echo", &json!({"text": "x"}));
    assert_eq!(refused.refusal(), "cleanup_failed");
    assert_eq!(windows.pids().len(), 4);

    windows.be("normal");
    until_true("a later try to prove it", Duration::from_secs(30), || instance(&broker)["state"] == "stopped");
    let cleanup = &instance(&broker)["last_cleanup"];
    assert_eq!((&cleanup["ok"], &cleanup["reason"]), (&json!(true), &Value::Null));
    assert_eq!(windows.pids(), [200, 201]);
    broker.assert_nothing_runs();
    assert_eq!(session.call("echo", &json!({"text": "again"})).text(), "again");
    assert!(!broker.log().contains("s3cret") && !broker.log().contains("--user-data-dir"));
    broker.finish();
}

#[test]
fn survivors_on_windows_are_named() {
    let (broker, windows) = start(1);
    Session::new(&broker, "fixture").call("echo", &json!({"text": "x"})).text();
    windows.populate(&broker);
    windows.be("mute");
    let survivors = until("survivors to be shown", Duration::from_secs(40), || {
        instance(&broker)["survivors"].as_array().filter(|survivors| !survivors.is_empty()).cloned()
    });
    let name = |survivor: &Value| (survivor["pid"].clone(), survivor["name"].clone(), survivor["windows"].clone());
    let expected = [100, 101].map(|pid| (json!(pid), json!("chrome.exe"), json!(true)));
    assert_eq!(survivors.iter().map(name).collect::<Vec<_>>(), expected);
    let shown = broker.cli(&["status"]).stdout;
    assert!(shown.contains("Windows pid 100 chrome.exe") && !shown.contains("s3cret"), "{shown}");
    windows.be("normal");
    broker.wait_stopped("fixture", Duration::from_secs(30));
    broker.finish();
}

#[test]
fn a_broker_is_ready_only_when_windows_is_clear_of_the_one_before() {
    let (mut broker, windows) = start(120);
    Session::new(&broker, "fixture").call("echo", &json!({"text": "x"})).text();
    windows.populate(&broker);
    windows.be("error");
    broker.kill_9();
    // The keeper asks, and the next broker asks, before Windows is well.
    let program = windows.0.clone();
    let healer = std::thread::spawn(move || {
        let windows = Windows(program);
        until_true("Windows to be asked in vain", SOON, || windows.questions() >= 2);
        windows.be("normal");
    });
    broker.restart();
    assert_eq!(windows.pids(), [200, 201], "ready was said before");
    healer.join().unwrap();
    broker.assert_nothing_left("a restart", Duration::from_secs(5));
    broker.finish();
}

/// As the first `powershell.exe` after the start of a WSL may.
#[test]
fn a_broker_waits_for_a_windows_that_takes_its_time() {
    let (mut broker, windows) = start(120);
    Session::new(&broker, "fixture").call("echo", &json!({"text": "x"})).text();
    windows.be("slow 11");
    broker.kill_9();
    broker.restart();
    assert!(broker.log().contains("not ready"), "the first try is short");
    broker.assert_nothing_left("a restart", Duration::from_secs(5));
    broker.finish();
}

#[test]
fn a_reload_does_not_tell_the_service_manager_that_it_is_ready() {
    let (mut broker, windows) = start(120);
    Session::new(&broker, "fixture").call("echo", &json!({"text": "x"})).text();
    windows.populate(&broker);
    windows.be("error");
    broker.kill_9();
    let mut managed = Managed::start(broker.dir(), Duration::from_secs(60));
    let said = |reload: bool| {
        if reload {
            managed.signal(Signal::SIGHUP);
            managed.wait_for("RELOADING=1");
        }
        managed.wait_for("READY=1")
    };
    let not_ready = "not ready: what an earlier broker left is not proved gone";
    let first = said(false);
    assert!(first.contains(not_ready), "{first}");
    let reloaded = said(true);
    assert!(reloaded.contains(not_ready), "{reloaded}");
    let policy = broker.read("policies/fixture.lua");
    broker.write("policies/fixture.lua", "return 1");
    let refused = said(true);
    assert!(refused.contains("reload refused") && refused.contains(not_ready), "{refused}");
    broker.write("policies/fixture.lua", &policy);
    windows.be("normal");
    managed.wait_for("STATUS=ready");
    let reloaded = said(true);
    assert!(reloaded.contains("STATUS=ready"), "{reloaded}");
    managed.signal(Signal::SIGTERM);
    let status = managed.wait_end();
    assert!(status.success(), "{status}");
    assert_eq!(windows.pids(), [200, 201], "those of others live on");
    broker.assert_nothing_left("its end", Duration::from_millis(100));
}

#[test]
fn the_shipped_file_for_wsl_passes_a_check() {
    let run = cli::run(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/config/wsl-chrome.toml")), &["check"]);
    assert_eq!(run.code, Some(0), "{run:#?}");
    assert!(run.stdout.ends_with("ok: 2 backends\n"), "{run:#?}");
}
