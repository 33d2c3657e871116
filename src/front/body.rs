//! Response bodies that were made before anybody asked: no copy but for small ones.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::Body;
use bytes::Bytes;
use http_body::{Frame, SizeHint};

use crate::protocol::raw::Pieces;

/// Up to this length, in bytes, one copy is cheaper than handing several pieces to the socket.
const JOIN_MAX: usize = 8 * 1024;

/// The body of a message.
pub(super) fn of_pieces(pieces: Pieces) -> Body {
    if pieces.len() <= JOIN_MAX { Body::from(pieces.joined()) } else { Body::new(PiecesBody(pieces)) }
}

/// The same as one event of a stream, for a message that the broker has made: it has no line ends.
pub(super) fn of_event(mut pieces: Pieces) -> Body {
    let mut event = Pieces::default();
    event.push(Bytes::from_static(b"event: message\ndata: "));
    while let Some(piece) = pieces.pop() {
        event.push(piece);
    }
    event.push(Bytes::from_static(b"\n\n"));
    of_pieces(event)
}

/// `{"jsonrpc":"2.0","id":` + id + the rest, which is a ready answer from behind the id on.
pub(super) fn ready(id: &str, rest: &Bytes) -> Pieces {
    let mut pieces = Pieces::default();
    pieces.push(format!(r#"{{"jsonrpc":"2.0","id":{id}"#).into());
    pieces.push(rest.clone());
    pieces
}

struct PiecesBody(Pieces);

impl http_body::Body for PiecesBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.0.pop().map(|piece| Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0.len() as u64)
    }
}
