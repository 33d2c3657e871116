//! What is wrong with a file that an operator wrote: collected, never only the first, each with its place.

use std::fmt;
use std::path::{Path, PathBuf};

/// One fault: the file, the line (counted from 1) where it is known, and a sentence that says what to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    pub file: PathBuf,
    pub line: Option<usize>,
    pub message: String,
}

impl Diagnostic {
    pub fn new(file: &Path, line: Option<usize>, message: impl Into<String>) -> Self {
        Self { file: file.to_owned(), line, message: message.into() }
    }
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "{}:{line}: {}", self.file.display(), self.message),
            None => write!(f, "{}: {}", self.file.display(), self.message),
        }
    }
}

/// All faults of one load. As an error it is never empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Diagnostics(Vec<Diagnostic>);

impl Diagnostics {
    pub fn push(&mut self, diagnostic: Diagnostic) {
        self.0.push(diagnostic);
    }

    pub fn extend(&mut self, other: Diagnostics) {
        self.0.extend(other.0);
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = &Diagnostic> {
        self.0.iter()
    }

    /// `value` if nothing was found, else everything that was.
    pub fn into_result<T>(self, value: T) -> Result<T, Diagnostics> {
        if self.0.is_empty() { Ok(value) } else { Err(self) }
    }
}

impl From<Diagnostic> for Diagnostics {
    fn from(diagnostic: Diagnostic) -> Self {
        Self(vec![diagnostic])
    }
}

impl fmt::Display for Diagnostics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, diagnostic) in self.0.iter().enumerate() {
            if i > 0 {
                writeln!(f)?;
            }
            write!(f, "{diagnostic}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Diagnostics {}

/// ` (did you mean 'x'?)` for the nearest known name, or the known names when none is near, or nothing.
pub fn suggestion<'a>(unknown: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    /// Below this Jaro-Winkler similarity a suggestion confuses more than it helps.
    const NEAR: f64 = 0.75;
    let known: Vec<&str> = known.into_iter().collect();
    let nearest =
        known.iter().map(|name| (strsim::jaro_winkler(unknown, name), *name)).max_by(|a, b| a.0.total_cmp(&b.0));
    match nearest {
        Some((near, name)) if near >= NEAR => format!(" (did you mean '{name}'?)"),
        Some(_) if known.len() <= 16 => format!(" (known: {})", known.join(", ")),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suggests_the_nearest_name_or_lists_the_few() {
        assert_eq!(
            suggestion("idle_timeout", ["idle_timeout_seconds", "queue"]),
            " (did you mean 'idle_timeout_seconds'?)"
        );
        assert_eq!(suggestion("zzz", ["command", "args"]), " (known: command, args)");
        assert_eq!(suggestion("zzz", []), "");
    }

    #[test]
    fn a_fault_reads_as_place_and_sentence() {
        let fault = Diagnostic::new(Path::new("config/broker.toml"), Some(3), "unknown key 'lisen'");
        assert_eq!(fault.to_string(), "config/broker.toml:3: unknown key 'lisen'");
    }
}
