//! What a reload of the shipped configuration costs, from the order to the answer: median and worst of many, in wall time,
//! because somebody waits for it. Run with `cargo bench --bench reload`.

#![expect(clippy::print_stdout, clippy::unwrap_used, reason = "a program that prints figures")]

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lazy_mcp_broker::broker::{Broker, ReloadOptions};
use lazy_mcp_broker::events::EventLog;
use lazy_mcp_broker::ownership::{Journal, KeeperProgram};
use lazy_mcp_broker::snapshot;
use lazy_mcp_broker::supervisor::{NoAudience, Supervisor, SupervisorLimits};

const TARGET: Duration = Duration::from_millis(20);
const ROUNDS: usize = 50;

fn main() {
    let dir = tempfile::tempdir().unwrap();
    for folder in ["config", "catalogs", "policies"] {
        copy(&Path::new(env!("CARGO_MANIFEST_DIR")).join(folder), &dir.path().join(folder));
    }
    let config = dir.path().join("config/broker.toml");
    let begun = Instant::now();
    let first = snapshot::build(&config).unwrap();
    println!("{:<40} {:>8.2} ms", "first build", ms(begun.elapsed()));

    let journal = Journal::open(&dir.path().join("state")).unwrap();
    let events = Arc::new(EventLog::new("bench".into()));
    let limits = SupervisorLimits { slots_max: 100, live_max: 10, starts_max: 4, set_aside_max: 4 };
    let supervisor = Supervisor::new(journal, KeeperProgram::own(), limits, &[], events.clone(), Arc::new(NoAudience));
    let broker = Arc::new(Broker::new(first, Arc::new(supervisor), events, Arc::default()));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let policies = ["playwright", "chrome-devtools", "agentation"].map(|name| format!("policies/{name}.lua"));
    let catalogs = ["playwright", "chrome-devtools", "agentation"].map(|name| format!("catalogs/{name}.json"));
    let measure = |what: &str, files: &[String], change: &str| {
        let mut times = Vec::new();
        for round in 0..ROUNDS {
            for file in files {
                let path = dir.path().join(file);
                let text = std::fs::read_to_string(&path).unwrap();
                // Bytes that mean nothing: the file is another one, and what it says is the same.
                let text =
                    if round.is_multiple_of(2) { text + change } else { text.trim_end_matches(change).to_owned() };
                std::fs::write(&path, text).unwrap();
            }
            let begun = Instant::now();
            let report = runtime.block_on(broker.reload(ReloadOptions::default()));
            times.push(begun.elapsed());
            assert!(report.ok, "{report:?}");
        }
        times.sort_unstable();
        let (median, worst) = (times[times.len() / 2], times[times.len() - 1]);
        let target = if median <= TARGET { "within" } else { "OVER" };
        println!("{what:<40} {:>8.2} ms, worst {:>8.2} ms: {target} {:?}", ms(median), ms(worst), TARGET);
    };
    measure("nothing changed", &[], "");
    measure("one policy changed", &policies[..1], "\n-- x");
    measure("three policies changed", &policies, "\n-- x");
    measure("three catalogs changed", &catalogs, " \n");
    let all: Vec<String> = [policies, catalogs].concat();
    measure("all six files changed", &all, "\n");
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_file() {
            std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
        }
    }
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
