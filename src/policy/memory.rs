//! The memory that one machine may hold, and how Rust builds in it what a policy sees.
//!
//! A policy's own code is bounded by the allocator, which refuses. That has a price for Rust: while an allocation may be
//! refused, mlua makes each step that allocates a protected call, with two closures for the collector to find again; of
//! the time of a small hook that was two thirds. So Rust builds with nothing refused, and looks at the memory itself.

use mlua::Lua;

/// Bytes that one machine may hold. An empty one holds half a mebibyte.
pub(super) const MAX_BYTES: usize = 8 << 20;

/// What to tell of a policy that wants more.
pub(super) const EXHAUSTED: &str = "policy used more than its 8 MiB of memory";

/// While it lives, a machine is refused no memory. No code of a policy may run in that time, and who builds what is not
/// small asks [`Self::check`] before.
pub(super) struct Building<'l> {
    lua: &'l Lua,
    /// What was in force before: none if others are building already.
    limit: usize,
}

impl<'l> Building<'l> {
    pub fn begin(lua: &'l Lua) -> mlua::Result<Self> {
        Ok(Self { lua, limit: lua.set_memory_limit(0)? })
    }

    /// Whether there is room for `bytes` more.
    pub fn check(&self, bytes: usize) -> Result<(), &'static str> {
        match self.lua.used_memory().saturating_add(bytes) > MAX_BYTES {
            true => Err(EXHAUSTED),
            false => Ok(()),
        }
    }
}

impl Drop for Building<'_> {
    fn drop(&mut self) {
        // It fails for states that mlua has not made itself, and then the beginning had failed.
        let _ = self.lua.set_memory_limit(self.limit);
    }
}
