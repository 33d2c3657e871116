//! Every kind of message that a typed model would re-spell passes byte for byte, but for ids and progress tokens, in
//! both directions. The server logs each line that it reads, and writes what a request's `x-say` has in it.

mod support;

use serde_json::{Value, json};
use support::{Backend, Broker, Session, Setup};

/// Spellings of ids and progress tokens.
const IDS: [(&str, &str); 5] = [
    ("7", r#""t\u006f\/k""#),
    (r#""a\u0062""#, "-1"),
    ("9007199254740993", "9007199254740993"),
    (r#""7""#, r#""""#),
    ("-0", "1.50"),
];

fn broker() -> (Broker, Session) {
    let backend = Backend::session("fixture").list_flags("--more --experimental").flags("--log-lines");
    let broker = Setup::new().backend(backend).start();
    let session = Session::declaring(&broker, "fixture", r#"{"sampling":{},"elicitation":{},"roots":{}}"#);
    session.call("echo", &json!({"text": "started"})).text();
    (broker, session)
}

/// A call that has the server write `lines`, the answer to it among them.
fn saying(id: &str, token: &str, lines: &[&str]) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{{"name":"echo","_meta":{{"progressToken":{token}}},"x-say":{}}}}}"#,
        json!(lines)
    )
}

const ANSWER: &str = r#"{"jsonrpc":"2.0","id":$ID,"result":{"content":[]}}"#;

#[test]
fn requests_of_clients() {
    let (broker, session) = broker();
    let odd = r#"{"n":1.0,"big":123456789012345678901234567890,"huge":1E400,"s":"\u00e9\/\t\ud800","z":{ },"a":[ 1 ,2],"neg":-0.0}"#;
    let spelled = [
        r#"{"x-top":1e2,"method":"tools/call","params":{"arguments":ODD,"x-more":null,"_meta":{"progressToken":TOKEN,"vendor/x":1E5},"name":"echo"}, "id":ID,"jsonrpc":"2.0"}"#,
        r#"{"jsonrpc":"2.0","id":ID,"method":"tools\/call","params":{"name":"ech\u006f","arguments":null,"task":{"ttl":6e4}},"result-x":ODD}"#,
        r#"{"jsonrpc":"2.0","id":ID,"method":"tools/call","params":{"name":"echo","_meta":null}}"#,
        r#"{"params":{"x":-0.0,"arguments":ODD,"name":"gr\u0065et","_meta":{"a":[ ],"progressToken":TOKEN}},"jsonrpc":"2.0","id":ID,"method":"prompts/get"}"#,
        r#"{"id" : ID ,"jsonrpc":"2.0","method":"resources/read","params" : {"uri":"fixture:\/\/a","x":ODD}}"#,
        r#"{"jsonrpc":"2.0","id":ID,"method":"completion/complete","params":{"context":{"arguments":{"b":"1","a":"2"}},"argument":{"value":"","name":"who"},"ref":{"x":1e2,"name":"greet","type":"ref/prompt"}}}"#,
        r#"{"jsonrpc":"2.0","id":ID,"method":"vendor/with_object","params":{"_meta":{"progressToken": TOKEN },"x":ODD}}"#,
        r#"{"jsonrpc":"2.0","id":ID,"method":"vendor/with_array","params":[ 1e2,"\u0041", ODD]}"#,
        r#"{"method":"vendor/with_nothing","id":ID,"jsonrpc":"2.0"}"#,
        "  \t{\"jsonrpc\":\"2.0\" ,\t\"id\":  ID,\"method\":\"vendor/with_space\",\"params\":{ }}  ",
    ];
    for spelled in spelled.map(|spelled| spelled.replace("ODD", odd)) {
        for (id, token) in IDS {
            session.send_raw(&spelled.replace("TOKEN", token).replace("ID", id));
            let seen = broker.lines("fixture").pop().unwrap();
            let message: Value = serde_json::from_str(&seen.replace("1E400", "1").replace(r"\ud800", "")).unwrap();
            let own = message["id"].as_u64().expect("the broker counts").to_string();
            assert_eq!(seen, spelled.replace("TOKEN", &own).replace("ID", &own));
        }
    }
    broker.finish();
}

#[test]
fn notifications_of_clients() {
    let (broker, session) = broker();
    for spelled in [
        r#"{"params":{"x":1e2,"_meta":{"b":1,"a":-0.0}},"method":"notifications/roots/list_changed","jsonrpc":"2.0"}"#,
        r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progress":1,"total":1E2,"progressToken":"p\u0061","x":[ ]}}"#,
        r#"{"jsonrpc":"2.0","method":"vendor/object","params":{"z":123456789012345678901234567890,"a":"\ud800\/"}, "x":null}"#,
        r#"{"jsonrpc":"2.0","method":"vendor/array","params":[1.0 , {}]}"#,
        r#" {"method":"vendor\/nothing","jsonrpc":"2.0"} "#,
    ] {
        assert_eq!(session.http.send(&session.post(spelled)).status, 202);
        // What was sent before a call is read before it.
        session.call("echo", &json!({}));
        let lines = broker.lines("fixture");
        assert_eq!(lines[lines.len() - 2], spelled);
    }
    broker.finish();
}

#[test]
fn answers_of_servers() {
    let (broker, session) = broker();
    // Not every reader can read what passes here.
    let answer = |body: String| session.http.send(&session.post(body)).messages().pop().unwrap();
    for line in [
        r#"{"x-before":{"z":1,"a":2},"result":{"content":[{"type":"text","text":"caf\u00e9 \/ \ud83d\ude00","x-n":1e2},{"type":"x-unknown","data":null}],"x-big":123456789012345678901234567890,"structuredContent":{"b":1.50,"a":{"":0.1e-7}},"_meta":{"vendor/key":[ ]}}, "jsonrpc":"2.0","id":$ID ,"x-after":true}"#,
        r#"{"jsonrpc":"2.0","id":$ID,"result":{"action":"accept","isError":true,"content":"no array","x":1E400}}"#,
        r#"{"jsonrpc":"2.0","id":$ID,"result":{"task":{"taskId":"1","ttl":6e4,"status":"working"}}}"#,
        r#"{"id":$ID,"result":{"messages":[{"content":{"type":"vendor","x":[1.0]},"role":"user"}],"x":-0},"jsonrpc":"2.0"}"#,
        r#"{"jsonrpc":"2.0","id":$ID,"result":{"contents":[{"x":1e2,"uri":"fixture:\/\/a","text":"\ud800"}],"x":null}}"#,
        r#"{"jsonrpc":"2.0","id":$ID,"result":{"completion":{"x":1.0,"hasMore":false,"total":1e1,"values":["\u0061"]}}}"#,
        r#"{"jsonrpc":"2.0","id":$ID,"result":[ 1 , "no object" ]}"#,
        r#"{"jsonrpc":"2.0","id":$ID,"result":null}"#,
        r#"{"error":{"x":1e2,"data":{"b":[1.0],"a":1},"message":"n\u006f","code":-99999999999},"id":$ID,"jsonrpc":"2.0"}"#,
        r#"{"jsonrpc":"2.0","id":$ID,"error":{"code":1.5e1}}"#,
        "\t {\"jsonrpc\":\"2.0\",\t\"id\" : $ID ,\"result\" : { } }  ",
    ] {
        for (id, token) in IDS {
            assert_eq!(answer(saying(id, token, &[line])), line.replace("$ID", id));
            for method in ["prompts/get", "resources/read", "completion/complete", "vendor/x"] {
                let request = format!(
                    r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{{"name":"greet","uri":"fixture://a","ref":{{"type":"ref/prompt","name":"greet"}},"x-say":{}}}}}"#,
                    json!([line])
                );
                assert_eq!(answer(request), line.replace("$ID", id), "{method}");
            }
        }
    }
    broker.finish();
}

/// What a server may say in the middle of a call.
const NOTICES: [&str; 8] = [
    r#"{"params":{"x-first":1e2,"total":1E2,"progress":1,"progressToken": $TOKEN ,"message":"\u0061"},"jsonrpc":"2.0","method":"notifications/progress"}"#,
    r#"{"jsonrpc":"2.0","method":"notifications/message","params":{"x":1.0,"data":{"b":-0,"a":"\/"},"logger":null,"level":"info"}}"#,
    r#"{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"x-unknown","data":1e2}}"#,
    r#"{"jsonrpc":"2.0","method":"notifications/elicitation/complete","params":{"elicitationId":"\u0041","x":[ ]}}"#,
    r#"{"jsonrpc":"2.0","x":1e2,"method":"notifications\/vendor","params":[1.0,{"z":123456789012345678901234567890,"a":1E400}]}"#,
    r#"{"method":"notifications/vendor","jsonrpc":"2.0"}"#,
    "  {\"method\" : \"notifications/vendor\" ,\t\"jsonrpc\":\"2.0\",\"params\" : { }} ",
    r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":$TOKEN,"progress":123456789012345678901234567890}}"#,
];

#[test]
fn notifications_of_servers_in_a_call() {
    let (broker, session) = broker();
    let lines: Vec<&str> = NOTICES.into_iter().chain([ANSWER]).collect();
    for (id, token) in IDS {
        let reply = session.send_raw(&saying(id, token, &lines));
        let expected = NOTICES.map(|line| line.replace("$TOKEN", token));
        // An event says where its data begins; what is around a message does not belong to it.
        assert_eq!(reply.before, expected);
        assert_eq!(reply.raw, ANSWER.replace("$ID", id));
    }
    broker.finish();
}

#[test]
fn notifications_of_servers_outside_calls() {
    let (broker, session) = broker();
    session.send("resources/subscribe", &json!({"uri": "fixture://a"})).result();
    let updated = r#"{"params":{"x":1e2,"title":"\u0041","uri":"fixture:\/\/a"},"method":"notifications/resources/updated","jsonrpc":"2.0"}"#;
    let notices: Vec<&str> = NOTICES[1..7].iter().copied().chain([updated]).collect();
    let lines: Vec<&str> = [ANSWER].into_iter().chain(notices.iter().copied()).collect();
    let mut stream = session.hear();
    assert_eq!(session.send_raw(&saying("1", "2", &lines)).before, [""; 0]);
    for expected in notices {
        assert_eq!(stream.data(), expected);
    }
    broker.finish();
}

/// What a server may ask; SID is its id.
const QUESTIONS: [&str; 5] = [
    r#"{"x":1e2,"params":{"messages":[{"role":"user","content":{"type":"text","text":"\u0041\/","x":-0.0}}],"temperature":0.7,"maxTokens":1E2,"x":null},"method":"sampling/createMessage","id":SID,"jsonrpc":"2.0"}"#,
    r#"{"jsonrpc":"2.0","id": SID ,"method":"elicitation/create","params":{"message":"?","requestedSchema":{"type":"object","properties":{"n":{"pattern":"^a$","x-kw":[1.0],"type":"string"}}}}}"#,
    r#"{"jsonrpc":"2.0","method":"roots\/list","id":SID}"#,
    r#"{"jsonrpc":"2.0","id":SID,"method":"vendor/ask","params":[ 1e2 ]}"#,
    r#"{"jsonrpc":"2.0","id":SID,"method":"vendor/ask","params":{"big":123456789012345678901234567890,"_meta":{"progressToken":SID}}}"#,
];

/// What a client may answer; ID is its id for the question.
const REPLIES: [&str; 5] = [
    r#"{"x":1e2,"result":{"model":"m","role":"assistant","content":{"x":1.0,"type":"text","text":"\u0041\/"},"stopReason":null},"id":ID,"jsonrpc":"2.0"}"#,
    r#"{"jsonrpc":"2.0","id" : ID ,"result":{"action":"accept","content":{"n":1E2,"b":123456789012345678901234567890},"x":[ ]}}"#,
    r#"{"jsonrpc":"2.0","id":ID,"result":{ }}"#,
    r#"{"error":{"x":1e2,"data":[-0.0],"message":"n\u006f","code":-1},"id":ID,"jsonrpc":"2.0"}"#,
    r#"  {"jsonrpc":"2.0","id":ID,"result":null,"x":"\ud800"} "#,
];

#[test]
fn questions_of_servers_and_their_answers() {
    let (broker, session) = broker();
    let ids = ["7", r#""a\u0062\/""#, "-0", "123456789012345678901234567890", r#""""#];
    for (question, reply) in QUESTIONS.into_iter().zip(REPLIES) {
        for server_id in ids {
            let arguments = json!({"line": question.replace("SID", server_id), "id": server_id});
            let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call",
                              "params": {"name": "ask_client", "arguments": arguments}});
            let mut stream = session.stream(call.to_string());
            let asked = stream.data();
            let message: Value = serde_json::from_str(&asked).unwrap();
            let id = message["id"].as_u64().expect("the broker counts").to_string();
            // The token is the server's own, of a space that nobody else counts in.
            let (before, after) = question.rsplit_once("SID").unwrap_or_default();
            let expected = match question.matches("SID").count() {
                1 => question.replace("SID", &id),
                _ => format!("{}{server_id}{after}", before.replace("SID", &id)),
            };
            assert_eq!(asked, expected);
            assert_eq!(session.http.send(&session.post(reply.replace("ID", &id))).status, 202);
            let heard = &stream.message()["result"]["content"][0]["text"];
            assert_eq!(heard, &json!(reply.replace("ID", server_id)));
        }
    }
    broker.finish();
}
