//! Streams that are kept for clients that come back: the ids of their events, what each keeps (`ring`), and all of them
//! (`table`). No tasks and no clock: whoever asks brings the time.
//!
//! An id names its stream and the place in it, so that what a client has missed is told by the id alone (MCP 2025-11-25,
//! `transports`, Resumability and Redelivery). Nobody has to be kept from guessing one: it counts only within the session
//! whose stream it is.

mod ring;
mod table;

use std::fmt;
use std::str::FromStr;

pub(super) use ring::Next;
pub(super) use table::{Occupancy, Room, Seat, Table};

/// What a stream is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// The answer to a call, and what comes before it.
    Call,
    /// What is no answer: a client's GET.
    Listening,
}

/// The id of an event: `c57a-3` is the third of the call's stream 57a.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct EventId {
    pub kind: Kind,
    pub stream: u64,
    /// From 1 on; 0 comes before the first.
    pub number: u64,
}

impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            Kind::Call => 'c',
            Kind::Listening => 'g',
        };
        write!(f, "{kind}{:x}-{}", self.stream, self.number)
    }
}

/// Nothing that is the id of an event.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NotAnId;

impl FromStr for EventId {
    type Err = NotAnId;

    fn from_str(text: &str) -> Result<Self, NotAnId> {
        let (stream, number) = text.split_once('-').ok_or(NotAnId)?;
        let (kind, stream) = match stream.split_at_checked(1) {
            Some(("c", stream)) => (Kind::Call, stream),
            Some(("g", stream)) => (Kind::Listening, stream),
            _ => return Err(NotAnId),
        };
        let stream = u64::from_str_radix(stream, 16).map_err(|_| NotAnId)?;
        Ok(Self { kind, stream, number: number.parse().map_err(|_| NotAnId)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_read_as_it_was_written_and_nothing_else_is_one() {
        for (id, text) in [
            (EventId { kind: Kind::Call, stream: 0x57a, number: 3 }, "c57a-3"),
            (EventId { kind: Kind::Listening, stream: u64::MAX, number: 0 }, "gffffffffffffffff-0"),
        ] {
            assert_eq!((id.to_string().as_str(), text.parse()), (text, Ok(id)));
        }
        for text in ["", "-", "c-1", "c1", "c1-", "1-1", "x1-1", "cxyz-1", "c1-x", "c1-1-1", "é1-1"] {
            assert_eq!(text.parse::<EventId>(), Err(NotAnId), "{text}");
        }
    }
}
