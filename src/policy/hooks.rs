//! The functions of a policy that run during calls: `on_call`, `on_result`, `scope_key`.
//!
//! A policy with hooks keeps the code that was hashed when it was loaded, and nothing else of Lua. When a hook is first
//! needed, a policy thread (`pool.rs`) makes a machine by running that code in the same sandbox, under the same budget,
//! and keeps it warm (`machine.rs`). Each call of a hook has its own budget of steps and memory, and a watchdog behind.
//! Whatever goes wrong is a [`Diagnostic`] with file and line, and the caller denies (invariant 11).
//!
//! - `jobs.rs` is what is done for one question, `decide.rs` beside this module asks it.
//! - `views.rs` is what a hook sees of a call and of a request; `result_view.rs` and `item_view.rs` of a result, by spans over
//!   its bytes.
//! - `verdict.rs` is what `on_call` may answer; `patch.rs` carries a merge patch out on the raw arguments.
//! - `lua_json.rs` goes between JSON and Lua; `helpers.rs` are the pure functions in `broker`.
//!
//! Not here: what a failure looks like to a client.

mod helpers;
mod item_view;
mod jobs;
mod lua_json;
mod machine;
mod objects;
mod patch;
mod pool;
mod result_view;
mod verdict;
mod views;

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use mlua::{Function, Lua, Table};

pub(super) use self::jobs::{CallJob, ResultJob, failed, judge_result_by_rules, scope_key};
use self::machine::Machines;
use self::pool::Ticket;
pub(super) use self::pool::{THREADS_MAX, ask, ask_blocking};
use self::result_view::ResultView;
use self::views::CallView;
use super::constructors::mention;
use super::fields::{Fields, kind, shown};
use super::frozen::Mention;
use super::load::File;
use crate::core::diagnostic::Diagnostic;

pub use self::pool::abandoned as threads_abandoned;

/// When a hook is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    OnCall,
    OnResult,
    ScopeKey,
}

impl Kind {
    pub fn field(self) -> &'static str {
        match self {
            Self::OnCall => "on_call",
            Self::OnResult => "on_result",
            Self::ScopeKey => "scope_key",
        }
    }
}

/// A hook as the file declares it.
#[derive(Clone, Debug)]
pub(super) struct Declared {
    pub kind: Kind,
    /// Every tool, for `scope_key`. The place is that of the key in the file.
    pub tools: Mention,
}

/// What one run of a policy file declares. The functions belong to the machine of that run.
#[derive(Clone, Debug, Default)]
pub(super) struct Declarations {
    pub declared: Vec<Declared>,
    /// In the same order.
    pub functions: Vec<Function>,
}

/// The hooks of a policy, and the code to make machines for them of.
#[derive(Debug)]
pub(super) struct Hooks {
    /// Tells the machines of one policy from those of all others, of a reload with the same files too.
    id: u64,
    isolate: bool,
    /// The main file first.
    files: Arc<[File]>,
    declared: Vec<Declared>,
}

/// One hook, ready to be asked. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Hook {
    hooks: Arc<Hooks>,
    index: usize,
}

/// A place in a policy, for people: `policies/x.lua:30`.
#[derive(Clone, Debug)]
pub(super) struct At {
    pub file: PathBuf,
    pub line: usize,
}

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file.display(), self.line)
    }
}

impl Declarations {
    pub fn read(fields: &mut Fields<'_>) -> Self {
        let mut found = Self::default();
        for kind in [Kind::OnCall, Kind::OnResult] {
            fields.table(kind.field(), |entries| found.read_of_tools(kind, entries));
        }
        let place = fields.place(Kind::ScopeKey.field());
        if let Some(function) = fields.function(Kind::ScopeKey.field())
            && let Some(tools) = mention(fields, place, "*")
        {
            found.push(Kind::ScopeKey, tools, function);
        }
        found
    }

    fn read_of_tools(&mut self, kind: Kind, entries: &mut Fields<'_>) {
        for (name, value) in entries.take_all() {
            let Some(function) = value.as_function() else {
                entries.fault_of(&name, format!("must be a function, got {}", shown(&value)));
                continue;
            };
            let mut place = entries.place(&name);
            place.name = kind.field().to_owned();
            if let Some(tools) = mention(entries, place, &name) {
                self.push(kind, tools, function.clone());
            }
        }
    }

    fn push(&mut self, kind: Kind, tools: Mention, function: Function) {
        self.declared.push(Declared { kind, tools });
        self.functions.push(function);
    }

    pub fn has_scope_key(&self) -> bool {
        self.declared.iter().any(|declared| declared.kind == Kind::ScopeKey)
    }
}

impl Hooks {
    pub fn new(files: Arc<[File]>, declared: Vec<Declared>, isolate: bool) -> Self {
        static IDS: AtomicU64 = AtomicU64::new(0);
        Self { id: IDS.fetch_add(1, Ordering::Relaxed), isolate, files, declared }
    }

    pub fn isolated(&self) -> Self {
        Self::new(self.files.clone(), self.declared.clone(), true)
    }

    /// The hook for a tool: the one whose pattern is the most specific.
    pub fn find(hooks: &Arc<Self>, kind: Kind, tool: &str) -> Option<Hook> {
        let fits = |declared: &Declared| declared.kind == kind && declared.tools.pattern.matches(tool);
        let found = hooks.declared.iter().enumerate().filter(|(_, declared)| fits(declared));
        let (index, _) = found.max_by_key(|(_, declared)| declared.tools.pattern.specificity())?;
        Some(Hook { hooks: hooks.clone(), index })
    }

    /// Tool patterns of hooks.
    pub fn mentions(&self) -> impl Iterator<Item = &Mention> + Clone {
        self.declared.iter().filter(|declared| declared.kind != Kind::ScopeKey).map(|declared| &declared.tools)
    }
}

impl Hook {
    fn declared(&self) -> &Declared {
        &self.hooks.declared[self.index]
    }

    /// Where it stands.
    pub fn place(&self) -> At {
        let tools = &self.declared().tools;
        At { file: tools.file.clone(), line: tools.line }
    }

    /// A fault of the hook as a whole.
    pub fn fault(&self, message: impl Into<String>) -> Diagnostic {
        let tools = &self.declared().tools;
        Diagnostic::new(&tools.file, Some(tools.line), message)
    }
}

/// Makes a machine ready for views and verdicts, so that each call of a hook takes the same steps.
fn register(lua: &Lua) -> mlua::Result<()> {
    ResultView::register(lua)?;
    lua.create_userdata(CallView::new(&Arc::default())).map(drop)
}

/// Puts what hooks use into `broker`; their names, for suggestions.
pub(super) fn install(lua: &Lua, broker: &Table) -> mlua::Result<[&'static str; 5]> {
    verdict::install(lua, broker)?;
    helpers::install(lua, broker)?;
    Ok(["allow", "deny", "null", "parse_url", "path_is_inside"])
}

/// "a table", "nil", for messages about what a hook gave.
fn a_kind(value: &mlua::Value) -> String {
    match kind(value) {
        "nil" => "nil".to_owned(),
        kind => format!("a {kind}"),
    }
}
