//! How severe a log message is.

use super::raw::{members, string};

/// The levels of RFC 5424 as MCP names them (2025-11-25, `server/utilities/logging`), the least severe first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    Debug,
    Info,
    Notice,
    Warning,
    Error,
    Critical,
    Alert,
    Emergency,
}

impl LogLevel {
    const ALL: [(&str, Self); 8] = [
        ("debug", Self::Debug),
        ("info", Self::Info),
        ("notice", Self::Notice),
        ("warning", Self::Warning),
        ("error", Self::Error),
        ("critical", Self::Critical),
        ("alert", Self::Alert),
        ("emergency", Self::Emergency),
    ];

    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|(known, _)| *known == name).map(|(_, level)| level)
    }

    /// Of a member of a raw object.
    pub fn of(object: Option<&str>, member: &str) -> Option<Self> {
        let [level] = members(object?, [member]).ok()?;
        Self::named(&string(level?)?)
    }

    pub fn name(self) -> &'static str {
        Self::ALL.into_iter().find(|(_, level)| *level == self).map_or("debug", |(name, _)| name)
    }
}
