//! What the next broker finds of the one before.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use lazy_mcp_broker::core::launch::Launch;
use lazy_mcp_broker::ownership::journal::{Journal, JournalError, LeftoversBudget, Record};
use lazy_mcp_broker::ownership::{InstanceDir, KeeperProgram, ProcessId, boot_id};
use tokio_util::task::TaskTracker;

use crate::lost_keeper::liar;
use crate::support::{
    BUDGET, Outsider, Scene, assert_empty, eventually, is_alone_with, no_windows, play_broker, played_scene, program,
    signal, start,
};

#[test]
fn two_brokers_exclude_each_other() {
    let scene = Scene::new();
    let first = Journal::open(scene.path()).unwrap();
    let error = Journal::open(scene.path()).unwrap_err();
    assert!(matches!(error, JournalError::Held { pid: Some(pid), .. } if pid == std::process::id()));
    assert!(error.to_string().contains(&format!("(pid {})", std::process::id())), "{error}");
    drop(first);
    Journal::open(scene.path()).unwrap();
}

#[test]
fn generations_grow_across_restarts() {
    let scene = Scene::new();
    let journal = Journal::open(scene.path()).unwrap();
    assert_eq!(journal.high_water("playwright"), 0);
    journal.record("playwright", 3).unwrap();
    journal.record("playwright", 2).unwrap();
    drop(journal.begin("git", "0a", 8, None).unwrap());
    drop(journal);
    let journal = Journal::open(scene.path()).unwrap();
    assert_eq!((journal.high_water("playwright"), journal.high_water("git")), (3, 8));
    drop(journal);
    fs::write(scene.path().join("generations.json"), "{\"git\":").unwrap();
    let error = Journal::open(scene.path()).unwrap_err();
    assert!(error.to_string().contains("generations.json") && error.to_string().contains("move it away"), "{error}");
}

#[test]
fn an_entry_stays_until_the_proof_and_is_no_leftover_of_its_own_broker() {
    let scene = Scene::new();
    let journal = Journal::open(scene.path()).unwrap();
    let mut entry = journal.begin("git", "0a", 1, None).unwrap();
    let me = ProcessId::of(std::process::id()).unwrap();
    entry.started(me, me).unwrap();
    let path = scene.path().join("journal/git-0a-1.json");
    let record: Record = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    assert_eq!((record.broker, record.keeper, record.root), (me, Some(me), Some(me)));
    assert_eq!(journal.leftovers().unwrap(), []);
    entry.proved().unwrap();
    assert!(!path.exists());
}

/// Entries that name a living process, each wrong in one way: whom they name is not touched, and they are dropped.
#[tokio::test]
async fn stale_and_forged_entries_signal_nobody() {
    let scene = Scene::new();
    let victim = bystander(&scene, &[]);
    let named = victim.id();
    let dead_broker = ProcessId { start_time: 1, ..ProcessId::of(std::process::id()).unwrap() };
    let entry = |boot_id: String, named: ProcessId| Record {
        backend: "git".to_owned(),
        instance: "0a".to_owned(),
        generation: 1,
        boot_id,
        broker: dead_broker,
        keeper: Some(named),
        root: Some(named),
        cgroup: None,
        windows: None,
    };
    let journal = Journal::open(scene.path()).unwrap();
    let reused = ProcessId { start_time: named.start_time - 1, ..named };
    let put = |name: &str, bytes: Vec<u8>| fs::write(scene.path().join("journal").join(name), bytes).unwrap();
    put("other-boot.json", serde_json::to_vec(&entry("another boot".to_owned(), named)).unwrap());
    put("reused-pid.json", serde_json::to_vec(&entry(boot_id().unwrap(), reused)).unwrap());
    put("garbage.json", b"{\"pid\": 1}".to_vec());
    put("torn.new", b"{".to_vec());
    let living = Record { broker: named, ..entry(boot_id().unwrap(), named) };
    put("living-broker.json", serde_json::to_vec(&living).unwrap());

    let swept = journal.sweep_leftovers(LeftoversBudget::whole(BUDGET), no_windows).await.unwrap();
    assert_eq!(swept.iter().map(|leftover| assert_empty(&leftover.sweep).0).collect::<Vec<_>>(), [0, 0]);
    assert!(named.is_alive());
    let mut kept: Vec<_> =
        fs::read_dir(scene.path().join("journal")).unwrap().map(|file| file.unwrap().file_name()).collect();
    kept.sort();
    assert_eq!(kept, ["living-broker.json", "lock"]);
    drop(victim);
    scene.assert_gone(&[]).await;
}

#[tokio::test]
async fn a_broker_started_from_inside_a_leftover_spares_itself() {
    // Of this run alone: another one beside it on the machine must not take ours for its leftover. The process that
    // this test starts of itself finds the marker in its environment.
    let instance = std::env::var("LAZY_MCP_INSTANCE_ID").unwrap_or_else(|_| format!("inside-{}", std::process::id()));
    let marker = marker(&instance, "7");
    if !is_alone_with("journal::a_broker_started_from_inside_a_leftover_spares_itself", &marker) {
        return;
    }
    let scene = Scene::new();
    let journal = Journal::open(scene.path()).unwrap();
    let me = ProcessId::of(std::process::id()).unwrap();
    let record = Record {
        backend: "shell".to_owned(),
        instance,
        generation: 7,
        boot_id: boot_id().unwrap(),
        broker: ProcessId { start_time: 1, ..me },
        keeper: None,
        root: Some(me),
        cgroup: None,
        windows: None,
    };
    fs::write(scene.path().join("journal/shell.json"), serde_json::to_vec(&record).unwrap()).unwrap();
    let beside = Outsider::spawn(Command::new("/usr/bin/perl").arg("-e").arg("sleep 99"));
    let swept = journal.sweep_leftovers(LeftoversBudget::whole(BUDGET), no_windows).await.unwrap();
    assert_eq!(assert_empty(&swept[0].sweep).0, 1, "what has the marker beside it");
    assert!(!beside.id().is_alive());
    scene.assert_gone(&[]).await;
}

/// Not a test: what [`play_broker`] runs.
#[tokio::test]
async fn play_a_broker_with_a_journal() {
    let Some(path) = played_scene() else { return };
    let journal = Journal::open(&path).unwrap();
    let instance = instance(&path);
    let mut entry = journal.begin("git", &instance, 4, None).unwrap();
    InstanceDir::create(&journal.instances(), &instance, 4).unwrap();
    let launch = Launch {
        program: "/usr/bin/perl".into(),
        args: vec![path.join("server.pl").display().to_string()],
        env: marker(&instance, "4"),
        cwd: path.clone(),
    };
    let started = start(&program(), &launch, &TaskTracker::new()).await.unwrap();
    entry.started(started.tree.keeper(), started.tree.root()).unwrap();
    std::future::pending::<()>().await;
}

/// A marked process in its own session, and below it two whose environment cannot be read, as in a browser.
const BROWSER: &str = "
    if (!fork) { POSIX::setsid(); for (1..2) { if (!fork) { undef %ENV; exec '/usr/bin/perl', '-e', 'sleep 99', $0 } } forever }
    forever";

/// One that no other scene has, as the product's are random.
fn instance(scene: &Path) -> String {
    scene.file_name().unwrap().to_string_lossy().into_owned()
}

fn marker(instance: &str, generation: &str) -> BTreeMap<String, String> {
    let pairs = [("LAZY_MCP_INSTANCE_ID", instance), ("LAZY_MCP_GENERATION", generation)];
    pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).into()
}

fn bystander(scene: &Scene, env: &[(String, String)]) -> Outsider {
    let script = scene.file("bystander.pl", "sleep 1 while 1");
    Outsider::spawn(Command::new("/usr/bin/perl").arg(script).env_clear().envs(env.iter().cloned()))
}

/// Kills a broker whose keeper stands still, so that the keeper cannot do its work; then whatever `then` does to the
/// keeper. The next broker finds and proves.
async fn check_leftovers(then: impl FnOnce(ProcessId), killed_at_least: usize) {
    let scene = Scene::new();
    scene.perl(BROWSER);
    let near = marker(&instance(scene.path()), "5").into_iter().collect::<Vec<_>>();
    let bystander = bystander(&scene, &near);
    let broker = play_broker("journal::play_a_broker_with_a_journal", scene.path());
    let record = eventually_started(scene.path());
    eventually("all run", BUDGET, || scene.living().len() == 5);
    assert!(
        matches!(Journal::open(scene.path()), Err(JournalError::Held { pid: Some(pid), .. }) if pid == broker.id().pid)
    );
    let keeper = record.keeper.unwrap();
    signal(keeper, "STOP");
    drop(broker);
    then(keeper);

    let journal = Journal::open(scene.path()).unwrap();
    assert_eq!(journal.leftovers().unwrap(), [record]);
    assert_eq!(journal.high_water("git"), 4);
    let swept = journal.sweep_leftovers(LeftoversBudget::whole(BUDGET), no_windows).await.unwrap();
    let (killed, took) = assert_empty(&swept[0].sweep);
    println!("leftovers: {killed} killed, {took:?} to the proof");
    assert!(killed >= killed_at_least, "{killed}");
    assert!(!keeper.is_alive() && bystander.id().is_alive(), "who has the marker of another generation lives on");
    assert_eq!(journal.leftovers().unwrap(), []);
    assert!(!journal.instances().exists(), "its directory is removed, and the place of it, being empty");
    drop(bystander);
    scene.assert_gone(&[]).await;
}

fn eventually_started(state_dir: &Path) -> Record {
    let path = state_dir.join(format!("journal/git-{}-4.json", instance(state_dir)));
    let mut found = None;
    eventually("the journal names the root", Duration::from_secs(5), || {
        let bytes = fs::read(&path).unwrap_or_default();
        found = serde_json::from_slice(&bytes).ok().filter(|record: &Record| record.root.is_some());
        found.is_some()
    });
    found.unwrap()
}

#[tokio::test]
async fn leftovers_below_a_keeper_that_hangs_are_swept() {
    check_leftovers(|_| {}, 5).await;
}

#[tokio::test]
async fn leftovers_of_a_killed_keeper_are_found_by_marker_and_ancestry() {
    // The kernel kills the root with its keeper; the browser and what is below it are left.
    check_leftovers(|keeper| signal(keeper, "KILL"), 3).await;
}

#[tokio::test]
async fn a_keeper_that_works_needs_no_help() {
    check_leftovers(|keeper| signal(keeper, "CONT"), 0).await;
}

/// Not a test: what [`play_broker`] runs.
#[tokio::test]
async fn play_a_broker_whose_keeper_hangs() {
    let Some(path) = played_scene() else { return };
    let journal = Journal::open(&path).unwrap();
    let instance = instance(&path);
    drop(journal.begin("git", &instance, 4, None).unwrap());
    let env = marker(&instance, "4");
    let launch = Launch { program: "/bin/true".into(), args: Vec::new(), env, cwd: path.clone() };
    let keeper = KeeperProgram::at(path.join("keeper.pl"));
    start(&keeper, &launch, &TaskTracker::new()).await.unwrap();
}

/// Before it has answered, the journal knows nothing of it but the generation.
#[tokio::test]
async fn a_keeper_that_hung_in_a_start_is_found_by_its_marker() {
    let scene = Scene::new();
    liar(&scene, "kill STOP => $$");
    let broker = play_broker("journal::play_a_broker_whose_keeper_hangs", scene.path());
    eventually("the keeper stands still", BUDGET, || scene.living().iter().any(|keeper| keeper.state == 'T'));
    drop(broker);
    let journal = Journal::open(scene.path()).unwrap();
    assert_eq!(journal.leftovers().unwrap()[0].keeper, None);
    let swept = journal.sweep_leftovers(LeftoversBudget::whole(BUDGET), no_windows).await.unwrap();
    assert_eq!(assert_empty(&swept[0].sweep).0, 1);
    scene.assert_gone(&[]).await;
}
