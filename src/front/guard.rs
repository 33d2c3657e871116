//! Who may speak to the broker at all: pages of other origins and rebound names may not.
//!
//! Both headers are checked on every request: Origin by MCP `transports`, Security; Host against DNS rebinding.

use std::net::IpAddr;

use axum::http::header::{HOST, ORIGIN};
use axum::http::{HeaderMap, Uri};

/// Why a request is turned away with 403.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Foreign(pub &'static str);

/// Lets a request pass whose Host, and Origin if it has one, name this machine's loopback.
pub(super) fn check(headers: &HeaderMap, uri: &Uri) -> Result<(), Foreign> {
    let host = match headers.get(HOST) {
        Some(host) => host.to_str().ok(),
        None => uri.authority().map(|authority| authority.as_str()),
    };
    if !host.is_some_and(is_loopback_authority) {
        return Err(Foreign("Forbidden: the Host header must name localhost, 127.0.0.1 or [::1]"));
    }
    let origin_is_foreign = headers.get_all(ORIGIN).iter().any(|origin| !origin.to_str().is_ok_and(is_loopback_origin));
    if origin_is_foreign {
        return Err(Foreign("Forbidden: requests of web pages from other origins are refused"));
    }
    Ok(())
}

fn is_loopback_origin(origin: &str) -> bool {
    let authority = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
    authority.is_some_and(is_loopback_authority)
}

fn is_loopback_authority(authority: &str) -> bool {
    let (name, port) = match authority.rsplit_once(':') {
        Some((name, port)) if !port.ends_with(']') => (name, Some(port)),
        _ => (authority, None),
    };
    let is_port = port.is_none_or(|port| port.parse::<u16>().is_ok());
    let address = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    let is_loopback =
        name.eq_ignore_ascii_case("localhost") || address.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback());
    is_port && is_loopback
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_pair(host: Option<&str>, origin: Option<&str>, passes: bool) {
        let mut headers = HeaderMap::new();
        if let Some(host) = host {
            headers.insert(HOST, host.parse().unwrap());
        }
        if let Some(origin) = origin {
            headers.insert(ORIGIN, origin.parse().unwrap());
        }
        assert_eq!(check(&headers, &Uri::from_static("/x/mcp")).is_ok(), passes, "{host:?} {origin:?}");
    }

    #[test]
    fn loopback_names_pass_with_any_port() {
        for host in ["127.0.0.1:8788", "localhost", "LOCALHOST:1", "[::1]:8788", "[::1]", "127.0.0.2:80"] {
            check_pair(Some(host), None, true);
            check_pair(Some(host), Some(&format!("http://{host}")), true);
        }
    }

    #[test]
    fn everything_else_is_foreign() {
        for host in
            ["evil.example", "127.0.0.1.evil.example", "localhost.evil:80", "127.0.0.1:port", "0.0.0.0", "", "[::1"]
        {
            check_pair(Some(host), None, false);
        }
        check_pair(None, None, false);
        for origin in ["http://evil.example", "null", "file://", "http://localhost.evil", "http://user@localhost"] {
            check_pair(Some("localhost"), Some(origin), false);
        }
    }
}
