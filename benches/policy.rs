//! What policies cost: processor time of this thread, median and worst of many runs, against the targets of
//! `docs/benchmarks.md`. Run with `cargo bench --bench policy`.

#![expect(clippy::print_stdout, clippy::unwrap_used, reason = "a program that prints figures")]

use std::fmt::Write as _;
use std::fs::File;
use std::time::Duration;

use lazy_mcp_broker::policy::{self, Link, Media, PayloadKind, Policy};
use nix::time::{ClockId, clock_gettime};

fn main() {
    let policy = load(
        r#"return broker.backend { api = 1, scope = "session", results = {
            broker.redact_keys { keys = { "cookie", "set-cookie", "authorization" } },
            broker.redact_headers_in_text { names = { "cookie", "set-cookie", "authorization" } },
            broker.redact_text { pattern = [[(?i)\b(?:bearer|basic)\s+[a-z0-9._~+/=-]{8,}]] },
        } }"#,
    );
    let headers = network_requests(500);
    let in_text = format!(r#"{{"content":[{{"type":"text","text":{}}}]}}"#, serde_json::Value::from(headers.clone()));
    let structured = format!(r#"{{"content":[],"structuredContent":{{"requests":{headers}}}}}"#);
    let lines = text_of_headers(1000);
    let lines = format!(r#"{{"content":[{{"type":"text","text":{}}}]}}"#, serde_json::Value::from(lines));
    let image =
        format!(r#"{{"content":[{{"type":"image","mimeType":"image/png","data":"{}"}}]}}"#, "iVBO".repeat(5 << 18));
    let quiet = r#"{"content":[{"type":"text","text":"Page URL: about:blank"}]}"#.to_owned();
    for (what, payload, target_us) in [
        ("redaction: JSON in a text, 1,000 hits", &in_text, 500),
        ("redaction: structured content, 1,000 hits", &structured, 500),
        ("redaction: header lines in a text, 1,000 hits", &lines, 500),
        ("an image of 5 MB, nothing touched", &image, 5000),
        ("a small text, nothing touched", &quiet, 10),
    ] {
        measure(&policy, what, payload, target_us);
    }
    measure_taking_out();
}

/// An image of 5 MB, decoded, out of a result and into a file.
fn measure_taking_out() {
    let policy = load("return broker.backend { api = 1, scope = 'session', results = { broker.image_to_link {} } }");
    let image = format!(r#"{{"content":[{{"type":"image","data":"{}"}}]}}"#, "iVBO".repeat(5_000_000 / 3));
    let rules = policy.plan("any").results.clone();
    let dir = tempfile::tempdir().unwrap();
    let mut times = Vec::new();
    for n in 0..50 {
        let mut keep = |media: &Media<'_>| {
            media.write_to(&mut File::create(dir.path().join(n.to_string())).unwrap()).unwrap();
            Some(Link { uri: "x:1".to_owned(), name: "x".to_owned() })
        };
        times.push(timed(|| rules.apply_keeping(&image, PayloadKind::Result, &mut keep).unwrap()));
    }
    times.sort_unstable();
    print("an image of 5 MB into a file", image.len(), times[times.len() / 2], times[times.len() * 9 / 10], 5000);
}

fn measure(policy: &Policy, what: &str, payload: &str, target_us: u64) {
    let rules = policy.plan("any").results.clone();
    let mut times: Vec<Duration> =
        (0..200).map(|_| timed(|| rules.apply(payload, PayloadKind::Result).unwrap())).collect();
    times.sort_unstable();
    print(what, payload.len(), times[times.len() / 2], times[times.len() * 9 / 10], target_us);
}

fn print(what: &str, bytes: usize, median: Duration, ninth: Duration, target_us: u64) {
    println!(
        "{what:<48} {:>9} bytes   median {:>8.1} µs   90 % {:>8.1} µs   target {target_us} µs",
        bytes,
        median.as_secs_f64() * 1e6,
        ninth.as_secs_f64() * 1e6
    );
}

fn timed<T>(work: impl FnOnce() -> T) -> Duration {
    let now = || Duration::from(clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap());
    let begun = now();
    let kept = work();
    let took = now() - begun;
    drop(kept);
    took
}

fn load(text: &str) -> Policy {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("bench.lua");
    std::fs::write(&path, text).unwrap();
    policy::load(&path).unwrap()
}

/// What a browser's network log looks like: two secret headers a request.
fn network_requests(count: usize) -> String {
    let mut out = String::from("[");
    for n in 0..count {
        if n > 0 {
            out.push(',');
        }
        write!(
            out,
            r#"{{"url":"https://example.com/a/{n}","status":200,"headers":[{{"name":"accept","value":"*/*"}},{{"name":"cookie","value":"sid={n}abcdef; theme=dark"}},{{"name":"Set-Cookie","value":"x={n}; Path=/"}}]}}"#
        )
        .unwrap();
    }
    out.push(']');
    out
}

fn text_of_headers(lines: usize) -> String {
    let mut out = String::new();
    for n in 0..lines / 2 {
        write!(out, "GET https://example.com/a/{n}\n- accept: */*\n- cookie: sid={n}abcdefghijklmnop\n- authorization: Bearer abcdefgh{n}\n- content-type: text/html; charset=utf-8\n\n").unwrap();
    }
    out
}
