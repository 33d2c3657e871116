//! What a test or an operator gives as JSON, looked at before a policy is asked: a slip is theirs to mend, and the policy
//! has not failed.

use std::collections::BTreeMap;

use serde::de::IgnoredAny;

/// Why JSON cannot be used. Continues the name of what was given.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unusable {
    /// The cause says where.
    #[error("is no JSON object: {0}")]
    NoObject(#[from] serde_json::Error),
}

/// Whether a text is a JSON object, whatever is in it: numbers of any size and keys that occur twice are let be, because
/// what becomes of those may be what is asked.
pub(super) fn check_object(text: &str) -> Result<(), Unusable> {
    members(text).map(drop)
}

fn members(text: &str) -> Result<BTreeMap<String, IgnoredAny>, Unusable> {
    Ok(serde_json::from_str(text)?)
}
