//! Header lines in running text, in the shapes in which servers and tools print them.
//!
//! Known shapes, with the value in angle brackets: `cookie: <…>`, `- cookie:<…>`, `> Cookie: <…>`, `"cookie": "<…>"`,
//! `\"cookie\": \"<…>\"`, `'set-cookie': [<…>]`, `-H 'Cookie: <…>'`, and values that go on in following lines, as
//! folded headers, lists, and browsers that join several `Set-Cookie` by line feeds make them.
//! Where it is not clear how far a value reaches, more is redacted rather than less.

use std::ops::Range;

use memchr::{memchr, memchr_iter};

use crate::policy::edits::Edits;
use crate::policy::names::NameSet;
use crate::policy::runs;

/// Values of these headers are replaced wherever a text names them before a colon.
#[derive(Debug)]
pub(in crate::policy) struct HeaderRule {
    names: NameSet,
    replace_with: String,
    /// The bytes that names end with, in both cases: rules most colons out at one look.
    last_bytes: [bool; 256],
}

/// A header name found in a text.
struct Name<'a> {
    text: &'a str,
    /// A quotation mark that opens right before the name and does not close behind it: `'cookie: …'`.
    opened_by: Option<u8>,
    /// Quoted by itself, as the key of an object.
    is_key: bool,
}

impl HeaderRule {
    pub fn new(names: NameSet, replace_with: String) -> Self {
        let mut last_bytes = [false; 256];
        for last in names.iter().filter_map(|name| name.bytes().last()) {
            last_bytes[usize::from(last.to_ascii_lowercase())] = true;
            last_bytes[usize::from(last.to_ascii_uppercase())] = true;
        }
        Self { names, replace_with, last_bytes }
    }

    /// `None` if no header of these names has a value here.
    pub fn redact(&self, text: &str) -> Option<String> {
        let mut edits = Edits::default();
        let mut done = 0;
        runs::each_colon(text.as_bytes(), |colon| {
            if colon < done {
                return;
            }
            if let Some(name) = self.name_before(text, colon) {
                let value = value_after(text, colon, &name);
                done = value.end;
                if !value.is_empty() {
                    edits.replace(value, self.replace_with.as_str());
                }
            }
        });
        edits.apply(text).ok().flatten()
    }

    fn name_before<'a>(&self, text: &'a str, colon: usize) -> Option<Name<'a>> {
        /// Marks and spaces between a name and its colon.
        const MARKS_MAX: usize = 16;
        let bytes = text.as_bytes();
        let mut end = colon;
        while end > colon.saturating_sub(MARKS_MAX) && is_mark(bytes[end - 1]) {
            end -= 1;
        }
        if !self.last_bytes[usize::from(*bytes[..end].last()?)] {
            return None;
        }
        let mut start = end;
        while start > 0 && is_name_byte(bytes[start - 1]) {
            start -= 1;
        }
        let name = text.get(start..end).filter(|name| self.names.contains(name))?;
        let is_key = bytes[end..colon].iter().any(|byte| matches!(byte, b'"' | b'\'' | b'`'));
        let opener = bytes[..start].last().copied().filter(|byte| matches!(byte, b'"' | b'\'' | b'`'));
        Some(Name { text: name, opened_by: opener.filter(|_| !is_key), is_key })
    }
}

fn is_mark(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'"' | b'\'' | b'`' | b'*' | b'\\')
}

fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_')
}

/// The value of the header, without the quotation marks around it.
fn value_after(text: &str, colon: usize, name: &Name<'_>) -> Range<usize> {
    let bytes = text.as_bytes();
    let spaces = bytes[colon + 1..].iter().take_while(|byte| matches!(byte, b' ' | b'\t')).count();
    let start = colon + 1 + spaces;
    let line_end = end_of_line(bytes, start);
    let escapes = bytes[start..].iter().take_while(|byte| **byte == b'\\').count();
    let inner = start + escapes + 1;
    let (start, end) = match bytes.get(start + escapes).copied() {
        _ if let Some(quote) = name.opened_by => {
            let is_space = |rest: &[u8]| rest.first().is_some_and(u8::is_ascii_whitespace);
            (start, closing_quote_on_line(bytes, start, quote, is_space).unwrap_or(line_end))
        }
        Some(quote @ (b'"' | b'\'' | b'`')) if name.is_key => {
            (inner, closing_quote(bytes, inner, quote, escapes).map_or(bytes.len(), |close| close - escapes))
        }
        Some(quote @ (b'"' | b'\'' | b'`'))
            if let Some(close) = closing_quote_on_line(bytes, inner, quote, |_| false)
                && escapes == 0 =>
        {
            (inner, close)
        }
        Some(open @ (b'[' | b'{')) if name.is_key => (start, closing_bracket(bytes, start, open)),
        _ => (start, end_of_continuation(text, colon, line_end, name.text)),
    };
    start..start + text[start..end.max(start)].trim_end().len()
}

/// The quotation mark that ends a value in a line of words: nothing but the end of a list or object may follow, or what
/// `may_follow` allows. One with more of the value behind it, as in `"Cookie: a="b"; c=d"`, is part of it.
fn closing_quote_on_line(bytes: &[u8], from: usize, quote: u8, may_follow: fn(&[u8]) -> bool) -> Option<usize> {
    let line = &bytes[..end_of_line(bytes, from)];
    let ends = |at: &usize| {
        let rest = &line[at + 1..];
        let next = rest.trim_ascii_start().first();
        next.is_none_or(|next| matches!(next, b',' | b')' | b']' | b'}')) || may_follow(rest)
    };
    memchr_iter(quote, line.get(from..)?).map(|step| from + step).filter(|at| line[*at - 1] != b'\\').find(ends)
}

fn end_of_line(bytes: &[u8], from: usize) -> usize {
    memchr(b'\n', &bytes[from..]).map_or(bytes.len(), |step| from + step)
}

/// The quotation mark that closes a string opened behind `escapes` backslashes.
fn closing_quote(bytes: &[u8], from: usize, quote: u8, escapes: usize) -> Option<usize> {
    memchr_iter(quote, &bytes[from..]).map(|step| from + step).find(|at| {
        let before = bytes[from..*at].iter().rev().take_while(|byte| **byte == b'\\').count();
        if escapes == 0 { before % 2 == 0 } else { before == escapes }
    })
}

/// Behind the bracket that closes the one at `start`; the end of the text if there is none.
fn closing_bracket(bytes: &[u8], start: usize, open: u8) -> usize {
    let close = if open == b'[' { b']' } else { b'}' };
    let (mut depth, mut at) = (0_usize, start);
    while let Some(&byte) = bytes.get(at) {
        if byte == open {
            depth += 1;
        } else if byte == close {
            depth -= 1;
            if depth == 0 {
                return at + 1;
            }
        } else if matches!(byte, b'"' | b'\'') {
            match closing_quote(bytes, at + 1, byte, 0) {
                Some(end) => at = end,
                None => return bytes.len(),
            }
        }
        at += 1;
    }
    bytes.len()
}

/// Follows a value over the lines that continue it.
fn end_of_continuation(text: &str, colon: usize, first_line_end: usize, name: &str) -> usize {
    let line_start = text[..colon].rfind('\n').map_or(0, |at| at + 1);
    let indent = indent_of(&text[line_start..]);
    let is_cookie = name.to_ascii_lowercase().contains("cookie");
    let mut end = first_line_end;
    while end < text.len() {
        let next = end_of_line(text.as_bytes(), end + 1);
        let line = &text[end + 1..next];
        let is_folded = indent_of(line) > indent && !line.trim().is_empty() && !is_header(line);
        if is_folded || is_cookie && is_another_cookie(line) {
            end = next;
        } else {
            break;
        }
    }
    end
}

fn indent_of(line: &str) -> usize {
    line.bytes().take_while(|byte| matches!(byte, b' ' | b'\t')).count()
}

/// `name: …`, `- name:…`, `"name": …`.
fn is_header(line: &str) -> bool {
    let line = line.trim_start_matches([' ', '\t', '-', '*', '>', '"', '\'']);
    let length = line.bytes().take_while(|byte| is_name_byte(*byte)).count();
    length > 0 && line[length..].trim_start_matches(['"', '\'', ' ']).starts_with(':')
}

/// `name=value; …` alone on a line: the second of several `Set-Cookie`.
fn is_another_cookie(line: &str) -> bool {
    let name = line.split(['=', ';']).next().unwrap_or_default();
    line.contains('=')
        && !name.is_empty()
        && !name.contains([' ', '\t', ':', '"', '\'', '<', '>', '(', ')', '{', '}', '/'])
}
