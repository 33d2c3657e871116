//! What a request that is for a server is about.

use std::borrow::Cow;

use super::error::RpcError;
use super::raw::{self, members};

/// What a request is about; names are decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    Tool(String),
    Prompt(String),
    /// `resources/read` of an address.
    Resource(String),
    /// `completion/complete` for a prompt of this name, or for an address or its template.
    Completion(CompletionOf),
    /// A method that the broker knows nothing about.
    Other(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CompletionOf {
    Prompt(String),
    Resource(String),
}

impl Subject {
    /// The member of `params` that says what a request of this method is about.
    pub(super) fn key(method: &str) -> Option<&'static str> {
        match method {
            "tools/call" | "prompts/get" => Some("name"),
            "resources/read" => Some("uri"),
            "completion/complete" => Some("ref"),
            _ => None,
        }
    }

    /// `value` is the raw member [`Self::key`].
    pub(super) fn new(method: &str, value: Option<&str>) -> Result<Self, RpcError> {
        let text = || {
            let text = value.and_then(raw::string).map(Cow::into_owned);
            let key = Self::key(method).unwrap_or_default();
            text.ok_or_else(|| RpcError::invalid_params(format!("`params.{key}` of {method} must be a string")))
        };
        match method {
            "tools/call" => text().map(Self::Tool),
            "prompts/get" => text().map(Self::Prompt),
            "resources/read" => text().map(Self::Resource),
            "completion/complete" => CompletionOf::parse(value.unwrap_or("{}")).map(Self::Completion),
            other => Ok(Self::Other(other.to_owned())),
        }
    }
}

impl CompletionOf {
    fn parse(of: &str) -> Result<Self, RpcError> {
        let text = |raw: Option<&str>| raw.and_then(raw::string).map(Cow::into_owned);
        let [kind, name, uri] = members(of, ["type", "name", "uri"]).unwrap_or_default();
        let of = match text(kind).as_deref() {
            Some("ref/prompt") => text(name).map(Self::Prompt),
            Some("ref/resource") => text(uri).map(Self::Resource),
            _ => None,
        };
        of.ok_or_else(|| {
            RpcError::invalid_params("`params.ref` of completion/complete must name a prompt or a resource")
        })
    }
}
