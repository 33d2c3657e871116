//! `result`: what a hook sees of a result, by spans over its bytes, and what it wants changed.
//!
//! A result is never made into Lua tables: only the texts that a hook asks for are decoded, the data of images never.
//! What a hook changes is remembered and carried out on the raw bytes when it has come back; all else stays as it came.
//! Where a key that has a meaning occurs twice, the result is refused: a hook would judge one, a client may read the
//! other.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use mlua::userdata::{MetaMethod, UserDataFields, UserDataMethods};
use mlua::{Lua, Table, UserData, Value};

use super::item_view::{Item, ItemView};
use super::lua_json::{Json, scalar, to_lua};
use super::objects::{Member, cuts, items, members};
use super::verdict::reason_of;
use super::views::refuse_other_fields;
use crate::policy::edits::Edits;
use crate::policy::fields::{kind, text};
use crate::policy::json::{self, Malformed};
use crate::policy::sandbox::{Watch, error_at_caller};

/// Items that a hook can see; each costs some hundred bytes here and in the machine.
const ITEMS_MAX: usize = 10_000;
/// Bytes that one hook may write into one result.
const WRITTEN_MAX: usize = 16 << 20;
/// One step for so many bytes that are decoded or searched for a hook.
pub(super) const BYTES_A_STEP: usize = 1 << 10;
/// The result of one call while a hook looks at it. Shared by the views of its parts.
#[derive(Clone)]
pub(in crate::policy) struct ResultView(Arc<Mutex<State>>);

/// What a hook wanted.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::policy) enum Outcome {
    /// The raw result, only if something changed.
    Pass(Option<String>),
    Withhold(String),
}

pub(super) struct State {
    /// Empty once the hook is over: a view that a policy kept shows nothing of an earlier result.
    pub payload: Bytes,
    is_error: bool,
    pub items: Vec<Item>,
    /// Members of the result, to cut `structuredContent` out.
    members: Vec<Range<usize>>,
    structured: Option<Structured>,
    written: usize,
    withheld: Option<String>,
}

struct Structured {
    /// Its place among the members.
    member: usize,
    value: Range<usize>,
    is_dropped: bool,
    edits: Vec<(Range<usize>, String)>,
}

impl ResultView {
    /// Puts the types of the views into a machine, which costs steps that must not depend on who comes first.
    pub fn register(lua: &Lua) -> mlua::Result<()> {
        let view = Self::new(Bytes::from_static(b"{}")).map_err(mlua::Error::runtime)?;
        lua.create_userdata(ItemView::new(&view, 0))?;
        lua.create_userdata(view).map(drop)
    }

    /// Of a raw `result`. The error is what to tell.
    pub fn new(payload: Bytes) -> Result<Self, String> {
        let text = std::str::from_utf8(&payload).map_err(|_| "the result is not UTF-8")?;
        let malformed = |fault: Malformed| format!("the result is not JSON that can be judged, at byte {}", fault.at);
        let found = members(text, 0).map_err(malformed)?;
        let content = only(&found, "content")?;
        let items = match content.filter(|content| text[content.value.clone()].starts_with('[')) {
            Some(content) => items(text, content.value.start).map_err(malformed)?,
            None => Vec::new(),
        };
        if items.len() > ITEMS_MAX {
            return Err(format!("the result has {} items, over the {ITEMS_MAX} that hooks see", items.len()));
        }
        let items = items.into_iter().map(|span| Item::read(text, span)).collect::<Result<Vec<_>, _>>()?;
        let structured = only(&found, "structuredContent")?.map(|member| Structured {
            member: found.iter().position(|other| other.span == member.span).unwrap_or_default(),
            value: member.value.clone(),
            is_dropped: false,
            edits: Vec::new(),
        });
        let is_error = only(&found, "isError")?.is_some_and(|member| &text[member.value.clone()] == "true");
        let members = found.iter().map(|member| member.span.clone()).collect();
        let state =
            State { is_error, items, members, structured, written: 0, withheld: None, payload: payload.clone() };
        Ok(Self(Arc::new(Mutex::new(state))))
    }

    /// Ends the view, and says what the hook wanted.
    pub fn finish(&self) -> Result<Outcome, String> {
        let mut state = self.lock();
        let payload = std::mem::take(&mut state.payload);
        if let Some(reason) = state.withheld.take() {
            return Ok(Outcome::Withhold(reason));
        }
        let text = std::str::from_utf8(&payload).unwrap_or_default();
        let changed = state.edits(text).apply(text);
        changed.map(Outcome::Pass).map_err(|_| "the changes to the result contradict each other".to_owned())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state, as long as the hook is not over.
    pub(super) fn open(&self, lua: &Lua) -> mlua::Result<MutexGuard<'_, State>> {
        let state = self.lock();
        match state.payload.is_empty() {
            true => Err(error_at_caller(lua, "this result belongs to an earlier call")),
            false => Ok(state),
        }
    }
}

impl State {
    fn edits(&self, text: &str) -> Edits<'_> {
        let mut edits = Edits::default();
        let spans: Vec<Range<usize>> = self.items.iter().map(|item| item.span.clone()).collect();
        for cut in cuts(&spans, |at| self.items[at].is_removed) {
            edits.replace(cut, "");
        }
        for item in self.items.iter().filter(|item| !item.is_removed) {
            for (span, new) in [(&item.text, &item.new_text), (&item.uri, &item.new_uri)] {
                if let (Some(span), Some(new)) = (span, new) {
                    edits.replace(span.start - 1..span.end + 1, json::quote(new));
                }
            }
        }
        match &self.structured {
            Some(structured) if structured.is_dropped => {
                for cut in cuts(&self.members, |at| at == structured.member) {
                    edits.replace(cut, "");
                }
            }
            Some(structured) => {
                structured.edits.iter().for_each(|(span, new)| edits.replace(span.clone(), new.as_str()));
            }
            None => {}
        }
        debug_assert!(text.len() >= spans.last().map_or(0, |span| span.end), "spans are of this text");
        edits
    }

    /// A decoded part. Its length is charged.
    pub fn decoded(&self, lua: &Lua, span: &Range<usize>) -> mlua::Result<String> {
        Watch::charge(lua, span.len() / BYTES_A_STEP)?;
        let raw = std::str::from_utf8(&self.payload[span.clone()]).ok();
        let text = raw.and_then(json::decode).map(|text| text.into_owned());
        text.ok_or_else(|| error_at_caller(lua, "a text of the result is not JSON"))
    }

    pub fn note_written(&mut self, lua: &Lua, len: usize) -> mlua::Result<()> {
        self.written += len;
        Watch::charge(lua, len / BYTES_A_STEP)?;
        match self.written > WRITTEN_MAX {
            true => Err(error_at_caller(lua, format_args!("a hook writes at most {WRITTEN_MAX} bytes into a result"))),
            false => Ok(()),
        }
    }
}

/// The member with this key, if there is one; an error if there are two.
pub(super) fn only<'m, 'a>(members: &'m [Member<'a>], key: &str) -> Result<Option<&'m Member<'a>>, String> {
    let mut found = members.iter().filter(|member| member.key == key);
    match (found.next(), found.next()) {
        (_, Some(_)) => Err(format!("the result has the key \"{key}\" twice in one object")),
        (found, None) => Ok(found),
    }
}

impl UserData for ResultView {
    fn add_fields<F: UserDataFields<Self>>(fields: &mut F) {
        fields.add_meta_field(MetaMethod::Type, "result");
        fields.add_field_method_get("is_error", |lua, view| Ok(view.open(lua)?.is_error));
        fields.add_field_method_get("content", content);
    }

    fn add_methods<M: UserDataMethods<Self>>(methods: &mut M) {
        methods.add_method("get_structured", |lua, view, path: Value| {
            let state = view.open(lua)?;
            let text = std::str::from_utf8(&state.payload).unwrap_or_default();
            let Some(structured) = state.structured.as_ref().filter(|structured| !structured.is_dropped) else {
                return Ok(Value::Nil);
            };
            let Some(span) = find(lua, text, structured, &path)? else { return Ok(Value::Nil) };
            let edited = structured.edits.iter().find(|(edited, _)| *edited == span);
            let raw = edited.map_or(&text[span], |(_, new)| new);
            match raw.starts_with(['{', '[']) || raw == "null" {
                true => Ok(Value::Nil),
                false => to_lua(lua, raw).map_err(|why| error_at_caller(lua, format_args!("a member {why}"))),
            }
        });
        methods.add_method("set_structured", |lua, view, (path, value): (Value, Value)| {
            let mut state = view.open(lua)?;
            let new = scalar_text(lua, &value)?;
            state.note_written(lua, new.len())?;
            let payload = state.payload.clone();
            let text = std::str::from_utf8(&payload).unwrap_or_default();
            let Some(structured) = state.structured.as_mut().filter(|structured| !structured.is_dropped) else {
                return Ok(false);
            };
            let Some(span) = find(lua, text, structured, &path)? else { return Ok(false) };
            // A container that becomes a scalar takes what was changed inside it along.
            structured.edits.retain(|(edited, _)| edited.start < span.start || edited.end > span.end);
            structured.edits.push((span, new));
            Ok(true)
        });
        methods.add_method("drop_structured", |lua, view, ()| {
            if let Some(structured) = &mut view.open(lua)?.structured {
                structured.is_dropped = true;
            }
            Ok(())
        });
        methods.add_method("withhold", |lua, view, reason: Value| {
            let reason = reason_of(lua, "result:withhold", &reason)?;
            view.open(lua)?.withheld = Some(reason);
            Ok(())
        });
        const KNOWN: &[&str] =
            &["is_error", "content", "get_structured", "set_structured", "drop_structured", "withhold"];
        refuse_other_fields(methods, "result", KNOWN);
    }
}

fn content(lua: &Lua, view: &ResultView) -> mlua::Result<Table> {
    let count = view.open(lua)?.items.len();
    let list = lua.create_table_with_capacity(count, 0)?;
    for index in 0..count {
        list.raw_push(ItemView::new(view, index))?;
    }
    list.set_readonly(true);
    Watch::charge(lua, count)?;
    Ok(list)
}

fn scalar_text(lua: &Lua, value: &Value) -> mlua::Result<String> {
    match scalar(value) {
        Ok(Some(Json::Scalar(text))) => Ok(text),
        Ok(Some(Json::Null)) => Ok("null".to_owned()),
        _ => {
            let message = format!("result:set_structured takes a string, a number or a boolean, got {}", kind(value));
            Err(error_at_caller(lua, message))
        }
    }
}

/// Where the value at `path` is: names with dots between, or a list of names. Items of lists count from 1.
fn find(lua: &Lua, whole: &str, structured: &Structured, path: &Value) -> mlua::Result<Option<Range<usize>>> {
    let not_a_path = || error_at_caller(lua, "a path is text such as \"a.b.1\", or a list of names");
    let steps: Vec<String> = match path {
        Value::String(_) => text(path).ok_or_else(not_a_path)?.split('.').map(str::to_owned).collect(),
        Value::Table(names) => {
            let names = names.sequence_values::<String>().collect::<mlua::Result<Vec<_>>>();
            names.map_err(|_| not_a_path())?
        }
        _ => return Err(not_a_path()),
    };
    let unclear = |_| error_at_caller(lua, "structuredContent is not JSON that can be judged");
    let mut at = structured.value.clone();
    for step in &steps {
        Watch::charge(lua, at.len() / BYTES_A_STEP)?;
        let next = match whole[at.clone()].chars().next() {
            Some('{') => {
                let members = members(whole, at.start).map_err(unclear)?;
                let found = only(&members, step).map_err(|why| error_at_caller(lua, why))?;
                found.map(|member| member.value.clone())
            }
            Some('[') => {
                let items = items(whole, at.start).map_err(unclear)?;
                step.parse::<usize>().ok().and_then(|n| items.get(n.checked_sub(1)?).cloned())
            }
            _ => None,
        };
        match next {
            // Inside something that became a scalar there is nothing any more.
            Some(next) if structured.edits.iter().all(|(edited, _)| *edited != at) => at = next,
            _ => return Ok(None),
        }
    }
    Ok(Some(at))
}
