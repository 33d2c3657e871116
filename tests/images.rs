//! Large images leave results as links, and are read back by whoever shares the instance, as long as it lives.

#![expect(clippy::unwrap_used, reason = "a helper that fails, fails its test")]

mod support;

use std::path::{Path, PathBuf};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use support::{Backend, Broker, Modern, Reply, Request, Session, Setup, wait};

const RULE: &str = "results = { broker.image_to_link { when_bytes_over = 1000 } },";

fn start(backend: Backend) -> Broker {
    Setup::new().backend(backend.policy(RULE)).start()
}

/// What the fixture puts into its image of that number.
fn image(bytes: usize, number: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at * 31 * number % 251) as u8).collect()
}

/// The addresses of a result's links.
fn links(reply: &Reply) -> Vec<String> {
    let content = reply.result()["content"].as_array().unwrap();
    let is_link = |item: &&Value| item["type"] == "resource_link";
    content.iter().filter(is_link).map(|link| link["uri"].as_str().unwrap().to_owned()).collect()
}

#[track_caller]
fn take(session: &Session, bytes: usize) -> String {
    let reply = session.call("image", &json!({"bytes": bytes}));
    let [link] = &*links(&reply) else { panic!("no link in {}", reply.raw) };
    link.clone()
}

fn read(session: &Session, uri: &str) -> Reply {
    session.send("resources/read", &json!({"uri": uri}))
}

#[track_caller]
fn bytes_of(reply: &Reply) -> Vec<u8> {
    STANDARD.decode(reply.result()["contents"][0]["blob"].as_str().unwrap()).unwrap()
}

#[track_caller]
fn check_unknown(reply: &Reply, uri: &str, code: i64) {
    assert_eq!(reply.json()["error"], json!({"code": code, "message": "Resource not found", "data": {"uri": uri}}));
}

fn listed(session: &Session) -> Vec<String> {
    let list = session.send("resources/list", &json!({}));
    let all = list.result()["resources"].as_array().unwrap().clone();
    all.iter().map(|resource| resource["uri"].as_str().unwrap().to_owned()).collect()
}

/// The private directory of the session's instance, and the one of its files.
fn directories(session: &Session) -> (PathBuf, PathBuf) {
    let own = session.call("pid", &json!({})).text_json()["tmpdir"].as_str().unwrap().to_owned();
    let kept = format!("{own}.kept");
    (own.into(), kept.into())
}

fn entries(dir: &Path) -> usize {
    std::fs::read_dir(dir).map_or(0, Iterator::count)
}

#[test]
fn a_link_stands_where_the_image_was() {
    let broker = start(Backend::session("fixture"));
    let session = Session::new(&broker, "fixture");
    let reply = session.call("image", &json!({"bytes": 5000, "count": 2}));
    let [first, second] = &*links(&reply) else { panic!("{}", reply.raw) };
    let id = &reply.json()["id"];
    let item = |uri: &str, n: u8| {
        format!(
            r#",{{"type":"resource_link","annotations":{{"x":[1.0]}},"uri":"{uri}","name":"image-{n}.png","size":5000,"mimeType":"image/png"}}"#
        )
    };
    let items = [item(first, 1), item(second, 2)].concat();
    assert_eq!(
        reply.raw,
        format!(
            r#"{{"jsonrpc":"2.0","id":{id},"result":{{"content":[{{"type":"text","text":"c\u0061fé"}}{items}],"x":1e2}}}}"#
        )
    );
    let instance = broker.live_instances("fixture")[0].clone();
    let prefix = format!("lazy-mcp://fixture/{}/{}/", instance["id"].as_str().unwrap(), instance["generation"]);
    for uri in [first, second] {
        let key = uri.strip_prefix(&prefix).unwrap().strip_suffix(".png").unwrap();
        assert!(key.len() == 32 && key.bytes().all(|byte| byte.is_ascii_hexdigit()), "{uri}");
    }
    assert_eq!(listed(&session), [first.clone(), second.clone()]);
    assert_eq!(bytes_of(&read(&session, first)), image(5000, 1));
    let answer = read(&session, second);
    assert_eq!(bytes_of(&answer), image(5000, 2));
    let contents = &answer.result()["contents"][0];
    assert_eq!((&contents["uri"], &contents["mimeType"]), (&json!(second), &json!("image/png")));
    assert_eq!(session.send("resources/templates/list", &json!({})).result(), &json!({"resourceTemplates": []}));
    broker.finish();
}

#[test]
fn small_images_stay_and_large_ones_come_back_whole() {
    let broker = start(Backend::session("fixture"));
    let session = Session::new(&broker, "fixture");
    let small = session.call("image", &json!({"bytes": 1000}));
    assert!(small.raw.contains(&STANDARD.encode(image(1000, 1))), "{}", small.raw);
    for bytes in [1001, 49_152, 5 << 20] {
        let uri = take(&session, bytes);
        assert!(bytes_of(&read(&session, &uri)) == image(bytes, 1), "{bytes}");
    }
    broker.finish();
}

#[test]
fn only_the_same_session_can_read() {
    let broker = Setup::new()
        .backend(Backend::session("fixture").policy(RULE))
        .backend(Backend::session("other").policy(RULE))
        .start();
    let [owner, stranger] = [(); 2].map(|()| Session::new(&broker, "fixture"));
    let elsewhere = Session::new(&broker, "other");
    let uri = take(&owner, 2000);
    for session in [&stranger, &elsewhere] {
        check_unknown(&read(session, &uri), &uri, -32002);
        assert!(listed(session).is_empty());
        // With an instance of its own it finds its own alone.
        let own = take(session, 2000);
        check_unknown(&read(session, &uri), &uri, -32002);
        check_unknown(&read(&owner, &own), &own, -32002);
        assert_eq!(listed(session), [own]);
    }
    for guess in [
        "",
        "lazy-mcp://",
        &uri[..uri.len() - 1],
        &format!("{uri}/"),
        &uri.replace("/fixture/", "/fixture/../fixture/"),
    ] {
        check_unknown(&read(&owner, guess), guess, -32002);
    }
    assert_eq!(owner.send("resources/read", &json!({})).error_code(), -32602);
    assert_eq!(listed(&owner), [uri]);
    broker.finish();
}

#[test]
fn all_that_share_an_instance_can_read() {
    let broker = start(Backend::singleton("fixture"));
    let [one, other] = [(); 2].map(|()| Session::new(&broker, "fixture"));
    let uri = take(&one, 2000);
    assert_eq!(bytes_of(&read(&other, &uri)), image(2000, 1));
    broker.finish();
}

/// KiB that a process has had in memory at most since the last time that somebody asked.
fn peak_kib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    std::fs::write(format!("/proc/{pid}/clear_refs"), "5").unwrap();
    peak.trim().trim_end_matches(" kB").parse().unwrap()
}

#[test]
fn reading_takes_memory_for_four_and_not_for_all() {
    let broker = start(Backend::singleton("fixture"));
    let session = Session::new(&broker, "fixture");
    let bytes = 12 << 20;
    let uri = take(&session, bytes);
    assert!(bytes_of(&read(&session, &uri)) == image(bytes, 1));
    peak_kib(broker.pid());
    let rest = peak_kib(broker.pid());
    let request = session.request("resources/read", &json!({"uri": uri}));
    let as_stream = request.clone().header("accept", "text/event-stream");
    let send = |n: usize| broker.http().send(if n.is_multiple_of(2) { &request } else { &as_stream }).body.len();
    std::thread::scope(|scope| {
        let send = &send;
        let reads: Vec<_> = (0..16).map(|n| scope.spawn(move || send(n))).collect();
        assert!(reads.into_iter().all(|len| len.join().unwrap() > bytes / 3 * 4));
    });
    let (took, answer) = (peak_kib(broker.pid()).saturating_sub(rest), bytes as u64 / 3 * 4 / 1024);
    eprintln!("{took} KiB more than at rest, for answers of {answer} KiB");
    // Beside four answers what the allocator keeps for a while of those that are gone.
    assert!(took < 8 * answer, "{took} KiB more than at rest, for answers of {answer} KiB");
    broker.finish();
}

#[test]
fn a_read_that_finds_no_place_is_told_so_and_places_come_back() {
    let broker = start(Backend::singleton("fixture"));
    let session = Session::new(&broker, "fixture");
    // More than sockets take from somebody who does not read on.
    let uri = take(&session, 24 << 20);
    let request = session.request("resources/read", &json!({"uri": uri}));
    let held: Vec<_> = (0..4).map(|_| broker.http().open(&request)).collect();
    assert_eq!(broker.status()["totals"]["resource_reads"], 4);
    assert_eq!(broker.status()["totals"]["resource_reads_max"], 4);
    let refused = read(&session, &uri);
    assert_eq!((refused.response.status, refused.error_code()), (200, -32603), "{}", refused.raw);
    assert!(refused.raw.contains("4 resources are being read already; try again"), "{}", refused.raw);
    // Lists and calls are in nobody's way.
    assert_eq!(listed(&session), [uri.as_str()]);
    drop(held);
    assert!(bytes_of(&read(&session, &uri)) == image(24 << 20, 1));
    wait::until_true("the places to be free", Duration::from_secs(10), || {
        broker.status()["totals"]["resource_reads"] == 0
    });
    broker.finish();
}

#[test]
fn files_go_with_their_generation_and_reading_keeps_nothing_awake() {
    let broker = start(Backend::session("fixture").idle_seconds(1));
    let session = Session::new(&broker, "fixture");
    let uri = take(&session, 2000);
    let (own, kept) = directories(&session);
    assert_eq!((entries(&own), entries(&kept)), (0, 1), "beside the directory of the server, not in it");
    wait::until_true("the instance to stop while it is read from", Duration::from_secs(15), || {
        read(&session, &uri);
        listed(&session);
        broker.live_instances("fixture").is_empty()
    });
    check_unknown(&read(&session, &uri), &uri, -32002);
    assert!(listed(&session).is_empty());
    assert!(!own.exists() && !kept.exists());
    assert_eq!(broker.starts("fixture"), 1, "reading starts nothing");
    let next = take(&session, 2000);
    check_unknown(&read(&session, &uri), &uri, -32002);
    assert_eq!((bytes_of(&read(&session, &next)), broker.starts("fixture")), (image(2000, 1), 2));
    let (_, kept) = directories(&session);
    assert_eq!(entries(&kept), 1);
    assert_eq!(session.delete().status, 204);
    broker.wait_stopped("fixture", Duration::from_secs(10));
    assert!(!kept.exists());
    broker.finish();
}

#[test]
fn what_a_killed_broker_kept_is_removed_by_the_next() {
    let mut broker = start(Backend::session("fixture"));
    let session = Session::new(&broker, "fixture");
    let uri = take(&session, 2000);
    let (own, kept) = directories(&session);
    broker.kill_9();
    broker.restart();
    assert!(!own.exists() && !kept.exists());
    let session = session.at(&broker);
    check_unknown(&read(&session, &uri), &uri, -32002);
    broker.finish();
}

#[test]
fn the_oldest_file_goes_when_there_are_too_many() {
    let broker = start(Backend::session("fixture"));
    let session = Session::new(&broker, "fixture");
    let links = links(&session.call("image", &json!({"bytes": 1001, "count": 70})));
    assert_eq!((links.len(), listed(&session)), (70, links[6..].to_vec()));
    check_unknown(&read(&session, &links[5]), &links[5], -32002);
    assert_eq!(bytes_of(&read(&session, &links[6])), image(1001, 7));
    let usage = &broker.live_instances("fixture")[0]["kept_files"];
    let expected = json!({"files": 64, "files_max": 64, "bytes": 64 * 1001, "bytes_max": 256 << 20, "evicted": 6});
    assert_eq!(usage, &expected);
    assert_eq!(entries(&directories(&session).1), 64);
    broker.finish();
}

#[test]
fn an_image_that_cannot_be_written_does_not_leave() {
    let broker = start(Backend::session("fixture"));
    let session = Session::new(&broker, "fixture");
    let (_, kept) = directories(&session);
    // What a full disk does, without filling one.
    std::fs::write(&kept, "").unwrap();
    let reply = session.call("image", &json!({"bytes": 2000}));
    assert_eq!(
        reply.result()["content"][1],
        json!({"type": "text", "text": "[An image of 2000 bytes was removed by policy, because it could not be kept]"})
    );
    assert!(!reply.raw.contains(&STANDARD.encode(image(30, 1))[..30]), "{}", reply.raw);
    assert!(broker.log().contains("failed to take it out of a result"), "{}", broker.log());
    std::fs::remove_file(&kept).unwrap();
    take(&session, 2000);
    broker.finish();
    assert!(!kept.exists());
}

#[test]
fn resources_are_offered_where_the_policy_makes_some() {
    let broker =
        Setup::new().backend(Backend::singleton("fixture").policy(RULE)).backend(Backend::singleton("plain")).start();
    let capabilities = |backend: &str| {
        let hello = support::mcp::initialize(&format!("/{backend}/mcp"), support::mcp::LEGACY);
        let legacy = Reply::new(broker.http().send(&hello)).result()["capabilities"].clone();
        let modern = Modern::new(&broker, &format!("/{backend}/mcp")).send("server/discover", &json!({}));
        assert_eq!(modern.result()["capabilities"], legacy);
        legacy
    };
    assert_eq!(capabilities("fixture"), json!({"tools": {"listChanged": true}, "resources": {}}));
    assert_eq!(capabilities("plain"), json!({"tools": {"listChanged": true}}));
    let plain = Session::new(&broker, "plain");
    let offering = Session::new(&broker, "fixture");
    assert!(listed(&offering).is_empty());
    for method in ["resources/list", "resources/read", "resources/templates/list"] {
        assert_eq!(plain.send(method, &json!({"uri": "x"})).error_code(), -32601);
    }
    assert_eq!(offering.send("resources/subscribe", &json!({"uri": "x"})).error_code(), -32601);
    assert_eq!(offering.send("resources/list", &json!({"cursor": "x"})).error_code(), -32602);
    broker.assert_nothing_runs();
    broker.finish();
}

#[test]
fn modern_clients_read_by_their_scope_key() {
    let broker = start(Backend::session("fixture"));
    let [own, other] = ["one", "two"].map(|key| Modern::new(&broker, &format!("/fixture/s/{key}/mcp")));
    let uri = links(&own.call("image", &json!({"bytes": 2000}))).remove(0);
    let params = json!({"uri": uri});
    let answer = own.send("resources/read", &params);
    assert_eq!(bytes_of(&answer), image(2000, 1));
    let lists = ["resources/list", "resources/templates/list"].map(|list| own.send(list, &json!({})));
    // Templates are those of the catalog, which are everybody's.
    for (answer, scope) in [(&answer, "private"), (&lists[0], "private"), (&lists[1], "public")] {
        let result = answer.result();
        assert_eq!((&result["resultType"], &result["cacheScope"]), (&json!("complete"), &json!(scope)), "{result}");
        assert!(result["ttlMs"].is_u64(), "{result}");
    }
    assert_eq!(own.send("resources/list", &json!({})).result()["resources"][0]["uri"], json!(uri));
    // The older code must not be used any more (2026-07-28, `basic`, Error codes).
    check_unknown(&other.send("resources/read", &params), &uri, -32602);
    let mismatch = |request: Request| Reply::new(broker.http().send(&request)).error_code();
    assert_eq!(mismatch(own.request("resources/read", &params).without("mcp-name")), -32020);
    assert_eq!(mismatch(own.request("resources/read", &params).header("mcp-name", "x")), -32020);
    broker.finish();
}

#[test]
fn a_structure_that_fits_no_more_is_taken_out() {
    let redact = |keys: &str| format!("results = {{ broker.redact_keys {{ keys = {{ {keys} }} }} }},");
    let broker = Setup::new()
        .backend(Backend::singleton("fits").policy(&redact("\"label\"")))
        .backend(Backend::singleton("breaks").policy(&redact("\"count\"")))
        .start();
    let reply = Session::new(&broker, "fits").call("structured", &json!({"count": 3}));
    assert_eq!(reply.result()["structuredContent"], json!({"count": 3, "label": "[redacted]"}));
    assert_eq!(reply.result().get("isError"), None);
    let reply = Session::new(&broker, "breaks").call("structured", &json!({"count": 3}));
    assert_eq!(reply.refusal(), "policy_failed");
    assert_eq!(reply.result().get("structuredContent"), None);
    assert!(reply.text().starts_with("The tool ran. Its structured result was taken out"), "{}", reply.raw);
    assert!(reply.raw.contains(r#""x":1e2"#) && reply.raw.contains(r#"{"type":"text","text":"c\u0061fé"}]"#));
    let modern = Modern::new(&broker, "/breaks/mcp").call("structured", &json!({}));
    assert_eq!((modern.refusal(), &modern.result()["resultType"]), ("policy_failed", &json!("complete")));
    broker.finish();
}
