//! Changes one text, rule after rule in the order of the policy.

use std::borrow::Cow;

use super::inner;
use super::rules::{Acted, LimitRule, Nth, PatternRule, RuleSet, TextRule};

/// What a text is to the message.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// The `text` of a content item or resource: what a limit is for.
    Item,
    Anywhere,
}

/// `None` if the rules leave the text as it is. JSON inside it is redacted first, while it is still JSON.
pub(super) fn rewrite(rules: &RuleSet, text: &str, place: Place, acted: &mut Acted) -> Option<String> {
    let mut now = Cow::Borrowed(text);
    if let Some(new) = inner::redact(rules, text, 1, acted) {
        now = Cow::Owned(new);
    }
    for Nth { number, rule } in &rules.texts {
        let new = match rule {
            TextRule::Headers(rule) => rule.redact(&now),
            TextRule::Pattern(rule) => rule.redact(&now),
            TextRule::Limit(rule) if place == Place::Item => rule.cut(&now),
            TextRule::Limit(_) => None,
        };
        if let Some(new) = new {
            acted.note(*number);
            now = Cow::Owned(new);
        }
    }
    match now {
        Cow::Owned(new) if new != text => Some(new),
        _ => None,
    }
}

impl PatternRule {
    fn redact(&self, text: &str) -> Option<String> {
        // Asked first, because finding with groups sets up more than a text without a match is worth.
        self.pattern.is_match(text).then(|| self.pattern.replace_all(text, self.replace_with.as_str()).into_owned())
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
