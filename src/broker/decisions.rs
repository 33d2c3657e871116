//! What a policy decided about a call, told to those who follow the events; and verdicts that are waited for.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::Broker;
use super::call::{Client, Reply};
use super::fault::Fault;
use crate::core::digest::Digest;
use crate::events::{Decision, EventLog, What};
use crate::policy::{CallFacts, ClientName, RequestFacts, ScopeVerdict};
use crate::protocol::call::CallRequest;
use crate::protocol::raw::{members, string};
use crate::protocol::version::{Era, meta};
use crate::snapshot::Backend;
use crate::supervisor::ScopeKey;

/// Digits of the hash that stands for a session.
const SESSION_DIGITS: usize = 16;

/// The policy of one call, as its decisions are told of. No argument, result or reason is in them (invariant 13).
#[derive(Clone, Debug)]
pub(super) struct Decider {
    pub events: Arc<EventLog>,
    pub backend: Arc<Backend>,
    /// The method, of a request that is no call of a tool.
    pub tool: Arc<str>,
    pub is_tool: bool,
}

impl Decider {
    pub fn tell(&self, rule: Option<String>, what: fn(Decision) -> What) {
        self.events.record(what(Decision {
            backend: self.backend.name.clone(),
            tool: self.tool.clone(),
            rule: rule.unwrap_or_default(),
            policy_digest: self.backend.policy.digest,
        }));
    }
}

/// The policy failed on a result; the result stays here.
pub(super) fn withheld(decider: &Decider, rule: Option<String>, failure: &dyn fmt::Display) -> Reply {
    let backend = &decider.backend.name;
    tracing::warn!(%backend, tool = %decider.tool, %failure, "a result was withheld");
    decider.tell(rule, |decision| What::ResultWithheld { decision });
    Reply::Fault(if decider.is_tool { Fault::policy_failed(backend) } else { Fault::policy_failed_on_answer(backend) })
}

/// What a hook sees of a call; `arguments` are those that count now.
pub(super) fn facts(client: &Client, request: &CallRequest, arguments: Option<&str>) -> Arc<CallFacts> {
    Arc::new(CallFacts {
        tool: request.tool().unwrap_or_default().to_owned(),
        arguments: arguments.map(str::to_owned),
        session: session_hash(client),
        client: client_name(request),
    })
}

/// One word for all calls of a session or of a scope key; a request that stands alone has none.
fn session_hash(client: &Client) -> Option<String> {
    let text = match (client.era, &client.scope) {
        (Era::Legacy, _) => format!("session:{:032x}", client.key),
        (Era::Modern, ScopeKey::Named(name)) => format!("named:{name}"),
        (Era::Modern, _) => return None,
    };
    Some(Digest::of(text.as_bytes()).short(SESSION_DIGITS))
}

/// Modern requests say it each time; a legacy client says it once, and a session does not keep it.
fn client_name(request: &CallRequest) -> Option<ClientName> {
    let [info] = members(request.meta()?, [meta::CLIENT_INFO]).ok()?;
    let [name, version] = members(info?, ["name", "version"]).ok()?;
    let text = |raw: Option<&str>| raw.and_then(string).map(|text| text.into_owned()).unwrap_or_default();
    Some(ClientName { name: text(name), version: text(version) })
}

/// The policy could not say whom a request belongs to. Why is in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the policy failed on this request")]
pub struct PolicyFailed;

impl Broker {
    /// The scope key that the policy's `scope_key` gives a request without a session; none if it has no such hook, or
    /// the hook has no key for it.
    pub async fn scope_by_policy(
        &self,
        backend: &Backend,
        request: impl FnOnce() -> RequestFacts,
    ) -> Result<Option<ScopeKey>, PolicyFailed> {
        if !backend.policy.has_scope_key() {
            return Ok(None);
        }
        match backend.policy.judge_scope(request()).await.verdict {
            ScopeVerdict::Key(key) => Ok(Some(ScopeKey::Named(key.into()))),
            ScopeVerdict::NoKey => Ok(None),
            ScopeVerdict::Failed(failure) => {
                tracing::warn!(backend = %backend.name, %failure, "a request was refused: its policy failed");
                Err(PolicyFailed)
            }
        }
    }
}

/// Something that another thread works out. Dropping it is losing interest.
pub(super) struct Later<T>(Pin<Box<dyn Future<Output = T> + Send>>);

impl<T> Later<T> {
    pub fn new(work: impl Future<Output = T> + Send + 'static) -> Self {
        Self(Box::pin(work))
    }
}

impl<T> Future for Later<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        self.0.as_mut().poll(context)
    }
}

impl<T> fmt::Debug for Later<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Later")
    }
}
