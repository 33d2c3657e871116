//! What the broker itself asks of a server: the handshake, and its lists.

use serde_json::value::RawValue;

use super::conversation::Link;
use super::pending::Outcome;
use crate::protocol::call::{CallRequest, Outbound, one_line};
use crate::protocol::error::shown;
use crate::protocol::raw::{members, string};
use crate::protocol::version::{Era, LEGACY, MODERN, NEWEST_LEGACY, meta};

/// Pages followed of one list, and bytes taken of all its pages: a server that pages for ever is cut off.
const PAGES_MAX: usize = 100;
const LIST_LEN_MAX: usize = 16 * 1024 * 1024;

/// What a server said of itself. All but the version and the instructions is raw, as the server sent it.
#[derive(Debug)]
pub struct Greeting {
    pub protocol_version: String,
    pub server_info: Box<RawValue>,
    pub capabilities: Box<RawValue>,
    pub instructions: Option<String>,
}

impl Greeting {
    /// Whether the server declares a capability.
    pub fn offers(&self, capability: &str) -> bool {
        matches!(members(self.capabilities.get(), [capability]), Ok([Some(_)]))
    }
}

/// Why a server could not be greeted.
#[derive(Debug, thiserror::Error)]
pub enum HandshakeError {
    #[error("its answer to `initialize`: {0}")]
    Initialize(RequestError),
    #[error("its answer to `server/discover`: {0}")]
    Discover(RequestError),
    #[error("its answer to `initialize` lacks `{0}`")]
    Lacks(&'static str),
    #[error("it speaks protocol version '{0}', which the broker does not")]
    Version(String),
    #[error("its answer to `{method}`: {source}")]
    List { method: &'static str, source: RequestError },
}

/// Why the broker's own request had no result.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    #[error("the server ended or closed its output first")]
    Lost,
    #[error("the line is {len} bytes long, over the limit of {max}")]
    TooLarge { len: u64, max: usize },
    #[error("an error, code {code}")]
    Refused {
        code: i64,
        /// The raw error object, in the server's words.
        error: Box<str>,
    },
    #[error("not what the protocol says: {0}")]
    Malformed(String),
}

impl Link {
    /// `initialize`, its answer, `notifications/initialized`. `capabilities` is the raw object that is declared: what is
    /// not in it, a server may not ask for.
    ///
    /// Has no deadline of its own: it ends when the link is lost.
    pub async fn handshake(&self, capabilities: &str) -> Result<Greeting, HandshakeError> {
        self.speak(Era::Legacy);
        let params = format!(
            r#"{{"protocolVersion":"{NEWEST_LEGACY}","capabilities":{capabilities},"clientInfo":{{"name":"lazy-mcp-broker","version":"{}"}}}}"#,
            env!("CARGO_PKG_VERSION")
        );
        let result = self.request("initialize", &params).await.map_err(HandshakeError::Initialize)?;
        let greeting = read_greeting(&result)?;
        if !LEGACY.contains(&&*greeting.protocol_version) {
            return Err(HandshakeError::Version(shown(&greeting.protocol_version)));
        }
        self.notify(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#);
        Ok(greeting)
    }

    /// From here on requests carry their own metadata, and there is nothing to greet. A server that does not know that is
    /// told by its answer to the first request.
    pub fn speak_modern(&self) {
        self.speak(Era::Modern);
    }

    /// `server/discover`: what a modern server says of itself.
    ///
    /// Has no deadline of its own, and a server that does not know it may end: for a server of its own.
    pub async fn discover(&self) -> Result<Greeting, HandshakeError> {
        self.speak_modern();
        let result = self.request("server/discover", "{}").await.map_err(HandshakeError::Discover)?;
        read_discovery(&result)
    }

    /// Every item of a list, all pages, each as the server sent it. `method` is e.g. `tools/list`, `member` `tools`.
    pub async fn list(&self, method: &'static str, member: &'static str) -> Result<Vec<Box<RawValue>>, HandshakeError> {
        Ok(self.typed_list(method, member).await?.0)
    }

    /// The same, and whether all pages say what type of result they are, as those of a modern server do. Some legacy ones
    /// answer whoever asks, greeted or not.
    pub async fn typed_list(
        &self,
        method: &'static str,
        member: &'static str,
    ) -> Result<(Vec<Box<RawValue>>, bool), HandshakeError> {
        let mut is_typed = true;
        let fault = |source| HandshakeError::List { method, source };
        let mut items = Vec::new();
        let mut cursor: Option<String> = None;
        let mut len = 0;
        for _ in 0..PAGES_MAX {
            let params = match &cursor {
                Some(cursor) => format!(r#"{{"cursor":{cursor}}}"#),
                None => "{}".to_owned(),
            };
            let page = self.request(method, &params).await.map_err(fault)?;
            len += page.len();
            if len > LIST_LEN_MAX {
                return Err(fault(RequestError::TooLarge { len: len as u64, max: LIST_LEN_MAX }));
            }
            let [found, next, kind] =
                members(&page, [member, "nextCursor", "resultType"]).map_err(malformed).map_err(fault)?;
            is_typed &= kind.is_some();
            let found = found.ok_or_else(|| fault(RequestError::Malformed(format!("`{member}` is missing"))))?;
            let found: Vec<Box<RawValue>> = serde_json::from_str(found).map_err(malformed).map_err(fault)?;
            items.extend(found);
            match next.filter(|next| *next != "null") {
                None => return Ok((items, is_typed)),
                Some(next) if cursor.as_deref() == Some(next) => {
                    return Err(fault(RequestError::Malformed("the same cursor twice".into())));
                }
                Some(next) => cursor = Some(next.to_owned()),
            }
        }
        Err(fault(RequestError::Malformed(format!("more than {PAGES_MAX} pages"))))
    }

    /// One request of the broker's own; its raw result.
    pub async fn request(&self, method: &str, params: &str) -> Result<String, RequestError> {
        let id = self.own_id();
        // What a client declared is in here as it spelled it, over several lines perhaps.
        self.result_of(id, one_line(self.own_message(id, method, params).into_bytes())).await
    }

    /// A client's request that the broker answers itself: as it was spelled but for the id and the progress token, which
    /// are the broker's own, so that nobody is told of its progress. The server's raw result. For a legacy server.
    pub async fn request_of(&self, request: &CallRequest) -> Result<String, RequestError> {
        let id = self.own_id();
        self.result_of(id, request.upstream_line(id, Outbound::default())).await
    }

    async fn result_of(&self, id: u64, line: Vec<u8>) -> Result<String, RequestError> {
        let in_flight = self.send(id, line, None, None, Box::new(())).map_err(|_| RequestError::Lost)?;
        // Whoever does not wait for the answer leaves nothing behind.
        let _entry = OwnEntry { link: self, id };
        let outcome = tokio::select! {
            // Cancel safe: the receiver is not used again.
            outcome = in_flight.outcome => outcome,
            () = self.lost() => return Err(RequestError::Lost),
        };
        match outcome {
            Ok(Outcome::Answered(answer)) if answer.is_error => {
                let code = members(answer.payload(), ["code"]).ok().and_then(|[code]| code?.parse().ok());
                Err(RequestError::Refused { code: code.unwrap_or_default(), error: answer.payload().into() })
            }
            Ok(Outcome::Answered(answer)) => Ok(answer.payload().to_owned()),
            Ok(Outcome::TooLarge { len, max }) => Err(RequestError::TooLarge { len, max }),
            Ok(Outcome::Cancelled | Outcome::TimedOut | Outcome::Lost(_)) | Err(_) => Err(RequestError::Lost),
        }
    }
}

/// The entry of a request of the broker's own, for as long as somebody waits for its answer.
struct OwnEntry<'l> {
    link: &'l Link,
    id: u64,
}

impl Drop for OwnEntry<'_> {
    fn drop(&mut self) {
        drop(self.link.pending().remove(self.id));
    }
}

fn malformed(e: serde_json::Error) -> RequestError {
    RequestError::Malformed(e.to_string())
}

fn read_discovery(result: &str) -> Result<Greeting, HandshakeError> {
    let fault = |e| HandshakeError::Discover(malformed(e));
    let lacks = |what: &str| HandshakeError::Discover(RequestError::Malformed(format!("`{what}` is missing")));
    let [versions, capabilities, instructions, about] =
        members(result, ["supportedVersions", "capabilities", "instructions", "_meta"]).map_err(fault)?;
    let versions: Vec<String> =
        versions.and_then(|raw| serde_json::from_str(raw).ok()).ok_or_else(|| lacks("supportedVersions"))?;
    if !versions.iter().any(|version| version == MODERN) {
        return Err(HandshakeError::Version(shown(&versions.join(", "))));
    }
    let [info] = about.map_or(Ok([None]), |about| members(about, [meta::SERVER_INFO])).map_err(fault)?;
    let raw = |text: Option<&str>| RawValue::from_string(text.unwrap_or("{}").to_owned()).map_err(fault);
    Ok(Greeting {
        protocol_version: MODERN.to_owned(),
        server_info: raw(info)?,
        capabilities: raw(Some(capabilities.ok_or_else(|| lacks("capabilities"))?))?,
        instructions: instructions.and_then(string).map(|text| text.into_owned()),
    })
}

fn read_greeting(result: &str) -> Result<Greeting, HandshakeError> {
    let [version, info, capabilities, instructions] =
        members(result, ["protocolVersion", "serverInfo", "capabilities", "instructions"])
            .map_err(|e| HandshakeError::Initialize(malformed(e)))?;
    let raw = |value: Option<&str>, name| {
        let value = value.filter(|value| value.starts_with('{')).ok_or(HandshakeError::Lacks(name))?;
        RawValue::from_string(value.to_owned()).map_err(|e| HandshakeError::Initialize(malformed(e)))
    };
    Ok(Greeting {
        protocol_version: version.and_then(string).ok_or(HandshakeError::Lacks("protocolVersion"))?.into_owned(),
        server_info: raw(info, "serverInfo")?,
        capabilities: raw(capabilities, "capabilities")?,
        instructions: instructions.and_then(string).map(|text| text.into_owned()),
    })
}
