//! What a catalog offers besides tools, and which requests for it are worth a start.
//!
//! A server is started for what was reviewed: a prompt, a resource, a completion of those. Anything else may be meant for
//! a server that runs already, and only for that: the address in a result of a generation that is gone leads nowhere,
//! and a client that tries out what is there must not start a browser by it (invariant 1).

use std::collections::HashSet;

use serde_json::value::RawValue;

use super::surface::beyond;
use crate::catalog::Catalog;
use crate::core::diagnostic::suggestion;
use crate::protocol::call::{CompletionOf, Subject};
use crate::protocol::error::{RpcError, shown};
use crate::protocol::raw::{members, string};

/// Which server a request may be for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// One is started where none runs.
    Starts,
    /// One that runs.
    Live,
}

/// What is offered, but for the tools.
#[derive(Debug, Default)]
pub struct Offers {
    pub prompts: bool,
    pub resources: bool,
    /// Changes of single resources are told to those who ask.
    pub subscriptions: bool,
    pub completions: bool,
    pub logging: bool,
    /// The server speaks more than the protocol: methods that the broker does not know can be for it.
    extends: bool,
    prompt_names: HashSet<String>,
    addresses: HashSet<String>,
    templates: Vec<String>,
}

impl Offers {
    pub fn of(catalog: &Catalog) -> Self {
        let [prompts, resources, completions, logging] =
            members(catalog.capabilities.get(), ["prompts", "resources", "completions", "logging"]).unwrap_or_default();
        let subscribe = resources.and_then(|resources| members(resources, ["subscribe"]).ok()?[0]);
        let texts = |items: &[Box<RawValue>], key: &'static str| {
            let text = |item: &RawValue| members(item.get(), [key]).ok()?[0].and_then(string).map(|s| s.into_owned());
            items.iter().filter_map(|item| text(item)).collect::<Vec<_>>()
        };
        Self {
            prompts: prompts.is_some(),
            resources: resources.is_some(),
            subscriptions: subscribe == Some("true"),
            completions: completions.is_some(),
            logging: logging.is_some(),
            extends: !beyond(catalog).is_empty(),
            prompt_names: texts(&catalog.prompts, "name").into_iter().collect(),
            addresses: texts(&catalog.resources, "uri").into_iter().collect(),
            templates: texts(&catalog.resource_templates, "uriTemplate"),
        }
    }

    /// Which server a request can be for that is no call of a tool.
    ///
    /// # Errors
    /// None: it is of a kind that is not offered, or for a prompt that does not exist.
    pub fn reach(&self, subject: &Subject) -> Result<Reach, RpcError> {
        let starts_if = |is_known: bool| if is_known { Reach::Starts } else { Reach::Live };
        match subject {
            Subject::Prompt(name) if self.prompts => {
                if self.prompt_names.contains(name) {
                    return Ok(Reach::Starts);
                }
                let hint = suggestion(name, self.prompt_names.iter().map(String::as_str));
                Err(RpcError::invalid_params(format!("Unknown prompt: {}{hint}", shown(name))))
            }
            Subject::Resource(uri) if self.resources => Ok(starts_if(self.has_resource(uri))),
            Subject::Completion(of) if self.completions => Ok(starts_if(match of {
                CompletionOf::Prompt(name) => self.prompt_names.contains(name),
                CompletionOf::Resource(uri) => self.templates.contains(uri) || self.addresses.contains(uri),
            })),
            Subject::Other(_) => Ok(starts_if(self.extends)),
            Subject::Prompt(_) => Err(RpcError::method_not_found("prompts/get")),
            Subject::Resource(_) => Err(RpcError::method_not_found("resources/read")),
            Subject::Completion(_) => Err(RpcError::method_not_found("completion/complete")),
            Subject::Tool(_) => Err(RpcError::invalid_params("no tool")),
        }
    }

    fn has_resource(&self, uri: &str) -> bool {
        self.addresses.contains(uri) || self.templates.iter().any(|template| fits(template, uri))
    }
}

/// Whether an address can have come of a URI template (RFC 6570): its literal parts, in their order, with anything
/// between. What it was made of is the server's affair.
fn fits(template: &str, uri: &str) -> bool {
    let mut rest = uri;
    let mut parts = template.split('{');
    let first = parts.next().unwrap_or_default();
    match rest.strip_prefix(first) {
        Some(after) => rest = after,
        None => return false,
    }
    let literals: Vec<&str> = parts.map(|part| part.split_once('}').map_or("", |(_, literal)| literal)).collect();
    let Some((last, middle)) = literals.split_last() else { return rest.is_empty() };
    for literal in middle {
        match rest.find(literal) {
            Some(at) => rest = &rest[at + literal.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_fit_templates() {
        for (template, uri) in [
            ("test://a/{id}/data", "test://a/7/data"),
            ("file:///{+path}", "file:///a/b/c"),
            ("x://{a}-{b}.txt", "x://1-2-3.txt"),
            ("x://same", "x://same"),
            ("x://{?q}", "x://?q=1"),
        ] {
            assert!(fits(template, uri), "{template} {uri}");
        }
        for (template, uri) in [
            ("test://a/{id}/data", "test://a/7/date"),
            ("test://a/{id}", "test://b/7"),
            ("x://same", "x://same/"),
            ("x://{a}-{b}.txt", "x://12.txt"),
        ] {
            assert!(!fits(template, uri), "{template} {uri}");
        }
    }

    #[test]
    fn only_what_was_reviewed_is_worth_a_start() {
        let offers = Offers {
            prompts: true,
            resources: true,
            prompt_names: ["greet".to_owned()].into(),
            addresses: ["x://a".to_owned()].into(),
            ..Offers::default()
        };
        let reach = |subject| offers.reach(&subject);
        assert_eq!(reach(Subject::Prompt("greet".into())), Ok(Reach::Starts));
        let unknown = reach(Subject::Prompt("gret".into())).unwrap_err();
        assert_eq!((unknown.code, unknown.message.as_str()), (-32602, "Unknown prompt: gret (did you mean 'greet'?)"));
        assert_eq!(reach(Subject::Resource("x://a".into())), Ok(Reach::Starts));
        assert_eq!(reach(Subject::Resource("x://b".into())), Ok(Reach::Live));
        assert_eq!(reach(Subject::Other("x/y".into())), Ok(Reach::Live));
        assert_eq!(reach(Subject::Completion(CompletionOf::Prompt("greet".into()))).unwrap_err().code, -32601);
    }
}
