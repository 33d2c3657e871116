//! Limits of a tree: that they hold, that going over one is told, and that it is told where they do not hold.

use lazy_mcp_broker::core::limits::{TreeLimit, TreeLimits};
use lazy_mcp_broker::ownership::{Cgroup, Cgroups, Controller, Owner, RootExit, Started, Tree};

use crate::support::{BUDGET, Scene, assert_empty, eventually, program, start_in};

const LIMITS: TreeLimits = TreeLimits { memory_max_mb: Some(32), pids_max: Some(8) };

/// The cgroup of a generation of the scene's own, and the limits that hold in it.
fn cgroup(scene: &Scene) -> Option<(Cgroup, TreeLimits)> {
    let name = scene.path().file_name().unwrap().to_string_lossy().into_owned();
    let place = Cgroups::find_limiting(&name["scene-".len()..], &[Controller::Memory, Controller::Pids]);
    let place = place.inspect_err(|reason| println!("skipped: {reason}")).ok()?;
    let attainable = place.attainable(LIMITS);
    assert_eq!(place.why_unlimited(LIMITS).is_some(), attainable != LIMITS, "what cannot be had has a reason");
    Some((place.of("0a1b", 7), attainable))
}

async fn start(scene: &Scene, cgroup: Cgroup, code: &str) -> (Tree, impl Sized) {
    let started = start_in(Some(cgroup), &program(), &scene.perl(code), &scene.tracker).await;
    let Started { tree, pipes } = started.expect("starts");
    assert_eq!(tree.owner(), Owner::KeeperAndCgroup);
    (tree, pipes)
}

/// One that has this limit alone; `None` where it does not hold.
fn limited(scene: &Scene, is_meant: fn(TreeLimit) -> bool) -> Option<(Cgroup, TreeLimit)> {
    let (cgroup, attainable) = cgroup(scene)?;
    let Some(limit) = attainable.each().find(|limit| is_meant(*limit)) else {
        println!("skipped: this limit does not hold here");
        return None;
    };
    Some((cgroup.limited(LIMITS.only(is_meant)), limit))
}

#[tokio::test]
async fn going_over_the_memory_ends_all_of_it_and_is_known_before_the_exit() {
    let scene = Scene::new();
    let Some((cgroup, limit)) = limited(&scene, |limit| matches!(limit, TreeLimit::Memory { .. })) else { return };
    // The child takes it, the root goes too.
    let code = "if (!fork) { my @kept; push @kept, 'x' x (1 << 20) while 1 } forever";
    let (tree, _pipes) = start(&scene, cgroup, code).await;
    assert_eq!(tree.limit_refusal(), None);
    assert_eq!(tree.root_exit().await, RootExit::Signal(9));
    assert_eq!(tree.over_limit(), Some(limit));
    assert_empty(&tree.sweep(BUDGET).await);
    scene.assert_gone(&[&tree]).await;
}

#[tokio::test]
async fn a_fork_over_the_limit_is_refused_and_told() {
    let scene = Scene::new();
    let Some((cgroup, limit)) = limited(&scene, |limit| matches!(limit, TreeLimit::Pids { .. })) else { return };
    let code = "for (1..20) { my $pid = fork; last unless defined $pid; forever unless $pid } forever";
    let (tree, _pipes) = start(&scene, cgroup, code).await;
    assert_eq!(tree.went_over_limit().await, Some(limit));
    assert_eq!(scene.living().len(), 8, "the root among them");
    assert!(tree.root().is_alive());
    assert_eq!(assert_empty(&tree.sweep(BUDGET).await).0, 8);
    assert_eq!(tree.went_over_limit().await, Some(limit), "as often as asked");
    scene.assert_gone(&[&tree]).await;
}

#[tokio::test]
async fn as_many_as_may_be_are_let_in() {
    let scene = Scene::new();
    let Some((cgroup, _)) = limited(&scene, |limit| matches!(limit, TreeLimit::Pids { .. })) else { return };
    let (tree, _pipes) = start(&scene, cgroup, "for (1..7) { forever unless fork } forever").await;
    eventually("all run", BUDGET, || scene.living().len() == 8);
    assert_eq!(tree.over_limit(), None);
    assert_eq!(assert_empty(&tree.sweep(BUDGET).await).0, 8);
    assert_eq!(tree.went_over_limit().await, None);
    scene.assert_gone(&[&tree]).await;
}

/// Where the controllers are not turned on, or are not there at all, the server runs, in its cgroup, and it is told.
#[tokio::test]
async fn limits_that_cannot_be_set_are_told() {
    let scene = Scene::new();
    let Some((cgroup, attainable)) = cgroup(&scene) else { return };
    let (tree, _pipes) = start(&scene, cgroup.limited(LIMITS), "forever").await;
    let refusal = tree.limit_refusal().map(|reason| reason.to_string()).unwrap_or_default();
    let names = |limit| match limit {
        TreeLimit::Memory { .. } => "memory",
        TreeLimit::Pids { .. } => "pids",
    };
    for limit in LIMITS.each().filter(|limit| !attainable.each().any(|attained| attained == *limit)) {
        assert!(refusal.contains("cgroup.subtree_control"), "{}: {refusal}", names(limit));
    }
    assert_eq!(refusal.is_empty(), attainable == LIMITS, "{refusal}");
    assert_eq!(assert_empty(&tree.sweep(BUDGET).await).0, 1);
    scene.assert_gone(&[&tree]).await;
}
