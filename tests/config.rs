//! The configuration file, from outside: every kind of fault with its whole message, and what a sound file starts.

#![expect(clippy::unwrap_used, reason = "a test may end at what it did not expect")]

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use insta::assert_snapshot;
use lazy_mcp_broker::config::{
    Config, InstanceContext, Package, ReviewMode, Surroundings, load, load_alone, powershell,
};
use lazy_mcp_broker::core::launch::Launch;
use tempfile::TempDir;

const MINIMAL: &str = r#"
[backends.demo]
command = "demo-server"
catalog = "demo.json"
policy = "demo.lua"
"#;

/// A directory with a configuration, and the files that `demo` names.
struct Place {
    dir: TempDir,
}

impl Place {
    fn new(toml: &str) -> Self {
        let place = Self { dir: TempDir::new().unwrap() };
        place.file("broker.toml", toml);
        place.file("demo.json", "{}");
        place.file("demo.lua", "");
        place
    }

    fn file(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).unwrap();
    }

    fn program(&self, name: &str) {
        self.file(name, "#!/bin/sh\n");
        std::fs::set_permissions(self.path(name), std::fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    #[track_caller]
    fn load(&self) -> Config {
        load(&self.path("broker.toml")).unwrap_or_else(|faults| panic!("{faults}"))
    }

    fn without_dir(&self, text: impl ToString) -> String {
        text.to_string().replace(&format!("{}/", self.dir.path().display()), "")
    }

    /// Starts `demo` with the directory itself as PATH.
    fn resolve(&self, env: &[(&str, &str)], is_root: bool) -> Result<Launch, String> {
        let config = self.load();
        let path = self.dir.path().to_str().unwrap();
        let env = env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let surroundings = Surroundings { env: env.chain([("PATH".into(), path.into())]).collect(), is_root };
        let launch = config.backends["demo"].resolve(&config.vars, &instance(), &surroundings);
        launch.map_err(|error| self.without_dir(error).replace(path, "DIR"))
    }
}

fn instance() -> InstanceContext {
    InstanceContext {
        instance_id: "i-7f".into(),
        generation: 3,
        instance_dir: "/nowhere/i-7f-3".into(),
        scope_key_hash: "beef".into(),
        marker: "lazy-mcp-i-7f-3".into(),
    }
}

#[track_caller]
fn faults(toml: &str) -> String {
    let place = Place::new(toml);
    match load(&place.path("broker.toml")) {
        Ok(_) => "no fault".into(),
        Err(faults) => place.without_dir(faults),
    }
}

/// The minimal file with more lines in `[backends.demo]`.
fn demo_with(lines: &str) -> String {
    format!("{MINIMAL}{lines}\n")
}

#[test]
fn every_fault_of_a_file_comes_at_once_in_the_order_of_lines() {
    let toml = r#"
[server]
lisen = "127.0.0.1:8788"
sessions_max = 0
[reviews]
[vars]
chromium = { first_off = ["/usr/bin/chromium"] }
[backends.Demo]
comand = "npx"
catalog = "missing.json"
policy = "missing.lua"
[backends.mcp]
command = "npx"
args = ["${chromum}", 5]
catalog = "demo.json"
policy = "demo.lua"
[backends.mcp.deadlines]
start_seconds = "60"
"#;
    assert_snapshot!(faults(toml), @r#"
    broker.toml:3: unknown key 'lisen' in [server] (did you mean 'listen'?)
    broker.toml:4: 'sessions_max' in [server] must be from 1 to 1000000, not 0
    broker.toml:5: unknown key 'reviews' (did you mean 'review'?)
    broker.toml:7: unknown key 'first_off' in 'chromium' in [vars] (did you mean 'first_of'?)
    broker.toml:8: 'Demo' in [backends] cannot be the name of a backend: use 1 to 32 of 'a' to 'z', '0' to '9' and '-', and no '-' first
    broker.toml:8: [backends.Demo] lacks 'command': the program to start, for example "npx"
    broker.toml:9: unknown key 'comand' in [backends.Demo] (did you mean 'command'?)
    broker.toml:10: 'catalog' in [backends.Demo] names `missing.json`, which does not exist: make it with `lazy-mcp catalog capture Demo`
    broker.toml:11: 'policy' in [backends.Demo] names `missing.lua`, which does not exist
    broker.toml:12: 'mcp' in [backends] cannot be the name of a backend: the broker answers on that path itself
    broker.toml:14: element 1 of 'args' in [backends.mcp] has a fault: unknown placeholder '${chromum}' (did you mean 'chromium'?)
    broker.toml:14: element 2 of 'args' in [backends.mcp] must be a string, not a whole number
    broker.toml:18: 'start_seconds' in [backends.mcp.deadlines] must be a number of seconds, not a string
    "#);
}

#[test]
fn unknown_keys_and_tables_get_the_nearest_name() {
    assert_snapshot!(faults("[sever]\n"), @"broker.toml:1: unknown key 'sever' (did you mean 'server'?)");
    assert_snapshot!(faults("[server]\nport = 1\n"), @"broker.toml:2: unknown key 'port' in [server] (known: body_bytes_max, drain_seconds, frame_bytes_max, listen, log, max_concurrent_starts, max_live_instances, session_ttl_hours, sessions_max, state_dir, worker_threads)");
    assert_snapshot!(faults(&demo_with("timeout = 1\n[backends.demo.deadlines]\nstop_second = 1")), @r"
    broker.toml:6: unknown key 'timeout' in [backends.demo] (known: args, catalog, command, cwd, deadlines, enabled, env, env_allow, ownership, package, policy, probe)
    broker.toml:8: unknown key 'stop_second' in [backends.demo.deadlines] (did you mean 'stop_seconds'?)
    ");
    assert_snapshot!(faults(&demo_with("[backends.demo.ownership]\nwindow = false\n[backends.demo.probe]\ntool = 't'\nargs = {}")), @r"
    broker.toml:7: unknown key 'window' in [backends.demo.ownership] (did you mean 'windows'?)
    broker.toml:10: unknown key 'args' in [backends.demo.probe] (known: arguments, expect, tool)
    ");
    assert_snapshot!(faults(&demo_with("package = { name = 'a', vers = '1' }")), @"broker.toml:6: [backends.demo.package] lacks 'version': its exact version");
    assert_snapshot!(faults(&demo_with("env = { A = { fil = 'x' } }")), @"broker.toml:6: unknown key 'fil' in 'A' in [backends.demo.env] (did you mean 'file'?)");
}

#[test]
fn missing_keys_say_what_belongs_there() {
    assert_snapshot!(faults("[backends.demo]\n"), @r#"
    broker.toml:1: [backends.demo] lacks 'command': the program to start, for example "npx"
    broker.toml:1: [backends.demo] lacks 'catalog': its catalog, for example "../catalogs/demo.json"
    broker.toml:1: [backends.demo] lacks 'policy': its policy, for example "../policies/demo.lua"
    "#);
    assert_snapshot!(faults(&demo_with("[backends.demo.probe]\n")), @"broker.toml:6: [backends.demo.probe] lacks 'tool': the tool to call");
}

#[test]
fn wrong_types_name_both() {
    assert_snapshot!(faults("server = 1\nbackends = []\n[vars]\na = 1\n"), @r#"
    broker.toml:1: 'server' must be a table, not a whole number
    broker.toml:2: 'backends' must be a table, not an array
    broker.toml:4: 'a' in [vars] must be a string, { first_of = [..] }, { env = "NAME" } or { as_root = "..", otherwise = ".." }
    "#);
    let toml = "[server]\nlisten = 8788\nstate_dir = true\nbody_bytes_max = '1'\ndrain_seconds = 'x'\nlog = []\n[review]\nmode = 1\n";
    assert_snapshot!(faults(toml), @r"
    broker.toml:2: 'listen' in [server] must be a string, not a whole number
    broker.toml:3: 'state_dir' in [server] must be a string, not true or false
    broker.toml:4: 'body_bytes_max' in [server] must be a whole number, not a string
    broker.toml:5: 'drain_seconds' in [server] must be a number of seconds, not a string
    broker.toml:6: 'log' in [server] must be a string, not an array
    broker.toml:8: 'mode' in [review] must be a string, not a whole number
    ");
    let lines =
        "enabled = 'yes'\nargs = 'x'\ncwd = 1\nenv_allow = [1, 'a b']\nenv = { A = 1, 'B C' = 'x' }\npackage = 'x'";
    assert_snapshot!(faults(&demo_with(lines)), @r#"
    broker.toml:6: 'enabled' in [backends.demo] must be true or false, not a string
    broker.toml:7: 'args' in [backends.demo] must be an array, not a string
    broker.toml:8: 'cwd' in [backends.demo] must be a string, not a whole number
    broker.toml:9: element 1 of 'env_allow' in [backends.demo] must be a string, not a whole number
    broker.toml:9: element 2 of 'env_allow' in [backends.demo] is "a b": write a name, or the start of names and a '*'
    broker.toml:10: 'A' in [backends.demo.env] must be a string, { env = "NAME" } or { file = "path" }
    broker.toml:10: 'B C' in [backends.demo.env] is no name for an environment variable
    broker.toml:11: 'package' in [backends.demo] must be a table, not a string
    "#);
    assert_snapshot!(faults(&demo_with("deadlines = 1\nownership = 1\nprobe = 1")), @r"
    broker.toml:6: 'deadlines' in [backends.demo] must be a table, not a whole number
    broker.toml:7: 'ownership' in [backends.demo] must be a table, not a whole number
    broker.toml:8: 'probe' in [backends.demo] must be a table, not a whole number
    ");
}

#[test]
fn numbers_out_of_range_name_the_range() {
    let toml = "[server]\nbody_bytes_max = 0\nframe_bytes_max = 99999999999\nsessions_max = -1\nsession_ttl_hours = 0\nworker_threads = 65\ndrain_seconds = -0.5\n";
    assert_snapshot!(faults(toml), @r"
    broker.toml:2: 'body_bytes_max' in [server] must be from 1024 to 1073741824, not 0
    broker.toml:3: 'frame_bytes_max' in [server] must be from 65536 to 1073741824, not 99999999999
    broker.toml:4: 'sessions_max' in [server] must be from 1 to 1000000, not -1
    broker.toml:5: 'session_ttl_hours' in [server] must be from 1 to 8760, not 0
    broker.toml:6: 'worker_threads' in [server] must be from 1 to 64, not 65
    broker.toml:7: 'drain_seconds' in [server] must be from 0 to 3600 seconds, not -0.5
    ");
    let lines =
        "[backends.demo.deadlines]\nstart_seconds = 0\ncall_seconds = 1e9\nstop_seconds = nan\npolite_seconds = 601";
    assert_snapshot!(faults(&demo_with(lines)), @r"
    broker.toml:7: 'start_seconds' in [backends.demo.deadlines] must be from 0.1 to 3600 seconds, not 0
    broker.toml:8: 'call_seconds' in [backends.demo.deadlines] must be from 0.1 to 86400 seconds, not 1e9
    broker.toml:9: 'stop_seconds' in [backends.demo.deadlines] must be from 0.1 to 600 seconds, not nan
    broker.toml:10: 'polite_seconds' in [backends.demo.deadlines] must be from 0 to 600 seconds, not 601
    ");
    assert_snapshot!(faults(&demo_with("[backends.demo.deadlines]\nstop_seconds = 2\npolite_seconds = 3")), @"broker.toml:8: 'polite_seconds' in [backends.demo.deadlines] is a part of 'stop_seconds' (2s) and cannot be longer");
}

#[test]
fn only_loopback_is_listened_on() {
    assert_snapshot!(faults("[server]\nlisten = '0.0.0.0:8788'\n"), @"broker.toml:2: 'listen' in [server] is 0.0.0.0, but the broker binds to loopback only: use 127.0.0.1 or [::1]");
    assert_snapshot!(faults("[server]\nlisten = '[::]:8788'\n"), @"broker.toml:2: 'listen' in [server] is ::, but the broker binds to loopback only: use 127.0.0.1 or [::1]");
    assert_snapshot!(faults("[server]\nlisten = '192.168.1.5:80'\n"), @"broker.toml:2: 'listen' in [server] is 192.168.1.5, but the broker binds to loopback only: use 127.0.0.1 or [::1]");
    assert_snapshot!(faults("[server]\nlisten = 'localhost:8788'\n"), @r#"broker.toml:2: 'listen' in [server] must be an address and a port such as "127.0.0.1:8788", not "localhost:8788""#);
    assert_snapshot!(faults("[server]\nlisten = '127.0.0.1'\n"), @r#"broker.toml:2: 'listen' in [server] must be an address and a port such as "127.0.0.1:8788", not "127.0.0.1""#);
    assert_eq!(faults("[server]\nlisten = '127.8.8.8:0'\n"), "no fault");
    assert_eq!(faults("[server]\nlisten = '[::1]:8788'\n"), "no fault");
}

#[test]
fn names_of_backends_are_path_segments_of_their_own() {
    assert_snapshot!(faults(&MINIMAL.replace("demo]", "admin]")), @"broker.toml:2: 'admin' in [backends] cannot be the name of a backend: the broker answers on that path itself");
    assert_snapshot!(faults(&MINIMAL.replace("demo]", "s]")), @"broker.toml:2: 's' in [backends] cannot be the name of a backend: the broker answers on that path itself");
    assert_snapshot!(faults(&MINIMAL.replace("demo]", "Demo]")), @"broker.toml:2: 'Demo' in [backends] cannot be the name of a backend: use 1 to 32 of 'a' to 'z', '0' to '9' and '-', and no '-' first");
    assert_snapshot!(faults(&MINIMAL.replace("demo]", "-demo]")), @"broker.toml:2: '-demo' in [backends] cannot be the name of a backend: use 1 to 32 of 'a' to 'z', '0' to '9' and '-', and no '-' first");
    assert_snapshot!(faults(&MINIMAL.replace("demo]", "'a b']")), @"broker.toml:2: 'a b' in [backends] cannot be the name of a backend: use 1 to 32 of 'a' to 'z', '0' to '9' and '-', and no '-' first");
    assert_snapshot!(faults(&MINIMAL.replace("demo]", &format!("{}]", "a".repeat(33)))), @"broker.toml:2: 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa' in [backends] cannot be the name of a backend: use 1 to 32 of 'a' to 'z', '0' to '9' and '-', and no '-' first");
    assert_eq!(faults(&MINIMAL.replace("demo]", &format!("{}]", "a".repeat(32)))), "no fault");
    assert_eq!(faults(&MINIMAL.replace("demo]", "0-x]")), "no fault");
}

#[test]
fn a_mount_can_be_there_once() {
    assert_snapshot!(faults(&format!("{MINIMAL}{MINIMAL}")), @r"
    broker.toml:7: 'demo' is there twice
    broker.toml:8: 'command' is there twice
    broker.toml:9: 'catalog' is there twice
    broker.toml:10: 'policy' is there twice
    ");
    assert_snapshot!(faults(&demo_with("policy = 'other.lua'\nunknown = 1")), @r"
    broker.toml:6: 'policy' is there twice
    broker.toml:7: unknown key 'unknown' in [backends.demo] (known: args, catalog, command, cwd, deadlines, enabled, env, env_allow, ownership, package, policy, probe)
    ");
}

#[test]
fn files_that_are_named_must_exist() {
    assert_snapshot!(faults(&MINIMAL.replace("demo.json", "catalogs/none.json").replace("demo.lua", "no/p.lua")), @r"
    broker.toml:4: 'catalog' in [backends.demo] names `catalogs/none.json`, which does not exist: make it with `lazy-mcp catalog capture demo`
    broker.toml:5: 'policy' in [backends.demo] names `no/p.lua`, which does not exist
    ");
    assert_snapshot!(faults(&MINIMAL.replace("demo.json", "~/demo.json").replace("demo.lua", "${dir}/p.lua")), @r"
    broker.toml:4: 'catalog' in [backends.demo] is taken as it is written: '~' and placeholders are not filled here
    broker.toml:5: 'policy' in [backends.demo] is taken as it is written: '~' and placeholders are not filled here
    ");
    assert_snapshot!(faults(&demo_with("env = { TOKEN = { file = 'token.txt' } }")), @"broker.toml:6: 'file' in 'TOKEN' in [backends.demo.env] names `token.txt`, which cannot be used: No such file or directory (os error 2)");
    let disabled = MINIMAL.replace("demo.json", "none.json") + "enabled = false\n";
    assert_eq!(faults(&disabled), "no fault");
}

#[test]
fn commands_that_read_no_catalogs_and_policies_do_not_ask_for_them() {
    let place =
        Place::new(&format!("{MINIMAL}\n[backends.new]\ncommand = 'x'\ncatalog = 'new.json'\npolicy = 'new.lua'\n"));
    assert!(load_alone(&place.path("broker.toml")).is_ok());
    assert!(load(&place.path("broker.toml")).is_err());
}

#[test]
fn placeholders_are_checked_before_anything_starts() {
    let toml = format!(
        "[vars]\nchromium = '/usr/bin/chromium'\n{MINIMAL}args = ['${{chromum}}', 'a${{', '${{env:A B}}', '$${{x}} ${{marker}}']\ncwd = '${{instance_dri}}/x'\nenv = {{ A = '${{generaton}}' }}\n"
    );
    assert_snapshot!(faults(&toml), @r"
    broker.toml:8: element 1 of 'args' in [backends.demo] has a fault: unknown placeholder '${chromum}' (did you mean 'chromium'?)
    broker.toml:8: element 2 of 'args' in [backends.demo] has a fault: placeholder '${' without its '}' (write '$${' for the characters themselves)
    broker.toml:8: element 3 of 'args' in [backends.demo] has a fault: '${env:A B}' names no environment variable (write '${env:NAME}')
    broker.toml:9: 'cwd' in [backends.demo] has a fault: unknown placeholder '${instance_dri}' (did you mean 'instance_dir'?)
    broker.toml:10: 'A' in [backends.demo.env] has a fault: unknown placeholder '${generaton}' (did you mean 'generation'?)
    ");
}

#[test]
fn vars_have_four_forms() {
    let toml = r#"
[vars]
generation = "1"
"a-b" = "x"
none = {}
two = { env = "A", first_of = ["/x"] }
half = { as_root = "x" }
empty = { first_of = [] }
relative = { first_of = ["bin/chromium"] }
number = { first_of = ["/x", 1] }
name = { env = "A B" }
nested = "${generation}"
near = { as_roots = "x", otherwise = "" }
"#;
    assert_snapshot!(faults(toml), @r#"
    broker.toml:3: 'generation' in [vars] is a placeholder that the broker fills itself: choose another name
    broker.toml:4: 'a-b' in [vars] can have letters, digits and '_' in its name, no digit first
    broker.toml:5: 'none' in [vars] must be a string, { first_of = [..] }, { env = "NAME" } or { as_root = "..", otherwise = ".." }
    broker.toml:6: 'two' in [vars] must be a string, { first_of = [..] }, { env = "NAME" } or { as_root = "..", otherwise = ".." }
    broker.toml:7: 'half' in [vars] must be a string, { first_of = [..] }, { env = "NAME" } or { as_root = "..", otherwise = ".." }
    broker.toml:8: 'first_of' in 'empty' in [vars] is empty: name at least one path
    broker.toml:9: 'first_of' in 'relative' in [vars] has "bin/chromium": write an absolute path, or a bare name to look up in PATH
    broker.toml:10: element 2 of 'first_of' in 'number' in [vars] must be a string, not a whole number
    broker.toml:11: 'env' in 'name' in [vars] is "A B", which is no name for an environment variable
    broker.toml:12: 'nested' in [vars] has a fault: '${generation}' cannot stand in [vars]: only '${env:NAME}' can
    broker.toml:13: unknown key 'as_roots' in 'near' in [vars] (did you mean 'as_root'?)
    "#);
}

#[test]
fn variables_of_the_broker_cannot_be_set() {
    assert_snapshot!(faults(&demo_with("env = { TMPDIR = '/tmp', LAZY_MCP_GENERATION = '1' }")), @r"
    broker.toml:6: 'LAZY_MCP_GENERATION' in [backends.demo.env] is set by the broker for every generation
    broker.toml:6: 'TMPDIR' in [backends.demo.env] is set by the broker for every generation
    ");
    assert_snapshot!(faults(&demo_with("env = { A = { env = 'X', file = 'y' }, B = {} }\nenv_allow = ['*', 'MY_*']")), @r#"
    broker.toml:6: 'A' in [backends.demo.env] must have exactly one of 'env' and 'file'
    broker.toml:6: 'B' in [backends.demo.env] must have exactly one of 'env' and 'file'
    broker.toml:7: element 1 of 'env_allow' in [backends.demo] is "*": write a name, or the start of names and a '*'
    "#);
}

#[test]
fn other_values_are_checked_too() {
    assert_snapshot!(faults("[review]\nmode = 'enforced'\n[server]\nlog = 'lazy_mcp=debug,inof'\n"), @r"
    broker.toml:2: 'mode' in [review] is 'enforced' (did you mean 'enforce'?)
    broker.toml:4: 'log' in [server] has the unknown level 'inof' (did you mean 'info'?)
    ");
    assert_snapshot!(faults(&demo_with("[backends.demo.ownership]\nmemory_max = 2048\npid_max = 10")), @r"
    broker.toml:7: unknown key 'memory_max' in [backends.demo.ownership] (did you mean 'memory_max_mb'?)
    broker.toml:8: unknown key 'pid_max' in [backends.demo.ownership] (did you mean 'pids_max'?)
    ");
    assert_snapshot!(faults(&demo_with("[backends.demo.ownership]\nmemory_max_mb = 0\npids_max = -1")), @r"
    broker.toml:7: 'memory_max_mb' in [backends.demo.ownership] must be from 16 to 4194304, not 0
    broker.toml:8: 'pids_max' in [backends.demo.ownership] must be from 4 to 4194304, not -1
    ");
    assert_snapshot!(faults(&demo_with("[backends.demo.ownership]\nmemory_max_mb = '2G'\npids_max = 1.5")), @r"
    broker.toml:7: 'memory_max_mb' in [backends.demo.ownership] must be a whole number, not a string
    broker.toml:8: 'pids_max' in [backends.demo.ownership] must be a whole number, not a number
    ");
    assert_snapshot!(faults(&demo_with("[backends.demo.probe]\ntool = 't'\nexpect = '(a'\narguments = { when = 2026-01-01, n = inf, list = [1, { big = 99999999999999999999 }] }")), @r"
    broker.toml:8: 'expect' in [backends.demo.probe] is no regular expression: unclosed group
    broker.toml:9: 'big' in element 2 of 'list' in 'arguments' in [backends.demo.probe] has the number 99999999999999999999, which is out of range
    broker.toml:9: 'n' in 'arguments' in [backends.demo.probe] has a number that JSON does not have
    broker.toml:9: 'when' in 'arguments' in [backends.demo.probe] has a date, which JSON does not have: write a string
    ");
    assert_snapshot!(faults(&demo_with("args = ['-y', 'a@1.0.0']\npackage = { name = 'a', version = '2.0.0' }")), @"broker.toml:7: [backends.demo.package] says a 2.0.0, but 'args' start a 1.0.0");
}

#[test]
fn what_is_no_toml_is_said_alone() {
    assert_snapshot!(faults("[server\nlisten = 1\n[backends]\nx = \n"), @r"
    broker.toml:1: unclosed table, expected `]`
    broker.toml:4: string values must be quoted, expected literal string
    ");
    let place = Place::new("");
    std::fs::write(place.path("broker.toml"), b"a = 1\nb = \"\xff\"\n").unwrap();
    assert_snapshot!(place.without_dir(load(&place.path("broker.toml")).unwrap_err()), @"broker.toml:2: is not UTF-8 text");
    assert_snapshot!(place.without_dir(load(&place.path("none.toml")).unwrap_err()), @"none.toml: cannot be read: No such file or directory (os error 2); name another file with `--config FILE`");
}

#[test]
fn an_unfinished_secret_does_not_show_in_the_fault() {
    let shown = faults(&demo_with("env = { TOKEN = \"hunter2\n }"));
    assert!(!shown.contains("hunter2"), "{shown}");
}

#[test]
fn defaults_are_those_of_the_documentation() {
    let place = Place::new(MINIMAL);
    let config = place.load();
    assert_eq!(config.server.listen.to_string(), "127.0.0.1:8788");
    assert_eq!((config.server.body_bytes_max, config.server.frame_bytes_max), (4_194_304, 67_108_864));
    assert_eq!((config.server.sessions_max, config.server.session_ttl.as_secs()), (10_000, 86_400));
    assert_eq!((config.server.worker_threads, config.server.drain.as_secs()), (None, 10));
    assert_eq!((config.server.log.as_str(), config.review), ("info", ReviewMode::Warn));
    let demo = &config.backends["demo"];
    let deadlines = demo.deadlines;
    let seconds = [deadlines.start, deadlines.call, deadlines.stop, deadlines.polite].map(|d| d.as_secs());
    assert_eq!(seconds, [60, 120, 10, 3]);
    assert!(demo.enabled && demo.probe.is_none() && demo.package().is_none());
    assert_eq!(place.without_dir(demo.catalog.display()), "demo.json");
}

#[test]
fn a_short_stop_shortens_the_polite_close_that_nobody_set() {
    let config = Place::new(&demo_with("[backends.demo.deadlines]\nstop_seconds = 0.5")).load();
    assert_eq!(config.backends["demo"].deadlines.polite, Duration::from_millis(500));
}

#[test]
fn relative_paths_start_at_the_configuration_file() {
    let place = Place::new("");
    std::fs::create_dir(place.path("config")).unwrap();
    let toml = format!("[server]\nstate_dir = '../state'\n{}", MINIMAL.replace("\"demo.", "\"../demo."));
    place.file("config/broker.toml", &toml);
    let config = load(&place.path("config/broker.toml")).unwrap();
    assert_eq!(place.without_dir(config.server.state_dir.display()), "state");
    assert_eq!(place.without_dir(config.backends["demo"].policy.display()), "demo.lua");
}

#[test]
fn a_probe_becomes_json() {
    let lines = "[backends.demo.probe]\ntool = 't'\nexpect = 'a.b'\narguments = { s = 'x', n = -3, f = 1.5, b = true, l = [1, { k = 'v' }] }";
    let config = Place::new(&demo_with(lines)).load();
    let probe = config.backends["demo"].probe.clone().unwrap();
    let arguments = serde_json::Value::Object(probe.arguments);
    assert_eq!(arguments, serde_json::json!({"b": true, "f": 1.5, "l": [1, {"k": "v"}], "n": -3, "s": "x"}));
    assert!(probe.expect.unwrap().is_match("--a b--"));
}

#[test]
fn a_launch_is_complete_and_inherits_nothing_else() {
    let lines = r#"
args = ["--dir", "${instance_dir}/p", "${gone}", "${extra}", "--g=${generation}", "${marker}", "$${x}", "--h=${gone}"]
env_allow = ["MY_*"]
env = { A = "v-${scope_key_hash}", B = { env = "SOURCE" }, C = { file = "secret.txt" }, LANG = "C" }
"#;
    let vars = "[vars]\ngone = { as_root = '--no-sandbox', otherwise = '' }\nextra = { env = 'EXTRA' }\n";
    let place = Place::new("");
    place.file("secret.txt", "s3cret\n");
    place.file("broker.toml", &format!("{vars}{}", demo_with(lines)));
    place.program("demo-server");
    let env = [("SOURCE", "from"), ("EXTRA", "x y"), ("MY_1", "1"), ("LANG", "en"), ("HOME", "/h"), ("AWS_KEY", "no")];
    let launch = place.resolve(&env, false).unwrap();
    assert_eq!(place.without_dir(launch.program.display()), "demo-server");
    let args = ["--dir", "/nowhere/i-7f-3/p", "x y", "--g=3", "lazy-mcp-i-7f-3", "${x}", "--h="];
    assert_eq!(launch.args, args);
    assert_eq!(launch.cwd, Path::new("/nowhere/i-7f-3"));
    let expected = [
        ("A", "v-beef"),
        ("B", "from"),
        ("C", "s3cret"),
        ("HOME", "/h"),
        ("LANG", "C"),
        ("LAZY_MCP_GENERATION", "3"),
        ("LAZY_MCP_INSTANCE_ID", "i-7f"),
        ("MY_1", "1"),
        ("PATH", place.dir.path().to_str().unwrap()),
        ("TMPDIR", "/nowhere/i-7f-3"),
    ];
    let expected: BTreeMap<String, String> = expected.map(|(name, value)| (name.into(), value.into())).into();
    assert_eq!(launch.env, expected);
    assert_eq!(place.resolve(&env, true).unwrap().args[2], "--no-sandbox");
    assert!(!format!("{launch:?} {:?}", place.load()).contains("s3cret"));
}

#[test]
fn an_argument_that_is_empty_in_the_file_stays() {
    let place = Place::new(&demo_with("args = ['', 'a']"));
    place.program("demo-server");
    assert_eq!(place.resolve(&[], false).unwrap().args, ["", "a"]);
}

#[test]
fn the_first_candidate_that_exists_is_taken() {
    let place = Place::new("");
    let vars = "[vars]\nbin = { first_of = ['${env:UNSET}/x', '/nowhere/b', 'bare-name', '/'] }\n";
    place.file("broker.toml", &format!("{vars}{}", demo_with("args = ['${bin}']")));
    place.program("demo-server");
    assert_eq!(place.resolve(&[], false).unwrap().args, ["/"]);
    place.program("bare-name");
    let args = place.resolve(&[], false).unwrap().args;
    assert_eq!(place.without_dir(&args[0]), "bare-name");
}

#[test]
fn everything_that_is_missing_for_a_start_is_said() {
    let vars = "[vars]\nchromium = { first_of = ['/nowhere/chromium', 'chromium'] }\nother = { first_of = ['${env:NOPE}/x'] }\ntoken = { env = 'TOKEN' }\n";
    let lines = "args = ['${chromium}', '${other}', '${token}', '${chromium}']\ncwd = 'none'\nenv = { A = { env = 'NOT_SET' }, B = '${env:NOT_THERE}' }";
    let place = Place::new(&format!("{vars}{}", demo_with(lines).replace("demo-server", "npx")));
    assert_snapshot!(place.resolve(&[], false).unwrap_err().replace("; ", ";\n"), @r"
    environment variable `NOT_SET` is not set, but `A` of `env` takes its value from there;
    environment variable `NOT_THERE` is not set, but `B` of `env` takes its value from there;
    for `${chromium}` none of /nowhere/chromium, chromium exists;
    install Chromium (`apt-get install chromium`) or set `[vars] chromium`;
    for `${other}` none of ${env:NOPE}/x exists;
    install one or set `[vars] other`;
    environment variable `TOKEN` is not set, but `token` of [vars] takes its value from there;
    working directory `none` does not exist;
    create it or change `cwd`;
    looked for `npx` in PATH (DIR): not found;
    install Node.js 20.19 or newer or set `command` to where it is
    ");
}

#[test]
fn programs_are_told_how_to_come_by() {
    let message = |command: &str| {
        let place = Place::new(&MINIMAL.replace("demo-server", command));
        place.resolve(&[], false).unwrap_err()
    };
    assert_snapshot!(message("npx"), @"looked for `npx` in PATH (DIR): not found; install Node.js 20.19 or newer or set `command` to where it is");
    assert_snapshot!(message("uvx"), @"looked for `uvx` in PATH (DIR): not found; install uv or set `command` to where it is");
    assert_snapshot!(message("my-server"), @"looked for `my-server` in PATH (DIR): not found; install it or set `command` to where it is");
    assert_snapshot!(message("./bin/my-server"), @"`bin/my-server` is no file that can be executed; install it or set `command` to where it is");
    // There, but not executable.
    assert_snapshot!(message("./demo.lua"), @"`demo.lua` is no file that can be executed; install it or set `command` to where it is");
}

#[test]
fn a_secret_that_went_away_is_said_at_the_start() {
    let place = Place::new("");
    place.file("token", "x");
    place.file("broker.toml", &demo_with("env = { TOKEN = { file = 'token' } }"));
    place.program("demo-server");
    let config = place.load();
    std::fs::remove_file(place.path("token")).unwrap();
    let error = config.backends["demo"].resolve(&config.vars, &instance(), &Surroundings::default()).unwrap_err();
    assert!(place.without_dir(error).starts_with("secret for `TOKEN` cannot be read from `token`: No such file"));
}

#[test]
fn a_relative_command_starts_at_the_configuration_file() {
    let place = Place::new(&MINIMAL.replace("demo-server", "./demo-server"));
    place.program("demo-server");
    let program = place.resolve(&[], false).unwrap().program;
    assert!(program.is_absolute() && program.is_file());
}

#[test]
fn the_package_comes_from_the_arguments_or_is_declared() {
    let package = |lines: &str| Place::new(&demo_with(lines)).load().backends["demo"].package();
    let demo = Package { name: "demo-mcp".into(), version: "1.2.3".into() };
    assert_eq!(package("args = ['-y', 'demo-mcp@1.2.3', 'server']"), Some(demo.clone()));
    assert_eq!(package("package = { name = 'demo-mcp', version = '1.2.3' }"), Some(demo));
    assert_eq!(package("args = ['demo-mcp@latest']"), None);
}

#[test]
fn a_fingerprint_is_what_a_process_is_made_of() {
    let base = "[vars]\nused = 'a'\nunused = 'b'\n[backends.demo]\ncommand = 'x'\nargs = ['${used}']\ncatalog = 'demo.json'\npolicy = 'demo.lua'\nenv = { A = 'secret', F = { file = 'token' } }\n";
    let place = Place::new("");
    place.file("token", "one");
    let of = |toml: &str, scope: &str, package: &str, version: &str| {
        place.file("broker.toml", toml);
        let config = place.load();
        config.backends["demo"].fingerprint(&config.vars, scope, package, version)
    };
    let same = |toml: &str| of(toml, "session", "p", "1");
    let original = same(base);
    for live in [
        base.to_owned(),
        base.replace("unused = 'b'", "unused = 'c'"),
        format!("{base}[backends.demo.deadlines]\nstart_seconds = 5\n"),
        format!("{base}[backends.demo.probe]\ntool = 'x'\n"),
        base.replace("'demo.lua'", "'demo.json'"),
        format!("[server]\nlisten = '127.0.0.1:1'\n{base}"),
    ] {
        assert_eq!(same(&live), original, "{live}");
    }
    let windows = base.replace("['${used}']", "['${used}', '${marker}']")
        + "[backends.demo.ownership]\nwindows = true\npowershell = 'a.exe'\n";
    assert_ne!(same(&windows), same(&windows.replace("a.exe", "b.exe")));
    for process in [
        base.replace("command = 'x'", "command = 'y'"),
        base.replace("['${used}']", "['${used}', 'b']"),
        base.replace("used = 'a'\nun", "used = 'z'\nun"),
        base.replace("A = 'secret'", "A = 'other'"),
        base.replace("A = 'secret'", "AA = 'secret'"),
        base.replace("A = 'secret'", "A = { env = 'secret' }"),
        format!("{base}cwd = '/'\n"),
        format!("{base}env_allow = ['X']\n"),
        format!("{base}[backends.demo.ownership]\nmemory_max_mb = 64\n"),
        format!("{base}[backends.demo.ownership]\npids_max = 64\n"),
        windows,
    ] {
        assert_ne!(same(&process), original, "{process}");
    }
    assert_ne!(of(base, "singleton", "p", "1"), original);
    assert_ne!(of(base, "session", "q", "1"), original);
    assert_ne!(of(base, "session", "p", "2"), original);
    place.file("token", "two");
    assert_ne!(same(base), original);
}

#[test]
fn a_windows_side_needs_its_marker_on_a_command_line() {
    let faults =
        |args: &str, ownership: &str| faults(&demo_with(&format!("{args}\n[backends.demo.ownership]\n{ownership}")));
    let marked = r"args = ['--user-data-dir=C:\Temp\${marker}']";
    assert_eq!(faults(marked, "windows = true\npowershell = 'powershell.exe'"), "no fault");
    assert_eq!(faults("env = { PROFILE = '${marker}' }", "windows = true"), "no fault");
    assert_eq!(faults("", "windows = false"), "no fault");
    assert_snapshot!(faults("args = ['-y', '$${marker}']", "windows = true"), @"broker.toml:8: 'windows' in [backends.demo.ownership] is of no use: nothing on the Windows side would carry the marker; put ${marker} into 'args', for example as the end of the browser's profile directory");
    assert_snapshot!(faults("args = ['${markr}']", "windows = true"), @"broker.toml:6: element 1 of 'args' in [backends.demo] has a fault: unknown placeholder '${markr}' (did you mean 'marker'?)");
    assert_snapshot!(faults(marked, "window = true\nwindows = 1"), @r"
    broker.toml:8: unknown key 'window' in [backends.demo.ownership] (did you mean 'windows'?)
    broker.toml:9: 'windows' in [backends.demo.ownership] must be true or false, not a whole number
    ");
    assert_snapshot!(faults(marked, "windows = true\npowershell = '${instance_dir}/powershell.exe'"), @"broker.toml:9: 'powershell' in [backends.demo.ownership] cannot depend on an instance: leftovers of any are asked for with it");
    assert_snapshot!(faults("", "powershell = 'pwsh'"), @"broker.toml:8: 'powershell' in [backends.demo.ownership] is of no use without windows = true");
    assert_snapshot!(faults(marked, "windows = true\npowershell = ''"), @"broker.toml:9: 'powershell' in [backends.demo.ownership] is empty: name the program, or leave it out");
}

/// What is asked about Windows is a program of the configuration or a well-known one, and always an absolute path.
#[test]
fn powershell_is_looked_up_when_a_backend_starts() {
    let with = |ownership: &str| {
        let toml =
            demo_with(&format!("args = ['${{marker}}']\n[backends.demo.ownership]\nwindows = true\n{ownership}"));
        Place::new(&format!("{toml}[vars]\nposh = {{ first_of = ['/nowhere/posh.exe', 'posh.exe'] }}\n"))
    };
    let find = |place: &Place, name: &str, path: &str| {
        let config = place.load();
        let surroundings = Surroundings { env: [("PATH".into(), path.into())].into(), is_root: false };
        let found = powershell(config.backends.get(name), &config.vars, &surroundings);
        found.map(|path| path.display().to_string()).map_err(|error| error.to_string())
    };
    let dir = |place: &Place| place.dir.path().to_str().unwrap().to_owned();
    let place = with("");
    assert_snapshot!(find(&place, "demo", "/nowhere").unwrap_err(), @"looked for `powershell.exe` in PATH (/nowhere, /mnt/c/Windows/System32/WindowsPowerShell/v1.0): not found; name it by `powershell` in `ownership`, or set `windows = false` outside of WSL");
    place.program("powershell.exe");
    assert_eq!(find(&place, "demo", &dir(&place)), Ok(format!("{}/powershell.exe", dir(&place))));
    assert_eq!(find(&place, "forgotten", &dir(&place)), Ok(format!("{}/powershell.exe", dir(&place))));
    let place = with("powershell = './posh.exe'");
    assert!(find(&place, "demo", "/nowhere").unwrap_err().contains("posh.exe` is no file that can be executed"));
    place.program("posh.exe");
    assert_eq!(find(&place, "demo", "/nowhere"), Ok(format!("{}/posh.exe", dir(&place))));
    let place = with("powershell = '${posh}'");
    assert!(
        find(&place, "demo", "/nowhere")
            .unwrap_err()
            .contains("for `${posh}` none of /nowhere/posh.exe, posh.exe exists")
    );
    place.program("posh.exe");
    assert_eq!(find(&place, "demo", &dir(&place)), Ok(format!("{}/posh.exe", dir(&place))));
}

#[test]
fn the_file_for_wsl_has_every_path_of_the_machine_in_vars_and_marks_its_browsers() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/config/wsl-chrome.toml");
    let text = std::fs::read_to_string(path).unwrap();
    let code: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
    let backends = code.iter().position(|line| line.starts_with("[backends.")).unwrap();
    let has_path = |line: &&&str| line.contains("/mnt/") || line.contains(":\\") || line.contains(".exe\"");
    assert_eq!(code[backends..].iter().filter(has_path).count(), 0);
    let place =
        Place::new(&text.replace("\"/mnt/c/Program Files/nodejs/node.exe\", ", "").replace("/mnt/c/Users/Public", "/"));
    place.program("node.exe");
    let text = std::fs::read_to_string(place.path("broker.toml")).unwrap();
    place.file("broker.toml", &text.replace("../catalogs/", "").replace("../policies/", ""));
    for name in ["playwright", "chrome-devtools"] {
        place.file(&format!("{name}.json"), "{}");
        place.file(&format!("{name}.lua"), "");
    }
    let config = place.load();
    let dir = place.dir.path().to_str().unwrap();
    let env = [("PATH", dir), ("WINDOWS_TEMP", r"C:\Users\me\AppData\Local\Temp")];
    let env: BTreeMap<_, _> = env.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    let args = |name: &str| {
        let surroundings = Surroundings { env: env.clone(), is_root: false };
        let marked = InstanceContext { marker: format!("lazy-mcp\\{name}-0a-3"), ..instance() };
        let launch = config.backends[name].resolve(&config.vars, &marked, &surroundings).unwrap();
        assert_eq!(launch.program, place.path("node.exe"));
        launch.args.join(" ")
    };
    assert_snapshot!(args("playwright"), @r"C:\Program Files\nodejs\node_modules\npm\bin\npx-cli.js --yes --prefer-offline @playwright/mcp@0.0.79 --executable-path C:\Program Files\Google\Chrome\Application\chrome.exe --user-data-dir C:\Users\me\AppData\Local\Temp\lazy-mcp\playwright-0a-3");
    assert_snapshot!(args("chrome-devtools"), @r"C:\Program Files\nodejs\node_modules\npm\bin\npx-cli.js --yes --prefer-offline chrome-devtools-mcp@1.8.0 --executablePath C:\Program Files\Google\Chrome\Application\chrome.exe --userDataDir C:\Users\me\AppData\Local\Temp\lazy-mcp\chrome-devtools-0a-3 --no-usage-statistics --no-performance-crux");
}

#[test]
fn the_shipped_file_is_sound_and_pins_its_packages() {
    let text = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/config/broker.toml")).unwrap();
    let place = Place::new("");
    for dir in ["config", "catalogs", "policies"] {
        std::fs::create_dir(place.path(dir)).unwrap();
    }
    place.file("config/broker.toml", &text);
    for name in ["playwright", "chrome-devtools", "agentation"] {
        place.file(&format!("catalogs/{name}.json"), "");
        place.file(&format!("policies/{name}.lua"), "");
    }
    let config = load(&place.path("config/broker.toml")).unwrap_or_else(|faults| panic!("{faults}"));
    let packages: Vec<String> =
        config.enabled().map(|backend| format!("{}: {}", backend.name, backend.package().unwrap())).collect();
    assert_eq!(
        packages,
        [
            "agentation: agentation-mcp 1.2.0",
            "chrome-devtools: chrome-devtools-mcp 1.8.0",
            "playwright: @playwright/mcp 0.0.79"
        ]
    );
    assert!(config.enabled().all(|backend| backend.probe.is_some()));
}

/// As root Chrome DevTools gets `--no-sandbox`, as a user it gets no empty argument in its place.
#[test]
fn the_shipped_file_starts_as_root_and_as_a_user() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/config/broker.toml");
    let text = std::fs::read_to_string(path).unwrap().replace("\"/usr/bin/chromium\"", "\"/bin/sh\"");
    let place = Place::new("");
    std::fs::create_dir(place.path("config")).unwrap();
    // Only how it starts is looked at, so the files beside it need not be there.
    place.file("config/broker.toml", &text.replace("command = \"npx\"", "command = \"npx\"\nenabled = false"));
    place.program("npx");
    let config = load(&place.path("config/broker.toml")).unwrap_or_else(|faults| panic!("{faults}"));
    let args = |name: &str, is_root: bool| {
        let env = [("PATH".to_owned(), place.dir.path().to_str().unwrap().to_owned())].into();
        let backend = &config.backends[name];
        backend.resolve(&config.vars, &instance(), &Surroundings { env, is_root }).unwrap().args.join(" ")
    };
    assert_snapshot!(args("playwright", false), @"-y @playwright/mcp@0.0.79 --headless --isolated --executable-path /bin/sh");
    assert_snapshot!(args("chrome-devtools", false), @"-y chrome-devtools-mcp@1.8.0 --headless --isolated --executablePath /bin/sh --no-usage-statistics --no-performance-crux");
    assert_snapshot!(args("chrome-devtools", true), @"-y chrome-devtools-mcp@1.8.0 --headless --isolated --executablePath /bin/sh --chromeArg=--no-sandbox --no-usage-statistics --no-performance-crux");
    assert_snapshot!(args("agentation", true), @"-y agentation-mcp@1.2.0 server");
}
