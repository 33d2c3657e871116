//! The virtual machine that a policy file runs in: what it may see, and how much it may use.
//!
//! The recipe was found by trying 26 ways to run away (`tests/policy.rs` holds them): an allowlist of globals, wrappers
//! around the four library functions whose C loops neither count steps nor end in time, a memory limit, and an
//! interrupt that counts. Luau calls the interrupt at every loop edge and call and inside its pattern matcher, so the
//! count depends on the policy alone, never on the machine. Without `pcall` nothing can catch the end of the fuel.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use mlua::{Function, Lua, LuaOptions, LuaString, MultiValue, StdLib, Table, Value, VmState};

use super::{fields, memory};

/// Steps that one load, or one call of a hook, may take: about 7 ms of processor time, 2,000 times what the shipped
/// policies need.
pub(super) const STEPS_MAX: u32 = 200_000;

/// Bytes of a string made by `string.rep`, which Rust allocates before the memory limit sees it.
const REPEATED_MAX_BYTES: usize = 1 << 20;

/// Elements moved by one `table.move`.
const MOVED_MAX: f64 = 100_000.0;

/// Everything that a policy sees besides `broker`. Not here on purpose: `pcall` and `xpcall` (would hide failures),
/// `getfenv`, `setfenv`, `loadstring`, `require` (would escape), `print`, `newproxy`, `collectgarbage`, `gcinfo`.
const GLOBALS: [&str; 23] = [
    "_VERSION",
    "assert",
    "bit32",
    "error",
    "getmetatable",
    "ipairs",
    "math",
    "next",
    "pairs",
    "rawequal",
    "rawget",
    "rawlen",
    "rawset",
    "select",
    "setmetatable",
    "string",
    "table",
    "tonumber",
    "tostring",
    "type",
    "typeof",
    "unpack",
    "utf8",
];

/// What the names of all chunks of a policy begin with. Luau would cut a long path, and a path may hold what looks like a
/// line number.
pub(super) const CHUNK_PREFIX: &str = "policy#";

/// How far a machine has come; shared with those who watch it.
#[derive(Clone, Debug, Default)]
pub(super) struct Watch {
    is_stopped: Arc<AtomicBool>,
    steps: Arc<AtomicU32>,
}

/// Where in a chunk the machine is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Position {
    /// The name that the chunk was loaded under.
    pub chunk: String,
    pub line: usize,
}

impl Position {
    fn is_of_policy(&self) -> bool {
        self.chunk.starts_with(CHUNK_PREFIX)
    }
}

impl Watch {
    /// Ends the machine at its next step.
    pub fn stop(&self) {
        self.is_stopped.store(true, Ordering::Relaxed);
    }

    /// Stopped by the same word, with a budget of steps of its own.
    pub fn anew(&self) -> Self {
        Self { is_stopped: self.is_stopped.clone(), steps: Arc::default() }
    }

    pub fn steps(&self) -> u32 {
        self.steps.load(Ordering::Relaxed)
    }

    /// Counts work that Rust does for a policy, where Luau sees one call.
    pub fn charge(lua: &Lua, steps: usize) -> mlua::Result<()> {
        let Some(watch) = lua.app_data_ref::<Self>() else { return Ok(()) };
        watch.take(u32::try_from(steps).unwrap_or(u32::MAX)).map_err(|fault| error_at_step(lua, fault))
    }

    /// The error is what to tell.
    fn take(&self, steps: u32) -> Result<(), String> {
        if self.is_stopped.load(Ordering::Relaxed) {
            return Err("policy took too long".to_owned());
        }
        // One thread counts, so nothing is lost between the two.
        let taken = self.steps();
        self.steps.store(taken.saturating_add(steps), Ordering::Relaxed);
        if taken.saturating_add(steps) > STEPS_MAX {
            return Err(format!("policy used more than its {STEPS_MAX} steps"));
        }
        Ok(())
    }
}

/// A machine with all limits in force. `broker` is installed by `install` before the libraries become read-only.
pub(super) fn machine(watch: &Watch, install: impl FnOnce(&Lua) -> mlua::Result<()>) -> mlua::Result<Lua> {
    let lua = libraries(&[])?;
    install(&lua)?;
    refuse_unknown_names(&lua, &lua.globals(), |name| {
        format!("{}: policies see 'broker' and the pure functions of Lua only", nearest_global(name, &["broker"]))
    })?;
    lua.set_memory_limit(memory::MAX_BYTES)?;
    limit_steps(&lua, watch);
    lua.sandbox(true)?;
    Ok(lua)
}

/// A machine with the bounded library functions and `more` globals beside the known ones; no other limit is in force yet.
pub(super) fn libraries(more: &[&str]) -> mlua::Result<Lua> {
    let libraries = StdLib::TABLE | StdLib::STRING | StdLib::MATH | StdLib::BIT | StdLib::UTF8;
    let lua = Lua::new_with(libraries, LuaOptions::default())?;
    keep_only_known_globals(&lua, more)?;
    wrap_string_functions(&lua)?;
    wrap_table_move(&lua)?;
    Ok(lua)
}

/// An error that carries the line of the caller, as errors of Lua do.
pub(super) fn error_at_caller(lua: &Lua, message: impl std::fmt::Display) -> mlua::Error {
    // Fields of userdata are looked up by a chunk of mlua's own in between.
    match (1..4).find_map(|level| position(lua, level).filter(Position::is_of_policy)) {
        Some(Position { chunk, line }) => mlua::Error::RuntimeError(format!("{chunk}:{line}: {message}")),
        None => mlua::Error::RuntimeError(message.to_string()),
    }
}

/// Where the function at `level` of the stack is (0: the one that runs); nothing for functions that are not Lua.
pub(super) fn position(lua: &Lua, level: usize) -> Option<Position> {
    lua.inspect_stack(level, |frame| {
        let chunk = frame.source().short_src?.into_owned();
        Some(Position { chunk, line: frame.current_line()? })
    })?
}

fn keep_only_known_globals(lua: &Lua, more: &[&str]) -> mlua::Result<()> {
    let globals = lua.globals();
    let names: Vec<Value> =
        globals.pairs::<Value, Value>().map(|pair| pair.map(|(name, _)| name)).collect::<Result<_, _>>()?;
    for name in names {
        if !name.as_string().is_some_and(|name| GLOBALS.iter().chain(more).any(|known| name == known)) {
            globals.raw_set(name, Value::Nil)?;
        }
    }
    // No randomness: the same file means the same policy.
    let math: Table = globals.get("math")?;
    math.raw_set("random", Value::Nil)?;
    math.raw_set("randomseed", Value::Nil)
}

/// Reading a name that `table` does not have is an error that says so, instead of a `nil` that fails somewhere later.
pub(super) fn refuse_unknown_names(
    lua: &Lua,
    table: &Table,
    hint: impl Fn(&str) -> String + Send + 'static,
) -> mlua::Result<()> {
    let refuse = lua.create_function(move |lua, (_, name): (Value, Value)| -> mlua::Result<Value> {
        let name = fields::text(&name).unwrap_or_default();
        Err(error_at_caller(lua, format_args!("unknown name '{name}'{}", hint(&name))))
    })?;
    let metatable = lua.create_table()?;
    metatable.raw_set("__index", refuse)?;
    metatable.raw_set("__metatable", false)?;
    table.set_metatable(Some(metatable))
}

/// A hint for who wrote `name`, where the machine has `more` globals beside the known ones. It counts slips of the finger
/// instead of likeness: `os` and `loadstring` are names that Lua has elsewhere, and not meant for `tostring`.
pub(super) fn nearest_global(name: &str, more: &[&str]) -> String {
    let slips_max = (name.chars().count() / 3).min(2);
    let nearest = GLOBALS.iter().chain(more).map(|known| (strsim::osa_distance(name, known), known)).min();
    match nearest {
        Some((slips, known)) if slips <= slips_max => format!(" (did you mean '{known}'?)"),
        _ => String::new(),
    }
}

/// Puts the machine under `watch` from here on.
pub(super) fn limit_steps(lua: &Lua, watch: &Watch) {
    lua.set_app_data(watch.clone());
    let watch = watch.clone();
    lua.set_interrupt(move |lua| match watch.take(1) {
        Ok(()) => Ok(VmState::Continue),
        Err(fault) => Err(error_at_step(lua, fault)),
    });
}

/// The interrupt runs inside the function that it interrupts, which may be a library function called by a policy.
pub(super) fn error_at_step(lua: &Lua, message: impl std::fmt::Display) -> mlua::Error {
    match (0..5).find_map(|level| position(lua, level).filter(Position::is_of_policy)) {
        Some(Position { chunk, line }) => mlua::Error::RuntimeError(format!("{chunk}:{line}: {message}")),
        None => mlua::Error::RuntimeError(message.to_string()),
    }
}

/// `string.find` and `string.split` look for plain text in quadratic time, `string.rep` has no bound.
fn wrap_string_functions(lua: &Lua) -> mlua::Result<()> {
    let string: Table = lua.globals().get("string")?;
    let find: Function = string.get("find")?;
    let plain_find = lua.create_function(
        move |_, (text, pattern, from, is_plain): (LuaString, LuaString, Option<f64>, Option<Value>)| {
            let is_plain = is_plain.is_some_and(|flag| !matches!(flag, Value::Nil | Value::Boolean(false)));
            let has_magic = pattern.as_bytes().iter().any(|byte| b"^$*+?.([%-".contains(byte));
            if has_magic && !is_plain {
                return find.call::<MultiValue>((text, pattern, from));
            }
            Ok(find_plain(&text.as_bytes(), &pattern.as_bytes(), from.unwrap_or(1.0)))
        },
    )?;
    string.raw_set("find", plain_find)?;
    let split = lua.create_function(|lua, (text, separator): (LuaString, Option<LuaString>)| {
        let separator = separator.map_or_else(|| b",".to_vec(), |separator| separator.as_bytes().to_vec());
        split(lua, &text.as_bytes(), &separator)
    })?;
    string.raw_set("split", split)?;
    let repeat = lua.create_function(|lua, (text, count): (LuaString, f64)| {
        // Casts of floats saturate, and nothing that is no number becomes 0.
        let count = if text.as_bytes().is_empty() { 0 } else { count as usize };
        match text.as_bytes().len().checked_mul(count) {
            Some(length) if length <= REPEATED_MAX_BYTES => lua.create_string(text.as_bytes().repeat(count)),
            _ => Err(error_at_caller(lua, format_args!("string.rep makes at most {REPEATED_MAX_BYTES} bytes"))),
        }
    })?;
    string.raw_set("rep", repeat)
}

fn find_plain(text: &[u8], pattern: &[u8], from: f64) -> MultiValue {
    let length = text.len() as f64;
    let start = if from < 0.0 { (length + from).max(0.0) } else { (from - 1.0).max(0.0) };
    let start = start as usize;
    let found = text.get(start..).and_then(|rest| memchr::memmem::find(rest, pattern));
    match found {
        Some(step) => [start + step + 1, start + step + pattern.len()].into_iter().map(lua_index).collect(),
        None => [Value::Nil].into_iter().collect(),
    }
}

fn lua_index(index: usize) -> Value {
    Value::Number(index as f64)
}

fn split(lua: &Lua, text: &[u8], separator: &[u8]) -> mlua::Result<Table> {
    let parts = lua.create_table()?;
    if separator.is_empty() {
        for byte in text {
            parts.raw_push(lua.create_string([*byte])?)?;
        }
        return Ok(parts);
    }
    let mut from = 0;
    for at in memchr::memmem::find_iter(text, separator) {
        parts.raw_push(lua.create_string(&text[from..at])?)?;
        from = at + separator.len();
    }
    parts.raw_push(lua.create_string(&text[from..])?)?;
    Ok(parts)
}

/// `table.move` over a huge empty range runs for minutes in C.
fn wrap_table_move(lua: &Lua) -> mlua::Result<()> {
    let table: Table = lua.globals().get("table")?;
    let original: Function = table.get("move")?;
    let bounded =
        lua.create_function(move |lua, (from, first, last, to, target): (Table, f64, f64, f64, Option<Table>)| {
            if last - first < MOVED_MAX {
                return original.call::<Table>((from, first, last, to, target));
            }
            Err(error_at_caller(lua, format_args!("table.move moves at most {MOVED_MAX} elements")))
        })?;
    table.raw_set("move", bounded)
}
