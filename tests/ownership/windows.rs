//! The Windows side of a tree, with a stand-in for `powershell.exe` that has a table of processes in a file
//! (`tests/stand_in/powershell.exe`).

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use lazy_mcp_broker::core::launch::Launch;
use lazy_mcp_broker::ownership::journal::{Journal, LeftoversBudget, Record};
use lazy_mcp_broker::ownership::{
    Marker, Owner, Owners, Pipes, Powershell, Process, ProcessId, ProcessTable, RootExit, StartError, Started,
    Survivor, Sweep, Tree, WindowsSide, become_subreaper, start,
};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio_util::task::TaskTracker;

use crate::lost_keeper::liar;
use crate::support::{
    BUDGET, Leased, Scene, assert_empty, eventually, is_alone, play_broker, played_scene, program, signal, swept,
};

/// For sweeps that are to run out of time without an answer.
const SHORT: Duration = Duration::from_millis(600);
/// For sweeps that are to run out of time after some: the stand-in starts in some tens of milliseconds.
const SOME: Duration = Duration::from_secs(3);

/// Windows, as far as it is played: a folder of the scene.
struct Windows {
    dir: PathBuf,
    /// No other scene has it: who asks carries it in its environment, and is found by that.
    instance: String,
}

impl Windows {
    fn of(scene: &Path) -> Self {
        let instance = scene.file_name().unwrap().to_string_lossy().into_owned();
        Self { dir: scene.join("windows"), instance }
    }

    /// With two processes of generation 1 and all that could be taken for one of it.
    fn new(scene: &Path) -> Self {
        let windows = Self::of(scene);
        fs::create_dir(&windows.dir).unwrap();
        fs::copy(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/stand_in/powershell.exe"), windows.program()).unwrap();
        fs::set_permissions(windows.program(), fs::Permissions::from_mode(0o755)).unwrap();
        windows.put(&[windows.marked(), windows.decoys()].concat());
        windows.be("normal");
        windows
    }

    fn marked(&self) -> Vec<Value> {
        let instance = &self.instance;
        let profile = format!("C:\\Users\\me\\Temp\\lazy-mcp\\git-{instance}-1");
        vec![
            process(4100, &format!("\"C:\\Chrome\\chrome.exe\" --user-data-dir=\"{profile}\" about:blank")),
            process(4101, &format!("chrome.exe --type=gpu --database={}\\Crashpad", profile.to_uppercase())),
        ]
    }

    /// Other generations, instances, backends, and longer names on either side; and one that carries nothing.
    fn decoys(&self) -> Vec<Value> {
        let instance = &self.instance;
        let near = [
            format!("lazy-mcp\\git-{instance}-12"),
            format!("lazy-mcp\\git-{instance}-1-old"),
            format!("lazy-mcp\\git-{instance}-1_"),
            format!("lazy-mcp\\git-{instance}-1é"),
            format!("lazy-mcp\\git-{instance}-2"),
            format!("lazy-mcp\\git-{instance}0-1"),
            format!("lazy-mcp\\gitea-{instance}-1"),
            format!("lazy-mcp\\git-{instance}"),
            format!("not-lazy-mcp\\git-{instance}-1"),
            format!("lazy-mcp/git-{instance}-1"),
            format!("lazy-mcpXgit-{instance}-1"),
            "explorer.exe".to_owned(),
        ];
        let path =
            |(i, name): (usize, String)| process(5000 + i, &format!("chrome.exe --user-data-dir=C:\\Temp\\{name}"));
        let mut decoys: Vec<Value> = near.into_iter().enumerate().map(path).collect();
        // Before the name as well.
        decoys.push(process(5100, &format!("chrome.exe C:\\Temp\\x{}", format_args!("lazy-mcp\\git-{instance}-1"))));
        decoys
    }

    fn program(&self) -> PathBuf {
        self.dir.join("powershell.exe")
    }

    fn powershell(&self) -> Powershell {
        let env = [("PATH", "/usr/bin:/bin"), ("WSL_INTEROP", "/nowhere"), ("HOME", "/root")];
        Powershell::new(self.program(), &env.map(|(name, value)| (name.to_owned(), value.to_owned())).into())
    }

    fn marker(&self, generation: u64) -> Marker {
        Marker::of("git", &self.instance, generation).unwrap()
    }

    fn owners(&self) -> Owners {
        let side = WindowsSide { marker: self.marker(1), powershell: self.powershell() };
        Owners { cgroup: None, windows: Some(side) }
    }

    fn put(&self, table: &[Value]) {
        fs::write(self.dir.join("table.json"), json!(table).to_string()).unwrap();
    }

    fn table(&self) -> Vec<Value> {
        serde_json::from_slice(&fs::read(self.dir.join("table.json")).unwrap()).unwrap()
    }

    fn be(&self, mode: &str) {
        fs::write(self.dir.join("mode.new"), mode).unwrap();
        fs::rename(self.dir.join("mode.new"), self.dir.join("mode")).unwrap();
    }

    /// How often something was done, by the first word of its line.
    fn count(&self, event: &str) -> usize {
        self.log().iter().filter(|line| line.split(' ').next() == Some(event)).count()
    }

    fn log(&self) -> Vec<String> {
        let text = fs::read_to_string(self.dir.join("log")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// All that carry the marker are gone and nobody else is.
    #[track_caller]
    fn assert_only_decoys(&self) {
        assert_eq!(self.table(), self.decoys());
        assert!(!self.log().iter().any(|line| line.starts_with("no ")), "{:?}", self.log());
    }
}

fn process(pid: usize, command: &str) -> Value {
    json!({"pid": pid, "created": format!("6380000000000{pid}"), "name": "chrome.exe", "command": command})
}

async fn start_on(windows: &Windows, scene: &Scene, launch: &Launch) -> (Tree, Pipes) {
    let started = start(windows.owners(), &program(), launch, &scene.tracker).await;
    let Started { tree, mut pipes } = started.expect("starts");
    let line = BufReader::new(&mut pipes.stdout).lines().next_line().await.expect("readable").expect("a line");
    assert_eq!(line, "ready");
    (tree, pipes)
}

/// Sweeps with Windows in this mode and expects the proof, with so many killed on both sides.
async fn check_proved(mode: &str, killed: usize, then: impl FnOnce(&Windows)) {
    let scene = Scene::new();
    let windows = Windows::new(scene.path());
    windows.be(mode);
    let (tree, _pipes) = start_on(&windows, &scene, &scene.perl("ready; forever")).await;
    assert_eq!((tree.owner(), tree.owner().as_str()), (Owner::KeeperAndWindows, "keeper+windows"));
    assert_eq!(windows.log(), Vec::<String>::new(), "nobody is asked before the stop");
    let (seen, took) = assert_empty(&tree.sweep(BUDGET).await);
    println!("{mode}: {seen} killed, {took:?} to the proof");
    assert_eq!(seen, killed, "{mode}");
    then(&windows);
    scene.assert_gone(&[&tree]).await;
}

/// Sweeps with Windows in this mode, expects that nothing is proved for this reason, in time, and that nothing is left
/// of who asked; then Windows is well again.
async fn check_busy(mode: &str, budget: Duration, reason: &str, survivors: usize) {
    let scene = Scene::new();
    let windows = Windows::new(scene.path());
    windows.be(mode);
    let (tree, _pipes) = start_on(&windows, &scene, &scene.perl("ready; forever")).await;
    let begun = Instant::now();
    let Sweep::Busy { survivors: named, reason: Some(said) } = tree.sweep(budget).await else {
        panic!("{mode}: proved, or busy without a reason")
    };
    // Far less than it hangs for, and than it is given where nobody waits.
    assert!(begun.elapsed() < budget + Duration::from_secs(5), "{mode}: {:?}", begun.elapsed());
    assert!(said.contains(reason), "{mode}: {said}");
    assert!(named.iter().all(|survivor| survivor.windows), "{named:?}");
    assert_eq!(named.len(), survivors, "{mode}: {named:?}");
    assert_eq!(scene.living(), [], "{mode}: neither the server nor who asked Windows");
    assert_eq!(windows.table().len(), windows.decoys().len() + 2, "{mode}: nobody was ended");
    windows.be("normal");
    assert_empty(&tree.sweep(BUDGET).await);
    windows.assert_only_decoys();
    scene.assert_gone(&[&tree]).await;
}

#[tokio::test]
async fn who_carries_the_marker_is_ended_and_nobody_else() {
    check_proved("normal", 3, |windows| {
        windows.assert_only_decoys();
        let actions: Vec<String> =
            windows.log().iter().map(|line| line.split(' ').next().unwrap().to_owned()).collect();
        assert_eq!(actions, ["query", "terminate", "terminated", "terminated", "query"]);
        assert_eq!(windows.log()[0], format!("query {}", windows.marker(1)));
    })
    .await;
}

#[tokio::test]
async fn a_side_that_ended_politely_costs_one_question() {
    let scene = Scene::new();
    let windows = Windows::new(scene.path());
    windows.put(&windows.decoys());
    let (tree, pipes) = start_on(&windows, &scene, &scene.perl("ready; <STDIN>; exit 0")).await;
    drop(pipes);
    tree.root_exit().await;
    assert_eq!(assert_empty(&tree.sweep(BUDGET).await).0, 0);
    assert_eq!(windows.log().len(), 1);
    windows.assert_only_decoys();
    scene.assert_gone(&[&tree]).await;
}

#[tokio::test]
async fn a_slow_answer_is_waited_for() {
    check_proved("slow 0.4", 3, Windows::assert_only_decoys).await;
}

#[tokio::test]
async fn what_asked_may_leave_processes_and_they_go_too() {
    check_proved("holds", 3, Windows::assert_only_decoys).await;
    check_proved("escapes", 3, Windows::assert_only_decoys).await;
}

#[tokio::test]
async fn a_number_that_went_to_another_process_is_left_alone() {
    check_proved("reused", 1, |windows| {
        assert_eq!((windows.count("mismatch"), windows.count("terminated")), (2, 0));
        assert_eq!(windows.table().len(), windows.decoys().len() + 2);
    })
    .await;
}

#[tokio::test]
async fn a_number_that_went_to_another_process_with_the_marker_is_ended_as_that_one() {
    check_proved("moved", 3, |windows| {
        assert_eq!((windows.count("mismatch"), windows.count("terminated")), (2, 2));
        windows.assert_only_decoys();
    })
    .await;
}

#[tokio::test]
async fn what_windows_does_not_say_is_not_proved() {
    check_busy("hung", SHORT, "powershell.exe did not answer within 0.", 0).await;
    check_busy("garbage", BUDGET, "powershell.exe did not answer as agreed", 0).await;
    check_busy("half", BUDGET, "powershell.exe did not answer as agreed", 0).await;
    check_busy("fails", BUDGET, "powershell.exe ended with exit status: 1 instead of an answer", 0).await;
    check_busy("endless", BUDGET, "powershell.exe answered more than 1048576 bytes", 0).await;
    check_busy("error", BUDGET, "powershell.exe says that Windows did not answer: CimException", 0).await;
}

#[tokio::test]
async fn who_survives_is_named() {
    check_busy("stubborn", SOME, "2 processes still run on the Windows side", 2).await;
    check_busy("mute", SOME, "2 processes still run on the Windows side; powershell.exe did not answer within ", 2)
        .await;
}

#[tokio::test]
async fn a_survivor_is_shown_by_what_windows_says_of_it_and_no_more() {
    let scene = Scene::new();
    let windows = Windows::new(scene.path());
    windows.be("stubborn");
    let mut without_time = windows.marked();
    without_time.truncate(1);
    without_time[0]["created"] = json!("0");
    windows.put(&without_time);
    let (tree, _pipes) = start_on(&windows, &scene, &scene.perl("ready; forever")).await;
    let Sweep::Busy { survivors, .. } = tree.sweep(SOME).await else { panic!("proved") };
    let expected = Survivor { pid: 4100, start_time: 0, comm: "chrome.exe".to_owned(), state: '?', windows: true };
    assert_eq!(survivors, [expected]);
    assert_eq!(windows.count("terminate"), 0, "without its time of creation it could be anybody");
    windows.put(&[]);
    assert_empty(&tree.sweep(BUDGET).await);
    scene.assert_gone(&[&tree]).await;
}

#[tokio::test]
async fn without_the_program_nothing_is_proved() {
    let scene = Scene::new();
    let windows = Windows::new(scene.path());
    let hidden = windows.dir.join("hidden");
    fs::rename(windows.program(), &hidden).unwrap();
    let (tree, _pipes) = start_on(&windows, &scene, &scene.perl("ready; forever")).await;
    let Sweep::Busy { reason: Some(reason), .. } = tree.sweep(BUDGET).await else { panic!("proved") };
    assert!(reason.contains("powershell.exe` could not be started: No such file"), "{reason}");
    fs::rename(hidden, windows.program()).unwrap();
    assert_empty(&tree.sweep(BUDGET).await);
    windows.assert_only_decoys();
    scene.assert_gone(&[&tree]).await;
}

#[tokio::test]
async fn a_linux_side_that_is_not_empty_keeps_windows_from_being_asked() {
    let scene = Scene::new();
    let windows = Windows::new(scene.path());
    let (tree, _pipes) = start_on(&windows, &scene, &scene.perl("ready; forever")).await;
    assert!(matches!(tree.sweep(Duration::ZERO).await, Sweep::Busy { .. }));
    assert_eq!(windows.log(), Vec::<String>::new());
    assert_empty(&tree.sweep(BUDGET).await);
    windows.assert_only_decoys();
    scene.assert_gone(&[&tree]).await;
}

#[tokio::test]
async fn a_server_that_was_not_executed_has_no_windows_side() {
    let scene = Scene::new();
    let windows = Windows::new(scene.path());
    let absent = Launch { program: "/nowhere/at/all".into(), ..scene.sh("") };
    start(windows.owners(), &program(), &absent, &scene.tracker).await.expect_err("not executed");
    assert_eq!(windows.log(), Vec::<String>::new());
    scene.assert_gone(&[]).await;
}

#[tokio::test]
async fn a_server_that_was_not_executed_has_no_windows_side_without_its_keeper_either() {
    if !is_alone("windows::a_server_that_was_not_executed_has_no_windows_side_without_its_keeper_either") {
        return;
    }
    let scene = Scene::new();
    let windows = Windows::new(scene.path());
    let keeper = liar(&scene, r#"take; say_('{"SpawnFailed":{"failure":"NotFound","message":"no"}}'); exit 1"#);
    let failed = start(windows.owners(), &keeper, &scene.sh("true"), &scene.tracker).await.unwrap_err();
    assert!(failed.remains.is_none() && matches!(failed.error, StartError::Spawn { .. }), "{failed:?}");
    assert_eq!(windows.log(), Vec::<String>::new(), "nobody is asked");
    scene.assert_gone(&[]).await;
}

#[tokio::test]
async fn a_dropped_handle_leaves_nothing_on_windows() {
    let scene = Scene::new();
    let windows = Windows::new(scene.path());
    drop(start_on(&windows, &scene, &scene.perl("ready; forever")).await);
    scene.assert_gone(&[]).await;
    windows.assert_only_decoys();
}

/// What a keeper may take is measured in a release build (`docs/benchmarks.md`); here, that Windows adds little to it,
/// before a sweep and after one.
#[tokio::test]
async fn a_keeper_with_a_windows_side_stays_small() {
    let scene = Scene::new();
    let windows = Windows::new(scene.path());
    windows.be("error");
    let launch = scene.perl("ready; forever");
    let (plain, _pipes) = scene.start_ready(&launch).await;
    let (tree, _pipes) = start_on(&windows, &scene, &launch).await;
    let resident = |tree: &Tree| own_memory(tree.keeper().pid);
    let is_small = || resident(&tree) < resident(&plain) + (512 << 10);
    eventually("what a start needs is given back", BUDGET, is_small);
    let (without, with) = (resident(&plain), resident(&tree));
    assert!(matches!(tree.sweep(BUDGET).await, Sweep::Busy { .. }));
    eventually("what a sweep needs is given back", BUDGET, is_small);
    let after = resident(&tree);
    println!("a keeper: {} KiB, with Windows {} KiB, after a sweep {} KiB", without >> 10, with >> 10, after >> 10);
    windows.be("normal");
    assert_empty(&tree.sweep(BUDGET).await);
    assert_empty(&plain.sweep(BUDGET).await);
    scene.assert_gone(&[&plain, &tree]).await;
}

/// Bytes that are the process's alone. Pages of its file come and go as the kernel likes.
fn own_memory(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

/// Not a test: what [`play_broker`] runs.
#[tokio::test]
async fn play_a_broker_with_a_windows_side() {
    let Some(path) = played_scene() else { return };
    let windows = Windows::of(&path);
    let journal = Journal::open(&path).unwrap();
    let mut entry = journal.begin("git", &windows.instance, 1, None).unwrap();
    journal.with_windows(&mut entry, &windows.marker(1)).unwrap();
    let launch = Launch {
        program: "/usr/bin/perl".into(),
        args: vec![path.join("server.pl").display().to_string()],
        env: BTreeMap::new(),
        cwd: path.clone(),
    };
    let started = start(windows.owners(), &program(), &launch, &TaskTracker::new()).await.unwrap();
    entry.started(started.tree.keeper(), started.tree.root()).unwrap();
    std::future::pending::<()>().await;
}

fn keeper_in(scene: &Scene, instance: &str) -> ProcessId {
    let path = scene.path().join(format!("journal/git-{instance}-1.json"));
    let mut keeper = None;
    eventually("the journal names the keeper", BUDGET, || {
        let record = fs::read(&path).ok().and_then(|bytes| serde_json::from_slice::<Record>(&bytes).ok());
        keeper = record.and_then(|record| record.keeper);
        keeper.is_some()
    });
    keeper.unwrap()
}

#[tokio::test]
async fn a_keeper_whose_broker_was_killed_clears_windows() {
    let scene = Scene::new();
    let windows = Windows::new(scene.path());
    scene.perl("forever");
    let broker = play_broker("windows::play_a_broker_with_a_windows_side", scene.path());
    let keeper = keeper_in(&scene, &windows.instance);
    windows.be("error");
    drop(broker);
    eventually("Windows is asked", BUDGET, || windows.count("query") == 1);
    let paused = eventually("Windows is asked again", BUDGET, || windows.count("query") == 2);
    assert!(paused > Duration::from_millis(900), "it does not ask all the time: {paused:?}");
    assert!(keeper.is_alive() && windows.table().len() > windows.decoys().len());
    windows.be("normal");
    let took = eventually("the keeper has proved it and is gone", BUDGET, || !keeper.is_alive());
    println!("the keeper of a killed broker cleared Windows {took:?} after it could");
    assert_eq!(windows.count("query"), 4, "{:?}", windows.log());
    windows.assert_only_decoys();
    scene.assert_gone(&[]).await;
}

#[tokio::test]
async fn the_broker_of_a_killed_keeper_clears_windows() {
    if !is_alone("windows::the_broker_of_a_killed_keeper_clears_windows") {
        return;
    }
    let scene = Scene::new();
    let windows = Windows::new(scene.path());
    let code = "if (!fork) { POSIX::setsid(); ready; forever } forever";
    let (tree, _pipes) = start_on(&windows, &scene, &scene.perl(code)).await;
    signal(tree.keeper(), "KILL");
    assert_eq!(tree.root_exit().await, RootExit::KeeperLost);
    // It leaves a daemon and a zombie to this process, which is no parent of their parent's.
    for mode in ["hung", "escapes"] {
        windows.be(mode);
        match mode {
            "hung" => {
                let swept = tree.sweep(SHORT).await;
                assert!(matches!(swept, Sweep::Busy { reason: Some(_), .. }), "{swept:?}");
            }
            _ => {
                assert_empty(&tree.sweep(BUDGET).await);
            }
        }
        eventually("nobody of them is left", BUDGET, || scene.living().is_empty());
        assert_eq!(ProcessTable::read().unwrap().descendants(std::process::id()), Vec::<&_>::new());
    }
    windows.assert_only_decoys();
    scene.assert_gone(&[&tree]).await;
}

/// Not a test: what [`play_broker`] runs.
#[tokio::test]
async fn play_a_broker_that_asks_windows_itself() {
    let Some(path) = played_scene() else { return };
    let windows = Windows::of(&path);
    let scene = Scene::new();
    let launch = Launch { cwd: path.clone(), ..scene.sh("true") };
    let started = start(windows.owners(), &program(), &launch, &scene.tracker).await.unwrap();
    signal(started.tree.keeper(), "KILL");
    started.tree.sweep(BUDGET).await;
}

#[test]
fn who_asks_windows_dies_with_its_broker() {
    let scene = Scene::new();
    let windows = Windows::new(scene.path());
    windows.be("mute");
    let broker = play_broker("windows::play_a_broker_that_asks_windows_itself", scene.path());
    eventually("it asks, and gets no answer", BUDGET, || windows.count("terminate") == 1);
    assert_eq!(scene.living().len(), 1);
    drop(broker);
    eventually("nobody asks any more", BUDGET, || scene.living().is_empty());
}

/// Who asks Windows for one lost tree is no orphan of another.
#[tokio::test]
async fn two_lost_trees_are_swept_at_the_same_time() {
    if !is_alone("windows::two_lost_trees_are_swept_at_the_same_time") {
        return;
    }
    let scene = Scene::new();
    let windows = Windows::new(scene.path());
    windows.be("slow 0.5");
    let launch = scene.perl("ready; forever");
    let (tree, _pipes) = start_on(&windows, &scene, &launch).await;
    let (other, _pipes) = scene.start_ready(&launch).await;
    for keeper in [tree.keeper(), other.keeper()] {
        signal(keeper, "KILL");
    }
    let other_sweep = async {
        let asked = async {
            while windows.log().is_empty() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(BUDGET, asked).await.expect("Windows is asked");
        other.sweep(BUDGET).await
    };
    let (swept, other_swept) = tokio::join!(tree.sweep(BUDGET), other_sweep);
    assert_empty(&swept);
    assert_empty(&other_swept);
    windows.assert_only_decoys();
    scene.assert_gone(&[&tree, &other]).await;
}

/// A drive of Windows that does not answer: what is to ask hangs in its exec, and nobody else does.
#[tokio::test]
async fn a_program_that_hangs_in_its_exec_holds_up_nobody() {
    if !is_alone("windows::a_program_that_hangs_in_its_exec_holds_up_nobody") {
        return;
    }
    let scene = Scene::new();
    let windows = Windows::new(scene.path());
    // Older than the keepers that are lost: it is a child of this process, and no orphan of theirs.
    let lease = Leased::hold(&windows.program());
    let launch = scene.perl("ready; forever");
    let (kept, _pipes) = scene.start_ready(&launch).await;
    let (tree, _pipes) = start_on(&windows, &scene, &launch).await;
    let (lost, _pipes) = scene.start_ready(&launch).await;
    signal(tree.keeper(), "KILL");
    signal(lost.keeper(), "KILL");
    let begun = Instant::now();
    let asked = tree.sweep(SHORT).await;
    let Sweep::Busy { reason: Some(reason), .. } = &asked else { panic!("nobody was asked: {asked:?}") };
    assert!(reason.contains("could not be asked"), "{reason}");
    // What hangs is a child of ours that nobody can tell from an orphan yet: it is left alone, and nothing is proved.
    let unproved = lost.sweep(SHORT).await;
    let Sweep::Busy { survivors, reason: None } = &unproved else { panic!("nothing is proved: {unproved:?}") };
    assert_eq!(survivors.len(), 1, "{survivors:?}");
    assert!(!lost.root().is_alive() && Process::read(survivors[0].pid).is_some());
    // A keeper says by itself what is to be known of its tree, and can be started.
    assert_empty(&kept.sweep(BUDGET).await);
    let (another, _pipes) = scene.start_ready(&launch).await;
    assert_empty(&another.sweep(BUDGET).await);
    // Far less than the 45 s after which the exec goes on by itself.
    assert!(begun.elapsed() < BUDGET, "{:?}", begun.elapsed());
    drop(lease);
    swept(&tree, BUDGET).await;
    swept(&lost, BUDGET).await;
    windows.assert_only_decoys();
    scene.assert_gone(&[&tree, &lost, &kept, &another]).await;
}

#[tokio::test]
async fn the_next_broker_clears_windows_when_both_were_killed() {
    if !is_alone("windows::the_next_broker_clears_windows_when_both_were_killed") {
        return;
    }
    let scene = Scene::new();
    let windows = Windows::new(scene.path());
    scene.perl("forever");
    let broker = play_broker("windows::play_a_broker_with_a_windows_side", scene.path());
    let keeper = keeper_in(&scene, &windows.instance);
    signal(keeper, "STOP");
    drop(broker);
    signal(keeper, "KILL");
    eventually("both are gone", BUDGET, || scene.living().is_empty());
    // As a broker does first of all.
    become_subreaper().unwrap();

    let journal = Journal::open(scene.path()).unwrap();
    windows.be("error");
    let swept = journal.sweep_leftovers(LeftoversBudget::whole(BUDGET), |_| Ok(windows.powershell())).await.unwrap();
    let Sweep::Busy { reason: Some(reason), .. } = &swept[0].sweep else { panic!("{:?}", swept[0].sweep) };
    assert!(reason.contains("CimException"), "{reason}");
    let swept = journal
        .sweep_leftovers(LeftoversBudget::whole(BUDGET), |_| Err("nothing to ask with".to_owned()))
        .await
        .unwrap();
    let unasked = Sweep::Busy { survivors: Vec::new(), reason: Some("nothing to ask with".to_owned()) };
    assert_eq!(swept[0].sweep, unasked);
    assert_eq!(journal.leftovers().unwrap().len(), 1, "it stays until it is proved");

    windows.be("escapes");
    let swept = journal.sweep_leftovers(LeftoversBudget::whole(BUDGET), |backend| {
        assert_eq!(backend, "git");
        Ok(windows.powershell())
    });
    assert_eq!(assert_empty(&swept.await.unwrap()[0].sweep).0, 2);
    assert_eq!(journal.leftovers().unwrap(), []);
    windows.assert_only_decoys();
    scene.assert_gone(&[]).await;
    assert_eq!(ProcessTable::read().unwrap().descendants(std::process::id()), Vec::<&_>::new());
}

/// Whatever an entry says: what runs is what the caller says, and only a marker that this installation has noted is
/// asked for.
#[tokio::test]
async fn a_forged_entry_runs_nothing_and_touches_no_marker() {
    if !is_alone("windows::a_forged_entry_runs_nothing_and_touches_no_marker") {
        return;
    }
    let scene = Scene::new();
    let windows = Windows::new(scene.path());
    let journal = Journal::open(scene.path()).unwrap();
    let dead_broker = ProcessId { start_time: 1, ..ProcessId::of(std::process::id()).unwrap() };
    let put = |name: &str, record: &Value| {
        fs::write(scene.path().join(format!("journal/{name}.json")), record.to_string()).unwrap();
    };
    let mut entry = journal.begin("git", &windows.instance, 2, None).unwrap();
    journal.with_windows(&mut entry, &windows.marker(2)).unwrap();
    drop(entry);
    let noted = scene.path().join(format!("journal/git-{}-2.json", windows.instance));
    let mut record: Value = serde_json::from_slice(&fs::read(&noted).unwrap()).unwrap();
    fs::remove_file(noted).unwrap();
    record["broker"] = serde_json::to_value(dead_broker).unwrap();
    // With the seal of generation 2 each names what is not generation 2.
    let forgeries = [
        ("generation", json!(1)),
        ("backend", json!("gitea")),
        ("backend", json!("git' -or 'a")),
        ("backend", json!("")),
        ("instance", json!(format!("{}0", windows.instance))),
        ("instance", json!("..\\..\\Windows")),
        ("instance", json!("*")),
        ("windows", json!(format!("sha256:{}", "0".repeat(64)))),
        ("windows", json!(null)),
    ];
    for (number, (field, value)) in forgeries.iter().enumerate() {
        let mut forged = record.clone();
        forged[field] = value.clone();
        put(&format!("forged-{number}"), &forged);
    }
    for (number, windows) in [json!({"program": "/bin/touch"}), json!("/bin/touch"), json!(true)].iter().enumerate() {
        let mut forged = record.clone();
        forged["windows"] = windows.clone();
        put(&format!("no-record-{number}"), &forged);
    }
    let swept = journal
        .sweep_leftovers(LeftoversBudget::whole(BUDGET), |backend| panic!("asked for `{backend}`"))
        .await
        .unwrap();
    assert_eq!(swept.iter().map(|leftover| assert_empty(&leftover.sweep).0).collect::<Vec<_>>(), [0; 9]);
    assert_eq!(windows.log(), Vec::<String>::new());

    // What runs on Windows outlives the boot of a WSL, so the true one is asked for after that too, and nobody else; and
    // however long the others took.
    record["boot_id"] = json!("another boot");
    put("true", &record);
    let used_up = LeftoversBudget { here: Duration::ZERO, windows_each: Some(BUDGET) };
    let swept = journal.sweep_leftovers(used_up, |_| Ok(windows.powershell())).await.unwrap();
    assert_eq!(assert_empty(&swept[0].sweep).0, 1);
    assert_eq!(windows.log()[0], format!("query {}", windows.marker(2)));
    assert_eq!(windows.table().len(), windows.decoys().len() + 1, "generation 2 was a decoy until now");
    assert_eq!(journal.leftovers().unwrap(), []);
    scene.assert_gone(&[]).await;
}
