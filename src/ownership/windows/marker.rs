//! The text that a generation's processes on the Windows side carry on their command lines.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Bytes of each part; names of backends have 32 and ids of instances 12.
const PART_BYTES_MAX: usize = 64;

/// `lazy-mcp\{backend}-{instance}-{generation}`: two levels of a path on Windows, below which a browser has its profile.
///
/// **Invariant:** its parts are letters, digits, `-` and `_`, so it is one name, and needs no quoting anywhere.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Marker {
    backend: String,
    instance: String,
    generation: u64,
}

impl Marker {
    /// `None` when a part is empty, too long or has a character that a marker cannot have.
    pub fn of(backend: &str, instance: &str, generation: u64) -> Option<Self> {
        let is_part = |part: &str| {
            let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
            (1..=PART_BYTES_MAX).contains(&part.len()) && part.bytes().all(is_allowed)
        };
        (is_part(backend) && is_part(instance)).then(|| Self {
            backend: backend.to_owned(),
            instance: instance.to_owned(),
            generation,
        })
    }

    /// The variables by which a leftover on the Linux side is found, for a helper that outlives who started it.
    pub(super) fn env(&self) -> [(&'static str, String); 2] {
        [("LAZY_MCP_INSTANCE_ID", self.instance.clone()), ("LAZY_MCP_GENERATION", self.generation.to_string())]
    }
}

impl fmt::Display for Marker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "lazy-mcp\\{}-{}-{}", self.backend, self.instance, self.generation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(backend: &str, instance: &str, expected: Option<&str>) {
        let marker = Marker::of(backend, instance, 7).map(|marker| marker.to_string());
        assert_eq!(marker.as_deref(), expected);
    }

    #[test]
    fn a_marker_is_one_plain_name() {
        check("chrome-devtools", "0a1b2c3d4e5f", Some("lazy-mcp\\chrome-devtools-0a1b2c3d4e5f-7"));
        for part in ["", "a b", "..", "a\\b", "a/b", "a'b", "a\"", "a*", "ä", "a\n", &"x".repeat(65)] {
            check(part, "0a", None);
            check("git", part, None);
        }
    }
}
