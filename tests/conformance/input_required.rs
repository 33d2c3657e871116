//! The tools `test_input_required_result_…`: one for each way in which a call can need the client (SEP-2322).

use rmcp::model::{CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, InputResponses};
use serde_json::Value;

use crate::exchange::{self, Asked, Memory, Question};
use crate::{Answer, Context, forms};

const PREFIX: &str = "test_input_required_result_";

/// `None` if the tool is none of these.
pub async fn call(call: &CallToolRequestParams, context: &Context) -> Option<Answer<CallToolResponse>> {
    let (memory, rounds) = script(call.name.strip_prefix(PREFIX)?, context)?;
    let asked = exchange::ask(call.into(), memory, &rounds, context).await;
    Some(asked.map(|asked| match asked {
        Asked::Missing(missing) => missing.into(),
        Asked::Answered(answers) => {
            let text = summary(memory, &answers);
            CallToolResult::success(vec![ContentBlock::text(text)]).into()
        }
    }))
}

/// What a tool asks, round by round.
fn script(name: &str, context: &Context) -> Option<(Memory, Vec<Vec<Question>>)> {
    let confirmation = || Question::form("confirm", "Shall this go on?", forms::of_one("ok", "boolean"));
    let name_of_user = || Question::form("user_name", "Who are you?", forms::of_one("name", "string"));
    let greeting = || Question::sampling("greeting", "Greet somebody in one sentence.", 50);
    Some(match name {
        "elicitation" => (Memory::None, vec![vec![name_of_user()]]),
        "sampling" => {
            (Memory::None, vec![vec![Question::sampling("capital_question", "Which city governs France?", 100)]])
        }
        "list_roots" => (Memory::None, vec![vec![Question::roots("client_roots")]]),
        "request_state" | "tampered_state" => (Memory::Sealed, vec![vec![confirmation()]]),
        "multiple_inputs" => (Memory::Sealed, vec![vec![name_of_user(), greeting(), Question::roots("client_roots")]]),
        "multi_round" => {
            let color = Question::form("step2", "And your favourite colour?", forms::of_one("color", "string"));
            let name = Question::form("step1", "First, who are you?", forms::of_one("name", "string"));
            (Memory::Sealed, vec![vec![name], vec![color]])
        }
        "capabilities" => {
            let mut all = vec![name_of_user(), greeting(), Question::roots("client_roots")];
            all.retain(|question| question.is_declared(context));
            (Memory::None, vec![all])
        }
        _ => return None,
    })
}

/// The answers in one line; `state-ok` tells the suite that the state came back as it was given out.
fn summary(memory: Memory, answers: &InputResponses) -> String {
    let words = answers.iter().map(|(key, answer)| format!("{key}: {}", told(answer)));
    let state = (memory == Memory::Sealed).then(|| "state-ok".to_owned());
    state.into_iter().chain(words).collect::<Vec<_>>().join("; ")
}

/// The part of an answer that was asked for.
fn told(answer: &Value) -> &Value {
    ["content", "roots", "action"].iter().find_map(|member| answer.get(member)).unwrap_or(answer)
}
