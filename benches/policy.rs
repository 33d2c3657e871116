//! What policies cost: processor time of this thread, median and worst of many runs, against the targets of
//! `docs/benchmarks.md`. Run with `cargo bench --bench policy`, or with words after `--` only the lines that have them.

#![expect(clippy::print_stdout, clippy::unwrap_used, reason = "a program that prints figures")]

use std::fmt::Write as _;
use std::fs::{self, File};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use lazy_mcp_broker::policy::{
    self, CallFacts, CallVerdict, InputSchema, Link, Media, PayloadKind, Policy, ResultVerdict,
};
use nix::errno::Errno;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::Pid;

fn main() {
    let policy = load(
        r#"return broker.backend { api = 1, scope = "session", results = {
            broker.redact_keys { keys = { "cookie", "set-cookie", "authorization" } },
            broker.redact_headers_in_text { names = { "cookie", "set-cookie", "authorization" } },
            broker.redact_text { pattern = [[(?i)\b(?:bearer|basic)\s+[a-z0-9._~+/=-]{8,}]] },
        } }"#,
    );
    let headers = network_requests(500);
    let in_text = format!(r#"{{"content":[{{"type":"text","text":{}}}]}}"#, serde_json::Value::from(headers.clone()));
    let structured = format!(r#"{{"content":[],"structuredContent":{{"requests":{headers}}}}}"#);
    let lines = text_of_headers(1000);
    let lines = format!(r#"{{"content":[{{"type":"text","text":{}}}]}}"#, serde_json::Value::from(lines));
    let image =
        format!(r#"{{"content":[{{"type":"image","mimeType":"image/png","data":"{}"}}]}}"#, "iVBO".repeat(5 << 18));
    let quiet = r#"{"content":[{"type":"text","text":"Page URL: about:blank"}]}"#.to_owned();
    for (what, payload, target_us) in [
        ("redaction: JSON in a text, 1,000 hits", &in_text, 500),
        ("redaction: structured content, 1,000 hits", &structured, 500),
        ("redaction: header lines in a text, 1,000 hits", &lines, 500),
        ("an image of 5 MB, nothing touched", &image, 5000),
        ("a small text, nothing touched", &quiet, 10),
    ] {
        measure(&policy, what, payload, target_us);
    }
    measure_taking_out();
    measure_hooks(&in_text, &quiet);
}

/// Hooks run on threads of their own, so what is measured is the processor time of those, waking up and answering
/// included. On one processor, where that costs the same on every machine: to wake a thread on another one, which sleeps,
/// an interrupt is sent, and a hypervisor takes longer for that than any hook here takes. How long is measured after it,
/// by a bare thread beside the hooks.
fn measure_hooks(large: &str, small: &str) {
    let hooks = |more: &str| {
        load(&format!(
            r#"return broker.backend {{ api = 1, scope = "session", {more}
            on_call = {{
                nothing = function(call) end,
                look = function(call)
                    local url = call.arguments.url
                    if url == nil or string.find(url, "pastebin.com", 1, true) then return broker.deny("no") end
                    return broker.allow()
                end,
                patch = function(call) return broker.allow {{ arguments = {{ url = "https://example.com/" }} }} end,
            }},
            on_result = {{ edit = function(call, result) result.content[1]:set_text("gone") end,
                           look = function(call, result) assert(not result.content[1]:matches([[^secret$]])) end }} }}"#
        ))
    };
    let schema = Arc::new(InputSchema::new(r#"{"type":"object","properties":{"url":{"type":"string"}}}"#));
    let arguments = r#"{"url":"https://example.org/a/b?c=d","timeout":1e3,"headers":{"accept":["text/html","*/*"]}}"#;
    let facts = |tool: &str| {
        Arc::new(CallFacts { tool: tool.into(), arguments: Some(arguments.into()), ..CallFacts::default() })
    };
    let all = sched_getaffinity(Pid::from_raw(0)).unwrap();
    run_on(&first_of(&all));
    measure_bare_thread("a thread woken to answer nothing");
    for (what, more, tool, target_us) in [
        ("on_call that does nothing", "", "nothing", 10),
        ("on_call that looks at an argument", "", "look", 10),
        ("on_call that rewrites one, rules and schema", "", "patch", 20),
        ("on_call with isolate = true", "isolate = true,", "look", 1000),
    ] {
        let (policy, call) = (hooks(more), facts(tool));
        measure_hook(what, arguments.len(), target_us, || {
            let verdict = policy.judge_call_blocking(&call, Some(&schema)).verdict;
            assert!(matches!(verdict, CallVerdict::Send { .. }), "{verdict:?}");
        });
    }
    let policy = hooks("");
    for (what, payload, tool, target_us) in [
        ("on_result with set_text, small", small, "edit", 20),
        ("on_result with set_text, 100 KB", large, "edit", 500),
        ("on_result with a pattern, 100 KB", large, "look", 500),
    ] {
        let (call, bytes) = (facts(tool), Bytes::copy_from_slice(payload.as_bytes()));
        measure_hook(what, payload.len(), target_us, || {
            let verdict = policy.judge_result_blocking(&call, bytes.clone()).verdict;
            assert!(matches!(verdict, ResultVerdict::Pass { .. }), "{verdict:?}");
        });
    }
    run_on(&all);
    measure_bare_thread("a thread woken to answer nothing, all processors");
    let call = facts("look");
    let ask = || {
        let verdict = policy.judge_call_blocking(&call, Some(&schema)).verdict;
        assert!(matches!(verdict, CallVerdict::Send { .. }), "{verdict:?}");
    };
    measure_hook("on_call that looks, all processors", arguments.len(), None, ask);
    measure_busy_hook("on_call that looks, all processors, busy", arguments.len(), 10, ask);
}

/// What no hook can be cheaper than: a thread that waits, is told something, and says something back.
fn measure_bare_thread(what: &str) {
    const NAME: &str = "bare-thread";
    let (ask, asked) = mpsc::channel::<mpsc::SyncSender<()>>();
    let bare = thread::Builder::new().name(NAME.to_owned());
    let bare = bare.spawn(move || asked.iter().for_each(|answer| answer.send(()).unwrap())).unwrap();
    measure_thread(what, NAME, 0, None, || {
        let (answer, answered) = mpsc::sync_channel(1);
        ask.send(answer).unwrap();
        answered.recv().unwrap();
    });
    drop(ask);
    bare.join().unwrap();
}

/// Keeps all threads there are, and those that they start, on these processors.
fn run_on(processors: &CpuSet) {
    for task in fs::read_dir("/proc/self/task").unwrap().flatten() {
        let id = task.file_name().to_str().unwrap().parse().unwrap();
        match sched_setaffinity(Pid::from_raw(id), processors) {
            // It has ended since.
            Ok(()) | Err(Errno::ESRCH) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

fn first_of(processors: &CpuSet) -> CpuSet {
    let first = (0..CpuSet::count()).find(|processor| processors.is_set(*processor).unwrap()).unwrap();
    let mut set = CpuSet::new();
    set.set(first).unwrap();
    set
}

/// The same with several callers at once, so that there is always a next job: without waking a thread for each, which
/// an idle virtual machine may take longer for than the hook takes.
fn measure_busy_hook(what: &str, bytes: usize, target_us: u64, ask: impl Fn() + Sync) {
    const CALLERS: u32 = 4;
    const EACH: u32 = 50;
    if !is_wanted(what) {
        return;
    }
    let round = || {
        let before = time_of_threads(HOOK_THREADS);
        thread::scope(|scope| (0..CALLERS).for_each(|_| drop(scope.spawn(|| (0..EACH).for_each(|_| ask())))));
        (time_of_threads(HOOK_THREADS) - before) / (CALLERS * EACH)
    };
    round();
    let mut times: Vec<Duration> = (0..40).map(|_| round()).collect();
    times.sort_unstable();
    print(what, bytes, times[times.len() / 2], times[times.len() * 9 / 10], target_us);
}

fn measure_hook(what: &str, bytes: usize, target_us: impl Into<Option<u64>>, ask: impl FnMut()) {
    measure_thread(what, HOOK_THREADS, bytes, target_us.into(), ask);
}

fn measure_thread(what: &str, thread: &str, bytes: usize, target_us: Option<u64>, mut ask: impl FnMut()) {
    /// The kernel counts in its own steps, so one call is too short to be measured.
    const BATCH: u32 = 50;
    if !is_wanted(what) {
        return;
    }
    for _ in 0..BATCH {
        ask();
    }
    let mut times: Vec<Duration> = (0..40)
        .map(|_| {
            let before = time_of_threads(thread);
            for _ in 0..BATCH {
                ask();
            }
            (time_of_threads(thread) - before) / BATCH
        })
        .collect();
    times.sort_unstable();
    print(what, bytes, times[times.len() / 2], times[times.len() * 9 / 10], target_us);
}

/// How the names of the threads begin that hooks run on.
const HOOK_THREADS: &str = "policy-hook";

/// Processor time that threads have had (`/proc/PID/task/TID/schedstat`, first field, nanoseconds).
fn time_of_threads(named: &str) -> Duration {
    let tasks = fs::read_dir("/proc/self/task").unwrap().flatten().map(|task| task.path());
    let wanted = tasks.filter(|task| fs::read_to_string(task.join("comm")).is_ok_and(|name| name.starts_with(named)));
    let nanos = wanted
        .filter_map(|task| fs::read_to_string(task.join("schedstat")).ok()?.split(' ').next()?.parse::<u64>().ok());
    Duration::from_nanos(nanos.sum())
}

/// An image of 5 MB, decoded, out of a result and into a file.
fn measure_taking_out() {
    const WHAT: &str = "an image of 5 MB into a file";
    if !is_wanted(WHAT) {
        return;
    }
    let policy = load("return broker.backend { api = 1, scope = 'session', results = { broker.image_to_link {} } }");
    let image = format!(r#"{{"content":[{{"type":"image","data":"{}"}}]}}"#, "iVBO".repeat(5_000_000 / 3));
    let rules = policy.plan("any").results.clone();
    let dir = tempfile::tempdir().unwrap();
    let mut times = Vec::new();
    for n in 0..50 {
        let mut keep = |media: &Media<'_>| {
            media.write_to(&mut File::create(dir.path().join(n.to_string())).unwrap()).unwrap();
            Some(Link { uri: "x:1".to_owned(), name: "x".to_owned() })
        };
        times.push(timed(|| rules.apply_keeping(&image, PayloadKind::Result, &mut keep).unwrap()));
    }
    times.sort_unstable();
    print(WHAT, image.len(), times[times.len() / 2], times[times.len() * 9 / 10], 5000);
}

fn measure(policy: &Policy, what: &str, payload: &str, target_us: u64) {
    if !is_wanted(what) {
        return;
    }
    let rules = policy.plan("any").results.clone();
    let mut times: Vec<Duration> =
        (0..200).map(|_| timed(|| rules.apply(payload, PayloadKind::Result).unwrap())).collect();
    times.sort_unstable();
    print(what, payload.len(), times[times.len() / 2], times[times.len() * 9 / 10], target_us);
}

fn is_wanted(what: &str) -> bool {
    // Cargo adds `--bench`.
    std::env::args().skip(1).filter(|word| !word.starts_with("--")).all(|word| what.contains(&word))
}

fn print(what: &str, bytes: usize, median: Duration, ninth: Duration, target_us: impl Into<Option<u64>>) {
    let target = target_us.into().map_or(String::new(), |target| format!("   target {target} µs"));
    println!(
        "{what:<48} {:>9} bytes   median {:>8.1} µs   90 % {:>8.1} µs{target}",
        bytes,
        median.as_secs_f64() * 1e6,
        ninth.as_secs_f64() * 1e6
    );
}

fn timed<T>(work: impl FnOnce() -> T) -> Duration {
    let now = || Duration::from(clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap());
    let begun = now();
    let kept = work();
    let took = now() - begun;
    drop(kept);
    took
}

fn load(text: &str) -> Policy {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("bench.lua");
    fs::write(&path, text).unwrap();
    policy::load(&path).unwrap()
}

/// What a browser's network log looks like: two secret headers a request.
fn network_requests(count: usize) -> String {
    let mut out = String::from("[");
    for n in 0..count {
        if n > 0 {
            out.push(',');
        }
        write!(
            out,
            r#"{{"url":"https://example.com/a/{n}","status":200,"headers":[{{"name":"accept","value":"*/*"}},{{"name":"cookie","value":"sid={n}abcdef; theme=dark"}},{{"name":"Set-Cookie","value":"x={n}; Path=/"}}]}}"#
        )
        .unwrap();
    }
    out.push(']');
    out
}

fn text_of_headers(lines: usize) -> String {
    let mut out = String::new();
    for n in 0..lines / 2 {
        write!(out, "GET https://example.com/a/{n}\n- accept: */*\n- cookie: sid={n}abcdefghijklmnop\n- authorization: Bearer abcdefgh{n}\n- content-type: text/html; charset=utf-8\n\n").unwrap();
    }
    out
}
