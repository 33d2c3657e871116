//! One tree from start to proof.

use std::pin::pin;
use std::task::Poll;

use lazy_mcp_broker::ownership::{Process, ProcessTable, RootExit};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::support::{BUDGET, Scene, assert_empty, eventually, is_alone, program, signal, start};

#[tokio::test]
async fn bytes_pass_untouched_and_eof_ends_an_orderly_server() {
    let scene = Scene::new();
    let (tree, mut pipes) = scene.start(&scene.sh("echo aside >&2; cat; exit 7")).await;
    let sent = vec![0xfe; 300_000];
    let writing = async {
        pipes.stdin.write_all(&sent).await.unwrap();
        drop(pipes.stdin);
    };
    let (mut got, mut aside) = (Vec::new(), String::new());
    let (_, read, read_aside) =
        tokio::join!(writing, pipes.stdout.read_to_end(&mut got), pipes.stderr.read_to_string(&mut aside));
    assert_eq!((read.unwrap(), read_aside.unwrap(), aside.as_str()), (sent.len(), 6, "aside\n"));
    assert!(got == sent);
    assert_eq!(tree.root_exit().await, RootExit::Code(7));
    assert_eq!(assert_empty(&tree.sweep(BUDGET).await).0, 0);
    assert_eq!(assert_empty(&tree.sweep(BUDGET).await).0, 0, "asked again, it is still empty");
    scene.assert_gone(&[&tree]).await;
}

#[tokio::test]
async fn terminate_reaches_the_root_behind_a_wrapper() {
    let scene = Scene::new();
    scene.file("inner.sh", "trap 'echo bye; exit 3' TERM; echo ready; while :; do sleep 0.05; done");
    // The wrapper dies of the signal without passing it on, as npx does; `exec` would hide it.
    let (tree, mut pipes) = scene.start_ready(&scene.sh("sh ./inner.sh; true")).await;
    tree.terminate();
    let mut said = String::new();
    pipes.stdout.read_to_string(&mut said).await.unwrap();
    assert_eq!(said, "bye\n");
    assert_eq!(tree.root_exit().await, RootExit::Signal(15));
    assert_empty(&tree.sweep(BUDGET).await);
    scene.assert_gone(&[&tree]).await;
}

#[tokio::test]
async fn terminate_leaves_other_sessions_to_the_root() {
    let scene = Scene::new();
    let (tree, mut pipes) = scene
        .start_ready(&scene.perl(
            "if (!fork) { POSIX::setsid(); $SIG{TERM} = sub { print \"browser hurt\\n\" }; ready; forever } sleep 1 while 1",
        ))
        .await;
    tree.terminate();
    assert_eq!(tree.root_exit().await, RootExit::Signal(15));
    assert_eq!(assert_empty(&tree.sweep(BUDGET).await).0, 1, "the browser");
    let mut said = String::new();
    pipes.stdout.read_to_string(&mut said).await.unwrap();
    assert_eq!(said, "");
    scene.assert_gone(&[&tree]).await;
}

#[tokio::test]
async fn a_root_that_ignores_terminate_is_killed() {
    let scene = Scene::new();
    let (tree, _pipes) = scene.start_ready(&scene.perl("$SIG{TERM} = 'IGNORE'; ready; forever")).await;
    tree.terminate();
    assert_eq!(assert_empty(&tree.sweep(BUDGET).await).0, 1);
    assert_eq!(tree.root_exit().await, RootExit::Signal(9));
    scene.assert_gone(&[&tree]).await;
}

#[tokio::test]
async fn a_stopped_server_is_killed() {
    let scene = Scene::new();
    let (tree, _pipes) = scene.start_ready(&scene.perl("ready; forever")).await;
    signal(tree.root(), "STOP");
    // A signal that comes before it stands still would be handled first.
    eventually("it stands still", BUDGET, || Process::read(tree.root().pid).unwrap().state == 'T');
    tree.terminate();
    assert_eq!(assert_empty(&tree.sweep(BUDGET).await).0, 1);
    scene.assert_gone(&[&tree]).await;
}

#[tokio::test]
async fn root_exit_is_told_to_all_who_ask_and_at_once() {
    let scene = Scene::new();
    let (tree, pipes) = scene.start_ready(&scene.perl("ready; <STDIN>; exit 5")).await;
    let other = tree.clone();
    let (first, second, ()) = tokio::join!(tree.root_exit(), other.root_exit(), async { drop(pipes.stdin) });
    assert_eq!((first, second), (RootExit::Code(5), RootExit::Code(5)));
    assert_eq!(tree.root_exit().await, RootExit::Code(5), "asked later");
    assert_empty(&tree.sweep(BUDGET).await);
    assert_eq!(tree.root_exit().await, RootExit::Code(5), "asked after the proof");
    scene.assert_gone(&[&tree]).await;
}

#[tokio::test]
async fn a_dropped_handle_leaves_nothing() {
    let scene = Scene::new();
    let (tree, pipes) = scene.start_ready(&scene.perl("$SIG{TERM} = 'IGNORE'; fork; fork; ready; forever")).await;
    let copy = tree.clone();
    drop(tree);
    assert!(!scene.living().is_empty(), "a clone holds it");
    drop((copy, pipes));
    scene.assert_gone(&[]).await;
}

#[tokio::test]
async fn a_start_that_is_cancelled_leaves_nothing() {
    let scene = Scene::new();
    let launch = scene.perl("ready; forever");
    for polls in 1..4 {
        let program = program();
        let mut starting = pin!(start(&program, &launch, &scene.tracker));
        for _ in 0..polls {
            let polled = std::future::poll_fn(|context| Poll::Ready(starting.as_mut().poll(context)));
            if polled.await.is_ready() {
                break;
            }
            tokio::task::yield_now().await;
        }
    }
    scene.assert_gone(&[]).await;
}

#[tokio::test]
async fn fifty_generations_leak_neither_descriptors_nor_zombies() {
    if !is_alone("tree::fifty_generations_leak_neither_descriptors_nor_zombies") {
        return;
    }
    let scene = Scene::new();
    let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let mut before = 0;
    for generation in 0..50 {
        let (tree, pipes) = scene.start_ready(&scene.sh("sleep 99 & echo ready; wait")).await;
        assert_eq!(assert_empty(&tree.sweep(BUDGET).await).0, 2);
        drop((tree, pipes));
        if generation == 0 {
            before = descriptors();
        }
    }
    assert_eq!(descriptors(), before);
    assert_eq!(ProcessTable::read().unwrap().descendants(std::process::id()), Vec::<&_>::new());
    scene.assert_gone(&[]).await;
}
