//! Session ids that describe themselves, so that a restarted broker can take them back.
//!
//! 16 random bytes, the negotiated version, a digest of the client's capabilities, the time of issue, and an HMAC
//! over these and the backend's name with a key of the state directory; base64url, which is visible ASCII as
//! MCP 2025-11-25, `transports`, Session management, asks for.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::protocol::version::LEGACY;

/// What an id says of its session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Claims {
    /// The random part, which is the session's name inside the broker.
    pub id: u128,
    pub version: &'static str,
    /// The first bytes of the digest of the capabilities that the client declared.
    pub capabilities: [u8; 8],
    /// Seconds since the Unix epoch.
    pub issued: u64,
}

/// The key that ids are signed with.
#[derive(Clone)]
pub(super) struct Secret(pub [u8; 32]);

const PLAIN_LEN: usize = 16 + 1 + 8 + 8;
/// 128 bits of the HMAC: as hard to guess as the random part.
const MAC_LEN: usize = 16;

impl Secret {
    pub fn seal(&self, backend: &str, claims: &Claims) -> String {
        let mut bytes = Vec::with_capacity(PLAIN_LEN + MAC_LEN);
        bytes.extend_from_slice(&claims.id.to_be_bytes());
        let version = LEGACY.iter().position(|known| *known == claims.version);
        bytes.push(version.and_then(|index| u8::try_from(index).ok()).unwrap_or(u8::MAX));
        bytes.extend_from_slice(&claims.capabilities);
        bytes.extend_from_slice(&claims.issued.to_be_bytes());
        let mac = self.mac(backend, &bytes);
        bytes.extend_from_slice(&mac.finalize().into_bytes()[..MAC_LEN]);
        URL_SAFE_NO_PAD.encode(bytes)
    }

    /// The claims of an id that this broker, or an earlier one with the same key, issued for this backend.
    pub fn open(&self, backend: &str, id: &str) -> Option<Claims> {
        let bytes = decode(id)?;
        let (plain, mac) = bytes.split_at(PLAIN_LEN);
        self.mac(backend, plain).verify_truncated_left(mac).ok()?;
        Some(Claims {
            id: random_part(&bytes),
            version: LEGACY.get(usize::from(plain[16])).copied()?,
            capabilities: plain[17..25].try_into().ok()?,
            issued: u64::from_be_bytes(plain[25..33].try_into().ok()?),
        })
    }

    fn mac(&self, backend: &str, plain: &[u8]) -> Hmac<Sha256> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("HMAC takes a key of any length");
        mac.update(plain);
        mac.update(backend.as_bytes());
        mac
    }
}

/// The random part of an id, unverified: good for a look-up, no more.
pub(super) fn peek(id: &str) -> Option<u128> {
    decode(id).map(|bytes| random_part(&bytes))
}

fn decode(id: &str) -> Option<[u8; PLAIN_LEN + MAC_LEN]> {
    let mut bytes = [0; PLAIN_LEN + MAC_LEN + 2];
    let len = URL_SAFE_NO_PAD.decode_slice(id, &mut bytes).ok()?;
    bytes[..len].try_into().ok()
}

fn random_part(bytes: &[u8; PLAIN_LEN + MAC_LEN]) -> u128 {
    bytes[..16].iter().fold(0, |id, byte| id << 8 | u128::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLAIMS: Claims = Claims { id: 7 << 100, version: "2025-06-18", capabilities: [3; 8], issued: 1_790_000_000 };

    #[test]
    fn an_id_says_what_was_sealed_in_it() {
        let secret = Secret([1; 32]);
        let id = secret.seal("playwright", &CLAIMS);
        assert!(id.bytes().all(|b| (0x21..=0x7e).contains(&b)));
        assert_eq!(secret.open("playwright", &id), Some(CLAIMS));
        assert_eq!(peek(&id), Some(CLAIMS.id));
    }

    #[test]
    fn any_change_makes_a_forgery() {
        let secret = Secret([1; 32]);
        let id = secret.seal("playwright", &CLAIMS);
        assert_eq!(secret.open("agentation", &id), None);
        assert_eq!(Secret([2; 32]).open("playwright", &id), None);
        for i in 0..id.len() {
            let mut forged = id.clone().into_bytes();
            forged[i] = if forged[i] == b'A' { b'B' } else { b'A' };
            assert_eq!(secret.open("playwright", std::str::from_utf8(&forged).unwrap()), None, "byte {i}");
        }
        for text in ["", "x", &id[1..], &format!("{id}A")] {
            assert_eq!(secret.open("playwright", text), None);
        }
    }
}
