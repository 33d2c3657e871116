//! MCP clients of both eras that hide nothing: each answer keeps its status, headers and exact messages.

use std::io::BufReader;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde_json::{Value, json};

use super::broker::Broker;
use super::http::{Body, Events, Http, Request, Response};

/// The newest revision of each era.
pub const LEGACY: &str = "2025-11-25";
pub const MODERN: &str = "2026-07-28";

/// How long a stream is read for what is expected on it.
const STREAM_LIMIT: Duration = Duration::from_secs(30);

/// An answer to a JSON-RPC request.
#[derive(Debug)]
pub struct Reply {
    pub response: Response,
    /// Messages that came before the answer, as they were spelled.
    pub before: Vec<String>,
    /// The answer, as it was spelled.
    pub raw: String,
    json: Value,
}

impl Reply {
    #[track_caller]
    pub fn new(response: Response) -> Self {
        let mut before = response.messages();
        let raw = before.pop().unwrap_or_else(|| panic!("no message in the answer: {response:?}"));
        let json = serde_json::from_str(&raw).unwrap_or_else(|error| panic!("not JSON ({error}): {response:?}"));
        Self { response, before, raw, json }
    }

    #[track_caller]
    pub fn result(&self) -> &Value {
        let result = self.json.get("result");
        result.unwrap_or_else(|| panic!("not a result: {} {}", self.response.status, self.raw))
    }

    /// The text of the result's first block.
    #[track_caller]
    pub fn text(&self) -> &str {
        let text = self.result()["content"][0]["text"].as_str();
        text.unwrap_or_else(|| panic!("no text in {}", self.raw))
    }

    /// The text of the result's first block, as JSON.
    #[track_caller]
    pub fn text_json(&self) -> Value {
        serde_json::from_str(self.text()).unwrap_or_else(|error| panic!("not JSON ({error}): {}", self.raw))
    }

    /// The code of a JSON-RPC error.
    #[track_caller]
    pub fn error_code(&self) -> i64 {
        self.json["error"]["code"].as_i64().unwrap_or_else(|| panic!("not an error: {}", self.raw))
    }

    /// The broker's own code in a result with `isError`; empty if it is not one.
    #[track_caller]
    pub fn refusal(&self) -> &str {
        let result = self.result();
        let code = result["_meta"]["lazy-mcp/error"]["code"].as_str().unwrap_or_default();
        assert!(code.is_empty() || result["isError"] == true, "a refusal without isError: {}", self.raw);
        code
    }

    pub fn json(&self) -> &Value {
        &self.json
    }
}

/// A legacy session.
#[derive(Debug)]
pub struct Session {
    pub http: Http,
    pub path: String,
    pub id: String,
    pub version: String,
    next_id: AtomicU64,
}

impl Session {
    /// `initialize` and `notifications/initialized`.
    #[track_caller]
    pub fn initialize(broker: &Broker, backend: &str, version: &str) -> Self {
        Self::open(broker, backend, &initialize(&format!("/{backend}/mcp"), version))
    }

    /// A client of the newest legacy revision that declares `capabilities`, as they are spelled.
    #[track_caller]
    pub fn declaring(broker: &Broker, backend: &str, capabilities: &str) -> Self {
        let body = format!(
            r#"{{"jsonrpc":"2.0","id":0,"method":"initialize","params":{{"protocolVersion":"{LEGACY}","capabilities":{capabilities},"clientInfo":{{"name":"test","version":"1"}}}}}}"#
        );
        Self::open(broker, backend, &Request::post(&format!("/{backend}/mcp"), body))
    }

    #[track_caller]
    fn open(broker: &Broker, backend: &str, initialize: &Request) -> Self {
        let path = format!("/{backend}/mcp");
        let answer = broker.http().send(initialize);
        let id = answer.header("mcp-session-id").map(str::to_owned);
        let id = id.unwrap_or_else(|| panic!("no session id: {} {}", answer.status, answer.text()));
        let version = Reply::new(answer).result()["protocolVersion"].as_str().unwrap_or_default().to_owned();
        let session = Self { http: broker.http(), path, id, version, next_id: AtomicU64::new(1) };
        let accepted = session.notify("notifications/initialized", &json!({}));
        assert_eq!(accepted.status, 202, "{}", accepted.text());
        session
    }

    /// The newest legacy revision.
    #[track_caller]
    pub fn new(broker: &Broker, backend: &str) -> Self {
        Self::initialize(broker, backend, LEGACY)
    }

    /// The same session at the address where the broker listens now.
    pub fn at(mut self, broker: &Broker) -> Self {
        self.http = broker.http();
        self
    }

    /// A POST of `body` with the session's headers.
    pub fn post(&self, body: impl Into<Vec<u8>>) -> Request {
        self.with_session(Request::post(&self.path, body))
    }

    /// A POST of `body` whose answer is read as it comes; returns once something has come.
    #[track_caller]
    pub fn stream(&self, body: impl Into<Vec<u8>>) -> Events<BufReader<Body>> {
        self.http.open(&self.post(body)).events(STREAM_LIMIT)
    }

    /// The session's GET stream, open.
    #[track_caller]
    pub fn hear(&self) -> Events<BufReader<Body>> {
        let stream = self.http.open(&self.listen());
        assert_eq!(stream.status(), 200);
        stream.events(STREAM_LIMIT)
    }

    /// The session's GET stream.
    pub fn listen(&self) -> Request {
        self.with_session(Request::get(&self.path).header("accept", "text/event-stream"))
    }

    pub fn with_session(&self, request: Request) -> Request {
        request.header("mcp-session-id", &self.id).header("mcp-protocol-version", &self.version)
    }

    pub fn request(&self, method: &str, params: &Value) -> Request {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        self.post(json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).to_string())
    }

    pub fn call_request(&self, tool: &str, arguments: &Value) -> Request {
        self.request("tools/call", &json!({"name": tool, "arguments": arguments}))
    }

    #[track_caller]
    pub fn send(&self, method: &str, params: &Value) -> Reply {
        Reply::new(self.http.send(&self.request(method, params)))
    }

    /// Sends a message as it is spelled.
    #[track_caller]
    pub fn send_raw(&self, body: &str) -> Reply {
        Reply::new(self.http.send(&self.post(body)))
    }

    #[track_caller]
    pub fn call(&self, tool: &str, arguments: &Value) -> Reply {
        Reply::new(self.http.send(&self.call_request(tool, arguments)))
    }

    #[track_caller]
    pub fn list(&self) -> Reply {
        self.send("tools/list", &json!({}))
    }

    #[track_caller]
    pub fn notify(&self, method: &str, params: &Value) -> Response {
        self.http.send(&self.post(json!({"jsonrpc": "2.0", "method": method, "params": params}).to_string()))
    }

    #[track_caller]
    pub fn delete(&self) -> Response {
        self.http.send(&self.with_session(Request::new("DELETE", &self.path)))
    }
}

/// A POST of `initialize`.
pub fn initialize(path: &str, version: &str) -> Request {
    let params =
        json!({"protocolVersion": version, "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}});
    Request::post(path, json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}).to_string())
}

/// A client of the modern era: each request stands alone.
#[derive(Debug)]
pub struct Modern {
    pub http: Http,
    pub path: String,
    capabilities: Value,
    next_id: AtomicU64,
}

impl Modern {
    pub fn new(broker: &Broker, path: &str) -> Self {
        Self::declaring(broker, path, json!({}))
    }

    /// A client that declares `capabilities` with each request.
    pub fn declaring(broker: &Broker, path: &str, capabilities: Value) -> Self {
        Self { http: broker.http(), path: path.to_owned(), capabilities, next_id: AtomicU64::new(1) }
    }

    /// A request with all headers and metadata that the revision asks for.
    pub fn request(&self, method: &str, params: &Value) -> Request {
        let mut params = params.clone();
        let meta = &mut params["_meta"];
        if meta.is_null() {
            *meta = json!({});
        }
        meta["io.modelcontextprotocol/protocolVersion"] = MODERN.into();
        meta["io.modelcontextprotocol/clientCapabilities"] = self.capabilities.clone();
        meta["io.modelcontextprotocol/clientInfo"] = json!({"name": "test", "version": "1"});
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let body = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).to_string();
        self.post(method, params["name"].as_str().or(params["uri"].as_str()), body)
    }

    /// A POST of `body` with the headers that a request of `method`, about `name`, has.
    pub fn post(&self, method: &str, name: Option<&str>, body: impl Into<Vec<u8>>) -> Request {
        let request =
            Request::post(&self.path, body).header("mcp-protocol-version", MODERN).header("mcp-method", method);
        match name {
            Some(name) => request.header("mcp-name", name),
            None => request,
        }
    }

    /// A `subscriptions/listen` for `notifications`, open.
    #[track_caller]
    pub fn hear(&self, notifications: &Value) -> Events<BufReader<Body>> {
        let stream = self.http.open(&self.request("subscriptions/listen", &json!({"notifications": notifications})));
        assert_eq!(stream.status(), 200);
        stream.events(STREAM_LIMIT)
    }

    pub fn call_request(&self, tool: &str, arguments: &Value) -> Request {
        self.request("tools/call", &json!({"name": tool, "arguments": arguments}))
    }

    #[track_caller]
    pub fn send(&self, method: &str, params: &Value) -> Reply {
        Reply::new(self.http.send(&self.request(method, params)))
    }

    #[track_caller]
    pub fn call(&self, tool: &str, arguments: &Value) -> Reply {
        Reply::new(self.http.send(&self.call_request(tool, arguments)))
    }
}
