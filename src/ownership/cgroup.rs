//! The second owner of a tree, beside the keeper: a cgroup of its own, where the machine lets the broker make one.
//!
//! Responsible for finding the place, and for one cgroup a generation: making, limiting, killing, asking, removing it.
//! Leaves to others: when to do so, and what a process does that has moved itself out (the keeper has it still).
//! Where no backend asks for limits no controller is turned on, so processes may stay in the cgroup above, the broker's
//! own, and the server alone is moved; `controllers` says what is done where one does.
//!
//! **Invariant:** `cgroup.kill` is written only in a cgroup that carries the names of this installation, an instance and
//! a generation, so whoever is in it came there as a part of that generation's tree.
//!
//! On whose word: the kernel's Documentation/admin-guide/cgroup-v2.rst ("Core Interface Files", "Delegation"),
//! proc(5) `/proc/pid/mountinfo`, cgroups(7).

mod controllers;
mod group;
mod home;
mod limits;

pub use controllers::Controller;
pub use group::Cgroup;
pub use home::{Cgroups, NoCgroups};
pub(in crate::ownership) use limits::{Level, LimitWatch};
