//! Another revision: by the files, or by an operator's word on one backend.

use schemars::JsonSchema;
use serde::Deserialize;

use super::Context;
use super::looks::{BackendName, unknown};
use crate::broker::{Fault, ReloadOptions, ReloadReport};

pub(super) const RELOAD: &str = "Reads configuration, catalogs and policies again. If nothing is wrong with them they \
are served when this answers: what has not changed keeps its processes, what is started differently ends its calls and \
is replaced. If anything is wrong nothing changes, and errors has all of it with file and line.";
pub(super) const ENABLE: &str = "Serves a backend that is disabled, until the broker restarts, whatever the \
configuration says of it. Starts nothing. The answer is that of broker_reload.";
pub(super) const DISABLE: &str = "Stops serving a backend until the broker restarts, whatever the configuration says \
of it: its URL answers 404, its sessions are over, its calls may end, and its instances are stopped and proved gone. The \
answer is that of broker_reload.";

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Reload {
    /// Say what would change, and change nothing.
    #[serde(default)]
    dry_run: bool,
    /// Record the policies and catalogs as accepted, if they can be served.
    #[serde(default)]
    accept: bool,
}

pub(super) async fn broker_reload(context: Context, reload: Reload) -> Result<ReloadReport, Fault> {
    let Reload { dry_run, accept } = reload;
    Ok(context.broker.reload(ReloadOptions { dry_run, accept }).await)
}

pub(super) async fn enable_backend(context: Context, name: BackendName) -> Result<ReloadReport, Fault> {
    switch(context, &name.backend, true).await
}

pub(super) async fn disable_backend(context: Context, name: BackendName) -> Result<ReloadReport, Fault> {
    switch(context, &name.backend, false).await
}

async fn switch(context: Context, name: &str, enabled: bool) -> Result<ReloadReport, Fault> {
    if !context.broker.snapshot().config.backends.contains_key(name) {
        return Err(unknown(&context, name));
    }
    Ok(context.broker.switch(name, enabled).await)
}
