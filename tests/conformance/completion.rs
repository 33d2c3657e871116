//! `completion/complete` for the arguments of a prompt and of the resource template.

use rmcp::ErrorData;
use rmcp::model::{CompleteRequestParams, CompleteResult, CompletionInfo, Reference};

use crate::{Answer, prompts, resources};

const WORDS: [&str; 6] = ["tea", "test", "testament", "text", "word", "world"];
const IDS: [&str; 4] = ["1", "12", "123", "2"];

/// # Errors
///
/// A prompt, template or argument that there is none of.
pub fn complete(wanted: &CompleteRequestParams) -> Answer<CompleteResult> {
    let candidates: &[&str] = match &wanted.r#ref {
        Reference::Prompt(of) if has_argument(&of.name, &wanted.argument.name) => &WORDS,
        Reference::Resource(of) if is_template(&of.uri) && wanted.argument.name == "id" => &IDS,
        _ => return Err(ErrorData::invalid_params("nothing of that name has such an argument", None)),
    };
    let fitting = candidates.iter().filter(|one| one.starts_with(&wanted.argument.value));
    let info = CompletionInfo::with_all_values(fitting.map(|one| (*one).to_owned()).collect());
    info.map(CompleteResult::new).map_err(|error| ErrorData::internal_error(error, None))
}

fn has_argument(prompt: &str, argument: &str) -> bool {
    let found = prompts::all().into_iter().find(|known| known.name == prompt);
    found.and_then(|prompt| prompt.arguments).is_some_and(|all| all.iter().any(|one| one.name == argument))
}

fn is_template(uri: &str) -> bool {
    resources::templates().iter().any(|known| known.uri_template == uri)
}
