//! Which subscription a notification belongs to: modern ones say so, legacy ones have none (2026-07-28,
//! `basic/patterns/subscriptions`).

use std::borrow::Cow;

use bytes::Bytes;

use super::raw::{entries, members, object, replaced, span, with_members};
use super::version::meta;

/// The notification for a subscriber: with the id of its subscription, raw, or without any. A server's own is not the
/// subscriber's.
pub fn of_subscription(notice: Bytes, id: Option<&str>) -> Bytes {
    let Ok(text) = std::str::from_utf8(&notice) else { return notice };
    let Ok([Some(params)]) = members(text, ["params"]) else { return notice };
    let Ok([about]) = members(params, ["_meta"]) else { return notice };
    let own = id.map(|id| (Cow::Borrowed(meta::SUBSCRIPTION_ID), id));
    let edited = match about {
        None if own.is_none() => return notice,
        None => with_members(params, &format!(r#""_meta":{}"#, object(own))),
        Some(about) => {
            let kept = entries(about).unwrap_or_default().into_iter().filter(|(key, _)| key != meta::SUBSCRIPTION_ID);
            let about_it = object(kept.chain(own));
            let edited = replaced(params.as_bytes(), &mut [(span(params, about), about_it.as_bytes())]);
            String::from_utf8_lossy(&edited).into_owned()
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
