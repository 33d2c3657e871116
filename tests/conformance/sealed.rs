//! `requestState`: what a server that keeps nothing gives the client to bring back. The client may do with it what it
//! likes, so it is sealed, for one purpose each.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use hmac::{Hmac, KeyInit as _, Mac as _};
use rmcp::ErrorData;
use rmcp::model::InputResponses;
use sha2::Sha256;

/// The same in every process, because a retry may come to another one. There is nothing here to protect.
const KEY: &[u8] = b"conformance-mcp";

/// The answers so far, as a text that `open` takes back for the same purpose only.
pub fn seal(purpose: &str, answers: &InputResponses) -> String {
    let plain = serde_json::to_vec(answers).expect("JSON can be written");
    let seal = mac(purpose, &plain).finalize().into_bytes();
    format!("{}.{}", BASE64.encode(plain), BASE64.encode(seal))
}

/// # Errors
///
/// -32602 for everything that `seal` did not write for this purpose.
pub fn open(purpose: &str, state: &str) -> Result<InputResponses, ErrorData> {
    let forged = || ErrorData::invalid_params("requestState is not what this server gave out", None);
    let (plain, seal) = state.split_once('.').ok_or_else(forged)?;
    let plain = BASE64.decode(plain).map_err(|_| forged())?;
    let seal = BASE64.decode(seal).map_err(|_| forged())?;
    mac(purpose, &plain).verify_slice(&seal).map_err(|_| forged())?;
    serde_json::from_slice(&plain).map_err(|_| forged())
}

fn mac(purpose: &str, plain: &[u8]) -> Hmac<Sha256> {
    let mut mac = Hmac::<Sha256>::new_from_slice(KEY).expect("HMAC takes a key of any length");
    mac.update(purpose.as_bytes());
    mac.update(&[0]);
    mac.update(plain);
    mac
}
