//! The rules of a policy apply to everything that a server says, not to results of tools alone.

use serde_json::{Value, json};

use crate::support::{Backend, Broker, Session, Setup};
use crate::{all_of, answering, logged, reply, saying, settle};

/// Once as it is, and once in other letters.
const SECRETS: &str = r"secret-17, s\u0065cret-4";

fn broker() -> Broker {
    let rules = "results = { broker.redact_text { pattern = [[secret-\\d+]], replace_with = \"[gone]\" } },";
    Setup::new().backend(all_of(Backend::session("fixture")).policy(rules)).start()
}

#[track_caller]
fn check(message: &str, expected_at: &str) {
    let value: Value = serde_json::from_str(message).expect("JSON");
    assert!(!message.contains("ecret-"), "{message}");
    assert_eq!(value.pointer(expected_at), Some(&json!("[gone], [gone]")), "{message}");
}

#[test]
fn answers_to_requests_of_every_kind() {
    let broker = broker();
    let session = Session::new(&broker, "fixture");
    let text = format!(r#"{{"jsonrpc":"2.0","id":$ID,"result":{{"content":[{{"type":"text","text":"{SECRETS}"}}]}}}}"#);
    let prompt = format!(
        r#"{{"jsonrpc":"2.0","id":$ID,"result":{{"messages":[{{"role":"user","content":{{"type":"text","text":"{SECRETS}"}}}}]}}}}"#
    );
    let resource =
        format!(r#"{{"jsonrpc":"2.0","id":$ID,"result":{{"contents":[{{"uri":"fixture://a","text":"{SECRETS}"}}]}}}}"#);
    let values = format!(r#"{{"jsonrpc":"2.0","id":$ID,"result":{{"completion":{{"values":["{SECRETS}"]}}}}}}"#);
    let error = format!(
        r#"{{"jsonrpc":"2.0","id":$ID,"error":{{"code":-1,"message":"{SECRETS}","data":{{"x":"{SECRETS}"}}}}}}"#
    );
    for (method, params, line, at) in [
        ("tools/call", json!({"name": "echo"}), text, "/result/content/0/text"),
        ("prompts/get", json!({"name": "greet"}), prompt, "/result/messages/0/content/text"),
        ("resources/read", json!({"uri": "fixture://a"}), resource, "/result/contents/0/text"),
        (
            "completion/complete",
            json!({"ref": {"type": "ref/prompt", "name": "greet"}}),
            values.clone(),
            "/result/completion/values/0",
        ),
        ("vendor/method", json!({}), values, "/result/completion/values/0"),
    ] {
        let say = |line: &str| {
            let mut params = params.clone();
            params["x-say"] = json!([line]);
            session.send(method, &params).raw
        };
        check(&say(&line), at);
        let failed = say(&error);
        check(&failed, "/error/message");
        check(&failed, "/error/data/x");
    }
    for method in ["resources/subscribe", "resources/unsubscribe"] {
        let refused = session.send(method, &json!({"uri": "fixture://a", "x-say": [error]}));
        // That somebody does not want to hear any more cannot be refused.
        if method == "resources/subscribe" {
            check(&refused.raw, "/error/message");
            check(&refused.raw, "/error/data/x");
        }
    }
    broker.finish();
}

#[test]
fn notifications_and_questions_in_calls_and_outside() {
    let broker = broker();
    let session = Session::new(&broker, "fixture");
    session.send("resources/subscribe", &json!({"uri": "fixture://a"}));
    let secret: Value = serde_json::from_str(&format!("\"{SECRETS}\"")).unwrap();
    let said = [
        (logged("info", "SECRETS"), "/params/data"),
        (
            r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":$TOKEN,"progress":1,"message":"SECRETS"}}"#.to_owned(),
            "/params/message",
        ),
        (r#"{"jsonrpc":"2.0","method":"notifications/vendor","params":{"x":["SECRETS"]}}"#.to_owned(), "/params/x/0"),
        (r#"{"jsonrpc":"2.0","method":"notifications/vendor","params":["SECRETS"]}"#.to_owned(), "/params/0"),
        (
            r#"{"jsonrpc":"2.0","id":"q","method":"sampling/createMessage","params":{"systemPrompt":"SECRETS"}}"#.to_owned(),
            "/params/systemPrompt",
        ),
        (
            r#"{"jsonrpc":"2.0","id":"q2","method":"elicitation/create","params":{"message":"SECRETS","requestedSchema":{}}}"#.to_owned(),
            "/params/message",
        ),
        (r#"{"jsonrpc":"2.0","id":"q3","method":"roots/list","params":{"x":"SECRETS"}}"#.to_owned(), "/params/x"),
    ];
    let changed = (
        r#"{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"fixture://a","title":"SECRETS"}}"#,
        "/params/title",
    );
    let lines =
        |said: &[(String, &str)]| said.iter().map(|(line, _)| line.replace("SECRETS", SECRETS)).collect::<Vec<_>>();
    let mut in_call = lines(&said);
    in_call.push(answering("done"));
    let told = session.send_raw(&saying(&json!(1), &in_call)).before;
    assert_eq!(told.len(), said.len());
    for (message, (_, at)) in told.iter().zip(&said) {
        check(message, at);
    }
    let outside: Vec<(String, &str)> = said
        .into_iter()
        .filter(|(line, _)| !line.contains("$TOKEN"))
        .chain([(changed.0.to_owned(), changed.1)])
        .collect();
    let mut behind = vec![answering("done")];
    behind.extend(lines(&outside));
    // Once on a stream that is open, and once on the first of those that wait for the next call.
    let mut stream = session.hear();
    session.send_raw(&saying(&json!(2), &behind));
    for (_, at) in &outside {
        check(&stream.data(), at);
    }
    drop(stream);
    // The way back is the client's own words.
    let mut call = session.stream(crate::asking("\"back\"", "roots/list"));
    let asked = call.message();
    reply(&session, &asked, &json!({"x": secret}));
    assert_eq!(call.message()["id"], 1);
    settle(&session);
    assert!(broker.lines("fixture").iter().any(|line| line.contains(r#""result":{"x":"secret-17, secret-4"}"#)));
    broker.finish();
}

#[test]
fn what_waits_for_a_call_is_ruled_too() {
    let broker = broker();
    let session = Session::new(&broker, "fixture");
    let line =
        r#"{"jsonrpc":"2.0","id":"q","method":"roots/list","params":{"x":"SECRETS"}}"#.replace("SECRETS", SECRETS);
    session.send_raw(&saying(&json!(1), &[answering("done"), line]));
    let mut told = session.call("echo", &json!({})).before;
    told.extend(session.call("echo", &json!({})).before);
    assert_eq!(told.len(), 1);
    check(&told[0], "/params/x");
    broker.finish();
}
