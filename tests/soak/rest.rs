//! What is left when everything has come to rest, seen from outside.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::mix::World;
use crate::support::{Request, wait};

/// From the last call to the last proof: idle time, a stop with all its deadlines, a keeper that hangs.
const AT_REST_WITHIN: Duration = Duration::from_secs(40);
/// What the memory of one broker may grow from its second rest on, in KiB. The allocator keeps some of what a large
/// result or a flood has taken.
const GROWTH_KIB_MAX: u64 = 4 << 10;
/// A broker is warm when it was at rest so often.
const WARM_AFTER: u32 = 2;

/// What earlier rounds have seen.
#[derive(Debug, Default)]
pub struct Rest {
    descriptors: Option<BTreeMap<String, usize>>,
    memory: Memory,
}

#[derive(Debug, Default)]
struct Memory {
    /// Of the broker that was started so many deaths ago.
    deaths: u64,
    rests: u32,
    warm_kib: u64,
}

impl Rest {
    /// Waits until the broker says that nothing runs, and looks. What was measured, in a few words.
    #[track_caller]
    pub fn check(&mut self, world: &World) -> String {
        let broker = &world.broker;
        let totals = || broker.status()["totals"].clone();
        let is_at_rest = wait::is_true_within(AT_REST_WITHIN, || totals()["live_instances"] == 0);
        assert!(is_at_rest, "not at rest: {:#}", broker.status());
        // In this very moment: `stopped` is said after the proof.
        broker.assert_nothing_runs();
        broker.assert_no_zombies();
        broker.assert_no_files();
        let totals = totals();
        for name in ["active_calls", "queued_calls", "owned_processes", "cleanup_failed"] {
            assert_eq!(totals[name], 0, "{name} in {totals:#}");
        }
        for page in ["/ready", "/health"] {
            assert_eq!(broker.http().send(&Request::get(page)).status, 200, "{page}");
        }
        let before = self.descriptors.get_or_insert_with(|| broker.descriptors());
        broker.assert_descriptors(before);
        let kib = self.memory.check(broker.private_kib(), world.deaths());
        let descriptors: usize = before.values().sum();
        format!("{descriptors} descriptors, {kib} KiB")
    }
}

impl Memory {
    #[track_caller]
    fn check(&mut self, kib: u64, deaths: u64) -> u64 {
        if deaths != self.deaths {
            *self = Self { deaths, ..Self::default() };
        }
        self.rests += 1;
        if self.rests <= WARM_AFTER {
            self.warm_kib = kib;
        }
        let limit = self.warm_kib + GROWTH_KIB_MAX;
        assert!(kib <= limit, "the broker has grown from {} to {kib} KiB in {} rounds", self.warm_kib, self.rests);
        kib
    }
}
