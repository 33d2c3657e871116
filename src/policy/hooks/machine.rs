//! Machines for hooks: made from the kept code of a policy, kept warm, thrown away after any failure.

use mlua::state::{GcIncParams, GcMode};
use mlua::{Function, IntoLuaMulti, Lua, Value};

use super::{Hook, Ticket};
use crate::core::diagnostic::Diagnostic;
use crate::policy::load::{self, Loading};
use crate::policy::memory::Building;
use crate::policy::sandbox::{self, Watch};

/// Warm machines of one thread, half a mebibyte each and its garbage. The one that was not used for longest goes first.
const WARM_MAX: usize = 8;

/// A machine that holds more than this after a call is not kept: the next call could not use the whole of its budget.
const KEPT_MAX_BYTES: usize = 4 << 20;

/// How much of its live data a machine may hold, in percent, before its garbage is looked for. Nearly all of a call is
/// garbage after it, and the rest never changes: looked for at twice the size, which is the default, a tenth of a small
/// hook's time went there.
const HEAP_GOAL: i32 = 300;

/// The warm machines of one policy thread; each serves one policy alone.
#[derive(Default)]
pub(in crate::policy) struct Machines(Vec<Machine>);

struct Machine {
    /// Of [`super::Hooks`].
    id: u64,
    lua: Lua,
    /// In the order of the declarations.
    functions: Vec<Function>,
}

impl Machines {
    /// Calls a hook. `arguments` makes what it gets; `read` makes of what it returned what the caller wants, in the same
    /// budget. After a failure the machine is gone, and with it whatever state had led there.
    pub fn call<A: IntoLuaMulti, T>(
        &mut self,
        hook: &Hook,
        ticket: &Ticket,
        arguments: impl FnOnce(&Lua) -> mlua::Result<A>,
        read: impl FnOnce(&Lua, Value) -> Result<T, HookError>,
    ) -> Result<T, Diagnostic> {
        let machine = match self.take(hook) {
            Some(machine) => machine,
            None => Machine::new(hook, &ticket.watch)?,
        };
        let lua = &machine.lua;
        sandbox::limit_steps(lua, &ticket.watch);
        ticket.hook_begins();
        let shown = Building::begin(lua).and_then(|_building| arguments(lua)?.into_lua_multi(lua));
        let answer = shown.and_then(|shown| machine.functions[hook.index].call::<Value>(shown));
        let outcome = answer.map_err(HookError::Lua).and_then(|answer| read(lua, answer));
        let fault = match outcome {
            Ok(value) => {
                self.keep(machine, hook);
                return Ok(value);
            }
            Err(HookError::Lua(error)) => {
                let path = &hook.declared().tools.file;
                let fault = Loading::of(lua).diagnose(path, &error);
                // Without a place of its own it is about the hook as a whole.
                if fault.line.is_none() { hook.fault(fault.message) } else { fault }
            }
            Err(HookError::Answer(message)) => hook.fault(message),
        };
        Err(fault)
    }

    fn take(&mut self, hook: &Hook) -> Option<Machine> {
        if hook.hooks.isolate {
            return None;
        }
        let at = self.0.iter().position(|machine| machine.id == hook.hooks.id)?;
        Some(self.0.remove(at))
    }

    fn keep(&mut self, machine: Machine, hook: &Hook) {
        if hook.hooks.isolate {
            return;
        }
        let is_large = || machine.lua.used_memory() > KEPT_MAX_BYTES;
        if is_large() && (machine.lua.gc_collect().is_err() || is_large()) {
            return;
        }
        if self.0.len() >= WARM_MAX {
            self.0.remove(0);
        }
        self.0.push(machine);
    }
}

/// Why a hook gave nothing that can be used.
pub(in crate::policy) enum HookError {
    Lua(mlua::Error),
    /// It returned something that means nothing.
    Answer(String),
}

impl From<mlua::Error> for HookError {
    fn from(error: mlua::Error) -> Self {
        Self::Lua(error)
    }
}

impl Machine {
    fn new(hook: &Hook, watch: &Watch) -> Result<Self, Diagnostic> {
        let made = load::evaluate_kept(&hook.hooks.files, &watch.anew());
        let (lua, backend) = made.map_err(|faults| {
            let first = faults.iter().next().cloned();
            first.unwrap_or_else(|| hook.fault("policy could not be run again"))
        })?;
        lua.gc_set_mode(GcMode::Incremental(GcIncParams::default().goal(HEAP_GOAL)));
        super::register(&lua).map_err(|error| hook.fault(format!("no Lua: {error}")))?;
        Ok(Self { id: hook.hooks.id, lua, functions: backend.hooks.functions })
    }
}
