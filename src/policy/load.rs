//! Loads a policy file: read once, hash those bytes, run those bytes, freeze the answer. The machines that hooks run in
//! are made by the same path, from the code that was kept.

use std::fs;
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use mlua::chunk::ChunkMode;
use mlua::{AppDataRefMut, Lua, Value};

use super::backend::Backend;
use super::bytecode::{self, Globals};
use super::constructors::{self, Built};
use super::fields;
use super::frozen::Policy;
use super::hooks::Hooks;
use super::memory;
use super::sandbox::{self, Watch, error_at_caller};
use super::source::Source;
use crate::core::diagnostic::{Diagnostic, Diagnostics};
use crate::core::digest::Digest;

/// Behind the count of steps, for the work that steps do not count. A load takes about one millisecond of processor
/// time; but a busy machine was seen to stretch it sixtyfold, and no call waits for it, so the bound is generous.
const WATCHDOG: Duration = Duration::from_secs(2);

/// How long a machine that was told to stop may take to the next step, where it notices.
const STOP_GRACE: Duration = Duration::from_secs(1);

/// Compiling is not counted in steps, so sources have bounds of their own.
const FILE_MAX_BYTES: u64 = 256 << 10;
const FILES_MAX: usize = 32;

/// The parser of Luau recurses up to 1,000 levels deep, more than the usual 2 MiB hold in a build without optimization.
pub(super) const STACK_BYTES: usize = 16 << 20;

/// Loads the policy at `path` with its imports. All faults that can be found at once are reported together, with file
/// and line.
///
/// The file runs with a bound on steps, memory and time, on a thread of its own: one that does not come back is
/// abandoned and reported, and nothing else suffers. Blocks for a millisecond as a rule, for three seconds at most.
pub fn load(path: &Path) -> Result<Policy, Diagnostics> {
    let watch = Watch::default();
    let (answer, answered) = mpsc::sync_channel(1);
    let worker = {
        let (path, watch) = (path.to_owned(), watch.clone());
        move || {
            // Nobody waits any more after the watchdog gave up; then there is nobody to tell.
            let _ = answer.send(run(&path, &watch));
        }
    };
    let fault = |message: String| Diagnostics::from(Diagnostic::new(path, None, message));
    let spawned = thread::Builder::new().name("policy-load".to_owned()).stack_size(STACK_BYTES).spawn(worker);
    spawned.map_err(|error| fault(format!("no thread to run the policy on: {error}")))?;
    let outcome = answered.recv_timeout(WATCHDOG).or_else(|_| {
        watch.stop();
        answered.recv_timeout(STOP_GRACE)
    });
    outcome.unwrap_or_else(|_| Err(fault(format!("policy did not end within {} s", WATCHDOG.as_secs()))))
}

impl Policy {
    /// Whether its file and every import are what they were when it was loaded, byte for byte: then it means the same,
    /// because a policy sees nothing but these.
    pub fn is_current(&self) -> bool {
        self.files.iter().all(|(path, digest)| read(path).is_ok_and(|bytes| Digest::of(&bytes) == *digest))
    }
}

/// The state of one load, kept in the machine for the constructors.
pub(super) struct Loading {
    origin: Origin,
    files: Vec<LoadedFile>,
    pub faults: Diagnostics,
    /// The policy has been evaluated; what runs now is a hook.
    pub is_over: bool,
}

/// Where imports come from.
enum Origin {
    /// They must be inside, with all symbolic links followed.
    Directory(PathBuf),
    /// The code that was hashed when the policy was loaded; nothing else exists.
    Kept(Arc<[File]>),
}

/// One file of a policy, as it was read.
#[derive(Clone, Debug)]
pub(super) struct File {
    /// Relative to the directory of the policy, with `/`.
    name: String,
    digest: Digest,
    source: Arc<Source>,
    code: Code,
}

#[derive(Clone, Debug)]
enum Code {
    Text(Arc<[u8]>),
    /// Bytecode that our own compiler made of the text.
    Compiled(Arc<[u8]>),
}

struct LoadedFile {
    file: File,
    /// What the file returned; nothing while it runs.
    value: Option<Value>,
}

impl File {
    fn new(path: PathBuf, name: String, bytes: Vec<u8>) -> Self {
        let source = Arc::new(Source::new(path, &String::from_utf8_lossy(&bytes)));
        Self { name, digest: Digest::of(&bytes), source, code: Code::Text(bytes.into()) }
    }

    /// Compiled, unless it cannot be: then the text is left, and whoever runs it hears what is wrong with it.
    fn compiled(mut self) -> Self {
        if let Code::Text(text) = &self.code
            && let Ok(code) = bytecode::compile(text)
        {
            self.code = Code::Compiled(code.into());
        }
        self
    }
}

impl Loading {
    pub fn of(lua: &Lua) -> AppDataRefMut<'_, Self> {
        lua.app_data_mut().expect("it is set before anything runs, and borrowed by one Rust function at a time")
    }

    /// The source behind the name of a chunk.
    pub fn source(&self, chunk: &str) -> Option<Arc<Source>> {
        self.files.get(index_of_chunk(chunk)?).map(|loaded| loaded.file.source.clone())
    }
}

fn chunk_name(index: usize) -> String {
    format!("={}{index}", sandbox::CHUNK_PREFIX)
}

fn index_of_chunk(chunk: &str) -> Option<usize> {
    chunk.strip_prefix(sandbox::CHUNK_PREFIX)?.parse().ok()
}

fn run(path: &Path, watch: &Watch) -> Result<Policy, Diagnostics> {
    let fault = |message: String| Diagnostics::from(Diagnostic::new(path, None, message));
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let bytes = read(path).map_err(fault)?;
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let directory = parent.canonicalize().map_err(|error| fault(format!("cannot resolve its directory: {error}")))?;
    let main = File::new(path.to_owned(), name, bytes);
    let (lua, backend) = evaluate(main, Origin::Directory(directory), watch)?;
    let loading = lua.remove_app_data::<Loading>().expect("an evaluation leaves it there");
    freeze(path, &loading, backend, watch.steps()).map_err(|error| fault(message_of(&error)))
}

/// Runs a policy anew from its kept code, for its hooks. It ends as it did when it was loaded, because nothing that it
/// can see has changed.
pub(super) fn evaluate_kept(files: &Arc<[File]>, watch: &Watch) -> Result<(Lua, Backend), Diagnostics> {
    let (lua, backend) = evaluate(files[0].clone(), Origin::Kept(files.clone()), watch)?;
    Loading::of(&lua).is_over = true;
    Ok((lua, backend))
}

/// The machine keeps its [`Loading`], which knows the files by the names of their chunks.
fn evaluate(main: File, origin: Origin, watch: &Watch) -> Result<(Lua, Backend), Diagnostics> {
    let path = main.source.path.clone();
    let fault = |message: String| Diagnostics::from(Diagnostic::new(&path, None, message));
    let lua = sandbox::machine(watch, constructors::install).map_err(|error| fault(format!("no Lua: {error}")))?;
    lua.set_app_data(Loading { origin, files: Vec::new(), faults: Diagnostics::default(), is_over: false });
    let outcome = run_file(&lua, main);
    let mut loading = Loading::of(&lua);
    let backend = match outcome.map(|value| Built::of(&value)) {
        Ok(Some(Built::Backend(backend))) => Some(backend),
        Ok(Some(Built::Faulty)) if !loading.faults.is_empty() => None,
        Ok(_) => {
            loading.faults.push(Diagnostic::new(&path, None, "policy must end with 'return broker.backend { … }'"));
            None
        }
        Err(error) => {
            let fault = loading.diagnose(&path, &error);
            loading.faults.push(fault);
            None
        }
    };
    loading.find_unknown_names(&lua);
    let faults = std::mem::take(&mut loading.faults);
    drop(loading);
    match backend.filter(|_| faults.is_empty()) {
        Some(backend) => Ok((lua, *backend)),
        None => Err(sorted(&faults)),
    }
}

/// Reads a regular file of bounded size. The error continues "path: …".
fn read(path: &Path) -> Result<Vec<u8>, String> {
    let cannot = |error: std::io::Error| format!("cannot read the policy: {error}");
    // Looked at before it is opened: opening a pipe would wait for its writer.
    let metadata = fs::metadata(path).map_err(cannot)?;
    if !metadata.is_file() {
        return Err("is not a regular file".to_owned());
    }
    if metadata.len() > FILE_MAX_BYTES {
        return Err(format!("is larger than {FILE_MAX_BYTES} bytes"));
    }
    fs::read(path).map_err(cannot)
}

fn run_file(lua: &Lua, file: File) -> mlua::Result<Value> {
    let file = file.compiled();
    let code = file.code.clone();
    let index = {
        let mut loading = Loading::of(lua);
        loading.files.push(LoadedFile { file, value: None });
        loading.files.len() - 1
    };
    let value: Value = match &code {
        Code::Text(text) => lua.load(&text[..]).set_name(chunk_name(index)).set_mode(ChunkMode::Text).eval()?,
        Code::Compiled(code) => lua.load(&code[..]).set_name(chunk_name(index)).set_mode(ChunkMode::Binary).eval()?,
    };
    Loading::of(lua).files[index].value = Some(value.clone());
    Ok(value)
}

/// `broker.import("lib/hosts")`: runs the file below the policy's directory, once, and yields what it returns.
pub(super) fn import(lua: &Lua, name: Value) -> mlua::Result<Value> {
    let name = fields::text(&name)
        .ok_or_else(|| error_at_caller(lua, format_args!("broker.import takes a name, got {}", fields::kind(&name))))?;
    let file = format!("{name}.lua");
    if Loading::of(lua).is_over {
        return Err(error_at_caller(lua, "broker.import is for the file itself: hooks use what it imported"));
    }
    let known = Loading::of(lua).files.iter().position(|loaded| loaded.file.name == file);
    if let Some(known) = known {
        return Loading::of(lua).files[known]
            .value
            .clone()
            .ok_or_else(|| error_at_caller(lua, format_args!("import \"{name}\" goes round in a circle")));
    }
    let refuse = |message: String| error_at_caller(lua, format_args!("cannot import \"{name}\": {message}"));
    if Loading::of(lua).files.len() >= FILES_MAX {
        return Err(refuse(format!("a policy has at most {FILES_MAX} files")));
    }
    let found = Loading::of(lua).find(&file).map_err(refuse)?;
    match run_file(lua, found)? {
        // It would be found much later, by whoever looks into it.
        Value::Nil => Err(refuse(format!("{file} returns nothing: end it with 'return …'"))),
        value => Ok(value),
    }
}

impl Loading {
    fn find(&self, file: &str) -> Result<File, String> {
        let directory = match &self.origin {
            Origin::Directory(directory) => directory,
            Origin::Kept(files) => {
                let kept = files.iter().find(|kept| kept.name == file);
                return kept.cloned().ok_or_else(|| "it was not imported when the policy was loaded".to_owned());
            }
        };
        let relative = Path::new(file);
        let is_plain = relative.components().all(|part| matches!(part, Component::Normal(_)));
        if !is_plain || file.contains(['\\', '\0']) || file.contains("./") || file == ".lua" {
            return Err("the name must be a plain path below the policy's directory".to_owned());
        }
        let shown = self.files[0].file.source.path.with_file_name("").join(relative);
        let real = directory.join(relative).canonicalize().map_err(|error| format!("{}: {error}", shown.display()))?;
        if !real.starts_with(directory) {
            return Err("a symbolic link leads out of the policy's directory".to_owned());
        }
        read(&real).map(|bytes| File::new(shown, file.to_owned(), bytes))
    }

    /// Names that the machine would refuse, in functions that nobody has called yet. Code that was kept is known to have
    /// none.
    fn find_unknown_names(&mut self, lua: &Lua) {
        if matches!(self.origin, Origin::Kept(_)) {
            return;
        }
        let compiled = self.files.iter().filter_map(|loaded| match &loaded.file.code {
            Code::Compiled(code) => Some((&loaded.file, bytecode::globals(code))),
            Code::Text(_) => None,
        });
        let compiled: Vec<(&File, Globals)> = compiled.collect();
        let is_defined = |name: &String| compiled.iter().any(|(_, globals)| globals.writes.contains(name));
        let mut faults = Vec::new();
        for (file, globals) in &compiled {
            for read in globals.reads.iter().filter(|read| read.path.first().is_some_and(|name| !is_defined(name))) {
                let why = why_unknown(lua, &read.path);
                faults.extend(why.map(|why| Diagnostic::new(&file.source.path, Some(read.line), why)));
            }
        }
        faults.into_iter().for_each(|fault| self.faults.push(fault));
    }

    /// An error of Lua as a place and a sentence.
    pub fn diagnose(&self, path: &Path, error: &mlua::Error) -> Diagnostic {
        let text = message_of(error);
        let (text, trace) = text.split_once("\nstack traceback:").unwrap_or((&text, ""));
        let (place, message) = match self.place_at_start(text) {
            Some((place, rest)) => (Some(place), rest.trim_start_matches([':', ' '])),
            // Errors of library functions have no place of their own; who called them is in the trace.
            None => {
                (trace.lines().find_map(|line| self.place_at_start(line.trim_start())).map(|(place, _)| place), text)
            }
        };
        // The address would be different each time.
        let is_address = ["table: 0x", "function: 0x", "userdata: 0x"].iter().any(|start| message.starts_with(start));
        let message = if is_address { "policy raised an error that is no text" } else { message.trim() };
        match place {
            Some((file, line)) => Diagnostic::new(&file.source.path, Some(line), message),
            None => Diagnostic::new(path, None, message),
        }
    }

    /// The file and line that a text starts with, and what follows them.
    fn place_at_start<'a>(&self, text: &'a str) -> Option<((&File, usize), &'a str)> {
        let (index, rest) = text.strip_prefix(sandbox::CHUNK_PREFIX)?.split_once(':')?;
        let (line, rest) = rest.split_once(':')?;
        Some(((&self.files.get(index.parse::<usize>().ok()?)?.file, line.parse().ok()?), rest))
    }
}

/// What the machine says to a name, if it refuses it.
fn why_unknown(lua: &Lua, path: &[String]) -> Option<String> {
    let [name, fields @ ..] = path else { return None };
    let refusal = |error: mlua::Error| {
        let message = message_of(&error);
        // Anything else is a fault of the machine, not of the name.
        message.starts_with("unknown name").then(|| message.lines().next().unwrap_or_default().to_owned())
    };
    let value: Value = match lua.globals().get(name.as_str()) {
        Ok(value) => value,
        Err(error) => return refusal(error),
    };
    let (Some(table), Some(field)) = (value.as_table(), fields.first()) else { return None };
    // A library says `nil`, which a policy may ask for.
    table.get::<Value>(field.as_str()).err().and_then(refusal)
}

fn message_of(error: &mlua::Error) -> String {
    match error {
        mlua::Error::CallbackError { cause, traceback } => format!("{}\n{traceback}", message_of(cause)),
        mlua::Error::SyntaxError { message, .. } | mlua::Error::RuntimeError(message) => message.clone(),
        mlua::Error::MemoryError(_) => memory::EXHAUSTED.to_owned(),
        other => other.to_string(),
    }
}

fn freeze(path: &Path, loading: &Loading, backend: Backend, load_steps: u32) -> mlua::Result<Policy> {
    let files: Vec<&File> = loading.files.iter().map(|loaded| &loaded.file).collect();
    let lines: String = files.iter().map(|file| format!("{} {}\n", file.name, file.digest)).collect();
    let for_all = backend.results.iter().filter(|result| result.tools.is_none());
    let hooks = match backend.hooks.declared.is_empty() {
        true => None,
        // What a policy without hooks does not pay for: its code is kept.
        false => {
            let files = files.iter().map(|file| (*file).clone()).collect();
            Some(Arc::new(Hooks::new(files, backend.hooks.declared, backend.isolate)))
        }
    };
    Ok(Policy {
        path: path.to_owned(),
        digest: Digest::of(lines.as_bytes()),
        files: files.iter().map(|file| (file.source.path.clone(), file.digest)).collect(),
        load_steps,
        scope: backend.scope,
        idle_timeout: backend.idle_timeout,
        queue: backend.queue,
        max_concurrency: backend.max_concurrency,
        on_cancel: backend.on_cancel,
        drift: backend.drift,
        results_for_all: for_all.map(|result| result.placed.clone()).collect(),
        tools: backend.tools,
        results: backend.results,
        hooks,
    })
}

/// In the order of the files and their lines; the constructors report from the inside out.
fn sorted(faults: &Diagnostics) -> Diagnostics {
    let mut all: Vec<Diagnostic> = faults.iter().cloned().collect();
    all.sort_by(|a, b| (&a.file, a.line).cmp(&(&b.file, b.line)));
    // A name that stopped the run is found by reading too.
    all.dedup();
    let mut sorted = Diagnostics::default();
    all.into_iter().for_each(|fault| sorted.push(fault));
    sorted
}
