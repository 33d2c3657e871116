//! Reading and verifying a catalog file: every fault with its line, and what to do about it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::model::{Catalog, CatalogTool, Decision};
use super::strict::{self, Fields};
use super::write::{on_one_line, tool_parts};
use super::{FILE_BYTES_MAX, TOOL_BYTES_MAX, TOOL_NAME_BYTES_MAX, TOOLS_MAX};
use crate::core::diagnostic::{Diagnostic, Diagnostics, suggestion};
use crate::core::digest::Digest;

/// Reads a catalog and verifies all of it: each tool's digest, that each tool is decided on exactly once, the bounds,
/// and the digest of the whole.
///
/// # Errors
/// Everything that is wrong; when the file is not JSON, that alone.
pub fn load(path: &Path) -> Result<Catalog, Diagnostics> {
    let fault = |message: String| Diagnostics::from(Diagnostic::new(path, None, message));
    match String::from_utf8(read(path).map_err(fault)?) {
        Ok(text) => verify(path, &text),
        Err(_) => Err(fault(format!("is not UTF-8 text; {}", remedy(stem(path))))),
    }
}

impl Catalog {
    /// Whether its file is what it was when it was loaded, byte for byte: then there is nothing to verify again, which
    /// costs a hundred times as much as to read it.
    pub fn is_current(&self) -> bool {
        read(&self.path).is_ok_and(|bytes| Digest::of(&bytes) == self.file_digest)
    }
}

/// A file of bounded size. The error continues "path: …".
fn read(path: &Path) -> Result<Vec<u8>, String> {
    let cannot = |error: std::io::Error| format!("cannot be read: {error}; {}", remedy(stem(path)));
    let meta = path.metadata().map_err(cannot)?;
    if meta.len() > FILE_BYTES_MAX {
        return Err(format!("is {} bytes long: more than {FILE_BYTES_MAX} are not read", meta.len()));
    }
    std::fs::read(path).map_err(cannot)
}

fn verify(path: &Path, text: &str) -> Result<Catalog, Diagnostics> {
    let not_json = |error: serde_json::Error| {
        let message = error.to_string();
        let message = message.split(" at line ").next().unwrap_or_default();
        // JSON, but of another shape or with a key twice: the message says all of it.
        let kind = if error.is_data() { "" } else { "is not JSON: " };
        Diagnostic::new(path, Some(error.line()), format!("{kind}{message}; {}", remedy(stem(path))))
    };
    let whole = strict::parse(text).map_err(not_json)?;
    let Fields(fields) = serde_json::from_str(text).map_err(not_json)?;
    let mut file = File {
        path,
        text,
        fields: fields.into_iter().collect(),
        asked: BTreeSet::new(),
        faults: Diagnostics::default(),
        backend: whole["backend"].as_str().unwrap_or(stem(path)).to_owned(),
    };
    let catalog = file.catalog();
    if file.faults.is_empty() {
        file.check_whole(whole);
    }
    match catalog {
        Some(catalog) => file.faults.into_result(catalog),
        None => Err(file.faults),
    }
}

struct File<'a> {
    path: &'a Path,
    text: &'a str,
    fields: BTreeMap<String, &'a RawValue>,
    asked: BTreeSet<&'static str>,
    faults: Diagnostics,
    /// What `catalog capture` is to be called with.
    backend: String,
}

impl<'a> File<'a> {
    /// `None` only after a fault was noted, as with every function below.
    fn catalog(&mut self) -> Option<Catalog> {
        let format = self.field::<u64>("format", "the number 1");
        if let Some(format) = format.filter(|format| *format != 1) {
            let at = self.fields.get("format").copied();
            self.fault(at, format!("'format' is {format}, but this version reads format 1"));
            return None;
        }
        // Said by `verify` already; asked for so that it is a known key.
        self.optional::<String>("backend", "a string");
        let package = self.field("package", "a string");
        let version = self.field("version", "a string");
        let captured_at = self.field("captured_at", "a string");
        let protocol_version = self.field("protocol_version", "a string");
        let modern_version = self.optional::<String>("modern_version", "a string");
        let server_info = self.object("server_info");
        let capabilities = self.object("capabilities");
        let instructions = self.optional::<Option<String>>("instructions", "a string").flatten();
        let raw_tools = self.field::<Vec<&RawValue>>("tools", "an array");
        let resources = self.list("resources");
        let resource_templates = self.list("resource_templates");
        let prompts = self.list("prompts");
        let digests = self.field::<BTreeMap<String, Digest>>("tool_digests", "an object of digests");
        let enabled = self.field::<Vec<String>>("enabled_tools", "an array of names");
        let excluded = self.field::<BTreeMap<String, String>>("excluded_tools", "an object of names and reasons");
        let digest = self.field("digest", "a digest of the form 'sha256:<64 hex digits>'");
        self.unknown_keys();
        let tools = self.tools(&raw_tools?, &digests?, &enabled?, &excluded?);
        Some(Catalog {
            path: self.path.to_owned(),
            backend: self.backend.clone(),
            package: package?,
            version: version?,
            captured_at: captured_at?,
            protocol_version: protocol_version?,
            modern_version,
            server_info: server_info?,
            capabilities: capabilities?,
            instructions,
            resources,
            resource_templates,
            prompts,
            digest: digest?,
            file_digest: Digest::of(self.text.as_bytes()),
            tools,
        })
    }

    fn tools(
        &mut self,
        raws: &[&'a RawValue],
        digests: &BTreeMap<String, Digest>,
        enabled: &[String],
        excluded: &BTreeMap<String, String>,
    ) -> Vec<CatalogTool> {
        if raws.len() > TOOLS_MAX {
            self.fault(self.fields.get("tools").copied(), format!("has {} tools, more than {TOOLS_MAX}", raws.len()));
            return Vec::new();
        }
        let decided: BTreeSet<&str> = enabled.iter().map(String::as_str).collect();
        let mut tools = Vec::with_capacity(raws.len());
        let mut names = BTreeSet::new();
        for (i, raw) in raws.iter().copied().enumerate() {
            let (name, digest) = match tool_parts(raw) {
                Ok(parts) => parts,
                Err(reason) => {
                    self.fault(Some(raw), format!("tool {} of the list {reason}", i + 1));
                    continue;
                }
            };
            self.check_bounds(raw, &name);
            if !names.insert(name.clone()) {
                self.fault(Some(raw), format!("tool `{name}` is there twice"));
            }
            let is_enabled = decided.contains(name.as_str());
            if !digests.contains_key(&name) && !is_enabled && !excluded.contains_key(&name) {
                let message =
                    format!("tool `{name}` was added by hand: nothing else in the file knows it; {}", self.remedy());
                self.fault(Some(raw), message);
                continue;
            }
            self.check_digest(raw, &name, digest, digests.get(&name));
            let decision = match (is_enabled, excluded.get(&name)) {
                (true, None) => Decision::Enabled,
                (false, Some(reason)) => Decision::Excluded { reason: reason.clone() },
                (true, Some(_)) => {
                    self.fault(Some(raw), format!("tool `{name}` is in both 'enabled_tools' and 'excluded_tools'"));
                    continue;
                }
                (false, None) => {
                    let message =
                        format!("tool `{name}` is in neither 'enabled_tools' nor 'excluded_tools'; {}", self.remedy());
                    self.fault(Some(raw), message);
                    continue;
                }
            };
            tools.push(CatalogTool { name, raw: on_one_line(raw), digest, decision });
        }
        self.check_names("tool_digests", digests.keys(), &names);
        self.check_names("enabled_tools", enabled, &names);
        self.check_names("excluded_tools", excluded.keys(), &names);
        if decided.len() != enabled.len() {
            self.fault(self.fields.get("enabled_tools").copied(), "'enabled_tools' has a name twice".into());
        }
        tools
    }

    fn check_bounds(&mut self, raw: &RawValue, name: &str) {
        let bytes = raw.get().len();
        if bytes > TOOL_BYTES_MAX {
            self.fault(Some(raw), format!("tool `{name}` is {bytes} bytes long, more than {TOOL_BYTES_MAX}"));
        }
        if name.is_empty() || name.len() > TOOL_NAME_BYTES_MAX || name.chars().any(char::is_control) {
            let message = format!(
                "has a tool whose name is empty, longer than {TOOL_NAME_BYTES_MAX} bytes or has control characters"
            );
            self.fault(Some(raw), message);
        }
    }

    fn check_digest(&mut self, raw: &RawValue, name: &str, found: Digest, recorded: Option<&Digest>) {
        let message = match recorded {
            Some(recorded) if *recorded == found => return,
            Some(recorded) => {
                let (recorded, found) = (recorded.short(12), found.short(12));
                format!("definition of tool `{name}` does not match its digest (recorded {recorded}…, found {found}…)")
            }
            None => format!("tool `{name}` has no digest in 'tool_digests'"),
        };
        self.fault(Some(raw), format!("{message}; {}", self.remedy()));
    }

    /// Names that are no tools, each with the nearest that is.
    fn check_names<'n>(
        &mut self,
        key: &'static str,
        listed: impl IntoIterator<Item = &'n String>,
        names: &BTreeSet<String>,
    ) {
        let at = self.fields.get(key).copied();
        for name in listed.into_iter().filter(|name| !names.contains(*name)) {
            let near = suggestion(name, names.iter().map(String::as_str));
            self.fault(at, format!("'{key}' names `{name}`, which is no tool here{near}"));
        }
    }

    /// Only called when nothing else was found: then what was edited is no tool's definition.
    fn check_whole(&mut self, mut whole: Value) {
        let recorded = whole.as_object_mut().and_then(|fields| fields.shift_remove("digest"));
        let found = Digest::of_json(&whole);
        if recorded.as_ref().and_then(Value::as_str) != Some(found.to_string().as_str()) {
            let what = "content does not match 'digest': something beside the tools' definitions was edited";
            self.fault(self.fields.get("digest").copied(), format!("{what} (found {found}); {}", self.remedy()));
        }
    }

    fn field<T: Deserialize<'a>>(&mut self, key: &'static str, what: &str) -> Option<T> {
        if !self.fields.contains_key(key) {
            self.asked.insert(key);
            self.fault(None, format!("lacks '{key}'; {}", self.remedy()));
            return None;
        }
        self.optional(key, what)
    }

    fn optional<T: Deserialize<'a>>(&mut self, key: &'static str, what: &str) -> Option<T> {
        self.asked.insert(key);
        let raw = *self.fields.get(key)?;
        let value = serde_json::from_str(raw.get()).ok();
        if value.is_none() {
            self.fault(Some(raw), format!("'{key}' must be {what}"));
        }
        value
    }

    fn object(&mut self, key: &'static str) -> Option<Box<RawValue>> {
        let raw = self.field::<&RawValue>(key, "an object")?;
        if !raw.get().starts_with('{') {
            self.fault(Some(raw), format!("'{key}' must be an object"));
            return None;
        }
        Some(on_one_line(raw))
    }

    fn list(&mut self, key: &'static str) -> Vec<Box<RawValue>> {
        let list = self.optional::<Vec<&RawValue>>(key, "an array").unwrap_or_default();
        list.into_iter().map(on_one_line).collect()
    }

    fn unknown_keys(&mut self) {
        let unknown: Vec<(String, &RawValue)> = self
            .fields
            .iter()
            .filter(|(key, _)| !self.asked.contains(key.as_str()))
            .map(|(key, raw)| (key.clone(), *raw))
            .collect();
        for (key, raw) in unknown {
            let near = suggestion(&key, self.asked.iter().copied());
            self.fault(Some(raw), format!("unknown key '{key}'{near}"));
        }
    }

    fn fault(&mut self, at: Option<&RawValue>, message: String) {
        let line = at.map(|raw| self.line_of(raw));
        self.faults.push(Diagnostic::new(self.path, line, message));
    }

    fn line_of(&self, raw: &RawValue) -> usize {
        // Every raw value here borrows from the text, so its address is its place.
        let offset = (raw.get().as_ptr() as usize).saturating_sub(self.text.as_ptr() as usize);
        self.text.as_bytes().iter().take(offset).filter(|&&byte| byte == b'\n').count() + 1
    }

    fn remedy(&self) -> String {
        remedy(&self.backend)
    }
}

fn remedy(backend: &str) -> String {
    format!("restore the file, or capture anew and review with `lazy-mcp catalog capture {backend}`")
}

fn stem(path: &Path) -> &str {
    path.file_stem().and_then(|stem| stem.to_str()).unwrap_or("BACKEND")
}
