//! Rules over what a server sends: redaction, rewriting and limits, compiled at load and run over the raw JSON.
//!
//! A payload is read once, from front to back; nothing is built until a rule changes something, and then only the
//! strings and values that it changes are written anew. Every occurrence of a duplicate key counts, escapes are decoded
//! before anything is compared, and a payload that is not JSON is a [`RuleFailure`], never an answer.
//!
//! - `walk.rs` reads a payload and knows which parts of a result have a meaning of their own.
//! - `rules.rs` is what the policy asked for.
//! - `media.rs` is an image or sound that is to be kept elsewhere, with a link in its place; by whom, the caller says.
//! - `text.rs` changes one decoded text; `headers.rs` finds header lines in it, `inner.rs` JSON inside it, and `groups.rs`
//!   what a replacement keeps of it.

mod groups;
mod headers;
mod inner;
mod media;
mod rules;
mod text;
mod walk;

use std::sync::Arc;

pub(super) use self::headers::HeaderRule;
pub use self::media::{Keep, Link, Media, MediaKind};
pub use self::rules::Acted;
use self::rules::RuleSet;
pub(super) use self::rules::{
    ContentTypes, KeyRule, LimitRule, MediaRule, Otherwise, PatternRule, PlacedRule, Rule, UriRule,
};

/// The rules for payloads of one kind of origin. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct ResultRules(Arc<RuleSet>);

/// Where in a message a payload comes from: what its members mean depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PayloadKind {
    /// The `result` of a response: of a tool, a resource, a prompt.
    Result,
    /// The `error` object of a response. All its strings are text.
    Error,
    /// The `params` of a notification or request from the server.
    Params,
    /// What the protocol gives no meaning, as an object. All its strings are text.
    Unknown,
}

/// The rules could not be carried out. The payload must not be passed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RuleFailure {
    #[error("the payload is not JSON at byte {at}")]
    NotJson { at: usize },
    #[error("the payload nests deeper than {} levels at byte {at}", super::json::DEPTH_MAX)]
    TooDeep { at: usize },
    #[error("two rules want to change the same part of the payload in different ways")]
    Conflict,
}

impl ResultRules {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Images and sounds from this size on, in bytes, may have to be kept elsewhere; `None`: none ever.
    pub fn keeps_media_from(&self) -> Option<u64> {
        self.0.media.iter().map(|nth| nth.rule.when_bytes_over.saturating_add(1)).min()
    }

    /// [`Self::apply_keeping`] for a caller that has nowhere to keep anything.
    pub fn apply(&self, payload: &str, kind: PayloadKind) -> Result<Option<String>, RuleFailure> {
        self.apply_keeping(payload, kind, &mut |_| None)
    }

    /// `Some` is the payload as the rules leave it, only if they changed something. What they did not touch is byte for
    /// byte the same; a string that they touched is written anew as a whole.
    ///
    /// `keep` is called for each large image or sound of a result, in their order, while the payload is read. Where it
    /// says `None`, words say so in their place.
    ///
    /// On an error the caller withholds the payload (invariant 11).
    pub fn apply_keeping(
        &self,
        payload: &str,
        kind: PayloadKind,
        keep: &mut Keep<'_>,
    ) -> Result<Option<String>, RuleFailure> {
        self.apply_telling(payload, kind, keep, &mut Acted::default())
    }

    /// [`Self::apply_keeping`], which notes the rules that wanted something changed.
    pub fn apply_telling(
        &self,
        payload: &str,
        kind: PayloadKind,
        keep: &mut Keep<'_>,
        acted: &mut Acted,
    ) -> Result<Option<String>, RuleFailure> {
        if self.is_empty() { Ok(None) } else { walk::rewrite(&self.0, payload, kind, keep, acted) }
    }

    /// Where the rules stand that acted: `policies/x.lua:14`.
    pub fn places(&self, acted: Acted) -> impl Iterator<Item = &str> {
        let places = self.0.places.iter().enumerate();
        places.filter(move |(number, _)| acted.has(*number)).map(|(_, place)| &**place)
    }
}

impl FromIterator<PlacedRule> for ResultRules {
    fn from_iter<I: IntoIterator<Item = PlacedRule>>(rules: I) -> Self {
        Self(Arc::new(rules.into_iter().collect()))
    }
}
