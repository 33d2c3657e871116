//! What an operator can ask of the broker: functions with typed arguments and results. They are the tools of
//! `/admin/mcp`, and the commands that need a running broker come through it.
//!
//! Leaves HTTP, the token and MCP to the front. A new tool is one function and one line in [`tools`].
//!
//! **Invariant:** nothing here sets a command, an environment or a path: what runs is what the operator's files say.

mod changes;
mod definitions;
mod endings;
mod looks;

use std::fmt;
use std::future::ready;
use std::pin::Pin;
use std::sync::{Arc, LazyLock};

use schemars::generate::SchemaSettings;
use schemars::transform::RecursiveTransform;
use schemars::{JsonSchema, Schema};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{Broker, Fault};

/// Who is asked, with what the front counts for the status.
#[derive(Clone, Debug)]
pub struct Context {
    pub broker: Arc<Broker>,
    pub front: Value,
}

/// One function of an operator. Names stay.
pub struct Tool {
    pub name: &'static str,
    pub title: &'static str,
    pub description: &'static str,
    pub effect: Effect,
    input: fn() -> Map<String, Value>,
    output: fn() -> Map<String, Value>,
    run: Box<dyn Fn(Context, Value) -> Run + Send + Sync>,
}

/// What a tool does to the running things, for whoever asks before it is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Nothing: it starts nothing, and refreshes no idle clock.
    None,
    /// It changes what is served, and ends nothing.
    Serves,
    /// It ends processes.
    Ends,
}

type Run = Pin<Box<dyn Future<Output = Result<Value, Fault>> + Send>>;

/// All of them, in the order in which they are listed.
pub fn tools() -> &'static [Tool] {
    static TOOLS: LazyLock<Vec<Tool>> = LazyLock::new(|| {
        vec![
            Tool::new(
                "broker_status",
                "Status of the broker",
                looks::BROKER_STATUS,
                Effect::None,
                looks::broker_status,
            ),
            Tool::new("list_backends", "List of backends", looks::LIST_BACKENDS, Effect::None, looks::list_backends),
            Tool::new("inspect_backend", "One backend", looks::INSPECT_BACKEND, Effect::None, looks::inspect_backend),
            Tool::new("list_tools", "Tools of a backend", definitions::LIST, Effect::None, definitions::list_tools),
            Tool::new("get_tool", "One tool", definitions::GET, Effect::None, definitions::get_tool),
            Tool::new(
                "explain_policy",
                "What a policy says of a call",
                definitions::EXPLAIN,
                Effect::None,
                definitions::explain_policy,
            ),
            Tool::new("recent_events", "What happened", looks::RECENT_EVENTS, Effect::None, looks::recent_events),
            Tool::new("broker_reload", "Reload", changes::RELOAD, Effect::Ends, changes::broker_reload),
            Tool::new("enable_backend", "Enable a backend", changes::ENABLE, Effect::Serves, changes::enable_backend),
            Tool::new("disable_backend", "Disable a backend", changes::DISABLE, Effect::Ends, changes::disable_backend),
            Tool::new("stop_instance", "Stop instances", endings::STOP, Effect::Ends, endings::stop_instance),
            Tool::new(
                "recover_instance",
                "Recover instances",
                endings::RECOVER,
                Effect::Ends,
                endings::recover_instance,
            ),
        ]
    });
    &TOOLS
}

pub fn tool(name: &str) -> Option<&'static Tool> {
    tools().iter().find(|tool| tool.name == name)
}

impl Tool {
    fn new<A, O, W>(
        name: &'static str,
        title: &'static str,
        description: &'static str,
        effect: Effect,
        run: fn(Context, A) -> W,
    ) -> Self
    where
        A: DeserializeOwned + JsonSchema + 'static,
        O: Serialize + JsonSchema,
        W: Future<Output = Result<O, Fault>> + Send + 'static,
    {
        let run = move |context: Context, arguments: Value| -> Run {
            match serde_json::from_value(arguments) {
                Ok(arguments) => {
                    let running = run(context, arguments);
                    Box::pin(async move { running.await.map(|output| to_json(&output)) })
                }
                Err(e) => Box::pin(ready(Err(Fault::new("invalid_arguments", format!("{name}: {e}"))))),
            }
        };
        let output = || schema::<O>(SchemaSettings::draft2020_12().for_serialize());
        Self {
            name,
            title,
            description,
            effect,
            input: || schema::<A>(SchemaSettings::draft2020_12()),
            output,
            run: Box::new(run),
        }
    }

    /// The JSON Schema of its arguments.
    pub fn input_schema(&self) -> Map<String, Value> {
        (self.input)()
    }

    /// The JSON Schema of its result.
    pub fn output_schema(&self) -> Map<String, Value> {
        (self.output)()
    }

    /// Does it. Cancelled, what was ordered goes on.
    ///
    /// # Errors
    /// Arguments that do not fit, a name that is not known: what whoever asked can do something about.
    pub async fn run(&self, context: Context, arguments: Map<String, Value>) -> Result<Value, Fault> {
        (self.run)(context, Value::Object(arguments)).await
    }
}

impl fmt::Debug for Tool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tool").field("name", &self.name).finish_non_exhaustive()
    }
}

/// No arguments.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Nothing {}

fn schema<T: JsonSchema>(settings: SchemaSettings) -> Map<String, Value> {
    // Widths of integers are Rust's, and validators of clients warn of formats that they do not know.
    let plain = RecursiveTransform(|schema: &mut Schema| {
        schema.remove("format");
    });
    let mut schema = settings.with_transform(plain).into_generator().into_root_schema_for::<T>().to_value();
    let schema = schema.as_object_mut().map(std::mem::take).unwrap_or_default();
    // The name of our own type says nothing to anybody.
    schema.into_iter().filter(|(key, _)| key != "title").collect()
}

fn to_json(output: &impl Serialize) -> Value {
    serde_json::to_value(output).expect("results are structures with names as keys")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tool_has_a_name_of_its_own_and_schemas_of_objects() {
        let names: std::collections::BTreeSet<_> = tools().iter().map(|tool| tool.name).collect();
        assert_eq!(names.len(), tools().len());
        for tool in tools() {
            for schema in [tool.input_schema(), tool.output_schema()] {
                assert_eq!(schema["type"], "object", "{}", tool.name);
                assert!(!serde_json::to_string(&schema).unwrap().contains("format"), "{schema:?}");
            }
            assert_eq!(tool.input_schema()["additionalProperties"], false, "{}", tool.name);
        }
        assert!(tool("broker_status").is_some() && tool("nonsense").is_none());
    }
}
