//! Arguments of tools that modern clients repeat in headers, so that what stands between can route by them
//! (2026-07-28, `transports/streamable-http`, `x-mcp-header`): what a header says must be what the body says.

use crate::protocol::raw::{entries, members, string};

/// How deep properties are looked into.
const DEPTH_MAX: usize = 8;

/// An argument and the header that repeats it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mirrored {
    /// From the arguments down.
    pub path: Vec<String>,
    /// In lower case, `mcp-param-…`.
    pub header: String,
}

/// All of a tool, by its raw definition. An annotation that is no header name is none.
pub(super) fn mirrored(tool: &str) -> Vec<Mirrored> {
    let mut found = Vec::new();
    // Most tools have none, and their schemas need not be read.
    if tool.contains("x-mcp-header")
        && let Ok([Some(schema)]) = members(tool, ["inputSchema"])
    {
        look(schema, &mut Vec::new(), &mut found);
    }
    found
}

fn look(schema: &str, path: &mut Vec<String>, found: &mut Vec<Mirrored>) {
    let Ok([Some(properties)]) = members(schema, ["properties"]) else { return };
    for (name, property) in entries(properties).unwrap_or_default() {
        path.push(name.into_owned());
        let [header] = members(property, ["x-mcp-header"]).unwrap_or_default();
        if let Some(header) = header.and_then(string).filter(|header| is_token(header)) {
            found.push(Mirrored { path: path.clone(), header: format!("mcp-param-{}", header.to_ascii_lowercase()) });
        }
        if path.len() < DEPTH_MAX {
            look(property, path, found);
        }
        path.pop();
    }
}

/// RFC 9110, section 5.6.2.
fn is_token(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b))
}

impl Mirrored {
    /// What the header has to say: the argument as text; `None` if there is none.
    pub fn expected(&self, arguments: Option<&str>) -> Option<String> {
        let mut value = arguments?;
        for name in &self.path {
            let all = entries(value).ok()?;
            value = all.into_iter().find(|(key, _)| key == name)?.1;
        }
        match value.as_bytes().first()? {
            b'"' => string(value).map(|text| text.into_owned()),
            b'n' | b'{' | b'[' => None,
            _ => Some(value.to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn annotated_arguments_are_found_at_any_depth() {
        let tool = r#"{"name":"t","inputSchema":{"type":"object","properties":{
            "region":{"type":"string","x-mcp-header":"Region"},
            "deep":{"type":"object","properties":{"n":{"type":"integer","x-mcp-header":"N"}}},
            "bad":{"type":"string","x-mcp-header":"a b"},"plain":{"type":"string"}}}}"#;
        let found = mirrored(tool);
        let headers: Vec<_> = found.iter().map(|mirrored| mirrored.header.as_str()).collect();
        assert_eq!(headers, ["mcp-param-region", "mcp-param-n"]);
        let arguments = Some(r#"{"region":"\u0065u","deep":{"n":7},"plain":"x"}"#);
        assert_eq!(found[0].expected(arguments).as_deref(), Some("eu"));
        assert_eq!(found[1].expected(arguments).as_deref(), Some("7"));
        assert_eq!(found[1].expected(Some(r#"{"deep":{"n":null}}"#)), None);
        assert_eq!(found[0].expected(None), None);
        assert!(mirrored(r#"{"name":"t","inputSchema":{"type":"object"}}"#).is_empty());
    }
}
