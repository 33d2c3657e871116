//! The Windows side of a generation, for a server under WSL that starts Windows programs: found by a marker on their
//! command lines, ended, and asked for again until nobody has it.
//!
//! Responsible for one sweep of that side: running `powershell.exe` with our script, which asks Windows; believing
//! nothing but the answer that the contract describes; giving up in time.
//! Leaves to others: when to sweep (the keeper does once its Linux side is empty; the broker where a keeper is lost and
//! for leftovers), and what to do about a side that is not proved empty. It blocks and knows no runtime, because the
//! keeper has none.
//!
//! **Invariant:** what runs is named by the configuration and the script is a part of this binary. A journal gives the
//! parts of a marker and nothing else, and these are checked.
//!
//! **Invariant:** no answer, a wrong one, a late or an endless one is "not proved", never "empty".
//!
//! On whose word: Microsoft's about_PowerShell_exe (5.1) for `-EncodedCommand`, Win32_Process of WMI, WSL's
//! documentation of interoperability for what a Linux process needs to start a Windows one. Tested against a stand-in
//! that keeps the same contract, which `docs/reference/windows.md` has.

mod contract;
mod helper;
mod marker;
mod sweep;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

pub use marker::Marker;
pub(super) use sweep::{WindowsSweep, sweep};

/// What on the Windows side belongs to a generation, and how it is asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WindowsSide {
    pub marker: Marker,
    pub powershell: Powershell,
}

/// The program that asks Windows, and what it needs of the broker's environment. `Debug` shows no value of that.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Powershell {
    program: PathBuf,
    env: BTreeMap<String, String>,
}

/// What a Linux process needs to start a Windows one: where WSL listens for that, and for which distribution.
const PASSED: [&str; 3] = ["PATH", "WSL_INTEROP", "WSL_DISTRO_NAME"];

impl Powershell {
    /// `program` is an absolute path; of `env`, the broker's, only what is needed is taken.
    pub fn new(program: PathBuf, env: &BTreeMap<String, String>) -> Self {
        let env = env.iter().filter(|(name, _)| PASSED.contains(&name.as_str()));
        Self { program, env: env.map(|(name, value)| (name.clone(), value.clone())).collect() }
    }

    fn program(&self) -> &Path {
        &self.program
    }

    fn env(&self) -> impl Iterator<Item = (&String, &String)> {
        // The socket of a terminal that is closed by now would only fail; without its name WSL looks for another.
        self.env.iter().filter(|(name, value)| *name != "WSL_INTEROP" || Path::new(value).exists())
    }
}

impl std::fmt::Debug for Powershell {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Powershell").field("program", &self.program).field("env", &self.env.keys()).finish()
    }
}
