//! A tree that does everything at once to stay alive, against each way in which it has to end; and beside it processes
//! that look like parts of it and are not.
//!
//! For each ending: none of the tree is left, all that only look like it live on. Said by the process table alone.

mod support;

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use support::broker::EMPTY_WITHIN;
use support::processes::{Identity, Process, describe, kill_9, send};
use support::run::{broker_program, fixture_program, skipped};
use support::wait::{is_true_within, until_true};
use support::{Backend, Broker, Session, Setup};

const SOON: Duration = Duration::from_secs(20);

/// Ways out of the tree: of the group and session, of the ancestry, of the environment. The first few keep that.
const WAYS: [&str; 5] = ["child", "setsid", "double_fork", "double_fork_clean_env", "browser"];
const MARKED: usize = 3;

/// What the tree has in it.
#[derive(Clone, Copy, PartialEq)]
enum Decoys {
    All,
    /// None that left its cgroup and its environment both: by nothing can it be known when broker and keeper died in
    /// the same moment.
    InCgroup,
    /// None that left its environment: the same where there is no cgroup.
    Marked,
}

/// A broker with one tree that resists, and those who look like it.
struct Scene {
    broker: Broker,
    session: Session,
    alike: Alike,
    /// The tree, its keeper included.
    tree: Vec<Process>,
}

impl Scene {
    #[track_caller]
    fn new(decoys: Decoys) -> Self {
        Self::with_idle_time(decoys, 120)
    }

    /// The tree must be whole within the idle time.
    #[track_caller]
    fn with_idle_time(decoys: Decoys, idle_seconds: u64) -> Self {
        let backend = Backend::session("decoy")
            .flags("--ignore-term --ignore-eof --lifetime-seconds 90")
            .idle_seconds(idle_seconds);
        let broker = Setup::new().backend(backend.polite_seconds(0.2).stop_seconds(2)).start();
        let session = Session::new(&broker, "decoy");
        let place = session.call("pid", &json!({})).text_json();
        let root = pid(&place["pid"]);
        let alike = Alike::start(&broker, &session, &place);
        let ways = if decoys == Decoys::Marked { &WAYS[..MARKED] } else { &WAYS };
        let ways_out = if decoys == Decoys::All { &WAYS } else { &WAYS[..MARKED] };
        let spawn = |arguments: &Value| pid(&session.call("spawn", arguments).text_json()["pids"][0]);
        for how in ways {
            spawn(&json!({"how": how, "ignore_term": true}));
            stop(spawn(&json!({"how": how, "ignore_term": true})));
        }
        if decoys != Decoys::Marked {
            for _ in 0..3 {
                session.call("fork_loop", &json!({"pause_ms": 1})).text();
            }
        }
        if let Some(outside) = broker.cgroup() {
            for how in ways_out {
                let moved = spawn(&json!({"how": how, "ignore_term": true, "cgroup": outside}));
                until_true("one to move itself out", SOON, || !is_in_a_cgroup_of_ours(moved));
            }
        }
        stop(root);
        let mut scene = Self { broker, session, alike, tree: Vec::new() };
        scene.tree = scene.owned();
        assert!(scene.tree.len() > 2 * ways.len(), "the test sees what it is about: {:#?}", scene.tree);
        scene
    }

    /// What runs for the broker, those who only look like it left out.
    fn owned(&self) -> Vec<Process> {
        let alike = self.alike.identities();
        let mut owned = self.broker.owned_processes();
        owned.retain(|process| !alike.contains(&process.identity));
        owned
    }

    #[track_caller]
    fn end_session(&mut self) {
        assert_eq!(self.session.delete().status, 204);
        self.session = Session::new(&self.broker, "decoy");
    }

    #[track_caller]
    fn keeper(&self) -> Identity {
        self.tree.iter().find(|process| process.is_keeper()).expect("each generation has a keeper").identity
    }

    /// The broker says that it is over; in that moment nothing is left, and nobody else was touched.
    #[track_caller]
    fn check_stopped(&self, why: &str) {
        until_true(why, SOON, || self.broker.live_instances("decoy").is_empty());
        let left = self.owned();
        assert!(left.is_empty(), "`stopped` was said after {why} while there were\n{}", describe(&left));
        self.broker.assert_no_zombies();
        self.broker.assert_no_files();
        self.alike.assert_alive();
    }

    /// Nothing is left some time after the broker's death, without a word of it.
    #[track_caller]
    fn check_gone_within(&self, why: &str, limit: Duration) {
        is_true_within(limit, || self.owned().is_empty());
        let left = self.owned();
        assert!(left.is_empty(), "{limit:?} after {why} there are\n{}", describe(&left));
        self.alike.assert_alive();
    }

    /// The next call is served, and at the end nothing is left.
    #[track_caller]
    fn finish(self) {
        let session = self.session.at(&self.broker);
        assert_eq!(session.call("echo", &json!({"text": "again"})).text(), "again");
        self.alike.assert_alive();
        self.alike.end();
        self.broker.finish();
    }
}

#[track_caller]
fn pid(value: &Value) -> u32 {
    value.as_u64().and_then(|pid| u32::try_from(pid).ok()).unwrap_or_else(|| panic!("no pid: {value}"))
}

#[track_caller]
fn identity(pid: u32) -> Identity {
    Process::look(pid).unwrap_or_else(|| panic!("process {pid} does not run")).identity
}

/// SIGSTOP, and waits until it stands still.
#[track_caller]
fn stop(pid: u32) {
    assert!(send(identity(pid), Signal::SIGSTOP), "{pid} is gone");
    until_true("a process to stand still", SOON, || Process::look(pid).is_some_and(|process| process.state == 'T'));
}

fn is_in_a_cgroup_of_ours(pid: u32) -> bool {
    let lines = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    lines.lines().any(|line| line.starts_with("0::") && line.contains("/lazy-mcp-"))
}

/// Processes that look like a part of the tree, or like another broker's. They end with their stdin.
struct Alike(Vec<(&'static str, Child, Identity)>);

impl Alike {
    /// `place`: what the server said of itself.
    fn start(broker: &Broker, session: &Session, place: &Value) -> Self {
        let server = pid(&place["pid"]);
        let arguments = std::fs::read(format!("/proc/{server}/cmdline")).expect("the server runs");
        let arguments = String::from_utf8(arguments).expect("its arguments are text");
        let text = |value: &Value| value.as_str().expect("the broker's marker").to_owned();
        let (instance, generation) = (text(&place["instance"]), text(&place["generation"]));
        let names = ["LAZY_MCP_INSTANCE_ID", "LAZY_MCP_GENERATION"];
        let other = other_installation(&instance);
        let mut alike = Self(Vec::new());

        let mut same_command = Command::new(fixture_program());
        same_command.args(arguments.trim_end_matches('\0').split('\0').skip(1));
        alike.add("the same command line", &mut same_command);
        let mut same_again = Command::new(fixture_program());
        same_again.args(arguments.trim_end_matches('\0').split('\0').skip(1));
        same_again.envs([(names[0], &other), (names[1], &generation)]);
        alike.add("the same command line and the marker of another installation", &mut same_again);
        alike.add(
            "the marker of another generation",
            reader().envs([(names[0], &instance), (names[1], &format!("{generation}7"))]),
        );
        alike.add("half of the marker", reader().env(names[0], &instance));
        alike.add("the other half", reader().env(names[1], &generation));
        alike.add(
            "the marker as an argument",
            reader().args([format!("{}={instance}", names[0]), format!("{}={generation}", names[1])]),
        );
        let folder = broker.dir().display().to_string();
        alike.add("the folder and the session as arguments", reader().args([&folder, &session.id]));
        alike.add_keeper();
        alike
    }

    fn add(&mut self, what: &'static str, command: &mut Command) {
        let child = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let child = child.expect("it can be started");
        let identity = identity(child.id());
        self.0.push((what, child, identity));
    }

    /// A keeper like any other, whose orders come from this test.
    fn add_keeper(&mut self) {
        let (ours, theirs) = UnixStream::pair().expect("a pair of sockets");
        let mut command = Command::new(broker_program());
        command.arg0("lazy-mcp").arg("keeper").env_clear();
        command.stdin(OwnedFd::from(theirs)).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().expect("it can be started");
        child.stdin = Some(OwnedFd::from(ours).into());
        let identity = identity(child.id());
        self.0.push(("a keeper of somebody else", child, identity));
    }

    fn identities(&self) -> Vec<Identity> {
        self.0.iter().map(|(_, _, identity)| *identity).collect()
    }

    #[track_caller]
    fn assert_alive(&self) {
        for (what, _, identity) in &self.0 {
            let found = Process::look(identity.pid).filter(|process| process.identity == *identity);
            assert!(found.as_ref().is_some_and(|process| process.state != 'T'), "{what}: {found:?}");
        }
    }

    fn end(self) {
        drop(self);
    }
}

impl Drop for Alike {
    fn drop(&mut self) {
        for (_, child, _) in &mut self.0 {
            // Those that ignore the end of their input are the fixture's.
            child.kill().ok();
            child.wait().ok();
        }
    }
}

/// A process that does nothing but wait for the end of its input, and takes any arguments.
fn reader() -> Command {
    let mut command = Command::new("/bin/sh");
    command.args(["-c", "read line", "reader"]);
    command
}

/// The same id as it would be with another state directory.
fn other_installation(instance: &str) -> String {
    let other: String = instance.chars().map(|digit| if digit == '0' { '1' } else { '0' }).collect();
    assert_ne!(other, instance);
    other
}

#[test]
fn an_idle_stop_takes_the_whole_tree_and_nobody_else() {
    let scene = Scene::with_idle_time(Decoys::All, 8);
    scene.check_stopped("its idle time");
    scene.finish();
}

#[test]
fn the_end_of_a_session_takes_the_whole_tree_and_nobody_else() {
    let mut scene = Scene::new(Decoys::All);
    scene.end_session();
    scene.check_stopped("the end of its session");
    scene.finish();
}

#[test]
fn a_killed_keeper_loses_nobody_and_takes_nobody_else() {
    let scene = Scene::new(Decoys::All);
    kill_9(scene.keeper());
    scene.check_stopped("its keeper was killed");
    scene.finish();
}

#[test]
fn a_stopped_keeper_is_replaced_and_takes_nobody_else() {
    let mut scene = Scene::new(Decoys::All);
    stop(scene.keeper().pid);
    scene.end_session();
    scene.check_stopped("its keeper was stopped");
    scene.finish();
}

#[test]
fn a_killed_broker_takes_the_whole_tree_and_nobody_else() {
    let mut scene = Scene::new(Decoys::All);
    scene.broker.kill_9();
    scene.check_gone_within("kill -9 of the broker", EMPTY_WITHIN);
    scene.broker.restart();
    scene.broker.assert_no_files();
    scene.finish();
}

#[test]
fn a_terminated_broker_takes_the_whole_tree_and_nobody_else() {
    let mut scene = Scene::new(Decoys::All);
    let status = scene.broker.terminate();
    assert!(status.success(), "{status}: {}", scene.broker.log());
    scene.check_gone_within("the end of the broker", Duration::ZERO);
    scene.broker.restart();
    scene.finish();
}

/// Broker and keeper in the same moment: nobody is left who would do anything, until the next broker comes.
#[track_caller]
fn check_both_killed(decoys: Decoys) {
    let mut scene = Scene::new(decoys);
    let keeper = scene.keeper();
    // It must not see the end of the broker before its own.
    stop(keeper.pid);
    scene.broker.kill_9();
    kill_9(keeper);
    until_true("the keeper to be gone", SOON, || !keeper.is_alive());
    let left = scene.owned();
    assert!(left.len() > 3, "the test sees what it is about: {}", describe(&left));
    // Waits for /ready, which says that they were swept.
    scene.broker.restart();
    scene.check_gone_within("/ready was green", Duration::ZERO);
    scene.broker.assert_no_files();
    scene.finish();
}

#[test]
fn keeper_and_broker_killed_together_leave_what_the_next_broker_sweeps() {
    check_both_killed(Decoys::Marked);
}

#[test]
fn keeper_and_broker_killed_together_leave_nothing_unknown_where_there_are_cgroups() {
    let broker = Setup::new().start();
    let has_cgroups = broker.cgroup().is_some();
    let reason = broker.status()["broker"]["cgroup_unavailable_because"].clone();
    broker.finish();
    if has_cgroups {
        check_both_killed(Decoys::InCgroup);
    } else {
        skipped(reason);
    }
}
