//! Which images and sounds become links, and that the rest of a result stays as it is.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use lazy_mcp_broker::policy::{Link, MediaKind, PayloadKind, ResultRules};

use crate::results::rules;
use crate::{faults, results};

/// Applies the rules, keeping everything; the new payload and what was kept, by its name.
fn apply(rules: &ResultRules, payload: &str, kind: PayloadKind) -> (Option<String>, BTreeMap<String, Vec<u8>>) {
    let mut kept = BTreeMap::new();
    let outcome = rules.apply_keeping(payload, kind, &mut |media| {
        let mut bytes = Vec::new();
        media.write_to(&mut bytes).ok()?;
        assert_eq!(media.size, bytes.len() as u64);
        let kind = if media.kind == MediaKind::Image { "image" } else { "audio" };
        let name = format!("{kind}-{} {}", kept.len() + 1, media.mime_type);
        kept.insert(name.clone(), bytes);
        Some(Link { uri: format!("x:{}", kept.len()), name })
    });
    let outcome = outcome.unwrap();
    if let Some(new) = &outcome {
        serde_json::from_str::<serde_json::Value>(new).unwrap_or_else(|error| panic!("{error}: {new}"));
    }
    (outcome, kept)
}

#[track_caller]
fn check(rules: &ResultRules, payload: &str, expected: &str, kept: &[&str]) {
    let (outcome, files) = apply(rules, payload, PayloadKind::Result);
    assert_eq!(outcome.as_deref().unwrap_or(payload), expected);
    assert_eq!(files.values().map(|bytes| String::from_utf8_lossy(bytes)).collect::<Vec<_>>(), kept);
}

#[track_caller]
fn check_untouched(rules: &ResultRules, payload: &str, kind: PayloadKind) {
    let (outcome, kept) = apply(rules, payload, kind);
    assert_eq!((outcome, kept.len()), (None, 0), "{payload}");
}

fn over(bytes: usize) -> ResultRules {
    rules(&format!("broker.image_to_link {{ when_bytes_over = {bytes} }}"))
}

#[test]
fn a_large_image_becomes_a_link_where_it_stands() {
    check(
        &over(4),
        r#"{"content":[ {"x":1e2,"data" : "aGVsbG8=" ,"annotations":{"audience":["user"]},"type": "image", "mimeType":"image\/png"} ,{"type":"text","text":"\u0061"}],"x":1.0}"#,
        r#"{"content":[ {"x":1e2,"uri":"x:1","name":"image-1 image/png","size":5 ,"annotations":{"audience":["user"]},"type": "resource_link", "mimeType":"image\/png"} ,{"type":"text","text":"\u0061"}],"x":1.0}"#,
        &["hello"],
    );
    check(
        &over(4),
        r#"[{"type":"audio","data":"aGVsbG8"},{"type":"image","data":"d29ybGQh","mimeType":"a/b"}]"#,
        r#"[{"type":"resource_link","uri":"x:1","name":"audio-1 application/octet-stream","size":5},{"type":"resource_link","uri":"x:2","name":"image-2 a/b","size":6,"mimeType":"a/b"}]"#,
        &["hello", "world!"],
    );
    check(
        &over(2),
        r#"{"type":"image","data":"\u002b\/+/"}"#,
        r#"{"type":"resource_link","uri":"x:1","name":"image-1 application/octet-stream","size":3}"#,
        &["\u{fffd}\u{fffd}\u{fffd}"],
    );
}

#[test]
fn what_is_small_or_no_image_stays() {
    for kept in [
        r#"{"type":"image","data":"aGVsbG8=","mimeType":"image/png"}"#,
        r#"{"type":"text","data":"aGVsbG8gd29ybGQ="}"#,
        r#"{"data":"aGVsbG8gd29ybGQ="}"#,
        r#"{"type":"image","data":["aGVsbG8gd29ybGQ="]}"#,
        r#"{"type":"image","data":"aGVsbG8gd29ybGQ=","type":"text"}"#,
        r#"{"structuredContent":{"type":"image","data":"aGVsbG8gd29ybGQ="}}"#,
        r#"{"contents":[{"uri":"a:b","blob":"aGVsbG8gd29ybGQ="}]}"#,
        r#"{"content":[{"type":"text","text":"{\"type\":\"image\",\"data\":\"aGVsbG8gd29ybGQ=\"}"}]}"#,
    ] {
        check_untouched(&over(5), kept, PayloadKind::Result);
    }
    let large = r#"{"type":"image","data":"aGVsbG8gd29ybGQ="}"#;
    check_untouched(&over(5), large, PayloadKind::Params);
    check_untouched(&over(5), large, PayloadKind::Error);
}

#[test]
fn content_types_and_tools_are_chosen() {
    let payload = r#"[{"type":"audio","data":"aGVsbG8="},{"type":"image","data":"aGVsbG8="}]"#;
    let link = |name: &str| {
        format!(r#"{{"type":"resource_link","uri":"x:1","name":"{name}-1 application/octet-stream","size":5}}"#)
    };
    let image = r#"{"type":"image","data":"aGVsbG8="}"#;
    let audio = r#"{"type":"audio","data":"aGVsbG8="}"#;
    let only =
        |kind: &str| rules(&format!("broker.image_to_link {{ when_bytes_over = 1, content_types = {{ '{kind}' }} }}"));
    check(&only("image"), payload, &format!("[{audio},{}]", link("image")), &["hello"]);
    check(&only("audio"), payload, &format!("[{},{image}]", link("audio")), &["hello"]);
    let policy = results::policy_with("broker.image_to_link { tools = { 'shot' }, when_bytes_over = 1 }");
    assert!(policy.links_media() && !results::policy_with("").links_media());
    assert_eq!(policy.plan("shot").results.keeps_media_from(), Some(2));
    assert_eq!(policy.plan("other").results.keeps_media_from(), None);
    check(&policy.plan("shot").results, image, &link("image"), &["hello"]);
    check_untouched(&policy.plan("other").results, image, PayloadKind::Result);
    assert_eq!(rules("broker.image_to_link {}").keeps_media_from(), Some(262_145));
}

/// Two readers must not find two images in it, nor a link with two addresses.
#[test]
fn an_ambiguous_image_is_written_anew() {
    for odd in [
        r#"{"type":"image","data":"bm8=","data":"aGVsbG8=","mimeType":"a/b"}"#,
        r#"{"uri":"own:1","type":"image","data":"aGVsbG8=","mimeType":"a/b"}"#,
        r#"{"\u0075ri":"own:1","type":"image","data":"aGVsbG8=","mimeType":"a/b"}"#,
        r#"{"type":"image","name":"own","data":"aGVsbG8=","mimeType":"a/b"}"#,
        r#"{"type":"image","size":1,"data":"aGVsbG8=","mimeType":"a/b"}"#,
        r#"{"type":"image","type":"image","data":"aGVsbG8=","mimeType":"a/b"}"#,
        r#"{"type":"image","mimeType":"c/d","data":"aGVsbG8=","mimeType":"a/b"}"#,
    ] {
        let expected = r#"{"type":"resource_link","uri":"x:1","name":"image-1 a/b","size":5,"mimeType":"a/b"}"#;
        check(&over(1), odd, expected, &["hello"]);
    }
}

#[test]
fn what_cannot_be_kept_does_not_leave() {
    let lost = |size| {
        format!(
            r#"[{{"type":"text","text":"[An image of {size} bytes was removed by policy, because it could not be kept]"}}]"#
        )
    };
    let payload = r#"[ {"type":"image","data":"aGVsbG8=","_meta":{"cookie":"a"}} ]"#;
    let all = rules("broker.image_to_link { when_bytes_over = 1 }, broker.redact_keys { keys = { 'cookie' } }");
    assert_eq!(all.apply(payload, PayloadKind::Result).unwrap().unwrap().replace(' ', ""), lost(5).replace(' ', ""));
    for broken in ["aGVsbG8=aGVsbG8=", "a_b-c", "aGVs\\nbG8="] {
        let payload = format!(r#"[{{"type":"image","data":"{broken}"}}]"#);
        let (outcome, kept) = apply(&over(1), &payload, PayloadKind::Result);
        let outcome = outcome.unwrap();
        assert!(outcome.contains("could not be kept") && !outcome.contains(broken) && kept.is_empty(), "{outcome}");
    }
}

#[test]
fn other_rules_hold_beside_it() {
    let all = rules(
        "broker.image_to_link { when_bytes_over = 1 }, broker.redact_keys { keys = { 'cookie' } },
         broker.rewrite_uri { from_prefix = 'x:', to_prefix = 'y:', otherwise = 'drop' }, broker.redact_text { pattern = 'hello' }",
    );
    check(
        &all,
        r#"[{"type":"image","_meta":{"cookie":"a"},"data":"aGVsbG8=","x":"hello"},{"type":"resource_link","uri":"z:"}]"#,
        r#"[{"type":"resource_link","_meta":{"cookie":"[redacted]"},"uri":"x:1","name":"image-1 application/octet-stream","size":5,"x":"[redacted]"}]"#,
        &["hello"],
    );
}

#[test]
fn any_bytes_come_out_as_they_went_in() {
    for length in [2, 3, 1_000, 24_576, 24_577, 100_000] {
        let bytes: Vec<u8> = (0..length).map(|n: u32| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        let payload = format!(r#"{{"type":"image","data":"{}"}}"#, STANDARD.encode(&bytes));
        let (_, kept) = apply(&over(1), &payload, PayloadKind::Result);
        assert!(kept.into_values().eq([bytes]), "{length}");
    }
}

#[test]
fn wrong_fields_are_named() {
    let text = "return broker.backend { api = 1, scope = 'session', results = {\n broker.image_to_link { when_bytes_over = -1,\n content_types = { 'text' },\n limit = 1 } } }";
    insta::assert_snapshot!(faults(text), @r#"
    policy.lua:2: 'when_bytes_over' must be a whole number from 0 to 4294967295, got -1
    policy.lua:3: 'content_types[1]' must be "image" or "audio", got "text"
    policy.lua:4: unknown field 'limit' in broker.image_to_link (known: tools, when_bytes_over, content_types)
    "#);
}
