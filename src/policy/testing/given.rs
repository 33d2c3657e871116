//! What a test or an operator gives as JSON, looked at before a policy is asked: a slip is theirs to mend, and the policy
//! has not failed.

use std::collections::BTreeMap;

use serde::de::IgnoredAny;

/// Why JSON cannot be used. Continues the name of what was given.
#[derive(Debug, thiserror::Error)]
pub enum Unusable {
    /// The cause says where.
    #[error("is no JSON object: {0}")]
    NoObject(#[from] serde_json::Error),
    #[error("is a whole JSON-RPC response: give its `{0}` alone")]
    WholeResponse(&'static str),
}

/// Whether a text is a JSON object, whatever is in it: numbers of any size and keys that occur twice are let be, because
/// what becomes of those may be what is asked.
pub(super) fn check_object(text: &str) -> Result<(), Unusable> {
    members(text).map(drop)
}

/// Whether a text is the `result` or the `error` of a response.
///
/// # Errors
///
/// It is no JSON object, or the response around it as well, whose result no rule would find.
pub fn check_payload(text: &str) -> Result<(), Unusable> {
    let members = members(text)?;
    let inner = ["result", "error"].into_iter().find(|inner| members.contains_key(*inner));
    match inner {
        Some(inner) if members.contains_key("jsonrpc") => Err(Unusable::WholeResponse(inner)),
        _ => Ok(()),
    }
}

fn members(text: &str) -> Result<BTreeMap<String, IgnoredAny>, Unusable> {
    Ok(serde_json::from_str(text)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: &str) {
        let said = check_payload(text).map_or_else(|unusable| unusable.to_string(), |()| String::new());
        assert_eq!(said, expected, "{text}");
    }

    #[test]
    fn only_objects_are_payloads() {
        check(r#"{"content":[]}"#, "");
        check(r#" {"a":1e999,"a":"\ud800"} "#, "");
        check("{\n\"a\":}", "is no JSON object: expected value at line 2 column 5");
        check("[1]", "is no JSON object: invalid type: sequence, expected a map at line 1 column 0");
        check("{} {}", "is no JSON object: trailing characters at line 1 column 4");
    }

    #[test]
    fn a_response_is_more_than_its_payload() {
        check(r#"{"jsonrpc":"2.0","id":1,"result":{}}"#, "is a whole JSON-RPC response: give its `result` alone");
        check(r#"{"jsonrpc":"2.0","id":1,"error":{}}"#, "is a whole JSON-RPC response: give its `error` alone");
        check(r#"{"result":{},"content":[]}"#, "");
    }
}
