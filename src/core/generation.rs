//! Generation numbers, and reports that can be opened only after they were compared with the live generation.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The number of one incarnation of a slot. It grows and never comes again, across broker restarts too.
///
/// In JSON it is a plain number. Reading one back (from the ownership journal, say) names a generation; only a
/// [`Mint`] makes a new one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Generation(u64);

impl Generation {
    pub fn number(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Mints generations, each number once.
///
/// Deliberately not `Default`: whoever makes a mint has to say what the highest number was that ever came before.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Mint {
    last: u64,
}

impl Mint {
    /// Mints from `high_water + 1` on; 0 where nothing was ever minted.
    pub fn after(high_water: u64) -> Self {
        Self { last: high_water }
    }

    /// The next generation. At one a nanosecond the numbers last for 584 years.
    pub fn mint(&mut self) -> Generation {
        self.last = self.last.saturating_add(1);
        Generation(self.last)
    }

    /// The highest number that was ever minted: what has to be persisted before the generation starts.
    pub fn high_water(&self) -> u64 {
        self.last
    }
}

/// Something said by, or about, one generation. What it says cannot be read before [`Stamped::open`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Stamped<T> {
    generation: Generation,
    payload: T,
}

impl<T> Stamped<T> {
    pub fn new(generation: Generation, payload: T) -> Self {
        Self { generation, payload }
    }

    /// Whose it is; tells nothing of what it says.
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// The only way to the payload: `None` when this generation is not the live one.
    pub fn open(self, live: Option<Generation>) -> Option<Current<T>> {
        (live == Some(self.generation)).then_some(Current(self.payload))
    }
}

/// Proof that the payload is the live generation's: transitions take this, so none can be made by a stale report.
#[derive(Debug)]
pub struct Current<T>(T);

impl<T> Current<T> {
    pub fn into_inner(self) -> T {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_start_above_the_high_water_mark_and_grow() {
        let mut mint = Mint::after(41);
        assert_eq!(mint.mint().number(), 42);
        assert_eq!(mint.mint().to_string(), "43");
        assert_eq!(mint.high_water(), 43);
    }

    #[test]
    fn a_report_opens_for_its_own_generation_alone() {
        let mut mint = Mint::after(0);
        let (old, new) = (mint.mint(), mint.mint());
        let report = Stamped::new(old, "exited");
        assert!(report.open(Some(new)).is_none());
        assert!(report.open(None).is_none());
        assert_eq!(report.open(Some(old)).unwrap().into_inner(), "exited");
    }

    #[test]
    fn in_json_a_generation_is_a_number() {
        let generation = Mint::after(6).mint();
        assert_eq!(serde_json::to_string(&generation).unwrap(), "7");
        assert_eq!(serde_json::from_str::<Generation>("7").unwrap(), generation);
    }
}
