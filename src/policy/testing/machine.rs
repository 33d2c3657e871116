//! The machine that a test file runs in.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use mlua::chunk::ChunkMode;
use mlua::{Function, Lua, Table, Value, VmState};

use super::given::check_payload;
use super::subject::Subject;
use super::{Seen, Shared, expect, views};
use crate::core::diagnostic::Diagnostic;
use crate::policy::fields::text;
use crate::policy::sandbox::{self, error_at_caller};

/// Steps of one test; hooks that it asks have their own.
const STEPS_MAX: u64 = 10_000_000;
const MEMORY_MAX_BYTES: usize = 64 << 20;
/// Behind the steps, for the work that they do not count.
const WALL_MAX: Duration = Duration::from_secs(5);
/// Between two looks at the clock.
const STEPS_PER_LOOK: u64 = 1_024;
const FILE_MAX_BYTES: u64 = 1 << 20;
const FIXTURE_MAX_BYTES: u64 = 32 << 20;

/// What the names of tests begin with.
const TEST_PREFIX: &str = "test_";

/// Of the form that places in policies have.
const CHUNK: &str = "=policy#test";

/// A file of tests, read once.
pub(super) struct TestFile {
    pub path: PathBuf,
    text: Vec<u8>,
}

/// How one run of one test ended.
pub(super) struct Ended {
    pub failure: Option<Diagnostic>,
    pub steps: u64,
    pub seen: Vec<Seen>,
}

/// What the functions of a test machine share, kept in it.
pub(super) struct Bench {
    pub seen: Vec<Seen>,
    /// Of hooks.
    pub steps: u64,
    /// Where fixtures are.
    directory: PathBuf,
}

impl TestFile {
    pub fn read(path: &Path) -> Result<Self, Diagnostic> {
        let fault = |message: String| Diagnostic::new(path, None, message);
        let length = fs::metadata(path).map_err(|error| fault(format!("cannot be read: {error}")))?.len();
        if length > FILE_MAX_BYTES {
            return Err(fault(format!("is larger than {FILE_MAX_BYTES} bytes")));
        }
        let text = fs::read(path).map_err(|error| fault(format!("cannot be read: {error}")))?;
        Ok(Self { path: path.to_owned(), text })
    }

    /// The names of its tests in the order in which they stand there.
    pub fn names(&self, policies: &Shared<'_>) -> Result<Vec<String>, Diagnostic> {
        let fault = |message: &str| Diagnostic::new(&self.path, None, message);
        let named = self.inside(policies, |_, tests, _| {
            let functions = tests.pairs::<Value, Function>().filter_map(Result::ok);
            let mut names =
                functions.map(|(name, function)| placed(&name, &function)).collect::<Result<Vec<_>, _>>()?;
            names.sort();
            Ok(names.into_iter().map(|(_, name)| name).collect::<Vec<_>>())
        });
        match named {
            Ok(names) if names.is_empty() => {
                Err(fault("has no tests: it must return a table of functions named test_*"))
            }
            Ok(names) => Ok(names),
            Err(error) => Err(self.diagnose(&error)),
        }
    }

    /// Runs one test in a machine of its own.
    pub fn run(&self, name: &str, policies: &Shared<'_>) -> Ended {
        let mut ended = Ended { failure: None, steps: 0, seen: Vec::new() };
        let ran = self.inside(policies, |lua, tests, steps| {
            let outcome = tests.get::<Function>(name).and_then(|test| test.call::<()>(()));
            if let Some(bench) = lua.remove_app_data::<Bench>() {
                ended.steps = steps.load(Ordering::Relaxed) + bench.steps;
                ended.seen = bench.seen;
            }
            outcome
        });
        ended.failure = ran.err().map(|error| self.diagnose(&error));
        ended
    }

    /// Runs the file and hands on what it returns, with the machine and its count of steps.
    fn inside<T>(
        &self,
        policies: &Shared<'_>,
        then: impl FnOnce(&Lua, Table, &AtomicU64) -> mlua::Result<T>,
    ) -> mlua::Result<T> {
        let lua = sandbox::libraries(&["pcall"])?;
        let directory = self.path.parent().unwrap_or(Path::new("")).to_owned();
        lua.set_app_data(Bench { seen: Vec::new(), steps: 0, directory });
        let broker = lua.create_table()?;
        broker.raw_set("null", Value::NULL)?;
        lua.globals().raw_set("broker", &broker)?;
        expect::install(&lua)?;
        lua.set_memory_limit(MEMORY_MAX_BYTES)?;
        let steps = limit(&lua);
        let (loaded, load) = policies;
        lua.scope(|scope| {
            let load_policy = scope.create_function(|lua, name: String| {
                // Also if that fails: then it is what the failure is about.
                loaded.borrow_mut().wanted.insert(name.clone());
                let known = loaded.borrow().loaded.get(&name).cloned();
                let subject = match known {
                    Some(subject) => subject,
                    None => {
                        let subject = load(&name).map_err(|why| error_at_caller(lua, why))?;
                        let subject: Arc<Subject> = Arc::new(subject);
                        loaded.borrow_mut().loaded.insert(name, subject.clone());
                        subject
                    }
                };
                Ok(views::TestedPolicy(subject))
            })?;
            broker.raw_set("load_policy", load_policy)?;
            sandbox::refuse_unknown_names(&lua, &broker, |_| {
                " in broker: tests see 'load_policy' and 'null'".to_owned()
            })?;
            sandbox::refuse_unknown_names(&lua, &lua.globals(), |name| {
                let hint = sandbox::nearest_global(name, &["broker", "expect", "pcall"]);
                format!("{hint}: tests see 'broker', 'expect', 'pcall' and the pure functions of Lua only")
            })?;
            lua.sandbox(true)?;
            let returned: Value = lua.load(&self.text[..]).set_name(CHUNK).set_mode(ChunkMode::Text).eval()?;
            let tests = returned
                .as_table()
                .cloned()
                .ok_or_else(|| mlua::Error::RuntimeError("must return a table of functions named test_*".to_owned()))?;
            then(&lua, tests, &steps)
        })
    }

    /// An error of Lua as a place and a sentence.
    fn diagnose(&self, error: &mlua::Error) -> Diagnostic {
        let text = text_of(error);
        let (text, trace) = text.split_once("\nstack traceback:").unwrap_or((&text, ""));
        let (line, message) = match place(text) {
            Some((line, message)) => (Some(line), message),
            None => (trace.lines().find_map(|line| place(line.trim_start())).map(|(line, _)| line), text),
        };
        Diagnostic::new(&self.path, line, message.trim())
    }
}

impl Bench {
    /// Reads a file of the test's directory.
    pub fn fixture(&self, name: &str) -> Result<String, String> {
        let cannot = |error: std::io::Error| format!("cannot read the fixture \"{name}\": {error}");
        let directory = if self.directory.as_os_str().is_empty() { Path::new(".") } else { &self.directory };
        let directory = directory.canonicalize().map_err(cannot)?;
        let path = directory.join(name).canonicalize().map_err(cannot)?;
        if !path.starts_with(&directory) {
            return Err(format!("the fixture \"{name}\" is not below the directory of the test"));
        }
        let meta = path.metadata().map_err(cannot)?;
        if !meta.is_file() || meta.len() > FIXTURE_MAX_BYTES {
            return Err(format!("the fixture \"{name}\" is no file of at most {FIXTURE_MAX_BYTES} bytes"));
        }
        let text = fs::read_to_string(&path).map_err(cannot)?;
        check_payload(&text).map_err(|unusable| format!("the fixture \"{name}\" {unusable}"))?;
        Ok(text.trim().to_owned())
    }
}

/// The line and the name of a test. Any other function would never run, and nobody would miss it.
fn placed(name: &Value, function: &Function) -> mlua::Result<(Option<usize>, String)> {
    let line = function.info().line_defined;
    let name = match text(name) {
        Some(name) if name.starts_with(TEST_PREFIX) => return Ok((line, name)),
        Some(name) => format!("'{name}'"),
        None => "a function without a name".to_owned(),
    };
    let chunk = CHUNK.trim_start_matches('=');
    let place = line.map_or_else(String::new, |line| format!("{chunk}:{line}: "));
    let message = format!("{place}{name} is no test: the names of tests must begin with '{TEST_PREFIX}'");
    Err(mlua::Error::RuntimeError(message))
}

fn limit(lua: &Lua) -> Arc<AtomicU64> {
    let steps = Arc::new(AtomicU64::new(0));
    let (counted, began) = (steps.clone(), Instant::now());
    lua.set_interrupt(move |lua| {
        let taken = counted.fetch_add(1, Ordering::Relaxed);
        let over = match taken {
            taken if taken >= STEPS_MAX => Some(format!("the test used more than its {STEPS_MAX} steps")),
            taken if taken % STEPS_PER_LOOK == 0 && began.elapsed() > WALL_MAX => {
                Some(format!("the test took longer than {} s", WALL_MAX.as_secs()))
            }
            _ => None,
        };
        over.map_or(Ok(VmState::Continue), |why| Err(sandbox::error_at_step(lua, why)))
    });
    steps
}

/// The line that a text starts with, and what follows it.
fn place(text: &str) -> Option<(usize, &str)> {
    let (line, rest) = text.strip_prefix("policy#test:")?.split_once(|c: char| !c.is_ascii_digit())?;
    Some((line.parse().ok()?, rest.trim_start_matches([':', ' '])))
}

fn text_of(error: &mlua::Error) -> String {
    match error {
        mlua::Error::CallbackError { cause, traceback } => format!("{}\n{traceback}", text_of(cause)),
        mlua::Error::SyntaxError { message, .. } | mlua::Error::RuntimeError(message) => message.clone(),
        mlua::Error::MemoryError(_) => format!("the test used more than its {} MiB of memory", MEMORY_MAX_BYTES >> 20),
        other => other.to_string(),
    }
}

/// For the functions of a test machine.
pub(super) fn bench(lua: &Lua) -> mlua::AppDataRefMut<'_, Bench> {
    lua.app_data_mut().expect("it is set before a test runs, and borrowed by one Rust function at a time")
}
