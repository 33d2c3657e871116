//! Who may start: the places that live slots share, and how many starts go on at the same time.
//!
//! A slot asks for a place before it starts anything and keeps it until its tree is proved empty, so that what runs on
//! the machine is bounded by what was proved, not by what was hoped. First asked, first served: a slot that waits for a
//! place is not overtaken by one that would fit.
//! It leaves to the supervisor whom to stop when there are too few places, and to the slot how long anybody waits.

use std::collections::{BTreeMap, VecDeque};

use super::lifecycle::{PublicState, Slot};

/// Bounds of everything that runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AdmissionLimits {
    /// Slots that may have processes at the same time; with 0 nothing ever starts.
    pub live_max: usize,
    /// Of those, the ones that are on their way up; with 0 nothing ever starts.
    pub starts_max: usize,
}

/// Names a slot here; the supervisor never uses a number twice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SlotNumber(pub u64);

/// Who has a place and who waits for one.
#[derive(Clone, Debug)]
pub struct Admission {
    limits: AdmissionLimits,
    asking: VecDeque<SlotNumber>,
    holding: BTreeMap<SlotNumber, Phase>,
}

/// What the place of a slot is used for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    Starting,
    Serving,
    /// On its way out: the place will be free without anybody's doing.
    Leaving,
    /// Its processes could not be proved gone, or its start was given up and does not come to an end: the place is not
    /// free, and who knows when it will be.
    Stuck,
}

impl Phase {
    pub fn of(slot: &Slot) -> Self {
        match slot.public_state() {
            PublicState::Starting => Self::Starting,
            PublicState::Ready => Self::Serving,
            PublicState::Stopping if slot.is_overdue() => Self::Stuck,
            PublicState::Draining | PublicState::Stopping => Self::Leaving,
            PublicState::CleanupFailed => Self::Stuck,
            // It is about to give its place back.
            PublicState::Stopped => Self::Leaving,
        }
    }
}

impl Admission {
    pub fn new(limits: AdmissionLimits) -> Self {
        Self { limits, asking: VecDeque::new(), holding: BTreeMap::new() }
    }

    pub fn limits(&self) -> AdmissionLimits {
        self.limits
    }

    /// Asks for a place; whether there is one at once. Otherwise some later step admits it.
    pub fn ask(&mut self, slot: SlotNumber) -> bool {
        self.asking.push_back(slot);
        self.admit().contains(&slot)
    }

    /// The place is given back, or not asked for any more. Who is admitted by that.
    pub fn vacate(&mut self, slot: SlotNumber) -> Vec<SlotNumber> {
        self.asking.retain(|asks| *asks != slot);
        self.holding.remove(&slot);
        self.admit()
    }

    /// What a slot with a place is doing now. Who is admitted by that.
    pub fn note(&mut self, slot: SlotNumber, phase: Phase) -> Vec<SlotNumber> {
        if let Some(known) = self.holding.get_mut(&slot) {
            *known = phase;
        }
        self.admit()
    }

    /// Fewer places than are taken turn nobody out; [`missing`](Self::missing) says how many are too many. Who is
    /// admitted by more places.
    pub fn set_limits(&mut self, limits: AdmissionLimits) -> Vec<SlotNumber> {
        self.limits = limits;
        self.admit()
    }

    pub fn holds(&self, slot: SlotNumber) -> bool {
        self.holding.contains_key(&slot)
    }

    /// Places that are taken.
    pub fn live(&self) -> usize {
        self.holding.len()
    }

    /// Slots that wait for a place.
    pub fn waiting(&self) -> usize {
        self.asking.len()
    }

    /// How many slots would have to stop, so that whoever could start now has a place and nobody is over the limit.
    /// Those that are stopping already are not counted again.
    pub fn missing(&self) -> usize {
        let wanted = self.asking.len().min(self.starts_left());
        (wanted + self.live()).saturating_sub(self.count(Phase::Leaving) + self.limits.live_max)
    }

    fn admit(&mut self) -> Vec<SlotNumber> {
        let mut admitted = Vec::new();
        while self.holding.len() < self.limits.live_max
            && self.starts_left() > 0
            && let Some(next) = self.asking.pop_front()
        {
            self.holding.insert(next, Phase::Starting);
            admitted.push(next);
        }
        admitted
    }

    fn starts_left(&self) -> usize {
        self.limits.starts_max.saturating_sub(self.count(Phase::Starting))
    }

    fn count(&self, phase: Phase) -> usize {
        self.holding.values().filter(|is| **is == phase).count()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use Phase::{Leaving, Serving, Stuck};

    fn s(number: u64) -> SlotNumber {
        SlotNumber(number)
    }

    fn places(live_max: usize, starts_max: usize) -> Admission {
        Admission::new(AdmissionLimits { live_max, starts_max })
    }

    #[test]
    fn so_many_start_at_a_time_and_the_others_in_the_order_they_asked() {
        let mut places = places(10, 2);
        assert_eq!([1, 2, 3, 4].map(|n| places.ask(s(n))), [true, true, false, false]);
        assert_eq!(places.note(s(2), Serving), [s(3)]);
        // A start that failed.
        assert_eq!(places.note(s(1), Leaving), [s(4)]);
        assert_eq!((places.live(), places.waiting()), (4, 0));
    }

    #[test]
    fn a_place_is_free_after_the_proof_and_not_before() {
        let mut places = places(1, 1);
        assert!(places.ask(s(1)));
        places.note(s(1), Serving);
        assert!(!places.ask(s(2)));
        assert_eq!(places.note(s(1), Leaving), []);
        assert_eq!(places.note(s(1), Stuck), []);
        assert_eq!(places.vacate(s(1)), [s(2)]);
    }

    #[test]
    fn who_does_not_wait_any_longer_is_passed_over() {
        let mut places = places(1, 1);
        places.ask(s(1));
        places.ask(s(2));
        places.ask(s(3));
        assert_eq!(places.vacate(s(2)), []);
        assert_eq!(places.vacate(s(1)), [s(3)]);
        assert!(places.holds(s(3)) && !places.holds(s(2)));
    }

    #[test]
    fn as_many_have_to_stop_as_could_start() {
        let mut places = places(3, 2);
        for n in 1..=3 {
            places.ask(s(n));
            places.note(s(n), Serving);
        }
        assert_eq!(places.missing(), 0);
        for n in 4..=8 {
            places.ask(s(n));
        }
        // Five wait, two may start at a time.
        assert_eq!(places.missing(), 2);
        places.note(s(1), Leaving);
        assert_eq!(places.missing(), 1);
        places.note(s(2), Leaving);
        assert_eq!(places.missing(), 0);
        // That one will not be free after all.
        places.note(s(2), Stuck);
        assert_eq!(places.missing(), 1);
        // A lower limit: two are over it, one of them is leaving, and two more could start.
        places.set_limits(AdmissionLimits { live_max: 1, starts_max: 2 });
        assert_eq!(places.missing(), 3);
    }

    #[derive(Clone, Copy, Debug)]
    enum Deed {
        Ask,
        Vacate(usize),
        Note(usize, Phase),
        Limit(usize, usize),
    }

    fn deed() -> impl Strategy<Value = Deed> {
        let phase = prop_oneof![Just(Serving), Just(Leaving), Just(Stuck)];
        prop_oneof![
            4 => Just(Deed::Ask),
            3 => any::<usize>().prop_map(Deed::Vacate),
            4 => (any::<usize>(), phase).prop_map(|(at, phase)| Deed::Note(at, phase)),
            1 => (1..5usize, 1..3usize).prop_map(|(live, starts)| Deed::Limit(live, starts)),
        ]
    }

    proptest! {
        /// Whatever happens: nobody is admitted above a limit, nobody is overtaken, nobody waits beside a free place.
        #[test]
        fn limits_are_kept_and_nobody_is_forgotten(deeds in proptest::collection::vec(deed(), 1..200)) {
            let mut places = places(3, 2);
            let mut last_admitted = 0;
            let mut next = 0;
            for deed in deeds {
                let before = places.clone();
                let known: Vec<SlotNumber> = places.holding.keys().chain(&places.asking).copied().collect();
                let pick = |at: usize| known.get(at.checked_rem(known.len()).unwrap_or(0)).copied();
                let admitted = match deed {
                    Deed::Ask => {
                        next += 1;
                        if places.ask(s(next)) { vec![s(next)] } else { vec![] }
                    }
                    Deed::Vacate(at) => pick(at).map(|slot| places.vacate(slot)).unwrap_or_default(),
                    Deed::Note(at, phase) => pick(at).map(|slot| places.note(slot, phase)).unwrap_or_default(),
                    Deed::Limit(live_max, starts_max) => places.set_limits(AdmissionLimits { live_max, starts_max }),
                };
                for slot in &admitted {
                    prop_assert!(slot.0 > last_admitted, "overtaken");
                    last_admitted = slot.0;
                }
                let limits = places.limits();
                prop_assert!(admitted.is_empty() || places.live() <= limits.live_max);
                prop_assert!(admitted.is_empty() || places.count(Phase::Starting) <= limits.starts_max);
                let is_free = places.live() < limits.live_max && places.starts_left() > 0;
                prop_assert!(!is_free || places.waiting() == 0, "waits beside a free place: {before:?} {deed:?}");
            }
        }
    }
}
