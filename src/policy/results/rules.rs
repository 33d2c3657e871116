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

/// A rule and where it stands in the policy, for people: `policies/x.lua:30`.
#[derive(Clone, Debug)]
pub(in crate::policy) struct PlacedRule {
    pub place: Arc<str>,
    pub rule: Rule,
}

/// Rules sorted by what they look at.
#[derive(Debug, Default)]
pub(super) struct RuleSet {
    pub keys: Vec<Nth<Arc<KeyRule>>>,
    pub uris: Vec<Nth<Arc<UriRule>>>,
    pub media: Vec<Nth<Arc<MediaRule>>>,
    pub texts: Vec<Nth<TextRule>>,
    /// Whether one of the key rules asks for JSON inside texts.
    pub parses_json_text: bool,
    /// Of all rules, in the order of the policy.
    pub places: Vec<Arc<str>>,
}

/// A rule with its number in the order of the policy.
#[derive(Clone, Debug)]
pub(super) struct Nth<R> {
    pub number: usize,
    pub rule: R,
}

#[derive(Clone, Debug)]
pub(super) enum TextRule {
    Headers(Arc<HeaderRule>),
    Pattern(Arc<PatternRule>),
    Limit(Arc<LimitRule>),
}

/// The rules of a set that wanted something changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Acted(u64);

impl Acted {
    /// Beyond these all rules are told as one: a policy with more has other troubles.
    const NUMBERS: usize = u64::BITS as usize;

    pub(super) fn note(&mut self, number: usize) {
        self.0 |= 1 << number.min(Self::NUMBERS - 1);
    }

    pub(super) fn join(&mut self, other: Self) {
        self.0 |= other.0;
    }

    pub(super) fn has(self, number: usize) -> bool {
        self.0 & (1 << number.min(Self::NUMBERS - 1)) != 0
    }
}

impl RuleSet {
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty() && self.uris.is_empty() && self.media.is_empty() && self.texts.is_empty()
    }

    /// The first rule that redacts members of this name; in JSON that was found inside a text, only rules that ask for
    /// that.
    pub fn key_rule(&self, key: &str, is_inside_text: bool) -> Option<&Nth<Arc<KeyRule>>> {
        let is_asked = |rule: &KeyRule| rule.parses_json_text || !is_inside_text;
        self.keys.iter().find(|nth| is_asked(&nth.rule) && nth.rule.keys.contains(key))
    }

    /// Whether any rule could change a text. Neither a header nor a member of an object is written without a colon.
    pub fn looks_at_texts(&self, has_no_colon: bool, is_inside_text: bool) -> bool {
        let looks = |nth: &Nth<TextRule>| !has_no_colon || !matches!(nth.rule, TextRule::Headers(_));
        (self.parses_json_text && !has_no_colon) || (!is_inside_text && self.texts.iter().any(looks))
    }
}

impl FromIterator<PlacedRule> for RuleSet {
    fn from_iter<I: IntoIterator<Item = PlacedRule>>(rules: I) -> Self {
        let mut set = Self::default();
        for (number, PlacedRule { place, rule }) in rules.into_iter().enumerate() {
            set.places.push(place);
            match rule {
                Rule::Keys(rule) => {
                    set.parses_json_text |= rule.parses_json_text;
                    set.keys.push(Nth { number, rule });
                }
                Rule::Uri(rule) => set.uris.push(Nth { number, rule }),
                Rule::Media(rule) => set.media.push(Nth { number, rule }),
                Rule::Headers(rule) => set.texts.push(Nth { number, rule: TextRule::Headers(rule) }),
                Rule::Pattern(rule) => set.texts.push(Nth { number, rule: TextRule::Pattern(rule) }),
                Rule::Limit(rule) => set.texts.push(Nth { number, rule: TextRule::Limit(rule) }),
            }
        }
        set
    }
}

impl RuleSet {
    /// The number of the first rule that wants what is that large to be kept elsewhere.
    pub fn keeps(&self, media: &Media<'_>) -> Option<usize> {
        let wants = |rule: &MediaRule| {
            let is_meant = match media.kind {
                MediaKind::Image => rule.images,
                MediaKind::Audio => rule.audio,
            };
            is_meant && media.size > rule.when_bytes_over
        };
        Some(self.media.iter().find(|nth| wants(&nth.rule))?.number)
    }
}

/// What the `uri` of a content item becomes, and by which rule.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum UriVerdict {
    Keep,
    Rewrite(usize, String),
    Drop(usize),
}

impl RuleSet {
    /// The first rule whose prefix fits rewrites; if none fits and one of them says so, the item is dropped.
    pub fn judge_uri(&self, uri: &str, item: ContentTypes) -> UriVerdict {
        let is_for = |nth: &&Nth<Arc<UriRule>>| {
            let types = nth.rule.content_types;
            (types.resource_link && item.resource_link) || (types.resource && item.resource)
        };
        let mut rules = self.uris.iter().filter(is_for);
        if let Some(verdict) =
            rules.clone().find_map(|nth| Some(UriVerdict::Rewrite(nth.number, nth.rule.rewrite(uri)?)))
        {
            return verdict;
        }
        match rules.find(|nth| nth.rule.otherwise == Otherwise::Drop) {
            Some(nth) => UriVerdict::Drop(nth.number),
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
