//! In which manner a server is spoken to, and what the catalog records of that.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::{Backend, Broker, Modern, Session, Setup, cli};
use crate::{keyed, read};

/// A fixture that knows both, and logs what it reads.
fn dual(backend: Backend) -> Backend {
    backend.list_flags("--more --modern").flags("--log-lines")
}

/// What the servers have read, by methods, up to the first call.
fn greeting(broker: &Broker, backend: &str) -> Vec<String> {
    let heard = broker.events(backend).into_iter().filter(|event| event.event == "recv").map(|event| event.detail);
    heard.take_while(|method| method != "tools/call").collect()
}

const LEGACY: [&str; 3] = ["initialize", "notifications/initialized", "tools/list"];
const MODERN: [&str; 1] = ["tools/list"];

#[test]
fn a_server_of_both_eras_is_spoken_to_as_its_clients_speak() {
    let broker = Setup::new()
        .backend(dual(Backend::session("own")))
        .backend(dual(Backend::session("keyed")))
        .backend(dual(Backend::singleton("shared")))
        .start();
    Session::new(&broker, "own").call("echo", &json!({"text": "x"})).result();
    keyed(&broker, "keyed", "k").call("echo", &json!({"text": "x"})).result();
    Session::new(&broker, "shared").call("echo", &json!({"text": "x"})).result();
    Modern::new(&broker, "/shared/mcp").call("echo", &json!({"text": "x"})).result();
    assert_eq!(greeting(&broker, "own")[..3], LEGACY);
    assert_eq!(greeting(&broker, "keyed"), MODERN);
    assert_eq!(greeting(&broker, "shared"), MODERN);
    for (backend, calls, is_modern) in [("own", 1, false), ("keyed", 1, true), ("shared", 2, true)] {
        let seen = read(&broker, backend, "tools/call");
        assert_eq!(seen.len(), calls);
        for line in seen {
            assert_eq!(line.contains("io.modelcontextprotocol/protocolVersion"), is_modern, "{line}");
        }
        assert_eq!(broker.starts(backend), 1);
    }
    broker.finish();
}

#[test]
fn a_server_of_one_era_is_spoken_to_in_it() {
    let broker = Setup::new()
        .backend(crate::modern(Backend::session("modern")))
        .backend(crate::legacy(Backend::singleton("legacy")))
        .start();
    Session::new(&broker, "modern").call("echo", &json!({"text": "x"})).result();
    Modern::new(&broker, "/legacy/mcp").call("echo", &json!({"text": "x"})).result();
    assert_eq!(greeting(&broker, "modern"), MODERN);
    assert_eq!(greeting(&broker, "legacy")[..3], LEGACY);
    broker.finish();
}

/// A server that has lost the modern era since its catalog was made.
#[test]
fn a_server_that_became_legacy_is_greeted_as_such() {
    let old = Setup::new().backend(dual(Backend::singleton("fixture"))).write_whole();
    let catalog = std::fs::read_to_string(old.path().join("catalogs/fixture.json")).unwrap();
    let now = Setup::new().backend(crate::legacy(Backend::singleton("fixture"))).write();
    std::fs::write(now.path().join("catalogs/fixture.json"), catalog).unwrap();
    let broker = Broker::start(now);
    Modern::new(&broker, "/fixture/mcp").call("echo", &json!({"text": "x"})).result();
    assert!(greeting(&broker, "fixture").ends_with(&LEGACY.map(str::to_owned)), "{:?}", greeting(&broker, "fixture"));
    let call = read(&broker, "fixture", "tools/call").remove(0);
    assert!(!call.contains("io.modelcontextprotocol"), "{call}");
    assert_eq!(broker.starts("fixture"), 1);
    broker.finish();

    // One that refuses what it does not know.
    let broker = Setup::new().backend(Backend::singleton("server").conformance().flags("--only legacy")).start();
    assert_eq!(catalog_of(&broker, "server")["modern_version"], "2026-07-28");
    Modern::new(&broker, "/server/mcp").call("test_simple_text", &json!({})).result();
    Session::new(&broker, "server").call("test_simple_text", &json!({})).result();
    broker.finish();
}

fn catalog_of(broker: &Broker, backend: &str) -> Value {
    serde_json::from_str(&broker.read(&format!("catalogs/{backend}.json"))).expect("a catalog is JSON")
}

/// What a capture records of versions, and how often the server was started for it.
fn captured(backend: Backend, name: &str) -> (Option<i32>, Value, Value) {
    let dir = Setup::new().backend(backend).write();
    let run = cli::run(&dir.path().join("config/broker.toml"), &["catalog", "capture", name]);
    let text = std::fs::read_to_string(dir.path().join(format!("catalogs/{name}.json"))).unwrap_or_default();
    let catalog: Value = serde_json::from_str(&text).unwrap_or_default();
    let table = crate::support::processes::Table::read();
    let left = table.mentioning(&dir.path().display().to_string());
    assert!(left.is_empty(), "left by the capture ({run:?}): {left:?}");
    (run.code, catalog["protocol_version"].clone(), catalog["modern_version"].clone())
}

#[test]
fn a_capture_records_what_a_server_speaks() {
    let old = json!("2025-11-25");
    let new = json!("2026-07-28");
    let server = |only: &str| captured(Backend::singleton("server").conformance().flags(only), "server");
    assert_eq!(server("--only legacy"), (Some(0), old.clone(), json!(null)));
    assert_eq!(server("--only modern"), (Some(0), new.clone(), new.clone()));
    assert_eq!(server(""), (Some(0), old.clone(), new.clone()));
    let fixture = |flags: &str| captured(Backend::singleton("fixture").flags(flags), "fixture");
    assert_eq!(fixture(""), (Some(0), old.clone(), json!(null)));
    assert_eq!(fixture("--modern"), (Some(0), old.clone(), new.clone()));
    assert_eq!(fixture("--modern --refuse-initialize"), (Some(0), new.clone(), new));
    assert_eq!(fixture("--at-discover exit"), (Some(0), old, json!(null)));
    assert_eq!(fixture("--refuse-initialize").0, Some(1));
    assert_eq!(fixture("--refuse-initialize --at-discover exit").0, Some(1));
}

const START_SECONDS: u64 = 2;

#[test]
fn a_server_that_hangs_when_it_is_discovered_is_waited_for_so_long_and_no_longer() {
    let hanging = |flags: &str| {
        let begin = Instant::now();
        let backend =
            Backend::singleton("fixture").start_seconds(START_SECONDS).flags("--at-discover hang").flags(flags);
        (captured(backend, "fixture"), begin.elapsed())
    };
    let (recorded, took) = hanging("");
    assert_eq!(recorded, (Some(0), json!("2025-11-25"), json!(null)));
    assert!(took >= Duration::from_secs(START_SECONDS) && took < Duration::from_secs(START_SECONDS + 10), "{took:?}");
    assert_eq!(hanging("--refuse-initialize").0.0, Some(1));
}
