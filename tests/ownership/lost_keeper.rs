//! Keepers that are killed, hang or lie: the broker takes their place.
//!
//! Each of these runs in a process of its own: the broker takes every child that it did not start for an orphan.

use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use lazy_mcp_broker::ownership::{KeeperProgram, ProcessTable, RootExit, StartError, Sweep};

use crate::support::{BUDGET, Frozen, Scene, assert_empty, eventually, is_alone, signal, start, swept};

/// Children of every kind: in the session, out of it, double-forked, and with children of their own.
const FAMILY: &str = "
    if (!fork) { POSIX::setsid(); for (1..3) { if (!fork) { forever } } forever }
    if (!fork) { POSIX::setsid(); exit if fork; forever }
    select undef, undef, undef, 0.05; ready; forever";

fn assert_childless() {
    assert_eq!(ProcessTable::read().unwrap().descendants(std::process::id()), Vec::<&_>::new());
}

#[tokio::test]
async fn the_tree_of_a_killed_keeper_is_adopted() {
    if !is_alone("lost_keeper::the_tree_of_a_killed_keeper_is_adopted") {
        return;
    }
    let scene = Scene::new();
    let launch = scene.perl(FAMILY);
    let (lost, _pipes) = scene.start_ready(&launch).await;
    let (other, _pipes) = scene.start_ready(&launch).await;
    assert_eq!(scene.living().len(), 12);
    signal(lost.keeper(), "KILL");
    assert_eq!(lost.root_exit().await, RootExit::KeeperLost);
    eventually("the kernel kills the root", BUDGET, || !lost.root().is_alive());
    let (killed, took) = assert_empty(&lost.sweep(BUDGET).await);
    println!("tree of a killed keeper: {took:?} from the order to the proof");
    assert_eq!(killed, 5);
    assert_eq!(scene.living().len(), 6, "the other tree is whole");
    assert!(other.root().is_alive() && other.keeper().is_alive());
    assert_eq!(assert_empty(&other.sweep(BUDGET).await).0, 6);
    assert_childless();
    scene.assert_gone(&[&lost, &other]).await;
}

/// Nobody reaps for the broker, and a process that is born behind the reader of the process table is seen by no pass:
/// what has died in between is the only trace of one that lives.
#[tokio::test]
async fn a_tree_that_always_forks_is_beaten_without_its_keeper() {
    if !is_alone("lost_keeper::a_tree_that_always_forks_is_beaten_without_its_keeper") {
        return;
    }
    // It ends by itself when the test has failed: a machine full of it is good for nothing else.
    let flight = "POSIX::setsid(); until (time > $^T + 40) { if (fork) { POSIX::_exit(0) } POSIX::setsid(); $ROUND }
                  POSIX::_exit(0)";
    for pause in ["", "select undef, undef, undef, 0.001", "select undef, undef, undef, 0.005"] {
        let scene = Scene::new();
        let flight = flight.replace("$ROUND", pause);
        let code =
            format!("for (1..2) {{ if (!fork) {{ {flight} }} }} select undef, undef, undef, 0.1; ready; forever");
        let (lost, _pipes) = scene.start_ready(&scene.perl(&code)).await;
        signal(lost.keeper(), "KILL");
        let (killed, took) = swept(&lost, BUDGET).await;
        println!("tree that always forks, of a killed keeper: {killed} killed, {took:?} to the proof");
        assert_childless();
        scene.assert_gone(&[&lost]).await;
    }
}

#[tokio::test]
async fn a_keeper_that_is_stopped_is_replaced() {
    if !is_alone("lost_keeper::a_keeper_that_is_stopped_is_replaced") {
        return;
    }
    let scene = Scene::new();
    let (tree, _pipes) = scene.start_ready(&scene.perl(FAMILY)).await;
    signal(tree.keeper(), "STOP");
    swept(&tree, Duration::from_millis(100)).await;
    assert_eq!(tree.root_exit().await, RootExit::KeeperLost);
    assert_childless();
    scene.assert_gone(&[&tree]).await;
}

/// SIGKILL waits for the thaw, as it waits for a device.
#[tokio::test]
async fn a_keeper_that_does_not_die_is_told_as_a_survivor() {
    if !is_alone("lost_keeper::a_keeper_that_does_not_die_is_told_as_a_survivor") {
        return;
    }
    let scene = Scene::new();
    let (tree, _pipes) = scene.start_ready(&scene.perl(FAMILY)).await;
    if let Some(frozen) = Frozen::freeze(tree.keeper().pid.into()) {
        for _ in 0..2 {
            let swept = tokio::time::timeout(BUDGET, tree.sweep(Duration::from_millis(100))).await;
            let Ok(Sweep::Busy { survivors, .. }) = swept else { panic!("it is busy, and says so: {swept:?}") };
            assert!(survivors.iter().any(|survivor| survivor.pid == tree.keeper().pid), "{survivors:?}");
            assert_eq!(scene.living(), [], "what is below it is killed all the same");
        }
        frozen.thaw();
    }
    swept(&tree, BUDGET).await;
    assert_childless();
    scene.assert_gone(&[&tree]).await;
}

#[tokio::test]
async fn a_keeper_killed_after_its_handle_was_dropped_leaves_nothing() {
    if !is_alone("lost_keeper::a_keeper_killed_after_its_handle_was_dropped_leaves_nothing") {
        return;
    }
    let scene = Scene::new();
    let (tree, _pipes) = scene.start_ready(&scene.perl(FAMILY)).await;
    signal(tree.keeper(), "STOP");
    let keeper = tree.keeper();
    drop(tree);
    signal(keeper, "KILL");
    scene.assert_gone(&[]).await;
    assert_childless();
}

/// A keeper by its words alone: plays the broker's side of every answer that a real one gives only in bad times.
pub fn liar(scene: &Scene, answers: &str) -> KeeperProgram {
    let code = format!(
        "#!/usr/bin/perl
         use JSON::PP; $| = 1;
         sub take {{ read STDIN, my $len, 4 or exit 1; read STDIN, my $body, unpack 'V', $len or exit 1; $body }}
         sub say_ {{ syswrite STDIN, pack('V', length $_[0]) . $_[0] }}
         {answers}"
    );
    // Both directions of the socket.
    let path = scene.file("keeper.pl", &code.replace("use JSON::PP;", "open STDIN, '+<&=', 0;"));
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    KeeperProgram::at(path)
}

#[tokio::test]
async fn survivors_are_told_and_the_tree_can_be_swept_again() {
    if !is_alone("lost_keeper::survivors_are_told_and_the_tree_can_be_swept_again") {
        return;
    }
    let scene = Scene::new();
    let keeper = liar(
        &scene,
        r#"take; say_('{"Spawned":{"root":{"pid":4,"start_time":2}}}');
           take; say_('{"Busy":{"survivors":[{"pid":7,"start_time":9,"comm":"stuck","state":"D"}]}}');
           take; say_('{"RootExited":{"exit":{"Signal":9}}}'); say_('{"Empty":{"killed":3,"took_us":1500}}'); exit 0"#,
    );
    let tree = start(&keeper, &scene.sh("true"), &scene.tracker).await.unwrap().tree;
    let Sweep::Busy { survivors, .. } = tree.sweep(BUDGET).await else { panic!("busy") };
    assert_eq!((survivors[0].pid, survivors[0].comm.as_str(), survivors[0].state), (7, "stuck", 'D'));
    assert_eq!(tree.sweep(BUDGET).await, Sweep::Empty { killed: 3, took: Duration::from_micros(1500) });
    assert_eq!(tree.root_exit().await, RootExit::Signal(9));
    scene.assert_gone(&[]).await;
}

#[tokio::test]
async fn a_keeper_that_says_empty_and_fails_is_not_believed() {
    if !is_alone("lost_keeper::a_keeper_that_says_empty_and_fails_is_not_believed") {
        return;
    }
    let scene = Scene::new();
    let keeper = liar(
        &scene,
        r#"take; if (!fork) { sleep 1 while 1 } say_('{"Spawned":{"root":{"pid":4,"start_time":2}}}');
           take; say_('{"Empty":{"killed":0,"took_us":1}}'); exit 1"#,
    );
    let tree = start(&keeper, &scene.sh("true"), &scene.tracker).await.unwrap().tree;
    assert_eq!(assert_empty(&tree.sweep(BUDGET).await).0, 1);
    assert_childless();
    scene.assert_gone(&[]).await;
}

#[tokio::test]
async fn a_keeper_that_dies_before_its_answer_is_an_error_and_leaves_nothing() {
    if !is_alone("lost_keeper::a_keeper_that_dies_before_its_answer_is_an_error_and_leaves_nothing") {
        return;
    }
    let scene = Scene::new();
    for answers in ["exit 1", "take; if (!fork) { sleep 1 while 1 } kill KILL => $$", "say_('nonsense'); 1 while take"]
    {
        let failed = start(&liar(&scene, answers), &scene.sh("true"), &scene.tracker).await.unwrap_err();
        assert!(failed.remains.is_none() && matches!(failed.error, StartError::KeeperLost { .. }), "{failed:?}");
        assert_eq!(scene.living(), []);
    }
    let error = start(&KeeperProgram::at("/nowhere"), &scene.sh("true"), &scene.tracker).await.unwrap_err();
    assert!(error.to_string().contains("`/nowhere`"), "{error}");
    assert_childless();
    scene.assert_gone(&[]).await;
}

/// Before it has taken the order, and after it with a child.
#[tokio::test]
async fn a_keeper_that_never_answers_is_given_up_and_leaves_nothing() {
    if !is_alone("lost_keeper::a_keeper_that_never_answers_is_given_up_and_leaves_nothing") {
        return;
    }
    let check = async |answers: &str| {
        let scene = Scene::new();
        let failed = start(&liar(&scene, answers), &scene.sh("true"), &scene.tracker).await.unwrap_err();
        assert!(failed.remains.is_none() && matches!(failed.error, StartError::KeeperLost { .. }), "{failed:?}");
        scene.assert_gone(&[]).await;
    };
    tokio::join!(check("kill STOP => $$"), check("take; if (!fork) { sleep 1 while 1 } kill STOP => $$"));
    assert_childless();
}
