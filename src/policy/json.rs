//! A cursor over JSON text that yields the places of strings and values instead of values.
//!
//! It accepts the grammar of RFC 8259, with one leniency: control characters inside strings are not looked for, because
//! a payload reaches this point as the raw span of a message that was parsed before.

use std::borrow::Cow;
use std::ops::Range;

use memchr::memchr;

use super::runs;

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
    /// Where the token before `at` ended, without the white space that was skipped after it.
    token_end: usize,
    depth: usize,
}

/// A string as it is written.
#[derive(Clone, Debug)]
pub(super) struct RawString {
    /// Without the quotes.
    pub span: Range<usize>,
    pub has_escapes: bool,
    /// Of the raw text; `false` is sure.
    may_have_colon: bool,
}

impl RawString {
    pub fn with_quotes(&self) -> Range<usize> {
        self.span.start - 1..self.span.end + 1
    }

    /// Whether there is no colon in what it stands for.
    pub fn has_no_colon(&self) -> bool {
        !self.has_escapes && !self.may_have_colon
    }
}

impl<'a> Cursor<'a> {
    pub fn new(text: &'a str, at: usize) -> Self {
        let mut cursor = Self { text, at, token_end: at, depth: 0 };
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
        self.token_end = self.at;
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

    /// Steps over a string.
    pub fn string(&mut self) -> Result<RawString, Malformed> {
        if self.peek() != Some(b'"') {
            return self.fault();
        }
        let start = self.at + 1;
        let Some(end) = runs::string_end(self.text.as_bytes(), start) else { return self.fault() };
        self.at = end.at + 1;
        self.skip_space();
        Ok(RawString { span: start..end.at, has_escapes: end.has_escapes, may_have_colon: end.may_have_colon })
    }

    /// What a string of this text stands for.
    pub fn decode(&self, raw: &RawString) -> Result<Cow<'a, str>, Malformed> {
        let text = &self.text[raw.span.clone()];
        if !raw.has_escapes {
            return Ok(Cow::Borrowed(text));
        }
        decode(text).ok_or(Malformed { at: raw.span.start, too_deep: false })
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
            Some(b'"') => self.string()?.span.end + 1,
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
        self.token_end
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
    let bytes = raw.as_bytes();
    if memchr(b'\\', bytes).is_none() {
        return Some(Cow::Borrowed(raw));
    }
    let mut text = Vec::with_capacity(raw.len());
    runs::copy_unescaped(bytes, &mut text, |at, text| {
        match (SHORT_ESCAPES[usize::from(*bytes.get(at + 1)?)], bytes[at + 1]) {
            (0, b'u') => {
                let (char, length) = unicode_escape(&raw[at..])?;
                text.extend_from_slice(char.encode_utf8(&mut [0; 4]).as_bytes());
                Some(at + length)
            }
            (0, _) => None,
            (short, _) => {
                text.push(short);
                Some(at + 2)
            }
        }
    })?;
    String::from_utf8(text).ok().map(Cow::Owned)
}

/// What a letter behind a backslash stands for (RFC 8259, section 7); 0 for none.
const SHORT_ESCAPES: [u8; 256] = {
    let mut table = [0; 256];
    let pairs = *b"\"\"\\\\//b\x08f\x0cn\nr\rt\t";
    let mut at = 0;
    while at < pairs.len() {
        table[pairs[at] as usize] = pairs[at + 1];
        at += 2;
    }
    table
};

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
    const HEX: &[u8; 16] = b"0123456789abcdef";
    let mut json = Vec::with_capacity(text.len() + text.len() / 8 + 16);
    json.push(b'"');
    runs::copy_escaped(text.as_bytes(), &mut json, |byte, json| match byte {
        b'"' | b'\\' => json.extend_from_slice(&[b'\\', byte]),
        b'\n' => json.extend_from_slice(b"\\n"),
        b'\r' => json.extend_from_slice(b"\\r"),
        b'\t' => json.extend_from_slice(b"\\t"),
        control => {
            let [high, low] = [control >> 4, control & 0xf].map(|digit| HEX[usize::from(digit)]);
            json.extend_from_slice(&[b'\\', b'u', b'0', b'0', high, low]);
        }
    });
    json.push(b'"');
    String::from_utf8(json).expect("whole characters were copied, and ASCII put between them")
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

    proptest::proptest! {
        #![proptest_config(proptest::prelude::ProptestConfig { failure_persistence: None, ..Default::default() })]

        #[test]
        fn what_was_quoted_reads_as_it_was(text in "(.|[\"\\\\:\\x00-\\x20]){0,200}") {
            let quoted = quote(&text);
            proptest::prop_assert_eq!(&serde_json::from_str::<String>(&quoted).unwrap(), &text);
            let raw = Cursor::new(&quoted, 0).string().unwrap();
            proptest::prop_assert_eq!(raw.with_quotes(), 0..quoted.len());
            proptest::prop_assert_eq!(&*Cursor::new(&quoted, 0).decode(&raw).unwrap(), &*text);
            proptest::prop_assert!(!raw.has_no_colon() || !text.contains(':'));
        }
    }

    #[test]
    fn quotes_what_must_be_quoted() {
        let text = "a\"b\\c\n\r\t\u{1}\u{1f} é \u{7f}";
        assert_eq!(serde_json::from_str::<String>(&quote(text)).unwrap(), text);
    }
}
