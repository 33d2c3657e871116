//! How a call ends.

use bytes::Bytes;

use crate::broker::fault::Fault;
use crate::protocol::answer::{Answer, Passage};
use crate::protocol::error::RpcError;
use crate::protocol::raw::Pieces;

/// What the client gets.
#[derive(Debug)]
pub enum Reply {
    /// The server's response, with the client's id; `error` is the code of one.
    Answer {
        message: Pieces,
        error: Option<i64>,
    },
    Fault(Fault),
    /// The same of a request that is no call of a tool.
    Error(RpcError),
}

impl Reply {
    pub(in crate::broker) fn of(answer: &Answer, id: &Bytes, payload: Option<String>, passage: Passage) -> Self {
        Self::Answer { message: answer.reply(id, payload, passage), error: answer.error_code(passage) }
    }

    /// The code of a JSON-RPC error.
    pub fn error_code(&self) -> Option<i64> {
        match self {
            Self::Answer { error, .. } => *error,
            Self::Error(error) => Some(error.code),
            Self::Fault(_) => None,
        }
    }
}
