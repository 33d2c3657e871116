//! `resources/…` of what the broker itself keeps for a scope, for backends whose policy makes links. What a server offers
//! as its own is relayed like any other request.

use bytes::Bytes;

use super::relay::first_page;
use super::serve::{Front, Mounted};
use crate::broker::KEPT_SCHEME;
use crate::protocol::error::RpcError;
use crate::protocol::raw::{members, string};
use crate::protocol::version::Era;
use crate::supervisor::{InstanceKey, ScopeKey};

/// A request that the broker answers from what it keeps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Kept {
    /// What is reviewed, and behind it what is kept.
    List,
    Read {
        uri: String,
    },
}

impl Kept {
    /// `None` for what is not about kept things.
    pub fn asked(mounted: &Mounted, method: &str, params: Option<&str>) -> Option<Result<Self, RpcError>> {
        if !mounted.backend.keeps_media() {
            return None;
        }
        match method {
            "resources/list" => Some(first_page(params).map(|()| Self::List)),
            "resources/read" => {
                let uri = params.and_then(|params| members(params, ["uri"]).ok()?[0]).and_then(string);
                // Where the server has none of its own, whatever is read can only be one that is kept.
                let is_kept = uri.as_ref().is_some_and(|uri| uri.starts_with(KEPT_SCHEME));
                let malformed = || RpcError::invalid_params("`params.uri` of resources/read must be a string");
                (is_kept || !mounted.backend.offers.resources)
                    .then(|| uri.map(|uri| Self::Read { uri: uri.into_owned() }).ok_or_else(malformed))
            }
            _ => None,
        }
    }

    /// The answer from behind the id on.
    pub async fn answer(&self, front: &Front, mounted: &Mounted, scope: ScopeKey, era: Era) -> Result<Bytes, RpcError> {
        let key = InstanceKey { backend: mounted.backend.name.clone(), scope };
        match self {
            Self::List => Ok(front.broker.list_resources(&mounted.backend, &key, era).await),
            Self::Read { uri } => front.broker.read_resource(&key, uri, era).await,
        }
    }
}
