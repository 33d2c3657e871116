//! Which subscription a notification belongs to: modern ones say so, legacy ones have none (2026-07-28,
//! `basic/patterns/subscriptions`).

use bytes::Bytes;
use serde_json::Value;

use super::raw::{entries, members, replaced, span, with_members};
use super::version::meta;

/// The notification for a subscriber: with the id of its subscription, raw, or without any. A server's own is not the
/// subscriber's.
pub fn of_subscription(notice: Bytes, id: Option<&str>) -> Bytes {
    let Ok(text) = std::str::from_utf8(&notice) else { return notice };
    let Ok([Some(params)]) = members(text, ["params"]) else { return notice };
    let Ok([about]) = members(params, ["_meta"]) else { return notice };
    let own = id.map(|id| format!(r#""{}":{id}"#, meta::SUBSCRIPTION_ID));
    let edited = match (about, own) {
        (None, None) => return notice,
        (None, Some(own)) => with_members(params, &format!(r#""_meta":{{{own}}}"#)),
        (Some(about), own) => {
            let kept = entries(about).unwrap_or_default().into_iter().filter(|(key, _)| key != meta::SUBSCRIPTION_ID);
            let kept = kept.map(|(key, value)| format!("{}:{value}", Value::from(&*key)));
            let all: Vec<String> = kept.chain(own).collect();
            let at = span(params, about);
            let about = format!("{{{}}}", all.join(","));
            String::from_utf8_lossy(&replaced(params.as_bytes(), &mut [(at, about.as_bytes())])).into_owned()
        }
    };
    replaced(&notice, &mut [(span(text, params), edited.as_bytes())]).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(notice: &'static str, id: Option<&str>, expected: &str) {
        let told = of_subscription(Bytes::from_static(notice.as_bytes()), id);
        assert_eq!(std::str::from_utf8(&told).unwrap(), expected);
    }

    #[test]
    fn each_subscriber_has_its_own_id_or_none() {
        let plain = r#"{"method":"m","params":{"uri":"u"}}"#;
        check(plain, None, plain);
        check(
            plain,
            Some("\"a\""),
            r#"{"method":"m","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":"a"},"uri":"u"}}"#,
        );
        let modern =
            r#"{"params":{"uri":"u","_meta":{"k":1.0,"io.modelcontextprotocol/subscriptionId":7}},"method":"m"}"#;
        check(modern, None, r#"{"params":{"uri":"u","_meta":{"k":1.0}},"method":"m"}"#);
        check(
            modern,
            Some("3"),
            r#"{"params":{"uri":"u","_meta":{"k":1.0,"io.modelcontextprotocol/subscriptionId":3}},"method":"m"}"#,
        );
    }
}
