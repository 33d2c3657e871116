//! Reading `[backends.NAME]` and the tables below it.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use regex::Regex;
use toml::de::DeValue;

use super::environment::{EnvValue, SET_BY_BROKER};
use super::load::Loader;
use super::model::{BackendConfig, Deadlines, Ownership, Probe, RESERVED_NAMES};
use super::package::{Package, package_of};
use super::paths::absolute;
use super::reader::{Entry, Section};
use super::resolve::read_secret;
use super::template::{InstanceField, Placeholders, Template, is_env_name};
use super::vars::{env_reference, template, templates};
use crate::core::digest::Digest;
use crate::core::limits::TreeLimits;

/// Less no server starts with; the upper end keeps the number of bytes in 64 bits with ease (4 TiB).
const MEMORY_MAX_MB: RangeInclusive<u64> = 16..=4 << 20;
/// Less is no server that does anything; more than the upper end no 64-bit Linux has (PID_MAX_LIMIT).
const PIDS_MAX: RangeInclusive<u64> = 4..=4 << 20;

impl Loader<'_> {
    pub(super) fn backends(&self, section: &Section<'_>, vars: &BTreeSet<String>) -> BTreeMap<String, BackendConfig> {
        let mut backends = BTreeMap::new();
        for (name, entry) in section.entries() {
            if let Some(fault) = name_fault(name) {
                entry.fault(fault);
            }
            let title = format!("[backends.{name}]");
            let table = entry.section(title);
            let backend = table.and_then(|section| self.backend(name, section, vars));
            if let Some(backend) = backend {
                backends.insert(name.to_owned(), backend);
            }
        }
        backends
    }

    fn backend(&self, name: &str, mut section: Section<'_>, vars: &BTreeSet<String>) -> Option<BackendConfig> {
        let all = Placeholders::All { vars };
        let enabled = section.get("enabled").and_then(|entry| entry.boolean()).unwrap_or(true);
        let enabled = self.switches.get(name).copied().unwrap_or(enabled);
        let command = section.require("command", "the program to start, for example \"npx\"");
        let command = command.and_then(|entry| {
            let command = template(&entry, all)?;
            if command.text().is_empty() {
                entry.fault("is empty: name the program to start");
            }
            Some(command)
        });
        let (args, has_args) = match section.get("args").map(|entry| templates(&entry, all)) {
            Some(args) => (args.clone().unwrap_or_default(), args.is_some()),
            None => (Vec::new(), true),
        };
        let package = section.part("package").and_then(|section| declared_package(section, &args));
        let cwd = section.get("cwd").and_then(|entry| template(&entry, all));
        let catalog = section.require("catalog", &format!("its catalog, for example \"../catalogs/{name}.json\""));
        let catalog = catalog.and_then(|entry| {
            self.file_at(
                &entry,
                enabled && self.needs_files,
                &format!(": make it with `lazy-mcp catalog capture {name}`"),
            )
        });
        let policy = section.require("policy", &format!("its policy, for example \"../policies/{name}.lua\""));
        let policy = policy.and_then(|entry| self.file_at(&entry, enabled && self.needs_files, ""));
        let env = section.part("env").map(|section| self.env(&section, all, enabled)).unwrap_or_default();
        let env_allow = section.get("env_allow").and_then(|entry| env_allow(&entry)).unwrap_or_default();
        let deadlines = section.part("deadlines").map(deadlines).unwrap_or_default();
        // An argument that could not be read may be the one.
        let is_marked = !has_args || carries_marker(&args, &env);
        let ownership = section.part("ownership").map(|section| ownership(section, all, is_marked)).unwrap_or_default();
        let probe = section.part("probe").and_then(probe);
        section.finish();
        Some(BackendConfig {
            name: name.to_owned(),
            enabled,
            command: command?,
            args,
            cwd,
            catalog: catalog?,
            policy: policy?,
            env,
            env_allow,
            deadlines,
            ownership,
            probe,
            declared_package: package,
            base: absolute(&self.base),
        })
    }

    fn env(&self, section: &Section<'_>, allowed: Placeholders<'_>, enabled: bool) -> BTreeMap<String, EnvValue> {
        let mut env = BTreeMap::new();
        for (name, entry) in section.entries() {
            if !is_env_name(name) {
                entry.fault("is no name for an environment variable");
            } else if SET_BY_BROKER.contains(&name) {
                entry.fault("is set by the broker for every generation");
            }
            if let Some(value) = self.env_value(&entry, allowed, enabled) {
                env.insert(name.to_owned(), value);
            }
        }
        env
    }

    fn env_value(&self, entry: &Entry<'_>, allowed: Placeholders<'_>, enabled: bool) -> Option<EnvValue> {
        if matches!(entry.value, DeValue::String(_)) {
            return template(entry, allowed).map(EnvValue::Literal);
        }
        if !matches!(entry.value, DeValue::Table(_)) {
            entry.fault("must be a string, { env = \"NAME\" } or { file = \"path\" }");
            return None;
        }
        let mut section = entry.section(entry.title.clone())?;
        let (by_env, by_file) = (section.get("env"), section.get("file"));
        let one = by_env.is_some() != by_file.is_some();
        let value = match (by_env, by_file) {
            (Some(name), None) => env_reference(&name).map(EnvValue::Env),
            (None, Some(file)) => self.path_at(&file).map(|path| {
                let path = absolute(&path);
                let content = read_secret(&path);
                if let (true, Err(reason)) = (enabled, &content) {
                    file.fault(format_args!("names `{}`, which cannot be used: {reason}", path.display()));
                }
                EnvValue::File { content: content.ok().map(|secret| Digest::of(secret.as_bytes())), path }
            }),
            _ => None,
        };
        let all_known = section.finish();
        if all_known && !one {
            entry.fault("must have exactly one of 'env' and 'file'");
        }
        value
    }
}

fn env_allow(entry: &Entry<'_>) -> Option<BTreeSet<String>> {
    let mut allowed = BTreeSet::new();
    for element in entry.elements()? {
        let Some(pattern) = element.string() else { continue };
        if is_env_name(pattern.strip_suffix('*').unwrap_or(pattern)) {
            allowed.insert(pattern.to_owned());
        } else {
            element.fault(format_args!("is \"{pattern}\": write a name, or the start of names and a '*'"));
        }
    }
    Some(allowed)
}

fn deadlines(mut section: Section<'_>) -> Deadlines {
    let mut deadlines = Deadlines::default();
    let seconds = |entry: Option<Entry<'_>>, range| entry.and_then(|entry| entry.seconds(range));
    if let Some(start) = seconds(section.get("start_seconds"), 0.1..=3600.0) {
        deadlines.start = start;
    }
    if let Some(call) = seconds(section.get("call_seconds"), 0.1..=86400.0) {
        deadlines.call = call;
    }
    if let Some(stop) = seconds(section.get("stop_seconds"), 0.1..=600.0) {
        deadlines.stop = stop;
    }
    let polite = section.get("polite_seconds");
    if let Some(polite) = seconds(polite.clone(), 0.0..=600.0) {
        deadlines.polite = polite;
    } else {
        deadlines.polite = deadlines.polite.min(deadlines.stop);
    }
    if let Some(entry) = polite.filter(|_| deadlines.polite > deadlines.stop) {
        entry.fault(format_args!("is a part of 'stop_seconds' ({:?}) and cannot be longer", deadlines.stop));
    }
    section.finish();
    deadlines
}

fn ownership(mut section: Section<'_>, allowed: Placeholders<'_>, is_marked: bool) -> Ownership {
    let entry = section.get("windows");
    let windows = entry.as_ref().and_then(|entry| entry.boolean()).unwrap_or(false);
    if let Some(entry) = entry.filter(|_| windows && !is_marked) {
        entry.fault(
            "is of no use: nothing on the Windows side would carry the marker; put ${marker} into 'args', for example \
             as the end of the browser's profile directory",
        );
    }
    let memory_max_mb = section.get("memory_max_mb").and_then(|entry| entry.integer(MEMORY_MAX_MB));
    let pids_max = section.get("pids_max").and_then(|entry| entry.integer(PIDS_MAX));
    let powershell = section.get("powershell").and_then(|entry| {
        let powershell = template(&entry, allowed)?;
        if powershell.text().is_empty() {
            entry.fault("is empty: name the program, or leave it out");
        } else if powershell.has(None) {
            entry.fault("cannot depend on an instance: leftovers of any are asked for with it");
        } else if !windows {
            entry.fault("is of no use without windows = true");
        }
        Some(powershell)
    });
    section.finish();
    Ownership { windows, powershell, limits: TreeLimits { memory_max_mb, pids_max } }
}

fn carries_marker(args: &[Template], env: &BTreeMap<String, EnvValue>) -> bool {
    let in_env = env.values().filter_map(|value| match value {
        EnvValue::Literal(template) => Some(template),
        EnvValue::Env(_) | EnvValue::File { .. } => None,
    });
    args.iter().chain(in_env).any(|template| template.has(Some(InstanceField::Marker)))
}

fn probe(mut section: Section<'_>) -> Option<Probe> {
    let tool = section.require("tool", "the tool to call").and_then(|entry| entry.string());
    let arguments = section.get("arguments").and_then(|entry| match json(&entry)? {
        serde_json::Value::Object(arguments) => Some(arguments),
        _ => {
            entry.fault("must be a table");
            None
        }
    });
    let expect = section.get("expect").and_then(|entry| match Regex::new(entry.string()?) {
        Ok(regex) => Some(regex),
        Err(error) => {
            let reason = error.to_string();
            let reason = reason.lines().last().unwrap_or_default().trim_start_matches("error: ");
            entry.fault(format_args!("is no regular expression: {reason}"));
            None
        }
    });
    section.finish();
    Some(Probe { tool: tool?.to_owned(), arguments: arguments.unwrap_or_default(), expect })
}

fn json(entry: &Entry<'_>) -> Option<serde_json::Value> {
    use serde_json::Value;
    match entry.value {
        DeValue::String(text) => Some(Value::from(text.as_ref())),
        DeValue::Boolean(value) => Some(Value::from(*value)),
        DeValue::Integer(number) => match i64::from_str_radix(number.as_str(), number.radix()) {
            Ok(number) => Some(Value::from(number)),
            Err(_) => {
                entry.fault(format_args!("has the number {number}, which is out of range"));
                None
            }
        },
        DeValue::Float(number) => {
            let number = number.as_str().parse().ok().and_then(serde_json::Number::from_f64);
            if number.is_none() {
                entry.fault("has a number that JSON does not have");
            }
            number.map(Value::Number)
        }
        DeValue::Datetime(_) => {
            entry.fault("has a date, which JSON does not have: write a string");
            None
        }
        DeValue::Array(_) => {
            let items: Vec<Option<Value>> = entry.elements()?.iter().map(json).collect();
            items.into_iter().collect::<Option<Vec<_>>>().map(Value::Array)
        }
        DeValue::Table(_) => {
            let entries = entry.section(entry.title.clone())?.entries();
            let fields: Vec<_> = entries.iter().map(|(key, entry)| ((*key).to_owned(), json(entry))).collect();
            let fields = fields.into_iter().map(|(key, value)| value.map(|value| (key, value)));
            fields.collect::<Option<serde_json::Map<_, _>>>().map(Value::Object)
        }
    }
}

fn declared_package(mut section: Section<'_>, args: &[Template]) -> Option<Package> {
    let text = |entry: Option<Entry<'_>>| {
        let entry = entry?;
        let text = entry.string()?;
        if text.is_empty() {
            entry.fault("is empty");
        }
        Some(text.to_owned())
    };
    let name = text(section.require("name", "the package that the catalog is for"));
    let version = text(section.require("version", "its exact version"));
    let declared = Package { name: name?, version: version? };
    if let Some(started) = package_of(args.iter().map(Template::text)).filter(|started| *started != declared) {
        section.fault(format_args!("says {declared}, but 'args' start {started}"));
    }
    section.finish();
    Some(declared)
}

fn name_fault(name: &str) -> Option<String> {
    if RESERVED_NAMES.contains(&name) {
        return Some("cannot be the name of a backend: the broker answers on that path itself".into());
    }
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let good = (1..=32).contains(&name.len()) && name.chars().all(allowed) && !name.starts_with('-');
    (!good).then(|| {
        "cannot be the name of a backend: use 1 to 32 of 'a' to 'z', '0' to '9' and '-', and no '-' first".into()
    })
}
