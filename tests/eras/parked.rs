//! A legacy server asks a modern client: the call waits, and the client's next request answers.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::wait::{pause_because, until_true};
use crate::support::{Backend, Broker, Modern, Reply, Setup};
use crate::{SOON, answering, keyed, legacy, parsed, saying};

/// A fixture with an instance for each key.
pub fn fixture() -> Broker {
    Setup::new().backend(legacy(Backend::session("fixture"))).start()
}

/// A call that has the fixture ask `method` under the raw id `id`, and answers with the answer.
pub fn asking(id: &str, method: &str) -> Value {
    let line = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{{"x":1e2}}}}"#);
    json!({"name": "ask_client", "arguments": {"line": line, "id": id}})
}

/// The same call once more, with what the client says to it.
pub fn retry(params: &Value, state: &str, responses: &[(&str, Value)]) -> Value {
    let mut params = params.clone();
    params["requestState"] = state.into();
    params["inputResponses"] = responses.iter().map(|(key, answer)| ((*key).to_owned(), answer.clone())).collect();
    params
}

#[track_caller]
pub fn call(client: &Modern, params: &Value) -> Reply {
    client.send("tools/call", params)
}

/// What a modern client is asked: the state, and each question under its key.
#[track_caller]
fn asked(reply: &Reply) -> (String, Vec<(String, Value)>) {
    let result = reply.result();
    assert_eq!(result["resultType"], "input_required", "{}", reply.raw);
    let state = result["requestState"].as_str().unwrap_or_else(|| panic!("no state in {}", reply.raw)).to_owned();
    let requests = result["inputRequests"].as_object().unwrap_or_else(|| panic!("nothing asked in {}", reply.raw));
    (state, requests.iter().map(|(key, question)| (key.clone(), question.clone())).collect())
}

/// Calls, is asked one thing, and returns the state and the key of it.
#[track_caller]
pub fn park(client: &Modern, params: &Value) -> (String, String) {
    let (state, mut questions) = asked(&call(client, params));
    assert_eq!(questions.len(), 1, "{questions:?}");
    (state, questions.remove(0).0)
}

pub fn parked_calls(broker: &Broker) -> u64 {
    broker.status()["totals"]["parked_calls"].as_u64().expect("status has it")
}

/// The id of a request that was sent.
fn id_of(request: &crate::support::Request) -> Value {
    let body = request.body.as_deref().expect("a request has a body");
    serde_json::from_slice::<Value>(body).expect("it is JSON")["id"].clone()
}

#[test]
fn each_kind_of_question_is_answered_by_the_next_request() {
    let broker = Setup::new().backend(Backend::session("server").conformance().list_flags("--only legacy")).start();
    let client = keyed(&broker, "server", "k");
    let form = json!({"action": "accept", "content": {"username": "u", "email": "e@example.org"}});
    let said = json!({"role": "assistant", "content": {"type": "text", "text": "Paris"}, "model": "m"});
    let cases = [
        ("test_elicitation", json!({"message": "Who?"}), "elicitation/create", form, "e@example.org"),
        ("test_sampling", json!({"prompt": "Which?"}), "sampling/createMessage", said, "Paris"),
        (
            "test_input_required_result_list_roots",
            json!({}),
            "roots/list",
            json!({"roots": [{"uri": "file:///r"}]}),
            "file:///r",
        ),
    ];
    for (tool, arguments, method, answer, expected) in cases {
        let params = json!({"name": tool, "arguments": arguments});
        let first = client.request("tools/call", &params);
        let reply = Reply::new(client.http.send(&first));
        assert_eq!((reply.response.status, &reply.json()["id"]), (200, &id_of(&first)));
        let (state, questions) = asked(&reply);
        assert_eq!((questions.len(), &questions[0].1["method"]), (1, &json!(method)), "{}", reply.raw);
        assert!(questions[0].1.get("id").is_none(), "what is asked is no request: {}", reply.raw);
        assert_eq!(parked_calls(&broker), 1);
        let again = client.request("tools/call", &retry(&params, &state, &[(&questions[0].0, answer)]));
        let reply = Reply::new(client.http.send(&again));
        assert_eq!(reply.json()["id"], id_of(&again));
        assert_eq!(reply.result()["resultType"], "complete");
        assert!(reply.text().contains(expected), "{}", reply.raw);
        assert_eq!(parked_calls(&broker), 0);
    }
    broker.finish();
}

#[test]
fn a_call_that_asks_twice_is_parked_twice() {
    let broker = Setup::new().backend(Backend::session("server").conformance().list_flags("--only legacy")).start();
    let client = keyed(&broker, "server", "k");
    let params = json!({"name": "test_input_required_result_multi_round", "arguments": {}});
    let (first, key) = park(&client, &params);
    let name = json!({"action": "accept", "content": {"name": "Ada"}});
    let (second, next_key) = park(&client, &retry(&params, &first, &[(&key, name.clone())]));
    assert!(first != second && key != next_key, "a state holds once");
    assert_eq!(call(&client, &retry(&params, &first, &[(&key, name)])).error_code(), -32602);
    let color = json!({"action": "accept", "content": {"color": "blue"}});
    let reply = call(&client, &retry(&params, &second, &[(&next_key, color)]));
    assert!(reply.text().contains("Ada") && reply.text().contains("blue"), "{}", reply.raw);
    broker.finish();
}

fn progress(step: u32) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"progressToken":$ID,"progress":{step}}}}}"#
    )
}

#[test]
fn progress_after_the_answer_comes_under_the_token_of_the_request_that_brought_it() {
    let broker = fixture();
    let client = keyed(&broker, "fixture", "k");
    let mut params = asking("\"q\"", "roots/list");
    params["arguments"]["after"] = json!([progress(1), progress(2)]);
    params["_meta"] = json!({"progressToken": "first"});
    let (state, key) = park(&client, &params);
    params["_meta"] = json!({"progressToken": "second"});
    let reply = call(&client, &retry(&params, &state, &[(&key, json!({"roots": []}))]));
    let expected = [1, 2].map(|step| progress(step).replace("$ID", "\"second\""));
    assert_eq!(reply.before, expected);
    assert_eq!(reply.text(), r#"{"jsonrpc":"2.0","id":"q","result":{"roots":[]}}"#);
    broker.finish();
}

#[test]
fn progress_while_nobody_listens_is_nobodys() {
    let broker = fixture();
    let client = keyed(&broker, "fixture", "k");
    let mut params = asking("\"q\"", "roots/list");
    params["_meta"] = json!({"progressToken": "first"});
    let (state, key) = park(&client, &params);
    let own = parsed(&broker, "fixture", "tools/call").remove(0)["id"].to_string();
    let meanwhile = [progress(1).replace("$ID", &own), answering("said")];
    let other = call(&client, &saying(&meanwhile));
    assert_eq!((other.text(), other.before.len()), ("said", 0));
    params["_meta"] = json!({"progressToken": "second"});
    let reply = call(&client, &retry(&params, &state, &[(&key, json!({"roots": []}))]));
    assert_eq!(reply.before, [""; 0]);
    broker.finish();
}

#[test]
fn progress_moves_the_deadline_of_a_call_that_waits() {
    let policy = "tools = { settings = { ask_client = { deadline_seconds = 2, progress_extends_to_seconds = 9 } } },";
    let broker = Setup::new().backend(legacy(Backend::session("fixture")).policy(policy)).start();
    let client = keyed(&broker, "fixture", "k");
    let mut params = asking("\"q\"", "roots/list");
    params["_meta"] = json!({"progressToken": "first"});
    let (state, key) = park(&client, &params);
    let begin = Instant::now();
    let own = parsed(&broker, "fixture", "tools/call").remove(0)["id"].to_string();
    let report = saying(&[progress(1).replace("$ID", &own), answering("said")]);
    for _ in 0..3 {
        pause_because("the call is to outlive its first deadline", Duration::from_millis(1000));
        assert_eq!(call(&client, &report).text(), "said");
    }
    assert!(begin.elapsed() > Duration::from_secs(2));
    let reply = call(&client, &retry(&params, &state, &[(&key, json!({"roots": []}))]));
    assert_eq!(reply.text_json()["id"], "q", "{}", reply.raw);
    broker.finish();
}

#[test]
fn a_partial_answer_is_asked_again_for_the_rest() {
    let broker = fixture();
    let client = keyed(&broker, "fixture", "k");
    // Two questions and no answer; the call is answered by what another call has the server say.
    let question = |id: &str| format!(r#"{{"jsonrpc":"2.0","id":"{id}","method":"roots/list"}}"#);
    let params = saying(&[question("one"), question("two")]);
    let (mut state, mut open) = asked(&call(&client, &params));
    let own = parsed(&broker, "fixture", "tools/call").remove(0)["id"].to_string();
    let mut said = 0;
    // Whether the second one comes with the first or after it is the server's and the scheduler's affair.
    while said < 2 {
        if open.len() == 2 {
            // Nothing of use: both are asked again.
            let (next, again) = asked(&call(&client, &retry(&params, &state, &[("none", json!({}))])));
            assert_eq!(again, open);
            state = next;
        }
        let (key, _) = open.remove(0);
        said += 1;
        if said < 2 {
            let before = open.clone();
            (state, open) = asked(&call(&client, &retry(&params, &state, &[(&key, json!({"n": said}))])));
            assert!(open.len() == 1 && (before.is_empty() || before == open), "{before:?} {open:?}");
            assert_ne!(open[0].0, key);
            continue;
        }
        let end = answering("both").replace("$ID", &own);
        let last = client.request("tools/call", &retry(&params, &state, &[(&key, json!({"n": said}))]));
        let last = client.http.send_aside(&last);
        until_true("both answers", SOON, || answers(&broker).len() == 2);
        assert_eq!(call(&client, &saying(&[end, answering("told")])).text(), "told");
        assert_eq!(Reply::new(last.join().unwrap()).text(), "both");
    }
    let expected =
        ["one", "two"].map(|id| json!({"jsonrpc": "2.0", "id": id, "result": {"n": if id == "one" { 1 } else { 2 }}}));
    assert_eq!(answers(&broker), expected);
    broker.finish();
}

/// The answers that the servers have read.
fn answers(broker: &Broker) -> Vec<Value> {
    let lines = broker.lines("fixture").into_iter().filter_map(|line| serde_json::from_str::<Value>(&line).ok());
    lines.filter(|line| line.get("method").is_none()).collect()
}

#[test]
fn a_question_that_was_withdrawn_is_not_asked_again() {
    let broker = fixture();
    let client = keyed(&broker, "fixture", "k");
    let params = saying(&[r#"{"jsonrpc":"2.0","id":"q","method":"roots/list"}"#.to_owned()]);
    let (state, key) = park(&client, &params);
    let own = parsed(&broker, "fixture", "tools/call").remove(0)["id"].to_string();
    let withdrawn = r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"q"}}"#;
    assert_eq!(call(&client, &saying(&[withdrawn.to_owned(), answering("said")])).text(), "said");
    let last = client.request("tools/call", &retry(&params, &state, &[(&key, json!({"roots": []}))]));
    let last = client.http.send_aside(&last);
    until_true("the call to go on", SOON, || parked_calls(&broker) == 0);
    assert_eq!(call(&client, &saying(&[answering("done").replace("$ID", &own), answering("told")])).text(), "told");
    let reply = Reply::new(last.join().unwrap());
    assert_eq!((reply.text(), reply.before.len()), ("done", 0), "{:?}", reply.before);
    assert_eq!(answers(&broker), [json!(null); 0], "nobody waits for it");
    broker.finish();
}

#[test]
fn of_two_calls_the_one_that_is_not_parked_is_asked() {
    let broker = fixture();
    let client = keyed(&broker, "fixture", "k");
    let (one, other) = (asking("\"one\"", "roots/list"), asking("\"two\"", "sampling/createMessage"));
    let (first, first_key) = park(&client, &one);
    let (second, second_key) = park(&client, &other);
    assert_eq!(parked_calls(&broker), 2);
    let heard =
        |params, state, key: &str, n| call(&client, &retry(params, state, &[(key, json!({"n": n}))])).text_json();
    assert_eq!(heard(&one, &first, &first_key, 1), json!({"jsonrpc": "2.0", "id": "one", "result": {"n": 1}}));
    assert_eq!(heard(&other, &second, &second_key, 2), json!({"jsonrpc": "2.0", "id": "two", "result": {"n": 2}}));
    assert_eq!(broker.starts("fixture"), 1);
    broker.finish();
}

#[test]
fn a_question_goes_to_the_older_call_where_the_newer_one_is_parked() {
    let broker = fixture();
    let client = keyed(&broker, "fixture", "k");
    let running = json!({"name": "cancellable", "arguments": {"ms": 30_000}});
    let first = client.http.send_aside(&client.request("tools/call", &running));
    broker.wait_event("fixture", "call", "cancellable");
    let params = asking("\"q\"", "roots/list");
    // The first one is the only one yet that is not parked, but the newest one is asked.
    let (state, key) = park(&client, &params);
    let shy = Modern::new(&broker, &client.path);
    let question = r#"{"jsonrpc":"2.0","id":"more","method":"elicitation/create","params":{}}"#;
    assert_eq!(call(&shy, &saying(&[question.to_owned(), answering("said")])).text(), "said");
    let (first_state, open) = asked(&Reply::new(first.join().unwrap()));
    assert_eq!((open.len(), &open[0].1["method"]), (1, &json!("elicitation/create")));
    let reply = call(&client, &retry(&params, &state, &[(&key, json!({"roots": []}))]));
    assert_eq!(reply.text_json()["id"], "q", "{}", reply.raw);
    // The client comes back and goes away: its call is over.
    let answered = retry(&running, &first_state, &[(&open[0].0, json!({"action": "decline"}))]);
    let gone = client.http.start(&client.request("tools/call", &answered)).unwrap();
    until_true("the answer", SOON, || answers(&broker).len() == 2);
    drop(gone);
    broker.wait_event("fixture", "stopped", "cancellable");
    broker.finish();
}

#[test]
fn what_is_asked_while_only_a_parked_call_can_answer_waits_for_its_client() {
    let broker = fixture();
    let client = keyed(&broker, "fixture", "k");
    let params = asking("\"q\"", "roots/list");
    let (state, key) = park(&client, &params);
    // Another call, of whoever cannot be asked, has the server ask again.
    let question = r#"{"jsonrpc":"2.0","id":"more","method":"roots/list","params":{"x":1e2}}"#;
    let shy = Modern::new(&broker, &client.path);
    assert_eq!(call(&shy, &saying(&[question.to_owned(), answering("said")])).text(), "said");
    assert_eq!(answers(&broker), [json!(null); 0], "it is not refused");
    let (state, both) = asked(&call(&client, &retry(&params, &state, &[])));
    assert_eq!(both.iter().map(|(first, _)| *first == key).collect::<Vec<_>>(), [true, false]);
    let said: Vec<(&str, Value)> = both.iter().map(|(key, _)| (key.as_str(), json!({"roots": []}))).collect();
    let reply = call(&client, &retry(&params, &state, &said));
    assert_eq!(reply.text_json()["id"], "q");
    let answered: Vec<Value> = answers(&broker).into_iter().map(|answer| answer["id"].clone()).collect();
    assert_eq!(answered, ["q", "more"]);
    broker.finish();
}

#[test]
fn a_client_that_does_not_come_back_has_cancelled_its_call() {
    let broker = Setup::new().backend(legacy(Backend::session("fixture")).call_seconds(2).idle_seconds(1)).start();
    let client = keyed(&broker, "fixture", "k");
    let params = asking("\"q\"", "roots/list");
    let (state, key) = park(&client, &params);
    let own = parsed(&broker, "fixture", "tools/call").remove(0)["id"].to_string();
    assert_eq!(broker.backend_status("fixture")["instances"][0]["active"], 1, "it holds its lease");
    broker.wait_event("fixture", "cancelled", &own);
    until_true("the call not to be parked any more", Duration::from_secs(2), || parked_calls(&broker) == 0);
    assert_eq!(call(&client, &retry(&params, &state, &[(&key, json!({"roots": []}))])).error_code(), -32602);
    until_true("the question to be refused", SOON, || answers(&broker).len() == 1);
    assert_eq!(answers(&broker)[0]["error"]["code"], -32603, "{:?}", answers(&broker));
    broker.wait_stopped("fixture", Duration::from_secs(30));
    broker.assert_nothing_left("the idle stop", Duration::from_secs(1));
    broker.finish();
}

#[test]
fn a_server_that_ends_meanwhile_is_told_to_who_comes_back() {
    let broker = fixture();
    let client = keyed(&broker, "fixture", "k");
    let params = asking("\"q\"", "roots/list");
    let (state, key) = park(&client, &params);
    assert_eq!(client.call("crash", &json!({"ms": 0, "code": 3})).refusal(), "backend_exited");
    let reply = call(&client, &retry(&params, &state, &[(&key, json!({"roots": []}))]));
    assert_eq!(reply.refusal(), "backend_exited", "{}", reply.raw);
    broker.finish();
}
