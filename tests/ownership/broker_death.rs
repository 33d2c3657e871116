//! The broker is killed: its keepers leave nothing.

use std::time::Duration;

use lazy_mcp_broker::ownership::ProcessId;

use crate::support::{Scene, eventually, living_with, play_broker, played_scene, program, start};

/// Promised to operators (`docs/architecture.md`).
const PROMISE: Duration = Duration::from_secs(5);

/// Not a test: what [`play_broker`] runs.
#[tokio::test]
async fn play_a_broker_with_two_trees() {
    let Some(path) = played_scene() else { return };
    let scene = Scene::new();
    let tracker = &scene.tracker;
    let mut launch = scene.sh("");
    launch.cwd.clone_from(&path);
    launch.program = "/usr/bin/perl".into();
    let mut keepers = String::new();
    let mut held = Vec::new();
    for script in ["orderly.pl", "wild.pl"] {
        launch.args = vec![path.join(script).display().to_string()];
        let started = start(&program(), &launch, tracker).await.unwrap();
        keepers += &format!("{}\n", started.tree.keeper().pid);
        held.push(started);
    }
    std::fs::write(path.join("keepers.new"), keepers).unwrap();
    std::fs::rename(path.join("keepers.new"), path.join("keepers")).unwrap();
    std::future::pending::<()>().await;
}

#[test]
fn nothing_is_left_of_a_killed_broker() {
    let scene = Scene::new();
    scene.file("orderly.pl", "open F, '>', 'orderly'; close F; <STDIN>");
    scene.file(
        "wild.pl",
        "use POSIX; $SIG{$_} = 'IGNORE' for qw(TERM HUP INT PIPE);
         for (1..3) { if (!fork) { POSIX::setsid(); exit if fork; sleep 1 while 1 } }
         if (!fork) { POSIX::setsid(); while (1) { if (fork) { POSIX::_exit(0) } POSIX::setsid() } }
         open F, '>', 'wild'; close F; sleep 1 while 1",
    );
    let broker = play_broker("broker_death::play_a_broker_with_two_trees", scene.path());
    let is_there = |name: &str| scene.path().join(name).exists();
    eventually("both trees run", PROMISE, || is_there("keepers") && is_there("orderly") && is_there("wild"));
    let keepers: Vec<ProcessId> = std::fs::read_to_string(scene.path().join("keepers"))
        .unwrap()
        .lines()
        .filter_map(|pid| ProcessId::of(pid.parse().unwrap()))
        .collect();
    assert_eq!(keepers.len(), 2);
    eventually("all have forked", PROMISE, || scene.living().len() >= 5);

    drop(broker);
    let took = eventually("nothing is left", PROMISE, || {
        !keepers.iter().any(|keeper| keeper.is_alive()) && scene.living().is_empty()
    });
    println!("broker killed: nothing left after {took:?}");
    assert_eq!(living_with(&scene.path().display().to_string()), []);
}
