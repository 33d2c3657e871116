//! Servers that try to leave their tree.

use std::process::Command;
use std::time::Duration;

use lazy_mcp_broker::ownership::{ProcessTable, RootExit};

use crate::support::{BUDGET, Outsider, Scene, assert_empty, command_line, eventually};

/// Forks twice, leaves the session, throws its environment away; and again in the new image.
const DETACHED: &str = "
    sub detached { my $then = shift;
      return if fork; POSIX::setsid(); exit if fork;
      if (%ENV) { undef %ENV; exec '/usr/bin/perl', '-MPOSIX', '-e', $then, $0 }
    }";

#[tokio::test]
async fn a_detached_child_without_environment_is_found() {
    let scene = Scene::new();
    let code = format!("{DETACHED} detached('sleep 99 while 1'); ready; exit 0");
    let (tree, _pipes) = scene.start_ready(&scene.perl(&code)).await;
    assert_eq!(tree.root_exit().await, RootExit::Code(0));
    let is_detached = || {
        let living = scene.living();
        living.len() == 1 && living[0].ppid == tree.keeper().pid && command_line(living[0].pid).contains("-MPOSIX")
    };
    eventually("it is the keeper's", BUDGET, is_detached);
    assert_eq!(assert_empty(&tree.sweep(BUDGET).await).0, 1);
    scene.assert_gone(&[&tree]).await;
}

#[tokio::test]
async fn a_decoy_that_forks_all_the_time_is_beaten() {
    let scene = Scene::new();
    let flight =
        "open F, q(>>), q(forks); while (1) { if (fork) { POSIX::_exit(0) } POSIX::setsid(); syswrite F, q(.) }";
    let code = format!("{DETACHED} detached('{flight}') for 1..4; ready; forever");
    let (tree, _pipes) = scene.start_ready(&scene.perl(&code)).await;
    // Not by the process table: on a busy machine it hardly ever shows one that lives so briefly.
    let forks = || std::fs::metadata(scene.path().join("forks")).map_or(0, |file| file.len());
    eventually("they fork all the time", BUDGET, || forks() > 50);
    let (killed, took) = assert_empty(&tree.sweep(BUDGET).await);
    println!("4 decoys that always fork: {killed} killed, {took:?} to the proof");
    assert!(killed >= 5);
    scene.assert_gone(&[&tree]).await;
}

#[tokio::test]
async fn a_tree_of_twelve_is_proved_empty() {
    let scene = Scene::new();
    // Like a browser: a root, a leader in its own session with eight below, two handlers that double-fork.
    let code = format!(
        "{DETACHED} detached('sleep 99 while 1') for 1..2;
         if (!fork) {{ POSIX::setsid(); for (1..8) {{ if (!fork) {{ forever }} }} ready; forever }} forever"
    );
    let (tree, _pipes) = scene.start_ready(&scene.perl(&code)).await;
    // A process that double-forks is seen twice for a moment.
    let usage = || ProcessTable::read().unwrap().usage(tree.keeper().pid);
    eventually("twelve", BUDGET, || scene.living().len() == 12 && usage().processes == 12);
    let usage = usage();
    assert!(usage.rss_bytes > 12 << 20, "{usage:?}");
    let (killed, took) = assert_empty(&tree.sweep(BUDGET).await);
    println!("tree of 12: {took:?} from the order to the proof");
    assert_eq!(killed, 12);
    scene.assert_gone(&[&tree]).await;
}

#[tokio::test]
async fn processes_that_look_alike_outside_the_tree_live_on() {
    let scene = Scene::new();
    let launch = scene.perl("ready; forever");
    let mut command = Command::new(&launch.program);
    command.args(&launch.args).env_clear().envs(&launch.env).current_dir(&launch.cwd);
    let outside = Outsider::spawn(&mut command);
    let (first, _pipes) = scene.start_ready(&launch).await;
    let (second, _pipes) = scene.start_ready(&launch).await;
    assert_eq!(assert_empty(&first.sweep(BUDGET).await).0, 1);
    assert!(second.root().is_alive() && outside.id().is_alive());
    assert_eq!(assert_empty(&second.sweep(Duration::from_secs(5)).await).0, 1);
    assert!(outside.id().is_alive());
    drop(outside);
    scene.assert_gone(&[&first, &second]).await;
}
