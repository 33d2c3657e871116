//! Real processes under a real keeper. Each test ends by asking `/proc` that nothing of it is left.
//!
//! The scripts are Perl, which every Debian has and which forks fast.

#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a test that cannot go on fails; measurements are shown")]

mod broker_death;
mod cgroup;
mod escape;
mod journal;
mod limits;
mod lost_keeper;
mod spawn;
mod support;
mod tree;
mod windows;
