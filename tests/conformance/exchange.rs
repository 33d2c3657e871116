//! Asking the client, in both eras: by requests of our own while the call waits (legacy), or by a result that says what
//! is missing, and a second call that brings it (2026-07-28, `basic/patterns/mrtr`).
//!
//! So every tool that asks works for clients of either era, and behind a broker that speaks another one than they do.

use rmcp::ErrorData;
use rmcp::model::{
    CallToolRequestParams, ClientCapabilities, GetPromptRequestParams, InputRequest, InputRequiredResult,
    InputResponses, ServerRequest,
};
use serde_json::{Value, json};

use crate::{Answer, Context, is_modern, sealed};

/// What is asked, and under which key its answer comes back.
pub struct Question {
    pub key: &'static str,
    pub kind: Kind,
}

pub enum Kind {
    Form { message: String, schema: Value },
    Sampling { prompt: String, max_tokens: u32 },
    Roots,
}

/// Whether earlier answers come back in a sealed `requestState`, without which later ones are not taken.
#[derive(Clone, Copy, PartialEq)]
pub enum Memory {
    None,
    Sealed,
}

/// What a request brought along from the rounds before it.
pub struct Brought {
    purpose: String,
    responses: InputResponses,
    state: Option<String>,
}

pub enum Asked {
    Answered(InputResponses),
    Missing(InputRequiredResult),
}

impl From<&CallToolRequestParams> for Brought {
    fn from(call: &CallToolRequestParams) -> Self {
        Self {
            purpose: call.name.to_string(),
            responses: call.input_responses.clone().unwrap_or_default(),
            state: call.request_state.clone(),
        }
    }
}

impl From<&GetPromptRequestParams> for Brought {
    fn from(wanted: &GetPromptRequestParams) -> Self {
        Self {
            purpose: wanted.name.clone(),
            responses: wanted.input_responses.clone().unwrap_or_default(),
            state: wanted.request_state.clone(),
        }
    }
}

/// Asks round after round until each question has an answer that can be one. Keys that nobody asked for are ignored.
///
/// # Errors
///
/// What the client has not declared, it is not asked; a forged state; a client that answers with an error.
pub async fn ask(brought: Brought, memory: Memory, rounds: &[Vec<Question>], context: &Context) -> Answer<Asked> {
    let Brought { purpose, responses, state } = brought;
    let mut answers = match &state {
        Some(state) => sealed::open(&purpose, state)?,
        None => InputResponses::new(),
    };
    if memory == Memory::None || state.is_some() {
        let questions = rounds.iter().flatten();
        let taken = questions.filter_map(|one| Some((one.key.to_owned(), one.accept(responses.get(one.key)?)?)));
        answers.extend(taken);
    }
    for round in rounds {
        let open: Vec<&Question> = round.iter().filter(|one| !answers.contains_key(one.key)).collect();
        if open.is_empty() {
            continue;
        }
        for question in &open {
            question.may_be_asked(context)?;
        }
        if is_modern(context) {
            let requests = open.into_iter().map(|one| (one.key.to_owned(), one.request())).collect();
            let state = (memory == Memory::Sealed).then(|| sealed::seal(&purpose, &answers));
            return Ok(Asked::Missing(InputRequiredResult::new(Some(requests), state)));
        }
        for question in open {
            answers.insert(question.key.to_owned(), question.put(context).await?);
        }
    }
    Ok(Asked::Answered(answers))
}

/// The error for a client that is needed for what it has not declared; the legacy era has no code of its own for it.
pub fn undeclared(missing: ClientCapabilities, context: &Context) -> ErrorData {
    let error = ErrorData::missing_required_client_capability(missing);
    if is_modern(context) { error } else { ErrorData::invalid_request(error.message, error.data) }
}

impl Question {
    pub fn form(key: &'static str, message: impl Into<String>, schema: Value) -> Self {
        Self { key, kind: Kind::Form { message: message.into(), schema } }
    }

    pub fn sampling(key: &'static str, prompt: impl Into<String>, max_tokens: u32) -> Self {
        Self { key, kind: Kind::Sampling { prompt: prompt.into(), max_tokens } }
    }

    pub fn roots(key: &'static str) -> Self {
        Self { key, kind: Kind::Roots }
    }

    pub fn is_declared(&self, context: &Context) -> bool {
        let declared = context.client_capabilities().unwrap_or_default();
        match self.kind {
            Kind::Form { .. } => declared.elicitation.is_some(),
            Kind::Sampling { .. } => declared.sampling.is_some(),
            Kind::Roots => declared.roots.is_some(),
        }
    }

    fn may_be_asked(&self, context: &Context) -> Answer<()> {
        if self.is_declared(context) {
            return Ok(());
        }
        let missing = match self.kind {
            Kind::Form { .. } => ClientCapabilities::builder().enable_elicitation().build(),
            Kind::Sampling { .. } => ClientCapabilities::builder().enable_sampling().build(),
            Kind::Roots => ClientCapabilities::builder().enable_roots().build(),
        };
        Err(undeclared(missing, context))
    }

    fn request(&self) -> InputRequest {
        let request = match &self.kind {
            Kind::Form { message, schema } => json!({
                "method": "elicitation/create",
                "params": {"mode": "form", "message": message, "requestedSchema": schema},
            }),
            Kind::Sampling { prompt, max_tokens } => json!({
                "method": "sampling/createMessage",
                "params": {
                    "messages": [{"role": "user", "content": {"type": "text", "text": prompt}}],
                    "maxTokens": max_tokens,
                },
            }),
            Kind::Roots => json!({"method": "roots/list"}),
        };
        serde_json::from_value(request).expect("what this server asks is what the protocol knows")
    }

    /// As a request to the client, in the legacy era.
    async fn put(&self, context: &Context) -> Answer<Value> {
        let request = match self.request() {
            InputRequest::Elicitation(request) => ServerRequest::ElicitRequest(request),
            InputRequest::CreateMessage(request) => ServerRequest::CreateMessageRequest(request),
            InputRequest::ListRoots(request) => ServerRequest::ListRootsRequest(request),
            _ => unreachable!("these three are all that there is to ask"),
        };
        let why = |error| ErrorData::internal_error(format!("the client did not answer: {error}"), None);
        let answer = context.peer.send_request(request).await.map_err(why)?;
        Ok(serde_json::to_value(answer).expect("JSON can be written"))
    }

    /// The answer if it can be one to this question.
    fn accept(&self, answer: &Value) -> Option<Value> {
        let is_one = match self.kind {
            Kind::Form { .. } => match answer["action"].as_str()? {
                "accept" => answer["content"].is_object(),
                action => action == "decline" || action == "cancel",
            },
            Kind::Sampling { .. } => answer["role"].is_string() && !answer["content"].is_null(),
            Kind::Roots => answer["roots"].is_array(),
        };
        is_one.then(|| answer.clone())
    }
}
