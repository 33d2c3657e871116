//! What decides, and touches nothing: no runtime, clock, file, environment or log.

pub mod admission;
pub mod diagnostic;
pub mod digest;
pub mod generation;
pub mod launch;
pub mod lifecycle;
pub mod limits;
pub mod moment;
pub mod restart;
pub mod scope_key;
pub mod survivor;
