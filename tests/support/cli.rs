//! The command line as a user runs it, with a deadline.

use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use super::wait;

/// What a command said and how it ended.
#[derive(Debug)]
pub struct Run {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Run {
    /// Its stdout as JSON.
    #[track_caller]
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("stdout is not JSON ({error}): {self:#?}"))
    }
}

/// `lazy-mcp --config CONFIG ARGS…`. Panics if it takes longer than a minute.
#[track_caller]
pub fn run(config: &Path, args: &[&str]) -> Run {
    let mut command = Command::new(super::run::broker_program());
    command.arg("--config").arg(config).args(args);
    finish(command)
}

/// Any command, to its end.
#[track_caller]
pub fn finish(mut command: Command) -> Run {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the command can be started");
    let stdout = collect(child.stdout.take().expect("piped"));
    let stderr = collect(child.stderr.take().expect("piped"));
    let what = format!("the end of {command:?}");
    let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        wait::until(&what, Duration::from_secs(60), || child.try_wait().expect("it is our child"))
    }));
    let status = ended.unwrap_or_else(|panic| {
        child.kill().ok();
        child.wait().ok();
        std::panic::resume_unwind(panic)
    });
    Run {
        code: status.code(),
        stdout: stdout.join().expect("the reader does not panic"),
        stderr: stderr.join().expect("the reader does not panic"),
    }
}

fn collect(mut pipe: impl Read + Send + 'static) -> std::thread::JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        pipe.read_to_end(&mut bytes).ok();
        String::from_utf8_lossy(&bytes).into_owned()
    })
}
