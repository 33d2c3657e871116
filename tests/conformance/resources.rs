//! Resources: a text, a binary, one that can be followed, those that results embed, and a template.

use rmcp::ErrorData;
use rmcp::model::{CacheScope, ReadResourceResult, Resource, ResourceContents, ResourceTemplate};
use serde_json::json;

use crate::content::{PNG, text_of};
use crate::news::News;
use crate::{Answer, LIST_TTL_MS};

const STATIC_TEXT: &str = "test://static-text";
const STATIC_BINARY: &str = "test://static-binary";
pub const WATCHED: &str = "test://watched-resource";
pub const EMBEDDED: &str = "test://embedded-resource";
pub const MIXED: &str = "test://mixed-content-resource";
const EXAMPLE: &str = "test://example-resource";
/// What of `test://template/{id}/data` stands around the id.
const TEMPLATE: (&str, &str) = ("test://template/", "/data");

pub fn all() -> Vec<Resource> {
    let one = |uri: &str, name: &str, about: &str, mime_type: &str| {
        Resource::new(uri, name).with_description(about).with_mime_type(mime_type)
    };
    vec![
        one(STATIC_TEXT, "static-text", "A text that never changes.", "text/plain"),
        one(STATIC_BINARY, "static-binary", "A picture that never changes.", "image/png"),
        one(WATCHED, "watched-resource", "Changes when test_trigger_resource_update says so.", "text/plain"),
        one(EMBEDDED, "embedded-resource", "What test_embedded_resource embeds.", "text/plain"),
        one(MIXED, "mixed-content-resource", "What test_multiple_content_types embeds.", "application/json"),
        one(EXAMPLE, "example-resource", "For a prompt to embed.", "text/plain"),
    ]
}

pub fn templates() -> Vec<ResourceTemplate> {
    let (before, after) = TEMPLATE;
    let template = ResourceTemplate::new(format!("{before}{{id}}{after}"), "template");
    vec![template.with_description("Made from the id that the address names.").with_mime_type("application/json")]
}

/// # Errors
///
/// An unknown resource; `rmcp` gives the error the code of the client's era.
pub fn read(uri: &str, news: &News) -> Answer<ReadResourceResult> {
    let contents = match uri {
        STATIC_BINARY => ResourceContents::blob(PNG, uri).with_mime_type("image/png"),
        WATCHED => text_of(uri, "text/plain", &format!("Revision {} of what is watched.", news.revision())),
        _ => fixed(uri).or_else(|| from_template(uri)).ok_or_else(|| not_found(uri))?,
    };
    Ok(ReadResourceResult::new(vec![contents]).with_ttl_ms(LIST_TTL_MS).with_cache_scope(CacheScope::Public))
}

/// A text that never changes, for results to embed too.
pub fn fixed(uri: &str) -> Option<ResourceContents> {
    match uri {
        STATIC_TEXT => Some(text_of(uri, "text/plain", "This text never changes.")),
        EMBEDDED => Some(text_of(uri, "text/plain", "Embedded in a result.")),
        MIXED => Some(text_of(uri, "application/json", &json!({"kind": "data", "value": 123}).to_string())),
        EXAMPLE => Some(text_of(uri, "text/plain", "Embedded in a prompt.")),
        _ => None,
    }
}

/// # Errors
///
/// A resource that cannot be followed.
pub fn watched(uri: &str) -> Answer<()> {
    if uri == WATCHED { Ok(()) } else { Err(not_found(uri)) }
}

fn from_template(uri: &str) -> Option<ResourceContents> {
    let id = uri.strip_prefix(TEMPLATE.0)?.strip_suffix(TEMPLATE.1)?;
    let text = json!({"id": id, "fromTemplate": true}).to_string();
    (!id.is_empty() && !id.contains('/')).then(|| text_of(uri, "application/json", &text))
}

fn not_found(uri: &str) -> ErrorData {
    ErrorData::resource_not_found("no such resource", Some(json!({"uri": uri})))
}
