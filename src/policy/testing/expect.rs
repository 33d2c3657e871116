//! `expect`: what a test claims. Each fails with the line of the test that claimed it.

use std::fmt::Display;

use mlua::{Lua, Table, Value};

use super::subject::Refusal;
use super::views::{TestedCall, TestedPolicy, TestedResult};
use crate::policy::fields::{kind, number, text};
use crate::policy::sandbox::{self, error_at_caller};

/// Nesting up to which tables are compared and shown.
const DEPTH_MAX: usize = 64;
/// Characters of a value in a message.
const SHOWN_MAX: usize = 300;

pub(super) fn install(lua: &Lua) -> mlua::Result<()> {
    let expect = lua.create_table()?;
    expect.raw_set(
        "equal",
        lua.create_function(|lua, (actual, expected): (Value, Value)| {
            let is_equal = equal(&actual, &expected, 0)?;
            claim(lua, is_equal, || format!("expected {}, got {}", shown(&expected, 0), shown(&actual, 0)))
        })?,
    )?;
    expect.raw_set(
        "contains",
        lua.create_function(|lua, (actual, part): (Value, String)| {
            let texts = match result_of(&actual) {
                Some(result) => [result.text(), result.json().to_owned()],
                None => [of(lua, "contains", "a string or a result", &actual, text)?, String::new()],
            };
            claim(lua, texts.iter().any(|text| text.contains(&part)), || {
                format!("expected a text with {part:?}, got {}", cut(&texts[0]))
            })
        })?,
    )?;
    expect.raw_set(
        "allowed",
        lua.create_function(|lua, call: Value| {
            let call = of(lua, "allowed", "what policy:call gave", &call, call_of)?;
            let refusal = call.0.verdict.err();
            claim(lua, refusal.is_none(), || {
                let why = refusal.map_or_else(String::new, |refusal| refusal.to_string());
                format!("expected the call to be allowed, but: {why}")
            })
        })?,
    )?;
    expect.raw_set(
        "denied",
        lua.create_function(|lua, (call, part): (Value, Option<String>)| {
            let call = of(lua, "denied", "what policy:call gave", &call, call_of)?;
            refused(lua, "the call to be denied", "it is allowed", call.0.verdict.err(), part)
        })?,
    )?;
    expect.raw_set(
        "withheld",
        lua.create_function(|lua, (result, part): (Value, Option<String>)| {
            let result = of(lua, "withheld", "what policy:result gave", &result, result_of)?;
            refused(lua, "the result to be withheld", "the client gets it", result.seen.verdict.err(), part)
        })?,
    )?;
    expect.raw_set(
        "hidden",
        lua.create_function(|lua, (policy, tool): (Value, String)| {
            let policy = of(lua, "hidden", "a policy", &policy, policy_of)?;
            policy.0.check_tool(&tool).map_err(|why| error_at_caller(lua, why))?;
            claim(lua, !policy.0.tools.contains_key(&tool), || {
                format!("expected `{tool}` to be hidden, but clients see it")
            })
        })?,
    )?;
    expect.raw_set(
        "visible",
        lua.create_function(|lua, (policy, tool): (Value, String)| {
            let policy = of(lua, "visible", "a policy", &policy, policy_of)?;
            policy.0.check_tool(&tool).map_err(|why| error_at_caller(lua, why))?;
            claim(lua, policy.0.tools.contains_key(&tool), || {
                format!("expected `{tool}` to be visible, but clients do not see it")
            })
        })?,
    )?;
    expect.raw_set(
        "redacted",
        lua.create_function(|lua, (result, secret): (Value, String)| {
            let result = of(lua, "redacted", "what policy:result gave", &result, result_of)?;
            if secret.is_empty() || !has(&result.given, &secret) {
                return Err(error_at_caller(
                    lua,
                    format_args!("the result of the server has no {secret:?}, so this shows nothing"),
                ));
            }
            // The client gets nothing of it then, but neither would it of any other.
            if let Err(failure @ Refusal::Failed(_)) = &result.seen.verdict {
                return Err(error_at_caller(lua, format_args!("expected {secret:?} to be gone, but {failure}")));
            }
            claim(lua, !has(result.json(), &secret), || {
                format!("expected {secret:?} to be gone, but the client gets {}", cut(result.json()))
            })
        })?,
    )?;
    expect.raw_set(
        "same_bytes",
        lua.create_function(|lua, result: Value| {
            let result = of(lua, "same_bytes", "what policy:result gave", &result, result_of)?;
            claim(lua, result.json() == result.given, || match &result.seen.verdict {
                Ok(new) => format!("expected the bytes of the server, got {}", cut(new)),
                Err(reason) => format!("expected the bytes of the server, but the result is withheld: {reason}"),
            })
        })?,
    )?;
    sandbox::refuse_unknown_names(lua, &expect, |_| {
        " in expect: it has equal, contains, allowed, denied, hidden, visible, withheld, redacted, same_bytes"
            .to_owned()
    })?;
    lua.globals().raw_set("expect", expect)
}

fn claim(lua: &Lua, holds: bool, message: impl FnOnce() -> String) -> mlua::Result<()> {
    if holds { Ok(()) } else { Err(error_at_caller(lua, message())) }
}

fn refused(
    lua: &Lua,
    expected: &str,
    otherwise: &str,
    refusal: Option<Refusal>,
    part: Option<String>,
) -> mlua::Result<()> {
    // An empty part is in every text, so it asks for no failure in particular.
    let part = part.filter(|part| !part.is_empty());
    let fault = match (refusal, part) {
        (None, _) => format!("expected {expected}, but {otherwise}"),
        (Some(failure @ Refusal::Failed(_)), None) => format!("expected {expected}, but {failure}"),
        (Some(refusal), Some(part)) => match refusal.to_string() {
            reason if reason.contains(&part) => return Ok(()),
            reason => format!("expected {expected} with {part:?} in the reason, which is {reason:?}"),
        },
        (Some(Refusal::Decided(_)), None) => return Ok(()),
    };
    Err(error_at_caller(lua, fault))
}

fn of<T>(
    lua: &Lua,
    function: &str,
    what: impl Display,
    value: &Value,
    read: impl FnOnce(&Value) -> Option<T>,
) -> mlua::Result<T> {
    read(value).ok_or_else(|| error_at_caller(lua, format_args!("expect.{function} takes {what}, got {}", kind(value))))
}

fn call_of(value: &Value) -> Option<TestedCall> {
    value.as_userdata()?.borrow::<TestedCall>().ok().map(|call| call.clone())
}

fn result_of(value: &Value) -> Option<TestedResult> {
    value.as_userdata()?.borrow::<TestedResult>().ok().map(|result| result.clone())
}

fn policy_of(value: &Value) -> Option<TestedPolicy> {
    value.as_userdata()?.borrow::<TestedPolicy>().ok().map(|policy| policy.clone())
}

/// Whether a text is in the bytes of a JSON value, or in one of its strings, keys or numbers however they are spelled.
fn has(json: &str, part: &str) -> bool {
    fn inside(value: &serde_json::Value, part: &str) -> bool {
        match value {
            serde_json::Value::String(text) => text.contains(part),
            serde_json::Value::Array(items) => items.iter().any(|item| inside(item, part)),
            serde_json::Value::Object(members) => {
                members.iter().any(|(key, value)| key.contains(part) || inside(value, part))
            }
            other => other.to_string().contains(part),
        }
    }
    json.contains(part) || serde_json::from_str(json).is_ok_and(|value| inside(&value, part))
}

fn equal(a: &Value, b: &Value, depth: usize) -> mlua::Result<bool> {
    if let (Some(a), Some(b)) = (number(a), number(b)) {
        return Ok(a == b);
    }
    match (a, b) {
        (Value::Table(a), Value::Table(b)) if depth < DEPTH_MAX => {
            let pairs = |table: &Table| table.pairs::<Value, Value>().collect::<mlua::Result<Vec<_>>>();
            let (left, right) = (pairs(a)?, pairs(b)?);
            if left.len() != right.len() {
                return Ok(false);
            }
            for (key, value) in left {
                if !equal(&value, &b.raw_get(key)?, depth + 1)? {
                    return Ok(false);
                }
            }
            Ok(true)
        }
        _ => Ok(a == b),
    }
}

fn shown(value: &Value, depth: usize) -> String {
    let text = match value {
        Value::Table(table) if depth < DEPTH_MAX => {
            let length = table.raw_len();
            let mut items: Vec<String> = Vec::new();
            for (key, value) in table.pairs::<Value, Value>().filter_map(Result::ok) {
                let value = shown(&value, depth + 1);
                match (&key, text(&key)) {
                    (_, Some(name)) => items.push(format!("{name} = {value}")),
                    (key, _) if key.as_usize().is_some_and(|at| (1..=length).contains(&at)) => items.push(value),
                    (key, _) => items.push(format!("[{}] = {value}", shown(key, depth + 1))),
                }
            }
            if items.is_empty() { "{}".to_owned() } else { format!("{{ {} }}", items.join(", ")) }
        }
        Value::String(text) => format!("{:?}", text.to_string_lossy()),
        Value::Boolean(flag) => flag.to_string(),
        other => number(other).map_or_else(|| kind(other).to_owned(), |number| number.to_string()),
    };
    if depth == 0 { cut(&text) } else { text }
}

fn cut(text: &str) -> String {
    match text.char_indices().nth(SHOWN_MAX) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_owned(),
    }
}
