//! What clients are told of a backend without asking it: ready bytes.

use bytes::Bytes;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::catalog::Catalog;
use crate::core::digest::Digest;
use crate::protocol::version::{LEGACY, MODERN, meta, supported};

/// How long a modern client may keep a list, in milliseconds. Who listens is told when it changes; who does not should
/// see it within minutes.
const LIST_TTL_MS: u64 = 300_000;

/// Response bodies from behind the id on: `,"result":…}`. The front writes `{"jsonrpc":"2.0","id":` and the id first.
#[derive(Debug)]
pub struct Surface {
    initialize: Vec<(&'static str, Bytes)>,
    pub tools: Bytes,
    /// Of the list, for those who are to be told when it is another.
    pub tools_digest: Digest,
    pub tools_modern: Bytes,
    pub discover: Bytes,
}

impl Surface {
    /// `tools` are the raw definitions of the visible tools in their order.
    pub fn new(catalog: &Catalog, tools: &[&RawValue], capabilities: &Value) -> Self {
        let server_info = catalog.server_info.get();
        let instructions =
            catalog.instructions.as_ref().map(|text| format!(r#","instructions":{}"#, Value::from(text.as_str())));
        let instructions = instructions.unwrap_or_default();
        let initialize = |version: &'static str| {
            let result = format!(
                r#"{{"protocolVersion":"{version}","capabilities":{capabilities},"serverInfo":{server_info}{instructions}}}"#
            );
            (version, tail(&result))
        };
        let list = tools.iter().map(|tool| tool.get()).collect::<Vec<_>>().join(",");
        let versions = Value::from(supported().collect::<Vec<_>>());
        Self {
            initialize: LEGACY.into_iter().map(initialize).collect(),
            tools: tail(&format!(r#"{{"tools":[{list}]}}"#)),
            tools_digest: Digest::of(list.as_bytes()),
            tools_modern: tail(&format!(
                r#"{{"resultType":"complete","tools":[{list}],"ttlMs":{LIST_TTL_MS},"cacheScope":"public"}}"#
            )),
            discover: tail(&format!(
                r#"{{"resultType":"complete","supportedVersions":{versions},"capabilities":{capabilities}{instructions},"ttlMs":{LIST_TTL_MS},"cacheScope":"public","_meta":{{"{}":{server_info}}}}}"#,
                meta::SERVER_INFO
            )),
        }
    }

    /// The answer to `initialize` for a negotiated version.
    pub fn initialize(&self, version: &str) -> Bytes {
        debug_assert_ne!(version, MODERN, "the modern version is never negotiated");
        let found = self.initialize.iter().find(|(known, _)| *known == version).or(self.initialize.last());
        found.map(|(_, body)| body.clone()).unwrap_or_default()
    }

    /// Bytes held, for status.
    pub fn len(&self) -> usize {
        self.tools.len() + self.tools_modern.len() + self.discover.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

fn tail(result: &str) -> Bytes {
    format!(r#","result":{result}}}"#).into()
}
