//! What a hook sees of a call and of a request.

use std::sync::Arc;

use mlua::userdata::{MetaMethod, UserDataFields, UserDataMethods};
use mlua::{Lua, Table, UserData, Value};

use super::lua_json::to_lua;
use crate::core::diagnostic::suggestion;
use crate::policy::decide::{CallFacts, RequestFacts};
use crate::policy::fields::text;
use crate::policy::sandbox::error_at_caller;

/// Arguments longer than this, in bytes, are not shown to hooks.
const ARGUMENTS_MAX: usize = 256 << 10;
/// The same for the metadata of a request.
const META_MAX: usize = 64 << 10;

/// `call`: the arguments become tables when they are first looked at.
pub(in crate::policy) struct CallView {
    facts: Arc<CallFacts>,
    arguments: Option<Value>,
}

impl CallView {
    pub fn new(facts: &Arc<CallFacts>) -> Self {
        Self { facts: facts.clone(), arguments: None }
    }
}

/// The error is what to tell of arguments that cannot be judged.
pub(in crate::policy) fn check_size(facts: &CallFacts) -> Result<(), String> {
    match facts.arguments.as_deref().map_or(0, str::len) {
        len if len > ARGUMENTS_MAX => {
            Err(format!("the arguments have {len} bytes, over the {ARGUMENTS_MAX} that hooks see"))
        }
        _ => Ok(()),
    }
}

impl UserData for CallView {
    fn add_fields<F: UserDataFields<Self>>(fields: &mut F) {
        fields.add_meta_field(MetaMethod::Type, "call");
        fields.add_field_method_get("tool", |_, call| Ok(call.facts.tool.clone()));
        fields.add_field_method_get("session", |_, call| Ok(call.facts.session.clone()));
        fields.add_field_function_get("arguments", |lua, call| {
            let mut call = call.borrow_mut::<Self>()?;
            if call.arguments.is_none() {
                check_size(&call.facts).map_err(|why| error_at_caller(lua, why))?;
                let text = call.facts.arguments.as_deref().unwrap_or("{}");
                let shown =
                    to_lua(lua, text).map_err(|error| error_at_caller(lua, format_args!("call.arguments {error}")))?;
                call.arguments = Some(shown);
            }
            Ok(call.arguments.clone())
        });
        fields.add_field_method_get("client", |lua, call| {
            let Some(client) = &call.facts.client else { return Ok(None) };
            let table = lua.create_table()?;
            table.raw_set("name", &*client.name)?;
            table.raw_set("version", &*client.version)?;
            table.set_readonly(true);
            Ok(Some(table))
        });
    }

    fn add_methods<M: UserDataMethods<Self>>(methods: &mut M) {
        refuse_other_fields(methods, "call", &["tool", "arguments", "session", "client"]);
    }
}

/// A field that is not there is an error with a hint, not a nil that decides something later.
pub(super) fn refuse_other_fields<T, M: UserDataMethods<T>>(
    methods: &mut M,
    view: &'static str,
    known: &'static [&'static str],
) {
    methods.add_meta_function(MetaMethod::Index, move |lua, (_, name): (Value, Value)| -> mlua::Result<Value> {
        let name = text(&name).unwrap_or_default();
        let hint = suggestion(&name, known.iter().copied());
        Err(error_at_caller(lua, format_args!("unknown field '{name}' of the {view}{hint}")))
    });
}

/// `request` of `scope_key`.
pub(in crate::policy) fn request(lua: &Lua, facts: &RequestFacts) -> mlua::Result<Table> {
    let too_large =
        |len| mlua::Error::RuntimeError(format!("the metadata has {len} bytes, over the {META_MAX} that hooks see"));
    let table = lua.create_table()?;
    table.raw_set("method", &*facts.method)?;
    table.raw_set("tool", facts.tool.as_deref())?;
    let meta = facts.meta.as_deref().unwrap_or("{}");
    if meta.len() > META_MAX {
        return Err(too_large(meta.len()));
    }
    table
        .raw_set("meta", to_lua(lua, meta).map_err(|why| mlua::Error::RuntimeError(format!("request.meta {why}")))?)?;
    let headers = lua.create_table()?;
    for (name, value) in &facts.headers {
        headers.raw_set(&**name, &**value)?;
    }
    headers.set_readonly(true);
    table.raw_set("headers", headers)?;
    table.set_readonly(true);
    Ok(table)
}
