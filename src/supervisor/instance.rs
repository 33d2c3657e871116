//! What names a slot.

use std::fmt;
use std::sync::Arc;

use crate::core::digest::Digest;

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

impl InstanceKey {
    /// A digest of the scope key, for status and logs: a session id is a credential and never shows.
    pub fn scope_key_hash(&self) -> String {
        let text = match &self.scope {
            ScopeKey::Shared => return "shared".to_owned(),
            ScopeKey::Session(id) => format!("session:{id:032x}"),
            ScopeKey::Named(name) => format!("named:{name}"),
        };
        Digest::of(format!("{}\n{text}", self.backend).as_bytes()).short(HASH_DIGITS)
    }
}

/// Hex digits of a scope key's hash: 48 bits, so that ten thousand sessions share one with odds of 1 in 5 million.
const HASH_DIGITS: usize = 12;

impl fmt::Display for InstanceKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.backend, self.scope_key_hash())
    }
}
