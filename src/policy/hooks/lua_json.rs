//! JSON to Lua, for hooks to read, and Lua to JSON, for what hooks want written.
//!
//! Reading loses what Lua cannot hold: integers beyond 2^53, the order of keys. So what a hook does not name is never
//! written from Lua; its raw bytes stay. Writing takes what has one meaning in both: strings, booleans, finite numbers,
//! lists, tables with names, and `broker.null`.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;

use mlua::{Lua, LuaSerdeExt as _, Table, Value};
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};

use crate::policy::arguments::number_text;
use crate::policy::fields::kind;
use crate::policy::json;
use crate::policy::memory::Building;

/// Nesting of a table that a hook wants written.
const DEPTH_MAX: usize = 32;
/// Values in it.
const VALUES_MAX: usize = 10_000;

/// JSON text as tables that cannot be changed; `null` is `broker.null`. A key that occurs twice is an error, because a
/// hook would judge one and a server may take the other. The error continues the name of what it is.
pub(super) fn to_lua(lua: &Lua, text: &str) -> Result<Value, String> {
    let cannot = |error: &dyn fmt::Display| format!("cannot be shown to the policy: {error}");
    let building = Building::begin(lua).map_err(|error| cannot(&error))?;
    let mut input = serde_json::Deserializer::from_str(text);
    let value = Seed { lua, list: &lua.array_metatable(), building: &building }.deserialize(&mut input);
    let value = value.and_then(|value| input.end().map(|()| value));
    value.map_err(|error| cannot(&error))
}

/// What a value takes in a table at most, in bytes: a node of Luau 0.740, with its key. A list takes half of it.
const SLOT_BYTES: usize = 32;

#[derive(Clone, Copy)]
struct Seed<'l> {
    lua: &'l Lua,
    /// Marks lists, so that an empty one is not written back as an object.
    list: &'l Table,
    building: &'l Building<'l>,
}

impl<'de> DeserializeSeed<'de> for Seed<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Seed<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_bool<E: Error>(self, flag: bool) -> Result<Value, E> {
        Ok(Value::Boolean(flag))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Value, E> {
        Ok(Value::Number(number as f64))
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Value, E> {
        Ok(Value::Number(number as f64))
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<Value, E> {
        Ok(Value::Number(number))
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::NULL)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Value, E> {
        self.building.check(text.len()).map_err(E::custom)?;
        self.lua.create_string(text).map(Value::String).map_err(E::custom)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        self.building.check(SLOT_BYTES).map_err(A::Error::custom)?;
        let list = self.lua.create_table().map_err(A::Error::custom)?;
        let mut count = 0_usize;
        while let Some(item) = items.next_element_seed(self)? {
            // Then Lua makes room for twice as many.
            if count.is_power_of_two() {
                self.building.check(count * SLOT_BYTES).map_err(A::Error::custom)?;
            }
            list.raw_push(item).map_err(A::Error::custom)?;
            count += 1;
        }
        list.set_metatable(Some(self.list.clone())).map_err(A::Error::custom)?;
        list.set_readonly(true);
        Ok(Value::Table(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
        let mut found: Vec<(Cow<'de, str>, Value)> = Vec::new();
        while let Some(key) = members.next_key_seed(Key)? {
            found.push((key, members.next_value_seed(self)?));
        }
        if occurs_twice(&found) {
            return Err(A::Error::custom("a key occurs twice in an object"));
        }
        let keys: usize = found.iter().map(|(key, _)| key.len()).sum();
        self.building.check(keys + 2 * found.len() * SLOT_BYTES).map_err(A::Error::custom)?;
        // All at once, and so of the right size: Lua would make it anew for each power of two.
        let members = found.iter().map(|(key, value)| (&**key, value));
        let table = self.lua.create_table_from(members).map_err(A::Error::custom)?;
        table.set_readonly(true);
        Ok(Value::Table(table))
    }
}

/// A key of an object, borrowed from the text where nothing in it is escaped.
struct Key;

impl<'de> DeserializeSeed<'de> for Key {
    type Value = Cow<'de, str>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'de> Visitor<'de> for Key {
    type Value = Cow<'de, str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_borrowed_str<E: Error>(self, key: &'de str) -> Result<Self::Value, E> {
        Ok(Cow::Borrowed(key))
    }

    fn visit_str<E: Error>(self, key: &str) -> Result<Self::Value, E> {
        Ok(Cow::Owned(key.to_owned()))
    }
}

/// Objects of calls have few keys, and comparing those is cheaper than a set; an object with many gets one.
fn occurs_twice(members: &[(Cow<'_, str>, Value)]) -> bool {
    const FEW: usize = 16;
    if members.len() > FEW {
        let mut known = HashSet::with_capacity(members.len());
        return !members.iter().all(|(key, _)| known.insert(key));
    }
    let is_before = |at: usize, key: &str| members[..at].iter().any(|(known, _)| known == key);
    members.iter().enumerate().any(|(at, (key, _))| is_before(at, key))
}

/// A value that a hook wants written.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::policy) enum Json {
    Null,
    /// `true`, `false`, a number or a string, as JSON.
    Scalar(String),
    List(Vec<Json>),
    /// Sorted by key, so that the same policy writes the same bytes.
    Object(Vec<(String, Json)>),
}

/// The error continues "…: ".
pub(super) fn from_lua(lua: &Lua, value: &Value) -> Result<Json, String> {
    Writer { list: lua.array_metatable(), values_left: VALUES_MAX }.write(value, 0)
}

struct Writer {
    list: Table,
    values_left: usize,
}

impl Writer {
    fn write(&mut self, value: &Value, depth: usize) -> Result<Json, String> {
        if depth > DEPTH_MAX {
            return Err(format!("nested deeper than {DEPTH_MAX} levels"));
        }
        self.values_left = self.values_left.checked_sub(1).ok_or(format!("more than {VALUES_MAX} values"))?;
        if let Some(scalar) = scalar(value)? {
            return Ok(scalar);
        }
        match value {
            Value::Table(table) => self.table(table, depth),
            other => Err(format!("a {} has no meaning in JSON", kind(other))),
        }
    }

    fn table(&mut self, table: &Table, depth: usize) -> Result<Json, String> {
        // Raw, so that a metatable cannot make a table say different things to different readers.
        let pairs: Vec<(Value, Value)> = table.pairs().filter_map(Result::ok).collect();
        let is_list = table.metatable().is_some_and(|metatable| metatable == self.list);
        if pairs.is_empty() {
            return Ok(if is_list { Json::List(Vec::new()) } else { Json::Object(Vec::new()) });
        }
        if table.raw_len() == pairs.len() {
            let items = (1..=pairs.len()).map(|at| {
                let item: Value = table.raw_get(at).map_err(|error| error.to_string())?;
                self.write(&item, depth + 1)
            });
            return Ok(Json::List(items.collect::<Result<_, _>>()?));
        }
        let mut members = Vec::with_capacity(pairs.len());
        for (key, value) in pairs {
            let key = key.as_string().ok_or("a table is a list without gaps, or has names only")?;
            let key = key.to_str().map_err(|_| "a name is not UTF-8")?.to_owned();
            members.push((key, self.write(&value, depth + 1)?));
        }
        members.sort_by(|(a, _), (b, _)| a.cmp(b));
        Ok(Json::Object(members))
    }
}

/// `Ok(None)`: the value is no scalar.
pub(super) fn scalar(value: &Value) -> Result<Option<Json>, String> {
    Ok(Some(match value {
        value if *value == Value::NULL => Json::Null,
        Value::Boolean(flag) => Json::Scalar(flag.to_string()),
        Value::Integer(number) => Json::Scalar(number.to_string()),
        Value::Number(number) if number.is_finite() => Json::Scalar(number_text(*number)),
        Value::Number(_) => return Err("a number that is not finite".to_owned()),
        Value::String(text) => Json::Scalar(json::quote(&text.to_str().map_err(|_| "a text that is not UTF-8")?)),
        _ => return Ok(None),
    }))
}

impl Json {
    /// Appends the JSON text. In a merge patch `null` means "not there" inside objects, so with `patches` such members
    /// are left out (RFC 7386, section 2).
    pub fn write(&self, patches: bool, out: &mut String) {
        match self {
            Self::Null => out.push_str("null"),
            Self::Scalar(text) => out.push_str(text),
            Self::List(items) => {
                out.push('[');
                for (at, item) in items.iter().enumerate() {
                    if at > 0 {
                        out.push(',');
                    }
                    // A list is a value as a whole: nothing inside it is a patch.
                    item.write(false, out);
                }
                out.push(']');
            }
            Self::Object(members) => {
                out.push('{');
                let written = members.iter().filter(|(_, value)| !(patches && *value == Self::Null));
                for (at, (key, value)) in written.enumerate() {
                    if at > 0 {
                        out.push(',');
                    }
                    out.push_str(&json::quote(key));
                    out.push(':');
                    value.write(patches, out);
                }
                out.push('}');
            }
        }
    }
}
