//! What a legacy client gets that loses its connection in the middle of a call and comes back with `Last-Event-ID`.

#[path = "resume/proxy.rs"]
mod proxy;
mod support;

use std::io::{BufRead as _, BufReader, ErrorKind};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use proxy::Proxy;
use serde_json::{Value, json};
use support::http::{Body, Events, Frame};
use support::wait::until_true;
use support::{Backend, Broker, Request, Session, Setup, run};

/// What happens at once, on a busy machine.
const SOON: Duration = Duration::from_secs(15);

fn broker() -> Broker {
    Setup::new().backend(Backend::session("fixture")).start()
}

/// A call's stream, with the ids of its events.
struct Stream(Events<BufReader<Body>>);

impl Stream {
    #[track_caller]
    fn open(session: &Session, request: &Request) -> Self {
        let exchange = session.http.open(request);
        assert_eq!((exchange.status(), exchange.header("content-type")), (200, Some("text/event-stream")));
        Self(exchange.events(SOON))
    }

    /// `sleep`, which tells of its progress so many times.
    #[track_caller]
    fn of_sleep(session: &Session, ms: u64, progress: u64) -> Self {
        Self::open(session, &sleep(session, ms, progress))
    }

    #[track_caller]
    fn resumed(session: &Session, id: &str) -> Self {
        Self::open(session, &resume(session, id))
    }

    /// The next event, comments skipped: its id and what it says in short. `None` at the end.
    #[track_caller]
    fn next(&mut self) -> Option<(String, String)> {
        loop {
            match self.0.next() {
                Ok(Some(Frame::Event { id, data, .. })) => return Some((id.unwrap_or_default(), said(&data))),
                Ok(Some(Frame::Comment(_))) => {}
                Ok(None) => return None,
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => return None,
                Err(error) => panic!("no event in time: {error}"),
            }
        }
    }

    /// Reads up to the event that says `last`, and returns its id.
    #[track_caller]
    fn read_to(&mut self, last: &str) -> String {
        loop {
            let (id, said) = self.next().unwrap_or_else(|| panic!("the stream ended before {last}"));
            if said == last {
                return id;
            }
        }
    }

    /// What is said to the end.
    #[track_caller]
    fn rest(mut self) -> Vec<String> {
        std::iter::from_fn(|| self.next()).map(|(_, said)| said).filter(|said| !said.is_empty()).collect()
    }
}

fn sleep(session: &Session, ms: u64, progress: u64) -> Request {
    let meta = json!({"progressToken": "mine"});
    let params = json!({"name": "sleep", "arguments": {"ms": ms, "progress": progress}, "_meta": meta});
    session.request("tools/call", &params)
}

fn resume(session: &Session, id: &str) -> Request {
    session.listen().header("last-event-id", id)
}

/// `1` for progress, `=slept` for a result, the method of anything else.
fn said(data: &str) -> String {
    let Ok(message) = serde_json::from_str::<Value>(data) else { return data.to_owned() };
    match (&message["params"]["progress"], &message["result"]["content"][0]["text"]) {
        (Value::Number(progress), _) => progress.to_string(),
        (_, Value::String(text)) => format!("={text}"),
        _ => message["method"].as_str().unwrap_or(data).to_owned(),
    }
}

/// As many numbers as there are from `first` on, then the result of `sleep`.
fn numbers(first: u64, last: u64) -> Vec<String> {
    (first..=last).map(|number| number.to_string()).chain(["=slept".to_owned()]).collect()
}

fn wait_until_ended(broker: &Broker) {
    until_true("the call to end", SOON, || broker.status()["totals"]["active_calls"] == 0);
}

fn wait_until_left(broker: &Broker, streams: u64) {
    until_true("the streams to be left", SOON, || broker.status()["totals"]["resumable_streams"] == streams);
}

#[test]
fn a_call_that_ended_meanwhile_is_told_to_its_end() {
    let broker = broker();
    let session = Session::new(&broker, "fixture");
    let mut stream = Stream::of_sleep(&session, 900, 4);
    let id = stream.read_to("2");
    drop(stream);
    wait_until_ended(&broker);
    let again = Stream::resumed(&session, &id);
    assert_eq!(again.rest(), numbers(3, 4));
    // Whoever loses that connection too asks again from where it is.
    assert_eq!(Stream::resumed(&session, &id).rest(), numbers(3, 4));
    broker.finish();
}

#[test]
fn a_call_that_goes_on_is_followed_to_its_end() {
    let broker = broker();
    let session = Session::new(&broker, "fixture");
    let mut stream = Stream::of_sleep(&session, 2000, 9);
    let mut read = Vec::new();
    // The connection breaks three times.
    for _ in 0..3 {
        let mut id = String::new();
        while read.len() % 3 != 2 || id.is_empty() {
            let (next, said) = stream.next().expect("the call goes on");
            id = next;
            if !said.is_empty() {
                read.push(said);
            }
        }
        drop(stream);
        stream = Stream::resumed(&session, &id);
        let (_, said) = stream.next().expect("the call goes on");
        if !said.is_empty() {
            read.push(said);
        }
    }
    read.extend(stream.rest());
    assert_eq!(read, numbers(1, 9));
    assert_eq!(broker.count("fixture", "call", "sleep"), 1, "nothing was sent twice");
    broker.finish();
}

#[test]
fn a_client_that_comes_back_before_its_loss_is_noticed_reads_alone() {
    let broker = broker();
    let session = Session::new(&broker, "fixture");
    let mut first = Stream::of_sleep(&session, 1500, 5);
    let id = first.read_to("1");
    let second = Stream::resumed(&session, &id);
    let (first, second) = (first.rest(), second.rest());
    assert_eq!(second, numbers(2, 5));
    assert!(!first.contains(&"=slept".to_owned()), "the result came twice: {first:?}");
    broker.finish();
}

#[test]
fn a_stream_is_replayed_without_what_another_said() {
    let broker = broker();
    let session = Session::new(&broker, "fixture");
    let (mut one, mut other) = (Stream::of_sleep(&session, 600, 3), Stream::of_sleep(&session, 600, 5));
    let ids = (one.read_to("1"), other.read_to("1"));
    assert_ne!(ids.0, ids.1);
    drop((one, other));
    wait_until_ended(&broker);
    assert_eq!(Stream::resumed(&session, &ids.1).rest(), numbers(2, 5));
    assert_eq!(Stream::resumed(&session, &ids.0).rest(), numbers(2, 3));
    broker.finish();
}

#[test]
fn another_sessions_id_gets_nothing() {
    let broker = broker();
    let (session, other) = (Session::new(&broker, "fixture"), Session::new(&broker, "fixture"));
    let mut stream = Stream::of_sleep(&session, 500, 2);
    let id = stream.read_to("1");
    drop(stream);
    wait_until_ended(&broker);
    let refused = broker.http().send(&resume(&other, &id));
    assert_eq!((refused.status, refused.header("allow")), (405, Some("POST, DELETE")), "{}", refused.text());
    assert_eq!(Stream::resumed(&session, &id).rest(), numbers(2, 2), "and takes nothing away");
    broker.finish();
}

#[test]
fn of_more_than_is_kept_the_newest_and_the_result_are_told() {
    let broker = broker();
    let session = Session::new(&broker, "fixture");
    let mut stream = Stream::of_sleep(&session, 1500, 150);
    let id = stream.read_to("1");
    drop(stream);
    wait_until_ended(&broker);
    let mut again = session.http.open(&resume(&session, &id)).events(SOON);
    let mut comments = Vec::new();
    let mut events = Vec::new();
    while let Ok(Some(frame)) = again.next() {
        match frame {
            Frame::Comment(comment) => comments.push(comment),
            Frame::Event { data, .. } => events.push(said(&data)),
        }
    }
    let events: Vec<String> = events.into_iter().filter(|said| !said.is_empty()).collect();
    assert_eq!(events, numbers(88, 150), "64 with the result");
    assert_eq!(comments, ["86 messages were not kept"]);
    broker.finish();
}

#[test]
fn one_who_reads_loses_nothing_however_much_it_is() {
    let broker = broker();
    let session = Session::new(&broker, "fixture");
    assert_eq!(Stream::of_sleep(&session, 500, 500).rest(), numbers(1, 500));
    broker.finish();
}

#[test]
fn an_id_that_nobody_knows_is_no_stream_of_a_call_and_a_new_one_for_news() {
    let broker = broker();
    let session = Session::new(&broker, "fixture");
    // Of a call before the broker's restart, and of a stream for news: clients hold that open for good.
    assert_eq!(broker.http().send(&resume(&session, "c1-1")).status, 405);
    for id in ["g1-1", "of another server", ""] {
        let mut events = broker.http().open(&resume(&session, id)).events(SOON);
        assert!(matches!(events.next(), Ok(Some(Frame::Comment(_)))), "{id}");
    }
    broker.assert_nothing_runs();
    broker.finish();
}

#[test]
fn a_call_that_was_told_whole_has_nothing_more() {
    let broker = broker();
    let session = Session::new(&broker, "fixture");
    let mut stream = Stream::of_sleep(&session, 50, 1);
    let id = stream.read_to("=slept");
    assert_eq!(stream.next(), None);
    // The TypeScript SDK asks so after each stream that ended in an error.
    assert_eq!(broker.http().send(&resume(&session, &id)).status, 405);
    broker.finish();
}

#[test]
fn streams_begin_with_an_id_where_the_version_knows_that() {
    let broker = broker();
    for (version, primed) in [("2025-11-25", true), ("2025-06-18", false), ("2025-03-26", false)] {
        let session = Session::initialize(&broker, "fixture", version);
        let mut stream = Stream::of_sleep(&session, 50, 1);
        let events: Vec<_> = std::iter::from_fn(|| stream.next()).collect();
        let (first, messages) = events.split_at(events.len() - 2);
        let said: Vec<&str> = messages.iter().map(|(_, said)| said.as_str()).collect();
        assert_eq!(said, ["1", "=slept"]);
        assert_eq!(first.len(), usize::from(primed), "{version}: {events:?}");
        assert!(first.iter().all(|(id, said)| id.ends_with("-0") && said.is_empty()), "{events:?}");
        let mut ids: Vec<&String> = events.iter().map(|(id, _)| id).collect();
        ids.dedup();
        assert!(ids.len() == events.len() && ids.iter().all(|id| !id.is_empty()), "{version}: {events:?}");
        // From the id that was there first, all of the call comes.
        let stream = Stream::resumed(&session, &ids[0].replace("-1", "-0"));
        assert_eq!(stream.rest(), numbers(1, 1), "{version}");
    }
    broker.finish();
}

#[test]
fn a_question_on_the_lost_stream_is_asked_again_and_answered() {
    let broker = broker();
    let session = Session::new(&broker, "fixture");
    let request = session.call_request("ask_client", &json!({"method": "elicitation/create"}));
    let mut stream = Stream::open(&session, &request);
    let (primer, nothing) = stream.next().unwrap();
    assert_eq!(nothing, "");
    drop(stream);
    wait_until_left(&broker, 1);
    let mut again = session.http.open(&resume(&session, &primer)).events(SOON);
    let question = again.message();
    assert_eq!(question["method"], "elicitation/create");
    let answer = json!({"jsonrpc": "2.0", "id": question["id"], "result": {"action": "decline"}});
    assert_eq!(session.http.send(&session.post(answer.to_string())).status, 202);
    let result = again.message()["result"]["content"][0]["text"].to_string();
    assert!(result.contains("decline"), "{result}");
    broker.finish();
}

#[test]
fn what_a_listener_may_have_missed_is_told_again() {
    let backend = Backend::session("fixture").policy("tools = { exclude = { \"odd\" } },");
    let broker = Setup::new().backend(backend).start();
    let session = Session::new(&broker, "fixture");
    let mut listening = session.http.open(&session.listen()).events(SOON);
    assert!(matches!(listening.next(), Ok(Some(Frame::Comment(_)))));
    let policy = broker.dir().join("policies/fixture.lua");
    let ids = [("odd", "pid"), ("pid", "env")].map(|(excluded, instead)| {
        let text = std::fs::read_to_string(&policy).unwrap();
        std::fs::write(&policy, text.replace(&format!("\"{excluded}\""), &format!("\"{instead}\""))).unwrap();
        broker.hang_up();
        match listening.next() {
            Ok(Some(Frame::Event { id: Some(id), data, .. })) if said(&data).ends_with("tools/list_changed") => id,
            other => panic!("the list is another: {other:?}"),
        }
    });
    let again = session.http.open(&resume(&session, &ids[0]));
    assert_eq!(again.status(), 200);
    let mut again = Stream(again.events(SOON));
    assert_eq!(again.read_to("notifications/tools/list_changed"), ids[1]);
    assert!(!matches!(listening.next(), Ok(Some(_))), "who comes back listens alone");
    broker.finish();
}

#[test]
fn what_is_told_again_is_what_the_rules_left() {
    let rules = "results = { broker.redact_keys { keys = { \"x-first\" } }, broker.redact_text { pattern = \"slept\", replace_with = \"[gone]\" } },";
    let broker = Setup::new().backend(Backend::session("fixture").policy(rules)).start();
    let session = Session::new(&broker, "fixture");
    let mut stream = session.http.open(&sleep(&session, 600, 3)).events(SOON);
    let Ok(Some(Frame::Event { id: Some(id), .. })) = stream.next() else { panic!("not primed") };
    drop(stream);
    wait_until_left(&broker, 1);
    wait_until_ended(&broker);
    let answer = broker.http().send(&resume(&session, &id));
    assert_eq!(answer.text().matches(r#""x-first":"[redacted]""#).count(), 3, "{}", answer.text());
    assert!(answer.text().contains("[gone]") && !answer.text().contains("slept"), "{}", answer.text());
    broker.finish();
}

#[test]
fn a_session_that_is_deleted_takes_everything_along() {
    let broker = broker();
    let session = Session::new(&broker, "fixture");
    let mut ended = Stream::of_sleep(&session, 50, 1);
    ended.read_to("=slept");
    drop(ended);
    let mut goes_on = Stream::of_sleep(&session, 20_000, 100);
    let id = goes_on.read_to("1");
    drop(goes_on);
    wait_until_left(&broker, 2);
    assert!(broker.status()["totals"]["resumable_bytes"].as_u64() > Some(0));
    assert_eq!(session.delete().status, 204);
    let totals = broker.status()["totals"].clone();
    assert_eq!((&totals["resumable_streams"], &totals["resumable_bytes"]), (&json!(0), &json!(0)));
    assert_eq!(broker.http().send(&resume(&session, &id)).status, 404);
    broker.wait_stopped("fixture", SOON);
    broker.finish();
}

#[test]
fn a_client_that_does_not_come_back_keeps_nothing_awake() {
    let backend = Backend::session("fixture").idle_seconds(1).call_seconds(2);
    let broker = Setup::new().backend(backend).start();
    let session = Session::new(&broker, "fixture");
    let mut stream = Stream::of_sleep(&session, 20_000, 100);
    let id = stream.read_to("1");
    drop(stream);
    let begin = Instant::now();
    // The deadline of the call, the idle time, the stop.
    broker.wait_stopped("fixture", SOON);
    assert!(begin.elapsed() < Duration::from_secs(12), "{:?}", begin.elapsed());
    let rest = Stream::resumed(&session, &id).rest();
    assert!(rest.last().is_some_and(|said| said.contains("did not")), "it is told of the deadline: {rest:?}");
    broker.assert_nothing_runs();
    broker.finish();
}

#[test]
fn lost_clients_hold_up_no_shutdown() {
    let mut broker = Setup::new().backend(Backend::session("fixture")).drain_seconds(1).start();
    let session = Session::new(&broker, "fixture");
    for _ in 0..3 {
        Stream::of_sleep(&session, 20_000, 200).read_to("1");
    }
    wait_until_left(&broker, 3);
    let followed = Stream::of_sleep(&session, 20_000, 200).read_to("1");
    let mut followed = Stream::resumed(&session, &followed);
    let begin = Instant::now();
    assert!(broker.terminate().success(), "{}", broker.log());
    assert!(begin.elapsed() < Duration::from_secs(8), "{:?}", begin.elapsed());
    let mut last = String::new();
    while let Some((_, said)) = followed.next() {
        last = said;
    }
    assert!(last.starts_with('='), "who reads is told the end: {last}");
    broker.assert_nothing_left("its end", Duration::from_millis(100));
}

#[test]
fn an_answer_in_json_is_kept_nowhere() {
    let broker = broker();
    let session = Session::new(&broker, "fixture");
    let answer = session.call("echo", &json!({"text": "plain"})).response;
    assert_eq!(answer.header("content-type"), Some("application/json"));
    let vanished = broker.http().start(&session.call_request("cancellable", &json!({"ms": 300}))).unwrap();
    broker.wait_event("fixture", "call", "cancellable");
    drop(vanished);
    broker.wait_event("fixture", "answered", "cancellable");
    assert_eq!(broker.status()["totals"]["resumable_streams"], 0);
    broker.finish();
}

/// Where the TypeScript SDK is, if it was installed: for the end-to-end tests, or with the conformance suite.
fn sdk() -> Option<PathBuf> {
    let folders = ["npm", "conformance"].into_iter();
    let sdks = folders.map(|folder| run::deps().map(|deps| deps.join(folder)));
    sdks.flatten().map(|folder| folder.join("node_modules/@modelcontextprotocol/sdk")).find(|sdk| sdk.is_dir())
}

#[test]
fn the_typescript_sdk_gets_its_result_over_a_connection_that_breaks() {
    let Some(sdk) = sdk() else { return run::skipped("the TypeScript SDK is not installed") };
    let broker = broker();
    let proxy = Proxy::before(broker.http().0);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/resume/client.mjs");
    let mut client = Command::new("node")
        .args([&script, &sdk])
        .args([&format!("http://{}/fixture/mcp", proxy.address), "sleep", r#"{"ms":5000,"progress":9}"#])
        .stdout(Stdio::piped())
        .spawn()
        .expect("node runs");
    let lines = BufReader::new(client.stdout.take().expect("piped")).lines().map_while(Result::ok);
    let mut told = Vec::new();
    let mut cuts = Vec::new();
    for line in lines {
        let line: Value = serde_json::from_str(&line).unwrap();
        if line["progress"] == 2 || line["progress"] == 6 {
            cuts.push(proxy.cut());
        }
        told.push(line);
    }
    client.wait().expect("it is our child");
    let mut expected: Vec<Value> = (1..=9).map(|n| json!({"progress": n})).collect();
    expected.push(json!({"result": "slept"}));
    assert_eq!(told, expected);
    assert!(cuts.iter().all(|cut| *cut > 0) && cuts.len() == 2, "{cuts:?}");
    assert_eq!(broker.count("fixture", "call", "sleep"), 1, "nothing was sent twice");
    broker.finish();
}
