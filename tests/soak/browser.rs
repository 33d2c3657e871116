//! The real @playwright/mcp with a real Chromium, where tests/run.sh has installed them.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::support::run;

pub const NAME: &str = "playwright";

/// The policy is not the shipped one: its times are those of a soak.
const POLICY: &str = r#"return broker.backend {
  api = 1,
  scope = "session",
  idle_timeout_seconds = 1,
  queue = { limit = 16, wait_seconds = 20 },
  max_concurrency = 1,
  on_cancel = { action = "recycle", grace_seconds = 1 },
}
"#;

/// Adds the backend to a broker's files; false where it is not installed.
pub fn add(folder: &Path) -> bool {
    let Some((deps, chromium)) = run::deps().zip(chromium()) else { return false };
    let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("catalogs/playwright.json");
    let Ok(catalog) = fs::read(shipped) else { return false };
    let known: Value = serde_json::from_slice(&catalog).expect("the shipped catalog is JSON");
    let text = |name: &str| known[name].as_str().expect("a catalog names its package and version").to_owned();
    fs::write(folder.join("catalogs/playwright.json"), &catalog).expect("the folder is ours");
    fs::write(folder.join("policies/playwright.lua"), POLICY).expect("the folder is ours");
    let backend = format!(
        "[backends.{NAME}]\ncommand = \"npx\"\n\
         args = [\"-y\", \"{}@{}\", \"--headless\", \"--isolated\", \"--executable-path\", {:?}]\n\
         catalog = \"../catalogs/playwright.json\"\npolicy = \"../policies/playwright.lua\"\n\n\
         [backends.{NAME}.env]\nnpm_config_prefer_offline = \"true\"\nnpm_config_update_notifier = \"false\"\n\
         npm_config_cache = {:?}\n\n\
         [backends.{NAME}.deadlines]\nstart_seconds = 25\ncall_seconds = 20\nstop_seconds = 4\npolite_seconds = 2\n",
        text("package"),
        text("version"),
        chromium,
        deps.join("npm-cache"),
    );
    let config = folder.join("config/broker.toml");
    let whole = fs::read_to_string(&config).expect("just written") + &backend;
    fs::write(config, whole).expect("the folder is ours");
    true
}

fn chromium() -> Option<PathBuf> {
    ["/usr/bin/chromium", "/usr/bin/google-chrome-stable"].iter().map(PathBuf::from).find(|path| path.exists())
}
