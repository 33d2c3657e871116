//! Comparing what a server lists today with what was reviewed.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use serde_json::value::RawValue;

use super::model::Catalog;
use super::write::tool_parts;
use crate::core::digest::Digest;

/// The tools that differ between a catalog and a live list, by name. Empty means that there is no drift.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Drift {
    /// In both, with another definition.
    pub changed: BTreeSet<String>,
    /// In the live list alone. Clients never see them.
    pub added: BTreeSet<String>,
    /// In the catalog alone: a call of one would fail.
    pub removed: BTreeSet<String>,
}

impl Drift {
    pub fn is_empty(&self) -> bool {
        self.changed.is_empty() && self.added.is_empty() && self.removed.is_empty()
    }
}

/// A live list as far as it can be compared with another catalog later: some hundred bytes a tool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LiveTools(BTreeMap<String, Definition>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Definition {
    Sound(Digest),
    /// A key twice, or listed twice with two definitions: it is nobody's.
    Unsound,
}

impl LiveTools {
    /// `catalog` saves the work of digesting what is in it with the same bytes.
    pub fn of(live_tools: &[Box<RawValue>], catalog: &Catalog) -> Self {
        let reviewed: BTreeMap<&str, _> = catalog.tools.iter().map(|tool| (tool.name.as_str(), tool)).collect();
        let mut tools = BTreeMap::new();
        for live in live_tools {
            let Some(name) = name_of(live) else { continue };
            let known = reviewed.get(name.as_str()).filter(|tool| tool.raw.get() == live.get());
            let digest = known.map(|tool| tool.digest).or_else(|| Some(tool_parts(live).ok()?.1));
            let found = digest.map_or(Definition::Unsound, Definition::Sound);
            tools
                .entry(name)
                .and_modify(|known| {
                    if *known != found {
                        *known = Definition::Unsound;
                    }
                })
                .or_insert(found);
        }
        Self(tools)
    }

    /// Tools that are in both, with another definition: [`Drift::changed`].
    pub fn changed_from(&self, catalog: &Catalog) -> BTreeSet<String> {
        let differs = |tool: &&super::CatalogTool| {
            self.0.get(&tool.name).is_some_and(|live| *live != Definition::Sound(tool.digest))
        };
        catalog.tools.iter().filter(differs).map(|tool| tool.name.clone()).collect()
    }
}

/// Compares a live list, all pages of it, with a catalog.
///
/// Equal bytes are equal tools; others are compared by the digest of their canonical JSON, so that key order and
/// spacing are no drift. A live definition that is not sound (a key twice) or is listed twice with two definitions has
/// changed; one without a name cannot be called and does not count.
pub fn drift(catalog: &Catalog, live_tools: &[Box<RawValue>]) -> Drift {
    let mut drift = Drift::default();
    let mut unseen: BTreeMap<&str, _> = catalog.tools.iter().map(|tool| (tool.name.as_str(), tool)).collect();
    let reviewed = unseen.clone();
    for live in live_tools {
        let Some(name) = name_of(live) else { continue };
        unseen.remove(name.as_str());
        match reviewed.get(name.as_str()) {
            None => {
                drift.added.insert(name);
            }
            Some(tool) if tool.raw.get() == live.get() => {}
            Some(tool) if tool_parts(live).is_ok_and(|(_, digest)| digest == tool.digest) => {}
            Some(_) => {
                drift.changed.insert(name);
            }
        }
    }
    drift.removed = unseen.into_keys().map(str::to_owned).collect();
    drift
}

fn name_of(live: &RawValue) -> Option<String> {
    #[derive(Deserialize)]
    struct Named {
        name: String,
    }
    if let Ok(Named { name }) = serde_json::from_str(live.get()) {
        return Some(name);
    }
    // The name itself may be there twice: then the last, as most readers take it.
    serde_json::from_str::<serde_json::Value>(live.get()).ok()?.get("name")?.as_str().map(str::to_owned)
}
