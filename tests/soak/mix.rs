//! The mix: what clients, servers and fate do in a round.

use std::collections::VecDeque;
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::json;

use crate::browser;
use crate::calls::{Call, Calling, Client, Ending, Expected, Tally};
use crate::dice::Dice;
use crate::support::broker::EMPTY_WITHIN;
use crate::support::processes::{Process, Table, describe, send};
use crate::support::{Backend, Broker, Request, Setup, run, wait};

/// One instance for everybody.
pub const SHARED: &str = "shared";
/// The same, but nothing is done to it: it has to answer whatever happens beside it.
pub const CALM: &str = "calm";
/// One instance a session; servers that end when they are asked to.
const OWN: &str = "own";
/// The same; servers that end only when they are killed.
const STUBBORN: &str = "stubborn";

const SESSIONS_MAX: usize = 12;
/// Browsers are heavy: more at the same time test the machine.
const BROWSERS_MAX: usize = 2;
const HISTORY: usize = 60;
/// More than two calls can take one after the other, with a start before each.
const ANSWERED_WITHIN: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug)]
enum Action {
    Echo,
    Sleep,
    Place,
    FirstCalls,
    Cancel,
    Disconnect,
    Look,
    Listen,
    OpenSession,
    EndSession,
    Plant,
    Exit,
    Noise,
    HitServer,
    HitKeeper,
    HitAnyone,
    Hangup,
    KillBroker,
    Browse,
    Pause,
}

/// How often each is chosen.
const MIX: [(u64, Action); 20] = [
    (14, Action::Echo),
    (10, Action::Sleep),
    (6, Action::Place),
    (5, Action::FirstCalls),
    (6, Action::Cancel),
    (6, Action::Disconnect),
    (3, Action::Look),
    (2, Action::Listen),
    (6, Action::OpenSession),
    (4, Action::EndSession),
    (7, Action::Plant),
    (5, Action::Exit),
    (4, Action::Noise),
    (6, Action::HitServer),
    (4, Action::HitKeeper),
    (6, Action::HitAnyone),
    (1, Action::Hangup),
    (1, Action::KillBroker),
    (2, Action::Browse),
    (4, Action::Pause),
];

/// A broker under use.
pub struct World {
    pub broker: Broker,
    dice: Dice,
    clients: Vec<Arc<Client>>,
    calls: Vec<Calling>,
    streams: Vec<TcpStream>,
    tally: Tally,
    history: VecDeque<String>,
    /// How often the broker was killed.
    deaths: u64,
    clients_made: u64,
    has_browser: bool,
    has_cgroups: bool,
    /// What was done to keepers in this round.
    keepers: Keepers,
    is_verbose: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Keepers {
    #[default]
    Whole,
    Hurt,
}

impl World {
    pub fn new(seed: u64, wants_browser: bool, is_verbose: bool) -> Self {
        let setup = [
            backend(Backend::singleton(SHARED)).max_concurrency(8),
            backend(Backend::singleton(CALM)),
            backend(Backend::session(OWN)).max_concurrency(4),
            backend(Backend::session(STUBBORN)).max_concurrency(1).flags("--ignore-term --ignore-eof"),
        ];
        let dir = setup.into_iter().fold(Setup::new(), Setup::backend).write_whole();
        let has_browser = wants_browser && browser::add(dir.path());
        take_program_along(dir.path());
        let broker = Broker::start(dir);
        let has_cgroups = broker.cgroup().is_some();
        println!(
            "a real browser: {}; cgroups: {}",
            if has_browser { "yes" } else { "no" },
            if has_cgroups { "yes" } else { "no" }
        );
        Self {
            broker,
            dice: Dice::new(seed),
            clients: Vec::new(),
            calls: Vec::new(),
            streams: Vec::new(),
            tally: Tally::default(),
            history: VecDeque::new(),
            deaths: 0,
            clients_made: 0,
            has_browser,
            has_cgroups,
            keepers: Keepers::Whole,
            is_verbose,
        }
    }

    pub fn tally(&self) -> &Tally {
        &self.tally
    }

    pub fn has_browser(&self) -> bool {
        self.has_browser
    }

    /// How often the broker was killed: each time it is a new process.
    pub fn deaths(&self) -> u64 {
        self.deaths
    }

    pub fn history(&self) -> impl Iterator<Item = &String> {
        self.history.iter()
    }

    pub fn log_tail(&self) -> String {
        let log = self.broker.log();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(60)..].join("\n")
    }

    /// So many actions, and what they were, in a few words.
    #[track_caller]
    pub fn round(&mut self, actions: usize) -> String {
        let (calls, deaths) = (self.tally.len(), self.deaths);
        self.keepers = Keepers::Whole;
        for _ in 0..actions {
            let action = self.dice.weighted(&MIX);
            let did = self.perform(action);
            self.note(format!("{action:?}: {did}"));
            let pause = self.dice.below(40);
            wait::pause_because("things happen one after the other", Duration::from_millis(pause));
        }
        self.finish_calls();
        let deaths = self.deaths - deaths;
        format!("{actions} actions, {} calls, {deaths} deaths of the broker", self.tally.len() - calls)
    }

    /// A call on each kind of backend is answered as if nothing had been; then some sessions end, and the others are
    /// left idle.
    #[track_caller]
    pub fn settle(&mut self) {
        self.streams.clear();
        let mut backends = vec![CALM, OWN, STUBBORN];
        if self.has_browser && self.dice.once_in(4) {
            backends.push(browser::NAME);
        }
        for backend in backends {
            let client = self.open(backend);
            let call = if backend == browser::NAME { browse(client) } else { text_call(client, "echo", json!({})) };
            let answered = self.tally.answered(call.tool);
            self.begin(call);
            self.finish_calls();
            let tally = &self.tally;
            assert!(tally.answered("echo") + tally.answered("browser_navigate") > answered, "{}", tally.describe());
        }
        let http = self.broker.http();
        for _ in 0..self.clients.len().div_ceil(2) {
            let at = self.dice.index(self.clients.len());
            self.clients.swap_remove(at).end(http);
        }
    }

    /// Ends the broker as an operator would.
    #[track_caller]
    pub fn finish(self) {
        self.broker.finish();
    }

    /// After a failure: whatever is left, keepers that were stopped included, which nobody else would end any more.
    pub fn clear_away(self) {
        let mut broker = self.broker;
        broker.kill_9();
        for process in broker.owned_processes() {
            send(process.identity, Signal::SIGKILL);
        }
    }

    fn note(&mut self, what: String) {
        if self.is_verbose {
            println!("  {what}");
        }
        if self.history.len() == HISTORY {
            self.history.pop_front();
        }
        self.history.push_back(what);
    }

    fn perform(&mut self, action: Action) -> String {
        match action {
            Action::Echo => {
                let is_modern = self.dice.once_in(4);
                let client = if is_modern { self.open_or_take(SHARED) } else { self.anyone() };
                self.begin(Call { is_modern, ..text_call(client, "echo", json!({})) })
            }
            Action::Sleep => {
                let client = self.anyone();
                let arguments = json!({"ms": self.dice.below(1500), "progress": self.dice.below(4)});
                self.begin(text_call(client, "sleep", arguments))
            }
            Action::Place => {
                let client = self.anyone();
                self.begin(Call { expected: Expected::Place, ..text_call(client, "pid", json!({})) })
            }
            Action::FirstCalls => {
                let backend = *self.dice.pick(&[SHARED, OWN, STUBBORN]).expect("three");
                let client = self.open(backend);
                (0..5).for_each(|_| {
                    self.begin(text_call(client.clone(), "echo", json!({})));
                });
                format!("five calls at once on {backend}")
            }
            Action::Cancel => {
                let client = self.anyone();
                let tool = *self.dice.pick(&["hang", "cancellable", "sleep", "echo"]).expect("four");
                let ending = Ending::Cancel(Duration::from_millis(self.dice.below(400)));
                let expected = if tool == "hang" { Expected::Failure } else { Expected::Token };
                let call = text_call(client, tool, json!({"ms": 800}));
                self.begin(Call { ending, expected, ..call })
            }
            Action::Disconnect => {
                let client = self.anyone();
                let tool = *self.dice.pick(&["hang", "sleep", "echo", "big"]).expect("four");
                let ending = Ending::Disconnect(Duration::from_millis(self.dice.below(300)));
                let call = text_call(client, tool, json!({"ms": 700, "bytes": 300_000}));
                self.begin(Call { ending, ..call })
            }
            Action::Look => {
                let client = self.anyone();
                let list = client.session.request("tools/list", &json!({}));
                for request in [list, Request::get("/status"), Request::get("/health"), Request::get("/ready")] {
                    let status = self.broker.http().send(&request).status;
                    assert_eq!(status, 200, "{}", request.target);
                }
                "tools, status, health, readiness".to_owned()
            }
            Action::Listen => {
                let client = self.anyone();
                let stream = self.broker.http().start(&client.session.listen()).expect("the broker listens");
                self.streams.push(stream);
                format!("a stream of a session of {}", client.backend)
            }
            Action::OpenSession => {
                let backend = self.any_backend();
                self.open(backend);
                format!("on {backend}")
            }
            Action::EndSession => {
                if self.clients.is_empty() {
                    return "none is open".to_owned();
                }
                let at = self.dice.index(self.clients.len());
                let client = self.clients.swap_remove(at);
                client.end(self.broker.http());
                format!("on {}", client.backend)
            }
            Action::Plant => {
                let client = self.anyone();
                let ways = ["child", "setsid", "double_fork", "double_fork_clean_env", "browser"];
                let how = *self.dice.pick(&ways).expect("five");
                let is_loop = self.dice.once_in(5);
                let ignore_term = self.dice.once_in(2);
                let (tool, arguments) = if is_loop {
                    ("fork_loop", json!({"pause_ms": 3}))
                } else {
                    ("spawn", json!({"how": how, "ignore_term": ignore_term, "hold_pipes": self.dice.once_in(4)}))
                };
                self.begin(Call { expected: Expected::Anything, ..text_call(client, tool, arguments) })
            }
            Action::Exit => {
                let client = self.anyone();
                let call = match self.dice.below(4) {
                    0 => text_call(client, "exit_after_reply", json!({})),
                    1 => failing_call(client, "crash", json!({"code": 0})),
                    2 => failing_call(client, "crash", json!({"code": 1, "ms": 200})),
                    _ => failing_call(client, "crash", json!({"signal": 11})),
                };
                self.begin(call)
            }
            Action::Noise => {
                let client = self.anyone();
                let call = match self.dice.below(5) {
                    0 => text_call(client, "stdout_junk", json!({"lines": 20_000})),
                    1 => text_call(client, "stderr_flood", json!({"bytes": 2_000_000})),
                    2 => failing_call(client, "partial_line", json!({})),
                    3 => Call { expected: Expected::Anything, ..text_call(client, "stop_reading", json!({})) },
                    _ => Call { expected: Expected::Anything, ..text_call(client, "big", json!({"bytes": 2_000_000})) },
                };
                self.begin(call)
            }
            Action::HitServer => {
                let signals = [Signal::SIGKILL, Signal::SIGSEGV, Signal::SIGSTOP, Signal::SIGTERM];
                self.hit(&signals, |process, keepers| keepers.contains(&process.ppid) && process.is_marked())
            }
            Action::HitKeeper => {
                let hit = self.hit(&[Signal::SIGKILL, Signal::SIGSTOP], |process, _| process.is_keeper());
                self.keepers = Keepers::Hurt;
                hit
            }
            Action::HitAnyone => {
                self.hit(&[Signal::SIGKILL, Signal::SIGSEGV, Signal::SIGSTOP], |process, _| !process.is_keeper())
            }
            Action::Hangup => {
                self.broker.hang_up();
                "of the broker".to_owned()
            }
            Action::KillBroker => self.kill_broker(),
            Action::Browse => {
                let open = self.clients.iter().filter(|client| client.backend == browser::NAME).count();
                if !self.has_browser {
                    return "no browser here".to_owned();
                }
                let client =
                    if open < BROWSERS_MAX { self.open(browser::NAME) } else { self.open_or_take(browser::NAME) };
                self.begin(browse(client))
            }
            Action::Pause => {
                let ms = self.dice.below(1500);
                wait::pause_because("idle times pass in the middle of things too", Duration::from_millis(ms));
                format!("{ms} ms")
            }
        }
    }

    fn begin(&mut self, call: Call) -> String {
        let said = format!("{} on {} as {} {:?}", call.tool, call.client.backend, call.token, call.ending);
        self.calls.push(call.begin(&self.broker, self.deaths));
        said
    }

    #[track_caller]
    fn finish_calls(&mut self) {
        for calling in std::mem::take(&mut self.calls) {
            wait::until_true("a call to come to an end", ANSWERED_WITHIN, || calling.is_over());
            if let Err(fault) = calling.judge(self.deaths, &mut self.tally) {
                panic!("{fault}");
            }
        }
    }

    fn open(&mut self, backend: &'static str) -> Arc<Client> {
        if self.clients.len() >= SESSIONS_MAX {
            let at = self.dice.index(self.clients.len());
            self.clients.swap_remove(at).end(self.broker.http());
        }
        self.clients_made += 1;
        let client = Client::new(&self.broker, backend, self.clients_made);
        self.clients.push(client.clone());
        client
    }

    fn any_backend(&mut self) -> &'static str {
        self.dice.weighted(&[(2, SHARED), (4, OWN), (3, STUBBORN)])
    }

    /// A session of a scripted server.
    fn anyone(&mut self) -> Arc<Client> {
        let scripted: Vec<_> =
            self.clients.iter().filter(|one| ![CALM, browser::NAME].contains(&one.backend)).cloned().collect();
        match self.dice.pick(&scripted) {
            Some(client) if scripted.len() > 3 => client.clone(),
            _ => {
                let backend = self.any_backend();
                self.open(backend)
            }
        }
    }

    fn open_or_take(&mut self, backend: &'static str) -> Arc<Client> {
        let open: Vec<_> = self.clients.iter().filter(|client| client.backend == backend).cloned().collect();
        match self.dice.pick(&open) {
            Some(client) => client.clone(),
            None => self.open(backend),
        }
    }

    /// Sends one of `signals` to one of the broker's descendants. Those of the calm backend are left in peace.
    fn hit(&mut self, signals: &[Signal], is_meant: impl Fn(&Process, &[u32]) -> bool) -> String {
        let table = Table::read();
        let below = table.descendants(self.broker.pid());
        let keepers: Vec<u32> = below.iter().filter(|process| process.is_keeper()).map(|keeper| keeper.pid()).collect();
        let calm: Vec<u32> = self.broker.events(CALM).iter().map(|event| event.pid).collect();
        let calm_keepers: Vec<u32> =
            below.iter().filter(|process| calm.contains(&process.pid())).map(|process| process.ppid).collect();
        let mut meant: Vec<&Process> = below.into_iter().filter(|process| is_meant(process, &keepers)).collect();
        meant.retain(|process| !calm.contains(&process.pid()) && !calm_keepers.contains(&process.pid()));
        meant.sort_by_key(|process| process.identity.started);
        let Some(victim) = self.dice.pick(&meant).copied() else { return "nobody is there".to_owned() };
        let signal = *self.dice.pick(signals).expect("some");
        let hit = send(victim.identity, signal);
        let command: String = victim.command.chars().take(60).collect();
        format!("{signal} to {} ({command}){}", victim.pid(), if hit { "" } else { ", which was gone" })
    }

    fn kill_broker(&mut self) -> String {
        let are_hurt = self.keepers == Keepers::Hurt;
        if are_hurt && !self.has_cgroups {
            return "not now: what a killed keeper has lost can be known only by its cgroup then".to_owned();
        }
        self.deaths += 1;
        let with_keepers = self.has_cgroups && self.dice.once_in(2);
        let keepers = if with_keepers { self.broker.keepers() } else { Vec::new() };
        // So that none of them sees the end of the broker before its own.
        keepers.iter().for_each(|keeper| {
            send(keeper.identity, Signal::SIGSTOP);
        });
        self.broker.kill_9();
        keepers.iter().for_each(|keeper| {
            send(keeper.identity, Signal::SIGKILL);
        });
        let waits = !with_keepers && !are_hurt && self.dice.once_in(2);
        if waits {
            self.broker.assert_nothing_left("kill -9 of the broker", EMPTY_WITHIN);
        }
        let before = self.broker.owned_processes();
        self.broker.restart();
        let table = Table::read();
        let left: Vec<Process> = before.into_iter().filter(|process| table.has(process.identity)).collect();
        assert!(left.is_empty(), "/ready is green while there are\n{}", describe(&left));
        self.broker.assert_no_files();
        self.keepers = Keepers::Whole;
        let more = if with_keepers { format!(", {} keepers with it", keepers.len()) } else { String::new() };
        format!("and start it again{}{more}", if waits { " when all was gone" } else { " at once" })
    }
}

fn backend(backend: Backend) -> Backend {
    let backend = backend.idle_seconds(1).start_seconds(5).call_seconds(3).queue(32, 5);
    let backend = backend.policy("on_cancel = { action = \"recycle\", grace_seconds = 0.3 },");
    // What a failed soak leaves does not fork for ever.
    backend.polite_seconds(0.3).stop_seconds(2).flags("--lifetime-seconds 90")
}

/// A call that answers with its token.
fn text_call(client: Arc<Client>, tool: &'static str, mut arguments: serde_json::Value) -> Call {
    let token = client.token();
    arguments["text"] = token.as_str().into();
    let (expected, ending) = (Expected::Token, Ending::Answer);
    Call { client, tool, arguments, token, expected, ending, is_modern: false }
}

fn failing_call(client: Arc<Client>, tool: &'static str, arguments: serde_json::Value) -> Call {
    Call { expected: Expected::Failure, ..text_call(client, tool, arguments) }
}

fn browse(client: Arc<Client>) -> Call {
    let call = text_call(client, "browser_navigate", json!({}));
    let url = format!("data:text/html,<title>{0}</title><h1>{0}</h1>", call.token);
    Call { arguments: json!({"url": url}), expected: Expected::TokenInside, ..call }
}

/// Puts the program into the folder, so that everything that runs it is known by its path.
fn take_program_along(folder: &Path) {
    let (from, to) = (run::broker_program(), folder.join("lazy-mcp"));
    if std::fs::hard_link(&from, &to).is_err() {
        std::fs::copy(&from, &to).expect("the program can be copied");
    }
}
