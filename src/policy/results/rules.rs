//! What a policy asks of results, ready to run.

use std::sync::Arc;

use regex::Regex;

use super::headers::HeaderRule;
use super::media::{Media, MediaKind};
use crate::policy::names::NameSet;

#[derive(Clone, Debug)]
pub(in crate::policy) enum Rule {
    Keys(Arc<KeyRule>),
    Headers(Arc<HeaderRule>),
    Pattern(Arc<PatternRule>),
    Limit(Arc<LimitRule>),
    Uri(Arc<UriRule>),
    Media(Arc<MediaRule>),
}

/// Values of members with these keys, at any depth, and of `{"name": key, "value": …}` pairs.
#[derive(Debug)]
pub(in crate::policy) struct KeyRule {
    pub keys: NameSet,
    /// As JSON, with its quotes.
    pub replacement: String,
    pub parses_json_text: bool,
}

#[derive(Debug)]
pub(in crate::policy) struct PatternRule {
    pub pattern: Regex,
    /// `$1` and `${name}` stand for groups of the pattern.
    pub replace_with: String,
}

/// Cuts the `text` of content items and resources at a character boundary.
#[derive(Debug)]
pub(in crate::policy) struct LimitRule {
    /// Bytes of UTF-8 after decoding, the note not counted.
    pub max_bytes: usize,
    pub note: String,
}

#[derive(Debug)]
pub(in crate::policy) struct UriRule {
    pub from_prefix: String,
    pub to_prefix: String,
    pub otherwise: Otherwise,
    pub content_types: ContentTypes,
}

/// Images and sounds in content items that are kept elsewhere, with a link in their place.
#[derive(Debug)]
pub(in crate::policy) struct MediaRule {
    /// Bytes when decoded.
    pub when_bytes_over: u64,
    pub images: bool,
    pub audio: bool,
}

/// What becomes of an item whose URI no rule's prefix fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::policy) enum Otherwise {
    Keep,
    Drop,
}

/// Which content items a rule is for, by their `type`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::policy) struct ContentTypes {
    pub resource_link: bool,
    pub resource: bool,
}

/// Rules sorted by what they look at.
#[derive(Debug, Default)]
pub(super) struct RuleSet {
    pub keys: Vec<Arc<KeyRule>>,
    pub uris: Vec<Arc<UriRule>>,
    pub media: Vec<Arc<MediaRule>>,
    pub texts: Vec<TextRule>,
    /// Whether one of the key rules asks for JSON inside texts.
    pub parses_json_text: bool,
}

#[derive(Clone, Debug)]
pub(super) enum TextRule {
    Headers(Arc<HeaderRule>),
    Pattern(Arc<PatternRule>),
    Limit(Arc<LimitRule>),
}

impl RuleSet {
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty() && self.uris.is_empty() && self.media.is_empty() && self.texts.is_empty()
    }

    /// The first rule that redacts members of this name; in JSON that was found inside a text, only rules that ask for
    /// that.
    pub fn key_rule(&self, key: &str, is_inside_text: bool) -> Option<&Arc<KeyRule>> {
        self.keys.iter().find(|rule| (rule.parses_json_text || !is_inside_text) && rule.keys.contains(key))
    }

    /// Whether any rule could change a text. Neither a header nor a member of an object is written without a colon.
    pub fn looks_at_texts(&self, has_no_colon: bool, is_inside_text: bool) -> bool {
        let looks = |rule: &TextRule| !has_no_colon || !matches!(rule, TextRule::Headers(_));
        (self.parses_json_text && !has_no_colon) || (!is_inside_text && self.texts.iter().any(looks))
    }
}

impl FromIterator<Rule> for RuleSet {
    fn from_iter<I: IntoIterator<Item = Rule>>(rules: I) -> Self {
        let mut set = Self::default();
        for rule in rules {
            match rule {
                Rule::Keys(rule) => {
                    set.parses_json_text |= rule.parses_json_text;
                    set.keys.push(rule);
                }
                Rule::Uri(rule) => set.uris.push(rule),
                Rule::Media(rule) => set.media.push(rule),
                Rule::Headers(rule) => set.texts.push(TextRule::Headers(rule)),
                Rule::Pattern(rule) => set.texts.push(TextRule::Pattern(rule)),
                Rule::Limit(rule) => set.texts.push(TextRule::Limit(rule)),
            }
        }
        set
    }
}

impl RuleSet {
    /// Whether a rule wants what is that large to be kept elsewhere.
    pub fn keeps(&self, media: &Media<'_>) -> bool {
        self.media.iter().any(|rule| {
            let is_meant = match media.kind {
                MediaKind::Image => rule.images,
                MediaKind::Audio => rule.audio,
            };
            is_meant && media.size > rule.when_bytes_over
        })
    }
}

/// What the `uri` of a content item becomes.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum UriVerdict {
    Keep,
    Rewrite(String),
    Drop,
}

impl RuleSet {
    /// The first rule whose prefix fits rewrites; if none fits and one of them says so, the item is dropped.
    pub fn judge_uri(&self, uri: &str, item: ContentTypes) -> UriVerdict {
        let is_for = |rule: &&Arc<UriRule>| {
            let types = rule.content_types;
            (types.resource_link && item.resource_link) || (types.resource && item.resource)
        };
        let mut rules = self.uris.iter().filter(is_for);
        match rules.clone().find_map(|rule| rule.rewrite(uri)) {
            Some(rewritten) => UriVerdict::Rewrite(rewritten),
            None if rules.any(|rule| rule.otherwise == Otherwise::Drop) => UriVerdict::Drop,
            None => UriVerdict::Keep,
        }
    }
}

impl UriRule {
    /// A rest that climbs out of the prefix by `..` does not fit it, however the dots are spelled.
    fn rewrite(&self, uri: &str) -> Option<String> {
        let rest = uri.strip_prefix(&self.from_prefix)?;
        let climbs =
            rest.split(['/', '\\', '?', '#']).any(|segment| segment.to_ascii_lowercase().replace("%2e", ".") == "..")
                || rest.to_ascii_lowercase().contains("%2f..")
                || rest.to_ascii_lowercase().contains("%5c..");
        (!climbs).then(|| format!("{}{rest}", self.to_prefix))
    }
}
