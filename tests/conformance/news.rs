//! Changes that clients can follow, and who follows them: streams of `subscriptions/listen`, and in the legacy era
//! subscribers of a resource.
//!
//! A change of the tools or prompts is told, but the lists stay as they are: a list that differed from one minute to
//! the next would be drift to a broker, and no check of the suite asks for it.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rmcp::RoleServer;
use rmcp::model::ResourceUpdatedNotificationParam;
use rmcp::service::{Peer, SubscriptionContext};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::broadcast::{self, Receiver};

use crate::resources;

/// More changes than a listener could miss in a test.
const CHANGES_KEPT: usize = 64;

#[derive(Clone, Copy)]
pub enum Change {
    Tools,
    Prompts,
    WatchedResource,
}

pub struct News {
    changes: broadcast::Sender<Change>,
    /// Legacy subscribers, by URI.
    subscribers: Mutex<Vec<(String, Peer<RoleServer>)>>,
    /// How often the watched resource has changed.
    revision: AtomicU32,
}

impl Default for News {
    fn default() -> Self {
        Self {
            changes: broadcast::Sender::new(CHANGES_KEPT),
            subscribers: Mutex::default(),
            revision: AtomicU32::new(1),
        }
    }
}

impl News {
    pub fn revision(&self) -> u32 {
        self.revision.load(Ordering::Relaxed)
    }

    pub fn subscribe(&self, uri: String, peer: Peer<RoleServer>) {
        let mut subscribers = self.subscribers.lock().unwrap_or_else(PoisonError::into_inner);
        if !subscribers.iter().any(|(known, other)| *known == uri && is_same(other, &peer)) {
            subscribers.push((uri, peer));
        }
    }

    pub fn unsubscribe(&self, uri: &str, peer: &Peer<RoleServer>) {
        let mut subscribers = self.subscribers.lock().unwrap_or_else(PoisonError::into_inner);
        subscribers.retain(|(known, other)| known != uri || !is_same(other, peer));
    }

    /// Makes a change known: to who follows, and to the legacy client that caused it or subscribed to it.
    pub async fn publish(&self, change: Change, cause: &Peer<RoleServer>, cause_is_legacy: bool) {
        if matches!(change, Change::WatchedResource) {
            self.revision.fetch_add(1, Ordering::Relaxed);
        }
        // Without listeners there is nobody to tell.
        self.changes.send(change).ok();
        match change {
            Change::Tools if cause_is_legacy => drop(cause.notify_tool_list_changed().await),
            Change::Prompts if cause_is_legacy => drop(cause.notify_prompt_list_changed().await),
            Change::Tools | Change::Prompts => {}
            Change::WatchedResource => self.tell_subscribers().await,
        }
    }

    async fn tell_subscribers(&self) {
        let peers: Vec<Peer<RoleServer>> = {
            let mut subscribers = self.subscribers.lock().unwrap_or_else(PoisonError::into_inner);
            subscribers.retain(|(_, peer)| !peer.is_transport_closed());
            subscribers.iter().map(|(_, peer)| peer.clone()).collect()
        };
        for peer in peers {
            let update = ResourceUpdatedNotificationParam::new(resources::WATCHED);
            peer.notify_resource_updated(update).await.ok();
        }
    }

    /// All changes from now on.
    pub fn follow(&self) -> Receiver<Change> {
        self.changes.subscribe()
    }
}

/// Tells a listener of what it asked for, until it goes away.
pub async fn tell(subscription: &SubscriptionContext, mut changes: Receiver<Change>) {
    let sink = subscription.sink();
    loop {
        // Both can be dropped at any time: a change that was not received stays in the channel.
        let change = tokio::select! {
            () = subscription.cancelled() => return,
            change = changes.recv() => change,
        };
        // What this listener did not ask for is refused by the sink, and so is everything once it is closed.
        match change {
            Ok(Change::Tools) => drop(sink.notify_tool_list_changed().await),
            Ok(Change::Prompts) => drop(sink.notify_prompt_list_changed().await),
            Ok(Change::WatchedResource) => drop(sink.notify_resource_updated(resources::WATCHED).await),
            Err(RecvError::Lagged(_)) => {}
            Err(RecvError::Closed) => return,
        }
    }
}

/// Peers of one session share what was negotiated in it.
fn is_same(one: &Peer<RoleServer>, other: &Peer<RoleServer>) -> bool {
    match (one.peer_info(), other.peer_info()) {
        (Some(one), Some(other)) => Arc::ptr_eq(&one, &other),
        _ => false,
    }
}
