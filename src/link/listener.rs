//! What a server says of its own accord, and who is told.

use std::fmt;

use bytes::Bytes;

use super::conversation::Link;

/// A message that is no answer.
#[derive(Clone, Copy, Debug)]
pub struct Unasked<'a> {
    pub line: &'a Bytes,
    /// The line, and the parts of it.
    pub text: &'a str,
    pub method: &'a str,
    pub params: Option<&'a str>,
}

/// Who is told. It is called by the one reader of the server's output, so what it passes on keeps its order, also among
/// answers; it must not block.
pub trait Listener: Send + Sync + fmt::Debug {
    /// A notification that is not about the progress of a call. Whether anybody was told.
    fn notified(&self, link: &Link, notice: Unasked<'_>) -> bool;

    /// A request with this id, raw. Whoever takes it sees to its answer by [`Link::ask`]; the error is why nobody does,
    /// for the server.
    fn asked(&self, link: &Link, question: Unasked<'_>, id: &str) -> Result<(), String>;
}

/// For conversations that nobody else listens to.
#[derive(Debug)]
pub struct Nobody;

impl Listener for Nobody {
    fn notified(&self, _: &Link, _: Unasked<'_>) -> bool {
        false
    }

    fn asked(&self, _: &Link, _: Unasked<'_>, _: &str) -> Result<(), String> {
        Err("nobody is there who could answer".to_owned())
    }
}
