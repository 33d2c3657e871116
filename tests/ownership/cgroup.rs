//! Trees that have a cgroup beside their keeper. Where none can be made, these say so and end.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use lazy_mcp_broker::core::launch::Launch;
use lazy_mcp_broker::ownership::journal::{Journal, LeftoversBudget, Record};
use lazy_mcp_broker::ownership::{
    Cgroup, Cgroups, Owner, Pipes, Process, ProcessId, RootExit, Started, Sweep, Tree, boot_id,
};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio_util::task::TaskTracker;

use crate::support::{
    BUDGET, Outsider, Scene, assert_empty, command_line, eventually, is_alone, no_windows, play_broker, played_scene,
    program, signal, skipped, start_in,
};

const INSTANCE: &str = "0a1b";
const GENERATION: u64 = 7;

/// A place of the scene's own, as two installations have two.
#[track_caller]
fn place(scene: &Scene) -> Option<Cgroups> {
    let name = scene.path().file_name().unwrap().to_string_lossy().into_owned();
    found(&name["scene-".len()..])
}

/// Asks the kernel. Who gets none has nothing to test.
#[track_caller]
fn found(installation: &str) -> Option<Cgroups> {
    match Cgroups::find(installation) {
        Ok(place) => Some(place),
        Err(reason) => {
            skipped(reason);
            None
        }
    }
}

async fn start_ready(scene: &Scene, cgroup: &Cgroup, launch: &Launch) -> (Tree, Pipes) {
    let started = start_in(Some(cgroup.clone()), &program(), launch, &scene.tracker).await;
    let Started { tree, mut pipes } = started.expect("starts");
    let line = BufReader::new(&mut pipes.stdout).lines().next_line().await.expect("readable").expect("a line");
    assert_eq!(line, "ready");
    (tree, pipes)
}

/// Whether the process is in this cgroup or below it.
fn is_in(process: ProcessId, cgroup: &Cgroup) -> bool {
    let lines = fs::read_to_string(format!("/proc/{}/cgroup", process.pid)).unwrap_or_default();
    let name = format!("/{}", cgroup.path().file_name().unwrap().display());
    lines.lines().filter(|line| line.starts_with("0::")).any(|line| line.contains(&name))
}

/// The directory of all cgroups of the scene goes with the last of them.
#[track_caller]
fn assert_removed(cgroup: &Cgroup) {
    assert!(!cgroup.path().parent().unwrap().exists(), "{}", cgroup.path().display());
}

/// Starts the server, waits until so many of the scene live, sweeps, and expects so many killed.
async fn check(code: impl Fn(&Cgroup) -> String, living: usize, killed: usize) {
    let scene = Scene::new();
    let Some(place) = place(&scene) else { return };
    let cgroup = place.of(INSTANCE, GENERATION);
    let (tree, _pipes) = start_ready(&scene, &cgroup, &scene.perl(&(TRICKS.to_owned() + &code(&cgroup)))).await;
    assert_eq!(tree.owner(), Owner::KeeperAndCgroup);
    eventually("all run", BUDGET, || scene.living().len() == living);
    let (seen, took) = assert_empty(&tree.sweep(BUDGET).await);
    println!("{seen} killed, {took:?} from the order to the proof");
    assert_eq!(seen, killed);
    assert_removed(&cgroup);
    scene.assert_gone(&[&tree]).await;
}

const TRICKS: &str = "
    sub apart { if (my $pid = fork) { waitpid $pid, 0; return 0 } POSIX::setsid(); exit if fork; 1 }
    sub detached { if (apart) { undef %ENV; exec '/usr/bin/perl', '-MPOSIX', '-e', $_[0], $0 } }
    sub enter { open my $procs, '>', \"$_[0]/cgroup.procs\" or die; syswrite $procs, '0' or die }
    ";

/// Like a browser: a root, a leader in its own session with eight below, two handlers that double-fork.
const TWELVE: &str = "
    detached('sleep 99 while 1') for 1..2;
    if (!fork) { POSIX::setsid(); for (1..8) { if (!fork) { forever } } forever } ready; forever";

#[tokio::test]
async fn the_server_is_put_in_before_it_runs_and_the_keeper_is_not() {
    let scene = Scene::new();
    let Some(place) = place(&scene) else { return };
    let cgroup = place.of(INSTANCE, GENERATION);
    let code = "open my $own, '<', '/proc/self/cgroup'; open my $seen, '>', 'seen'; print {$seen} <$own>; close $seen;
                ready; <STDIN>; exit 5";
    let (tree, pipes) = start_ready(&scene, &cgroup, &scene.perl(code)).await;
    let seen = fs::read_to_string(scene.path().join("seen")).unwrap();
    let name = cgroup.path().iter().rev().take(2).collect::<Vec<_>>();
    let tail = format!("/{}/{}\n", name[1].display(), name[0].display());
    assert!(seen.lines().any(|line| line.starts_with("0::") && format!("{line}\n").ends_with(&tail)), "{seen}");
    assert!(is_in(tree.root(), &cgroup) && !is_in(tree.keeper(), &cgroup));
    drop(pipes);
    assert_eq!(tree.root_exit().await, RootExit::Code(5));
    assert_eq!(assert_empty(&tree.sweep(BUDGET).await).0, 0, "an orderly end kills nobody");
    assert_removed(&cgroup);
    scene.assert_gone(&[&tree]).await;
}

#[tokio::test]
async fn a_detached_child_without_environment_goes_with_its_cgroup() {
    check(|_| "detached('sleep 99 while 1'); ready; forever".to_owned(), 2, 2).await;
}

#[tokio::test]
async fn a_process_that_moved_itself_out_is_the_keepers_still() {
    let code = |cgroup: &Cgroup| {
        let outside = cgroup.path().ancestors().nth(2).unwrap().display();
        format!("if (apart) {{ enter('{outside}'); fork; ready; forever }} forever")
    };
    // One more line than is read: the first of the two has said it.
    check(code, 3, 3).await;
}

#[tokio::test]
async fn what_hides_in_nested_cgroups_goes_and_so_do_they() {
    let code = |cgroup: &Cgroup| {
        let own = cgroup.path().display();
        format!(
            "mkdir \"{own}/$_\" or die for 'a', 'a/b', 'a/b/c', 'd';
             if (!fork) {{ enter('{own}/a/b/c'); if (!fork) {{ POSIX::setsid(); ready; forever }} forever }} forever"
        )
    };
    check(code, 3, 3).await;
}

#[tokio::test]
async fn a_tree_that_always_forks_is_beaten() {
    let scene = Scene::new();
    let Some(place) = place(&scene) else { return };
    let cgroup = place.of(INSTANCE, GENERATION);
    let flight =
        "open F, q(>>), q(forks); while (1) { if (fork) { POSIX::_exit(0) } POSIX::setsid(); syswrite F, q(.) }";
    let code = format!("{TRICKS} detached('{flight}') for 1..2; ready; forever");
    let (tree, _pipes) = start_ready(&scene, &cgroup, &scene.perl(&code)).await;
    let forks = || fs::metadata(scene.path().join("forks")).map_or(0, |file| file.len());
    eventually("they fork all the time", BUDGET, || forks() > 50);
    let (killed, took) = assert_empty(&tree.sweep(BUDGET).await);
    println!("2 decoys that always fork, in a cgroup: {killed} seen and killed, {took:?} to the proof");
    assert_removed(&cgroup);
    scene.assert_gone(&[&tree]).await;
}

#[tokio::test]
async fn a_stopped_tree_goes() {
    let scene = Scene::new();
    let Some(place) = place(&scene) else { return };
    let cgroup = place.of(INSTANCE, GENERATION);
    let (tree, _pipes) = start_ready(&scene, &cgroup, &scene.perl(&format!("{TRICKS}{TWELVE}"))).await;
    eventually("twelve", BUDGET, || scene.living().len() == 12);
    for process in scene.living() {
        signal(process.id(), "STOP");
    }
    eventually("they stand still", BUDGET, || scene.living().iter().all(|process| process.state == 'T'));
    assert_eq!(assert_empty(&tree.sweep(BUDGET).await).0, 12);
    assert_removed(&cgroup);
    scene.assert_gone(&[&tree]).await;
}

#[tokio::test]
async fn a_dropped_handle_leaves_no_cgroup() {
    let scene = Scene::new();
    let Some(place) = place(&scene) else { return };
    let cgroup = place.of(INSTANCE, GENERATION);
    let held = start_ready(&scene, &cgroup, &scene.perl(&format!("{TRICKS}{TWELVE}"))).await;
    drop(held);
    scene.assert_gone(&[]).await;
    assert_removed(&cgroup);
}

#[tokio::test]
async fn a_server_that_cannot_be_executed_leaves_no_cgroup() {
    let scene = Scene::new();
    let Some(place) = place(&scene) else { return };
    let cgroup = place.of(INSTANCE, GENERATION);
    let absent = Launch { program: "/nowhere/at/all".into(), ..scene.sh("") };
    start_in(Some(cgroup.clone()), &program(), &absent, &scene.tracker).await.expect_err("not executed");
    assert_removed(&cgroup);
    scene.assert_gone(&[]).await;
}

/// It takes as long as a keeper waits for its child.
#[tokio::test]
async fn a_server_that_is_frozen_on_its_way_is_given_up() {
    let scene = Scene::new();
    let Some(place) = place(&scene) else { return };
    let cgroup = place.of(INSTANCE, GENERATION);
    let home = cgroup.path().parent().unwrap();
    fs::create_dir(home).unwrap();
    fs::write(home.join("cgroup.freeze"), "1").unwrap();
    let failed = start_in(Some(cgroup.clone()), &program(), &scene.sh("sleep 99"), &scene.tracker).await;
    let error = failed.expect_err("not executed").to_string();
    assert!(error.contains("was it stopped?"), "{error}");
    assert_removed(&cgroup);
    scene.assert_gone(&[]).await;
}

/// A process that is no descendant of the keeper, put into a cgroup from outside.
fn intruder(scene: &Scene, cgroup: &Path) -> Outsider {
    let script = scene.file("intruder.pl", &format!("{TRICKS} enter($ARGV[0]); exec 'sleep', '99'"));
    let intruder = Outsider::spawn(Command::new("/usr/bin/perl").arg(script).arg(cgroup));
    eventually("it is in", BUDGET, || {
        fs::read_to_string(cgroup.join("cgroup.procs")).unwrap().lines().any(|pid| pid == intruder.id().pid.to_string())
            && command_line(intruder.id().pid).starts_with("sleep")
    });
    intruder
}

#[tokio::test]
async fn empty_means_that_the_cgroup_is_too() {
    let scene = Scene::new();
    let Some(place) = place(&scene) else { return };
    let cgroup = place.of(INSTANCE, GENERATION);
    let (tree, pipes) = start_ready(&scene, &cgroup, &scene.perl("ready; <STDIN>")).await;
    let intruder = intruder(&scene, cgroup.path());
    drop(pipes);
    tree.root_exit().await;
    assert_eq!(assert_empty(&tree.sweep(BUDGET).await).0, 1, "who is nobody's child here");
    assert!(!intruder.id().is_alive());
    assert_removed(&cgroup);
    drop(intruder);
    scene.assert_gone(&[&tree]).await;
}

/// A process frozen by the older freezer takes no SIGKILL until it is thawed: the nearest to a hung device.
struct Frozen(PathBuf);

impl Frozen {
    fn freeze(process: ProcessId) -> Option<Self> {
        let path = PathBuf::from(format!("/sys/fs/cgroup/freezer/lazy-mcp-test-{}", process.pid));
        if let Err(reason) = fs::create_dir(&path) {
            skipped(format_args!("no freezer to hang a process with: {reason}"));
            return None;
        }
        let frozen = Self(path);
        fs::write(frozen.0.join("cgroup.procs"), process.pid.to_string()).unwrap();
        fs::write(frozen.0.join("freezer.state"), "FROZEN").unwrap();
        eventually("it is frozen", BUDGET, || {
            fs::read_to_string(frozen.0.join("freezer.state")).unwrap().trim() == "FROZEN"
        });
        Some(frozen)
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        let _ = fs::write(self.0.join("freezer.state"), "THAWED");
        eventually("the freezer is removed", BUDGET, || fs::remove_dir(&self.0).is_ok());
    }
}

#[tokio::test]
async fn who_does_not_die_in_the_cgroup_is_named_and_can_be_swept_again() {
    let scene = Scene::new();
    let Some(place) = place(&scene) else { return };
    let cgroup = place.of(INSTANCE, GENERATION);
    let (tree, pipes) = start_ready(&scene, &cgroup, &scene.perl("ready; <STDIN>")).await;
    fs::create_dir(cgroup.path().join("nested")).unwrap();
    let intruder = intruder(&scene, &cgroup.path().join("nested"));
    let Some(frozen) = Frozen::freeze(intruder.id()) else { return };
    drop(pipes);
    tree.root_exit().await;
    let Sweep::Busy { survivors, .. } = tree.sweep(Duration::from_millis(100)).await else {
        panic!("it cannot be gone")
    };
    let named: Vec<_> = survivors.iter().map(|survivor| (survivor.pid, survivor.comm.as_str())).collect();
    assert_eq!(named, [(intruder.id().pid, "sleep")]);
    assert!(cgroup.path().exists());
    drop(frozen);
    assert_empty(&tree.sweep(BUDGET).await);
    assert_removed(&cgroup);
    drop(intruder);
    scene.assert_gone(&[&tree]).await;
}

#[tokio::test]
async fn without_its_cgroup_a_server_runs_and_others_are_left_alone() {
    let scene = Scene::new();
    let Some(place) = place(&scene) else { return };
    // One of that name is in use, so that it can neither be made nor removed.
    let cgroup = place.of(INSTANCE, GENERATION);
    fs::create_dir_all(cgroup.path()).unwrap();
    let other = intruder(&scene, cgroup.path());
    let (tree, _pipes) = start_ready(&scene, &cgroup, &scene.perl("ready; forever")).await;
    assert_eq!((tree.owner(), tree.owner().as_str()), (Owner::Keeper, "keeper"));
    assert_eq!(assert_empty(&tree.sweep(BUDGET).await).0, 1);
    assert!(other.id().is_alive());
    drop(other);
    eventually("the other cgroup is removed", BUDGET, || fs::remove_dir(cgroup.path()).is_ok());
    fs::remove_dir(cgroup.path().parent().unwrap()).unwrap();
    scene.assert_gone(&[&tree]).await;
}

#[tokio::test]
async fn a_killed_keeper_leaves_neither_tree_nor_cgroup() {
    if !is_alone("cgroup::a_killed_keeper_leaves_neither_tree_nor_cgroup") {
        return;
    }
    let scene = Scene::new();
    let Some(place) = place(&scene) else { return };
    let cgroup = place.of(INSTANCE, GENERATION);
    let other = place.of(INSTANCE, GENERATION + 1);
    // Older than the keeper, so that nobody takes it for an orphan of that.
    let early = scene.file(
        "early.pl",
        &format!("{TRICKS} select undef, undef, undef, 0.01 until -e $ARGV[1]; enter($ARGV[0]); sleep 99"),
    );
    let told = scene.path().join("told");
    let mut command = Command::new("/usr/bin/perl");
    let intruder = Outsider::spawn(command.arg(early).arg(cgroup.path()).arg(&told));
    let born = intruder.id();
    let tick = || ProcessId::of(Outsider::spawn(&mut Command::new("true")).id().pid).unwrap().start_time;
    eventually("the clock of the process table goes on", BUDGET, || tick() > born.start_time);
    let launch = scene.perl(&format!("{TRICKS}{TWELVE}"));
    let (lost, _pipes) = start_ready(&scene, &cgroup, &launch).await;
    let (kept, _pipes) = start_ready(&scene, &other, &launch).await;
    eventually("all run", BUDGET, || scene.living().len() == 25);
    fs::write(&told, "").unwrap();
    eventually("the intruder is in", BUDGET, || is_in(born, &cgroup));
    signal(lost.keeper(), "KILL");
    assert_eq!(lost.root_exit().await, RootExit::KeeperLost);
    let (killed, took) = assert_empty(&lost.sweep(BUDGET).await);
    println!("tree of a killed keeper, in a cgroup: {killed} killed, {took:?} from the order to the proof");
    // The kernel kills the root with its keeper.
    assert!((12..=13).contains(&killed), "{killed}");
    assert!(!cgroup.path().exists() && !born.is_alive());
    assert!(scene.living().len() == 12 && kept.root().is_alive(), "the other tree is whole");
    assert_eq!(assert_empty(&kept.sweep(BUDGET).await).0, 12);
    assert_removed(&other);
    drop(intruder);
    scene.assert_gone(&[&lost, &kept]).await;
}

/// Not a test: what [`play_broker`] runs.
#[tokio::test]
async fn play_a_broker_with_cgroups() {
    let Some(path) = played_scene() else { return };
    let journal = Journal::open(&path).unwrap();
    let cgroup = Cgroups::find(journal.installation()).unwrap().of(INSTANCE, GENERATION);
    let mut entry = journal.begin("git", INSTANCE, GENERATION, Some(&cgroup)).unwrap();
    let launch = Launch {
        program: "/usr/bin/perl".into(),
        args: vec![path.join("server.pl").display().to_string()],
        env: BTreeMap::new(),
        cwd: path.clone(),
    };
    let started = start_in(Some(cgroup), &program(), &launch, &TaskTracker::new()).await.unwrap();
    entry.started(started.tree.keeper(), started.tree.root()).unwrap();
    std::future::pending::<()>().await;
}

/// Without marker, root and ancestry nothing but the cgroup tells whose they are.
#[tokio::test]
async fn leftovers_that_only_their_cgroup_knows_are_swept() {
    let scene = Scene::new();
    if place(&scene).is_none() {
        return;
    }
    // Three that went to init, out of the session, as the same program as one that is nobody's.
    let code = "for (1..3) { exec '/usr/bin/perl', '-e', 'sleep 99', $0 if apart } forever";
    scene.perl(&format!("{TRICKS} {code}"));
    let alike = scene.file("alike.pl", "sleep 99");
    let bystander = Outsider::spawn(Command::new("/usr/bin/perl").arg("-e").arg("sleep 99").arg(alike).env_clear());
    let broker = play_broker("cgroup::play_a_broker_with_cgroups", scene.path());
    let path = scene.path().join(format!("journal/git-{INSTANCE}-{GENERATION}.json"));
    let mut record = None;
    eventually("the journal names the root", BUDGET, || {
        record = fs::read(&path).ok().and_then(|bytes| serde_json::from_slice::<Record>(&bytes).ok());
        record.as_ref().is_some_and(|record| record.root.is_some())
    });
    let (keeper, cgroup) = record.map(|record| (record.keeper.unwrap(), record.cgroup.unwrap())).unwrap();
    let in_cgroup = || fs::read_to_string(cgroup.join("cgroup.procs")).unwrap_or_default().lines().count();
    let is_detached = |process: &&Process| process.ppid == keeper.pid && command_line(process.pid).contains("sleep 99");
    eventually("all run", BUDGET, || scene.living().iter().filter(is_detached).count() == 3 && in_cgroup() == 4);
    signal(keeper, "STOP");
    drop(broker);
    signal(keeper, "KILL");
    eventually("the root goes with its keeper", BUDGET, || in_cgroup() == 3);

    let journal = Journal::open(scene.path()).unwrap();
    let swept = journal.sweep_leftovers(LeftoversBudget::whole(BUDGET), no_windows).await.unwrap();
    let (killed, took) = assert_empty(&swept[0].sweep);
    println!("leftovers by cgroup: {killed} killed, {took:?} to the proof");
    assert!(bystander.id().is_alive(), "one that looks alike is outside");
    assert_eq!(scene.living().iter().map(Process::id).collect::<Vec<_>>(), [bystander.id()]);
    assert!(!cgroup.parent().unwrap().exists() && journal.leftovers().unwrap().is_empty());
    drop(bystander);
    scene.assert_gone(&[]).await;
}

/// Whatever an entry says, only a cgroup of that installation, instance and generation is touched.
#[tokio::test]
async fn a_forged_path_touches_nothing() {
    let scene = Scene::new();
    let journal = Journal::open(scene.path()).unwrap();
    let Some(place) = found(journal.installation()) else { return };
    let (right, other) = (place.of(INSTANCE, GENERATION), place.of(INSTANCE, GENERATION + 1));
    let stranger = self::place(&scene).unwrap().of(INSTANCE, GENERATION);
    let home = other.path().parent().unwrap();
    let link = scene.path().join(home.file_name().unwrap());
    std::os::unix::fs::symlink(stranger.path().parent().unwrap(), &link).unwrap();
    let plain = scene.path().join("below").join(home.file_name().unwrap()).join(format!("{INSTANCE}-{GENERATION}"));
    fs::create_dir_all(&plain).unwrap();
    for victim in [&other, &stranger] {
        fs::create_dir_all(victim.path()).unwrap();
    }
    let victims = [intruder(&scene, other.path()), intruder(&scene, stranger.path())];
    let forged = [
        (other.path().to_owned(), boot_id().unwrap()),
        (stranger.path().to_owned(), boot_id().unwrap()),
        (link.join(format!("{INSTANCE}-{GENERATION}")), boot_id().unwrap()),
        (home.join("../").join(stranger.path().strip_prefix(home.parent().unwrap()).unwrap()), boot_id().unwrap()),
        (home.to_owned(), boot_id().unwrap()),
        (home.parent().unwrap().to_owned(), boot_id().unwrap()),
        (plain.clone(), boot_id().unwrap()),
        ("0a1b-7".into(), boot_id().unwrap()),
        (right.path().to_owned(), boot_id().unwrap()),
        (right.path().to_owned(), "another boot".to_owned()),
    ];
    let len = forged.len();
    for (number, (cgroup, boot_id)) in forged.into_iter().enumerate() {
        let me = ProcessId::of(std::process::id()).unwrap();
        let record = Record {
            backend: "git".to_owned(),
            instance: INSTANCE.to_owned(),
            generation: GENERATION,
            boot_id,
            broker: ProcessId { start_time: 1, ..me },
            keeper: None,
            root: None,
            cgroup: Some(cgroup),
            windows: None,
        };
        let path = scene.path().join(format!("journal/{number}.json"));
        fs::write(path, serde_json::to_vec(&record).unwrap()).unwrap();
    }
    let swept = journal.sweep_leftovers(LeftoversBudget::whole(BUDGET), no_windows).await.unwrap();
    assert_eq!(swept.iter().map(|leftover| assert_empty(&leftover.sweep).0).collect::<Vec<_>>(), vec![0; len]);
    assert!(victims.iter().all(|victim| victim.id().is_alive()) && plain.exists());
    drop(victims);
    for victim in [&other, &stranger] {
        eventually("the cgroups are removed", BUDGET, || fs::remove_dir(victim.path()).is_ok());
        fs::remove_dir(victim.path().parent().unwrap()).unwrap();
    }
    scene.assert_gone(&[]).await;
}

#[tokio::test]
async fn a_broker_inside_the_cgroup_of_a_leftover_spares_itself() {
    if !is_alone("cgroup::a_broker_inside_the_cgroup_of_a_leftover_spares_itself") {
        return;
    }
    let scene = Scene::new();
    let journal = Journal::open(scene.path()).unwrap();
    let Some(place) = found(journal.installation()) else { return };
    let cgroup = place.of(INSTANCE, GENERATION);
    drop(journal.begin("git", INSTANCE, GENERATION, Some(&cgroup)).unwrap());
    fs::create_dir_all(cgroup.path()).unwrap();
    let file = scene.path().join(format!("journal/git-{INSTANCE}-{GENERATION}.json"));
    let mut record: Record = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    record.broker.start_time = 1;
    fs::write(&file, serde_json::to_vec(&record).unwrap()).unwrap();
    fs::write(cgroup.path().join("cgroup.procs"), "0").unwrap();
    let swept = journal.sweep_leftovers(LeftoversBudget::whole(BUDGET), no_windows).await.unwrap();
    assert_eq!(assert_empty(&swept[0].sweep).0, 0);
    assert!(cgroup.path().exists());
    let above = cgroup.path().ancestors().nth(2).unwrap();
    fs::write(above.join("cgroup.procs"), "0").unwrap();
    fs::remove_dir(cgroup.path()).unwrap();
    fs::remove_dir(cgroup.path().parent().unwrap()).unwrap();
    scene.assert_gone(&[]).await;
}

/// Prints what a forced kill takes with and without; the bound is that both come to their proof.
#[tokio::test]
async fn a_forced_kill_of_twelve_with_and_without() {
    let scene = Scene::new();
    let Some(place) = place(&scene) else { return };
    let launch = scene.perl(&format!("{TRICKS}{TWELVE}"));
    let mut took = [Vec::new(), Vec::new()];
    let mut started = [Vec::new(), Vec::new()];
    for generation in 0..10 {
        for (kind, cgroup) in [None, Some(place.of(INSTANCE, generation))].into_iter().enumerate() {
            let begun = std::time::Instant::now();
            let Started { tree, mut pipes } =
                start_in(cgroup, &program(), &launch, &scene.tracker).await.expect("starts");
            started[kind].push(begun.elapsed());
            BufReader::new(&mut pipes.stdout).lines().next_line().await.unwrap();
            eventually("twelve", BUDGET, || scene.living().len() == 12);
            let ordered = std::time::Instant::now();
            let (killed, proved) = assert_empty(&tree.sweep(BUDGET).await);
            assert_eq!(killed, 12);
            took[kind].push((proved, ordered.elapsed()));
        }
    }
    for (kind, name) in ["keeper alone", "keeper and cgroup"].into_iter().enumerate() {
        took[kind].sort();
        started[kind].sort();
        let (took, started) = (&took[kind], &started[kind]);
        println!(
            "{name}: start {:?}, order to proof of 12 killed {:?} and to the answer {:?} (medians); longest {:?}",
            started[5], took[5].0, took[5].1, took[9].0
        );
    }
    scene.assert_gone(&[]).await;
}
