//! One level of a JSON object as spans of its text, and the replacement of such spans.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

use bytes::Bytes;
use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;

/// The raw values of the members `keys` of the object `text`, in the order asked for; `None` where one is absent.
///
/// The whole text is checked to be valid JSON. A key that is asked for and occurs twice is an error, because two
/// readers could disagree about which one counts.
pub fn members<'a, const N: usize>(text: &'a str, keys: [&str; N]) -> Result<[Option<&'a str>; N], serde_json::Error> {
    let mut input = serde_json::Deserializer::from_str(text);
    let found = Members(&keys).deserialize(&mut input)?;
    input.end()?;
    Ok(found)
}

struct Members<'k, const N: usize>(&'k [&'k str; N]);

impl<'de, const N: usize> DeserializeSeed<'de> for Members<'_, N> {
    type Value = [Option<&'de str>; N];

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de, const N: usize> Visitor<'de> for Members<'_, N> {
    type Value = [Option<&'de str>; N];

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut found = [None; N];
        while let Some(Key(key)) = map.next_key()? {
            match self.0.iter().position(|wanted| *wanted == key) {
                Some(i) if found[i].is_some() => return Err(A::Error::custom(format_args!("duplicate key `{key}`"))),
                Some(i) => found[i] = Some(map.next_value::<&RawValue>()?.get()),
                None => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(found)
    }
}

/// All members of the object `text` in their order, with decoded keys and raw values.
pub fn entries(text: &str) -> Result<Vec<(Cow<'_, str>, &str)>, serde_json::Error> {
    struct Entries;
    impl<'de> Visitor<'de> for Entries {
        type Value = Vec<(Cow<'de, str>, &'de str)>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut entries = Vec::new();
            while let Some(Key(key)) = map.next_key()? {
                entries.push((key, map.next_value::<&RawValue>()?.get()));
            }
            Ok(entries)
        }
    }
    let mut input = serde_json::Deserializer::from_str(text);
    let entries = input.deserialize_map(Entries)?;
    input.end()?;
    Ok(entries)
}

/// A key, borrowed where the text holds it without escapes.
struct Key<'a>(Cow<'a, str>);

impl<'de> serde::Deserialize<'de> for Key<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct KeyVisitor;
        impl<'de> Visitor<'de> for KeyVisitor {
            type Value = Key<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a key")
            }

            fn visit_borrowed_str<E>(self, key: &'de str) -> Result<Key<'de>, E> {
                Ok(Key(Cow::Borrowed(key)))
            }

            fn visit_str<E>(self, key: &str) -> Result<Key<'de>, E> {
                Ok(Key(Cow::Owned(key.to_owned())))
            }
        }
        deserializer.deserialize_str(KeyVisitor)
    }
}

/// The text of a raw JSON string, decoded; `None` for any other kind of value.
pub fn string(raw: &str) -> Option<Cow<'_, str>> {
    let mut input = serde_json::Deserializer::from_str(raw);
    let Key(text) = serde::Deserialize::deserialize(&mut input).ok()?;
    Some(text)
}

/// Where `part`, a slice of `whole`, lies in it.
pub fn span(whole: &str, part: &str) -> Range<usize> {
    let start = (part.as_ptr() as usize).wrapping_sub(whole.as_ptr() as usize);
    debug_assert!(start <= whole.len() && start + part.len() <= whole.len(), "a part of another text");
    start..start + part.len()
}

/// `text` with each span replaced. The spans do not overlap; they need not be sorted.
pub fn replaced(text: &[u8], edits: &mut [(Range<usize>, &[u8])]) -> Vec<u8> {
    edits.sort_by_key(|(span, _)| span.start);
    let grown: usize = edits.iter().map(|(_, new)| new.len()).sum();
    let mut out = Vec::with_capacity(text.len() + grown + 1);
    let mut at = 0;
    for (span, new) in edits.iter() {
        out.extend_from_slice(&text[at..span.start]);
        out.extend_from_slice(new);
        at = span.end;
    }
    out.extend_from_slice(&text[at..]);
    out
}

/// An object of these members in their order: keys decoded, values raw. What of an object is kept, keeps its spelling.
pub fn object<K: AsRef<str>, V: AsRef<str>>(members: impl IntoIterator<Item = (K, V)>) -> String {
    let members = members.into_iter().map(|(key, value)| format!("{}:{}", Value::from(key.as_ref()), value.as_ref()));
    format!("{{{}}}", members.collect::<Vec<_>>().join(","))
}

/// An object with `members` before its own: `"a":1,"b":2`.
pub fn with_members(object: &str, members: &str) -> String {
    let rest = object.trim_start().strip_prefix('{').unwrap_or("}");
    let comma = if rest.trim_start().starts_with('}') { "" } else { "," };
    format!("{{{members}{comma}{rest}")
}

/// The most that a message is ever cut into: before the id, the id, up to the result, an inserted member, the result,
/// the rest.
const PIECES_MAX: usize = 6;

/// Message bytes in order, without having been joined: a large result goes from pipe to socket uncopied.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pieces {
    pieces: [Bytes; PIECES_MAX],
    count: usize,
}

impl Pieces {
    /// Appends bytes; empty ones are left out.
    ///
    pub fn push(&mut self, bytes: Bytes) {
        if bytes.is_empty() {
            return;
        }
        assert!(self.count < PIECES_MAX, "a message is never cut into more pieces");
        self.pieces[self.count] = bytes;
        self.count += 1;
    }

    /// Total length in bytes.
    pub fn len(&self) -> usize {
        self.pieces[..self.count].iter().map(Bytes::len).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Takes the first piece that is left.
    pub fn pop(&mut self) -> Option<Bytes> {
        if self.count == 0 {
            return None;
        }
        let first = std::mem::take(&mut self.pieces[0]);
        self.pieces[..self.count].rotate_left(1);
        self.count -= 1;
        Some(first)
    }

    /// All pieces as one buffer; copies unless there is one piece only.
    pub fn joined(mut self) -> Bytes {
        if self.count <= 1 {
            return self.pop().unwrap_or_default();
        }
        let mut out = Vec::with_capacity(self.len());
        while let Some(piece) = self.pop() {
            out.extend_from_slice(&piece);
        }
        out.into()
    }
}

impl From<Bytes> for Pieces {
    fn from(bytes: Bytes) -> Self {
        let mut pieces = Self::default();
        pieces.push(bytes);
        pieces
    }
}

impl From<String> for Pieces {
    fn from(text: String) -> Self {
        Bytes::from(text).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_spans_of_the_text() {
        let text = r#"{"b": 1e2, "a": {"x": [1, 2]}, "n": null}"#;
        let [a, b, n, c] = members(text, ["a", "b", "n", "c"]).unwrap();
        assert_eq!((a, b, n, c), (Some(r#"{"x": [1, 2]}"#), Some("1e2"), Some("null"), None));
        assert_eq!(&text[span(text, b.unwrap())], "1e2");
    }

    #[test]
    fn escaped_keys_are_the_same_keys() {
        let text = r#"{"\u0069d": 7}"#;
        assert_eq!(members(text, ["id"]).unwrap(), [Some("7")]);
        assert!(members(r#"{"id": 1, "\u0069d": 2}"#, ["id"]).is_err());
    }

    #[test]
    fn what_is_not_one_object_is_an_error() {
        for text in ["[]", "1", "{", r#"{"a":1} x"#, r#"{"a":01}"#, "{\"a\":\"\n\"}", ""] {
            assert!(members(text, ["a"]).is_err(), "{text}");
        }
    }

    #[test]
    fn edits_replace_their_spans_alone() {
        let text = b"0123456789";
        assert_eq!(replaced(text, &mut [(5..7, b"xyz"), (0..1, b"")]), b"1234xyz789");
        assert_eq!(replaced(text, &mut [(10..10, b"!")]), b"0123456789!");
    }

    #[test]
    fn pieces_come_out_as_they_went_in() {
        let mut pieces = Pieces::default();
        for part in ["ab", "", "c", "def"] {
            pieces.push(Bytes::from_static(part.as_bytes()));
        }
        assert_eq!(pieces.len(), 6);
        assert_eq!(pieces.clone().joined(), "abcdef");
        assert_eq!(pieces.pop().unwrap(), "ab");
        assert_eq!(pieces.joined(), "cdef");
    }
}
