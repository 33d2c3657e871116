//! Changes one text, rule after rule in the order of the policy.

use std::borrow::Cow;

use super::inner;
use super::rules::{LimitRule, RuleSet, TextRule};

/// What a text is to the message.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// The `text` of a content item or resource: what a limit is for.
    Item,
    Anywhere,
}

/// `None` if the rules leave the text as it is. JSON inside it is redacted first, while it is still JSON.
pub(super) fn rewrite(rules: &RuleSet, text: &str, place: Place) -> Option<String> {
    let mut now = Cow::Borrowed(text);
    if let Some(new) = inner::redact(rules, text, 1) {
        now = Cow::Owned(new);
    }
    for rule in &rules.texts {
        let new = match rule {
            TextRule::Headers(rule) => rule.redact(&now),
            TextRule::Pattern(rule) => match rule.pattern.replace_all(&now, rule.replace_with.as_str()) {
                Cow::Borrowed(_) => None,
                Cow::Owned(new) => Some(new),
            },
            TextRule::Limit(rule) if place == Place::Item => rule.cut(&now),
            TextRule::Limit(_) => None,
        };
        if let Some(new) = new {
            now = Cow::Owned(new);
        }
    }
    match now {
        Cow::Owned(new) if new != text => Some(new),
        _ => None,
    }
}

impl LimitRule {
    fn cut(&self, text: &str) -> Option<String> {
        if text.len() <= self.max_bytes {
            return None;
        }
        let end = (0..=self.max_bytes).rev().find(|end| text.is_char_boundary(*end)).unwrap_or_default();
        Some(format!("{}\n[{}]", &text[..end], self.note))
    }
}
