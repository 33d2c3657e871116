//! The file as text: one tool on a line, so that a review reads as a diff; and the digest of the whole.

use std::fmt::Write as _;

use serde::Serialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::model::{Catalog, CatalogTool, Decision, UnknownTool};
use super::strict;
use crate::core::diagnostic::suggestion;
use crate::core::digest::Digest;

impl Catalog {
    /// The file's text, digests computed anew. A file that was written by this comes out byte for byte.
    pub fn text(&self) -> String {
        let mut out = String::from("{");
        field(&mut out, "format", "1");
        field(&mut out, "backend", &json(&self.backend));
        field(&mut out, "package", &json(&self.package));
        field(&mut out, "version", &json(&self.version));
        field(&mut out, "captured_at", &json(&self.captured_at));
        field(&mut out, "protocol_version", &json(&self.protocol_version));
        if let Some(modern) = &self.modern_version {
            field(&mut out, "modern_version", &json(modern));
        }
        field(&mut out, "server_info", self.server_info.get());
        field(&mut out, "capabilities", self.capabilities.get());
        field(&mut out, "instructions", &json(&self.instructions));
        list(&mut out, "tools", self.tools.iter().map(|tool| tool.raw.get().to_owned()));
        for (key, raws) in [
            ("resources", &self.resources),
            ("resource_templates", &self.resource_templates),
            ("prompts", &self.prompts),
        ] {
            list(&mut out, key, raws.iter().map(|raw| raw.get().to_owned()));
        }
        let digest = |tool: &CatalogTool| (tool.name.clone(), json(&tool.digest));
        map(&mut out, "tool_digests", self.tools.iter().map(digest));
        list(&mut out, "enabled_tools", self.enabled().map(|tool| json(&tool.name)));
        map(&mut out, "excluded_tools", self.excluded().map(|(tool, reason)| (tool.name.clone(), json(reason))));
        seal(out)
    }

    /// The file's text with another decision on one tool; the rest as it is.
    pub fn text_with(&self, tool: &str, decision: Decision) -> Result<String, UnknownTool> {
        let mut catalog = self.clone();
        match catalog.tools.iter_mut().find(|known| known.name == tool) {
            Some(known) => known.decision = decision,
            None => {
                let near = suggestion(tool, self.tools.iter().map(|known| known.name.as_str()));
                return Err(UnknownTool { name: tool.to_owned(), near });
            }
        }
        Ok(catalog.text())
    }
}

/// Adds the digest of everything so far and closes the object.
fn seal(mut out: String) -> String {
    let whole: Value = serde_json::from_str(&format!("{out}\n}}")).expect("every piece that was written is valid JSON");
    field(&mut out, "digest", &json(&Digest::of_json(&whole)));
    out.push_str("\n}\n");
    out
}

fn key(out: &mut String, key: &str) {
    let comma = if out.ends_with('{') { "" } else { "," };
    let _ = write!(out, "{comma}\n  \"{key}\": ");
}

fn field(out: &mut String, name: &str, value: &str) {
    key(out, name);
    out.push_str(value);
}

fn list(out: &mut String, name: &str, items: impl Iterator<Item = String>) {
    key(out, name);
    lines(out, ['[', ']'], items);
}

fn map(out: &mut String, name: &str, items: impl Iterator<Item = (String, String)>) {
    key(out, name);
    lines(out, ['{', '}'], items.map(|(key, value)| format!("{}: {value}", json(&key))));
}

fn lines(out: &mut String, [open, close]: [char; 2], items: impl Iterator<Item = String>) {
    out.push(open);
    let mut any = false;
    for item in items {
        let comma = if any { "," } else { "" };
        let _ = write!(out, "{comma}\n    {item}");
        any = true;
    }
    if any {
        out.push_str("\n  ");
    }
    out.push(close);
}

fn json(value: &(impl Serialize + ?Sized)) -> String {
    serde_json::to_string(value).expect("strings and digests always have a JSON form")
}

/// Name and digest of a tool's definition; the error continues "tool … ".
pub(super) fn tool_parts(raw: &RawValue) -> Result<(String, Digest), String> {
    let value = strict::parse(raw.get()).map_err(|error| format!("is not sound: {error}"))?;
    let name = value.get("name").and_then(Value::as_str).ok_or("has no name, or is no object")?;
    Ok((name.to_owned(), Digest::of_json(&value)))
}

/// The same bytes, or, of a value over several lines, those that mean something.
pub(super) fn on_one_line(raw: &RawValue) -> Box<RawValue> {
    let text = raw.get();
    // A string in JSON has no line break in it, so one that is found is between tokens.
    if !text.contains(['\n', '\r']) {
        return raw.to_owned();
    }
    let mut compact = String::with_capacity(text.len());
    let (mut in_string, mut escaped) = (false, false);
    for c in text.chars() {
        match (in_string, c) {
            (false, ' ' | '\t' | '\n' | '\r') => continue,
            (false, '"') => in_string = true,
            (true, '"') if !escaped => in_string = false,
            _ => {}
        }
        escaped = in_string && c == '\\' && !escaped;
        compact.push(c);
    }
    RawValue::from_string(compact).expect("JSON stays JSON without the spaces between its tokens")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: &str) {
        let raw = RawValue::from_string(text.to_owned()).unwrap();
        assert_eq!(on_one_line(&raw).get(), expected);
    }

    #[test]
    fn one_line_stays_as_it_is() {
        check(r#"{"a": 1.50,  "b":[ ]}"#, r#"{"a": 1.50,  "b":[ ]}"#);
    }

    #[test]
    fn several_lines_lose_what_means_nothing() {
        check("{\n  \"a b\" : 1.50,\r\n\t\"c\": [ ]\n}", r#"{"a b":1.50,"c":[]}"#);
        check("[\n\"q\\\" x\",\"\\\\\" , \" y \"]", r#"["q\" x","\\"," y "]"#);
    }
}
