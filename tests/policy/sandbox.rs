//! What a policy can see and touch. Each check is an assertion in Lua: the file fails at it or for returning nothing.

use std::fs;
use std::os::unix::fs::symlink;

use crate::{directory_with, faults, faults_in};

const NOTHING_RETURNED: &str = "policy.lua: policy must end with 'return broker.backend { … }'";

#[track_caller]
fn check_holds(chunk: &str) {
    assert_eq!(faults(chunk), NOTHING_RETURNED, "{chunk}");
}

#[track_caller]
fn check_fails(chunk: &str, expected: &str) {
    let found = faults(chunk);
    assert!(found.contains(expected), "{chunk}\n{found}");
}

#[test]
fn only_harmless_names_exist() {
    for name in [
        "require",
        "io",
        "os",
        "package",
        "debug",
        "coroutine",
        "buffer",
        "vector",
        "integer",
        "getfenv",
        "setfenv",
        "load",
        "loadstring",
        "dofile",
        "loadfile",
        "pcall",
        "xpcall",
        "print",
        "newproxy",
        "collectgarbage",
        "gcinfo",
        "_G",
        "shared",
        "math.random",
        "math.randomseed",
        "string.dump",
    ] {
        let (table, field) = name.split_once('.').unwrap_or(("", name));
        match table {
            "" => check_fails(
                &format!("local x = {field}"),
                &format!("policy.lua:1: unknown name '{field}': policies see"),
            ),
            _ => check_holds(&format!("assert({name} == nil)")),
        }
    }
    for name in ["string.format", "table.freeze", "math.floor", "bit32.band", "utf8.char", "tostring", "setmetatable"] {
        check_holds(&format!("assert({name} ~= nil)"));
    }
}

#[test]
fn libraries_cannot_be_poisoned() {
    for attack in [
        "string.rep = nil",
        "string.format = function() return 'evil' end",
        "rawset(string, 'format', 1)",
        "getmetatable('').__index = {}",
        "getmetatable('').__index.rep = nil",
        "setmetatable(string, {})",
        "broker.backend = nil",
        "rawset(broker, 'x', 1)",
        "table.insert(math, 1)",
    ] {
        check_fails(attack, "policy.lua:1: ");
    }
}

#[test]
fn wrapped_functions_keep_their_meaning() {
    for holds in [
        "local a, b = string.find('hello', 'l') assert(a == 3 and b == 3)",
        "local a, b = ('hello'):find('l+') assert(a == 3 and b == 4)",
        "local a, b, c = string.find('hello', '(l+)') assert(c == 'll')",
        "local a, b = string.find('a.b', '.', 1, true) assert(a == 2 and b == 2)",
        "assert(string.find('hello', 'x') == nil)",
        "assert(string.find('hello', 'l', 4) == 4 and string.find('hello', 'h', 2) == nil)",
        "assert(string.find('hello', 'l', -2) == 4 and string.find('hello', 'l', -99) == 3)",
        "local a, b = string.find('hello', '') assert(a == 1 and b == 0)",
        "assert(string.find('hello', '', 6) == 6 and string.find('hello', '', 7) == nil)",
        "assert(string.find('a%b', '%%') == 2 and string.find('hello', '^h') == 1)",
        "assert(string.find(12345, 3) == 3)",
        "local t = string.split('a,b,,c') assert(#t == 4 and t[3] == '' and t[4] == 'c')",
        "local t = string.split('a--b', '--') assert(#t == 2 and t[2] == 'b')",
        "local t = string.split('abc', '') assert(#t == 3 and t[3] == 'c')",
        "assert(string.rep('ab', 3) == 'ababab' and string.rep('x', 0) == '' and string.rep('x', -1) == '')",
        "local t = table.move({1, 2, 3}, 2, 3, 1) assert(t[1] == 2 and t[2] == 3 and t[3] == 3)",
        "local t = table.move({1, 2}, 1, 2, 2, {9}) assert(t[1] == 9 and t[3] == 2)",
    ] {
        check_holds(holds);
    }
}

#[test]
fn loads_share_nothing() {
    let chunk = "left = 1 assert(left == 1)";
    check_holds(chunk);
    check_fails("assert(left == nil)", "unknown name 'left'");
}

#[test]
fn imports_stay_below_the_directory() {
    let import = |name: &str| format!("broker.import({name:?})");
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("x.lua"), "return 1").unwrap();
    for name in ["../x", "lib/../../x", "/etc/passwd", "./x", "", "lib\\x", "x\0"] {
        check_fails(&import(name), "the name must be a plain path below the policy's directory");
    }
    check_fails(&import(&outside.path().join("x").display().to_string()), "plain path");
    for (link, target) in [("file.lua", outside.path().join("x.lua")), ("dir", outside.path().to_owned())] {
        let directory = directory_with(&import(if link == "dir" { "dir/x" } else { "file" }));
        symlink(target, directory.path().join(link)).unwrap();
        let found = faults_in(&directory);
        assert!(found.contains("a symbolic link leads out of the policy's directory"), "{found}");
    }
}

#[test]
fn imports_run_once_and_are_frozen_in_the_digest() {
    let directory = directory_with(
        r#"
        local a, b = broker.import("lib/names"), broker.import("lib/names")
        assert(a == b and a[1] == "x")
        return broker.backend { api = 1, scope = a.scope }
        "#,
    );
    fs::create_dir(directory.path().join("lib")).unwrap();
    let library = directory.path().join("lib/names.lua");
    fs::write(&library, "return { 'x', scope = 'singleton' }").unwrap();
    let path = directory.path().join("policy.lua");
    let first = lazy_mcp_broker::policy::load(&path).unwrap();
    assert_eq!(first.files.iter().map(|(path, _)| path.clone()).collect::<Vec<_>>(), [path.clone(), library.clone()]);
    assert_eq!(lazy_mcp_broker::policy::load(&path).unwrap().digest, first.digest);
    fs::write(&library, "return { 'x', scope = 'singleton' } -- changed").unwrap();
    let second = lazy_mcp_broker::policy::load(&path).unwrap();
    assert_ne!(second.digest, first.digest);
    assert_eq!(second.files[0], first.files[0]);
}

#[test]
fn faults_of_imports_name_their_file() {
    let directory = directory_with("local a = broker.import('a')");
    for (text, expected) in [
        ("\nreturn broker.limit_text { max = 1 }", "a.lua:2: unknown field 'max' in broker.limit_text"),
        ("\n\nerror('no')", "a.lua:3: no"),
        ("\nlocal = 1", "a.lua:2: Expected identifier"),
        ("return broker.import('a')", "a.lua:1: import \"a\" goes round in a circle"),
        ("return broker.import('b')", "a.lua:1: cannot import \"b\": b.lua: No such file"),
        ("return broker.import('lib/b')", "a.lua:1: cannot import \"lib/b\": lib/b.lua: No such file"),
        ("local names = {}", "policy.lua:1: cannot import \"a\": a.lua returns nothing: end it with 'return …'"),
    ] {
        fs::write(directory.path().join("a.lua"), text).unwrap();
        let found = faults_in(&directory);
        assert!(found.contains(expected), "{text}\n{found}");
    }
}

#[test]
fn only_regular_files_are_read() {
    let directory = tempfile::tempdir().unwrap();
    fs::create_dir(directory.path().join("policy.lua")).unwrap();
    assert_eq!(faults_in(&directory), "policy.lua: is not a regular file");
    let directory = tempfile::tempdir().unwrap();
    assert!(faults_in(&directory).starts_with("policy.lua: cannot read the policy: No such file"));
    let pipe = directory.path().join("policy.lua");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    assert_eq!(faults_in(&directory), "policy.lua: is not a regular file");
}
