//! The layers of `docs/architecture.md`: which module may know which, what the pure ones may not touch, and where
//! `unsafe` may stand. Reads the source, because the compiler has no opinion on these.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Each module and what it may use, besides itself. Arrows point down this list only.
const LAYERS: &[(&str, &[&str])] = &[
    ("core", &[]),
    ("protocol", &[]),
    ("config", &["core"]),
    ("catalog", &["core", "protocol"]),
    ("events", &["core"]),
    ("link", &["core", "protocol"]),
    ("ownership", &["core"]),
    ("policy", &["core", "protocol"]),
    ("review", &["core"]),
    ("telemetry", &["core"]),
    ("supervisor", &["core", "protocol", "config", "catalog", "events", "link", "ownership"]),
    ("snapshot", &["core", "protocol", "config", "catalog", "link", "policy", "review", "supervisor"]),
    (
        "broker",
        &[
            "core",
            "protocol",
            "catalog",
            "events",
            "link",
            "ownership",
            "policy",
            "review",
            "supervisor",
            "snapshot",
            "telemetry",
        ],
    ),
    ("front", &["core", "protocol", "events", "supervisor", "snapshot", "broker"]),
    ("exit", &["core"]),
    ("app", &["broker", "events", "exit", "front", "ownership", "snapshot", "supervisor", "telemetry"]),
    (
        "cli",
        &[
            "app",
            "catalog",
            "config",
            "core",
            "exit",
            "link",
            "ownership",
            "policy",
            "protocol",
            "review",
            "snapshot",
            "supervisor",
        ],
    ),
];

/// What would make a pure module impure, and why it may not.
const IMPURE: &[&str] = &[
    "tokio",
    "std::fs",
    "std::env",
    "std::net",
    "std::process",
    "std::thread",
    "SystemTime",
    "Instant",
    "tracing",
    "nix::",
];

fn source_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

/// All files of a module: `name.rs` and everything under `name/`.
fn files(module: &str) -> Vec<PathBuf> {
    let mut files = vec![source_dir().join(format!("{module}.rs"))];
    let mut dirs = vec![source_dir().join(module)];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(&dir).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                dirs.push(path);
            } else if path.extension().is_some_and(|ext| ext == "rs") {
                files.push(path);
            }
        }
    }
    files
}

/// Lines of code with their numbers: no comments.
fn code(path: &Path) -> Vec<(usize, String)> {
    let text = fs::read_to_string(path).expect("source files can be read");
    let is_code = |line: &&str| !line.trim_start().starts_with("//");
    let lines = text.lines().enumerate().filter(|(_, line)| is_code(line));
    lines.map(|(i, line)| (i + 1, line.to_owned())).collect()
}

/// The modules that a line names by `crate::module`, also in `use crate::{a, b}`.
fn named_modules(line: &str) -> BTreeSet<String> {
    let first_word = |text: &str| -> String {
        text.trim_start().chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect()
    };
    let mut names = BTreeSet::new();
    for (at, _) in line.match_indices("crate::") {
        let rest = &line[at + "crate::".len()..];
        match rest.strip_prefix('{') {
            Some(list) => names.extend(list.split([',', '}']).map(first_word)),
            None => {
                names.insert(first_word(rest));
            }
        }
    }
    names.remove("");
    names
}

#[test]
fn arrows_point_down_only() {
    let known: BTreeSet<&str> = LAYERS.iter().map(|(module, _)| *module).collect();
    let mut faults = Vec::new();
    for (module, allowed) in LAYERS {
        for path in files(module) {
            for (line_number, line) in code(&path) {
                for named in named_modules(&line) {
                    if named != *module && known.contains(&*named) && !allowed.contains(&&*named) {
                        faults.push(format!("{}:{line_number}: `{module}` may not use `{named}`", path.display()));
                    }
                }
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn every_module_has_its_layer() {
    let text = fs::read_to_string(source_dir().join("lib.rs")).unwrap();
    let modules: BTreeSet<&str> =
        text.lines().filter_map(|line| line.strip_prefix("pub mod ")?.strip_suffix(';')).collect();
    assert_eq!(modules, LAYERS.iter().map(|(module, _)| *module).collect());
    for (i, (module, allowed)) in LAYERS.iter().enumerate() {
        for lower in *allowed {
            let is_below = *module == "app" && *lower == "exit" || LAYERS[..i].iter().any(|(known, _)| known == lower);
            assert!(is_below, "`{module}` uses `{lower}`, which is not below it");
        }
    }
}

#[test]
fn pure_modules_touch_nothing() {
    for module in ["core", "protocol"] {
        for path in files(module) {
            let code = code(&path);
            let before_tests = code.iter().take_while(|(_, line)| !line.contains("#[cfg(test)]"));
            for (line_number, line) in before_tests {
                for word in IMPURE {
                    assert!(!line.contains(word), "{}:{line_number}: `{word}` in a pure module", path.display());
                }
            }
        }
    }
}

#[test]
fn unsafe_stands_under_ownership_alone_and_says_why() {
    for (module, _) in LAYERS {
        for path in files(module) {
            let text = fs::read_to_string(&path).unwrap();
            let lines: Vec<&str> = text.lines().collect();
            for (i, line) in lines.iter().enumerate() {
                let line = line.trim_start();
                if line.starts_with("//") || !line.contains("unsafe {") {
                    continue;
                }
                assert_eq!(*module, "ownership", "{}:{}: unsafe outside ownership", path.display(), i + 1);
                let said = lines[i.saturating_sub(6)..i].iter().any(|line| line.contains("// SAFETY:"));
                assert!(said, "{}:{}: no SAFETY comment", path.display(), i + 1);
            }
        }
    }
}

#[test]
fn files_stay_small() {
    for (module, _) in LAYERS {
        for path in files(module) {
            let lines = fs::read_to_string(&path).unwrap().lines().count();
            assert!(lines <= 600, "{} has {lines} lines; one reason a file", path.display());
        }
    }
}
