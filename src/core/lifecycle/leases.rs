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
    /// Set when its call was reported overdue.
    overdue: Option<Overdue>,
}

/// What becomes of it if it is still out then.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Overdue {
    /// The generation is recycled.
    RecycleAt(Moment),
    /// It alone is taken back.
    TakeBackAt(Moment),
    /// It is being taken back.
    TakenBack,
}

impl Overdue {
    fn due(self) -> Option<Moment> {
        match self {
            Self::RecycleAt(at) | Self::TakeBackAt(at) => Some(at),
            Self::TakenBack => None,
        }
    }
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
        self.out.push(Lease { id, overdue: None });
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
    pub(super) fn mark_overdue(&mut self, id: LeaseId, overdue: Overdue) {
        if let Some(lease) = self.out.iter_mut().find(|lease| lease.id == id) {
            lease.overdue.get_or_insert(overdue);
        }
    }

    /// Those that are to be taken back now, each once; they are out until they are released.
    pub(super) fn take_back(&mut self, now: Moment, mut taken: impl FnMut(LeaseId)) {
        for lease in &mut self.out {
            if matches!(lease.overdue, Some(Overdue::TakeBackAt(at)) if at <= now) {
                lease.overdue = Some(Overdue::TakenBack);
                taken(lease.id);
            }
        }
    }

    /// Whether one more may be granted. Not while the generation may be recycled for one that is overdue: a new call would
    /// be lost with it, while one that waits is served by this generation or the next.
    pub(super) fn has_place(&self, leases_max: usize) -> bool {
        self.out.len() < leases_max && self.first_recycle().is_none()
    }

    pub(super) fn first_recycle(&self) -> Option<Moment> {
        let of_recycle = |lease: &Lease| match lease.overdue {
            Some(Overdue::RecycleAt(at)) => Some(at),
            Some(Overdue::TakeBackAt(_) | Overdue::TakenBack) | None => None,
        };
        self.out.iter().filter_map(of_recycle).min()
    }

    /// When something becomes of an overdue lease.
    pub(super) fn first_due(&self) -> Option<Moment> {
        self.out.iter().filter_map(|lease| lease.overdue?.due()).min()
    }

    /// No generation is recycled for an overdue lease any more: each is taken back instead, at the same moment.
    pub(super) fn spare_the_generation(&mut self) {
        for overdue in self.out.iter_mut().filter_map(|lease| lease.overdue.as_mut()) {
            if let Overdue::RecycleAt(at) = *overdue {
                *overdue = Overdue::TakeBackAt(at);
            }
        }
    }

    /// Moves them out, for a state that follows.
    pub(super) fn take(&mut self) -> Self {
        Self { out: std::mem::take(&mut self.out), idle_since: self.idle_since.take() }
    }

    pub(super) fn map_moments(&mut self, at: &mut impl FnMut(Moment) -> Moment) {
        self.idle_since = self.idle_since.map(&mut *at);
        for lease in &mut self.out {
            lease.overdue = lease.overdue.map(|overdue| match overdue {
                Overdue::RecycleAt(moment) => Overdue::RecycleAt(at(moment)),
                Overdue::TakeBackAt(moment) => Overdue::TakeBackAt(at(moment)),
                Overdue::TakenBack => Overdue::TakenBack,
            });
        }
    }
}
