//! `resources/…`: what the broker keeps for a scope, for backends whose policy makes links. Nothing is asked of a server.

use bytes::Bytes;

use super::legacy::first_page;
use super::serve::{Front, Mounted};
use crate::protocol::error::RpcError;
use crate::protocol::raw::{members, string};
use crate::protocol::version::Era;
use crate::supervisor::{InstanceKey, ScopeKey};

/// Methods of this family that are served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    List,
    Templates,
    Read { uri: String },
}

impl Asked {
    /// `None` for another method, or where the backend does not offer resources.
    pub fn parse(mounted: &Mounted, method: &str, params: Option<&str>) -> Option<Result<Self, RpcError>> {
        if !mounted.backend.offers_resources() {
            return None;
        }
        match method {
            "resources/list" => Some(first_page(params).map(|()| Self::List)),
            "resources/templates/list" => Some(first_page(params).map(|()| Self::Templates)),
            "resources/read" => Some(uri_of(params).map(|uri| Self::Read { uri })),
            _ => None,
        }
    }

    /// The answer from behind the id on.
    pub async fn answer(&self, front: &Front, mounted: &Mounted, scope: ScopeKey, era: Era) -> Result<Bytes, RpcError> {
        let key = InstanceKey { backend: mounted.backend.name.clone(), scope };
        match self {
            Self::List => Ok(front.broker.list_resources(&key, era).await),
            Self::Templates => Ok(front.broker.list_resource_templates(era)),
            Self::Read { uri } => front.broker.read_resource(&key, uri, era).await,
        }
    }
}

fn uri_of(params: Option<&str>) -> Result<String, RpcError> {
    let malformed = || RpcError::invalid_params("`params.uri` of resources/read must be a string");
    let [uri] = members(params.ok_or_else(malformed)?, ["uri"]).map_err(|_| malformed())?;
    Ok(uri.and_then(string).ok_or_else(malformed)?.into_owned())
}
