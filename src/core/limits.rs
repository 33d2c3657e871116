//! What the processes of one generation may take together, as an operator sets it and as a caller is told of it.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The limits of a tree; none means as much as the machine gives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TreeLimits {
    /// MiB of memory, with what the kernel keeps for it; nothing of it is moved to swap.
    pub memory_max_mb: Option<u64>,
    /// Processes and threads: the kernel counts both alike.
    pub pids_max: Option<u64>,
}

impl TreeLimits {
    /// Those that are set.
    pub fn each(self) -> impl Iterator<Item = TreeLimit> {
        let memory = self.memory_max_mb.map(|max_mb| TreeLimit::Memory { max_mb });
        let pids = self.pids_max.map(|max| TreeLimit::Pids { max });
        memory.into_iter().chain(pids)
    }

    /// Whether no limit is set.
    pub fn is_none(self) -> bool {
        self == Self::default()
    }

    /// The same without those that are not meant.
    #[must_use]
    pub fn only(self, is_meant: impl Fn(TreeLimit) -> bool) -> Self {
        self.each().filter(|limit| is_meant(*limit)).fold(Self::default(), |limits, limit| match limit {
            TreeLimit::Memory { max_mb } => Self { memory_max_mb: Some(max_mb), ..limits },
            TreeLimit::Pids { max } => Self { pids_max: Some(max), ..limits },
        })
    }
}

/// One limit with its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TreeLimit {
    Memory { max_mb: u64 },
    Pids { max: u64 },
}

/// `2048 MiB of memory`: as a sentence goes on after "its limit of". The key in brackets is what an operator looks for.
impl fmt::Display for TreeLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory { max_mb } => write!(f, "{max_mb} MiB of memory (`memory_max_mb`)"),
            Self::Pids { max } => write!(f, "{max} processes and threads (`pids_max`)"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_taken_one_by_one() {
        let both = TreeLimits { memory_max_mb: Some(64), pids_max: Some(20) };
        let said: Vec<String> = both.each().map(|limit| limit.to_string()).collect();
        assert_eq!(said, ["64 MiB of memory (`memory_max_mb`)", "20 processes and threads (`pids_max`)"]);
        let pids = both.only(|limit| matches!(limit, TreeLimit::Pids { .. }));
        assert_eq!(pids, TreeLimits { memory_max_mb: None, pids_max: Some(20) });
        assert!(both.only(|_| false).is_none() && !pids.is_none());
        assert_eq!(TreeLimits::default().each().count(), 0);
    }
}
