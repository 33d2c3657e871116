//! What names a scope: in URLs, in headers, and by policies, the same everywhere.

/// Longest key, in bytes.
const LEN_MAX: usize = 64;

/// Unreserved characters of URLs (RFC 3986, section 2.3), bounded, so that a key means the same wherever it stands.
pub fn is_scope_key(key: &[u8]) -> bool {
    let is_plain = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'~' | b'-');
    (1..=LEN_MAX).contains(&key.len()) && key.iter().all(is_plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scope_keys_are_plain_and_short() {
        assert!(is_scope_key(b"a.B-9_~") && is_scope_key(&[b'x'; 64]));
        for key in ["", "a/b", "ä", "a b", "%41", &"x".repeat(65)] {
            assert!(!is_scope_key(key.as_bytes()), "{key}");
        }
    }
}
