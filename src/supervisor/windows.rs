//! The Windows side of a backend that has one, as its configuration and this process's environment make it.

use crate::config::{self, BackendConfig, Config, ResolveError, Surroundings, Vars};
use crate::ownership::{Marker, Powershell, WindowsSide};

/// What is to be swept there for a generation with this marker; `None` when the backend has no such side.
///
/// # Errors
/// There is nothing to ask Windows with, so nothing could be proved.
pub fn windows_side(
    backend: &BackendConfig,
    vars: &Vars,
    surroundings: &Surroundings,
    marker: Marker,
) -> Result<Option<WindowsSide>, ResolveError> {
    if !backend.ownership.windows {
        return Ok(None);
    }
    let program = config::powershell(Some(backend), vars, surroundings)?;
    Ok(Some(WindowsSide { marker, powershell: Powershell::new(program, &surroundings.env) }))
}

/// How Windows is asked for what an earlier broker left of a backend, which may not be configured any more.
///
/// # Errors
/// There is nothing to ask with; says what was looked for.
pub fn powershell_of(config: &Config, backend: &str) -> Result<Powershell, String> {
    let surroundings = Surroundings::of_this_process();
    let program = config::powershell(config.backends.get(backend), &config.vars, &surroundings);
    program.map(|program| Powershell::new(program, &surroundings.env)).map_err(|error| error.to_string())
}
