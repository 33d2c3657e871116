//! A JSON merge patch (RFC 7386) on raw JSON: what the patch does not name stays byte for byte.

use std::ops::Range;

use super::lua_json::Json;
use super::objects::{cuts, members};
use crate::policy::edits::Edits;
use crate::policy::json::{self, Malformed};

/// `target` (a raw object) with the patch; `None` if nothing changes. Where a key occurs more than once, every
/// occurrence is patched.
pub(in crate::policy) fn merged(target: &str, patch: &[(String, Json)]) -> Result<Option<String>, Malformed> {
    let mut edits = Edits::default();
    merge(target, 0, patch, &mut edits)?;
    edits.apply(target).map_err(|_| Malformed { at: 0, too_deep: false })
}

fn merge(text: &str, at: usize, patch: &[(String, Json)], edits: &mut Edits) -> Result<(), Malformed> {
    let members = members(text, at)?;
    let is_removed = |index: usize| {
        let key = &members[index].key;
        patch.iter().any(|(name, value)| *value == Json::Null && name == key)
    };
    let spans: Vec<Range<usize>> = members.iter().map(|member| member.span.clone()).collect();
    for cut in cuts(&spans, is_removed) {
        edits.replace(cut, "");
    }
    let mut added = String::new();
    for (name, value) in patch.iter().filter(|(_, value)| *value != Json::Null) {
        let mut is_there = false;
        for member in members.iter().filter(|member| member.key == *name) {
            is_there = true;
            match value {
                Json::Object(inner) if text[member.value.clone()].starts_with('{') => {
                    merge(text, member.value.start, inner, edits)?;
                }
                value => edits.replace(member.value.clone(), written(value)),
            }
        }
        if !is_there {
            added.push_str(if added.is_empty() { "" } else { "," });
            added.push_str(&format!("{}:{}", json::quote(name), written(value)));
        }
    }
    if !added.is_empty() {
        let is_any_kept = (0..members.len()).any(|index| !is_removed(index));
        let brace = text[at..].find('{').map_or(at, |step| at + step + 1);
        let end = spans.last().map_or(brace, |span| span.end);
        edits.replace(end..end, format!("{}{added}", if is_any_kept { "," } else { "" }));
    }
    Ok(())
}

fn written(value: &Json) -> String {
    let mut out = String::new();
    value.write(true, &mut out);
    out
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn json(value: &Value) -> Json {
        match value {
            Value::Null => Json::Null,
            Value::Array(items) => Json::List(items.iter().map(json).collect()),
            Value::Object(members) => Json::Object(members.iter().map(|(k, v)| (k.clone(), json(v))).collect()),
            scalar => Json::Scalar(scalar.to_string()),
        }
    }

    #[track_caller]
    fn check(target: &str, patch: &str, expected: &str) {
        let Json::Object(patch) = json(&serde_json::from_str(patch).unwrap()) else { panic!("a patch is an object") };
        let found = merged(target, &patch).unwrap().unwrap_or_else(|| target.to_owned());
        assert_eq!(found, expected);
        assert!(serde_json::from_str::<Value>(&found).is_ok(), "{found}");
    }

    /// The test cases of RFC 7386, appendix A, whose target and patch are objects.
    #[test]
    fn the_examples_of_the_rfc() {
        check(r#"{"a":"b"}"#, r#"{"a":"c"}"#, r#"{"a":"c"}"#);
        check(r#"{"a":"b"}"#, r#"{"b":"c"}"#, r#"{"a":"b","b":"c"}"#);
        check(r#"{"a":"b"}"#, r#"{"a":null}"#, "{}");
        check(r#"{"a":"b","b":"c"}"#, r#"{"a":null}"#, r#"{"b":"c"}"#);
        check(r#"{"a":["b"]}"#, r#"{"a":"c"}"#, r#"{"a":"c"}"#);
        check(r#"{"a":"c"}"#, r#"{"a":["b"]}"#, r#"{"a":["b"]}"#);
        check(r#"{"a":{"b":"c"}}"#, r#"{"a":{"b":"d","c":null}}"#, r#"{"a":{"b":"d"}}"#);
        check(r#"{"a":[{"b":"c"}]}"#, r#"{"a":[1]}"#, r#"{"a":[1]}"#);
        check(r#"{"e":null}"#, r#"{"a":1}"#, r#"{"e":null,"a":1}"#);
        check(r#"{"a":"foo"}"#, r#"{"a":{"bb":{"ccc":null}}}"#, r#"{"a":{"bb":{}}}"#);
    }

    #[test]
    fn what_is_not_named_keeps_its_bytes() {
        check(
            r#"{ "n" : 1E2 , "a" : "\u0041" , "b":[ 1 ] }"#,
            r#"{"a":"x"}"#,
            r#"{ "n" : 1E2 , "a" : "x" , "b":[ 1 ] }"#,
        );
        check(r#"{ "n" : 1E2 , "a" : 1 }"#, r#"{"a":null,"z":1}"#, r#"{ "n" : 1E2,"z":1 }"#);
        check(r#"{ "a":1 , "b": 2 }"#, r#"{"a":null,"b":null,"c":3}"#, r#"{ "c":3 }"#);
        check(r#"{"o":{ "x":1.0 }}"#, r#"{"o":{"y":2}}"#, r#"{"o":{ "x":1.0,"y":2 }}"#);
        check("{ }", r#"{"a":{"b":1}}"#, r#"{"a":{"b":1} }"#);
        check(r#"{"a":1}"#, "{}", r#"{"a":1}"#);
    }

    #[test]
    fn every_occurrence_of_a_key_is_patched() {
        check(r#"{"a":1,"\u0061":2}"#, r#"{"a":3}"#, r#"{"a":3,"\u0061":3}"#);
        check(r#"{"a":1,"b":0,"\u0061":2}"#, r#"{"a":null}"#, r#"{"b":0}"#);
    }
}
