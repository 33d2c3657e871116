//! Rules over the arguments of a call: denials, bounds and defaults on the raw JSON.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use regex::Regex;

use super::edits::Edits;
use super::json::{self, Cursor, Malformed};
use super::url_rule::UrlRule;

/// The rules of one tool, by argument. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct ArgumentRules(Arc<BTreeMap<String, ArgumentRule>>);

/// Why a call is not sent. It names the argument, never its value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct Denied {
    pub reason: String,
    /// Where the rule stands, if it was one: `policies/x.lua:30`.
    pub rule: Option<Arc<str>>,
}

/// Arguments that rules changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Rewritten {
    pub arguments: String,
    /// The first of the rules that did.
    pub rule: Option<Arc<str>>,
}

#[derive(Clone, Debug)]
pub(super) struct ArgumentRule {
    pub required: bool,
    /// JSON text that stands in for an absent argument.
    pub default: Option<String>,
    pub check: Check,
    /// The file and line where the policy puts it on an argument.
    pub at: Option<Arc<str>>,
}

#[derive(Clone, Debug)]
pub(super) enum Check {
    Anything,
    Url(Arc<UrlRule>),
    /// Bounds are inclusive; a number outside is moved to the nearer one.
    Number {
        min: Option<f64>,
        max: Option<f64>,
    },
    /// Bytes of UTF-8 after decoding; the pattern may match anywhere.
    Text {
        max_bytes: Option<usize>,
        pattern: Option<Arc<Regex>>,
    },
}

impl ArgumentRules {
    pub(super) fn new(rules: BTreeMap<String, ArgumentRule>) -> Self {
        Self(Arc::new(rules))
    }

    pub(super) fn overlaid_by(&self, over: &Self) -> Self {
        if self.is_empty() {
            return over.clone();
        }
        if over.is_empty() {
            return self.clone();
        }
        let both = self.0.iter().chain(over.0.iter());
        Self::new(both.map(|(name, rule)| (name.clone(), rule.clone())).collect())
    }

    /// Names of the arguments that have a rule.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// Where they stand.
    pub(super) fn places(&self) -> impl Iterator<Item = &str> {
        self.0.values().filter_map(|rule| rule.at.as_deref())
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Judges the raw JSON of `arguments` (`None` and `null`: the client sent none).
    ///
    /// `Some` is the new raw JSON, only if a default or a bound changed something; all else in it is as the client
    /// wrote it. Where a key occurs more than once, every occurrence is judged, because servers differ in which counts.
    pub fn apply(&self, arguments: Option<&str>) -> Result<Option<String>, Denied> {
        self.judge(arguments).map(|rewritten| rewritten.map(|rewritten| rewritten.arguments))
    }

    pub(super) fn judge(&self, arguments: Option<&str>) -> Result<Option<Rewritten>, Denied> {
        if self.is_empty() {
            return Ok(None);
        }
        let Some(text) = arguments.map(str::trim).filter(|text| *text != "null") else {
            return self.apply_to_nothing();
        };
        let no_rule = |reason: &str| Denied { reason: reason.to_owned(), rule: None };
        let not_an_object = |_: Malformed| no_rule("arguments are not a JSON object");
        let mut edits = Edits::default();
        let mut cursor = Cursor::new(text, 0);
        let mut seen = Vec::new();
        let mut first = None;
        let mut more = cursor.open(b'{', b'}').map_err(not_an_object)?;
        let is_empty = !more;
        // Behind the brace, until there is a member to stand behind.
        let mut last_end = 1;
        while more {
            let key = cursor.string().and_then(|key| cursor.decode(&key)).map_err(not_an_object)?;
            cursor.expect(b':').map_err(not_an_object)?;
            let value = cursor.value().map_err(not_an_object)?;
            last_end = value.end;
            if let Some((name, rule)) = self.0.get_key_value(&*key) {
                let was_first = edits.is_empty();
                rule.judge(name, text, value, &mut edits).map_err(|denied| rule.named(denied))?;
                if was_first && !edits.is_empty() {
                    first.clone_from(&rule.at);
                }
                seen.push(name);
            }
            more = cursor.next(b'}').map_err(not_an_object)?;
        }
        if !cursor.is_at_end() {
            return Err(no_rule("arguments are not a JSON object"));
        }
        let (added, rule) = self.members_for_absent(&seen)?;
        if !added.is_empty() {
            first = first.or(rule);
            let comma = if is_empty { "" } else { "," };
            edits.replace(last_end..last_end, format!("{comma}{added}"));
        }
        let rewritten = edits.apply(text).map_err(|_| no_rule("arguments could not be rewritten"))?;
        Ok(rewritten.map(|arguments| Rewritten { arguments, rule: first }))
    }

    fn apply_to_nothing(&self) -> Result<Option<Rewritten>, Denied> {
        let (added, rule) = self.members_for_absent(&[])?;
        Ok((!added.is_empty()).then(|| Rewritten { arguments: format!("{{{added}}}"), rule }))
    }

    /// The members to add, joined by commas, and the first rule that adds one.
    fn members_for_absent(&self, seen: &[&String]) -> Result<(String, Option<Arc<str>>), Denied> {
        let mut members = Vec::new();
        let mut first = None;
        for (name, rule) in self.0.iter().filter(|(name, _)| !seen.contains(name)) {
            match &rule.default {
                Some(default) => {
                    first = first.or_else(|| rule.at.clone());
                    members.push(format!("{}:{default}", json::quote(name)));
                }
                None if rule.required => return Err(rule.named(denied(name, "is required"))),
                None => {}
            }
        }
        Ok((members.join(","), first))
    }
}

impl ArgumentRule {
    fn named(&self, denied: Denied) -> Denied {
        Denied { rule: self.at.clone(), ..denied }
    }

    fn judge(&self, name: &str, text: &str, value: Range<usize>, edits: &mut Edits<'_>) -> Result<(), Denied> {
        let raw = &text[value.clone()];
        match &self.check {
            Check::Anything => Ok(()),
            Check::Url(rule) => rule.judge(&string(name, raw)?).map_err(|reason| denied(name, &reason)),
            Check::Number { min, max } => {
                let bounded = bound(number(name, raw)?, *min, *max);
                let bounded = bounded.ok_or_else(|| denied(name, "must be a finite number"))?;
                if let Some(nearest) = bounded {
                    edits.replace(value, number_text(nearest));
                }
                Ok(())
            }
            Check::Text { max_bytes, pattern } => {
                let string = string(name, raw)?;
                match (max_bytes, pattern) {
                    (Some(max), _) if string.len() > *max => {
                        Err(denied(name, &format!("must not be longer than {max} bytes")))
                    }
                    (_, Some(pattern)) if !pattern.is_match(&string) => {
                        Err(denied(name, "does not match the pattern that the policy asks for"))
                    }
                    _ => Ok(()),
                }
            }
        }
    }
}

fn denied(name: &str, what: &str) -> Denied {
    Denied { reason: format!("argument `{name}` {what}"), rule: None }
}

fn string<'a>(name: &str, raw: &'a str) -> Result<Cow<'a, str>, Denied> {
    let inner = raw.strip_prefix('"').and_then(|raw| raw.strip_suffix('"'));
    inner.and_then(json::decode).ok_or_else(|| denied(name, "must be a string"))
}

fn number(name: &str, raw: &str) -> Result<f64, Denied> {
    let is_number = raw.starts_with(|c: char| c == '-' || c.is_ascii_digit());
    raw.parse().ok().filter(|_| is_number).ok_or_else(|| denied(name, "must be a number"))
}

/// The bound that `value` lies beyond, if any; outer `None` if it is infinite and has no bound to go to.
fn bound(value: f64, min: Option<f64>, max: Option<f64>) -> Option<Option<f64>> {
    match (min, max) {
        (Some(min), _) if value < min => Some(Some(min)),
        (_, Some(max)) if value > max => Some(Some(max)),
        _ => value.is_finite().then_some(None),
    }
}

/// A finite number as JSON, whole ones without a fraction.
pub(super) fn number_text(value: f64) -> String {
    value.to_string()
}
