//! Stub.
#[derive(Debug)]
pub struct InstanceDir;
