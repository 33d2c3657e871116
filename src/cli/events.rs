//! `lazy-mcp events`.

use anyhow::Context as _;
use futures_util::StreamExt as _;
use serde_json::Value;

use super::{block_on, client, print_line};
use crate::exit::{Exit, Failure};

/// Prints what the broker remembers, and with `follow` what happens from then on, until the broker ends.
pub(super) fn run(base: &str, follow: bool, as_json: bool) -> anyhow::Result<Exit> {
    block_on(async {
        let mut chunks = client::events(base, follow).await?.bytes_stream();
        let mut lines = Lines::default();
        while let Some(chunk) = chunks.next().await {
            for line in lines.take(&chunk.context("the connection to the broker broke")?) {
                let Some(data) = line.strip_prefix("data: ") else { continue };
                print_line(&if as_json { data.to_owned() } else { describe(data)? });
            }
        }
        if follow {
            return Err(Failure::new(Exit::NotReached, format!("the broker at {base} has ended")).into());
        }
        Ok(Exit::Done)
    })
}

/// Cuts a stream into lines, however it comes.
#[derive(Default)]
struct Lines(Vec<u8>);

impl Lines {
    fn take(&mut self, chunk: &[u8]) -> Vec<String> {
        self.0.extend_from_slice(chunk);
        let Some(end) = self.0.iter().rposition(|byte| *byte == b'\n') else { return Vec::new() };
        let rest = self.0.split_off(end + 1);
        let whole = std::mem::replace(&mut self.0, rest);
        String::from_utf8_lossy(&whole).lines().map(str::to_owned).collect()
    }
}

/// `2026-01-02T03:04:05.678Z  playwright/0a1b2c3d4e5f generation 3  starting → ready`.
fn describe(data: &str) -> anyhow::Result<String> {
    let event: Value = serde_json::from_str(data).context("what the broker sent is no event")?;
    let text = |name: &str| event[name].as_str().unwrap_or("?").to_owned();
    let what = match event["event"].as_str().unwrap_or_default() {
        "broker_ready" => "ready".to_owned(),
        "broker_not_ready" => format!("NOT READY: {}", text("reason")),
        "broker_stopping" => "stopping".to_owned(),
        "state_changed" => format!("{} → {}", text("from"), text("to")),
        "start_failed" => format!("start failed ({})", text("kind")),
        "root_exited" => format!("its first process {}", text("exit")),
        "proved_gone" => format!("proved gone in {} ms, {} killed", event["ms"], event["killed"]),
        "not_proved" => format!("NOT PROVED GONE after {} ms, {} survivors", event["ms"], event["survivors"]),
        "over_limit" => format!("went over its limit of {}", text("limit")),
        "set_aside" => "set aside by an operator, NOT PROVED GONE".to_owned(),
        "made_room" => "idle, stopped to make room for another".to_owned(),
        "call_denied" => format!("call of {} denied by {}", text("tool"), text("rule")),
        "call_rewritten" => format!("call of {} rewritten by {}", text("tool"), text("rule")),
        "result_rewritten" => format!("result of {} rewritten by {}", text("tool"), text("rule")),
        "result_withheld" => format!("result of {} WITHHELD by {}", text("tool"), text("rule")),
        "reload_done" => format!("revision {}: {} backends changed", event["revision"], event["changed"]),
        "reload_rejected" => {
            format!("RELOAD REFUSED with {} errors; revision {} goes on", event["errors"], event["revision"])
        }
        "backend_enabled" => "enabled by an operator".to_owned(),
        "backend_disabled" => "disabled by an operator".to_owned(),
        "missed" => return Ok(format!("({} earlier events are forgotten)", event["count"])),
        other => other.to_owned(),
    };
    let subject = match event["backend"].as_str() {
        Some(backend) if event["instance"].is_null() => backend.to_owned(),
        Some(backend) => format!("{backend}/{} generation {}", text("instance"), event["generation"]),
        None => "broker".to_owned(),
    };
    Ok(format!("{}  {subject}  {what}", text("at")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_out_whole_however_they_are_cut() {
        let mut lines = Lines::default();
        let text = "id: é-1\ndata: {}\n\n: x\n";
        let mut seen = Vec::new();
        for byte in text.bytes() {
            seen.extend(lines.take(&[byte]));
        }
        assert_eq!(seen, ["id: é-1", "data: {}", "", ": x"]);
    }
}
