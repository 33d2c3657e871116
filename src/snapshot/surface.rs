//! What clients are told of a backend without asking it: ready bytes.

use bytes::Bytes;
use serde_json::Value;
use serde_json::value::RawValue;

use super::offers::Offers;
use crate::catalog::Catalog;
use crate::core::digest::Digest;
use crate::protocol::raw::{entries, members, object};
use crate::protocol::version::{Era, LEGACY, MODERN, meta, supported};

/// How long a modern client may keep a list, in milliseconds. Who listens is told when it changes; who does not should
/// see it within minutes.
const LIST_TTL_MS: u64 = 300_000;

/// Response bodies from behind the id on: `,"result":…}`. The front writes `{"jsonrpc":"2.0","id":` and the id first.
#[derive(Debug)]
pub struct Surface {
    initialize: Vec<(&'static str, Bytes)>,
    pub discover: Bytes,
    pub tools: List,
    /// As offered.
    prompts: Option<List>,
    resources: Option<List>,
    templates: Option<List>,
}

/// One list, whole: it has one page.
#[derive(Debug)]
pub struct List {
    pub legacy: Bytes,
    pub modern: Bytes,
    /// For those who are to be told when it is another.
    pub digest: Digest,
    /// The items, between brackets.
    pub items: Bytes,
}

/// The lists whose changes clients can ask to be told of, as their digests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ListDigests {
    pub tools: Option<Digest>,
    pub prompts: Option<Digest>,
    pub resources: Option<Digest>,
}

impl List {
    fn new<'a>(member: &str, items: impl Iterator<Item = &'a RawValue>) -> Self {
        let items = items.map(RawValue::get).collect::<Vec<_>>().join(",");
        Self {
            legacy: tail(&format!(r#"{{"{member}":[{items}]}}"#)),
            modern: tail(&format!(
                r#"{{"resultType":"complete","{member}":[{items}],"ttlMs":{LIST_TTL_MS},"cacheScope":"public"}}"#
            )),
            digest: Digest::of(items.as_bytes()),
            items: items.into(),
        }
    }

    /// The answer from behind the id on.
    pub fn answer(&self, era: Era) -> &Bytes {
        match era {
            Era::Legacy => &self.legacy,
            Era::Modern => &self.modern,
        }
    }
}

impl Surface {
    /// `tools` are the raw definitions of the visible tools in their order.
    pub fn new(catalog: &Catalog, offers: &Offers, tools: &[&RawValue], keeps_media: bool) -> Self {
        let capabilities = capabilities(catalog, offers, keeps_media);
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
        let versions = Value::from(supported().collect::<Vec<_>>());
        let list = |member, items: &[Box<RawValue>]| List::new(member, items.iter().map(|item| &**item));
        let has_resources = offers.resources || keeps_media;
        Self {
            initialize: LEGACY.into_iter().map(initialize).collect(),
            tools: List::new("tools", tools.iter().copied()),
            prompts: offers.prompts.then(|| list("prompts", &catalog.prompts)),
            resources: has_resources.then(|| list("resources", &catalog.resources)),
            templates: has_resources.then(|| list("resourceTemplates", &catalog.resource_templates)),
            discover: tail(&format!(
                r#"{{"resultType":"complete","supportedVersions":{versions},"capabilities":{capabilities}{instructions},"ttlMs":{LIST_TTL_MS},"cacheScope":"public","_meta":{{"{}":{server_info}}}}}"#,
                meta::SERVER_INFO
            )),
        }
    }

    /// The list that a method asks for, if it is offered.
    pub fn list(&self, method: &str) -> Option<&List> {
        match method {
            "tools/list" => Some(&self.tools),
            "prompts/list" => self.prompts.as_ref(),
            "resources/list" => self.resources.as_ref(),
            "resources/templates/list" => self.templates.as_ref(),
            _ => None,
        }
    }

    pub fn digests(&self) -> ListDigests {
        ListDigests {
            tools: Some(self.tools.digest),
            prompts: self.prompts.as_ref().map(|list| list.digest),
            resources: self.resources.as_ref().map(|list| list.digest),
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
        let lists = [Some(&self.tools), self.prompts.as_ref(), self.resources.as_ref(), self.templates.as_ref()];
        let lists = lists.into_iter().flatten().map(|list| list.legacy.len() + list.modern.len() + list.items.len());
        lists.sum::<usize>() + self.discover.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Only what the broker relays, or serves itself, is offered. What a server says of its extensions it says itself.
fn capabilities(catalog: &Catalog, offers: &Offers, keeps_media: bool) -> String {
    // Lists change with a reload only, and clients are told.
    let mut offered = vec![r#""tools":{"listChanged":true}"#.to_owned()];
    if offers.prompts {
        offered.push(r#""prompts":{"listChanged":true}"#.to_owned());
    }
    match (offers.resources, offers.subscriptions) {
        (true, true) => offered.push(r#""resources":{"subscribe":true,"listChanged":true}"#.to_owned()),
        (true, false) => offered.push(r#""resources":{"listChanged":true}"#.to_owned()),
        (false, _) if keeps_media => offered.push(r#""resources":{}"#.to_owned()),
        (false, _) => {}
    }
    if offers.completions {
        offered.push(r#""completions":{}"#.to_owned());
    }
    if offers.logging {
        offered.push(r#""logging":{}"#.to_owned());
    }
    offered.extend(beyond(catalog).into_iter().map(|(key, raw)| format!(r#""{key}":{raw}"#)));
    format!("{{{}}}", offered.join(","))
}

/// What a server says that it speaks beyond the protocol: the member of its capabilities, and what is in it.
pub(super) fn beyond(catalog: &Catalog) -> Vec<(&'static str, String)> {
    let found = members(catalog.capabilities.get(), ["experimental", "extensions"]).unwrap_or_default();
    let each = ["experimental", "extensions"].into_iter().zip(found);
    each.filter_map(|(key, raw)| Some((key, without_tasks(raw?)?))).collect()
}

/// Tasks are not relayed: their ids would outlive the answers that the broker waits for.
fn without_tasks(extensions: &str) -> Option<String> {
    let all = entries(extensions).ok()?.into_iter();
    let kept: Vec<_> = all.filter(|(key, _)| key != "io.modelcontextprotocol/tasks" && key != "tasks").collect();
    (!kept.is_empty()).then(|| object(kept))
}

fn tail(result: &str) -> Bytes {
    format!(r#","result":{result}}}"#).into()
}
