//! A cursor over JSON text that yields the places of strings and values instead of values.
//!
//! It accepts the grammar of RFC 8259, with one leniency: control characters inside strings are not looked for, because
//! a payload reaches this point as the raw span of a message that was parsed before.

use std::borrow::Cow;
use std::ops::Range;

use memchr::{memchr, memchr2};

/// Deeper nesting is refused, so that recursion over a payload has a bound; the limit of `serde_json`.
pub(super) const DEPTH_MAX: usize = 128;

/// The text is not JSON at this byte, or nests deeper than [`DEPTH_MAX`] there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Malformed {
    pub at: usize,
    pub too_deep: bool,
}

#[derive(Clone, Debug)]
pub(super) struct Cursor<'a> {
    text: &'a str,
    pub at: usize,
    depth: usize,
}

impl<'a> Cursor<'a> {
    pub fn new(text: &'a str, at: usize) -> Self {
        let mut cursor = Self { text, at, depth: 0 };
        cursor.skip_space();
        cursor
    }

    pub fn text(&self) -> &'a str {
        self.text
    }

    /// The byte that starts what comes next; the cursor never rests on white space.
    pub fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    pub fn is_at_end(&self) -> bool {
        self.at >= self.text.len()
    }

    fn fault<T>(&self) -> Result<T, Malformed> {
        Err(Malformed { at: self.at, too_deep: false })
    }

    fn skip_space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\n' | b'\r' | b'\t')) {
            self.at += 1;
        }
    }

    /// Steps over `byte` and the white space behind it, if it comes next.
    pub fn take(&mut self, byte: u8) -> bool {
        let found = self.peek() == Some(byte);
        if found {
            self.at += 1;
            self.skip_space();
        }
        found
    }

    pub fn expect(&mut self, byte: u8) -> Result<(), Malformed> {
        if self.take(byte) { Ok(()) } else { self.fault() }
    }

    /// Steps into an object or array; `true` if it has something in it.
    pub fn open(&mut self, open: u8, close: u8) -> Result<bool, Malformed> {
        self.expect(open)?;
        if self.take(close) {
            return Ok(false);
        }
        self.depth += 1;
        if self.depth > DEPTH_MAX { Err(Malformed { at: self.at, too_deep: true }) } else { Ok(true) }
    }

    /// Behind a member or an item: `true` if another follows, `false` when the container is closed.
    pub fn next(&mut self, close: u8) -> Result<bool, Malformed> {
        if self.take(b',') {
            return Ok(true);
        }
        self.expect(close)?;
        self.depth -= 1;
        Ok(false)
    }

    /// Steps over a string; the span has no quotes and its escapes are as written.
    pub fn string(&mut self) -> Result<Range<usize>, Malformed> {
        if self.peek() != Some(b'"') {
            return self.fault();
        }
        let start = self.at + 1;
        let bytes = self.text.as_bytes();
        let mut end = start;
        loop {
            match memchr2(b'"', b'\\', bytes.get(end..).unwrap_or_default()) {
                Some(step) if bytes[end + step] == b'"' => {
                    end += step;
                    break;
                }
                Some(step) => end += step + 2,
                None => return self.fault(),
            }
        }
        self.at = end + 1;
        self.skip_space();
        Ok(start..end)
    }

    /// Steps over a number, `true`, `false` or `null`.
    pub fn scalar(&mut self) -> Result<Range<usize>, Malformed> {
        let rest = &self.text.as_bytes()[self.at..];
        let length = match rest.first() {
            Some(b't') if rest.starts_with(b"true") => 4,
            Some(b'f') if rest.starts_with(b"false") => 5,
            Some(b'n') if rest.starts_with(b"null") => 4,
            _ => number_length(rest),
        };
        if length == 0 {
            return self.fault();
        }
        let span = self.at..self.at + length;
        self.at = span.end;
        self.skip_space();
        Ok(span)
    }

    /// Steps over any value and tells where it was.
    pub fn value(&mut self) -> Result<Range<usize>, Malformed> {
        let start = self.at;
        let end = match self.peek() {
            Some(b'"') => self.string()?.end + 1,
            Some(b'{') => {
                let mut more = self.open(b'{', b'}')?;
                while more {
                    self.string()?;
                    self.expect(b':')?;
                    self.value()?;
                    more = self.next(b'}')?;
                }
                self.end_before_space()
            }
            Some(b'[') => {
                let mut more = self.open(b'[', b']')?;
                while more {
                    self.value()?;
                    more = self.next(b']')?;
                }
                self.end_before_space()
            }
            _ => self.scalar()?.end,
        };
        Ok(start..end)
    }

    /// Where the token behind the cursor ended, without the white space that was skipped after it.
    pub fn end_before_space(&self) -> usize {
        self.text[..self.at].trim_end_matches([' ', '\n', '\r', '\t']).len()
    }
}

/// Length of the JSON number that `bytes` start with; 0 if they do not.
fn number_length(bytes: &[u8]) -> usize {
    let digits = |from: usize| bytes[from..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    let mut at = usize::from(bytes.first() == Some(&b'-'));
    at += match bytes.get(at) {
        Some(b'0') => 1,
        Some(b'1'..=b'9') => digits(at),
        _ => return 0,
    };
    if bytes.get(at) == Some(&b'.') {
        match digits(at + 1) {
            0 => return 0,
            count => at += 1 + count,
        }
    }
    if matches!(bytes.get(at), Some(b'e' | b'E')) {
        let sign = usize::from(matches!(bytes.get(at + 1), Some(b'+' | b'-')));
        match digits(at + 1 + sign) {
            0 => return 0,
            count => at += 1 + sign + count,
        }
    }
    at
}

/// The text that a raw string span stands for. Half of a surrogate pair, which JavaScript servers do send, becomes
/// U+FFFD; `None` for an escape that JSON does not have.
pub(super) fn decode(raw: &str) -> Option<Cow<'_, str>> {
    let Some(first) = memchr(b'\\', raw.as_bytes()) else { return Some(Cow::Borrowed(raw)) };
    let mut text = String::with_capacity(raw.len());
    text.push_str(&raw[..first]);
    let mut rest = &raw[first..];
    while let Some(escape) = rest.as_bytes().get(1) {
        let mut length = 2;
        match escape {
            b'"' | b'\\' | b'/' => text.push(char::from(*escape)),
            b'b' => text.push('\u{8}'),
            b'f' => text.push('\u{c}'),
            b'n' => text.push('\n'),
            b'r' => text.push('\r'),
            b't' => text.push('\t'),
            b'u' => {
                let (char, used) = unicode_escape(rest)?;
                text.push(char);
                length = used;
            }
            _ => return None,
        }
        rest = &rest[length..];
        let plain = memchr(b'\\', rest.as_bytes()).unwrap_or(rest.len());
        text.push_str(&rest[..plain]);
        rest = &rest[plain..];
    }
    rest.is_empty().then_some(Cow::Owned(text))
}

/// The character of the `\uXXXX`, or pair of them, that `text` starts with, and how many bytes it took.
fn unicode_escape(text: &str) -> Option<(char, usize)> {
    let unit = |from: usize| {
        let hex = text.get(from..from + 6)?.strip_prefix("\\u")?;
        hex.bytes().all(|byte| byte.is_ascii_hexdigit()).then_some(())?;
        u16::from_str_radix(hex, 16).ok()
    };
    let first = unit(0)?;
    let pair = [first, unit(6).unwrap_or_default()];
    match char::decode_utf16(pair).next() {
        Some(Ok(char)) => Some((char, if char.len_utf16() == 2 { 12 } else { 6 })),
        _ => Some((char::REPLACEMENT_CHARACTER, 6)),
    }
}

/// `text` as a JSON string, with its quotes.
pub(super) fn quote(text: &str) -> String {
    let mut json = String::with_capacity(text.len() + text.len() / 32 + 2);
    json.push('"');
    let mut plain_from = 0;
    for (at, byte) in text.bytes().enumerate() {
        let escape = match byte {
            b'"' => "\\\"",
            b'\\' => "\\\\",
            b'\n' => "\\n",
            b'\r' => "\\r",
            b'\t' => "\\t",
            0..=0x1f => "",
            _ => continue,
        };
        json.push_str(&text[plain_from..at]);
        plain_from = at + 1;
        if escape.is_empty() {
            json.push_str(&format!("\\u{byte:04x}"));
        } else {
            json.push_str(escape);
        }
    }
    json.push_str(&text[plain_from..]);
    json.push('"');
    json
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, whole: bool) {
        let mut cursor = Cursor::new(text, 0);
        let accepted = cursor.value().is_ok() && cursor.is_at_end();
        assert_eq!(accepted, whole, "{text}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(text).is_ok(), whole, "serde_json disagrees: {text}");
    }

    #[test]
    fn takes_what_the_grammar_allows_and_nothing_else() {
        for good in ["0", "-0", "1.5e-7", "10", "true", " null ", r#""""#, r#""\"\\""#, "[]", "{ }", r#"{"a":[1,{}] }"#]
        {
            check(good, true);
        }
        for bad in
            ["", "-", "01", "1.", "1e", ".5", "+1", "tru", "nul", "\"", r#""\""#, "[1,]", "{,}", "{\"a\"}", "{1:2}"]
        {
            check(bad, false);
        }
    }

    #[test]
    fn nesting_has_a_bound() {
        let deep = |n: usize| format!("{}1{}", "[".repeat(n), "]".repeat(n));
        assert!(Cursor::new(&deep(DEPTH_MAX), 0).value().is_ok());
        assert!(Cursor::new(&deep(DEPTH_MAX + 1), 0).value().unwrap_err().too_deep);
    }

    #[test]
    fn decodes_as_serde_json_does() {
        for raw in ["", "plain é", r"a\n\t\r\b\f\/\\\x22", r"\u0063ookie", r"\ud83d\ude00 x", r"caf\u00e9"] {
            let raw = raw.replace(r"\x22", "\\\"");
            let expected: String = serde_json::from_str(&format!("\"{raw}\"")).unwrap();
            assert_eq!(decode(&raw).unwrap(), expected);
        }
        assert_eq!(decode(r"half \ud83d pair \ude00").unwrap(), "half \u{fffd} pair \u{fffd}");
        assert_eq!(decode(r"\ud83d\u0041").unwrap(), "\u{fffd}A");
        for bad in [r"\x", "\\", r"\u12", r"\u12g4", r"\u+123"] {
            assert_eq!(decode(bad), None, "{bad}");
        }
    }

    #[test]
    fn quotes_what_must_be_quoted() {
        let text = "a\"b\\c\n\r\t\u{1}\u{1f} é \u{7f}";
        assert_eq!(serde_json::from_str::<String>(&quote(text)).unwrap(), text);
    }
}
