//! Our JSON-RPC conversation with one generation, over the pipes of its process.
//!
//! A raw relay: a client's request goes out with the broker's own id (and progress token) in place of the client's,
//! an answer comes back as the bytes that the server wrote. One writer joins waiting lines into one write, one reader
//! finds whose answer a line is, a third drains stderr into a bounded ring. The link knows nothing of slots: what
//! must be held while a call is out (its lease) is handed in as an opaque value and dropped when the call leaves; and of
//! clients only what a call brings with it: what a server says of its own accord goes to a [`Listener`].
//!
//! Stdio framing by MCP 2025-11-25, `transports`; cancellation and progress by `basic/utilities`.

mod conversation;
mod handshake;
mod listener;
mod outbox;
mod pending;
mod questions;
mod reader;
mod stderr;
mod wishes;
mod writer;

pub use conversation::{InFlight, Link, LinkLimits, NotSent, OWN_IDS, Streams};
pub use handshake::{Greeting, HandshakeError, RequestError};
pub use listener::{Listener, Nobody, Unasked};
pub use outbox::Outbox;
pub use pending::{Caller, CanAnswer, Extension, Loss, Outcome};
pub use questions::fresh_question_id;
