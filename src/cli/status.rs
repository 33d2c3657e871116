//! `lazy-mcp status`.

use serde_json::Value;

use super::{block_on, client, print_line};
use crate::exit::Exit;

pub(super) fn run(base: &str, as_json: bool) -> anyhow::Result<Exit> {
    let status = block_on(client::status(base))?;
    if as_json {
        print_line(&status.to_string());
    } else {
        print_line(&describe(&status));
    }
    let is_well = status["broker"]["ready"] == true && status["totals"]["cleanup_failed"] == 0;
    Ok(match (is_well, status["totals"]["cleanup_failed"] == 0) {
        (true, _) => Exit::Done,
        (false, true) => Exit::NotSo,
        (false, false) => Exit::NotProved,
    })
}

fn describe(status: &Value) -> String {
    let (broker, totals) = (&status["broker"], &status["totals"]);
    let ready = if broker["ready"] == true {
        "ready".to_owned()
    } else {
        let reasons = broker["not_ready_because"].as_array().into_iter().flatten().filter_map(Value::as_str);
        format!("NOT READY: {}", reasons.collect::<Vec<_>>().join("; "))
    };
    let mut text = format!(
        "lazy-mcp {} (pid {}), revision {}, {ready}\nsessions {}, live instances {}, calls running {} and queued {}, owned processes {} ({} resident)",
        text_of(&broker["version"]),
        broker["pid"],
        broker["revision"],
        totals["sessions"],
        totals["live_instances"],
        totals["active_calls"],
        totals["queued_calls"],
        totals["owned_processes"],
        mebibytes(&totals["owned_rss_bytes"]),
    );
    for backend in status["backends"].as_array().into_iter().flatten() {
        if backend["enabled"] != true {
            text += &format!("\n\n{}  disabled", text_of(&backend["name"]));
            continue;
        }
        text += &format!(
            "\n\n{}  {}  {}, {} tools, idle {} s",
            text_of(&backend["name"]),
            text_of(&backend["mount"]),
            text_of(&backend["scope"]),
            backend["catalog"]["tools"],
            backend["idle_timeout_seconds"],
        );
        if let (Some(starts), Some(proofs)) = (backend["starts"].as_u64(), backend["proofs"].as_u64())
            && starts > 0
        {
            text += &format!(", started {starts}×, proved gone {proofs}×");
        }
        if backend["catalog"]["drift"] == "changed" {
            text += ", its server differs from its catalog";
        }
        for instance in backend["instances"].as_array().into_iter().flatten() {
            text += &describe_instance(instance);
        }
    }
    text
}

fn describe_instance(instance: &Value) -> String {
    let mut text = format!(
        "\n  {}  {}, generation {}, {} running, {} queued, {} processes, {}",
        text_of(&instance["id"]),
        text_of(&instance["state"]),
        instance["generation"],
        instance["active"],
        instance["queued"],
        instance["owned_processes"],
        mebibytes(&instance["rss_bytes"]),
    );
    if let Some(idle) = instance["idle_ms"].as_u64() {
        text += &format!(", idle for {} s", idle / 1000);
    }
    let cleanup = &instance["last_cleanup"];
    if cleanup["ok"] == true {
        text += &format!("; last stop proved in {} ms", cleanup["ms"]);
    } else if cleanup["ok"] == false {
        text += &format!("; CLEANUP NOT PROVED, {} survivors", cleanup["survivors"]);
        if let Some(reason) = cleanup["reason"].as_str() {
            text += &format!(": {reason}");
        }
    }
    if let Some(cause) = instance["last_failure"]["cause"].as_str() {
        text += &format!("\n    last failed start (generation {}): {cause}", instance["last_failure"]["generation"]);
    }
    for survivor in instance["survivors"].as_array().into_iter().flatten() {
        let side = if survivor["windows"] == true { "Windows pid" } else { "pid" };
        text += &format!(
            "\n    {side} {} {} (state {})",
            survivor["pid"],
            text_of(&survivor["name"]),
            text_of(&survivor["state"])
        );
    }
    text
}

fn text_of(value: &Value) -> &str {
    value.as_str().unwrap_or("?")
}

fn mebibytes(bytes: &Value) -> String {
    format!("{} MiB", bytes.as_u64().unwrap_or_default().div_ceil(1024 * 1024))
}
