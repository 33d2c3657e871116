//! Lines out of a byte stream, with a bound on their length.
//!
//! MCP over stdio is one message a line (2025-11-25, `transports`, stdio). A line over the bound is passed over; its
//! ends are kept, because the id in them tells whose answer it was.

use bytes::{Bytes, BytesMut};

/// How much of an oversized line is kept at each end, in bytes.
const ENDS_KEPT: usize = 512;

/// From this length on, in bytes, a line's memory is given back as soon as the line is gone.
const LARGE: usize = 256 * 1024;

/// What the splitter found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// A line without its line feed, never empty.
    Line(Bytes),
    /// A line over the bound was passed over.
    TooLong { head: Bytes, tail: Bytes, len: u64 },
}

/// Splits what is read into lines. The reader appends to `buffer()` and then takes frames until it is `None`.
#[derive(Debug)]
pub struct Lines {
    buffer: BytesMut,
    /// Bytes at the front of `buffer` that are known to hold no line feed.
    searched: usize,
    frame_len_max: usize,
    skipping: Option<Skipped>,
}

#[derive(Debug)]
struct Skipped {
    head: Bytes,
    tail: Vec<u8>,
    len: u64,
}

impl Lines {
    /// `frame_len_max`: the longest line handed out, in bytes.
    pub fn new(frame_len_max: usize) -> Self {
        Self { buffer: BytesMut::new(), searched: 0, frame_len_max, skipping: None }
    }

    /// Where the reader puts new bytes: at the end.
    pub fn buffer(&mut self) -> &mut BytesMut {
        &mut self.buffer
    }

    /// The next whole line, or that one was too long.
    pub fn take_frame(&mut self) -> Option<Frame> {
        loop {
            let Some(at) = memchr::memchr(b'\n', &self.buffer[self.searched..]).map(|i| i + self.searched) else {
                self.searched = self.buffer.len();
                if self.searched > self.frame_len_max || self.skipping.is_some() {
                    self.skip();
                }
                return None;
            };
            let line = self.buffer.split_to(at + 1).freeze().slice(..at);
            self.searched = 0;
            if line.len() > LARGE {
                // Else the rest would keep the large allocation alive, and the next line would reuse it for ever.
                self.buffer = BytesMut::from(&self.buffer[..]);
            }
            if let Some(mut skipped) = self.skipping.take() {
                skipped.add(&line);
                return Some(skipped.into_frame());
            }
            if line.len() > self.frame_len_max {
                let mut skipped = Skipped::new(&line);
                skipped.add(&line);
                return Some(skipped.into_frame());
            }
            let line = match line.last() {
                Some(b'\r') => line.slice(..line.len() - 1),
                _ => line,
            };
            if !line.is_empty() {
                return Some(Frame::Line(line));
            }
        }
    }

    fn skip(&mut self) {
        let part = self.buffer.split().freeze();
        self.searched = 0;
        self.skipping.get_or_insert_with(|| Skipped::new(&part)).add(&part);
    }
}

impl Skipped {
    fn new(start: &Bytes) -> Self {
        let head = Bytes::copy_from_slice(&start[..start.len().min(ENDS_KEPT)]);
        Self { head, tail: Vec::new(), len: 0 }
    }

    fn add(&mut self, part: &[u8]) {
        self.len += part.len() as u64;
        self.tail.extend_from_slice(&part[part.len().saturating_sub(ENDS_KEPT)..]);
        let surplus = self.tail.len().saturating_sub(ENDS_KEPT);
        self.tail.drain(..surplus);
    }

    fn into_frame(self) -> Frame {
        Frame::TooLong { head: self.head, tail: self.tail.into(), len: self.len }
    }
}

/// The integer id of an oversized message, if it stands right at its start or its end.
///
/// SDKs write it in either place: `{"jsonrpc":"2.0","id":7,…` or `…},"jsonrpc":"2.0","id":7}`. Anywhere else it could
/// belong to something inside the result, so it is not looked for.
pub fn id_of_oversized(head: &[u8], tail: &[u8]) -> Option<u64> {
    id_at_start(head).or_else(|| id_at_end(tail))
}

fn id_at_start(head: &[u8]) -> Option<u64> {
    let head = String::from_utf8_lossy(head).replace([' ', '\t'], "");
    let rest = head.strip_prefix('{')?;
    let rest = rest.strip_prefix(r#""jsonrpc":"2.0","#).unwrap_or(rest);
    let (id, rest) = rest.strip_prefix(r#""id":"#)?.split_once(',')?;
    // Else it may be a request of the server's own, with an id of its own.
    let is_answer = rest.starts_with(r#""result""#) || rest.starts_with(r#""error""#);
    is_answer.then(|| digits(id)).flatten()
}

fn id_at_end(tail: &[u8]) -> Option<u64> {
    let tail = String::from_utf8_lossy(tail).replace([' ', '\t', '\r'], "");
    let rest = tail.strip_suffix('}')?;
    let rest = rest.strip_suffix(r#","jsonrpc":"2.0""#).unwrap_or(rest);
    let (before, id) = rest.rsplit_once(r#""id":"#)?;
    before.ends_with(',').then(|| digits(id)).flatten()
}

fn digits(text: &str) -> Option<u64> {
    text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(max: usize, chunks: &[&str]) -> Vec<Frame> {
        let mut lines = Lines::new(max);
        let mut out = Vec::new();
        for chunk in chunks {
            lines.buffer().extend_from_slice(chunk.as_bytes());
            while let Some(frame) = lines.take_frame() {
                out.push(frame);
            }
        }
        out
    }

    fn line(text: &'static str) -> Frame {
        Frame::Line(Bytes::from_static(text.as_bytes()))
    }

    #[test]
    fn lines_are_found_wherever_the_reads_end() {
        assert_eq!(split(100, &["a\nb", "c\r\n\n", "\r\nd", "\n"]), [line("a"), line("bc"), line("d")]);
    }

    #[test]
    fn a_line_over_the_bound_is_passed_over_and_the_next_one_is_fine() {
        let long = "x".repeat(50);
        let frames = split(10, &["ok\n", &long, &long, "y\nnext\n"]);
        assert_eq!(frames[0], line("ok"));
        assert!(matches!(&frames[1], Frame::TooLong { len: 101, tail, .. } if tail.ends_with(b"xy")));
        assert_eq!(frames[2], line("next"));
        assert!(matches!(&split(10, &[&format!("{long}\nz\n")])[0], Frame::TooLong { len: 50, .. }));
        assert_eq!(split(3, &["abc\n"]), [line("abc")]);
    }

    #[test]
    fn the_id_is_found_at_either_end_only() {
        assert_eq!(id_of_oversized(br#"{"jsonrpc": "2.0", "id": 71, "result""#, b""), Some(71));
        assert_eq!(id_of_oversized(br#"{"id":5,"error":{"x"#, b""), Some(5));
        assert_eq!(id_of_oversized(br#"{"id":5,"method":"x"#, b""), None);
        assert_eq!(id_of_oversized(br#"{"result":{"id":9"#, br#"}],"jsonrpc":"2.0","id":12}"#), Some(12));
        assert_eq!(id_of_oversized(br#"{"result":{"#, br#"}},"id":3,"jsonrpc":"2.0"}"#), Some(3));
        assert_eq!(id_of_oversized(br#"{"result":{"id":9"#, br#"{"id":4}]}}"#), None);
    }
}
