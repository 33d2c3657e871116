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
        let limits = &backend["limits"];
        text += &describe_limits(limits);
        for instance in backend["instances"].as_array().into_iter().flatten() {
            text += &describe_instance(instance);
            // Said once above, unless this generation differs.
            if instance["limits"]["because"] != limits["because"] {
                text += &describe_limits(&instance["limits"]);
            }
        }
    }
    text
}

/// Nothing where none was asked for.
fn describe_limits(limits: &Value) -> String {
    let memory = limits["memory_max_mb"].as_u64().map(|mb| format!("{mb} MiB of memory"));
    let pids = limits["pids_max"].as_u64().map(|max| format!("{max} processes and threads"));
    let limited: Vec<String> = memory.into_iter().chain(pids).collect();
    match (limited.is_empty(), limits["because"].as_str()) {
        (true, _) => String::new(),
        (false, None) => format!("\n  limited to {}", limited.join(" and ")),
        (false, Some(reason)) => format!("\n  limits NOT ENFORCED (asked: {}): {reason}", limited.join(" and ")),
    }
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
    } else if cleanup["ok"] == false && instance["cleanup"].is_null() {
        text += &format!("; CLEANUP NOT PROVED, {} survivors", cleanup["survivors"]);
        if let Some(reason) = cleanup["reason"].as_str() {
            text += &format!(": {reason}");
        }
    }
    if let Some(cause) = instance["last_failure"]["cause"].as_str() {
        text += &format!("\n    last failed start (generation {}): {cause}", instance["last_failure"]["generation"]);
    }
    if let Some(limit) = instance["last_over_limit"]["limit"].as_str() {
        text +=
            &format!("\n    generation {} went over its limit of {limit}", instance["last_over_limit"]["generation"]);
    }
    text += &describe_cleanup(instance);
    for survivor in instance["survivors"].as_array().into_iter().flatten() {
        text += &format!("\n  {}", describe_survivor(survivor));
    }
    if let Some(command) = instance["cleanup"]["command"].as_str() {
        text += &format!("\n    once that is solved: {command}");
    }
    text
}

/// What was tried, of an instance in `cleanup_failed`.
fn describe_cleanup(instance: &Value) -> String {
    let cleanup = &instance["cleanup"];
    let Some(attempts) = cleanup["attempts"].as_u64() else { return String::new() };
    let next = match cleanup["next_attempt_in_ms"].as_u64() {
        Some(ms) => format!("the next is in {} s", ms.div_ceil(1000)),
        None => "one is under way".to_owned(),
    };
    let set_aside = if instance["set_aside"] == true { "SET ASIDE, and " } else { "" };
    format!(
        "\n    {set_aside}not proved gone since {} after {attempts} attempts, the last at {}; {next}\n    {}; tried: {}",
        text_of(&instance["since"]),
        text_of(&cleanup["last_attempt_at"]),
        text_of(&cleanup["finding"]),
        text_of(&cleanup["means"]),
    )
}

pub(super) fn describe_survivor(survivor: &Value) -> String {
    format!(
        "  {} {} {} (state {}): {}",
        if survivor["windows"] == true { "Windows pid" } else { "pid" },
        survivor["pid"],
        text_of(&survivor["name"]),
        text_of(&survivor["state"]),
        text_of(&survivor["explanation"]),
    )
}

fn text_of(value: &Value) -> &str {
    value.as_str().unwrap_or("?")
}

fn mebibytes(bytes: &Value) -> String {
    format!("{} MiB", bytes.as_u64().unwrap_or_default().div_ceil(1024 * 1024))
}
