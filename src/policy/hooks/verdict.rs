//! What `on_call` may answer: `broker.allow()`, `broker.allow { … }`, `broker.deny("reason")`, or nothing.

use std::time::Duration;

use mlua::userdata::{MetaMethod, UserDataFields};
use mlua::{Lua, Table, UserData, Value};

use super::lua_json::{Json, from_lua};
use super::machine::HookError;
use super::{At, a_kind};
use crate::core::diagnostic::suggestion;
use crate::policy::fields::{number, shown, text};
use crate::policy::load::Loading;
use crate::policy::sandbox::{self, error_at_caller};

/// A reason is a sentence, not a document; in bytes.
const REASON_MAX: usize = 1_000;
/// As for `deadline_seconds` in the settings of a tool.
const DEADLINE_SECONDS: (f64, f64) = (0.1, 86_400.0);

/// The answer of a hook.
#[derive(Clone, Debug)]
pub(in crate::policy) enum Answer {
    Allow {
        /// A merge patch (RFC 7386), in the order of its keys.
        patch: Option<Vec<(String, Json)>>,
        deadline: Option<Duration>,
    },
    Deny {
        reason: String,
    },
}

/// The same while it is a value of Lua.
#[derive(Clone, Debug)]
struct Given {
    answer: Answer,
    /// Where it was made.
    at: Option<At>,
}

impl UserData for Given {
    fn add_fields<F: UserDataFields<Self>>(fields: &mut F) {
        fields.add_meta_field(MetaMethod::Type, "verdict");
    }
}

impl Answer {
    /// As the rules have it.
    const PLAIN: Self = Self::Allow { patch: None, deadline: None };

    pub fn is_plain(&self) -> bool {
        matches!(self, Self::Allow { patch: None, deadline: None })
    }

    /// Of what a hook returned, and where the verdict was made.
    pub fn read(value: &Value) -> Result<(Self, Option<At>), HookError> {
        if value.is_nil() {
            return Ok((Self::PLAIN, None));
        }
        let given = value.as_userdata().and_then(|value| value.borrow::<Given>().ok().map(|given| given.clone()));
        let given = given.ok_or_else(|| {
            let got = a_kind(value);
            HookError::Answer(format!("on_call must return broker.allow(…), broker.deny(…) or nothing, got {got}"))
        })?;
        Ok((given.answer, given.at))
    }
}

pub(super) fn install(lua: &Lua, broker: &Table) -> mlua::Result<()> {
    // What changes nothing decides nothing: nobody asks where it was said, so there is one of it. It also puts the type
    // of verdicts into the machine, before anything counts.
    let plain = lua.create_userdata(Given { answer: Answer::PLAIN, at: None })?;
    let allow = move |lua: &Lua, fields: Value| match allow(lua, &fields)? {
        answer if answer.is_plain() => Ok(plain.clone()),
        answer => lua.create_userdata(given(lua, answer)),
    };
    broker.raw_set("allow", lua.create_function(allow)?)?;
    broker.raw_set("deny", lua.create_function(|lua, reason: Value| Ok(given(lua, deny(lua, &reason)?)))?)
}

fn given(lua: &Lua, answer: Answer) -> Given {
    let at = sandbox::position(lua, 1).and_then(|position| {
        let source = Loading::of(lua).source(&position.chunk)?;
        Some(At { file: source.path.clone(), line: position.line })
    });
    Given { answer, at }
}

fn deny(lua: &Lua, reason: &Value) -> mlua::Result<Answer> {
    reason_of(lua, "broker.deny", reason).map(|reason| Answer::Deny { reason })
}

/// A sentence for the client.
pub(super) fn reason_of(lua: &Lua, function: &str, reason: &Value) -> mlua::Result<String> {
    let found = text(reason).filter(|reason| (1..=REASON_MAX).contains(&reason.len()));
    found.ok_or_else(|| {
        let got = shown(reason);
        error_at_caller(lua, format_args!("{function} takes a reason of 1 to {REASON_MAX} bytes, got {got}"))
    })
}

fn allow(lua: &Lua, fields: &Value) -> mlua::Result<Answer> {
    let (mut patch, mut deadline) = (None, None);
    let fields = match fields {
        Value::Nil => return Ok(Answer::Allow { patch, deadline }),
        Value::Table(fields) => fields,
        other => {
            let message = format!("broker.allow takes a table of named fields, got {}", a_kind(other));
            return Err(error_at_caller(lua, message));
        }
    };
    for field in fields.pairs::<Value, Value>() {
        let (name, value) = field?;
        let name = text(&name).unwrap_or_default();
        match &*name {
            "arguments" => match from_lua(lua, &value) {
                Ok(Json::Object(members)) => patch = Some(members),
                Ok(_) => return Err(error_at_caller(lua, "'arguments' of broker.allow must be a table of names")),
                Err(why) => {
                    return Err(error_at_caller(lua, format_args!("'arguments' of broker.allow: {why}")));
                }
            },
            "deadline_seconds" => deadline = Some(deadline_of(lua, &value)?),
            unknown => {
                let hint = suggestion(unknown, ["arguments", "deadline_seconds"]);
                return Err(error_at_caller(lua, format_args!("unknown field '{unknown}' in broker.allow{hint}")));
            }
        }
    }
    Ok(Answer::Allow { patch, deadline })
}

fn deadline_of(lua: &Lua, value: &Value) -> mlua::Result<Duration> {
    let (min, max) = DEADLINE_SECONDS;
    let seconds = number(value).filter(|seconds| (min..=max).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| {
        let got = shown(value);
        error_at_caller(
            lua,
            format_args!("'deadline_seconds' of broker.allow must be a number from {min} to {max}, got {got}"),
        )
    })
}
