//! The leases of one generation that are out.

use super::event::LeaseId;
use crate::core::moment::Moment;

/// **Invariant:** `idle_since` is known exactly while no lease is out.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Leases {
    out: Vec<Lease>,
    idle_since: Option<Moment>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Lease {
    id: LeaseId,
    /// When the generation is recycled if this lease is still out; set when its call was reported overdue.
    recycle_at: Option<Moment>,
}

impl Leases {
    /// None is out, since `now`.
    pub(super) fn none(now: Moment) -> Self {
        Self { out: Vec::new(), idle_since: Some(now) }
    }

    pub(super) fn active(&self) -> usize {
        self.out.len()
    }

    pub(super) fn idle_since(&self) -> Option<Moment> {
        self.idle_since
    }

    pub(super) fn grant(&mut self, id: LeaseId) {
        self.out.push(Lease { id, recycle_at: None });
        self.idle_since = None;
    }

    /// False when no such lease is out.
    pub(super) fn release(&mut self, id: LeaseId, now: Moment) -> bool {
        let Some(at) = self.out.iter().position(|lease| lease.id == id) else { return false };
        self.out.remove(at);
        if self.out.is_empty() {
            self.idle_since = Some(now);
        }
        true
    }

    /// Nothing happens when the lease is not out, or when it was overdue before: the first report counts.
    pub(super) fn recycle_at(&mut self, id: LeaseId, at: Moment) {
        if let Some(lease) = self.out.iter_mut().find(|lease| lease.id == id) {
            lease.recycle_at.get_or_insert(at);
        }
    }

    pub(super) fn first_recycle(&self) -> Option<Moment> {
        self.out.iter().filter_map(|lease| lease.recycle_at).min()
    }

    /// Overdue leases are waited for again like all others.
    pub(super) fn forgive(&mut self) {
        for lease in &mut self.out {
            lease.recycle_at = None;
        }
    }

    /// Moves them out, for a state that follows.
    pub(super) fn take(&mut self) -> Self {
        Self { out: std::mem::take(&mut self.out), idle_since: self.idle_since.take() }
    }

    pub(super) fn map_moments(&mut self, at: &mut impl FnMut(Moment) -> Moment) {
        self.idle_since = self.idle_since.map(&mut *at);
        for lease in &mut self.out {
            lease.recycle_at = lease.recycle_at.map(&mut *at);
        }
    }
}
