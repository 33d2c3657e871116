//! What a server gets, what it does not, and why it could not be executed.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use lazy_mcp_broker::core::launch::Launch;
use lazy_mcp_broker::ownership::{SpawnFailure, StartError};
use tokio::io::AsyncReadExt;

use crate::support::{BUDGET, Scene, assert_empty, command_line, eventually};

async fn check(scene: &Scene, launch: &Launch, expected: SpawnFailure, says: &str) {
    let error = scene.try_start(launch).await.expect_err("not executed");
    let StartError::Spawn { failure, .. } = &error else { panic!("{error}") };
    assert_eq!(*failure, expected, "{error}");
    assert!(error.to_string().contains(says), "{error}");
    assert!(error.to_string().contains(&launch.program.display().to_string()), "{error}");
    assert!(scene.living().is_empty());
}

fn executable(path: &Path) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

#[tokio::test]
async fn each_failure_is_told_apart() {
    let scene = Scene::new();
    let good = scene.sh("true");
    let with = |change: &dyn Fn(&mut Launch)| {
        let mut launch = good.clone();
        change(&mut launch);
        launch
    };
    let absent = scene.path().join("absent");
    let plain = scene.file("plain", "#!/bin/sh\n");
    let orphan = scene.file("orphan", "#!/nowhere/interpreter\n");
    let garbage = scene.file("garbage", "\x01\x02\x03 neither a program nor a script");
    executable(&orphan);
    executable(&garbage);

    let launch = with(&|launch| launch.program.clone_from(&absent));
    check(&scene, &launch, SpawnFailure::NotFound, "install it").await;
    let launch = with(&|launch| launch.program = plain.join("below"));
    check(&scene, &launch, SpawnFailure::NotFound, "install it").await;
    let launch = with(&|launch| launch.program.clone_from(&plain));
    check(&scene, &launch, SpawnFailure::PermissionDenied, "executable").await;
    let launch = with(&|launch| launch.program = scene.path().to_owned());
    check(&scene, &launch, SpawnFailure::PermissionDenied, "executable").await;
    let launch = with(&|launch| launch.program.clone_from(&orphan));
    check(&scene, &launch, SpawnFailure::InterpreterNotFound, "#!").await;
    let launch = with(&|launch| launch.program.clone_from(&garbage));
    check(&scene, &launch, SpawnFailure::ExecFormat, "#!").await;
    let launch = with(&|launch| launch.cwd.clone_from(&absent));
    check(&scene, &launch, SpawnFailure::CwdMissing, "absent").await;
    let launch = with(&|launch| launch.cwd.clone_from(&plain));
    check(&scene, &launch, SpawnFailure::CwdMissing, "plain").await;
    let launch = with(&|launch| launch.args.push("x".repeat(300_000)));
    check(&scene, &launch, SpawnFailure::TooLarge, "shorten").await;
    let launch = with(&|launch| launch.args.push("nul \0 inside".to_owned()));
    check(&scene, &launch, SpawnFailure::Other, "nul").await;
    scene.assert_gone(&[]).await;
}

#[tokio::test]
async fn an_order_too_large_for_the_kernel_is_not_even_sent() {
    let scene = Scene::new();
    let mut launch = scene.sh("true");
    launch.args.push("x".repeat(5 << 20));
    assert!(matches!(scene.try_start(&launch).await, Err(StartError::TooLarge { .. })));
    scene.assert_gone(&[]).await;
}

#[tokio::test]
async fn a_large_launch_arrives_whole() {
    let scene = Scene::new();
    let mut launch = scene.sh("echo ${#1} ${#LARGE}; cat");
    launch.args.push("y".repeat(100_000));
    launch.env.insert("LARGE".to_owned(), "z".repeat(120_000));
    launch.args.extend((0..10).map(|_| "w".repeat(100_000)));
    let (tree, mut pipes) = scene.start(&launch).await;
    drop(pipes.stdin);
    let mut said = String::new();
    pipes.stdout.read_to_string(&mut said).await.unwrap();
    assert_eq!(said, "100000 120000\n");
    assert_empty(&tree.sweep(BUDGET).await);
    scene.assert_gone(&[&tree]).await;
}

#[tokio::test]
async fn the_server_gets_its_launch_and_nothing_of_ours() {
    let scene = Scene::new();
    // A descriptor as a careless parent of the broker would leave it: not close-on-exec.
    let _leaked = nix::unistd::dup(std::fs::File::open("/etc/passwd").unwrap()).unwrap();
    let mut launch = scene.sh("echo ready; read line");
    launch.env.insert("ONLY".to_owned(), "this".to_owned());
    let (tree, pipes) = scene.start_ready(&launch).await;
    let of = |process: u32, name: &str| std::fs::read_to_string(format!("/proc/{process}/{name}")).unwrap();
    let root = tree.root().pid;
    assert_eq!(of(root, "environ"), "ONLY=this\0PATH=/usr/bin:/bin\0");
    assert_eq!(std::fs::read_link(format!("/proc/{root}/cwd")).unwrap(), scene.path().canonicalize().unwrap());
    let held = |process: u32| -> Vec<String> {
        let fds = std::fs::read_dir(format!("/proc/{process}/fd")).unwrap().flatten();
        let links = fds.filter_map(|fd| std::fs::read_link(fd.path()).ok());
        links.map(|to| to.to_string_lossy().into_owned()).collect()
    };
    let (pipes_held, others): (Vec<_>, Vec<_>) = held(root).into_iter().partition(|to| to.starts_with("pipe:"));
    assert_eq!(
        (pipes_held.len(), others),
        (3, vec![launch.args[0].clone()]),
        "its stdio, and the script that it reads"
    );
    for mask in ["SigBlk", "SigIgn"] {
        let line = of(root, "status").lines().find(|line| line.starts_with(mask)).unwrap().to_owned();
        assert!(line.ends_with("\t0000000000000000"), "{line}");
    }
    let keeper = tree.keeper().pid;
    assert_eq!((command_line(keeper).as_str(), of(keeper, "environ").as_str()), ("lazy-mcp\0keeper\0", ""));
    assert_eq!(of(keeper, "comm"), "lazy-mcp-keeper\n");
    eventually("it gives back what only its start needed", BUDGET, || {
        // Relocated data, heap and stack; the pages of the file that a build has just written are counted as one's own.
        let files = of(keeper, "smaps_rollup");
        let kib =
            files.lines().find_map(|line| line.strip_prefix("Pss_File:")?.strip_suffix("kB")?.trim().parse().ok());
        kib.is_some_and(|kib: u64| kib < 4096)
    });
    // Its pipes are the server's alone: the end of the server is the end of file.
    let held = held(keeper);
    assert!(!held.iter().any(|to| to.starts_with("pipe:") || to.starts_with("/etc")), "{held:?}");
    drop(pipes);
    assert_empty(&tree.sweep(BUDGET).await);
    scene.assert_gone(&[&tree]).await;
}
