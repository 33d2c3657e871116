//! What a tool's `outputSchema` says of a `structuredContent`.

use std::sync::OnceLock;

use jsonschema::Validator;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::protocol::raw::members;

/// The `outputSchema` of one tool in one revision. Compiled when it is first asked, which only policies cause that
/// change a structured result; in another dialect than 2020-12 if it says so. It refers to nothing outside itself:
/// nothing is fetched.
#[derive(Debug)]
pub struct OutputSchema {
    schema: Box<RawValue>,
    compiled: OnceLock<Result<Validator, String>>,
}

/// Why a structured result must not be sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    #[error("does not fit the outputSchema of its tool")]
    Differs,
    /// Whoever checks it at the other end would fail likewise.
    #[error("cannot be compared with the outputSchema of its tool: {0}")]
    Broken(String),
}

impl OutputSchema {
    /// `None` if the definition of the tool has no schema.
    pub fn of_tool(definition: &RawValue) -> Option<Self> {
        let [schema] = members(definition.get(), ["outputSchema"]).ok()?;
        let schema = RawValue::from_string(schema?.to_owned()).ok()?;
        Some(Self { schema, compiled: OnceLock::new() })
    }

    /// Checks a raw `structuredContent`. Costs a parse of it.
    pub fn check(&self, structured: &str) -> Result<(), Unfit> {
        let validator = self.compiled.get_or_init(|| compile(&self.schema)).as_ref();
        let validator = validator.map_err(|why| Unfit::Broken(why.clone()))?;
        match serde_json::from_str(structured) {
            Ok(structured) if validator.is_valid(&structured) => Ok(()),
            _ => Err(Unfit::Differs),
        }
    }
}

fn compile(schema: &RawValue) -> Result<Validator, String> {
    let schema: Value = serde_json::from_str(schema.get()).map_err(|e| e.to_string())?;
    // Formats too, because the TypeScript SDK asserts them.
    jsonschema::options().should_validate_formats(true).build(&schema).map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schema(schema: &str) -> OutputSchema {
        let tool = format!(r#"{{"name":"x","outputSchema":{schema}}}"#);
        OutputSchema::of_tool(&RawValue::from_string(tool).unwrap()).unwrap()
    }

    #[track_caller]
    fn check(schema: &OutputSchema, structured: &str, fits: bool) {
        let expected = if fits { Ok(()) } else { Err(Unfit::Differs) };
        assert_eq!(schema.check(structured), expected, "{structured}");
    }

    #[test]
    fn a_structure_is_held_against_its_schema() {
        let plain = schema(
            r#"{"type":"object","properties":{"n":{"type":"integer"},"u":{"type":"string","format":"uri"}},"required":["n"]}"#,
        );
        check(&plain, r#"{"n":1,"x":null}"#, true);
        check(&plain, r#"{"n":1.0,"u":"http://a/"}"#, true);
        check(&plain, r#"{"n":"[redacted]"}"#, false);
        check(&plain, r#"{"n":1,"u":"[redacted]"}"#, false);
        check(&plain, "{}", false);
        check(&plain, "{", false);
        let zod = schema(
            r##"{"$schema":"http://json-schema.org/draft-07/schema#","type":"object","additionalProperties":false,"properties":{"a":{"$ref":"#/definitions/a"}},"definitions":{"a":{"enum":["x"]}}}"##,
        );
        check(&zod, r#"{"a":"x"}"#, true);
        check(&zod, r#"{"a":"y"}"#, false);
    }

    #[test]
    fn a_schema_that_cannot_be_used_fits_nothing() {
        for broken in [r#"{"type":"nothing"}"#, r#"{"$ref":"http://example.com/schema.json"}"#] {
            assert!(matches!(schema(broken).check("{}"), Err(Unfit::Broken(_))), "{broken}");
        }
    }

    #[test]
    fn a_tool_without_a_schema_has_none() {
        for tool in [r#"{"name":"x"}"#, r#"{"name":"x","inputSchema":{"outputSchema":{}}}"#] {
            assert!(OutputSchema::of_tool(&RawValue::from_string(tool.to_owned()).unwrap()).is_none());
        }
    }
}
