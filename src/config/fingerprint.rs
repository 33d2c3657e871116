//! What makes a process what it is: a change here replaces generations, a change elsewhere is live.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::environment::EnvValue;
use super::model::{BackendConfig, Var, Vars};
use super::template::Template;
use crate::core::digest::Digest;

impl BackendConfig {
    /// SHA-256 over the canonical JSON of backend id, command, arguments, environment (names and value hashes),
    /// working directory, scope, ownership, package and version.
    ///
    /// Placeholders count as they are written, together with the `[vars]` that they name and no others: what they
    /// stand for on this machine is looked up at a start. A secret in a file counts by its content at the load.
    pub fn fingerprint(&self, vars: &Vars, scope: &str, package: &str, version: &str) -> Digest {
        let env: BTreeMap<&str, Value> =
            self.env.iter().map(|(name, value)| (name.as_str(), env_json(value))).collect();
        Digest::of_json(&json!({
            "backend": self.name,
            "command": self.command.text(),
            "args": self.args.iter().map(Template::text).collect::<Vec<_>>(),
            "cwd": self.cwd.as_ref().map(Template::text),
            "vars": self.used_vars(vars),
            "env": env,
            "env_allow": self.env_allow,
            "scope": scope,
            "ownership": self.ownership_json(),
            "package": package,
            "version": version,
        }))
    }

    /// A keeper asks Windows by the program that it was started with, so another one is for the next generation.
    fn ownership_json(&self) -> Value {
        let windows = self.ownership.windows;
        // Limits are set when the cgroup of a generation is made.
        let limits = self.ownership.limits;
        let (memory_max_mb, pids_max) = (limits.memory_max_mb, limits.pids_max);
        let mut ownership = json!({ "windows": windows, "memory_max_mb": memory_max_mb, "pids_max": pids_max });
        if let Some(powershell) = &self.ownership.powershell {
            ownership["powershell"] = powershell.text().into();
        }
        ownership
    }

    fn used_vars<'v>(&'v self, vars: &'v Vars) -> BTreeMap<&'v str, Value> {
        let in_env = self.env.values().filter_map(|value| match value {
            EnvValue::Literal(template) => Some(template),
            EnvValue::Env(_) | EnvValue::File { .. } => None,
        });
        let templates = std::iter::once(&self.command).chain(&self.args).chain(&self.cwd);
        let templates = templates.chain(in_env).chain(&self.ownership.powershell);
        templates.flat_map(Template::vars).filter_map(|name| vars.get(name).map(|var| (name, var_json(var)))).collect()
    }
}

fn env_json(value: &EnvValue) -> Value {
    match value {
        EnvValue::Literal(template) => json!({ "literal": Digest::of(template.text().as_bytes()) }),
        EnvValue::Env(name) => json!({ "env": name }),
        EnvValue::File { path, content } => json!({ "file": path, "content": content }),
    }
}

fn var_json(var: &Var) -> Value {
    match var {
        Var::FirstOf(candidates) => json!({ "first_of": candidates.iter().map(Template::text).collect::<Vec<_>>() }),
        Var::Env(name) => json!({ "env": name }),
        Var::Literal(template) => json!({ "literal": template.text() }),
        Var::ByUser { as_root, otherwise } => json!({ "as_root": as_root.text(), "otherwise": otherwise.text() }),
    }
}
