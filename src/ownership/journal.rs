//! Stub.
#[derive(Debug)]
pub struct Journal;
