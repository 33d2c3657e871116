//! Reads a Lua table whose fields are known, strictly: what is unknown, of the wrong type or out of bounds is a fault
//! with the line of its key.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use mlua::{Function, Table, Value};

use super::language;
use super::source::{Source, Step};
use crate::core::diagnostic::{Diagnostic, Diagnostics, suggestion};

/// The call of a constructor.
#[derive(Clone, Debug)]
pub(super) struct Site {
    pub source: Arc<Source>,
    pub constructor: &'static str,
    pub line: usize,
}

impl Site {
    pub fn file(&self) -> &Path {
        &self.source.path
    }
}

/// A table that is being read. [`Fields::close`] reports what was never asked for.
pub(super) struct Fields<'f> {
    site: &'f Site,
    faults: &'f mut Diagnostics,
    /// `broker.backend`, or the path of the field that holds the table.
    name: String,
    steps: Vec<Step>,
    values: BTreeMap<String, Value>,
    /// Names that were asked for, and whether the table had them.
    known: Vec<(&'static str, bool)>,
}

/// Where a value stands, to report about it later.
#[derive(Clone, Debug)]
pub(super) struct Place {
    /// Dotted, for people.
    pub name: String,
    pub line: usize,
}

impl<'f> Fields<'f> {
    pub fn of_constructor(site: &'f Site, table: &Table, faults: &'f mut Diagnostics) -> Self {
        Self::new(site, format!("broker.{}", site.constructor), Vec::new(), table, faults)
    }

    fn new(site: &'f Site, name: String, steps: Vec<Step>, table: &Table, faults: &'f mut Diagnostics) -> Self {
        let mut fields = Self { site, faults, name, steps, values: BTreeMap::new(), known: Vec::new() };
        for (key, value) in pairs(table) {
            match key {
                Value::String(key) => {
                    fields.values.insert(key.to_string_lossy(), value);
                }
                key => {
                    let step = key.as_usize().map(Step::Item);
                    let line = fields.line(step);
                    let message = format!("{} takes named fields only, got an unnamed {}", fields.name, kind(&value));
                    fields.faults.push(Diagnostic::new(site.file(), Some(line), message));
                }
            }
        }
        fields
    }

    /// The path of a field for people, and its line.
    pub fn place(&self, field: &str) -> Place {
        let name = if self.steps.is_empty() { field.to_owned() } else { format!("{}.{field}", self.name) };
        Place { name, line: self.line([Step::Key(field.to_owned())]) }
    }

    /// Of the table itself.
    pub fn own_place(&self) -> Place {
        Place { name: self.name.clone(), line: self.line([]) }
    }

    fn item_place(&self, field: &str, item: usize) -> Place {
        let place = self.place(field);
        let line = self.line([Step::Key(field.to_owned()), Step::Item(item)]);
        Place { name: format!("{}[{item}]", place.name), line }
    }

    fn line(&self, steps: impl IntoIterator<Item = Step>) -> usize {
        let steps: Vec<Step> = self.steps.iter().cloned().chain(steps).collect();
        self.site.source.line_of(self.site.constructor, self.site.line, &steps)
    }

    pub fn file(&self) -> &Path {
        self.site.file()
    }

    pub fn constructor(&self) -> String {
        format!("broker.{}", self.site.constructor)
    }

    /// "'place' `what`".
    pub fn fault(&mut self, place: &Place, what: impl std::fmt::Display) {
        let message = format!("'{}' {what}", place.name);
        self.faults.push(Diagnostic::new(self.site.file(), Some(place.line), message));
    }

    pub fn fault_of(&mut self, field: &str, what: impl std::fmt::Display) {
        self.fault(&self.place(field), what);
    }

    pub fn take(&mut self, field: &'static str) -> Option<Value> {
        debug_assert!(
            language::knows(self.site.constructor, self.steps.iter().filter_map(Step::key), field),
            "'{field}' of {} is missing from the table in policy/language/table.rs",
            self.name
        );
        let value = self.values.remove(field);
        self.known.push((field, value.is_some()));
        value
    }

    /// Takes a field that is no part of the language; whether it is there.
    pub fn take_foreign(&mut self, field: &str) -> bool {
        self.values.remove(field).is_some()
    }

    /// The value, or a fault that says what it must be.
    fn expect<T>(&mut self, field: &'static str, must_be: &str, read: impl FnOnce(&Value) -> Option<T>) -> Option<T> {
        let value = self.take(field)?;
        let result = read(&value);
        if result.is_none() {
            self.fault_of(field, format!("must be {must_be}, got {}", shown(&value)));
        }
        result
    }

    /// A fault if the table does not have the field; one with a wrong value was reported when it was read.
    pub fn require<T>(&mut self, field: &'static str, value: Option<T>) -> Option<T> {
        if self.known.contains(&(field, false)) {
            let message = format!("{} needs the field '{field}'", self.name);
            let line = self.line([]);
            self.faults.push(Diagnostic::new(self.site.file(), Some(line), message));
        }
        value
    }

    pub fn text(&mut self, field: &'static str) -> Option<String> {
        self.expect(field, "a string", text)
    }

    pub fn flag(&mut self, field: &'static str) -> Option<bool> {
        self.expect(field, "true or false", Value::as_boolean)
    }

    pub fn number(&mut self, field: &'static str) -> Option<f64> {
        self.expect(field, "a finite number", number)
    }

    pub fn whole(&mut self, field: &'static str, bounds: RangeInclusive<u32>) -> Option<u32> {
        let must_be = format!("a whole number from {} to {}", bounds.start(), bounds.end());
        self.expect(field, &must_be, |value| {
            let number = number(value).filter(|number| number.fract() == 0.0)?;
            let is_inside = (f64::from(*bounds.start())..=f64::from(*bounds.end())).contains(&number);
            is_inside.then_some(number as u32)
        })
    }

    /// A time in seconds, fractions allowed.
    pub fn seconds(&mut self, field: &'static str, bounds: RangeInclusive<f64>) -> Option<Duration> {
        let must_be = format!("a number of seconds from {} to {}", bounds.start(), bounds.end());
        self.expect(field, &must_be, |value| {
            number(value)
                .filter(|number| bounds.contains(number))
                .and_then(|number| Duration::try_from_secs_f64(number).ok())
        })
    }

    pub fn choice<T: Copy>(&mut self, field: &'static str, choices: &[(&str, T)]) -> Option<T> {
        let names: Vec<String> = choices.iter().map(|(name, _)| format!("\"{name}\"")).collect();
        self.expect(field, &names.join(" or "), |value| {
            let text = text(value)?;
            choices.iter().find(|(name, _)| *name == text).map(|(_, choice)| *choice)
        })
    }

    pub fn function(&mut self, field: &'static str) -> Option<Function> {
        self.expect(field, "a function", |value| value.as_function().cloned())
    }

    /// A list of values, each with its place.
    pub fn list(&mut self, field: &'static str) -> Option<Vec<(Place, Value)>> {
        let items = self.expect(field, "a list", |value| value.as_table().and_then(items))?;
        Some(items.into_iter().enumerate().map(|(at, value)| (self.item_place(field, at + 1), value)).collect())
    }

    /// A list of strings that are not empty; other items are faults and left out.
    pub fn texts(&mut self, field: &'static str) -> Option<Vec<(Place, String)>> {
        let items = self.list(field)?;
        Some(self.texts_of(items))
    }

    /// The same where a list of nothing would make what it narrows mean nothing.
    pub fn some_texts(&mut self, field: &'static str) -> Option<Vec<(Place, String)>> {
        let items = self.list(field)?;
        if items.is_empty() {
            self.fault_of(field, "must name at least one");
        }
        Some(self.texts_of(items))
    }

    fn texts_of(&mut self, items: Vec<(Place, Value)>) -> Vec<(Place, String)> {
        let texts = items.into_iter().filter_map(|(place, value)| match text(&value) {
            Some(text) if !text.is_empty() => Some((place, text)),
            _ => {
                self.fault(&place, format!("must be a string that is not empty, got {}", shown(&value)));
                None
            }
        });
        texts.collect()
    }

    /// Reads a table field by the given function.
    pub fn table<T>(&mut self, field: &'static str, read: impl FnOnce(&mut Fields<'_>) -> T) -> Option<T> {
        let table = self.expect(field, "a table", |value| value.as_table().cloned())?;
        Some(self.inner(field, &table, read))
    }

    /// Reads each entry of a table field, itself a table, by the given function.
    pub fn entries(&mut self, field: &'static str, mut read: impl FnMut(&str, &mut Fields<'_>)) {
        self.table(field, |entries| {
            for (name, value) in entries.take_all() {
                match value.as_table() {
                    Some(table) => entries.inner(&name, table, |fields| read(&name, fields)),
                    None => entries.fault_of(&name, format!("must be a table, got {}", shown(&value))),
                }
            }
        });
    }

    /// All fields, whatever their names.
    pub fn take_all(&mut self) -> BTreeMap<String, Value> {
        std::mem::take(&mut self.values)
    }

    fn inner<T>(&mut self, field: &str, table: &Table, read: impl FnOnce(&mut Fields<'_>) -> T) -> T {
        let steps = self.steps.iter().cloned().chain([Step::Key(field.to_owned())]).collect();
        let mut fields = Fields::new(self.site, self.place(field).name, steps, table, self.faults);
        let value = read(&mut fields);
        fields.close();
        value
    }

    /// Reports fields that nobody asked for.
    pub fn close(mut self) {
        for (field, _) in std::mem::take(&mut self.values) {
            let line = self.line([Step::Key(field.clone())]);
            let hint = suggestion(&field, self.known.iter().map(|(name, _)| *name));
            let message = format!("unknown field '{field}' in {}{hint}", self.name);
            self.faults.push(Diagnostic::new(self.site.file(), Some(line), message));
        }
    }
}

/// Raw, so that a metatable cannot make a table say different things to different readers.
fn pairs(table: &Table) -> Vec<(Value, Value)> {
    table.pairs::<Value, Value>().filter_map(Result::ok).collect()
}

/// The items of a table that is a list and nothing else.
fn items(table: &Table) -> Option<Vec<Value>> {
    let pairs = pairs(table);
    (0..pairs.len()).map(|at| table.raw_get(at + 1).ok().filter(|value: &Value| !value.is_nil())).collect()
}

pub(super) fn text(value: &Value) -> Option<String> {
    value.as_string().and_then(|text| text.to_str().ok().map(|text| text.to_owned()))
}

pub(super) fn number(value: &Value) -> Option<f64> {
    let number = match value {
        Value::Integer(number) => *number as f64,
        Value::Number(number) => *number,
        _ => return None,
    };
    number.is_finite().then_some(number)
}

/// The value for people, as far as it is short and says something.
pub(super) fn shown(value: &Value) -> String {
    match value {
        Value::Boolean(flag) => flag.to_string(),
        Value::Integer(number) => number.to_string(),
        Value::Number(number) => number.to_string(),
        Value::String(_) => match text(value) {
            Some(text) if text.chars().count() <= 40 => format!("{text:?}"),
            _ => "a long string".to_owned(),
        },
        other => kind(other).to_owned(),
    }
}

pub(super) fn kind(value: &Value) -> &'static str {
    match value {
        Value::Nil => "nil",
        Value::Boolean(_) => "boolean",
        Value::Integer(_) | Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Table(_) => "table",
        Value::Function(_) => "function",
        Value::UserData(_) => "rule",
        Value::LightUserData(_) => "null",
        _ => "value",
    }
}
