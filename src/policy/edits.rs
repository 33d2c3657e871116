//! Replacements in a text, made while it is read and carried out at the end.

use std::borrow::Cow;
use std::ops::Range;

/// `'r` is the life of words that rules lend, since most replacements are the same few words.
#[derive(Debug, Default)]
pub(super) struct Edits<'r>(Vec<Edit<'r>>);

#[derive(Debug)]
struct Edit<'r> {
    span: Range<usize>,
    with: Cow<'r, str>,
}

/// How far the replacements had come at some moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mark(usize);

/// Two replacements wanted overlapping parts of the text.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Overlap;

impl<'r> Edits<'r> {
    pub fn replace(&mut self, span: Range<usize>, with: impl Into<Cow<'r, str>>) {
        self.0.push(Edit { span, with: with.into() });
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn mark(&self) -> Mark {
        Mark(self.0.len())
    }

    /// Replaces `span` as a whole: what was wanted inside it since `mark` no longer counts. Nothing inside it was wanted
    /// before; to look at all that was would take a time that grows with the square of their number.
    pub fn replace_whole(&mut self, mark: Mark, span: Range<usize>, with: impl Into<Cow<'r, str>>) {
        let mut kept = mark.0;
        for at in mark.0..self.0.len() {
            let edit = &self.0[at];
            if edit.span.end <= span.start || edit.span.start >= span.end {
                self.0.swap(kept, at);
                kept += 1;
            }
        }
        self.0.truncate(kept);
        self.replace(span, with);
    }

    pub fn append(&mut self, mut other: Self) {
        self.0.append(&mut other.0);
    }

    /// `text` with all replacements, the rest byte for byte; `None` if nothing changes.
    pub fn apply(mut self, text: &str) -> Result<Option<String>, Overlap> {
        if self.0.is_empty() {
            return Ok(None);
        }
        self.0.retain(|edit| text.get(edit.span.clone()) != Some(&*edit.with));
        self.0.sort_by_key(|edit| (edit.span.start, edit.span.end));
        if self.0.is_empty() {
            return Ok(None);
        }
        let growth: usize = self.0.iter().map(|edit| edit.with.len()).sum();
        let mut out = String::with_capacity(text.len() + growth);
        let mut copied = 0;
        for edit in &self.0 {
            out.push_str(text.get(copied..edit.span.start).ok_or(Overlap)?);
            out.push_str(&edit.with);
            copied = edit.span.end;
        }
        out.push_str(text.get(copied..).ok_or(Overlap)?);
        Ok(Some(out))
    }

    /// Like [`Self::apply`] for running text, where overlapping replacements become one: the first one's words stand
    /// for all that any of them covers.
    pub fn apply_merged(mut self, text: &str) -> Option<String> {
        if self.0.is_empty() {
            return None;
        }
        self.0.sort_by_key(|edit| (edit.span.start, edit.span.end));
        self.0.dedup_by(|edit, last| {
            let overlaps = edit.span.start < last.span.end;
            if overlaps {
                last.span.end = last.span.end.max(edit.span.end);
            }
            overlaps
        });
        self.apply(text).ok().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replaces_in_place_whatever_the_order_of_wishes() {
        let mut edits = Edits::default();
        edits.replace(6..7, "X");
        edits.replace(0..1, "");
        edits.replace(3..3, "+");
        assert_eq!(edits.apply("abcdefg"), Ok(Some("bc+defX".to_owned())));
        assert_eq!(Edits::default().apply("abc"), Ok(None));
    }

    #[test]
    fn a_replacement_by_the_same_is_none() {
        let mut edits = Edits::default();
        edits.replace(1..2, "b");
        assert_eq!(edits.apply("abc"), Ok(None));
    }

    #[test]
    fn overlaps_are_refused_or_merged() {
        let overlapping = || {
            let mut edits = Edits::default();
            edits.replace(1..3, "X");
            edits.replace(2..5, "Y");
            edits
        };
        assert_eq!(overlapping().apply("abcdefg"), Err(Overlap));
        assert_eq!(overlapping().apply_merged("abcdefg").unwrap(), "aXfg");
        let mut whole = overlapping();
        whole.replace_whole(Mark(0), 0..6, "Z");
        assert_eq!(whole.apply("abcdefg").unwrap().unwrap(), "Zg");
    }
}
