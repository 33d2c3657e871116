//! Members and items of raw JSON by their spans, and what to cut to take some of them out.

use std::borrow::Cow;
use std::ops::Range;

use crate::policy::json::{Cursor, Malformed};

#[derive(Clone, Debug)]
pub(super) struct Member<'a> {
    pub key: Cow<'a, str>,
    /// From the quote of the key to the end of the value.
    pub span: Range<usize>,
    pub value: Range<usize>,
}

/// Members of the object that starts at `at`.
pub(super) fn members(text: &str, at: usize) -> Result<Vec<Member<'_>>, Malformed> {
    let mut cursor = Cursor::new(text, at);
    let mut found = Vec::new();
    let mut more = cursor.open(b'{', b'}')?;
    while more {
        let key = cursor.string()?;
        let start = key.span.start - 1;
        let key = cursor.decode(&key)?;
        cursor.expect(b':')?;
        let value = cursor.value()?;
        found.push(Member { key, span: start..value.end, value });
        more = cursor.next(b'}')?;
    }
    Ok(found)
}

/// Items of the array that starts at `at`.
pub(super) fn items(text: &str, at: usize) -> Result<Vec<Range<usize>>, Malformed> {
    let mut cursor = Cursor::new(text, at);
    let mut found = Vec::new();
    let mut more = cursor.open(b'[', b']')?;
    while more {
        found.push(cursor.value()?);
        more = cursor.next(b']')?;
    }
    Ok(found)
}

/// What to cut so that the marked ones of neighbours are gone, each with one comma.
pub(super) fn cuts(spans: &[Range<usize>], is_cut: impl Fn(usize) -> bool) -> Vec<Range<usize>> {
    let mut cuts = Vec::new();
    let mut is_any_kept = false;
    for (at, span) in spans.iter().enumerate() {
        match is_cut(at) {
            false => is_any_kept = true,
            true if is_any_kept => cuts.push(spans[at - 1].end..span.end),
            true => cuts.push(span.start..spans.get(at + 1).map_or(span.end, |next| next.start)),
        }
    }
    cuts
}
