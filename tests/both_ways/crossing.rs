//! Many at the same time: nothing goes to the wrong one, and nobody waits for another.

use std::io::BufReader;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use crate::support::http::{Body, Connection, Events};
use crate::support::wait::until;
use crate::support::{Backend, Reply, Session, Setup};
use crate::{SOON, all_of, answering, logged, private, saying, settle, shared, updated};

/// Connections of one session, each with one request out at a time.
const WORKERS: usize = 8;
const CALLS: usize = 10_000;

/// Each of its requests names the session in what it asks for, and the server repeats it in everything that it says of
/// the request, so that whatever comes to another session is seen.
fn work(session: &Session, name: &str, worker: usize) {
    let other = if name == "one" { "two" } else { "one" };
    let mut connection = Connection::open(session.http).expect("the broker listens");
    for n in 0..CALLS / 2 / WORKERS {
        // Both sessions use the same ids, which are also their progress tokens.
        let id = worker * CALLS + n;
        let mark = format!("{name}-{id}");
        let request = |method: &str, mut params: Value| {
            params["_meta"] = json!({"progressToken": id});
            session.post(json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).to_string())
        };
        let (request, notices) = match n % 5 {
            0 => (request("tools/call", json!({"name": "echo", "arguments": {"text": mark}})), 0),
            1 => (request("resources/read", json!({"uri": format!("fixture://item/{mark}")})), 0),
            2 => (request("prompts/get", json!({"name": "greet", "arguments": {"who": mark}})), 0),
            3 => {
                let progress = |n| {
                    format!(
                        r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"progressToken":$TOKEN,"progress":{n},"message":"{mark}"}}}}"#
                    )
                };
                let lines = [progress(1), logged("info", &mark), progress(2), answering(&mark)];
                (session.post(saying(&json!(id), &lines)), 2)
            }
            _ => {
                let lines =
                    [updated(&format!("fixture://item/{name}")), updated("fixture://item/nobody"), answering(&mark)];
                (session.post(saying(&json!(id), &lines)), 0)
            }
        };
        let reply = Reply::new(connection.send(&request).expect("an answer"));
        assert_eq!(reply.json()["id"], id, "{}", reply.raw);
        assert!(
            reply.raw.contains(&format!("\"{mark}\"")) || reply.raw.contains(&format!("/{mark}\"")),
            "{}",
            reply.raw
        );
        let progress: Vec<&String> = reply.before.iter().filter(|line| line.contains("progressToken")).collect();
        assert_eq!(progress.len(), notices, "{:?}", reply.before);
        assert!(progress.iter().all(|line| line.contains(&format!("\"{mark}\""))), "{progress:?}");
        // Log messages come to a session that alone has used the server; then they are about one of its calls.
        assert!(reply.before.iter().all(|line| !line.contains(other)), "{:?}", reply.before);
    }
}

#[test]
fn two_sessions_with_the_same_ids_and_tokens_do_not_cross() {
    let broker = shared();
    let sessions = [("one", Session::new(&broker, "fixture")), ("two", Session::new(&broker, "fixture"))];
    for (name, session) in &sessions {
        session.send("resources/subscribe", &json!({"uri": format!("fixture://item/{name}")})).result();
    }
    let begin = Instant::now();
    std::thread::scope(|scope| {
        for (name, session) in &sessions {
            scope.spawn(move || {
                let mut stream = session.hear();
                let changes = (0..CALLS / 2 / WORKERS).filter(|n| n % 5 == 4).count() * WORKERS;
                let expected = updated(&format!("fixture://item/{name}"));
                (0..changes).for_each(|_| assert_eq!(stream.data(), expected));
            });
            for worker in 0..WORKERS {
                scope.spawn(move || work(session, name, worker));
            }
        }
    });
    println!("{CALLS} requests of two sessions in {:?}", begin.elapsed());
    assert!(begin.elapsed() < Duration::from_secs(30), "{:?}", begin.elapsed());
    assert_eq!(broker.starts("fixture"), 1);
    broker.finish();
}

const CANCELLED: usize = 15;

#[test]
fn a_cancellation_reaches_the_server_soon_and_with_its_own_id() {
    let broker = Setup::new()
        .backend(all_of(Backend::singleton("fixture")).policy("on_cancel = { action = \"keep\" },"))
        .start();
    let session = Session::new(&broker, "fixture");
    let mut took = Vec::new();
    // Fewer than may be out at the same time: a server that was told does not answer any more.
    for n in 0..CANCELLED {
        // Ids of clients are not the server's; the number of another call would be.
        let id = if n % 2 == 0 { json!(1) } else { json!("1") };
        let body = json!({"jsonrpc": "2.0", "id": id, "method": "tools/call",
                          "params": {"name": "cancellable", "arguments": {"ms": 20_000}}});
        let call = session.http.send_aside(&session.post(body.to_string()));
        until("the call to be read", SOON, || (broker.count("fixture", "call", "cancellable") > n).then_some(()));
        let line = broker.lines("fixture").into_iter().rfind(|line| line.contains("cancellable")).unwrap();
        let own = serde_json::from_str::<Value>(&line).unwrap()["id"].to_string();
        let sent_at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis();
        session.notify("notifications/cancelled", &json!({"requestId": id}));
        let event = until("the cancellation to be read", SOON, || {
            broker.events("fixture").into_iter().filter(|event| event.event == "cancelled").nth(n)
        });
        assert_eq!(event.detail, own);
        assert_eq!(Reply::new(call.join().unwrap()).refusal(), "cancelled");
        took.push(u128::from(event.at_ms).saturating_sub(sent_at));
    }
    took.sort_unstable();
    let most = took[CANCELLED - 1];
    println!("a cancellation took {} ms in the median, at most {most} ms", took[CANCELLED / 2]);
    assert!(most < 2000, "{took:?}");
    broker.finish();
}

/// KiB that a process has in memory.
fn resident_kib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("it has memory");
    resident.trim().trim_end_matches(" kB").parse().expect("a number")
}

/// Sizes of what a client does not read: more than sockets and queues hold, a part at a time less than a queue does.
const ROUNDS: usize = 60;
const ROUND: usize = 200;
const PADDING: usize = 4000;

fn flood(session: &Session, line: &str) -> Reply {
    session.call("flood", &json!({"count": ROUND, "bytes": PADDING, "line": line}))
}

fn changed() -> String {
    let params = json!({"uri": "fixture://a", "n": "$N", "x": "$PAD"});
    json!({"jsonrpc": "2.0", "method": "notifications/resources/updated", "params": params}).to_string()
}

/// What is left on a stream, to its end.
#[track_caller]
fn rest(stream: &mut Events<BufReader<Body>>) -> Vec<String> {
    std::iter::from_fn(|| stream.data_or_end().expect("the stream ends in time")).collect()
}

#[test]
fn who_does_not_read_its_stream_delays_nobody_and_loses_it() {
    let broker = shared();
    let (stalled, reading) = (Session::new(&broker, "fixture"), Session::new(&broker, "fixture"));
    for session in [&stalled, &reading] {
        session.send("resources/subscribe", &json!({"uri": "fixture://a"})).result();
    }
    let (mut unread, mut read) = (stalled.hear(), reading.hear());
    settle(&reading);
    let mut slowest = Duration::ZERO;
    let mut before = 0;
    for round in 0..ROUNDS {
        assert_eq!(flood(&reading, &changed()).text(), "flooded");
        for n in 0..ROUND {
            assert_eq!(read.message()["params"]["n"], n.to_string());
        }
        // Its other requests are not held up either.
        for session in [&stalled, &reading] {
            let begin = Instant::now();
            settle(session);
            slowest = slowest.max(begin.elapsed());
        }
        if round == ROUNDS / 2 {
            before = resident_kib(broker.pid());
        }
    }
    let grown = resident_kib(broker.pid()).saturating_sub(before);
    println!("slowest call {slowest:?}; {grown} KiB more in the second half");
    assert!(slowest < Duration::from_secs(2), "{slowest:?}");
    assert!(grown < 8192, "{grown} KiB");
    let told = rest(&mut unread);
    assert!(told.len() < ROUNDS * ROUND, "all {} were kept for it", told.len());
    let first = serde_json::from_str::<Value>(&told[0]).unwrap();
    assert_eq!(first["params"]["n"], "0", "what was told before is in order");
    // A new stream hears what is said from then on.
    let mut again = stalled.hear();
    settle(&stalled);
    let line = json!({"jsonrpc": "2.0", "method": "notifications/resources/updated",
                      "params": {"uri": "fixture://a", "n": "last"}});
    reading.send_raw(&saying(&json!(1), &[line.to_string(), answering("done")]));
    until("what was said last", SOON, || (again.message()["params"]["n"] == "last").then_some(()));
    broker.finish();
}

#[test]
fn who_does_not_read_the_stream_of_a_call_delays_nobody_and_gets_its_answer() {
    let broker = private();
    let session = Session::new(&broker, "fixture");
    settle(&session);
    let line = logged("info", "$N $PAD");
    let params = json!({"name": "flood", "arguments": {"count": ROUNDS * ROUND, "bytes": PADDING, "line": line}});
    let body = json!({"jsonrpc": "2.0", "id": "slow", "method": "tools/call", "params": params});
    let before = resident_kib(broker.pid());
    let mut unread = session.stream(body.to_string());
    let mut slowest = Duration::ZERO;
    for _ in 0..50 {
        let begin = Instant::now();
        // Newer than the stalled one, so that it is told what the server says meanwhile.
        session.send("resources/read", &json!({"uri": "fixture://a"})).result();
        slowest = slowest.max(begin.elapsed());
    }
    until("the flood to end", SOON, || (broker.backend_status("fixture")["instances"][0]["active"] == 0).then_some(()));
    let grown = resident_kib(broker.pid()).saturating_sub(before);
    println!("slowest call {slowest:?}; {grown} KiB more");
    assert!(slowest < Duration::from_secs(2), "{slowest:?}");
    assert!(grown < 24 << 10, "{grown} KiB");
    let told = rest(&mut unread);
    assert!(told.len() < ROUNDS * ROUND, "all {} were kept for it", told.len());
    let last = serde_json::from_str::<Value>(told.last().unwrap()).unwrap();
    assert_eq!((&last["id"], &last["result"]["content"][0]["text"]), (&json!("slow"), &json!("flooded")));
    broker.finish();
}

#[test]
fn who_reads_gets_all_of_a_burst() {
    let broker = private();
    let session = Session::new(&broker, "fixture");
    // More than may wait for it.
    let count = 2000;
    for bytes in [0, 1000] {
        let arguments = json!({"count": count, "bytes": bytes, "line": logged("info", "$N $PAD")});
        let told = session.call("flood", &arguments).before;
        assert_eq!(told.len(), count);
        for (n, message) in told.iter().enumerate() {
            assert!(message.contains(&format!(r#""data":"{n} "#)), "{n}: {message}");
        }
    }
    broker.finish();
}
