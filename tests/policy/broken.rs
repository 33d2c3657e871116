//! What an operator reads when a policy is wrong: every fault at once, each at its own line.

use insta::assert_snapshot;

use crate::faults;

/// The fields of a backend that is otherwise fine, from line 4.
fn backend(fields: &str) -> String {
    format!("return broker.backend {{\n  api = 1,\n  scope = \"session\",\n{fields}\n}}")
}

#[test]
fn unknown_fields_are_named_with_the_nearest_known() {
    assert_snapshot!(faults(&backend("  idle_timeout = 5,")), @r#"policy.lua:4: unknown field 'idle_timeout' in broker.backend (did you mean 'idle_timeout_seconds'?)"#);
    assert_snapshot!(faults(&backend("  queue = {\n    limt = 5,\n    [\"wait\"] = 1 },")), @r#"
policy.lua:5: unknown field 'limt' in queue (did you mean 'limit'?)
policy.lua:6: unknown field 'wait' in queue (did you mean 'wait_seconds'?)
"#);
    assert_snapshot!(faults(&backend("  tools = { settings = {\n   x = {\n    deadline = 5 } } },")), @r#"policy.lua:6: unknown field 'deadline' in tools.settings.x (did you mean 'deadline_seconds'?)"#);
    assert_snapshot!(faults(&backend("  results = { broker.rewrite_uri {\n    form_prefix = 'a', to_prefix = 'b' } },")), @r#"
policy.lua:4: broker.rewrite_uri needs the field 'from_prefix'
policy.lua:5: unknown field 'form_prefix' in broker.rewrite_uri (did you mean 'from_prefix'?)
"#);
    assert_snapshot!(faults(&backend("  'stray', 7,")), @r#"
policy.lua:4: broker.backend takes named fields only, got an unnamed string
policy.lua:4: broker.backend takes named fields only, got an unnamed number
"#);
}

#[test]
fn what_belongs_elsewhere_is_sent_there() {
    assert_snapshot!(faults(&backend("  launch = { command = {} },\n  name = 'x',")), @r#"
policy.lua:4: 'launch' does not belong into a policy: processes are configured in broker.toml
policy.lua:5: 'name' does not belong into a policy: processes are configured in broker.toml
"#);
}

#[test]
fn hooks_are_checked() {
    assert_snapshot!(faults(&backend("  on_call = {\n    x = 5,\n    ['a['] = function() end },\n  on_result = 7,\n  scope_key = 'x',\n  isolate = 'yes',")), @r#"
policy.lua:5: 'on_call.x' must be a function, got 5
policy.lua:6: 'on_call' is not a valid pattern: unclosed character class; missing ']'
policy.lua:7: 'on_result' must be a table, got 7
policy.lua:8: 'scope_key' must be a function, got "x"
policy.lua:9: 'isolate' must be true or false, got "yes"
"#);
    assert_snapshot!(faults("return broker.backend { api = 1,\n scope = 'singleton',\n scope_key = function() end }"), @r#"policy.lua:3: 'scope_key' has no meaning with scope "singleton""#);
    assert_snapshot!(faults("return broker.backend { api = 1,\n on_calls = {} }"), @r#"
policy.lua:1: broker.backend needs the field 'scope'
policy.lua:2: unknown field 'on_calls' in broker.backend (did you mean 'on_call'?)
"#);
}

#[test]
fn values_are_checked() {
    assert_snapshot!(faults(&backend("  idle_timeout_seconds = -1,\n  max_concurrency = 1.5,\n  queue = 7,")), @r#"
policy.lua:4: 'idle_timeout_seconds' must be a number of seconds from 0 to 86400, got -1
policy.lua:5: 'max_concurrency' must be a whole number from 1 to 1024, got 1.5
policy.lua:6: 'queue' must be a table, got 7
"#);
    assert_snapshot!(faults(&backend("  queue = {\n    limit = '32',\n    wait_seconds = 0/0 },\n  on_cancel = { action = 'kill' },")), @r#"
policy.lua:5: 'queue.limit' must be a whole number from 1 to 10000, got "32"
policy.lua:6: 'queue.wait_seconds' must be a number of seconds from 1 to 3600, got NaN
policy.lua:7: 'on_cancel.action' must be "recycle" or "keep", got "kill"
"#);
    assert_snapshot!(faults(&backend("  on_cancel = {},\n  max_concurrency = 0,")), @r#"
policy.lua:4: on_cancel needs the field 'action'
policy.lua:5: 'max_concurrency' must be a whole number from 1 to 1024, got 0
"#);
    assert_snapshot!(faults(&backend("  tools = { drift = 'ignore',\n    allow = 'x',\n    exclude = { 'a',\n      5, '', 'b[' } },")), @r#"
policy.lua:4: 'tools.drift' must be "refuse" or "warn", got "ignore"
policy.lua:5: 'tools.allow' must be a list, got "x"
policy.lua:7: 'tools.exclude[2]' must be a string that is not empty, got 5
policy.lua:7: 'tools.exclude[3]' must be a string that is not empty, got ""
policy.lua:7: 'tools.exclude[4]' is not a valid pattern: unclosed character class; missing ']'
"#);
    assert_snapshot!(faults(&backend("  tools = { settings = {\n    ['x*'] = 5,\n    y = { arguments = { u = 'http' } } } },")), @r#"
policy.lua:5: 'tools.settings.x*' must be a table, got 5
policy.lua:6: 'tools.settings.y.arguments.u' must be an argument rule such as broker.url_rule, got "http"
"#);
    assert_snapshot!(faults(&backend("  results = {\n    broker.default(1),\n    5 },")), @r#"
policy.lua:5: 'results[1]' must be a result rule such as broker.redact_keys, got rule
policy.lua:6: 'results[2]' must be a result rule such as broker.redact_keys, got 5
"#);
    assert_snapshot!(faults(&backend("  results = {},\n  tools = { allow = { x = 1 } },")), @r#"policy.lua:5: 'tools.allow' must be a list, got table"#);
}

#[test]
fn rules_are_checked() {
    let results = |rules: &str| faults(&backend(&format!("  results = {{\n{rules} }},")));
    let argument = |rule: &str| {
        faults(&backend(&format!("  tools = {{ settings = {{ x = {{ arguments = {{\n u = {rule} }} }} }} }},")))
    };
    assert_snapshot!(results("broker.redact_keys {},\nbroker.redact_keys { keys = {} },\nbroker.redact_headers_in_text { names = { 'a b' } }"), @r#"
policy.lua:5: broker.redact_keys needs the field 'keys'
policy.lua:6: 'keys' must name at least one
policy.lua:7: 'names' has "a b", but names of headers are letters, digits, '-' and '_'
"#);
    assert_snapshot!(results("broker.redact_keys { keys = { 'a' }, tools = {} },\nbroker.image_to_link { content_types = {} },\nbroker.limit_text { max_bytes = 1, tools = { '' } }"), @r#"
policy.lua:5: 'tools' must name at least one
policy.lua:6: 'content_types' must name at least one
policy.lua:7: 'tools[1]' must be a string that is not empty, got ""
"#);
    assert_snapshot!(results("broker.redact_text { pattern = '(' },\nbroker.redact_text { pattern = 'a*' },\nbroker.redact_text { pattern = '(?:a{1000}){1000}' }"), @r#"
policy.lua:5: 'pattern' is not a valid regular expression: unclosed group
policy.lua:6: 'pattern' matches the empty text, so it would match everywhere
policy.lua:7: 'pattern' is not a valid regular expression: Compiled regex exceeds size limit of 1048576 bytes.
"#);
    assert_snapshot!(results("broker.redact_text { pattern = '(a)', replace_with = '<$2>' },\nbroker.redact_text { pattern = '(a)',\n replace_with = '<$1x>' }"), @r#"
policy.lua:5: 'replace_with' names the group '2', which 'pattern' does not have (a dollar is written '$$')
policy.lua:7: 'replace_with' names the group '1x', which 'pattern' does not have: write '${1}x' for the group 1 and 'x'
"#);
    assert_snapshot!(results("broker.limit_text { max_bytes = 0 },\nbroker.rewrite_uri { from_prefix = '', to_prefix = 'x', otherwise = 'hide',\n content_types = { 'image' } }"), @r#"
policy.lua:5: 'max_bytes' must be a whole number from 1 to 4294967295, got 0
policy.lua:6: 'otherwise' must be "keep" or "drop", got "hide"
policy.lua:6: 'from_prefix' must not be empty
policy.lua:7: 'content_types[1]' must be "resource_link" or "resource", got "image"
"#);
    assert_snapshot!(argument("broker.url_rule { private_hosts = 'deny' }"), @r#"policy.lua:5: broker.url_rule needs the field 'schemes'"#);
    assert_snapshot!(argument("broker.url_rule { schemes = { 'https:' }, hosts = { 'a[' },\n  private_host = 'deny' }"), @r#"
policy.lua:5: 'schemes[1]' must be a URL scheme such as "https", got "https:"
policy.lua:5: 'hosts[1]' is not a valid pattern: unclosed character class; missing ']'
policy.lua:6: unknown field 'private_host' in broker.url_rule (did you mean 'private_hosts'?)
"#);
    assert_snapshot!(argument("broker.url_rule { schemes = { 'https' }, hosts = { 'example.com',\n  'https://example.com', 'example.com:3000' } }"), @r#"
policy.lua:6: 'hosts[2]' must be a host, without scheme, got "https://example.com"
policy.lua:6: 'hosts[3]' must be a host, without port (or an IPv6 address in full), got "example.com:3000"
"#);
    assert_snapshot!(argument("broker.number_rule { min = 5, max = 1, default = 9 }"), @r#"
policy.lua:5: 'min' is 5, more than 'max', which is 1
policy.lua:5: 'default' is 9, outside of 'min' and 'max'
"#);
    assert_snapshot!(argument("broker.string_rule { max_bytes = 1, pattern = '^a$', default = 'bb' }"), @r#"
policy.lua:5: 'default' is longer than 'max_bytes'
policy.lua:5: 'default' does not match 'pattern'
"#);
    assert_snapshot!(argument("broker.default({})"), @r#"policy.lua:5: broker.default takes a string, a finite number or a boolean, got table"#);
}

#[test]
fn what_must_be_there_is_missed() {
    assert_snapshot!(faults("return broker.backend {\n}"), @r#"
policy.lua:1: broker.backend needs the field 'api'
policy.lua:1: broker.backend needs the field 'scope'
"#);
    assert_snapshot!(faults("return broker.backend { api = 2, scope = 'global' }"), @r#"
policy.lua:1: 'api' is 2, but this broker supports 1 only
policy.lua:1: 'scope' must be "session" or "singleton", got "global"
"#);
    assert_snapshot!(faults("return { api = 1 }"), @r#"policy.lua: policy must end with 'return broker.backend { … }'"#);
    assert_snapshot!(faults("return broker.url_rule { schemes = { 'x' } }"), @r#"policy.lua: policy must end with 'return broker.backend { … }'"#);
    assert_snapshot!(faults(""), @r#"policy.lua: policy must end with 'return broker.backend { … }'"#);
}

#[test]
fn errors_of_lua_have_a_line() {
    assert_snapshot!(faults("return broker.backend {\n  api = = 1,\n}"), @r#"policy.lua:2: Expected identifier when parsing expression, got '='"#);
    assert_snapshot!(faults("\nlocal x = os.getenv('HOME')"), @r#"policy.lua:2: unknown name 'os': policies see 'broker' and the pure functions of Lua only"#);
    assert_snapshot!(faults("\n\nrequire('x')"), @r#"policy.lua:3: unknown name 'require': policies see 'broker' and the pure functions of Lua only"#);
    assert_snapshot!(faults("\nlocal x = scope.singleton"), @r#"policy.lua:2: unknown name 'scope': policies see 'broker' and the pure functions of Lua only"#);
    assert_snapshot!(faults("\nlocal x = brokr.null"), @r#"policy.lua:2: unknown name 'brokr' (did you mean 'broker'?): policies see 'broker' and the pure functions of Lua only"#);
    assert_snapshot!(faults("\nlocal x = strng.rep('a', 2)"), @r#"policy.lua:2: unknown name 'strng' (did you mean 'string'?): policies see 'broker' and the pure functions of Lua only"#);
    assert_snapshot!(faults("\nlocal f = loadstring"), @r#"policy.lua:2: unknown name 'loadstring': policies see 'broker' and the pure functions of Lua only"#);
    assert_snapshot!(faults("error('no: policy')"), @r#"policy.lua:1: no: policy"#);
    assert_snapshot!(faults("\nerror({})"), @r#"policy.lua:2: policy raised an error that is no text"#);
    assert_snapshot!(faults("\nassert(false, 'because')"), @r#"policy.lua:2: because"#);
    assert_snapshot!(faults("broker.backend()"), @r#"policy.lua:1: broker.backend takes a table of named fields, got nil"#);
    assert_snapshot!(faults("\nbroker.backend({}, 1).x = 1"), @r#"
policy.lua:2: broker.backend needs the field 'api'
policy.lua:2: broker.backend needs the field 'scope'
policy.lua:2: attempt to index rule with 'x'
"#);
    assert_snapshot!(faults("broker.importt('x')"), @r#"policy.lua:1: unknown name 'importt' in broker (did you mean 'import'?)"#);
    assert_snapshot!(faults("broker.import {}"), @r#"policy.lua:1: broker.import takes a name, got table"#);
}

#[test]
fn all_faults_come_at_once_and_in_order() {
    let text = "local rule = broker.limit_text { max = 1 }
local keys = { keys = { 'a' }, replace_by = 'x' }
return broker.backend {
  api = 1,
  scop = 'session',
  results = { rule, broker.redact_keys(keys) },
  tools = { exclude = { 1 } },
}
";
    assert_snapshot!(faults(text), @r#"
policy.lua:1: broker.limit_text needs the field 'max_bytes'
policy.lua:1: unknown field 'max' in broker.limit_text (did you mean 'max_bytes'?)
policy.lua:2: unknown field 'replace_by' in broker.redact_keys (did you mean 'replace_with'?)
policy.lua:3: broker.backend needs the field 'scope'
policy.lua:5: unknown field 'scop' in broker.backend (did you mean 'scope'?)
policy.lua:7: 'tools.exclude[1]' must be a string that is not empty, got 1
"#);
    assert_snapshot!(faults("local rule = broker.limit_text { max = 1 }\nerror('and then')"), @r#"
policy.lua:1: broker.limit_text needs the field 'max_bytes'
policy.lua:1: unknown field 'max' in broker.limit_text (did you mean 'max_bytes'?)
policy.lua:2: and then
"#);
}

#[test]
fn unknown_names_are_found_in_functions_that_never_ran() {
    assert_snapshot!(faults("local function f(call)\n  local host = call.url\n  if hots == host then\n    return broker.denny(string.find(host, 'x'))\n  end\nend\nhelper = 1\nreturn broker.backend { api = 1, scope = 'session', max_concurrency = helper }"), @r#"
policy.lua:3: unknown name 'hots': policies see 'broker' and the pure functions of Lua only
policy.lua:4: unknown name 'denny' in broker (did you mean 'deny'?)
"#);
}
