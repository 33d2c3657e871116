//! One content item of a result, as a hook sees and changes it.

use std::collections::HashMap;
use std::ops::Range;

use mlua::userdata::{MetaMethod, UserDataFields, UserDataMethods};
use mlua::{Lua, UserData, Value};

use super::objects::{Member, members};
use super::result_view::{BYTES_A_STEP, ResultView, only};
use super::views::refuse_other_fields;
use crate::policy::fields::{kind, text};
use crate::policy::json::Malformed;
use crate::policy::sandbox::{Watch, error_at_caller};

/// Compiling a regular expression, in steps: its size is bounded, so its time is.
const REGEX_STEPS: usize = 1_000;
const REGEX_MAX_BYTES: usize = 1 << 20;
const REGEXES_KEPT: usize = 16;

/// Where the parts of a content item are; strings without their quotes.
#[derive(Default)]
pub(super) struct Item {
    pub span: Range<usize>,
    kind: Option<Range<usize>>,
    pub text: Option<Range<usize>>,
    pub uri: Option<Range<usize>>,
    mime_type: Option<Range<usize>>,
    name: Option<Range<usize>>,
    data: Option<Range<usize>>,
    pub new_text: Option<String>,
    pub new_uri: Option<String>,
    pub is_removed: bool,
}

impl Item {
    pub fn read(whole: &str, span: Range<usize>) -> Result<Self, String> {
        let mut item = Self { span: span.clone(), ..Self::default() };
        if whole[span.clone()].starts_with('{') {
            item.take(whole, span.start)?;
        }
        Ok(item)
    }

    /// What an embedded resource has counts for the item, and of other items nothing that is called one: a hook must
    /// see what a client shows.
    fn take(&mut self, whole: &str, at: usize) -> Result<(), String> {
        let found = parts(whole, at)?;
        self.kind = found.string("type")?;
        self.name = found.string("name")?;
        let is_resource = self.kind.clone().is_some_and(|kind| &whole[kind] == "resource");
        let resource = if is_resource { found.object("resource")? } else { None };
        let Some(resource) = resource else { return self.take_content(&found) };
        let resource = parts(whole, resource)?;
        for key in ["text", "uri", "mimeType", "data", "blob"] {
            if found.string(key)?.is_some() && resource.string(key)?.is_some() {
                return Err(format!("an item has \"{key}\" beside that of its resource, so it cannot be judged"));
            }
        }
        self.take_content(&found)?;
        self.take_content(&resource)
    }

    fn take_content(&mut self, found: &Parts<'_>) -> Result<(), String> {
        self.text = found.string("text")?.or(self.text.take());
        self.uri = found.string("uri")?.or(self.uri.take());
        self.mime_type = found.string("mimeType")?.or(self.mime_type.take());
        self.data = found.string("data")?.or(found.string("blob")?).or(self.data.take());
        Ok(())
    }

    /// Bytes that base64 data stands for.
    fn data_len(&self, payload: &[u8]) -> Option<usize> {
        let data = payload.get(self.data.clone()?)?;
        let padding = data.iter().rev().take_while(|byte| **byte == b'=').count();
        Some((data.len() - padding) * 3 / 4)
    }
}

/// Members of an object in a result.
struct Parts<'a> {
    whole: &'a str,
    members: Vec<Member<'a>>,
}

fn parts(whole: &str, at: usize) -> Result<Parts<'_>, String> {
    let malformed = |fault: Malformed| format!("the result is not JSON that can be judged, at byte {}", fault.at);
    Ok(Parts { whole, members: members(whole, at).map_err(malformed)? })
}

impl Parts<'_> {
    /// Without its quotes; `None` for what is no string.
    fn string(&self, key: &str) -> Result<Option<Range<usize>>, String> {
        let value = only(&self.members, key)?.map(|member| member.value.clone());
        let value = value.filter(|value| self.whole[value.clone()].starts_with('"'));
        Ok(value.map(|value| value.start + 1..value.end - 1))
    }

    /// Where it starts; `None` for what is no object.
    fn object(&self, key: &str) -> Result<Option<usize>, String> {
        let value = only(&self.members, key)?.map(|member| member.value.clone());
        Ok(value.filter(|value| self.whole[value.clone()].starts_with('{')).map(|value| value.start))
    }
}

/// One content item.
pub(super) struct ItemView {
    result: ResultView,
    index: usize,
}

impl ItemView {
    pub fn new(result: &ResultView, index: usize) -> Self {
        Self { result: result.clone(), index }
    }

    fn part(&self, lua: &Lua, part: impl FnOnce(&Item) -> &Option<Range<usize>>) -> mlua::Result<Option<String>> {
        let state = self.result.open(lua)?;
        part(&state.items[self.index]).as_ref().map(|span| state.decoded(lua, span)).transpose()
    }

    fn text(&self, lua: &Lua) -> mlua::Result<Option<String>> {
        self.new_or(lua, |item| &item.new_text, |item| &item.text)
    }

    /// What the hook wrote, or else what came.
    fn new_or(
        &self,
        lua: &Lua,
        new: impl FnOnce(&Item) -> &Option<String>,
        part: impl FnOnce(&Item) -> &Option<Range<usize>>,
    ) -> mlua::Result<Option<String>> {
        // The lock is given back before the other half takes it.
        let new = new(&self.result.open(lua)?.items[self.index]).clone();
        match new {
            Some(new) => Ok(Some(new)),
            None => self.part(lua, part),
        }
    }
}

impl UserData for ItemView {
    fn add_fields<F: UserDataFields<Self>>(fields: &mut F) {
        fields.add_meta_field(MetaMethod::Type, "item");
        fields.add_field_method_get("type", |lua, view| view.part(lua, |item| &item.kind));
        fields.add_field_method_get("text", |lua, view| view.text(lua));
        fields.add_field_method_get("uri", |lua, view| view.new_or(lua, |item| &item.new_uri, |item| &item.uri));
        fields.add_field_method_get("mime_type", |lua, view| view.part(lua, |item| &item.mime_type));
        fields.add_field_method_get("name", |lua, view| view.part(lua, |item| &item.name));
        fields.add_field_method_get("bytes", |lua, view| {
            let state = view.result.open(lua)?;
            Ok(state.items[view.index].data_len(&state.payload).map(|len| len as f64))
        });
    }

    fn add_methods<M: UserDataMethods<Self>>(methods: &mut M) {
        methods.add_method("set_text", |lua, view, new: Value| {
            view.set(lua, "set_text", &new, |item| (&item.text, &mut item.new_text))
        });
        methods.add_method("set_uri", |lua, view, new: Value| {
            view.set(lua, "set_uri", &new, |item| (&item.uri, &mut item.new_uri))
        });
        methods.add_method("remove", |lua, view, ()| {
            view.result.open(lua)?.items[view.index].is_removed = true;
            Ok(())
        });
        methods.add_method("matches", |lua, view, pattern: Value| {
            let Some(text) = view.text(lua)? else { return Ok(false) };
            Watch::charge(lua, text.len() / BYTES_A_STEP)?;
            matches(lua, &text, &pattern)
        });
        const KNOWN: &[&str] =
            &["type", "text", "uri", "mime_type", "name", "bytes", "set_text", "set_uri", "remove", "matches"];
        refuse_other_fields(methods, "item", KNOWN);
    }
}

impl ItemView {
    fn set(
        &self,
        lua: &Lua,
        method: &str,
        new: &Value,
        part: impl FnOnce(&mut Item) -> (&Option<Range<usize>>, &mut Option<String>),
    ) -> mlua::Result<()> {
        let new = text(new)
            .ok_or_else(|| error_at_caller(lua, format_args!("item:{method} takes text, got {}", kind(new))))?;
        let mut state = self.result.open(lua)?;
        state.note_written(lua, new.len())?;
        match part(&mut state.items[self.index]) {
            (Some(_), place) => *place = Some(new),
            (None, _) => return Err(error_at_caller(lua, format_args!("item:{method}: the item has none to change"))),
        }
        Ok(())
    }
}

/// Regular expressions of one machine.
#[derive(Default)]
struct Regexes(HashMap<String, regex::Regex>);

/// Whether a regular expression, linear in time, matches anywhere.
fn matches(lua: &Lua, whole: &str, pattern: &Value) -> mlua::Result<bool> {
    let pattern = text(pattern).ok_or_else(|| error_at_caller(lua, "item:matches takes a regular expression"))?;
    if lua.app_data_ref::<Regexes>().is_none() {
        lua.set_app_data(Regexes::default());
    }
    let known = lua.app_data_ref::<Regexes>().and_then(|known| known.0.get(&pattern).cloned());
    if let Some(regex) = known {
        return Ok(regex.is_match(whole));
    }
    Watch::charge(lua, REGEX_STEPS)?;
    let regex = regex::RegexBuilder::new(&pattern).size_limit(REGEX_MAX_BYTES).build().map_err(|error| {
        let error = error.to_string();
        let reason = error.lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned();
        error_at_caller(lua, format_args!("item:matches: not a valid regular expression: {reason}"))
    })?;
    let is_match = regex.is_match(whole);
    if let Some(mut known) = lua.app_data_mut::<Regexes>() {
        if known.0.len() >= REGEXES_KEPT {
            known.0.clear();
        }
        known.0.insert(pattern, regex);
    }
    Ok(is_match)
}
