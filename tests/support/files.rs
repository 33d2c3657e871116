//! Edits of the files of a running broker, and what `lazy-mcp reload` and `/admin/mcp` make of them.

use std::path::PathBuf;

use serde_json::{Value, json};

use super::broker::Broker;
use super::http::Request;
use super::mcp::Reply;

impl Broker {
    pub fn path(&self, file: &str) -> PathBuf {
        self.dir().join(file)
    }

    #[track_caller]
    pub fn read(&self, file: &str) -> String {
        std::fs::read_to_string(self.path(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
    }

    #[track_caller]
    pub fn write(&self, file: &str, text: &str) {
        std::fs::write(self.path(file), text).unwrap_or_else(|error| panic!("{file}: {error}"));
    }

    /// Replaces text that has to be there.
    #[track_caller]
    pub fn edit(&self, file: &str, from: &str, to: &str) {
        let text = self.read(file);
        assert!(text.contains(from), "{file} has no {from:?}:\n{text}");
        self.write(file, &text.replace(from, to));
    }

    /// One more variable in the environment of a backend's servers: another launch.
    #[track_caller]
    pub fn change_launch(&self, backend: &str, value: &str) {
        let text = self.read("config/broker.toml");
        let table = format!("[backends.{backend}.env]\n");
        let kept = text.split(&table).next().expect("there is a first part").to_owned();
        self.write("config/broker.toml", &format!("{kept}{table}LAUNCH = \"{value}\"\n"));
    }

    /// Fields of a backend's policy, in the place of those of the last time.
    #[track_caller]
    pub fn change_policy(&self, backend: &str, lua: &str) {
        let file = format!("policies/{backend}.lua");
        let text = self.read(&file);
        let kept = text.split("\n  -- more\n").next().expect("there is a first part").trim_end().trim_end_matches('}');
        self.write(&file, &format!("{}\n  -- more\n  {lua}\n}}\n", kept.trim_end()));
    }

    /// Calls a tool of `/admin/mcp`.
    #[track_caller]
    pub fn ask(&self, tool: &str, arguments: Value) -> Reply {
        let token = self.read("state/admin.token");
        let params = json!({"name": tool, "arguments": arguments});
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params});
        let request = Request::post("/admin/mcp", body.to_string());
        Reply::new(self.http().send(&request.header("authorization", &format!("Bearer {token}"))))
    }

    /// What a tool of `/admin/mcp` answers.
    #[track_caller]
    pub fn admin(&self, tool: &str, arguments: Value) -> Value {
        let reply = self.ask(tool, arguments);
        let content = reply.result().get("structuredContent").cloned();
        content.unwrap_or_else(|| panic!("nothing structured: {}", reply.raw))
    }

    /// Reloads, which has to succeed.
    #[track_caller]
    pub fn reload(&self) -> Value {
        let report = self.admin("broker_reload", json!({}));
        assert_eq!(report["ok"], true, "{report:#}");
        report
    }

    /// Reloads, which has to be refused.
    #[track_caller]
    pub fn reload_refused(&self) -> Value {
        let report = self.admin("broker_reload", json!({}));
        assert_eq!(report["ok"], false, "{report:#}");
        report
    }
}

/// The entry of a backend in the report of a reload.
#[track_caller]
pub fn of<'r>(report: &'r Value, backend: &str) -> &'r Value {
    let found = report["backends"].as_array().and_then(|all| all.iter().find(|one| one["name"] == backend));
    found.unwrap_or_else(|| panic!("no backend `{backend}` in {report:#}"))
}
