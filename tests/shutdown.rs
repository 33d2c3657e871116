//! How a broker ends: in order, at once when told twice, and never without the proof; and what it tells the service
//! manager meanwhile.

mod support;

use std::io::ErrorKind;
use std::os::unix::net::UnixDatagram;
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;
use support::wait::{until, until_true};
use support::{Backend, Broker, Response, Session, Setup, cli};

const SOON: Duration = Duration::from_secs(10);

#[expect(clippy::disallowed_methods, reason = "a child that was not waited for keeps its pid")]
fn signal(pid: u32, signal: Signal) {
    kill(Pid::from_raw(i32::try_from(pid).expect("pids are small")), signal).expect("it runs");
}

fn with_a_hanging_call(broker: &Broker) -> (Session, JoinHandle<Response>) {
    let session = Session::new(broker, "fixture");
    let (http, request) = (broker.http(), session.call_request("hang", &json!({})));
    let call = std::thread::spawn(move || http.send(&request));
    broker.wait_event("fixture", "call", "hang");
    (session, call)
}

#[test]
fn a_second_signal_ends_the_wait_for_calls_and_not_the_proof() {
    let mut broker = Setup::new().backend(Backend::singleton("fixture")).drain_seconds(60).start();
    let (_session, call) = with_a_hanging_call(&broker);
    signal(broker.pid(), Signal::SIGINT);
    until_true("the broker to drain", SOON, || broker.backend_status("fixture")["instances"][0]["state"] == "draining");
    let told_twice = Instant::now();
    let status = broker.terminate();
    assert!(status.success(), "{status}: {}", broker.log());
    assert!(told_twice.elapsed() < Duration::from_secs(15), "{:?}", told_twice.elapsed());
    assert!(call.join().unwrap().text().contains("\"retired\""));
    broker.assert_nothing_left("the second signal", Duration::from_millis(100));
    assert!(broker.log().contains("proved gone"), "{}", broker.log());
}

#[test]
fn nothing_new_is_started_while_it_drains() {
    let mut broker = Setup::new()
        .backend(Backend::singleton("fixture"))
        .backend(Backend::session("other"))
        .drain_seconds(60)
        .start();
    let (_session, _call) = with_a_hanging_call(&broker);
    let late = Session::new(&broker, "other");
    signal(broker.pid(), Signal::SIGTERM);
    until_true("the broker to drain", SOON, || broker.status()["broker"]["ready"] == false);
    assert_eq!(late.call("pid", &json!({})).refusal(), "retired");
    assert_eq!(broker.starts("other"), 0);
    assert!(broker.terminate().success());
}

/// A broker under a service manager that listens here.
struct Managed {
    socket: UnixDatagram,
    child: Child,
    _dir: tempfile::TempDir,
}

impl Managed {
    fn start(watchdog: Duration) -> Self {
        let dir = Setup::new().backend(Backend::singleton("fixture")).write_whole();
        let path = dir.path().join("notify");
        let socket = UnixDatagram::bind(&path).expect("the folder is new");
        socket.set_read_timeout(Some(Duration::from_millis(50))).expect("not zero");
        let child = Command::new(cli::binary())
            .arg("--config")
            .arg(dir.path().join("config/broker.toml"))
            .arg("serve")
            .env("NOTIFY_SOCKET", &path)
            .env("WATCHDOG_USEC", watchdog.as_micros().to_string())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("the broker can be started");
        Self { socket, child, _dir: dir }
    }

    fn heard(&self) -> Option<String> {
        let mut buffer = [0; 4096];
        match self.socket.recv(&mut buffer) {
            Ok(len) => Some(String::from_utf8_lossy(&buffer[..len]).into_owned()),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => None,
            Err(error) => panic!("{error}"),
        }
    }

    /// The first message that holds `line`; others before it are passed over.
    #[track_caller]
    fn wait_for(&self, line: &str) -> String {
        until(line, SOON, || self.heard().filter(|message| message.lines().any(|one| one == line)))
    }

    fn drain(&self) {
        while self.heard().is_some() {}
    }
}

#[test]
fn the_service_manager_is_told() {
    let mut managed = Managed::start(Duration::from_millis(200));
    let ready = managed.wait_for("READY=1");
    assert!(ready.contains("STATUS=ready"), "{ready}");
    // Again and again while it turns …
    managed.wait_for("WATCHDOG=1");
    managed.wait_for("WATCHDOG=1");
    // … and not when it hangs.
    signal(managed.child.id(), Signal::SIGSTOP);
    managed.drain();
    assert_eq!(managed.heard(), None);
    signal(managed.child.id(), Signal::SIGCONT);
    managed.wait_for("WATCHDOG=1");
    // A reload begins and ends.
    signal(managed.child.id(), Signal::SIGHUP);
    let reloading = managed.wait_for("RELOADING=1");
    assert!(reloading.contains("MONOTONIC_USEC="), "{reloading}");
    managed.wait_for("READY=1");
    signal(managed.child.id(), Signal::SIGTERM);
    managed.wait_for("STOPPING=1");
    let status = until("the broker to end", SOON, || managed.child.try_wait().unwrap());
    assert!(status.success(), "{status}");
}

impl Drop for Managed {
    fn drop(&mut self) {
        // Ended already, if the test went well.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
