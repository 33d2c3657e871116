//! The token of `/admin/mcp`: who can read the state directory's file may ask.

use std::fmt::{self, Write as _};
use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use sha2::{Digest as _, Sha256};

use crate::front::session::write_private;

/// 256 random bits.
const TOKEN_BYTES: usize = 32;

/// What a request must carry. Kept as a digest: neither a log nor a core dump gives it away.
pub struct AdminToken([u8; 32]);

impl AdminToken {
    /// Reads the token, or makes it at the first start. One that others can read, or that is damaged, is replaced: who
    /// has read it must not be able to use it.
    pub fn open(path: &Path) -> io::Result<Self> {
        if let Some(token) = read_known(path)? {
            return Ok(Self::of(&token));
        }
        let mut random = [0; TOKEN_BYTES];
        getrandom::fill(&mut random).map_err(io::Error::other)?;
        let mut token = String::with_capacity(2 * TOKEN_BYTES);
        for byte in random {
            // Writing to a string does not fail.
            let _ = write!(token, "{byte:02x}");
        }
        write_private(path, token.as_bytes())?;
        Ok(Self::of(&token))
    }

    /// Lets a request pass that has the token; else the reason for `WWW-Authenticate`.
    pub(in crate::front) fn check(&self, headers: &HeaderMap) -> Result<(), Unauthorized> {
        let mut given = headers.get_all(AUTHORIZATION).iter();
        let (Some(value), None) = (given.next(), given.next()) else { return Err(Unauthorized::NoToken) };
        let value = value.to_str().unwrap_or_default();
        let Some((scheme, token)) = value.split_once(' ') else { return Err(Unauthorized::NoToken) };
        if !scheme.eq_ignore_ascii_case("bearer") {
            return Err(Unauthorized::NoToken);
        }
        if self.is(token.trim()) { Ok(()) } else { Err(Unauthorized::WrongToken) }
    }

    fn of(token: &str) -> Self {
        Self(Sha256::digest(token).into())
    }

    /// In the same time whatever is given: digests are compared, and all of them.
    fn is(&self, token: &str) -> bool {
        let given: [u8; 32] = Sha256::digest(token).into();
        self.0.iter().zip(given).fold(0, |difference, (own, given)| difference | (own ^ given)) == 0
    }
}

/// Why a request is turned away with 401.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::front) enum Unauthorized {
    NoToken,
    WrongToken,
}

impl fmt::Debug for AdminToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AdminToken")
    }
}

/// `None` where a new one is needed.
fn read_known(path: &Path) -> io::Result<Option<String>> {
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(e),
    };
    let about = file.metadata()?;
    let mut text = String::new();
    let is_text = about.is_file() && file.by_ref().take(1024).read_to_string(&mut text).is_ok();
    let token = text.trim();
    let is_token = is_text && token.len() == 2 * TOKEN_BYTES && token.bytes().all(|b| b.is_ascii_hexdigit());
    let is_private = about.mode() & 0o077 == 0 && about.uid() == nix::unistd::geteuid().as_raw();
    if is_token && is_private {
        return Ok(Some(token.to_owned()));
    }
    let why = if is_token { "others could read it" } else { "it was damaged" };
    tracing::warn!(path = %path.display(), why, "a new admin token was made");
    if !about.is_file() {
        return Err(io::Error::other("it is no file"));
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn token_in(dir: &Path) -> String {
        let path = dir.join("admin.token");
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        fs::read_to_string(path).unwrap()
    }

    #[test]
    fn a_token_is_made_once_and_made_anew_when_it_is_of_no_use() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("admin.token");
        let opened = AdminToken::open(&path).unwrap();
        let first = token_in(dir.path());
        assert!(first.len() == 64 && opened.is(&first) && AdminToken::open(&path).unwrap().is(&first));
        assert_eq!(token_in(dir.path()), first);

        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let replaced = AdminToken::open(&path).unwrap();
        let second = token_in(dir.path());
        assert!(!replaced.is(&first) && replaced.is(&second));

        fs::write(&path, "short").unwrap();
        let replaced = AdminToken::open(&path).unwrap();
        assert!(!replaced.is("short") && replaced.is(&token_in(dir.path())));

        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        AdminToken::open(&path).expect_err("no file");
    }

    #[test]
    fn a_request_carries_one_token_as_a_bearer() {
        let token = AdminToken::of("a0b1");
        let check = |values: &[&str]| {
            let mut headers = HeaderMap::new();
            values.iter().for_each(|value| {
                headers.append(AUTHORIZATION, value.parse().unwrap());
            });
            token.check(&headers)
        };
        assert_eq!(check(&["Bearer a0b1"]), Ok(()));
        assert_eq!(check(&["bearer  a0b1 "]), Ok(()));
        for missing in [&[][..], &["a0b1"], &["Basic a0b1"], &["Bearer a0b1", "Bearer a0b1"]] {
            assert_eq!(check(missing), Err(Unauthorized::NoToken), "{missing:?}");
        }
        for wrong in ["Bearer ", "Bearer a0b", "Bearer a0b12", "Bearer A0B1"] {
            assert_eq!(check(&[wrong]), Err(Unauthorized::WrongToken), "{wrong}");
        }
    }
}
