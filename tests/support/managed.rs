//! A broker under a service manager that listens here, by sd_notify(3).

use std::io::ErrorKind;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::{run, wait};

const SOON: Duration = Duration::from_secs(20);

/// Killed on drop, if it has not ended.
#[derive(Debug)]
pub struct Managed {
    socket: UnixDatagram,
    child: Child,
}

impl Managed {
    /// Over the files in `dir`, as `Setup` writes them.
    #[track_caller]
    pub fn start(dir: &Path, watchdog: Duration) -> Self {
        let path = dir.join("notify");
        let socket = UnixDatagram::bind(&path).expect("nobody has bound it before");
        socket.set_read_timeout(Some(Duration::from_millis(50))).expect("not zero");
        let child = Command::new(run::broker_program())
            .arg("--config")
            .arg(dir.join("config/broker.toml"))
            .arg("serve")
            .env("NOTIFY_SOCKET", &path)
            .env("WATCHDOG_USEC", watchdog.as_micros().to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("the broker can be started");
        Self { socket, child }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    #[expect(clippy::disallowed_methods, reason = "a child that was not waited for keeps its pid")]
    #[track_caller]
    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(i32::try_from(self.pid()).expect("pids are small")), signal).expect("it runs");
    }

    /// The next message; `None` if none comes at once.
    pub fn heard(&self) -> Option<String> {
        let mut buffer = [0; 4096];
        match self.socket.recv(&mut buffer) {
            Ok(len) => Some(String::from_utf8_lossy(&buffer[..len]).into_owned()),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => None,
            Err(error) => panic!("{error}"),
        }
    }

    /// The first message that holds `line`; others before it are passed over.
    #[track_caller]
    pub fn wait_for(&self, line: &str) -> String {
        wait::until(line, SOON, || self.heard().filter(|message| message.lines().any(|one| one == line)))
    }

    pub fn drain(&self) {
        while self.heard().is_some() {}
    }

    #[track_caller]
    pub fn wait_end(&mut self) -> ExitStatus {
        wait::until("the broker to end", SOON, || self.child.try_wait().expect("it is our child"))
    }
}

impl Drop for Managed {
    fn drop(&mut self) {
        // Ended already, if the test went well.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
