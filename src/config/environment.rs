//! What a server sees of the world: an allowlist of the broker's environment plus what the file adds, nothing else.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;

use super::template::Template;
use crate::core::digest::Digest;

/// Names that pass from the broker to every server; a final `*` stands for any rest.
///
/// What is needed to find programs and one's own files, to speak the user's language, to reach a display, a session
/// bus, a proxy and the right certificates, to run `npm` as the user set it up, and to call Windows programs from WSL.
/// Not here, because they change what code runs or carry credentials of others: `NODE_OPTIONS`, `LD_*`, `SSH_*`,
/// `AWS_*` and whatever else a login leaves behind. A backend that needs one names it in `env_allow`.
pub const ALLOWED_ALWAYS: &[&str] = &[
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "LANG",
    "LANGUAGE",
    "LC_*",
    "TZ",
    "XDG_RUNTIME_DIR",
    "XDG_CONFIG_HOME",
    "XDG_CACHE_HOME",
    "XDG_DATA_HOME",
    "XDG_STATE_HOME",
    "DISPLAY",
    "WAYLAND_DISPLAY",
    "XAUTHORITY",
    "DBUS_SESSION_BUS_ADDRESS",
    "npm_config_*",
    "NPM_CONFIG_*",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "all_proxy",
    "no_proxy",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "NODE_EXTRA_CA_CERTS",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "WSL_DISTRO_NAME",
    "WSL_INTEROP",
];

/// Names that the broker sets itself for every generation.
pub(super) const SET_BY_BROKER: [&str; 3] = ["TMPDIR", "LAZY_MCP_INSTANCE_ID", "LAZY_MCP_GENERATION"];

/// Where the value of one variable comes from. `Debug` shows the kind alone (invariant 13).
#[derive(Clone, PartialEq, Eq)]
pub enum EnvValue {
    Literal(Template),
    /// A variable of the broker's own environment.
    Env(String),
    /// The content of a file, without one final line end.
    File {
        path: PathBuf,
        /// Of the content when the configuration was loaded, so that a reload sees a new secret.
        content: Option<Digest>,
    },
}

impl fmt::Debug for EnvValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Literal(_) => "Literal(..)",
            Self::Env(_) => "Env(..)",
            Self::File { .. } => "File(..)",
        })
    }
}

/// What a start depends on beside the configuration, as a value, so that tests choose it.
///
/// `Debug` shows no variable.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Surroundings {
    pub env: BTreeMap<String, String>,
    pub is_root: bool,
}

impl Surroundings {
    /// Those of this process. Variables that are not UTF-8 are left out.
    pub fn of_this_process() -> Self {
        let env = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .collect();
        Self { env, is_root: nix::unistd::geteuid().is_root() }
    }

    /// A variable that is set and not empty.
    pub(super) fn var(&self, name: &str) -> Option<&str> {
        self.env.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// What passes to a server: the built-in allowlist and `more`.
    pub(super) fn allowed(&self, more: &BTreeSet<String>) -> BTreeMap<String, String> {
        let passes = |name: &str| {
            let more = more.iter().map(String::as_str);
            ALLOWED_ALWAYS.iter().copied().chain(more).any(|pattern| matches_pattern(pattern, name))
        };
        let set_by_broker = |name: &str| SET_BY_BROKER.contains(&name);
        self.env
            .iter()
            .filter(|(name, _)| passes(name) && !set_by_broker(name))
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect()
    }
}

impl fmt::Debug for Surroundings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Surroundings").field("env", &self.env.len()).field("is_root", &self.is_root).finish()
    }
}

fn matches_pattern(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(prefix) => name.starts_with(prefix),
        None => name == pattern,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_listed_names_pass() {
        let names = [
            "PATH",
            "LC_ALL",
            "npm_config_cache",
            "AWS_SECRET_ACCESS_KEY",
            "NODE_OPTIONS",
            "TMPDIR",
            "LD_PRELOAD",
            "MY_A",
            "MY_B",
            "PATHX",
        ];
        let env = names.iter().map(|name| ((*name).to_owned(), "v".to_owned())).collect();
        let surroundings = Surroundings { env, is_root: false };
        let passed = |more: &[&str]| -> Vec<String> {
            let more = more.iter().map(|name| (*name).to_owned()).collect();
            surroundings.allowed(&more).into_keys().collect()
        };
        assert_eq!(passed(&[]), ["LC_ALL", "PATH", "npm_config_cache"]);
        assert_eq!(passed(&["MY_*", "TMPDIR"]), ["LC_ALL", "MY_A", "MY_B", "PATH", "npm_config_cache"]);
    }

    #[test]
    fn values_never_show() {
        let surroundings = Surroundings { env: [("A".into(), "hunter2".into())].into(), is_root: false };
        assert_eq!(format!("{surroundings:?}"), "Surroundings { env: 1, is_root: false }");
        assert_eq!(format!("{:?}", EnvValue::Env("TOKEN_OF".into())), "Env(..)");
    }
}
