//! `lazy-mcp probe`: one harmless real call for each backend, then the proof that everything is gone again.
//!
//! The broker's own word is not taken for it: processes are counted in the process table, as descendants of the
//! broker, and by the marker in their environment.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::Args;
use serde_json::{Value, json};

use super::call::watched;
use super::client::{self, Session};
use super::{BrokerArgs, block_on, eprint_line, full_url, print_line, url_of};
use crate::config::{BackendConfig, Probe};
use crate::core::diagnostic::suggestion;
use crate::exit::{Exit, Failure, code_of};
use crate::ownership::{ProcessId, ProcessTable};
use crate::snapshot::{self, Backend, Snapshot};

#[derive(Clone, Debug, Args)]
pub(super) struct ProbeArgs {
    /// Backends to probe [default: all that are enabled and have a `probe` in the configuration].
    backends: Vec<String>,
    /// Write what was seen, as JSON, to this file.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    #[command(flatten)]
    broker: BrokerArgs,
}

/// Between two looks at the process table.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);
/// Added to idle time and stop deadlines: two timers and a look may each be late.
const SLACK: Duration = Duration::from_secs(5);

/// One thing that was looked at.
struct Step {
    what: String,
    ok: bool,
    seen: String,
}

pub(super) fn run(config: &Path, args: &ProbeArgs) -> anyhow::Result<Exit> {
    let snapshot = snapshot::build(config)?;
    let base = match &args.broker.url {
        Some(url) => full_url(url),
        None => url_of(&snapshot.config),
    };
    let probed = chosen(&snapshot, &args.backends)?;
    if probed.is_empty() {
        return Err(Failure::new(Exit::Usage, "no backend has a harmless call: add [backends.NAME.probe]").into());
    }
    let mut report = Report { steps: Vec::new(), begun: Instant::now() };
    if let Err(e) = block_on(probe(&base, &probed, &mut report)) {
        if code_of(&e) == Exit::NotReached && report.steps.is_empty() {
            return Err(e);
        }
        report.step("probe", false, format!("{e:#}"));
    }
    let ok = report.steps.iter().all(|step| step.ok);
    if let Some(path) = &args.report {
        std::fs::write(path, report.to_json(ok).to_string())
            .with_context(|| format!("write the report `{}`", path.display()))?;
    }
    print_line(if ok { "probe passed" } else { "probe FAILED" });
    Ok(if ok { Exit::Done } else { Exit::NotSo })
}

struct Report {
    steps: Vec<Step>,
    begun: Instant,
}

impl Report {
    /// Notes and prints one step; whether it was as it should be.
    fn step(&mut self, what: impl Into<String>, ok: bool, seen: impl Into<String>) -> bool {
        let step = Step { what: what.into(), ok, seen: seen.into() };
        print_line(&format!("{} {}: {}", if ok { "ok  " } else { "FAIL" }, step.what, step.seen));
        self.steps.push(step);
        ok
    }

    fn to_json(&self, ok: bool) -> Value {
        let steps: Vec<_> =
            self.steps.iter().map(|step| json!({"what": step.what, "ok": step.ok, "seen": step.seen})).collect();
        json!({"ok": ok, "seconds": self.begun.elapsed().as_secs_f64(), "steps": steps})
    }
}

type Probed<'a> = BTreeMap<&'a str, (&'a Backend, &'a Probe)>;

fn chosen<'a>(snapshot: &'a Snapshot, names: &[String]) -> anyhow::Result<Probed<'a>> {
    let probe_of = |backend: &'a Backend| Some((backend, backend.plan.config.probe.as_ref()?));
    if names.is_empty() {
        let all = snapshot.backends.values();
        return Ok(all.filter_map(|backend| Some((&*backend.name, probe_of(backend)?))).collect());
    }
    let find = |name: &String| {
        let usage = |why: String| anyhow::Error::from(Failure::new(Exit::Usage, why));
        let backend = snapshot.backends.get(name).ok_or_else(|| {
            usage(format!("no backend '{name}'{}", suggestion(name, snapshot.backends.keys().map(String::as_str))))
        })?;
        let probe = probe_of(backend)
            .ok_or_else(|| usage(format!("backend '{name}' has no harmless call: add [backends.{name}.probe]")))?;
        Ok((&*backend.name, probe))
    };
    names.iter().map(find).collect()
}

async fn probe(base: &str, probed: &Probed<'_>, report: &mut Report) -> anyhow::Result<()> {
    let Some(broker) = baseline(base, probed, report).await? else { return Ok(()) };
    let mut sessions = Vec::new();
    for (name, (_, probe)) in probed {
        sessions.push(call(base, name, probe, broker, report).await?);
    }
    // The sessions stay open meanwhile: an ended session would stop its instance by itself and prove nothing of idle.
    let limit = probed.values().map(|(backend, _)| gone_within(backend)).max().unwrap_or_default();
    let status = client::status(base).await?;
    let ids = instances(&status, |name| probed.contains_key(name)).filter_map(|instance| instance["id"].as_str());
    let ids: BTreeSet<String> = ids.map(str::to_owned).collect();
    wait_until_gone(base, probed, broker, (limit, &ids), report).await?;
    for session in sessions {
        session.close().await;
    }
    Ok(())
}

/// A clean start: the broker is ready, and nothing of the probed backends is live. `None` if it is not.
async fn baseline(base: &str, probed: &Probed<'_>, report: &mut Report) -> anyhow::Result<Option<ProcessId>> {
    client::until_stopped(base, |name| probed.contains_key(name)).await;
    let status = client::status(base).await?;
    let pid = status["broker"]["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok()).unwrap_or_default();
    let broker = ProcessId::of(pid);
    let ready = report.step("broker", broker.is_some() && status["broker"]["ready"] == true, format!("pid {pid}"));
    let live = live_instances(&status, probed);
    let seen =
        if live == 0 { "no live instance".to_owned() } else { format!("{live} live instances; let them end first") };
    let clean = report.step("clean baseline", live == 0, seen);
    Ok(broker.filter(|_| ready && clean))
}

/// One harmless real call; the session it was made in.
async fn call(
    base: &str,
    name: &str,
    probe: &Probe,
    broker: ProcessId,
    report: &mut Report,
) -> anyhow::Result<Session> {
    let begun = Instant::now();
    eprint_line(&format!("calling {name} {} …", probe.tool));
    let session = Session::open(base, name).await?;
    let result = watched(name, session.call(&probe.tool, probe.arguments.clone())).await;
    let took = begun.elapsed();
    let (ok, seen) = match result {
        Err(e) => (false, format!("{e:#}")),
        Ok(result) => {
            let text: String = serde_json::to_value(&result)?["content"]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(|item| item["text"].as_str())
                .collect();
            match (result.is_error == Some(true), &probe.expect) {
                (true, _) => (false, text),
                (false, Some(expected)) if !expected.is_match(&text) => {
                    (false, format!("the answer does not match `{expected}`"))
                }
                (false, _) => (true, format!("answered in {:.1} s", took.as_secs_f64())),
            }
        }
    };
    let ok = report.step(format!("{name}: {}", probe.tool), ok, seen);
    if ok {
        let owned = owned(broker);
        report.step(format!("{name}: processes"), owned > 0, format!("{owned} owned by the broker"));
    }
    Ok(session)
}

/// Waits until the process table shows nothing of the broker's, and checks that the broker says the same.
async fn wait_until_gone(
    base: &str,
    probed: &Probed<'_>,
    broker: ProcessId,
    (limit, ids): (Duration, &BTreeSet<String>),
    report: &mut Report,
) -> anyhow::Result<()> {
    let begun = Instant::now();
    eprint_line(&format!("waiting until everything is idle and gone, at most {} s …", limit.as_secs()));
    let gone = watched("the idle stop", async {
        loop {
            let status = client::status(base).await?;
            let quiet = live_instances(&status, probed) == 0;
            let others = others_live(&status, probed);
            if quiet && (others || owned(broker) == 0) || begun.elapsed() >= limit {
                return anyhow::Ok(status);
            }
            tokio::time::sleep(LOOK_INTERVAL).await;
        }
    });
    let status = gone.await?;
    let owned = owned(broker);
    let live = live_instances(&status, probed);
    let busy = calls(&status, probed);
    report.step("calls", busy == 0, format!("{busy} running or queued"));
    report.step("instances", live == 0, format!("{live} live after {:.1} s", begun.elapsed().as_secs_f64()));
    if others_live(&status, probed) {
        report.step("processes", live == 0, format!("{owned} of other backends, which are in use"));
    } else {
        report.step("processes", owned == 0, format!("{owned} in the process table"));
    }
    let (starts, proofs) = tallies(&status, probed);
    report.step("proof", starts > 0 && starts == proofs, format!("{starts} started, {proofs} proved gone"));
    let marked = marked(ids);
    report.step("marker", marked == 0, format!("{marked} processes carry the marker of a probed instance"));
    report.step("broker unchanged", broker.is_alive(), format!("pid {}", broker.pid));
    Ok(())
}

/// Processes below the broker, by the process table.
fn owned(broker: ProcessId) -> usize {
    ProcessTable::read().map_or(usize::MAX, |table| table.descendants(broker.pid).len())
}

fn gone_within(backend: &Backend) -> Duration {
    let BackendConfig { deadlines, .. } = &backend.plan.config;
    backend.policy.idle_timeout + deadlines.stop + SLACK
}

fn instances<'a>(status: &'a Value, is_meant: impl Fn(&str) -> bool + 'a) -> impl Iterator<Item = &'a Value> {
    let backends = status["backends"].as_array().into_iter().flatten();
    let meant = backends.filter(move |backend| backend["name"].as_str().is_some_and(&is_meant));
    meant.flat_map(|backend| backend["instances"].as_array().into_iter().flatten())
}

fn is_live(instance: &&Value) -> bool {
    instance["state"] != "stopped"
}

fn live_instances(status: &Value, probed: &Probed<'_>) -> usize {
    instances(status, |name| probed.contains_key(name)).filter(is_live).count()
}

fn others_live(status: &Value, probed: &Probed<'_>) -> bool {
    instances(status, |name| !probed.contains_key(name)).any(|instance| is_live(&instance))
}

fn calls(status: &Value, probed: &Probed<'_>) -> u64 {
    let of = |instance: &Value| instance["active"].as_u64().unwrap_or(0) + instance["queued"].as_u64().unwrap_or(0);
    instances(status, |name| probed.contains_key(name)).map(of).sum()
}

/// Generations started and proved gone since the broker began, over the probed backends.
fn tallies(status: &Value, probed: &Probed<'_>) -> (u64, u64) {
    let backends = status["backends"].as_array().into_iter().flatten();
    let probed = backends.filter(|backend| backend["name"].as_str().is_some_and(|name| probed.contains_key(name)));
    probed.fold((0, 0), |(starts, proofs), backend| {
        (starts + backend["starts"].as_u64().unwrap_or(0), proofs + backend["proofs"].as_u64().unwrap_or(0))
    })
}

/// Processes anywhere on this machine that carry the marker of one of these instances in their environment.
fn marked(ids: &BTreeSet<String>) -> usize {
    let table = ProcessTable::read().map(|table| table.iter().map(|process| process.pid).collect::<Vec<_>>());
    let is_marked = |pid: &u32| {
        let environ = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environ.split(|byte| *byte == 0).any(|entry| {
            let id = entry.strip_prefix(b"LAZY_MCP_INSTANCE_ID=").and_then(|id| std::str::from_utf8(id).ok());
            id.is_some_and(|id| ids.contains(id))
        })
    };
    table.map_or(usize::MAX, |pids| pids.iter().filter(|pid| is_marked(pid)).count())
}
