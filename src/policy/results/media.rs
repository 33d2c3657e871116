//! Images and sounds that a rule wants out of a result: what they are, and their bytes out of the base64.
//!
//! Where the bytes go is for the caller to say ([`Keep`]); nothing here knows files.

use std::borrow::Cow;
use std::io;

use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};

use crate::policy::json;

/// Characters decoded at once: four for each three bytes.
const CHUNK: usize = 4 * 8192;

/// Padding is optional, because JavaScript's decoders do not ask for it either.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// An image or sound in a result, as the server wrote it.
#[derive(Debug)]
pub struct Media<'a> {
    pub kind: MediaKind,
    /// In the server's words; nothing but to be repeated to clients.
    pub mime_type: Cow<'a, str>,
    /// Bytes when decoded, by the length of the base64.
    pub size: u64,
    base64: Cow<'a, str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MediaKind {
    Image,
    Audio,
}

/// Where a client finds what was kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    pub uri: String,
    /// For people and models; not a path.
    pub name: String,
}

/// Keeps the bytes of an image or sound somewhere; `None` if that did not succeed, then they are lost.
pub type Keep<'k> = dyn FnMut(&Media<'_>) -> Option<Link> + 'k;

impl<'a> Media<'a> {
    pub(super) fn new(kind: MediaKind, mime_type: Cow<'a, str>, base64: Cow<'a, str>) -> Self {
        Self { kind, mime_type, size: decoded_len(&base64), base64 }
    }

    /// Writes the bytes, some tens of kilobytes at once.
    ///
    /// # Errors
    /// What `out` says, or `InvalidData` for what is not base64; some of it may have been written then.
    pub fn write_to(&self, out: &mut impl io::Write) -> io::Result<()> {
        let mut buffer = vec![0; CHUNK / 4 * 3];
        let mut written = 0;
        for chunk in self.base64.as_bytes().chunks(CHUNK) {
            let length = BASE64.decode_slice(chunk, &mut buffer).map_err(invalid)?;
            out.write_all(&buffer[..length])?;
            written += length as u64;
        }
        // Padding in the midst of it is taken for an end by one reader and skipped by another.
        if written == self.size { Ok(()) } else { Err(invalid("padding before the end")) }
    }

    /// The content item that stands in its place, where its own members cannot stay.
    pub(super) fn link_item(&self, link: &Link) -> String {
        format!(r#"{{"type":"resource_link",{},"mimeType":{}}}"#, self.link_members(link), json::quote(&self.mime_type))
    }

    /// What a link has and an image has not.
    pub(super) fn link_members(&self, link: &Link) -> String {
        format!(r#""uri":{},"name":{},"size":{}"#, json::quote(&link.uri), json::quote(&link.name), self.size)
    }

    /// Says that it is lost.
    pub(super) fn not_kept_item(&self) -> String {
        let what = match self.kind {
            MediaKind::Image => "An image",
            MediaKind::Audio => "A sound",
        };
        let text = format!("[{what} of {} bytes was removed by policy, because it could not be kept]", self.size);
        format!(r#"{{"type":"text","text":{}}}"#, json::quote(&text))
    }
}

fn invalid(why: impl ToString) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why.to_string())
}

fn decoded_len(base64: &str) -> u64 {
    let characters = base64.len() - base64.bytes().rev().take(2).take_while(|byte| *byte == b'=').count();
    characters as u64 * 3 / 4
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(base64: &str, expected: Option<&[u8]>) {
        let media = Media::new(MediaKind::Image, "image/png".into(), base64.into());
        let mut out = Vec::new();
        let outcome = media.write_to(&mut out);
        assert_eq!(outcome.is_ok(), expected.is_some(), "{outcome:?}");
        if let Some(expected) = expected {
            assert!(out == expected && media.size == expected.len() as u64, "{} {}", media.size, out.len());
        }
    }

    #[test]
    fn bytes_come_out_whole_or_not_at_all() {
        check("", Some(b""));
        check("aGVsbG8=", Some(b"hello"));
        check("aGVsbG8", Some(b"hello"));
        check("+/+/", Some(&[0xfb, 0xff, 0xbf]));
        for broken in ["a", "aGVsbG8==", "aGVs bG8=", "aGVsb\n", "aG=sbG8=", "é", "-_-_"] {
            check(broken, None);
        }
        for length in [3 * CHUNK / 4 - 1, 3 * CHUNK / 4, 3 * CHUNK / 4 + 1, 200_000] {
            let bytes: Vec<u8> = (0..length).map(|n| (n * 31 % 251) as u8).collect();
            check(&BASE64.encode(&bytes), Some(&bytes));
        }
        let padded_in_the_midst = format!("{}A==={}", "A".repeat(CHUNK - 4), "AAAA");
        check(&padded_in_the_midst, None);
        check(&format!("{}AA=={}", "A".repeat(CHUNK - 4), "AAAA"), None);
    }
}
