//! Prompts: plain, with arguments, with a resource, with a picture, and one that asks the client first.

use rmcp::ErrorData;
use rmcp::model::{
    ContentBlock, GetPromptRequestParams, GetPromptResponse, GetPromptResult, Prompt, PromptArgument, PromptMessage,
    Role,
};

use crate::content::{image, text_of};
use crate::exchange::{self, Asked, Memory, Question};
use crate::{Answer, Context, forms, resources};

pub fn all() -> Vec<Prompt> {
    let required = |name: &str, about: &str| PromptArgument::new(name).with_description(about).with_required(true);
    let one = |name: &str, about: &str, arguments: Vec<PromptArgument>| {
        Prompt::new(name, Some(about), (!arguments.is_empty()).then_some(arguments))
    };
    vec![
        one("test_simple_prompt", "One message of text.", vec![]),
        one(
            "test_prompt_with_arguments",
            "Repeats its arguments.",
            vec![required("arg1", "Any text."), required("arg2", "Any other text.")],
        ),
        one(
            "test_prompt_with_embedded_resource",
            "Embeds a resource.",
            vec![required("resourceUri", "The address of the resource.")],
        ),
        one("test_prompt_with_image", "Shows a picture.", vec![]),
        one("test_input_required_result_prompt", "Asks for a context first.", vec![]),
    ]
}

pub async fn get(wanted: GetPromptRequestParams, context: &Context) -> Answer<GetPromptResponse> {
    let messages = match wanted.name.as_str() {
        "test_simple_prompt" => vec![text("Say hello.")],
        "test_prompt_with_arguments" => {
            let (first, second) = (argument(&wanted, "arg1")?, argument(&wanted, "arg2")?);
            vec![text(format!("Compare {first} with {second}."))]
        }
        "test_prompt_with_embedded_resource" => {
            let uri = argument(&wanted, "resourceUri")?;
            let unknown = || text_of(uri, "text/plain", "Embedded, though nobody here knows it.");
            let resource = resources::fixed(uri).unwrap_or_else(unknown);
            vec![user(ContentBlock::resource(resource)), text("Sum up what is embedded above.")]
        }
        "test_prompt_with_image" => vec![user(image()), text("Describe the picture above.")],
        "test_input_required_result_prompt" => return with_context(&wanted, context).await,
        name => return Err(ErrorData::invalid_params(format!("no such prompt: {name}"), None)),
    };
    Ok(GetPromptResult::new(messages).into())
}

async fn with_context(wanted: &GetPromptRequestParams, context: &Context) -> Answer<GetPromptResponse> {
    let question = Question::form("user_context", "In which context?", forms::of_one("context", "string"));
    let asked = exchange::ask(wanted.into(), Memory::None, &[vec![question]], context).await?;
    Ok(match asked {
        Asked::Missing(missing) => missing.into(),
        Asked::Answered(answers) => {
            let given = answers["user_context"]["content"]["context"].as_str().unwrap_or("none");
            GetPromptResult::new(vec![text(format!("Answer in this context: {given}"))]).into()
        }
    })
}

fn argument<'a>(wanted: &'a GetPromptRequestParams, name: &str) -> Answer<&'a str> {
    let given = wanted.arguments.as_ref().and_then(|arguments| arguments.get(name)?.as_str());
    given.ok_or_else(|| ErrorData::invalid_params(format!("argument `{name}` is missing"), None))
}

fn text(text: impl Into<String>) -> PromptMessage {
    user(ContentBlock::text(text))
}

fn user(content: ContentBlock) -> PromptMessage {
    PromptMessage::new(Role::User, content)
}
