//! One pass over a payload: finds what the rules look at and collects the replacements.

use std::ops::Range;
use std::sync::Arc;

use super::media::{Keep, Media, MediaKind};
use super::rules::{Acted, ContentTypes, KeyRule, Nth, RuleSet, UriVerdict};
use super::{PayloadKind, RuleFailure, inner, text};
use crate::policy::edits::{Edits, Mark};
use crate::policy::json::{self, Cursor, Malformed, RawString};

/// Stands in for an item that a rule drops from a place where something must stand.
const DROPPED_ITEM: &str = r#"{"type":"text","text":"[removed by policy]"}"#;

pub(super) fn rewrite(
    rules: &RuleSet,
    payload: &str,
    kind: PayloadKind,
    keep: &mut Keep<'_>,
    acted: &mut Acted,
) -> Result<Option<String>, RuleFailure> {
    let area = match kind {
        PayloadKind::Result | PayloadKind::Params => Area::Protocol,
        PayloadKind::Error | PayloadKind::Unknown => Area::Data,
    };
    let mut walk = Walk::new(rules, Cursor::new(payload, 0), 0);
    if kind == PayloadKind::Result && !rules.media.is_empty() {
        walk.keep = Some(keep);
    }
    walk.whole_value(area)?;
    if !walk.json.is_at_end() {
        return Err(RuleFailure::NotJson { at: walk.json.at });
    }
    acted.join(walk.acted);
    walk.edits.apply(payload).map_err(|_| RuleFailure::Conflict)
}

impl From<Malformed> for RuleFailure {
    fn from(Malformed { at, too_deep }: Malformed) -> Self {
        if too_deep { Self::TooDeep { at } } else { Self::NotJson { at } }
    }
}

/// Whose members are being read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Area {
    /// Members that the protocol defines: `type` names a kind of item, the `data` of an image is not text.
    Protocol,
    /// What the server made up, such as `structuredContent`: every string is text.
    Data,
}

pub(super) struct Walk<'a> {
    rules: &'a RuleSet,
    pub json: Cursor<'a>,
    pub edits: Edits<'a>,
    pub acted: Acted,
    /// Members of the open objects that wait for a later member to say what they are.
    deferred: Vec<Deferred>,
    /// 0 in the payload itself; how many texts the JSON stands in, otherwise.
    inside_texts: usize,
    /// Who keeps large images and sounds, where a rule asks for it.
    keep: Option<&'a mut Keep<'a>>,
    /// Where the member begins that is being read.
    member_at: usize,
}

#[derive(Clone)]
enum Deferred {
    /// The `value` of what may be a name and value pair.
    Value(Range<usize>),
    /// A `data` string, which is text unless the item is an image or sound.
    Data(RawString),
    /// A `uri` string of this object.
    Uri(RawString),
    /// A `uri` string of this object's `resource`.
    ResourceUri(RawString),
}

/// What is known about an open object.
#[derive(Default)]
struct Seen<'a> {
    /// The rule for the key that a `name` member spells.
    named: Option<&'a Nth<Arc<KeyRule>>>,
    types: ContentTypes,
    media: Option<MediaKind>,
    is_other: bool,
    item: Item,
}

/// The members of an image or sound that matter to its being kept.
#[derive(Default)]
struct Item {
    /// Its value.
    kind: Option<Range<usize>>,
    /// Where the member begins, and its value.
    data: Option<(usize, RawString)>,
    mime_type: Option<RawString>,
    /// It has members twice or members of a link, so that it cannot become one in its place.
    is_odd: bool,
}

/// Whether a rule wants the value just read to be dropped; its container decides how.
#[derive(PartialEq, Eq)]
enum Fate {
    Stays,
    Dropped,
}

impl<'a> Walk<'a> {
    fn new(rules: &'a RuleSet, json: Cursor<'a>, inside_texts: usize) -> Self {
        let (edits, acted) = (Edits::default(), Acted::default());
        Self { rules, json, edits, acted, deferred: Vec::new(), inside_texts, keep: None, member_at: 0 }
    }

    /// Reads a value that starts in the middle of a text. What was found before a fault stays in `edits`.
    pub fn inside_text(
        rules: &'a RuleSet,
        text: &'a str,
        at: usize,
        inside_texts: usize,
    ) -> (Self, Result<(), Malformed>) {
        let mut walk = Self::new(rules, Cursor::new(text, at), inside_texts);
        let outcome = walk.whole_value(Area::Data);
        (walk, outcome)
    }

    fn whole_value(&mut self, area: Area) -> Result<(), Malformed> {
        let (start, mark) = (self.json.at, self.edits.mark());
        if self.value(area)? == Fate::Dropped {
            self.edits.replace_whole(mark, start..self.json.end_before_space(), DROPPED_ITEM);
        }
        Ok(())
    }

    fn value(&mut self, area: Area) -> Result<Fate, Malformed> {
        match self.json.peek() {
            Some(b'{') => return self.object(area, false),
            Some(b'[') => self.array(area)?,
            Some(b'"') => {
                let raw = self.json.string()?;
                self.text(&raw, text::Place::Anywhere)?;
            }
            _ => {
                self.json.scalar()?;
            }
        }
        Ok(Fate::Stays)
    }

    fn array(&mut self, area: Area) -> Result<(), Malformed> {
        let mut more = self.json.open(b'[', b']')?;
        let mut is_any_kept = false;
        let mut previous_end = self.json.at;
        while more {
            let (start, mark) = (self.json.at, self.edits.mark());
            let fate = self.value(area)?;
            let end = self.json.end_before_space();
            more = self.json.next(b']')?;
            // A dropped item takes one comma with it: the one before it, or the one after it while nothing is kept yet.
            match fate {
                Fate::Stays => is_any_kept = true,
                Fate::Dropped if is_any_kept => self.edits.replace_whole(mark, previous_end..end, ""),
                Fate::Dropped if more => self.edits.replace_whole(mark, start..self.json.at, ""),
                Fate::Dropped => self.edits.replace_whole(mark, start..end, ""),
            }
            previous_end = end;
        }
        Ok(())
    }

    /// `lends_uris`: the object is the `resource` of another, whose `type` decides about its URIs.
    fn object(&mut self, area: Area, lends_uris: bool) -> Result<Fate, Malformed> {
        let (start, mark) = (self.json.at, self.edits.mark());
        let before = (self.deferred.len(), mark);
        let mut seen = Seen::default();
        let outcome = self.members(area, &mut seen);
        // After a fault too: of a text that breaks off, what was seen is redacted all the same.
        let fate = self.settle(before, &seen, lends_uris)?;
        outcome?;
        if self.keep.is_some() {
            self.keep_media(start..self.json.end_before_space(), mark, &seen)?;
        }
        Ok(fate)
    }

    fn members(&mut self, area: Area, seen: &mut Seen<'a>) -> Result<(), Malformed> {
        let mut more = self.json.open(b'{', b'}')?;
        while more {
            self.member_at = self.json.at;
            let key = self.json.string()?;
            let key = self.json.decode(&key)?;
            seen.item.is_odd |= matches!(&*key, "uri" | "name" | "size");
            self.json.expect(b':')?;
            match self.rules.key_rule(&key, self.inside_texts > 0) {
                Some(rule) => self.redact_value(rule)?,
                None => self.member(area, &key, seen)?,
            }
            more = self.json.next(b'}')?;
        }
        Ok(())
    }

    /// `true`, `false` and `null` tell nothing and stay.
    fn redact_value(&mut self, nth: &'a Nth<Arc<KeyRule>>) -> Result<(), Malformed> {
        let (start, rule) = (self.json.at, &*nth.rule);
        let Ok(span) = self.json.value() else {
            // Only JSON in a text may break off; there the rest of it goes.
            self.acted.note(nth.number);
            self.edits.replace(start..self.json.text().len(), rule.replacement.as_str());
            return Err(Malformed { at: self.json.text().len(), too_deep: false });
        };
        if !matches!(&self.json.text()[span.clone()], "true" | "false" | "null") {
            self.acted.note(nth.number);
            self.edits.replace(span, rule.replacement.as_str());
        }
        Ok(())
    }

    fn member(&mut self, area: Area, key: &str, seen: &mut Seen<'a>) -> Result<(), Malformed> {
        if !self.rules.keys.is_empty() {
            if key.eq_ignore_ascii_case("name") && self.json.peek() == Some(b'"') {
                let raw = self.json.string()?;
                let name = self.json.decode(&raw)?;
                seen.named = seen.named.or(self.rules.key_rule(&name, self.inside_texts > 0));
                return self.text(&raw, text::Place::Anywhere);
            } else if key.eq_ignore_ascii_case("value") {
                return self.deferred_value(area);
            }
        }
        match area {
            Area::Protocol => self.protocol_member(key, seen),
            Area::Data => self.whole_value(area),
        }
    }

    fn deferred_value(&mut self, area: Area) -> Result<(), Malformed> {
        let start = self.json.at;
        let place = self.deferred.len();
        // Until its end is known it reaches to the end, so that a fault inside it cannot save it from redaction.
        self.deferred.push(Deferred::Value(start..self.json.text().len()));
        self.whole_value(area)?;
        self.deferred[place] = Deferred::Value(start..self.json.end_before_space());
        Ok(())
    }

    fn protocol_member(&mut self, key: &str, seen: &mut Seen<'a>) -> Result<(), Malformed> {
        let is_string = self.json.peek() == Some(b'"');
        match key {
            "type" if is_string => {
                let raw = self.json.string()?;
                seen.note_type(&self.json.decode(&raw)?);
                seen.item.is_odd |= seen.item.kind.replace(raw.with_quotes()).is_some();
            }
            "mimeType" if is_string => {
                let raw = self.json.string()?;
                seen.item.is_odd |= seen.item.mime_type.replace(raw).is_some();
            }
            // Words of the protocol, tokens that are sent back to the server, and bytes in base64: never text.
            "role" | "level" | "method" | "resultType" | "progressToken" | "requestId" | "taskId" | "nextCursor"
            | "requestState" | "blob"
                if is_string =>
            {
                self.json.string()?;
            }
            "data" if is_string => {
                let member_at = self.member_at;
                let raw = self.json.string()?;
                seen.item.is_odd |= seen.item.data.replace((member_at, raw.clone())).is_some();
                self.deferred.push(Deferred::Data(raw));
            }
            "uri" if is_string => {
                let raw = self.json.string()?;
                self.deferred.push(Deferred::Uri(raw));
            }
            "text" if is_string => {
                let raw = self.json.string()?;
                self.text(&raw, text::Place::Item)?;
            }
            "resource" if self.json.peek() == Some(b'{') => {
                self.object(Area::Protocol, true)?;
            }
            "data" | "structuredContent" | "_meta" | "arguments" | "requestedSchema" => self.whole_value(Area::Data)?,
            _ => self.whole_value(Area::Protocol)?,
        }
        Ok(())
    }

    /// Decides about the members of a closed object that had to wait.
    fn settle(
        &mut self,
        (deferred_before, mark): (usize, Mark),
        seen: &Seen<'a>,
        lends_uris: bool,
    ) -> Result<Fate, Malformed> {
        let mut fate = Fate::Stays;
        if self.deferred.len() == deferred_before {
            return Ok(fate);
        }
        let deferred_until = self.deferred.len();
        for at in deferred_before..deferred_until {
            match self.deferred[at].clone() {
                Deferred::Value(span) => {
                    if let Some(nth) = seen
                        .named
                        .filter(|_| !matches!(self.json.text().get(span.clone()), Some("true" | "false" | "null")))
                    {
                        self.acted.note(nth.number);
                        self.edits.replace_whole(mark, span, nth.rule.replacement.as_str());
                    }
                }
                Deferred::Data(raw) => {
                    if seen.media.is_none() || seen.is_other {
                        self.text(&raw, text::Place::Anywhere)?;
                    }
                }
                Deferred::Uri(raw) if lends_uris => self.deferred.push(Deferred::ResourceUri(raw)),
                Deferred::Uri(raw) => {
                    let item = ContentTypes { resource: false, ..seen.types };
                    self.uri(&raw, item, &mut fate)?;
                }
                Deferred::ResourceUri(raw) => {
                    let item = ContentTypes { resource_link: false, ..seen.types };
                    self.uri(&raw, item, &mut fate)?;
                }
            }
        }
        self.deferred.drain(deferred_before..deferred_until);
        Ok(fate)
    }

    /// An image or sound that a rule finds too large becomes a link, or words where it cannot be kept.
    fn keep_media(&mut self, object: Range<usize>, mark: Mark, seen: &Seen<'a>) -> Result<(), Malformed> {
        let Item { kind: Some(type_at), data: Some((member_at, data)), mime_type, is_odd } = &seen.item else {
            return Ok(());
        };
        let Some(kind) = seen.media.filter(|_| !seen.is_other) else { return Ok(()) };
        let mime_type = mime_type.as_ref().map(|raw| self.json.decode(raw)).transpose()?;
        let media = Media::new(kind, mime_type.unwrap_or("application/octet-stream".into()), self.json.decode(data)?);
        let Some(number) = self.rules.keeps(&media) else { return Ok(()) };
        self.acted.note(number);
        match self.keep.as_mut().and_then(|keep| keep(&media)) {
            None => self.edits.replace_whole(mark, object, media.not_kept_item()),
            Some(link) if *is_odd => self.edits.replace_whole(mark, object, media.link_item(&link)),
            Some(link) => {
                self.edits.replace(type_at.clone(), r#""resource_link""#);
                self.edits.replace(*member_at..data.with_quotes().end, media.link_members(&link));
            }
        }
        Ok(())
    }

    fn uri(&mut self, raw: &RawString, item: ContentTypes, fate: &mut Fate) -> Result<(), Malformed> {
        let uri = self.json.decode(raw)?;
        match self.rules.judge_uri(&uri, item) {
            UriVerdict::Keep => return self.text(raw, text::Place::Anywhere),
            UriVerdict::Drop(number) => {
                self.acted.note(number);
                *fate = Fate::Dropped;
            }
            UriVerdict::Rewrite(number, rewritten) => {
                self.acted.note(number);
                let rewritten =
                    text::rewrite(self.rules, &rewritten, text::Place::Anywhere, &mut self.acted).unwrap_or(rewritten);
                self.edits.replace(raw.with_quotes(), json::quote(&rewritten));
            }
        }
        Ok(())
    }

    fn text(&mut self, raw: &RawString, place: text::Place) -> Result<(), Malformed> {
        if !self.rules.looks_at_texts(raw.has_no_colon(), self.inside_texts > 0) {
            return Ok(());
        }
        let decoded = self.json.decode(raw)?;
        let rewritten = match self.inside_texts {
            0 => text::rewrite(self.rules, &decoded, place, &mut self.acted),
            depth => inner::redact(self.rules, &decoded, depth + 1, &mut self.acted),
        };
        if let Some(rewritten) = rewritten {
            self.edits.replace(raw.with_quotes(), json::quote(&rewritten));
        }
        Ok(())
    }
}

impl Seen<'_> {
    fn note_type(&mut self, word: &str) {
        match word {
            "image" => self.media = Some(MediaKind::Image),
            "audio" => self.media = Some(MediaKind::Audio),
            "resource_link" => self.types.resource_link = true,
            "resource" => self.types.resource = true,
            _ => {}
        }
        self.is_other |= !matches!(word, "image" | "audio");
    }
}
