//! The policy language as data: every constructor, its fields, their types, bounds and defaults, and a sentence on each.
//!
//! From this one table come the stubs for editors (`policies/types/broker.d.luau`) and the reference
//! (`docs/reference/policy-api.md`). The readers in `backend.rs` and `constructors.rs` are code of their own, held to the
//! table from both sides: in builds with debug assertions they may not ask for a field that is not in it, and
//! `tests/policy/language.rs` sees for each field of it that a wrong value is refused with the table's own words.
//!
//! - `luau.rs` and `markdown.rs` write it down.

mod luau;
mod markdown;
mod table;

use std::fmt;

pub use luau::stubs;
pub use markdown::reference;
pub use table::{CONSTRUCTORS, FUNCTIONS, GLOBALS_OF_TESTS, VIEWS};

/// A function of `broker` that takes a table of named fields.
#[derive(Debug)]
pub struct Constructor {
    pub name: &'static str,
    pub yields: Yields,
    pub about: &'static str,
    pub record: &'static Record,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Yields {
    Backend,
    ArgumentRule,
    ResultRule,
}

/// A table with named fields.
#[derive(Debug)]
pub struct Record {
    /// Of its type in the stubs.
    pub name: &'static str,
    pub fields: &'static [Field],
}

#[derive(Debug)]
pub struct Field {
    pub name: &'static str,
    pub kind: Kind,
    pub presence: Presence,
    /// A sentence for people, with units.
    pub about: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    Required,
    Optional,
    /// As it is written in Lua.
    Default(&'static str),
}

/// What a field holds.
#[derive(Debug)]
pub enum Kind {
    Text,
    Flag,
    Number,
    /// Inclusive.
    Whole(u32, u32),
    /// A number, inclusive, fractions allowed.
    Seconds(f64, f64),
    /// One of these strings.
    Choice(&'static [&'static str]),
    /// A list of strings, none of them empty.
    Texts,
    Table(&'static Record),
    /// Tables by a name that the policy chooses, which is a name or glob of tools.
    ByTool(&'static Record),
    /// Argument rules by the name of the argument.
    ArgumentRules,
    ResultRules,
    /// A function, as its type in Luau.
    Hook(&'static str),
    /// Functions by name of the tool, as the type of one in Luau.
    Hooks(&'static str),
}

/// A function with arguments in an order, or a member of a view: its name, its type in Luau, a sentence.
#[derive(Debug)]
pub struct Member {
    pub name: &'static str,
    pub ty: &'static str,
    pub about: &'static str,
}

/// What a hook or a test is given.
#[derive(Debug)]
pub struct View {
    pub name: &'static str,
    pub about: &'static str,
    pub members: &'static [Member],
}

impl Kind {
    /// What a value must be, as the reader of such a field says it; nothing where readers say something of their own.
    pub fn must_be(&self) -> Option<String> {
        Some(match self {
            Self::Text => "a string".to_owned(),
            Self::Flag => "true or false".to_owned(),
            Self::Number => "a finite number".to_owned(),
            Self::Whole(min, max) => format!("a whole number from {min} to {max}"),
            Self::Seconds(min, max) => format!("a number of seconds from {min} to {max}"),
            Self::Choice(names) => names.iter().map(|name| format!("\"{name}\"")).collect::<Vec<_>>().join(" or "),
            Self::Texts | Self::ResultRules => "a list".to_owned(),
            Self::Table(_) | Self::ByTool(_) | Self::ArgumentRules | Self::Hooks(_) => "a table".to_owned(),
            Self::Hook(_) => return None,
        })
    }
}

/// For people, in the reference.
impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text => f.write_str("string"),
            Self::Flag => f.write_str("boolean"),
            Self::Number => f.write_str("number"),
            Self::Whole(min, u32::MAX) => write!(f, "whole number from {min}"),
            Self::Whole(min, max) => write!(f, "whole number, {min} to {max}"),
            Self::Seconds(min, max) => write!(f, "seconds, {min} to {max}"),
            Self::Choice(names) => {
                f.write_str(&names.iter().map(|name| format!("`\"{name}\"`")).collect::<Vec<_>>().join(" or "))
            }
            Self::Texts => f.write_str("list of strings"),
            Self::Table(_) => f.write_str("table, below"),
            Self::ByTool(_) => f.write_str("tables by tool name or glob, below"),
            Self::ArgumentRules => f.write_str("argument rules by argument"),
            Self::ResultRules => f.write_str("list of result rules"),
            Self::Hook(_) => f.write_str("function"),
            Self::Hooks(_) => f.write_str("functions by tool name or glob"),
        }
    }
}

/// Whether the table has the field at the end of these keys; keys that a policy chooses lead anywhere.
pub(super) fn knows<'a>(constructor: &str, keys: impl IntoIterator<Item = &'a str>, field: &str) -> bool {
    let Some(constructor) = CONSTRUCTORS.iter().find(|known| known.name == constructor) else { return false };
    let mut record = constructor.record;
    let mut keys = keys.into_iter();
    while let Some(key) = keys.next() {
        let Some(inner) = record.fields.iter().find(|known| known.name == key) else { return false };
        record = match inner.kind {
            Kind::Table(inner) => inner,
            Kind::ByTool(inner) => match keys.next() {
                Some(_) => inner,
                None => return true,
            },
            _ => return true,
        };
    }
    record.fields.iter().any(|known| known.name == field)
}
