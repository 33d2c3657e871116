//! The rules of a policy apply to everything that a server says, not to results of tools alone.

use std::time::Instant;

use serde_json::{Value, json};

use crate::support::{Backend, Broker, Session, Setup};
use crate::{SOON, all_of, answering, asking_by, logged, reply, saying, settle};

/// Once as it is, and once in other letters.
const SECRETS: &str = r"secret-17, s\u0065cret-4";

fn broker() -> Broker {
    let rules = "results = { broker.redact_text { pattern = [[secret-\\d+]], replace_with = \"[gone]\" }, broker.redact_keys { keys = { \"cookie\" } } },";
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

/// A client may show them, so they are no way out.
#[test]
fn members_that_json_rpc_gives_no_meaning() {
    let broker = broker();
    let session = Session::new(&broker, "fixture");
    // Words that have a meaning elsewhere have none here, and a pair of a name and a value is one here too.
    let around = format!(
        r#""note":"{SECRETS}","n":1.0,"more":{{"x":["{SECRETS}"],"blob":"{SECRETS}"}},"requestState":"{SECRETS}","name":"cookie","value":"sweet""#
    );
    let check_around = |told: &str, within: &str| {
        for at in ["/note", "/more/x/0", "/more/blob", "/requestState"] {
            check(told, &format!("{within}{at}"));
        }
        assert!(told.contains(r#","n":1.0,"more":{"x":["#), "the rest keeps its bytes: {told}");
        assert!(told.contains(r#""name":"cookie","value":"[redacted]""#), "{told}");
    };
    let answer = format!(r#"{{{around},"jsonrpc":"2.0","id":$ID,"result":{{"content":[]}}}}"#);
    let error = format!(r#"{{"jsonrpc":"2.0","id":$ID,"error":{{"code":-1,"message":"m"}},{around}}}"#);
    // What is for questions has no meaning in an answer.
    let with_params = format!(r#"{{"jsonrpc":"2.0","id":$ID,"result":{{"content":[]}},"params":{{{around}}}}}"#);
    for (line, within) in [(answer, ""), (error, ""), (with_params, "/params")] {
        check_around(&session.send("tools/call", &json!({"name": "echo", "x-say": [line]})).raw, within);
    }
    for line in [
        format!(r#"{{"jsonrpc":"2.0","method":"notifications/vendor",{around}}}"#),
        format!(r#"{{{around},"jsonrpc":"2.0","id":"q","method":"roots/list","params":{{"x":"{SECRETS}"}}}}"#),
    ] {
        let told = session.send_raw(&saying(&json!(1), &[line, answering("done")])).before;
        assert_eq!(told.len(), 1);
        check_around(&told[0], "");
    }
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

/// A question that no rule can read: it is nested deeper than they go.
fn unreadable() -> String {
    let deep = "[".repeat(200) + &"]".repeat(200);
    format!(r#"{{"jsonrpc":"2.0","id":"q","method":"roots/list","params":{{"x":{deep}}}}}"#)
}

/// What the server is told by whoever answers in the place of its client.
#[track_caller]
fn check_refusal(answer: &Value) {
    let expected = json!({
        "jsonrpc": "2.0",
        "id": "q",
        "error": {"code": -32603, "message": "the question was withheld: the policy of 'fixture' failed on it"},
    });
    assert_eq!(*answer, expected);
}

#[test]
fn a_question_that_the_rules_fail_on_is_answered_in_its_clients_place() {
    let broker = broker();
    let session = Session::new(&broker, "fixture");
    let begin = Instant::now();
    // In the middle of a call.
    let called = session.send_raw(&asking_by(&unreadable(), "\"q\""));
    assert_eq!(called.before, [""; 0], "it never leaves");
    check_refusal(&called.text_json());
    // On the stream that is open.
    let mut stream = session.hear();
    session.send_raw(&saying(&json!(2), &[answering("done"), unreadable(), logged("info", "after")]));
    assert_eq!(stream.message()["params"]["data"], "after");
    drop(stream);
    settle(&session);
    // Waiting for the next call.
    session.send_raw(&saying(&json!(3), &[answering("done"), unreadable()]));
    settle(&session);
    settle(&session);
    settle(&session);
    let lines = broker.lines("fixture");
    let answers: Vec<Value> =
        lines.iter().filter(|line| line.contains("withheld")).map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(answers.len(), 3, "{lines:#?}");
    answers.iter().for_each(check_refusal);
    assert!(begin.elapsed() < SOON, "nobody waited for an answer");
    broker.finish();
}

#[test]
fn an_answer_that_the_rules_fail_on_is_named_as_what_it_is() {
    let broker = broker();
    let session = Session::new(&broker, "fixture");
    let deep = "[".repeat(200) + &"]".repeat(200);
    let line = format!(r#"{{"jsonrpc":"2.0","id":$ID,"result":{{"x":{deep}}}}}"#);
    let error = format!(r#"{{"jsonrpc":"2.0","id":$ID,"error":{{"code":-1,"message":"x","data":{deep}}}}}"#);
    let say = |method: &str, mut params: Value, line: &str| {
        params["x-say"] = json!([line]);
        session.send(method, &params)
    };
    let called = say("tools/call", json!({"name": "echo"}), &line);
    assert_eq!(
        called.text(),
        "The tool ran, but its result was withheld because the policy of 'fixture' failed on it."
    );
    for (method, params, line) in [
        ("prompts/get", json!({"name": "greet"}), &line),
        ("resources/read", json!({"uri": "fixture://a"}), &line),
        ("resources/subscribe", json!({"uri": "fixture://a"}), &error),
    ] {
        let reply = say(method, params, line);
        let withheld = reply.json();
        assert_eq!(withheld["error"]["code"], -32603, "{withheld}");
        assert_eq!(
            withheld["error"]["message"],
            "The server answered, but its answer was withheld because the policy of 'fixture' failed on it."
        );
        assert_eq!(withheld["error"]["data"]["lazy-mcp/error"]["code"], "policy_failed");
    }
    broker.finish();
}
