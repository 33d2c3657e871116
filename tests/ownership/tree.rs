//! One tree from start to proof.

use std::time::Duration;

use lazy_mcp_broker::ownership::{RootExit, SpawnFailure, StartError, Sweep};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::support::{BUDGET, Scene, assert_empty, eventually, signal};

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
    // The wrapper neither passes a signal on nor dies of it.
    let (tree, mut pipes) = scene.start_ready(&scene.sh("trap '' TERM; (trap - TERM; exec sh ./inner.sh)")).await;
    tree.terminate();
    let mut said = String::new();
    pipes.stdout.read_to_string(&mut said).await.unwrap();
    assert_eq!(said, "bye\n");
    assert_eq!(tree.root_exit().await, RootExit::Code(3));
    assert_empty(&tree.sweep(BUDGET).await);
    scene.assert_gone(&[&tree]).await;
}
