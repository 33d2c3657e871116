//! What names a slot.

use std::sync::Arc;

use crate::catalog::Catalog;
use crate::core::digest::Digest;
use crate::protocol::version::Era;

/// What an instance is shared by.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ScopeKey {
    /// By everyone.
    Shared,
    /// By the requests of one protocol session.
    Session(u128),
    /// By the requests that name this key in their URL or header.
    Named(Arc<str>),
}

/// A backend and a scope key: the name of a slot.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct InstanceKey {
    pub backend: Arc<str>,
    pub scope: ScopeKey,
}

impl ScopeKey {
    pub fn is_shared(&self) -> bool {
        matches!(self, Self::Shared)
    }
}

impl InstanceKey {
    /// The manner in which the server of this instance is spoken to: that of its clients where there is one, so that as
    /// little as possible has to be translated. On a shared instance the modern one is the better of both, because its
    /// requests say for themselves what others have to be remembered for.
    pub fn era_of(&self, catalog: &Catalog) -> Era {
        let wanted = match self.scope {
            ScopeKey::Session(_) => Era::Legacy,
            ScopeKey::Named(_) | ScopeKey::Shared => Era::Modern,
        };
        match (wanted, catalog.speaks(wanted)) {
            (_, true) => wanted,
            (Era::Legacy, false) => Era::Modern,
            (Era::Modern, false) => Era::Legacy,
        }
    }

    /// A digest of the scope key, for status and logs: a session id is a credential and never shows.
    pub fn scope_key_hash(&self) -> String {
        Digest::of(self.scope_text().as_bytes()).short(HASH_DIGITS)
    }

    /// Short name of the instance, as operators type it and processes carry it: no two slots of this machine share
    /// one, whatever brokers they belong to.
    pub fn instance_id(&self, installation: &str) -> String {
        Digest::of(format!("{installation}\n{}\n{}", self.backend, self.scope_text()).as_bytes()).short(HASH_DIGITS)
    }

    fn scope_text(&self) -> String {
        match &self.scope {
            ScopeKey::Shared => "shared".to_owned(),
            ScopeKey::Session(id) => format!("session:{id:032x}"),
            ScopeKey::Named(name) => format!("named:{name}"),
        }
    }
}

/// Hex digits of a scope key's hash: 48 bits, so that ten thousand sessions share one with odds of 1 in 5 million.
const HASH_DIGITS: usize = 12;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_belongs_to_one_backend_one_scope_and_one_installation() {
        let key = |backend: &str, scope| InstanceKey { backend: backend.into(), scope };
        let ids = [
            key("a", ScopeKey::Shared).instance_id("x"),
            key("a", ScopeKey::Shared).instance_id("y"),
            key("b", ScopeKey::Shared).instance_id("x"),
            key("a", ScopeKey::Session(1)).instance_id("x"),
            key("a", ScopeKey::Named("shared".into())).instance_id("x"),
        ];
        assert_eq!(ids.iter().collect::<std::collections::BTreeSet<_>>().len(), ids.len());
    }
}
