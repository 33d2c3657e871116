//! The list of tools, and what each of them does.

use std::sync::Arc;

use rmcp::ErrorData;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ClientCapabilities, ContentBlock, LoggingLevel, Tool,
};
use serde_json::{Value, json};

use crate::content::{WAV, image};
use crate::exchange::{self, Asked, Memory, Question};
use crate::news::Change;
use crate::reports::{log, progress, work};
use crate::{Answer, Context, Server, forms, input_required, is_modern, resources};

/// Names and descriptions of tools that take no arguments. The suite tries its headers on the first of the list, so
/// that one needs nothing.
const WITHOUT_ARGUMENTS: &[(&str, &str)] = &[
    ("test_simple_text", "Returns a text."),
    ("test_image_content", "Returns a picture."),
    ("test_audio_content", "Returns a sound."),
    ("test_embedded_resource", "Returns a resource."),
    ("test_multiple_content_types", "Returns a text, a picture and a resource."),
    ("test_error_handling", "Always fails, by a result with isError."),
    ("test_tool_with_logging", "Sends three log messages while it works."),
    ("test_tool_with_progress", "Reports progress in three steps."),
    ("test_elicitation_sep1034_defaults", "Asks with a form that has defaults."),
    ("test_elicitation_sep1330_enums", "Asks with a form that has all kinds of choices."),
    ("test_reconnection", "Works for a while before it answers."),
    ("test_missing_capability", "Needs a client that declared sampling."),
    ("test_streaming_elicitation", "Reports progress, then asks with a form."),
    ("test_logging_tool", "Sends a log message if the client wants any."),
    ("test_trigger_tool_change", "Tells that the tools have changed."),
    ("test_trigger_prompt_change", "Tells that the prompts have changed."),
    ("test_trigger_resource_update", "Changes the watched resource and tells so."),
    ("test_input_required_result_elicitation", "Asks with a form."),
    ("test_input_required_result_sampling", "Asks the client's model."),
    ("test_input_required_result_list_roots", "Asks for the client's roots."),
    ("test_input_required_result_request_state", "Asks, and gives a sealed state along."),
    ("test_input_required_result_multiple_inputs", "Asks three things at once."),
    ("test_input_required_result_multi_round", "Asks twice, one after the other."),
    ("test_input_required_result_tampered_state", "Asks, and takes back only the state it gave."),
    ("test_input_required_result_capabilities", "Asks all that the client has declared."),
];

pub fn all() -> Vec<Tool> {
    let nothing = json!({"type": "object", "additionalProperties": false});
    let of_text = |name: &str, about: &str| json!({"type": "object", "properties": {name: {"type": "string", "description": about}}, "required": [name]});
    let plain = WITHOUT_ARGUMENTS.iter().map(|(name, about)| tool(name, about, &nothing));
    let others = [
        tool("test_sampling", "Asks the client's model.", &of_text("prompt", "What the model is asked.")),
        tool("test_elicitation", "Asks with a form.", &of_text("message", "What stands above the form.")),
        tool("json_schema_2020_12_tool", "Has a schema with much of JSON Schema 2020-12.", &rich_schema()),
        tool(
            "test_custom_header",
            "Has an argument that is sent as a header too.",
            &json!({
                "type": "object",
                "properties": {"region": {"type": "string", "x-mcp-header": "Region"}},
                "required": ["region"],
            }),
        ),
    ];
    plain.chain(others).collect()
}

fn tool(name: &str, about: &str, schema: &Value) -> Tool {
    let schema = schema.as_object().expect("a schema of a tool is an object").clone();
    Tool::new(name.to_owned(), about.to_owned(), Arc::new(schema))
}

/// The keywords of 2020-12 that a typed model would lose (SEP-1613, SEP-2106).
fn rich_schema() -> Value {
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "$defs": {
            "address": {
                "$anchor": "addressDef",
                "type": "object",
                "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
            },
        },
        "properties": {
            "name": {"type": "string"},
            "address": {"$ref": "#/$defs/address"},
            "contactMethod": {"type": "string", "enum": ["phone", "email"]},
            "phone": {"type": "string"},
            "email": {"type": "string"},
        },
        "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
        "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
        "then": {"required": ["phone"]},
        "else": {"required": ["email"]},
        "additionalProperties": false,
    })
}

pub async fn call(server: &Server, call: CallToolRequestParams, context: &Context) -> Answer<CallToolResponse> {
    if let Some(response) = input_required::call(&call, context).await {
        return response;
    }
    let embedded = |uri| ContentBlock::resource(resources::fixed(uri).expect("this resource is among the fixed"));
    let content = match call.name.as_ref() {
        "test_simple_text" => vec![text("Nothing but text.")],
        "test_image_content" => vec![image()],
        "test_audio_content" => vec![ContentBlock::audio(WAV, "audio/wav")],
        "test_embedded_resource" => vec![embedded(resources::EMBEDDED)],
        "test_multiple_content_types" => vec![text("Of everything one:"), image(), embedded(resources::MIXED)],
        "test_error_handling" => return Ok(CallToolResult::error(vec![text("This tool always fails.")]).into()),
        "test_tool_with_logging" => {
            for message in ["The work has begun.", "Half of the work is done.", "The work is done."] {
                log(context, &server.threshold, LoggingLevel::Info, message).await;
                work().await;
            }
            vec![text("Done, and told so.")]
        }
        "test_logging_tool" => {
            log(context, &server.threshold, LoggingLevel::Warning, "Somebody called.").await;
            vec![text("Told to whoever wants to hear it.")]
        }
        "test_tool_with_progress" => {
            for done in [0, 50, 100] {
                progress(context, done, 100).await;
                work().await;
            }
            vec![text("Done, step by step.")]
        }
        "test_reconnection" => {
            work().await;
            vec![text("Done, after a while.")]
        }
        "test_missing_capability" => {
            let declared = context.client_capabilities().unwrap_or_default();
            if declared.sampling.is_none() {
                let missing = ClientCapabilities::builder().enable_sampling().build();
                return Err(exchange::undeclared(missing, context));
            }
            vec![text("The client has declared sampling.")]
        }
        "test_streaming_elicitation" => {
            progress(context, 1, 2).await;
            return ask(&call, Question::form("name", "Who is there?", forms::of_one("name", "string")), context).await;
        }
        "test_sampling" => {
            return ask(&call, Question::sampling("answer", argument(&call, "prompt")?, 100), context).await;
        }
        "test_elicitation" => {
            return ask(&call, Question::form("answer", argument(&call, "message")?, forms::contact()), context).await;
        }
        "test_elicitation_sep1034_defaults" => {
            return ask(&call, Question::form("answer", "Is all this right?", forms::with_defaults()), context).await;
        }
        "test_elicitation_sep1330_enums" => {
            return ask(&call, Question::form("answer", "What is your choice?", forms::with_choices()), context).await;
        }
        "test_trigger_tool_change" => changed(server, Change::Tools, context).await,
        "test_trigger_prompt_change" => changed(server, Change::Prompts, context).await,
        "test_trigger_resource_update" => changed(server, Change::WatchedResource, context).await,
        "test_custom_header" => vec![text(format!("The region is {}.", argument(&call, "region")?))],
        "json_schema_2020_12_tool" => {
            let given = call.arguments.as_ref().map_or_else(|| json!({}), |given| json!(given));
            vec![text(format!("Called with {given}"))]
        }
        name => return Err(ErrorData::invalid_params(format!("no such tool: {name}"), None)),
    };
    Ok(CallToolResult::success(content).into())
}

async fn ask(call: &CallToolRequestParams, question: Question, context: &Context) -> Answer<CallToolResponse> {
    let asked = exchange::ask(call.into(), Memory::None, &[vec![question]], context).await?;
    Ok(match asked {
        Asked::Missing(missing) => missing.into(),
        Asked::Answered(answers) => {
            let answers = answers.values().map(|answer| text(format!("The client said {answer}")));
            CallToolResult::success(answers.collect()).into()
        }
    })
}

async fn changed(server: &Server, change: Change, context: &Context) -> Vec<ContentBlock> {
    server.news.publish(change, &context.peer, !is_modern(context)).await;
    vec![text("Told to whoever follows it.")]
}

fn argument(call: &CallToolRequestParams, name: &str) -> Answer<String> {
    let given = call.arguments.as_ref().and_then(|arguments| arguments.get(name)?.as_str());
    given.map(str::to_owned).ok_or_else(|| ErrorData::invalid_params(format!("argument `{name}` is missing"), None))
}

fn text(text: impl Into<String>) -> ContentBlock {
    ContentBlock::text(text)
}
