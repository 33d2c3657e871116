//! JSON inside a text: a whole text that is JSON, or objects in the midst of words, as servers print them.

use memchr::memchr;

use super::rules::{Acted, RuleSet};
use super::walk::Walk;
use crate::policy::edits::Edits;

/// JSON in a text in JSON in a text … is followed this far.
const TEXTS_MAX: usize = 4;

/// A text is read again from inside an object that turned out to be none, at most this many times its length in all.
/// Beyond that, reading goes on behind the fault, so that a hostile text cannot make the work quadratic.
const REREAD_MAX: usize = 8;

/// Redacts members by key in every object that the text contains; `None` if there is nothing to redact.
///
/// An object that breaks off, because the server cut its output, is redacted as far as it goes.
pub(super) fn redact(rules: &RuleSet, text: &str, inside_texts: usize, acted: &mut Acted) -> Option<String> {
    if inside_texts > TEXTS_MAX || !rules.parses_json_text {
        return None;
    }
    let mut edits = Edits::default();
    let mut budget = text.len().saturating_mul(REREAD_MAX);
    let mut at = 0;
    while let Some(start) = next_object(text, at) {
        let (walk, outcome) = Walk::inside_text(rules, text, start, inside_texts);
        let reached = match outcome {
            Ok(()) => walk.json.at,
            Err(fault) => fault.at,
        };
        budget = budget.saturating_sub(reached - start);
        at = if outcome.is_ok() || budget == 0 { reached.max(start + 1) } else { start + 1 };
        acted.join(walk.acted);
        edits.append(walk.edits);
    }
    edits.apply_merged(text)
}

/// Where an object with at least one member could start.
fn next_object(text: &str, mut from: usize) -> Option<usize> {
    loop {
        let start = from + memchr(b'{', text.as_bytes().get(from..)?)?;
        if text[start + 1..].trim_start_matches([' ', '\n', '\r', '\t']).starts_with('"') {
            return Some(start);
        }
        from = start + 1;
    }
}
