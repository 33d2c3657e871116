//! What a test holds: the policy, what becomes of a call, what becomes of a result.

use std::sync::Arc;

use mlua::userdata::{MetaMethod, UserDataFields, UserDataMethods};
use mlua::{Lua, LuaSerdeExt as _, Table, UserData, Value};

use super::Seen;
use super::given::check_object;
use super::machine::bench;
use super::subject::{CallSeen, PayloadSeen, Refusal, Subject};
use crate::core::diagnostic::suggestion;
use crate::policy::fields::{kind, text};
use crate::policy::sandbox::error_at_caller;
use crate::policy::{CallFacts, ClientName, DriftRule, OnCancel, Scope};

#[derive(Clone)]
pub(super) struct TestedPolicy(pub Arc<Subject>);

#[derive(Clone)]
pub(super) struct TestedCall(pub CallSeen);

#[derive(Clone)]
pub(super) struct TestedResult {
    pub seen: PayloadSeen,
    /// What the server sent.
    pub given: String,
}

impl TestedResult {
    /// What the client gets.
    pub fn json(&self) -> &str {
        self.seen.verdict.as_ref().map_or("", String::as_str)
    }

    /// The texts of its content items and their resources, one a line.
    pub fn text(&self) -> String {
        let value: serde_json::Value = serde_json::from_str(self.json()).unwrap_or_default();
        let items = value["content"].as_array().map(Vec::as_slice).unwrap_or_default();
        let texts = items.iter().flat_map(|item| [item["text"].as_str(), item["resource"]["text"].as_str()]).flatten();
        let message = value["message"].as_str();
        texts.chain(message).collect::<Vec<_>>().join("\n")
    }
}

impl UserData for TestedPolicy {
    fn add_fields<F: UserDataFields<Self>>(fields: &mut F) {
        fields.add_meta_field(MetaMethod::Type, "policy");
        fields.add_field_method_get("name", |_, this| Ok(this.0.name.clone()));
        fields.add_field_method_get("scope", |_, this| {
            Ok(match this.0.policy.scope {
                Scope::Session => "session",
                Scope::Singleton => "singleton",
            })
        });
        fields.add_field_method_get("idle_timeout_seconds", |_, this| Ok(this.0.policy.idle_timeout.as_secs_f64()));
        fields.add_field_method_get("queue", |lua, this| {
            let queue = this.0.policy.queue;
            let limit = Value::Number(queue.len_max as f64);
            lua.create_table_from([("limit", limit), ("wait_seconds", Value::Number(queue.wait.as_secs_f64()))])
        });
        fields.add_field_method_get("max_concurrency", |_, this| Ok(this.0.policy.max_concurrency));
        fields.add_field_method_get("on_cancel", |lua, this| {
            let table = lua.create_table()?;
            let (action, grace) = match this.0.policy.on_cancel {
                OnCancel::Recycle { grace } => ("recycle", grace),
                OnCancel::Keep { grace } => ("keep", grace),
            };
            table.raw_set("action", action)?;
            table.raw_set("grace_seconds", grace.as_secs_f64())?;
            Ok(table)
        });
        fields.add_field_method_get("drift", |_, this| {
            Ok(match this.0.policy.drift {
                DriftRule::Refuse => "refuse",
                DriftRule::Warn => "warn",
            })
        });
        fields.add_field_method_get("tools", |_, this| Ok(this.0.tools.keys().cloned().collect::<Vec<_>>()));
    }

    fn add_methods<M: UserDataMethods<Self>>(methods: &mut M) {
        methods.add_method("call", |lua, this, fields: Table| {
            let facts = call_facts(lua, &this.0, &fields)?;
            close(lua, "policy:call", &fields, &["tool", "arguments", "arguments_json", "session", "client"])?;
            let tool = facts.tool.clone();
            let seen = this.0.judge_call(facts);
            note(lua, this, tool, seen.reached.clone(), seen.steps, format!("{:?}", seen.verdict));
            Ok(TestedCall(seen))
        });
        methods.add_method("result", |lua, this, fields: Table| {
            let facts = call_facts(lua, &this.0, &fields)?;
            let given = payload(lua, &fields)?;
            let is_error = fields.raw_get::<Option<bool>>("is_error")?.unwrap_or(false);
            close(
                lua,
                "policy:result",
                &fields,
                &["tool", "arguments", "arguments_json", "session", "client", "json", "fixture", "is_error"],
            )?;
            let tool = facts.tool.clone();
            let seen = match is_error {
                true => this.0.judge_error(&tool, &given),
                false => this.0.judge_result(facts, &given),
            };
            note(lua, this, tool, seen.reached.clone(), seen.steps, format!("{:?}", seen.verdict));
            Ok(TestedResult { seen, given })
        });
        refuse_other_fields(methods, "policy");
    }
}

impl UserData for TestedCall {
    fn add_fields<F: UserDataFields<Self>>(fields: &mut F) {
        fields.add_meta_field(MetaMethod::Type, "call");
        fields.add_field_method_get("allowed", |_, this| Ok(this.0.verdict.is_ok()));
        fields.add_field_method_get("reason", |_, this| Ok(reason(&this.0.verdict)));
        fields.add_field_method_get("arguments_json", |_, this| {
            Ok(this.0.verdict.clone().ok().and_then(|(json, _)| json))
        });
        fields.add_field_method_get("arguments", |lua, this| match &this.0.verdict {
            Ok((json, _)) => json_to_lua(lua, json.as_deref().unwrap_or("{}")),
            Err(_) => Ok(Value::Nil),
        });
        fields.add_field_method_get("deadline_seconds", |_, this| {
            Ok(this.0.verdict.as_ref().ok().map(|(_, deadline)| deadline.as_secs_f64()))
        });
        fields.add_field_method_get("rule", |_, this| Ok(this.0.rule.clone()));
    }

    fn add_methods<M: UserDataMethods<Self>>(methods: &mut M) {
        refuse_other_fields(methods, "call");
    }
}

impl UserData for TestedResult {
    fn add_fields<F: UserDataFields<Self>>(fields: &mut F) {
        fields.add_meta_field(MetaMethod::Type, "result");
        fields.add_field_method_get("json", |_, this| Ok(this.json().to_owned()));
        fields.add_field_method_get("text", |_, this| Ok(this.text()));
        fields.add_field_method_get("value", |lua, this| match &this.seen.verdict {
            Ok(json) => json_to_lua(lua, json),
            Err(_) => Ok(Value::Nil),
        });
        fields.add_field_method_get("withheld", |_, this| Ok(this.seen.verdict.is_err()));
        fields.add_field_method_get("reason", |_, this| Ok(reason(&this.seen.verdict)));
        fields.add_field_method_get("changed", |_, this| Ok(this.seen.is_rewritten || this.seen.verdict.is_err()));
        fields.add_field_method_get("structure_taken_out", |_, this| Ok(this.seen.unfit.is_some()));
        fields.add_field_method_get("rule", |_, this| Ok(this.seen.rule.clone()));
    }

    fn add_methods<M: UserDataMethods<Self>>(methods: &mut M) {
        refuse_other_fields(methods, "result");
    }
}

fn reason<T>(verdict: &Result<T, Refusal>) -> Option<String> {
    verdict.as_ref().err().map(Refusal::to_string)
}

fn note(lua: &Lua, policy: &TestedPolicy, tool: String, reached: Vec<String>, steps: u32, answer: String) {
    let mut bench = bench(lua);
    bench.steps += u64::from(steps);
    bench.seen.push(Seen { backend: policy.0.name.clone(), tool, reached, answer });
}

fn call_facts(lua: &Lua, subject: &Subject, fields: &Table) -> mlua::Result<CallFacts> {
    let needs = |what: &str| error_at_caller(lua, what);
    let tool = text(&fields.raw_get("tool")?).ok_or_else(|| needs("'tool' must be the name of a tool"))?;
    subject.check_tool(&tool).map_err(|why| needs(&why))?;
    let given = (fields.raw_get::<Value>("arguments")?, fields.raw_get::<Value>("arguments_json")?);
    let arguments = match given {
        (Value::Nil, Value::Nil) => None,
        (Value::Nil, json) => {
            let json = text(&json).ok_or_else(|| needs("'arguments_json' must be a string"))?;
            Some(object(lua, "arguments_json", json)?)
        }
        (table @ Value::Table(_), Value::Nil) => Some(object(lua, "arguments", lua_to_json(lua, table)?)?),
        (other, Value::Nil) => {
            return Err(error_at_caller(lua, format_args!("'arguments' must be a table, got {}", kind(&other))));
        }
        _ => return Err(needs("give 'arguments' or 'arguments_json', not both")),
    };
    let client = match fields.raw_get::<Option<Table>>("client")? {
        Some(client) => Some(ClientName {
            name: client.raw_get::<Option<String>>("name")?.unwrap_or_default(),
            version: client.raw_get::<Option<String>>("version")?.unwrap_or_default(),
        }),
        None => None,
    };
    Ok(CallFacts { tool, arguments, session: fields.raw_get("session")?, client })
}

/// Clients send an object or nothing, so anything else is a slip.
fn object(lua: &Lua, field: &str, json: String) -> mlua::Result<String> {
    match check_object(&json) {
        Ok(()) => Ok(json),
        Err(unusable) => Err(error_at_caller(lua, format_args!("'{field}' {unusable}"))),
    }
}

fn payload(lua: &Lua, fields: &Table) -> mlua::Result<String> {
    let given = (fields.raw_get::<Value>("json")?, fields.raw_get::<Option<String>>("fixture")?);
    match given {
        (Value::Nil, Some(name)) => bench(lua).fixture(&name).map_err(|why| error_at_caller(lua, why)),
        (json @ Value::String(_), None) => text(&json).ok_or_else(|| error_at_caller(lua, "'json' must be UTF-8")),
        (table @ Value::Table(_), None) => lua_to_json(lua, table),
        _ => Err(error_at_caller(lua, "give 'json' (a string or a table) or 'fixture' (the name of a file)")),
    }
}

fn lua_to_json(lua: &Lua, value: Value) -> mlua::Result<String> {
    let value: serde_json::Value = lua.from_value(value).map_err(|error| error_at_caller(lua, error))?;
    Ok(value.to_string())
}

fn json_to_lua(lua: &Lua, json: &str) -> mlua::Result<Value> {
    let value: serde_json::Value =
        serde_json::from_str(json).map_err(|error| error_at_caller(lua, format_args!("it is not JSON: {error}")))?;
    lua.to_value(&value)
}

/// Fields that nobody asked for are mistakes.
fn close(lua: &Lua, function: &str, fields: &Table, known: &[&str]) -> mlua::Result<()> {
    for pair in fields.pairs::<Value, Value>() {
        let name = text(&pair?.0).unwrap_or_default();
        if !known.contains(&&*name) {
            let hint = suggestion(&name, known.iter().copied());
            return Err(error_at_caller(lua, format_args!("unknown field '{name}' in {function}{hint}")));
        }
    }
    Ok(())
}

fn refuse_other_fields<T, M: UserDataMethods<T>>(methods: &mut M, view: &'static str) {
    methods.add_meta_function(MetaMethod::Index, move |lua, (_, name): (Value, Value)| -> mlua::Result<Value> {
        let name = text(&name).unwrap_or_default();
        Err(error_at_caller(lua, format_args!("unknown field '{name}' of the {view}")))
    });
}
