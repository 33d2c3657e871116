//! Chunks that try to run for ever, to eat all memory or to end the process. Each must come back as a fault of its file,
//! within its budget, on a machine that has other things to do.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use lazy_mcp_broker::policy::{CallFacts, CallVerdict, Policy, ResultVerdict, load, threads_abandoned};

use crate::{directory_with, faults};

/// Far above the budget, because the machine may be busy; far below for ever.
const WALL: Duration = Duration::from_secs(20);

const STEPS: &str = "policy used more than its 200000 steps";
const MEMORY: &str = "policy used more than its 8 MiB of memory";
/// The watchdog behind the steps, where this machine is too busy for them: as good an end.
const CLOCK: [&str; 2] = ["policy did not end within", "policy took too long"];
/// The file says nothing wrong but returns nothing; a hook may return nothing.
const ENDS: &str = "must end with 'return broker.backend";

/// Runs the chunk when a policy is loaded, in `on_call` and in `on_result`.
#[track_caller]
fn check(chunk: &str, expected: &[&str]) {
    check_load(chunk, expected);
    let hook = |field: &str| {
        let text = format!(
            "return broker.backend {{ api = 1, scope = 'session', {field} = {{ t = function(call) {chunk}\nend }} }}"
        );
        let directory = directory_with(&text);
        load(&directory.path().join("policy.lua")).unwrap()
    };
    let call = Arc::new(CallFacts { tool: "t".into(), ..CallFacts::default() });
    let result = Bytes::from_static(br#"{"content":[]}"#);
    let in_time = |policy: &Policy, judge: &dyn Fn(&Policy) -> Option<String>| {
        let started = Instant::now();
        let failure = judge(policy).unwrap_or_else(|| ENDS.to_owned());
        let (took, shown) = (started.elapsed(), chunk.chars().take(100).collect::<String>());
        assert!(took < WALL, "took {took:?}: {shown}");
        assert!(expected.iter().chain(&CLOCK).any(|part| failure.contains(part)), "{shown}\n{failure}");
    };
    in_time(&hook("on_call"), &|policy| match policy.judge_call_blocking(&call, None).verdict {
        CallVerdict::Failed(failure) => Some(failure.to_string()),
        _ => None,
    });
    in_time(&hook("on_result"), &|policy| match policy.judge_result_blocking(&call, result.clone()).verdict {
        ResultVerdict::Failed(failure) => Some(failure.to_string()),
        _ => None,
    });
    // On a machine that is busy enough a thread may be given up before it comes to its next step; but it does come.
    let until = Instant::now() + WALL;
    while threads_abandoned() > 0 {
        assert!(Instant::now() < until, "a thread hangs: {chunk}");
        std::thread::yield_now();
    }
}

#[track_caller]
fn check_load(chunk: &str, expected: &[&str]) {
    let started = Instant::now();
    let found = faults(chunk);
    let took = started.elapsed();
    let shown: String = chunk.chars().take(100).collect();
    assert!(took < WALL, "took {took:?}: {shown}");
    assert!(expected.iter().chain(&CLOCK).any(|part| found.contains(part)), "{shown}\n{found}");
}

#[test]
fn loops_run_out_of_steps() {
    check("while true do end", &["policy.lua:1: policy used more than its 200000 steps"]);
    check("local n = 0\nrepeat\n  n += 1\nuntil n < 0", &[STEPS]);
    check("for i = 1, 2 ^ 53 do end", &[STEPS]);
    check("for _ in function() return 1 end do end", &[STEPS]);
    check("local function f() return f() end f()", &[STEPS, "stack overflow"]);
    check("local function f() f() f() end f()", &["stack overflow", STEPS]);
    check(
        "local t = setmetatable({}, {}) getmetatable(t).__index = function(t, k) return t[k] end local _ = t.x",
        &["overflow", STEPS],
    );
    check("table.sort({3, 2, 1, 5, 4}, function(a, b) while true do end end)", &[STEPS]);
    check("string.gsub('x', '.', function() while true do end end)", &[STEPS]);
    check("local t = setmetatable({}, { __lt = function() while true do end end }) local _ = t < t", &[STEPS]);
    check("local t = setmetatable({}, { __tostring = function() while true do end end }) tostring(t)", &[STEPS]);
}

#[test]
fn patterns_run_out_of_steps() {
    check("local n = 30 string.find(string.rep('a', n), string.rep('a?', n) .. string.rep('a', n))", &[STEPS]);
    check("string.find(string.rep('a', 4096), '.-.-.-.-b')", &[STEPS]);
    check("string.match(string.rep('a', 4096), '(.-)(.-)(.-)(.-)b')", &[STEPS]);
    check("for _ in string.gmatch(string.rep('a', 4096), '.-.-.-b') do end", &[STEPS]);
    check("local s = string.rep('ab', 500000) while true do s:gsub('a', 'a') end", &[STEPS, MEMORY, "too long"]);
}

#[test]
fn library_loops_are_bounded() {
    let plain = "local a, b = string.rep('a', 1000000), string.rep('a', 499999) .. 'b'\n";
    // Linear now, so each of these ends by itself and the file fails for returning nothing.
    let nothing = ENDS;
    check(&format!("{plain}string.find(a, b, 1, true)"), &[nothing]);
    check(&format!("{plain}string.find(a, b)"), &[nothing]);
    check(&format!("{plain}string.split(a, b)"), &[nothing]);
    check("string.rep('', 2 ^ 31)", &[nothing]);
    check("string.rep('', 2 ^ 36)", &[nothing]);
    check("string.rep('x', 2 ^ 31)", &["policy.lua:1: string.rep makes at most 1048576 bytes"]);
    check("string.rep('x', math.huge)", &["string.rep makes at most"]);
    check("table.move({}, 1, 2 ^ 31, 2)", &["policy.lua:1: table.move moves at most 100000 elements"]);
    check("table.move({}, 0/0, 2 ^ 31, 2)", &["table.move moves at most"]);
    check("table.concat({}, ',', 1, 2 ^ 30)", &["invalid value"]);
    check("local t = {} for i = 1, 150000 do table.insert(t, 1, i) end", &[STEPS, "too long"]);
    check(
        "local s = string.rep('a', 100000) local t = {} for i = 1, 1000 do t[i] = s .. i end table.sort(t)",
        &[MEMORY],
    );
}

#[test]
fn memory_has_an_end() {
    check("local s = 'x' while true do s = s .. s end", &[MEMORY]);
    check("local t = {} while true do t[#t + 1] = {} end", &[MEMORY, STEPS]);
    check("local t = {} for i = 1, 1e9 do t[i] = i end", &[MEMORY, STEPS]);
    check("local t = table.create(2 ^ 26, 1)", &[MEMORY, "too large"]);
    check(
        "local t = {} for i = 1, 100000 do t[i] = 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx' end while true do table.concat(t) end",
        &[MEMORY, STEPS, "too long"],
    );
    check("string.split(string.rep('a', 1000000), '')", &[MEMORY]);
    check("unpack({}, 1, 1e7)", &["too many results"]);
    check("string.byte(string.rep('x', 1000000), 1, -1)", &["too long"]);
}

#[test]
fn sources_cannot_overwhelm_the_compiler() {
    check_load(&"(".repeat(100_000), &["policy.lua:1:"]);
    check_load(&format!("return {}", "{".repeat(100_000)), &["policy.lua:1:"]);
    check_load(&format!("return {}1", "not ".repeat(50_000)), &["policy.lua:1:"]);
    check_load(&format!("return {}", "a.".repeat(100_000)), &["policy.lua:1:"]);
    check_load(&format!("return x{}", "..x".repeat(60_000)), &["policy.lua:1:"]);
    check_load(&format!("local x = {{{}}}", "1,".repeat(50_000)), &["must end with"]);
    check_load(&"x".repeat(300_000), &["is larger than 262144 bytes"]);
    check_load("\u{1b}Lua\u{0}\u{1}", &["policy.lua:1:"]);
}
