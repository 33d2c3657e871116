//! Catalog files, from outside: what is verified, what a capture changes, and that a server's bytes stay as they are.

#![expect(clippy::unwrap_used, reason = "a test may end at what it did not expect")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use insta::assert_snapshot;
use lazy_mcp_broker::catalog::{
    Capture, CaptureError, Catalog, Change, Decision, LiveTools, UNREVIEWED, drift, load, merge,
};
use lazy_mcp_broker::core::digest::Digest;
use proptest::prelude::*;
use serde_json::Value;
use serde_json::value::RawValue;
use tempfile::TempDir;

const ALPHA: &str = r#"{"name":"alpha","description":"first","inputSchema":{"type":"object"}}"#;
const BETA: &str = r#"{"inputSchema": {"maximum": 1.50, "x-vendor": [1e2, -0]}, "name": "beta", "annotations":{"category":"é\u00e9"}}"#;
const GAMMA: &str = r#"{"name":"gamma"}"#;

fn raw(text: &str) -> Box<RawValue> {
    RawValue::from_string(text.to_owned()).unwrap()
}

fn capture(tools: &[&str]) -> Capture {
    Capture {
        backend: "demo".into(),
        package: "demo-mcp".into(),
        version: "1.0.0".into(),
        captured_at: "2026-11-30T00:00:00Z".into(),
        protocol_version: "2025-11-25".into(),
        modern_version: None,
        server_info: raw(r#"{"name":"demo"}"#),
        capabilities: raw(r#"{"tools":{}}"#),
        instructions: Some("use with \"care\"\n".into()),
        tools: tools.iter().map(|text| raw(text)).collect(),
        resources: vec![raw(r#"{"uri":"demo://a","name":"a"}"#)],
        resource_templates: Vec::new(),
        prompts: vec![raw(r#"{"name":"p"}"#)],
    }
}

/// `demo.json` in a directory of its own.
struct Place {
    dir: TempDir,
}

impl Place {
    fn new(text: &str) -> Self {
        let place = Self { dir: TempDir::new().unwrap() };
        std::fs::write(place.path(), text).unwrap();
        place
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("demo.json")
    }

    fn load(&self) -> Result<Catalog, String> {
        load(&self.path()).map_err(|faults| faults.to_string().replace(&format!("{}/", self.dir.path().display()), ""))
    }
}

#[track_caller]
fn catalog(text: &str) -> Catalog {
    Place::new(text).load().unwrap_or_else(|faults| panic!("{faults}"))
}

fn first(tools: &[&str]) -> Catalog {
    catalog(&merge(None, capture(tools)).unwrap().text)
}

/// What is said of the file of alpha, beta and gamma after an edit.
#[track_caller]
fn faults_after(from: &str, to: &str) -> String {
    let text = merge(None, capture(&[ALPHA, BETA, GAMMA])).unwrap().text;
    assert!(text.contains(from), "{from} is not in the file");
    match Place::new(&text.replacen(from, to, 1)).load() {
        Ok(_) => "no fault".into(),
        Err(faults) => faults,
    }
}

#[test]
fn the_file_has_a_tool_on_a_line() {
    assert_snapshot!(merge(None, capture(&[ALPHA, BETA])).unwrap().text, @r#"
    {
      "format": 1,
      "backend": "demo",
      "package": "demo-mcp",
      "version": "1.0.0",
      "captured_at": "2026-11-30T00:00:00Z",
      "protocol_version": "2025-11-25",
      "server_info": {"name":"demo"},
      "capabilities": {"tools":{}},
      "instructions": "use with \"care\"\n",
      "tools": [
        {"name":"alpha","description":"first","inputSchema":{"type":"object"}},
        {"inputSchema": {"maximum": 1.50, "x-vendor": [1e2, -0]}, "name": "beta", "annotations":{"category":"é\u00e9"}}
      ],
      "resources": [
        {"uri":"demo://a","name":"a"}
      ],
      "resource_templates": [],
      "prompts": [
        {"name":"p"}
      ],
      "tool_digests": {
        "alpha": "sha256:bda1f40b7ffd928de7066b9e180d4abf1474206e859c1c81dead4566f817c36f",
        "beta": "sha256:0f677aec295cee9d182f31fc6a7755b8b4e59ded7b6c5726df57a7df12d61929"
      },
      "enabled_tools": [
        "alpha",
        "beta"
      ],
      "excluded_tools": {},
      "digest": "sha256:666d8bce51ac40451da97338f5267ceff097d15f04750947844f24b17d652ffb"
    }
    "#);
}

#[test]
fn everything_comes_back_as_it_was_captured() {
    let catalog = first(&[ALPHA, BETA]);
    let tools: Vec<&str> = catalog.tools().iter().map(|tool| tool.raw.get()).collect();
    assert_eq!(tools, [ALPHA, BETA]);
    assert_eq!(catalog.instructions.as_deref(), Some("use with \"care\"\n"));
    assert_eq!(catalog.server_info.get(), r#"{"name":"demo"}"#);
    assert_eq!(catalog.resources[0].get(), r#"{"uri":"demo://a","name":"a"}"#);
    assert_eq!((catalog.backend.as_str(), catalog.package.as_str()), ("demo", "demo-mcp"));
    assert_eq!(catalog.tool("beta").unwrap().name, "beta");
    assert!(catalog.tool("gamma").is_none());
    assert_eq!(catalog.enabled().count(), 2);
}

#[test]
fn an_edited_definition_is_refused() {
    assert_snapshot!(faults_after("\"first\"", "\"worst\""), @"demo.json:12: definition of tool `alpha` does not match its digest (recorded bda1f40b7ffd…, found a4c7c734b2f7…); restore the file, or capture anew and review with `lazy-mcp catalog capture demo`");
    assert_snapshot!(faults_after("1.50", "1.51"), @"demo.json:13: definition of tool `beta` does not match its digest (recorded 0f677aec295c…, found acd39a04e47a…); restore the file, or capture anew and review with `lazy-mcp catalog capture demo`");
    assert_snapshot!(faults_after("\"name\":\"gamma\"", "\"name\":\"gamme\""), @r"
    demo.json:14: tool `gamme` was added by hand: nothing else in the file knows it; restore the file, or capture anew and review with `lazy-mcp catalog capture demo`
    demo.json:23: 'tool_digests' names `gamma`, which is no tool here (did you mean 'gamme'?)
    demo.json:28: 'enabled_tools' names `gamma`, which is no tool here (did you mean 'gamme'?)
    ");
}

#[test]
fn two_readings_of_one_definition_are_refused() {
    assert_snapshot!(faults_after("\"name\":\"alpha\"", "\"name\":\"alpha\",\"name\":\"alpha\""), @"demo.json:12: key 'name' is there twice; restore the file, or capture anew and review with `lazy-mcp catalog capture demo`");
    assert_snapshot!(faults_after("{\"type\":\"object\"}", "{\"type\":\"array\",\"type\":\"object\"}"), @"demo.json:12: key 'type' is there twice; restore the file, or capture anew and review with `lazy-mcp catalog capture demo`");
    assert_snapshot!(faults_after("\"format\": 1", "\"format\": 1,\n  \"format\": 1"), @"demo.json:3: key 'format' is there twice; restore the file, or capture anew and review with `lazy-mcp catalog capture demo`");
}

#[test]
fn an_edit_beside_the_tools_is_refused() {
    for (from, to) in [
        ("\"version\": \"1.0.0\"", "\"version\": \"1.0.1\""),
        ("use with", "use without"),
        ("\"name\":\"demo\"", "\"name\":\"other\""),
        ("demo://a", "demo://b"),
        ("\"captured_at\": \"2026", "\"captured_at\": \"2027"),
        ("\"backend\": \"demo\"", "\"backend\": \"demos\""),
    ] {
        let faults = faults_after(from, to);
        assert!(faults.contains("content does not match 'digest'"), "{to}: {faults}");
    }
    assert_snapshot!(faults_after("\"version\": \"1.0.0\"", "\"version\": \"1.0.1\""), @"demo.json:34: content does not match 'digest': something beside the tools' definitions was edited (found sha256:8255405a7d5a6f3dc70a75adfc14323a020bc3b2866b772c6d6e5ce67d488265); restore the file, or capture anew and review with `lazy-mcp catalog capture demo`");
    assert_snapshot!(faults_after("\"enabled_tools\": [\n    \"alpha\",", "\"enabled_tools\": [\n    \"alpha\",\n    \"alpha\","), @"demo.json:28: 'enabled_tools' has a name twice");
}

#[test]
fn every_tool_is_decided_on_exactly_once() {
    assert_snapshot!(faults_after("    \"alpha\",\n    \"beta\",", "    \"beta\","), @"demo.json:12: tool `alpha` is in neither 'enabled_tools' nor 'excluded_tools'; restore the file, or capture anew and review with `lazy-mcp catalog capture demo`");
    assert_snapshot!(faults_after("\"excluded_tools\": {}", "\"excluded_tools\": {\"beta\": \"no\", \"gama\": \"x\"}"), @r"
    demo.json:13: tool `beta` is in both 'enabled_tools' and 'excluded_tools'
    demo.json:33: 'excluded_tools' names `gama`, which is no tool here (did you mean 'gamma'?)
    ");
    assert_snapshot!(faults_after("    \"alpha\",\n    \"beta\",", "    \"alfa\",\n    \"beta\","), @r"
    demo.json:12: tool `alpha` is in neither 'enabled_tools' nor 'excluded_tools'; restore the file, or capture anew and review with `lazy-mcp catalog capture demo`
    demo.json:28: 'enabled_tools' names `alfa`, which is no tool here (did you mean 'alpha'?)
    ");
}

#[test]
fn faults_of_form_come_together() {
    let text = r#"{
  "format": 1,
  "package": "demo-mcp",
  "version": 2,
  "captured": "2026",
  "protocol_version": "2025-11-25",
  "server_info": [],
  "capabilities": {},
  "tools": [{"name": "a"}, {"nam": "b"}, 3, {"name": "a"}, {"name": ""}],
  "prompts": {},
  "tool_digests": {"c": "sha256:00"},
  "enabled_tools": "a",
  "digest": "x"
}"#;
    assert_snapshot!(Place::new(text).load().unwrap_err(), @r"
    demo.json:4: 'version' must be a string
    demo.json: lacks 'captured_at'; restore the file, or capture anew and review with `lazy-mcp catalog capture demo`
    demo.json:7: 'server_info' must be an object
    demo.json:10: 'prompts' must be an array
    demo.json:11: 'tool_digests' must be an object of digests
    demo.json:12: 'enabled_tools' must be an array of names
    demo.json: lacks 'excluded_tools'; restore the file, or capture anew and review with `lazy-mcp catalog capture demo`
    demo.json:13: 'digest' must be a digest of the form 'sha256:<64 hex digits>'
    demo.json:5: unknown key 'captured' (did you mean 'captured_at'?)
    ");
    let text = text
        .replace("\"sha256:00\"", &format!("\"{}\"", Digest::of(b"")))
        .replace("\"enabled_tools\": \"a\"", "\"enabled_tools\": [\"a\"],\n  \"excluded_tools\": {}");
    assert_snapshot!(Place::new(&text).load().unwrap_err(), @r"
    demo.json:4: 'version' must be a string
    demo.json: lacks 'captured_at'; restore the file, or capture anew and review with `lazy-mcp catalog capture demo`
    demo.json:7: 'server_info' must be an object
    demo.json:10: 'prompts' must be an array
    demo.json:14: 'digest' must be a digest of the form 'sha256:<64 hex digits>'
    demo.json:5: unknown key 'captured' (did you mean 'captured_at'?)
    demo.json:9: tool `a` has no digest in 'tool_digests'; restore the file, or capture anew and review with `lazy-mcp catalog capture demo`
    demo.json:9: tool 2 of the list has no name, or is no object
    demo.json:9: tool 3 of the list has no name, or is no object
    demo.json:9: tool `a` is there twice
    demo.json:9: tool `a` has no digest in 'tool_digests'; restore the file, or capture anew and review with `lazy-mcp catalog capture demo`
    demo.json:9: has a tool whose name is empty, longer than 256 bytes or has control characters
    demo.json:9: tool `` was added by hand: nothing else in the file knows it; restore the file, or capture anew and review with `lazy-mcp catalog capture demo`
    demo.json:11: 'tool_digests' names `c`, which is no tool here (known: , a)
    ");
}

#[test]
fn what_is_no_catalog_is_said() {
    assert_snapshot!(Place::new("").load().unwrap_err(), @"demo.json:1: is not JSON: EOF while parsing a value; restore the file, or capture anew and review with `lazy-mcp catalog capture demo`");
    assert_snapshot!(Place::new("{\n\"format\": 1,\n}").load().unwrap_err(), @"demo.json:3: is not JSON: trailing comma; restore the file, or capture anew and review with `lazy-mcp catalog capture demo`");
    assert_snapshot!(Place::new("[]").load().unwrap_err(), @"demo.json:1: invalid type: sequence, expected an object; restore the file, or capture anew and review with `lazy-mcp catalog capture demo`");
    assert_snapshot!(Place::new("{\"format\": 2}").load().unwrap_err(), @"demo.json:1: 'format' is 2, but this version reads format 1");
    let place = Place::new("");
    std::fs::remove_file(place.path()).unwrap();
    assert_snapshot!(place.load().unwrap_err(), @"demo.json: cannot be read: No such file or directory (os error 2); restore the file, or capture anew and review with `lazy-mcp catalog capture demo`");
    std::fs::write(place.path(), b"{\"\xff\": 1}").unwrap();
    assert_snapshot!(place.load().unwrap_err(), @"demo.json: is not UTF-8 text; restore the file, or capture anew and review with `lazy-mcp catalog capture demo`");
}

/// Any one byte made another: either it is refused, or it means the same (spacing, the case of an escape).
#[test]
fn no_edited_byte_goes_unseen() {
    let text = merge(None, capture(&[BETA])).unwrap().text;
    let meaning = |text: &str| serde_json::from_str::<Value>(text).unwrap();
    let original = meaning(&text);
    let place = Place::new(&text);
    let mut refused = 0;
    for at in 0..text.len() {
        for byte in [b'0', text.as_bytes()[at] ^ 1] {
            if byte == text.as_bytes()[at] {
                continue;
            }
            let mut edited = text.clone().into_bytes();
            edited[at] = byte;
            std::fs::write(place.path(), &edited).unwrap();
            match place.load() {
                Err(_) => refused += 1,
                Ok(_) => assert_eq!(meaning(std::str::from_utf8(&edited).unwrap()), original, "byte {at} to {byte}"),
            }
        }
    }
    assert!(refused > text.len(), "{refused}");
}

/// Cut off anywhere, as by a full disk.
#[test]
fn no_cut_file_is_taken() {
    let text = merge(None, capture(&[BETA])).unwrap().text;
    let place = Place::new(&text);
    for len in 0..text.trim_end().len() {
        std::fs::write(place.path(), &text.as_bytes()[..len]).unwrap();
        assert!(place.load().is_err(), "{len} bytes");
    }
}

#[test]
fn spacing_and_key_order_do_not_count() {
    let text = merge(None, capture(&[ALPHA, BETA])).unwrap().text;
    let pretty = serde_json::to_string_pretty(&serde_json::from_str::<Value>(&text).unwrap()).unwrap();
    let loaded = catalog(&pretty);
    assert_eq!(loaded.digest, catalog(&text).digest);
    assert_eq!(loaded.tools()[0].raw.get(), ALPHA, "a pretty-printed tool is one line again");
}

/// Fixed, so that a change of the canonical form, which would refuse every catalog there is, does not go unseen.
#[test]
fn digests_are_stable_over_versions() {
    assert_snapshot!(first(&[ALPHA, BETA]).digest, @"sha256:666d8bce51ac40451da97338f5267ceff097d15f04750947844f24b17d652ffb");
    assert_snapshot!(first(&[ALPHA, BETA]).tools()[1].digest, @"sha256:0f677aec295cee9d182f31fc6a7755b8b4e59ded7b6c5726df57a7df12d61929");
}

#[track_caller]
fn changes(previous: &Catalog, capture: Capture) -> (Catalog, String) {
    let merged = merge(Some(previous), capture).unwrap();
    let changes: Vec<String> = merged.changes.iter().map(ToString::to_string).collect();
    (catalog(&merged.text), changes.join("\n"))
}

#[test]
fn a_first_capture_enables_everything() {
    let merged = merge(None, capture(&[ALPHA, BETA])).unwrap();
    let added = |tool: &str| Change::Added { tool: tool.into(), enabled: true };
    assert_eq!(merged.changes, [added("alpha"), added("beta")]);
}

#[test]
fn a_later_capture_keeps_decisions_and_excludes_what_is_new() {
    let before = first(&[ALPHA, BETA]);
    let reason = "changes the user's files".to_owned();
    let before = catalog(&before.text_with("beta", Decision::Excluded { reason: reason.clone() }).unwrap());
    let (after, told) = changes(&before, capture(&[GAMMA, BETA, &ALPHA.replace("first", "other")]));
    assert_snapshot!(told, @r"
    new tool `gamma`: excluded, unreviewed
    tool `alpha` has another definition
    ");
    let decisions: BTreeMap<&str, &Decision> =
        after.tools().iter().map(|tool| (tool.name.as_str(), &tool.decision)).collect();
    let unreviewed = Decision::Excluded { reason: UNREVIEWED.into() };
    let excluded = Decision::Excluded { reason };
    let expected = [("alpha", &Decision::Enabled), ("beta", &excluded), ("gamma", &unreviewed)];
    assert_eq!(decisions, expected.into());
    assert_eq!(after.excluded().map(|(tool, _)| tool.name.as_str()).collect::<Vec<_>>(), ["gamma", "beta"]);
}

#[test]
fn a_tool_that_comes_back_is_new() {
    let (without, told) = changes(&first(&[ALPHA, GAMMA]), capture(&[ALPHA]));
    assert_snapshot!(told, @"tool `gamma` is gone");
    let (_, told) = changes(&without, capture(&[ALPHA, GAMMA]));
    assert_snapshot!(told, @"new tool `gamma`: excluded, unreviewed");
}

#[test]
fn the_same_answer_is_no_change() {
    let before = first(&[ALPHA, BETA]);
    let mut later = capture(&[ALPHA, BETA]);
    later.captured_at = "2027-01-01T00:00:00Z".into();
    let (after, told) = changes(&before, later);
    assert_eq!(told, "");
    assert_ne!(after.digest, before.digest);
}

#[test]
fn changes_beside_the_tools_are_told() {
    let mut later = capture(&[ALPHA]);
    later.version = "1.1.0".into();
    later.instructions = None;
    later.capabilities = raw("{}");
    later.prompts = Vec::new();
    let (_, told) = changes(&first(&[ALPHA]), later);
    assert_snapshot!(told, @r"
    `version` is another
    `capabilities` is another
    `instructions` is another
    `prompts` is another
    ");
}

#[test]
fn an_unsound_answer_makes_no_catalog() {
    let error = |tools: &[&str]| merge(None, capture(tools)).unwrap_err().to_string();
    assert_snapshot!(error(&[ALPHA, r#"{"title":"x"}"#]), @"tool 2 of the server's list has no name, or is no object");
    assert_snapshot!(error(&[r#"{"name":""}"#]), @"tool 1 of the server's list has a name that is empty, longer than 256 bytes or has control characters");
    assert_snapshot!(error(&[r#"{"name":"a","name":"b"}"#]), @"tool 1 of the server's list is not sound: key 'name' is there twice at line 1 column 18");
    assert_snapshot!(error(&[GAMMA, GAMMA]), @"the server lists tool `gamma` twice");
    let large = format!(r#"{{"name":"a","description":"{}"}}"#, "x".repeat(1 << 20));
    assert_snapshot!(error(&[&large]), @"tool `a` is 1048605 bytes long, more than 1048576");
    let mut no_object = capture(&[]);
    no_object.capabilities = raw("[]");
    assert_eq!(merge(None, no_object).unwrap_err(), CaptureError::NoObject { key: "capabilities" });
}

#[test]
fn a_decision_is_the_only_thing_that_it_changes() {
    let before = first(&[ALPHA, BETA]);
    let excluded = catalog(&before.text_with("alpha", Decision::Excluded { reason: "r".into() }).unwrap());
    assert_eq!(excluded.text_with("alpha", Decision::Enabled).unwrap(), before.text());
    let error = before.text_with("alpa", Decision::Enabled).unwrap_err();
    assert_snapshot!(error, @"no tool `alpa` in this catalog (did you mean 'alpha'?)");
}

#[test]
fn another_package_is_told_apart() {
    let catalog = first(&[]);
    assert_eq!(catalog.check_package("demo-mcp", "1.0.0"), Ok(()));
    assert_snapshot!(catalog.check_package("demo-mcp", "0.9.0").unwrap_err(), @"catalog is for demo-mcp 1.0.0, config starts 0.9.0: review the new one with `lazy-mcp catalog capture demo`, or start the old one");
    assert_snapshot!(catalog.check_package("other", "1.0.0").unwrap_err(), @"catalog is for demo-mcp 1.0.0, config starts other 1.0.0: review the new one with `lazy-mcp catalog capture demo`, or start the old one");
}

#[track_caller]
fn check_drift(live: &[&str], [changed, added, removed]: [&str; 3]) {
    let live: Vec<_> = live.iter().map(|text| raw(text)).collect();
    let reviewed = first(&[ALPHA, BETA]);
    let found = drift(&reviewed, &live);
    // What was kept of the list says the same later, whatever catalog it was first compared with.
    for at_start in [&reviewed, &first(&[&ALPHA.replace("first", "FIRST"), BETA, GAMMA])] {
        assert_eq!(LiveTools::of(&live, at_start).changed_from(&reviewed), found.changed);
    }
    let join = |names: &std::collections::BTreeSet<String>| names.iter().cloned().collect::<Vec<_>>().join(" ");
    let found_names = [join(&found.changed), join(&found.added), join(&found.removed)];
    assert_eq!(found_names, [changed, added, removed]);
    assert_eq!(found.is_empty(), found_names.iter().all(String::is_empty));
}

#[test]
fn drift_is_what_means_something_else() {
    check_drift(&[ALPHA, BETA], ["", "", ""]);
    check_drift(&[BETA, ALPHA], ["", "", ""]);
    let reordered = r#"{ "description": "first", "name": "alpha", "inputSchema": { "type": "object" } }"#;
    check_drift(&[reordered, BETA], ["", "", ""]);
    check_drift(&[&ALPHA.replace("first", "FIRST"), BETA, GAMMA], ["alpha", "gamma", ""]);
    check_drift(&[ALPHA], ["", "", "beta"]);
    check_drift(&[], ["", "", "alpha beta"]);
}

#[test]
fn a_live_tool_cannot_hide_behind_a_second_one() {
    let evil = ALPHA.replace("first", "evil");
    check_drift(&[ALPHA, &evil, BETA], ["alpha", "", ""]);
    check_drift(&[&evil, ALPHA, BETA], ["alpha", "", ""]);
    let twice = ALPHA.replace("\"description\":", "\"description\":\"evil\",\"description\":");
    check_drift(&[&twice, BETA], ["alpha", "", ""]);
    check_drift(&[ALPHA, BETA, "{}", "3"], ["", "", ""]);
}

/// Text of any JSON value with the spelling of numbers, spacing and escapes left to chance; never a line break.
fn json_text() -> impl Strategy<Value = String> {
    let space = prop::sample::select(vec!["", " ", "  ", "\t"]);
    let leaf = prop_oneof![
        prop::sample::select(vec!["null", "true", "1.50", "-0", "1e3", "1E+3", "12345678901234567890123"])
            .prop_map(str::to_owned),
        any::<String>().prop_map(|text| serde_json::to_string(&text).unwrap()),
        prop::sample::select(vec![r#""\u00e9""#, r#""\/""#, r#""é\n""#, r#""\\\"""#]).prop_map(str::to_owned),
    ];
    leaf.prop_recursive(3, 24, 4, move |inner| {
        let items = prop::collection::vec(inner.clone(), 0..4);
        let fields = prop::collection::vec(inner, 0..4);
        prop_oneof![
            (items, space.clone()).prop_map(|(items, space)| format!("[{space}{}]", items.join(&format!("{space},")))),
            (fields, space.clone()).prop_map(|(values, space)| {
                let fields: Vec<String> =
                    values.iter().enumerate().map(|(i, value)| format!("\"k{i}\"{space}:{value}")).collect();
                format!("{{{}{space}}}", fields.join(","))
            }),
        ]
    })
}

proptest! {
    #[test]
    fn a_servers_bytes_come_through_the_file_unchanged(bodies in prop::collection::vec(json_text(), 0..6)) {
        let tools: Vec<String> = bodies
            .iter()
            .enumerate()
            .map(|(i, body)| format!(r#"{{"x" :{body}, "name":"t{i}"}}"#))
            .collect();
        let tools: Vec<&str> = tools.iter().map(String::as_str).collect();
        let loaded = first(&tools);
        let served: Vec<&str> = loaded.tools().iter().map(|tool| tool.raw.get()).collect();
        prop_assert_eq!(served, tools);
    }
}

/// Name, tools, version: what is shipped.
const SHIPPED: [(&str, usize, &str, &str); 3] = [
    ("playwright", 24, "@playwright/mcp", "0.0.79"),
    ("chrome-devtools", 29, "chrome-devtools-mcp", "1.8.0"),
    ("agentation", 9, "agentation-mcp", "1.2.0"),
];

#[test]
fn the_shipped_catalogs_are_sound_and_written_as_we_write() {
    for (name, tools, package, version) in SHIPPED {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("catalogs/{name}.json"));
        let catalog = load(&path).unwrap_or_else(|faults| panic!("{faults}"));
        assert_eq!((catalog.tools().len(), catalog.enabled().count()), (tools, tools), "{name}");
        assert_eq!(catalog.check_package(package, version), Ok(()));
        assert_eq!(catalog.backend, name);
        assert_eq!(catalog.text(), std::fs::read_to_string(&path).unwrap(), "{name}");
    }
}
