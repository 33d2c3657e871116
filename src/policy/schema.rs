//! The `inputSchema` of a tool, for arguments that a hook rewrote.

use std::sync::OnceLock;

use jsonschema::Validator;

/// A schema from a catalog, compiled when it is first needed: few tools ever need it.
#[derive(Debug)]
pub struct InputSchema {
    raw: Box<str>,
    compiled: OnceLock<Result<Validator, String>>,
}

impl InputSchema {
    /// `raw` is the JSON of the schema.
    pub fn new(raw: &str) -> Self {
        Self { raw: raw.into(), compiled: OnceLock::new() }
    }

    /// What is wrong with raw arguments: a place in the schema, never a word of the arguments.
    pub fn check(&self, arguments: &str) -> Result<(), String> {
        let arguments =
            serde_json::from_str(arguments).map_err(|error| format!("the arguments are no JSON: {error}"))?;
        let compiled = self.compiled.get_or_init(|| {
            let unusable = |why: String| format!("the inputSchema of the catalog cannot be used: {why}");
            let schema = serde_json::from_str(&self.raw).map_err(|error| unusable(error.to_string()))?;
            jsonschema::validator_for(&schema).map_err(|error| unusable(error.masked().to_string()))
        });
        match compiled {
            Ok(validator) => {
                validator.validate(&arguments).map_err(|error| format!("see {} of it", error.schema_path()))
            }
            Err(why) => Err(why.clone()),
        }
    }
}
