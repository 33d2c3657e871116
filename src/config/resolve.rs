//! From a backend's configuration to a command that can be executed: looked up when a generation starts, not before.

use std::collections::BTreeMap;
use std::fmt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::environment::{EnvValue, Surroundings};
use super::model::{BackendConfig, Var, Vars};
use super::paths::tidy;
use super::template::{InstanceField, Piece, Template};
use crate::core::launch::Launch;

/// A secret that is larger than this is no secret but a mistake.
const SECRET_BYTES_MAX: u64 = 64 * 1024;

/// PATH of a server when the broker itself has none; Debian's default for ordinary users.
const FALLBACK_PATH: &str = "/usr/local/bin:/usr/bin:/bin";

const POWERSHELL: &str = "powershell.exe";
/// Where every Windows has it, as WSL mounts its disk unless told otherwise.
const POWERSHELL_ON_WINDOWS: &str = "/mnt/c/Windows/System32/WindowsPowerShell/v1.0/powershell.exe";

/// What the broker knows of the generation that is about to start. Nothing in it comes from a client as it was sent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InstanceContext {
    pub instance_id: String,
    pub generation: u64,
    /// Absolute; exists before the process does.
    pub instance_dir: PathBuf,
    pub scope_key_hash: String,
    pub marker: String,
}

/// Why a backend cannot be started as configured on this machine: everything that is missing, never only the first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResolveError(Vec<Unresolved>);

impl ResolveError {
    /// Never empty.
    pub fn faults(&self) -> &[Unresolved] {
        &self.0
    }
}

impl fmt::Display for ResolveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, fault) in self.0.iter().enumerate() {
            write!(f, "{}{fault}", if i == 0 { "" } else { "; " })?;
        }
        Ok(())
    }
}

impl std::error::Error for ResolveError {}

/// One thing that was looked for and not found.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unresolved {
    #[error("looked for `{command}` in PATH ({}): not found; {hint}", join(searched))]
    NotInPath { command: String, searched: Vec<PathBuf>, hint: String },
    #[error("`{}` is no file that can be executed; {hint}", path.display())]
    NotExecutable { path: PathBuf, hint: String },
    #[error("for `${{{var}}}` none of {} exists; {hint}", candidates.join(", "))]
    NoneExists { var: String, candidates: Vec<String>, hint: String },
    #[error("environment variable `{name}` is not set, but {wanted_by} takes its value from there")]
    EnvUnset { name: String, wanted_by: String },
    #[error("secret for `{name}` cannot be read from `{}`: {reason}", path.display())]
    Secret { name: String, path: PathBuf, reason: String },
    #[error("working directory `{}` does not exist; create it or change `cwd`", path.display())]
    NoDirectory { path: PathBuf },
    #[error("{place} has a NUL character, which no program can be given")]
    Nul { place: String },
}

impl BackendConfig {
    /// Fills every placeholder, builds the whole environment, finds the program.
    ///
    /// Reads secret files and looks whether files exist; starts nothing. An argument that is exactly one placeholder
    /// and comes out empty is left out.
    pub fn resolve(
        &self,
        vars: &Vars,
        instance: &InstanceContext,
        surroundings: &Surroundings,
    ) -> Result<Launch, ResolveError> {
        let mut resolver = Resolver { vars, instance, surroundings, faults: Vec::new() };
        let env = resolver.environment(self);
        let command = resolver.fill(&self.command, "`command`");
        let args = resolver.args(&self.args);
        let cwd = resolver.cwd(self);
        let program = command.and_then(|command| resolver.program(&command, &env, &self.base));
        match (program, resolver.faults.is_empty()) {
            (Some(program), true) => Ok(Launch { program, args, env, cwd }),
            _ => {
                let mut faults = resolver.faults;
                faults.dedup();
                Err(ResolveError(faults))
            }
        }
    }
}

/// The program by which `backend` asks about Windows; for one that is not configured any more (`None`), the program that
/// it is by default. Absolute, and there.
///
/// # Errors
/// What was looked for and where.
pub fn powershell(
    backend: Option<&BackendConfig>,
    vars: &Vars,
    surroundings: &Surroundings,
) -> Result<PathBuf, ResolveError> {
    // A load refuses placeholders of an instance here, so no instance is asked for anything.
    let instance = InstanceContext::default();
    let mut resolver = Resolver { vars, instance: &instance, surroundings, faults: Vec::new() };
    let configured = backend.and_then(|backend| Some((backend, backend.ownership.powershell.as_ref()?)));
    let found = match configured {
        Some((backend, template)) => resolver
            .fill(template, "`powershell`")
            .and_then(|command| resolver.program(&command, &surroundings.env, &backend.base)),
        None => resolver.powershell(),
    };
    found.ok_or(ResolveError(resolver.faults))
}

struct Resolver<'a> {
    vars: &'a Vars,
    instance: &'a InstanceContext,
    surroundings: &'a Surroundings,
    faults: Vec<Unresolved>,
}

impl Resolver<'_> {
    fn miss<T>(&mut self, fault: Unresolved) -> Option<T> {
        if !self.faults.contains(&fault) {
            self.faults.push(fault);
        }
        None
    }

    /// The text with every placeholder filled; `None` after a fault was noted.
    fn fill(&mut self, template: &Template, place: &str) -> Option<String> {
        let mut text = String::new();
        let mut complete = true;
        for piece in template.pieces() {
            let value = match piece {
                Piece::Text(plain) => Some(plain.clone()),
                Piece::Var(name) => self.var(name),
                Piece::Env(name) => self.env(name, place),
                Piece::Instance(field) => Some(self.instance_field(*field)),
            };
            match value {
                Some(value) => text.push_str(&value),
                None => complete = false,
            }
        }
        if text.contains('\0') {
            return self.miss(Unresolved::Nul { place: place.to_owned() });
        }
        complete.then_some(text)
    }

    fn instance_field(&self, field: InstanceField) -> String {
        match field {
            InstanceField::InstanceId => self.instance.instance_id.clone(),
            InstanceField::Generation => self.instance.generation.to_string(),
            InstanceField::InstanceDir => self.instance.instance_dir.display().to_string(),
            InstanceField::ScopeKeyHash => self.instance.scope_key_hash.clone(),
            InstanceField::Marker => self.instance.marker.clone(),
        }
    }

    fn env(&mut self, name: &str, wanted_by: &str) -> Option<String> {
        match self.surroundings.env.get(name) {
            Some(value) => Some(value.clone()),
            None => self.miss(Unresolved::EnvUnset { name: name.to_owned(), wanted_by: wanted_by.to_owned() }),
        }
    }

    fn var(&mut self, name: &str) -> Option<String> {
        let vars = self.vars;
        let place = format!("`{name}` of [vars]");
        // A load has checked that every name is known; a caller with other `vars` hears of it here.
        let Some(var) = vars.get(name) else {
            return self.miss(Unresolved::NoneExists {
                var: name.to_owned(),
                candidates: Vec::new(),
                hint: format!("set `[vars] {name}`"),
            });
        };
        match var {
            Var::Literal(template) => self.fill(template, &place),
            Var::Env(variable) => self.env(variable, &place),
            Var::ByUser { as_root, otherwise } => {
                self.fill(if self.surroundings.is_root { as_root } else { otherwise }, &place)
            }
            Var::FirstOf(candidates) => self.first_of(name, candidates),
        }
    }

    fn first_of(&mut self, name: &str, candidates: &[Template]) -> Option<String> {
        let mut looked_for = Vec::new();
        for candidate in candidates {
            // A variable that is not set makes a candidate that is not there, not an error.
            let noted = self.faults.len();
            let Some(candidate) = self.fill(candidate, name) else {
                self.faults.truncate(noted);
                looked_for.push(candidate.text().to_owned());
                continue;
            };
            let found = if candidate.contains('/') {
                Path::new(&candidate).exists().then(|| PathBuf::from(&candidate))
            } else {
                find_in(&search_path(&self.surroundings.env), &candidate)
            };
            if let Some(found) = found {
                return Some(found.display().to_string());
            }
            looked_for.push(candidate);
        }
        let hint = hint_for_var(name);
        self.miss(Unresolved::NoneExists { var: name.to_owned(), candidates: looked_for, hint })
    }

    fn args(&mut self, templates: &[Template]) -> Vec<String> {
        let mut args = Vec::with_capacity(templates.len());
        for template in templates {
            match self.fill(template, "`args`") {
                Some(text) if text.is_empty() && template.is_one_placeholder() => {}
                Some(text) => args.push(text),
                None => {}
            }
        }
        args
    }

    /// Allowlist, then the file's own variables, then the broker's: the later wins.
    fn environment(&mut self, backend: &BackendConfig) -> BTreeMap<String, String> {
        let mut env = self.surroundings.allowed(&backend.env_allow);
        for (name, value) in &backend.env {
            let value = match value {
                EnvValue::Literal(template) => self.fill(template, &format!("`{name}` of `env`")),
                EnvValue::Env(other) => self.env(other, &format!("`{name}` of `env`")),
                EnvValue::File { path, .. } => self.secret(name, path),
            };
            if let Some(value) = value {
                env.insert(name.clone(), value);
            }
        }
        env.entry("PATH".into()).or_insert_with(|| FALLBACK_PATH.into());
        env.insert("TMPDIR".into(), self.instance.instance_dir.display().to_string());
        env.insert("LAZY_MCP_INSTANCE_ID".into(), self.instance.instance_id.clone());
        env.insert("LAZY_MCP_GENERATION".into(), self.instance.generation.to_string());
        env
    }

    fn secret(&mut self, name: &str, path: &Path) -> Option<String> {
        match read_secret(path) {
            Ok(secret) => Some(secret),
            Err(reason) => self.miss(Unresolved::Secret { name: name.to_owned(), path: path.to_owned(), reason }),
        }
    }

    fn cwd(&mut self, backend: &BackendConfig) -> PathBuf {
        let Some(template) = &backend.cwd else { return self.instance.instance_dir.clone() };
        let Some(cwd) = self.fill(template, "`cwd`") else { return PathBuf::new() };
        let path = tidy(&backend.base.join(cwd));
        // The instance directory itself is made just before the process.
        if !path.starts_with(&self.instance.instance_dir) && !path.is_dir() {
            self.faults.push(Unresolved::NoDirectory { path: path.clone() });
        }
        path
    }

    fn powershell(&mut self) -> Option<PathBuf> {
        let on_windows = Path::new(POWERSHELL_ON_WINDOWS);
        let searched = search_path(&self.surroundings.env);
        let found = find_in(&searched, POWERSHELL);
        found.or_else(|| is_executable(on_windows).then(|| on_windows.to_owned())).or_else(|| {
            let searched = searched.into_iter().chain(on_windows.parent().map(Path::to_owned)).collect();
            self.miss(Unresolved::NotInPath {
                command: POWERSHELL.into(),
                searched,
                hint: hint_for_program(POWERSHELL),
            })
        })
    }

    /// With a slash a path from the configuration file's directory, else looked up in the PATH that the server gets.
    fn program(&mut self, command: &str, env: &BTreeMap<String, String>, base: &Path) -> Option<PathBuf> {
        let hint = hint_for_program(command);
        if command.contains('/') {
            let path = tidy(&base.join(command));
            return if is_executable(&path) { Some(path) } else { self.miss(Unresolved::NotExecutable { path, hint }) };
        }
        let searched = search_path(env);
        match find_in(&searched, command) {
            Some(path) => Some(path),
            None => self.miss(Unresolved::NotInPath { command: command.to_owned(), searched, hint }),
        }
    }
}

/// The directories of PATH; relative ones are left out, because the server's directory is not the broker's.
fn search_path(env: &BTreeMap<String, String>) -> Vec<PathBuf> {
    let path = env.get("PATH").map_or(FALLBACK_PATH, String::as_str);
    std::env::split_paths(path).filter(|dir| dir.is_absolute()).collect()
}

fn find_in(dirs: &[PathBuf], name: &str) -> Option<PathBuf> {
    dirs.iter().map(|dir| dir.join(name)).find(|path| is_executable(path))
}

fn is_executable(path: &Path) -> bool {
    path.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

pub(super) fn read_secret(path: &Path) -> Result<String, String> {
    let meta = path.metadata().map_err(|error| error.to_string())?;
    if !meta.is_file() {
        return Err("not a regular file".into());
    }
    if meta.len() > SECRET_BYTES_MAX {
        return Err(format!("larger than {SECRET_BYTES_MAX} bytes"));
    }
    let mut secret = std::fs::read_to_string(path).map_err(|error| error.to_string())?;
    if secret.ends_with('\n') {
        secret.pop();
        if secret.ends_with('\r') {
            secret.pop();
        }
    }
    if secret.contains('\0') { Err("has a NUL character".into()) } else { Ok(secret) }
}

fn join(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
}

fn hint_for_program(command: &str) -> String {
    let install = match command.rsplit('/').next().unwrap_or(command) {
        "npx" | "node" | "npm" => "install Node.js 20.19 or newer",
        "uvx" | "uv" => "install uv",
        "python" | "python3" => "install Python 3",
        "docker" => "install Docker",
        POWERSHELL => return "name it by `powershell` in `ownership`, or set `windows = false` outside of WSL".into(),
        _ => "install it",
    };
    format!("{install} or set `command` to where it is")
}

fn hint_for_var(name: &str) -> String {
    let install = if name.contains("chrom") { "install Chromium (`apt-get install chromium`)" } else { "install one" };
    format!("{install} or set `[vars] {name}`")
}
