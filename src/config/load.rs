//! Reading `broker.toml`: syntax, then every table and key, then the files that it names.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use toml::de::DeTable;

use super::environment::Surroundings;
use super::model::{Config, DEFAULT_LISTEN, ReviewMode, ServerConfig, Switches};
use super::paths::{absolute, tidy};
use super::reader::{Entry, Reader, Section};
use super::vars::read_vars;
use crate::core::diagnostic::{Diagnostic, Diagnostics, suggestion};

static NO_SWITCHES: Switches = Switches::new();

/// Larger than this is not a configuration file.
const FILE_BYTES_MAX: u64 = 1024 * 1024;

/// Reads and checks the whole file; that the catalogs, policies and secrets of enabled backends exist is part of it.
///
/// # Errors
/// Everything that is wrong, in the order of the lines. Only when the file is not TOML at all are the faults of its
/// syntax reported alone.
pub fn load(path: &Path) -> Result<Config, Diagnostics> {
    Loader::new(path, Surroundings::of_this_process()).load()
}

/// What could be made out of the file, and what is wrong with it: for those who look for more faults in the files that
/// it names. Not to be used when there is a fault.
///
/// `switches` say of backends whether they are enabled, over what the file says.
pub fn read(path: &Path, switches: &Switches) -> (Option<Config>, Diagnostics) {
    Loader { switches, ..Loader::new(path, Surroundings::of_this_process()) }.load_part()
}

/// Where the broker of this file listens and keeps its state, however much is wrong with the rest of it: for those who
/// have a question to that broker. `None` when that cannot be made out; of a file that is half there, the half that has
/// the address may be missing, and somebody else's broker is not to be asked.
pub fn whereabouts(path: &Path) -> Option<(SocketAddr, PathBuf)> {
    let loader = Loader::new(path, Surroundings::of_this_process());
    let text = loader.read().ok()?;
    let (document, errors) = DeTable::parse_recoverable(&text);
    let server = document.get_ref().get("server").and_then(|server| server.get_ref().as_table());
    let is_named = server.is_some_and(|server| server.contains_key("listen"));
    let reader = Reader::new(path, &text);
    let section = Section::document(&reader, document.get_ref()).part("server");
    let server = loader.server(&reader, section)?;
    (errors.is_empty() || is_named).then_some((server.listen, server.state_dir))
}

/// [`load`] for commands that read no catalog and no policy: these need not exist yet.
pub fn load_alone(path: &Path) -> Result<Config, Diagnostics> {
    Loader { needs_files: false, ..Loader::new(path, Surroundings::of_this_process()) }.load()
}

pub(super) struct Loader<'a> {
    path: &'a Path,
    /// Where relative paths start, spelled as the operator did.
    pub(super) base: PathBuf,
    surroundings: Surroundings,
    /// Whether the catalogs and policies of enabled backends must exist.
    pub(super) needs_files: bool,
    /// Whether backends are enabled, over what the file says of them.
    pub(super) switches: &'a Switches,
}

impl<'a> Loader<'a> {
    fn new(path: &'a Path, surroundings: Surroundings) -> Self {
        let base = path.parent().unwrap_or(Path::new("")).to_owned();
        Self { path, base, surroundings, needs_files: true, switches: &NO_SWITCHES }
    }

    fn load(&self) -> Result<Config, Diagnostics> {
        match self.load_part() {
            (Some(config), faults) => faults.into_result(config),
            (None, faults) => Err(faults),
        }
    }

    /// What could be made out, beside what is wrong.
    fn load_part(&self) -> (Option<Config>, Diagnostics) {
        let text = match self.read() {
            Ok(text) => text,
            Err(fault) => return (None, fault.into()),
        };
        let (document, errors) = DeTable::parse_recoverable(&text);
        let reader = Reader::new(self.path, &text);
        for error in &errors {
            let span = error.span().unwrap_or(0..0);
            let found = text.get(span.clone()).filter(|found| !found.is_empty() && !found.contains('\n'));
            let message = match (error.message(), found) {
                ("duplicate key", Some(key)) => format!("'{key}' is there twice"),
                // What was found there may be part of a secret.
                (message, _) => message.to_owned(),
            };
            reader.fault(span.start, message);
        }
        // A tree that was guessed at by error recovery would bring faults that are not there; one with a key too many
        // is whole.
        if errors.iter().any(|error| error.message() != "duplicate key") {
            return (None, reader.into_faults());
        }
        let config = self.document(&reader, document.get_ref());
        (config, reader.into_faults())
    }

    fn read(&self) -> Result<String, Diagnostic> {
        let fault = |message: String| Diagnostic::new(self.path, None, message);
        let cannot =
            |error: std::io::Error| fault(format!("cannot be read: {error}; name another file with `--config FILE`"));
        let meta = self.path.metadata().map_err(cannot)?;
        if meta.len() > FILE_BYTES_MAX {
            return Err(fault(format!("is larger than {FILE_BYTES_MAX} bytes: this is no configuration file")));
        }
        let bytes = std::fs::read(self.path).map_err(cannot)?;
        String::from_utf8(bytes).map_err(|error| {
            let line = error.as_bytes()[..error.utf8_error().valid_up_to()].iter().filter(|&&b| b == b'\n').count() + 1;
            Diagnostic::new(self.path, Some(line), "is not UTF-8 text")
        })
    }

    /// Here and below, what is missing from a result was reported: `None`, or a default in place of a bad value.
    fn document<'r>(&self, reader: &'r Reader<'r>, table: &'r DeTable<'r>) -> Option<Config> {
        let mut document = Section::document(reader, table);
        let server = document.part("server");
        let review = document.part("review");
        let vars = document.part("vars");
        let backends = document.part("backends");
        document.finish();

        let (var_names, vars) = vars.map(|section| read_vars(&section)).unwrap_or_default();
        let backends = backends.map(|section| self.backends(&section, &var_names)).unwrap_or_default();
        let review = review.map(review_mode).unwrap_or_default();
        let server = self.server(reader, server)?;
        Some(Config { path: self.path.to_owned(), server, review, vars, backends })
    }

    fn server(&self, reader: &Reader<'_>, section: Option<Section<'_>>) -> Option<ServerConfig> {
        let mut server = ServerConfig {
            listen: DEFAULT_LISTEN,
            state_dir: PathBuf::new(),
            body_bytes_max: 4 << 20,
            frame_bytes_max: 64 << 20,
            sessions_max: 10_000,
            session_ttl: Duration::from_secs(24 * 3600),
            worker_threads: None,
            drain: Duration::from_secs(10),
            live_instances_max: 32,
            concurrent_starts_max: 4,
            log: "info".into(),
        };
        let Some(mut section) = section else {
            server.state_dir = self.default_state_dir(reader)?;
            return Some(server);
        };
        let count = |entry: Option<Entry<'_>>, range| entry.and_then(|entry| entry.integer(range));
        if let Some(listen) = section.get("listen").and_then(|entry| listen(&entry)) {
            server.listen = listen;
        }
        if let Some(bytes) = count(section.get("body_bytes_max"), 1024..=1 << 30) {
            server.body_bytes_max = bytes as usize;
        }
        if let Some(bytes) = count(section.get("frame_bytes_max"), 64 << 10..=1 << 30) {
            server.frame_bytes_max = bytes as usize;
        }
        if let Some(sessions) = count(section.get("sessions_max"), 1..=1_000_000) {
            server.sessions_max = sessions as usize;
        }
        if let Some(hours) = count(section.get("session_ttl_hours"), 1..=24 * 365) {
            server.session_ttl = Duration::from_secs(hours * 3600);
        }
        if let Some(threads) = count(section.get("worker_threads"), 1..=64) {
            server.worker_threads = Some(threads as usize);
        }
        if let Some(drain) = section.get("drain_seconds").and_then(|entry| entry.seconds(0.0..=3600.0)) {
            server.drain = drain;
        }
        if let Some(instances) = count(section.get("max_live_instances"), 1..=1000) {
            server.live_instances_max = instances as usize;
        }
        if let Some(starts) = count(section.get("max_concurrent_starts"), 1..=1000) {
            server.concurrent_starts_max = starts as usize;
        }
        if let Some(log) = section.get("log").and_then(|entry| log_filter(&entry)) {
            server.log = log;
        }
        let state_dir = match section.get("state_dir") {
            Some(entry) => self.path_at(&entry).map(|path| absolute(&path)),
            None => self.default_state_dir(reader),
        };
        section.finish();
        server.state_dir = state_dir?;
        Some(server)
    }

    /// `$XDG_STATE_HOME/lazy-mcp`, else `~/.local/state/lazy-mcp`.
    fn default_state_dir(&self, reader: &Reader<'_>) -> Option<PathBuf> {
        let absolute = |name| self.surroundings.var(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let base = absolute("XDG_STATE_HOME").or_else(|| absolute("HOME").map(|home| home.join(".local/state")));
        if base.is_none() {
            reader.fault(0, "[server] needs 'state_dir': neither XDG_STATE_HOME nor HOME is set");
        }
        base.map(|base| base.join("lazy-mcp"))
    }

    /// [`path_at`](Self::path_at), and a fault when the file is needed and not there.
    pub(super) fn file_at(&self, entry: &Entry<'_>, needed: bool, next_step: &str) -> Option<PathBuf> {
        let path = self.path_at(entry)?;
        if needed && !path.is_file() {
            entry.fault(format_args!("names `{}`, which does not exist{next_step}", path.display()));
        }
        Some(path)
    }

    /// A path that starts at the configuration file's directory.
    pub(super) fn path_at(&self, entry: &Entry<'_>) -> Option<PathBuf> {
        let text = entry.string()?;
        if text.is_empty() {
            entry.fault("is empty");
            return None;
        }
        if text.starts_with("~/") || text.contains("${") {
            entry.fault("is taken as it is written: '~' and placeholders are not filled here");
            return None;
        }
        Some(tidy(&self.base.join(text)))
    }
}

fn listen(entry: &Entry<'_>) -> Option<SocketAddr> {
    let text = entry.string()?;
    match text.parse::<SocketAddr>() {
        Ok(address) if address.ip().is_loopback() => Some(address),
        Ok(address) => {
            let ip = address.ip();
            entry.fault(format_args!("is {ip}, but the broker binds to loopback only: use 127.0.0.1 or [::1]"));
            None
        }
        Err(_) => {
            entry.fault(format_args!("must be an address and a port such as \"{DEFAULT_LISTEN}\", not \"{text}\""));
            None
        }
    }
}

fn log_filter(entry: &Entry<'_>) -> Option<String> {
    const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
    let text = entry.string()?;
    for directive in text.split(',').map(str::trim) {
        let level = directive.rsplit_once('=').map_or(directive, |(_, level)| level);
        if !LEVELS.contains(&level) {
            entry.fault(format_args!("has the unknown level '{level}'{}", suggestion(level, LEVELS)));
            return None;
        }
    }
    Some(text.to_owned())
}

fn review_mode(mut section: Section<'_>) -> ReviewMode {
    let entry = section.get("mode");
    section.finish();
    let Some((entry, mode)) = entry.and_then(|entry| entry.string().map(|mode| (entry, mode))) else {
        return ReviewMode::default();
    };
    match mode {
        "warn" => ReviewMode::Warn,
        "enforce" => ReviewMode::Enforce,
        other => {
            entry.fault(format_args!("is '{other}'{}", suggestion(other, ["warn", "enforce"])));
            ReviewMode::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, env: &[(&str, &str)], expected: &str) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("broker.toml");
        std::fs::write(&path, text).unwrap();
        let env = env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let found = match Loader::new(&path, Surroundings { env, is_root: false }).load() {
            Ok(config) => config.server.state_dir.display().to_string(),
            Err(faults) => faults.to_string().replace(&format!("{}/", dir.path().display()), ""),
        };
        assert_eq!(found, expected);
    }

    #[test]
    fn state_goes_where_the_desktop_specification_says() {
        check("", &[("XDG_STATE_HOME", "/x"), ("HOME", "/h")], "/x/lazy-mcp");
        check("[server]", &[("HOME", "/h")], "/h/.local/state/lazy-mcp");
        // The specification has relative and empty values ignored.
        check("", &[("XDG_STATE_HOME", "x"), ("HOME", "/h")], "/h/.local/state/lazy-mcp");
        check("", &[("XDG_STATE_HOME", ""), ("HOME", "/h")], "/h/.local/state/lazy-mcp");
    }

    #[test]
    fn without_a_home_the_state_directory_has_to_be_named() {
        let message = "broker.toml:1: [server] needs 'state_dir': neither XDG_STATE_HOME nor HOME is set";
        check("", &[], message);
        check("[server]\n", &[], message);
    }
}
