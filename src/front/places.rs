//! A bounded number of places that are taken and given back: streams, requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// So many, and no more.
#[derive(Debug)]
pub struct Places {
    taken: Arc<AtomicUsize>,
    max: usize,
}

/// A place that is taken; dropped, it is free again.
#[derive(Debug)]
pub(super) struct Place(Arc<AtomicUsize>);

impl Places {
    pub(super) fn new(max: usize) -> Self {
        Self { taken: Arc::default(), max }
    }

    pub(super) fn take(&self) -> Option<Place> {
        let before = self.taken.fetch_add(1, Ordering::Relaxed);
        let place = Place(self.taken.clone());
        (before < self.max).then_some(place)
    }

    pub(super) fn taken(&self) -> usize {
        self.taken.load(Ordering::Relaxed)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_bounded_and_come_back() {
        let places = Places::new(2);
        let held = (places.take(), places.take());
        assert!(places.take().is_none());
        assert_eq!(places.taken(), 2);
        drop(held);
        assert_eq!(places.taken(), 0);
    }
}
