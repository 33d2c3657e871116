//! Slots without drivers: what the tests report is all that happens.

use std::path::Path;

use tempfile::TempDir;
use tokio::sync::mpsc::UnboundedReceiver;

use super::*;
use crate::core::digest::Digest;
use crate::core::generation::Mint;
use crate::core::lifecycle::{Effect, Limits, OverdueRule, Report};
use crate::link::{Caller, CanAnswer, LinkLimits};
use crate::supervisor::driver::Order;
use crate::supervisor::{Acquired, Ended, NoAudience, NotPublished, ScopeKey, Succession};
use crate::{catalog, config};

const SWEEPS_MAX: u8 = 2;
const LONG: Duration = Duration::from_secs(3600);

/// A supervisor over an empty state directory.
pub(in crate::supervisor) struct Scene {
    pub(in crate::supervisor) supervisor: Supervisor,
    plan: Arc<Plan>,
    _dir: TempDir,
}

impl Scene {
    pub(in crate::supervisor) fn new(set_aside_max: usize) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let journal = Journal::open(dir.path()).unwrap();
        let limits = SupervisorLimits { slots_max: 100, live_max: 100, starts_max: 100, set_aside_max };
        let config = config::load(&Path::new(env!("CARGO_MANIFEST_DIR")).join("config/broker.toml")).unwrap();
        let backend = config.backends["agentation"].clone();
        let plan = Plan {
            backend: "agentation".into(),
            fingerprint: Digest::of(b"1"),
            is_shared: false,
            catalog: Arc::new(catalog::load(&backend.catalog).unwrap()),
            config: backend,
            vars: config.vars,
            limits: limits_of_a_slot(),
            link: LinkLimits { frame_len_max: 1000 },
        };
        let supervisor = Supervisor::new(
            journal,
            KeeperProgram::own(),
            limits,
            &[],
            Arc::new(EventLog::new("x".into())),
            Arc::new(NoAudience),
        );
        Self { supervisor, plan: Arc::new(plan), _dir: dir }
    }

    /// On a runtime, which it needs, and may not block.
    async fn aside() -> Self {
        tokio::task::spawn_blocking(|| Self::new(2)).await.unwrap()
    }

    /// The same backend, started differently, or shared differently.
    fn another_plan(&self, fingerprint: &[u8], is_shared: bool) -> Arc<Plan> {
        let Plan { backend, config, vars, catalog, limits, link, .. } = &*self.plan;
        Arc::new(Plan {
            backend: backend.clone(),
            fingerprint: Digest::of(fingerprint),
            is_shared,
            config: config.clone(),
            vars: vars.clone(),
            catalog: catalog.clone(),
            limits: *limits,
            link: *link,
        })
    }

    fn key(number: u128) -> InstanceKey {
        InstanceKey { backend: "agentation".into(), scope: ScopeKey::Session(number) }
    }

    /// A slot in its place, and what its driver would be told.
    fn slot(&self, number: u128) -> (Arc<Slot>, UnboundedReceiver<Order>) {
        let (orders, told) = mpsc::unbounded_channel();
        let key = Self::key(number);
        let id = key.instance_id("x");
        let name = Name { key: key.clone(), id, number: SlotNumber(number as u64) };
        let shared = self.supervisor.services.shared.clone();
        let slot = Arc::new(Slot::new(name, shared, self.plan.clone(), 0, orders));
        self.supervisor.services.registered().slots.insert(key, slot.clone());
        (slot, told)
    }

    /// One that could not be proved empty after a start that failed.
    pub(in crate::supervisor) fn unproved(&self, number: u128) -> (Arc<Slot>, Generation) {
        let (slot, mut told) = self.slot(number);
        assert!(matches!(acquire(&slot), Acquired::Later(_)));
        let Some(Order::Do(Effect::Spawn(generation))) = told.blocking_recv() else { panic!("no start") };
        slot.report(generation, Report::SpawnFailed);
        for _ in 0..SWEEPS_MAX {
            slot.report(generation, Report::TreeBusy);
        }
        assert_eq!(slot.view().state, PublicState::CleanupFailed);
        (slot, generation)
    }

    fn in_place(&self, slot: &Arc<Slot>) -> bool {
        self.supervisor.find(&slot.key).is_some_and(|found| Arc::ptr_eq(&found, slot))
    }
}

fn limits_of_a_slot() -> Limits {
    let (short, overdue) = (Duration::from_secs(1), OverdueRule::Keep { grace: Duration::ZERO });
    Limits {
        queue_len_max: 4,
        leases_max: 1,
        start: LONG,
        idle: LONG,
        drain: short,
        polite: short,
        terminate: short,
        sweep: LONG,
        sweeps_max: SWEEPS_MAX,
        cleanup_retry_min: LONG,
        cleanup_retry_max: LONG,
        backoff_min: short,
        backoff_max: short,
        stable_after: short,
        overdue,
    }
}

fn acquire(slot: &Arc<Slot>) -> Acquired {
    let deadline = Instant::now() + LONG;
    slot.acquire(
        Caller {
            client: 1,
            id: "1".into(),
            deadline,
            hears: true,
            logs: None,
            answers: CanAnswer::default(),
            extension: None,
        },
        deadline,
    )
}

#[test]
fn set_aside_makes_place_and_is_shown_until_its_proof() {
    let scene = Scene::new(2);
    let (slot, generation) = scene.unproved(1);
    assert!(matches!(acquire(&slot), Acquired::Refused(_)));
    assert_eq!(scene.supervisor.set_aside(&slot, generation), Ok(()));
    assert!(!scene.in_place(&slot));
    // Who had it in hand asks for the place again, and is not told that the backend has ended.
    assert!(matches!(acquire(&slot), Acquired::Forgotten));
    let (next, _told) = scene.slot(1);
    assert_eq!(scene.supervisor.slots().len(), 2);
    let view = slot.view();
    assert!(view.is_set_aside && view.state == PublicState::CleanupFailed && view.unproved.is_some());
    assert_eq!(scene.supervisor.set_aside(&slot, generation), Err(NotSetAside::NotUnproved), "once is enough");

    scene.supervisor.services.settle(&slot);
    assert_eq!(scene.supervisor.slots().len(), 2, "nothing is over without a proof");
    slot.report(generation, Report::TreeEmpty);
    scene.supervisor.services.settle(&slot);
    assert!(scene.supervisor.slots().len() == 1 && scene.in_place(&next));
}

#[test]
fn so_many_are_set_aside_and_no_more() {
    let scene = Scene::new(2);
    let slots: Vec<_> = (1..=3).map(|number| scene.unproved(number)).collect();
    for (slot, generation) in &slots[..2] {
        assert_eq!(scene.supervisor.set_aside(slot, *generation), Ok(()));
    }
    assert_eq!(scene.supervisor.set_aside(&slots[2].0, slots[2].1), Err(NotSetAside::Full { max: 2 }));
    assert!(scene.in_place(&slots[2].0) && matches!(acquire(&slots[2].0), Acquired::Refused(_)));
    slots[0].0.report(slots[0].1, Report::TreeEmpty);
    scene.supervisor.services.settle(&slots[0].0);
    assert_eq!(scene.supervisor.set_aside(&slots[2].0, slots[2].1), Ok(()));
}

#[test]
fn only_what_is_not_proved_gone_is_set_aside() {
    let scene = Scene::new(2);
    let (vacant, _told) = scene.slot(1);
    let first = Mint::after(0).mint();
    assert_eq!(scene.supervisor.set_aside(&vacant, first), Err(NotSetAside::NotUnproved));
    let (starting, _told) = scene.slot(2);
    let waiter = acquire(&starting);
    assert_eq!(scene.supervisor.set_aside(&starting, first), Err(NotSetAside::NotUnproved));
    let (proved, generation) = scene.unproved(3);
    proved.report(generation, Report::TreeEmpty);
    assert_eq!(scene.supervisor.set_aside(&proved, generation), Err(NotSetAside::NotUnproved));
    // What was looked at is another generation than the one that is there.
    let (other, generation) = scene.unproved(4);
    let another = Mint::after(generation.number()).mint();
    assert_eq!(scene.supervisor.set_aside(&other, another), Err(NotSetAside::NotUnproved));
    assert!([&vacant, &starting, &proved, &other].into_iter().all(|slot| scene.in_place(slot)));
    drop(waiter);
}

/// Each look is answered by `report`, if by anything.
async fn check_recovery(report: Option<Report>, expected: fn(Generation) -> Ended, attempts: u32) {
    let (scene, slot, generation) = tokio::task::spawn_blocking(|| {
        let scene = Scene::new(2);
        let (slot, generation) = scene.unproved(1);
        (scene, slot, generation)
    })
    .await
    .unwrap();
    let answer = async {
        // Not before the look is ordered.
        tokio::task::yield_now().await;
        if let Some(report) = report {
            slot.report(generation, report);
        }
    };
    let (ended, ()) = tokio::join!(slot.recover(), answer);
    assert_eq!(ended, expected(generation));
    assert_eq!(slot.view().unproved.map_or(0, |unproved| unproved.attempts), attempts);
    drop(scene);
}

#[tokio::test(start_paused = true)]
async fn a_recovery_waits_for_the_answer_of_one_look() {
    let before = u32::from(SWEEPS_MAX);
    check_recovery(Some(Report::TreeBusy), Ended::NotProved, before + 1).await;
    check_recovery(Some(Report::TreeEmpty), Ended::Proved, 0).await;
    // Nobody answers, and nobody wakes the core either.
    check_recovery(None, Ended::Pending, before + 1).await;
}

#[tokio::test(start_paused = true)]
async fn there_is_nothing_to_recover_or_to_stop_where_nothing_runs() {
    let scene = tokio::task::spawn_blocking(|| Scene::new(2)).await.unwrap();
    let (slot, _told) = scene.slot(1);
    assert_eq!(slot.recover().await, Ended::Nothing(PublicState::Stopped));
    assert_eq!(slot.stop().await, Ended::Nothing(PublicState::Stopped));
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_looks_again_and_names_what_is_not_proved_wherever_it_is() {
    let (scene, slots, generation) = tokio::task::spawn_blocking(|| {
        let scene = Scene::new(2);
        let (slot, generation) = scene.unproved(1);
        let slots = [slot, scene.unproved(2).0];
        (scene, slots, generation)
    })
    .await
    .unwrap();
    scene.supervisor.set_aside(&slots[0], generation).unwrap();
    let unproved = scene.supervisor.shutdown(Duration::from_secs(1)).await;
    assert_eq!(unproved.len(), 2);
    assert!(slots.iter().all(|slot| slot.view().unproved.unwrap().next.is_none()), "a look is under way");
}

#[tokio::test]
async fn a_slot_is_of_the_revision_that_is_published_whoever_asks_for_it() {
    let scene = Scene::aside().await;
    scene.supervisor.services.registered().is_clear = true;
    let key = Scene::key(1);
    assert_eq!(scene.supervisor.slot(&key).err(), Some(NoSlot::NotServed));
    scene.supervisor.publish(std::slice::from_ref(&scene.plan)).unwrap();
    let slot = scene.supervisor.slot(&key).unwrap();
    assert!(Arc::ptr_eq(&slot.plan(), &scene.plan));
    let next = scene.another_plan(b"2", false);
    scene.supervisor.publish(std::slice::from_ref(&next)).unwrap();
    assert!(Arc::ptr_eq(&slot.plan(), &next));
    assert!(Arc::ptr_eq(&scene.supervisor.slot(&Scene::key(2)).unwrap().plan(), &next));
    // A session's own instance is nothing that a shared backend has.
    scene.supervisor.publish(&[scene.another_plan(b"3", true)]).unwrap();
    assert_eq!(scene.supervisor.slot(&Scene::key(3)).err(), Some(NoSlot::NotServed));
    scene.supervisor.publish(&[]).unwrap();
    let shared = InstanceKey { backend: "agentation".into(), scope: ScopeKey::Shared };
    assert_eq!(scene.supervisor.slot(&shared).err(), Some(NoSlot::NotServed));
    assert!(scene.supervisor.shutdown(Duration::from_secs(1)).await.is_empty());
    assert_eq!(scene.supervisor.publish(std::slice::from_ref(&next)), Err(NotPublished));
}

/// As a slot is found when it gets its plan, and not before: it may have started meanwhile.
#[test]
fn a_slot_says_what_another_plan_means_for_it_as_it_takes_it() {
    let scene = Scene::new(1);
    let (slot, mut told) = scene.slot(1);
    let (same, next) = (scene.plan.clone(), scene.another_plan(b"2", false));
    let check = |plan: Option<&Arc<Plan>>, expected: Option<Succession>| {
        assert_eq!((slot.foresee(plan), slot.succeed(plan)), (expected, expected));
    };
    check(Some(&next), None);
    check(Some(&same), None);
    let waiter = acquire(&slot);
    assert!(matches!(waiter, Acquired::Later(_)));
    let Some(Order::Do(Effect::Spawn(generation))) = told.blocking_recv() else { panic!("no start") };
    check(Some(&same), Some(Succession::Kept));
    check(Some(&next), Some(Succession::Draining));
    assert_eq!(slot.view().state, PublicState::Stopping);
    check(Some(&next), Some(Succession::Draining));
    check(None, Some(Succession::Retired));
    check(None, Some(Succession::Retired));
    slot.report(generation, Report::SpawnFailed);
    slot.report(generation, Report::TreeEmpty);
    check(Some(&next), None);
}

#[test]
fn what_is_not_proved_gone_blocks_its_place_whatever_is_published() {
    let scene = Scene::new(2);
    let (slot, generation) = scene.unproved(1);
    let next = scene.another_plan(b"2", false);
    let told = scene.supervisor.publish(std::slice::from_ref(&next)).unwrap();
    assert_eq!(told["agentation"].draining, [&*slot.id]);
    assert!(matches!(acquire(&slot), Acquired::Refused(_)) && scene.in_place(&slot));
    // Removed and back again.
    scene.supervisor.publish(&[]).unwrap();
    scene.supervisor.services.settle(&slot);
    assert!(scene.in_place(&slot), "nothing is over without a proof");
    scene.supervisor.publish(std::slice::from_ref(&next)).unwrap();
    slot.report(generation, Report::TreeEmpty);
    assert!(matches!(acquire(&slot), Acquired::Later(_)));
}
