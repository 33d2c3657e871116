//! Those whom a server's own words are for, as far as the supervisor has to know them: not at all.

use std::fmt;
use std::sync::Arc;

use super::instance::InstanceKey;
use crate::link::{Link, Listener, Nobody};

/// Knows the clients of an instance.
pub trait Audience: Send + Sync + fmt::Debug {
    /// Who is told what the server of an instance says of its own accord.
    fn listener(&self, instance: &InstanceKey) -> Arc<dyn Listener>;

    /// What a server of this instance is told that its client can do: a raw JSON object.
    fn capabilities(&self, instance: &InstanceKey) -> String;

    /// Whether somebody would hear a question of this server now, with no call out.
    fn is_listening(&self, instance: &InstanceKey) -> bool;

    /// The server has been greeted, and is asked for what its clients wanted while none ran. It must not block.
    fn greeted(&self, instance: &InstanceKey, link: &Link);
}

/// For instances that nobody listens to.
#[derive(Debug)]
pub struct NoAudience;

impl Audience for NoAudience {
    fn listener(&self, _: &InstanceKey) -> Arc<dyn Listener> {
        Arc::new(Nobody)
    }

    fn capabilities(&self, _: &InstanceKey) -> String {
        "{}".to_owned()
    }

    fn is_listening(&self, _: &InstanceKey) -> bool {
        false
    }

    fn greeted(&self, _: &InstanceKey, _: &Link) {}
}
