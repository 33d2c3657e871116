//! A walk over a parsed TOML document that collects every fault with its line.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::path::Path;
use std::time::Duration;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::core::diagnostic::{Diagnostic, Diagnostics, suggestion};

/// The file being read and what was found wrong so far.
pub(super) struct Reader<'a> {
    file: &'a Path,
    text: &'a str,
    faults: RefCell<Diagnostics>,
}

impl<'a> Reader<'a> {
    pub(super) fn new(file: &'a Path, text: &'a str) -> Self {
        Self { file, text, faults: RefCell::default() }
    }

    /// A fault at a byte offset.
    pub(super) fn fault(&self, at: usize, message: impl Into<String>) {
        let line = self.text.as_bytes()[..at.min(self.text.len())].iter().filter(|&&byte| byte == b'\n').count() + 1;
        self.faults.borrow_mut().push(Diagnostic::new(self.file, Some(line), message));
    }

    /// The faults in the order of their lines: the walk finds them table by table.
    pub(super) fn into_faults(self) -> Diagnostics {
        let mut all: Vec<Diagnostic> = self.faults.into_inner().iter().cloned().collect();
        all.sort_by_key(|fault| fault.line);
        let mut sorted = Diagnostics::default();
        all.into_iter().for_each(|fault| sorted.push(fault));
        sorted
    }
}

/// A value and what messages call it: `'listen' in [server]`.
#[derive(Clone)]
pub(super) struct Entry<'r> {
    reader: &'r Reader<'r>,
    pub(super) title: String,
    pub(super) value: &'r DeValue<'r>,
    pub(super) at: usize,
}

impl<'r> Entry<'r> {
    pub(super) fn fault(&self, message: impl std::fmt::Display) {
        self.reader.fault(self.at, format!("{} {message}", self.title));
    }

    fn wrong_type(&self, wanted: &str) {
        self.fault(format_args!("must be {wanted}, not {}", kind(self.value)));
    }

    pub(super) fn string(&self) -> Option<&'r str> {
        match self.value {
            DeValue::String(text) => Some(text.as_ref()),
            _ => {
                self.wrong_type("a string");
                None
            }
        }
    }

    pub(super) fn boolean(&self) -> Option<bool> {
        match self.value {
            DeValue::Boolean(value) => Some(*value),
            _ => {
                self.wrong_type("true or false");
                None
            }
        }
    }

    pub(super) fn integer(&self, range: RangeInclusive<u64>) -> Option<u64> {
        let DeValue::Integer(number) = self.value else {
            self.wrong_type("a whole number");
            return None;
        };
        let value = u64::from_str_radix(number.as_str(), number.radix()).ok().filter(|value| range.contains(value));
        if value.is_none() {
            self.fault(format_args!("must be from {} to {}, not {number}", range.start(), range.end()));
        }
        value
    }

    /// A number of seconds, whole or not.
    pub(super) fn seconds(&self, range: RangeInclusive<f64>) -> Option<Duration> {
        let (written, value) = match self.value {
            DeValue::Integer(number) => {
                (number.to_string(), i64::from_str_radix(number.as_str(), number.radix()).ok().map(|n| n as f64))
            }
            DeValue::Float(number) => (number.to_string(), number.as_str().parse().ok()),
            _ => {
                self.wrong_type("a number of seconds");
                return None;
            }
        };
        let value = value.filter(|value| range.contains(value));
        if value.is_none() {
            self.fault(format_args!("must be from {} to {} seconds, not {written}", range.start(), range.end()));
        }
        value.map(Duration::from_secs_f64)
    }

    /// The elements of an array, each with its own line.
    pub(super) fn elements(&self) -> Option<Vec<Entry<'r>>> {
        let DeValue::Array(array) = self.value else {
            self.wrong_type("an array");
            return None;
        };
        let element = |(i, item): (usize, &'r Spanned<DeValue<'r>>)| Entry {
            reader: self.reader,
            title: format!("element {} of {}", i + 1, self.title),
            value: item.get_ref(),
            at: item.span().start,
        };
        Some(array.iter().enumerate().map(element).collect())
    }

    /// The table that this is; `title` is what messages call it from here on.
    pub(super) fn section(&self, title: String) -> Option<Section<'r>> {
        match self.value {
            DeValue::Table(table) => {
                Some(Section { reader: self.reader, table, title, at: self.at, asked: BTreeSet::new() })
            }
            _ => {
                self.wrong_type("a table");
                None
            }
        }
    }
}

/// A table whose keys are asked for one by one; [`finish`](Self::finish) then reports those that nobody asked for.
pub(super) struct Section<'r> {
    reader: &'r Reader<'r>,
    table: &'r DeTable<'r>,
    title: String,
    at: usize,
    asked: BTreeSet<&'static str>,
}

impl<'r> Section<'r> {
    pub(super) fn document(reader: &'r Reader<'r>, table: &'r DeTable<'r>) -> Self {
        Self { reader, table, title: String::new(), at: 0, asked: BTreeSet::new() }
    }

    pub(super) fn get(&mut self, key: &'static str) -> Option<Entry<'r>> {
        self.asked.insert(key);
        let (name, value) = self.table.get_key_value(key)?;
        Some(self.entry(name, value))
    }

    /// The table under `key`, called `[outer.key]` in messages; `None` also when it is no table, which is reported.
    pub(super) fn part(&mut self, key: &'static str) -> Option<Section<'r>> {
        let title = match self.title.strip_suffix(']') {
            Some(outer) => format!("{outer}.{key}]"),
            None => format!("[{key}]"),
        };
        self.get(key)?.section(title)
    }

    /// Like [`get`](Self::get), and a fault with `hint` when it is not there.
    pub(super) fn require(&mut self, key: &'static str, hint: &str) -> Option<Entry<'r>> {
        let entry = self.get(key);
        if entry.is_none() {
            self.fault(format_args!("lacks '{key}': {hint}"));
        }
        entry
    }

    /// Every key with its value, for tables whose keys the operator chooses.
    pub(super) fn entries(&self) -> Vec<(&'r str, Entry<'r>)> {
        self.table.iter().map(|(name, value)| (name.get_ref().as_ref(), self.entry(name, value))).collect()
    }

    pub(super) fn fault(&self, message: impl std::fmt::Display) {
        self.reader.fault(self.at, format!("{} {message}", self.title));
    }

    /// Reports every key that was never asked for, with the nearest that was; whether there was none.
    pub(super) fn finish(self) -> bool {
        let mut all_known = true;
        for (name, _) in self.table.iter() {
            let key = name.get_ref().as_ref();
            if !self.asked.contains(key) {
                let place = if self.title.is_empty() { String::new() } else { format!(" in {}", self.title) };
                let near = suggestion(key, self.asked.iter().copied());
                self.reader.fault(name.span().start, format!("unknown key '{key}'{place}{near}"));
                all_known = false;
            }
        }
        all_known
    }

    fn entry(&self, name: &'r Spanned<std::borrow::Cow<'r, str>>, value: &'r Spanned<DeValue<'r>>) -> Entry<'r> {
        let key = name.get_ref();
        let title = if self.title.is_empty() { format!("'{key}'") } else { format!("'{key}' in {}", self.title) };
        Entry { reader: self.reader, title, value: value.get_ref(), at: name.span().start }
    }
}

fn kind(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a string",
        DeValue::Integer(_) => "a whole number",
        DeValue::Float(_) => "a number",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "an array",
        DeValue::Table(_) => "a table",
    }
}
