//! Judges a URL argument by its text, with the parser that browsers agree on.
//!
//! It sees what is written, not what a name resolves to or where a page leads: DNS rebinding, redirects and scripts in a
//! page are beyond it, and real isolation needs a proxy in front of the browser.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use url::{Host, Url};

use super::names::NamePattern;

#[derive(Clone, Debug)]
pub(super) struct UrlRule {
    /// Lower case, without the colon; never empty.
    pub schemes: Vec<String>,
    /// A text that is no absolute URL is judged as if `https://` stood in front, as some servers read it.
    pub scheme_is_optional: bool,
    /// Loopback, private, link-local and other addresses that the public Internet does not route, and local names.
    pub allows_private_hosts: bool,
    /// If given, the host must match one of them. Made by [`host_pattern`].
    pub hosts: Option<Vec<NamePattern>>,
    pub max_bytes: Option<usize>,
}

impl UrlRule {
    /// The error continues "argument `url` …" and does not repeat the URL.
    pub fn judge(&self, text: &str) -> Result<(), String> {
        if let Some(max) = self.max_bytes.filter(|max| text.len() > *max) {
            return Err(format!("must not be longer than {max} bytes"));
        }
        let url = match Url::parse(text) {
            Err(url::ParseError::RelativeUrlWithoutBase) if self.scheme_is_optional => {
                Url::parse(&format!("https://{text}"))
            }
            parsed => parsed,
        };
        let url = url.map_err(|error| format!("is not an absolute URL ({error})"))?;
        if !self.schemes.iter().any(|scheme| scheme == url.scheme()) {
            return Err(format!("must be a URL with the scheme {}", self.schemes.join(" or ")));
        }
        let Some(host) = url.host() else { return Ok(()) };
        if !self.allows_private_hosts && is_private(&host) {
            return Err("must not lead to a loopback, private or local host".to_owned());
        }
        let name = host.to_string();
        let name = name.trim_end_matches('.');
        match &self.hosts {
            Some(hosts) if !hosts.iter().any(|host| host.matches(name)) => {
                Err("must lead to one of the hosts that the policy allows".to_owned())
            }
            _ => Ok(()),
        }
    }
}

/// A host as policies name it: a name, a glob over names, or an address with or without brackets; spelled as the parser
/// of URLs spells it, so that the two can be compared. The error continues "'hosts[1]' …".
pub(super) fn host_pattern(text: &str) -> Result<NamePattern, String> {
    let bracketed = if text.starts_with('[') { text.to_owned() } else { format!("[{text}]") };
    if let Ok(address @ Host::Ipv6(_)) = Host::parse(&bracketed) {
        return Ok(NamePattern::exact(&address.to_string()));
    }
    if let Some(surplus) = surplus(text) {
        return Err(format!("must be a host, without {surplus}, got {text:?}"));
    }
    let pattern = NamePattern::new(text).map_err(|what| format!("is not a valid pattern: {what}"))?;
    let spelled = if pattern.is_plain() { spelled_name(text) } else { spelled_glob(text) }?;
    NamePattern::new(spelled.trim_end_matches('.'))
}

/// What stands in URLs beside their host, so that no host would ever match.
fn surplus(text: &str) -> Option<&'static str> {
    // A glob over addresses, with the bracket as a character.
    let is_of_addresses = text.starts_with("\\[") || text.starts_with("[[]");
    match text {
        _ if text.contains("://") => Some("scheme"),
        _ if text.contains('/') => Some("path"),
        _ if text.contains('@') => Some("user"),
        _ if text.contains(':') && !is_of_addresses => Some("port (or an IPv6 address in full)"),
        _ => None,
    }
}

fn spelled_name(name: &str) -> Result<String, String> {
    Host::parse(name).map(|host| host.to_string()).map_err(|error| format!("is not a host ({error}), got {name:?}"))
}

/// URLs have international names in their `xn--` form, which is made of whole labels.
fn spelled_glob(glob: &str) -> Result<String, String> {
    let labels = glob.split('.').map(|label| match Host::parse(label) {
        _ if label.is_ascii() => Ok(label.to_ascii_lowercase()),
        Ok(Host::Domain(name)) if NamePattern::new(label).is_ok_and(|label| label.is_plain()) => Ok(name),
        _ => Err(format!("has a glob in an international name, which must be in its xn-- form there, got {glob:?}")),
    });
    Ok(labels.collect::<Result<Vec<_>, _>>()?.join("."))
}

fn is_private(host: &Host<&str>) -> bool {
    match host {
        Host::Ipv4(address) => is_private_v4(*address),
        Host::Ipv6(address) => is_private_v6(*address),
        Host::Domain(name) => is_local_name(&name.trim_end_matches('.').to_ascii_lowercase()),
    }
}

/// Names that never leave the machine or the local network: RFC 6761, RFC 6762, RFC 8375, the reserved `internal`, and
/// names without a dot, which a search list completes.
fn is_local_name(name: &str) -> bool {
    const LOCAL: [&str; 6] = ["localhost", "localdomain", "local", "internal", "home.arpa", "lan"];
    // Schemes that are not the web's keep an address as written, so that the parser did not see it.
    if let Ok(address) = name.trim_matches(['[', ']']).parse() {
        return match address {
            IpAddr::V4(address) => is_private_v4(address),
            IpAddr::V6(address) => is_private_v6(address),
        };
    }
    !name.contains('.') || LOCAL.iter().any(|local| name.strip_suffix(local).is_some_and(|head| head.ends_with('.')))
}

/// The blocks of the IANA special-purpose registry that are not globally reachable, and multicast.
fn is_private_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    address.is_private()
        || address.is_loopback()
        || address.is_link_local()
        || address.is_documentation()
        || matches!((a, b, c), (0 | 224.., _, _) | (100, 64..=127, _) | (192, 0, 0) | (198, 18 | 19, _))
}

fn is_private_v6(address: Ipv6Addr) -> bool {
    let segments = address.segments();
    let embedded = match segments {
        [0, 0, 0, 0, 0, 0xffff | 0, high, low] | [0x64, 0xff9b, 0, 0, 0, 0, high, low] => Some((high, low)),
        [0x2002, high, low, ..] => Some((high, low)),
        _ => None,
    };
    if let Some((high, low)) = embedded {
        let [a, b] = high.to_be_bytes();
        let [c, d] = low.to_be_bytes();
        return is_private_v4(Ipv4Addr::new(a, b, c, d));
    }
    // Everything outside 2000::/3 is unassigned, local or multicast; 2001:db8::/32 is for documentation.
    !matches!(segments[0], 0x2000..=0x3fff) || segments[0] == 0x2001 && segments[1] == 0xdb8
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule() -> UrlRule {
        UrlRule {
            schemes: vec!["http".into(), "https".into(), "about".into()],
            scheme_is_optional: false,
            allows_private_hosts: false,
            hosts: None,
            max_bytes: None,
        }
    }

    #[track_caller]
    fn check(rule: &UrlRule, url: &str, expected: Result<(), &str>) {
        let verdict = rule.judge(url);
        match expected {
            Ok(()) => assert_eq!(verdict, Ok(()), "{url}"),
            Err(part) => {
                let reason = verdict.expect_err(url);
                assert!(reason.contains(part), "{url}: {reason}");
            }
        }
    }

    #[test]
    fn schemes_are_compared_after_parsing() {
        for good in [
            "http://example.com",
            "HTTPS://example.com/x?y#z",
            " https://example.com ",
            "about:blank",
            "ht\ntp://example.com",
        ] {
            check(&rule(), good, Ok(()));
        }
        for bad in [
            "file:///etc/passwd",
            " FILE:///x",
            "fi\tle:///x",
            "javascript:alert(1)",
            "view-source:http://a.b",
            "data:,x",
            "ftp://a.b",
            "chrome://gpu",
            "blob:https://a.b/x",
        ] {
            check(&rule(), bad, Err("scheme http or https or about"));
        }
        check(&rule(), "example.com", Err("absolute URL"));
        check(&rule(), "", Err("absolute URL"));
        check(&rule(), "http://", Err("absolute URL"));
    }

    #[test]
    fn private_hosts_are_seen_in_every_spelling() {
        let urls = [
            "http://127.0.0.1/",
            "http://127.1",
            "http://2130706433/",
            "http://0x7f.1/",
            "http://017700000001/",
            "http://0/",
            "http://10.1.2.3/x",
            "http://172.16.0.1",
            "http://192.168.1.1",
            "http://169.254.169.254/latest",
            "http://100.64.0.1",
            "http://224.0.0.1",
            "http://255.255.255.255",
            "http://[::1]:8080/",
            "http://[::]/",
            "http://[::ffff:127.0.0.1]/",
            "http://[::ffff:7f00:1]/",
            "http://[fe80::1]/",
            "http://[fd00::1]",
            "http://[64:ff9b::127.0.0.1]",
            "http://[2002:7f00:1::]",
            "http://localhost",
            "http://LOCALHOST.",
            "http://user@localhost./",
            "http://a.localhost",
            "http://printer.local",
            "http://metadata.google.internal/",
            "http://intranet/",
            "http://127.0.0.1.",
            "http://①②⑦.⓪.⓪.①/",
            "http://nas.home.arpa",
        ];
        for url in urls {
            check(&rule(), url, Err("private"));
        }
        for url in [
            "http://example.com",
            "http://8.8.8.8",
            "http://[2606:4700::1111]/",
            "http://notlocalhost.com",
            "http://local.example.com",
        ] {
            check(&rule(), url, Ok(()));
        }
        let allowing = UrlRule { allows_private_hosts: true, ..rule() };
        for url in urls {
            check(&allowing, url, Ok(()));
        }
    }

    #[test]
    fn hosts_narrow_to_a_list() {
        let rule = UrlRule { hosts: Some(hosts(&["example.com", "*.example.com"])), ..rule() };
        for good in ["http://example.com", "http://EXAMPLE.com./", "https://a.b.example.com:99/"] {
            check(&rule, good, Ok(()));
        }
        for bad in [
            "http://example.org",
            "http://example.com.evil.org",
            "http://evilexample.com",
            "http://example.com@evil.org",
        ] {
            check(&rule, bad, Err("one of the hosts"));
        }
        check(&rule, "about:blank", Ok(()));
    }

    fn hosts(hosts: &[&str]) -> Vec<NamePattern> {
        hosts.iter().map(|host| host_pattern(host).unwrap()).collect()
    }

    #[track_caller]
    fn check_host(host: &str, url: &str) {
        let rule = UrlRule { hosts: Some(hosts(&[host])), allows_private_hosts: true, ..rule() };
        check(&rule, url, Ok(()));
        check(&rule, "http://example.org", Err("one of the hosts"));
    }

    #[test]
    fn hosts_are_spelled_as_in_urls() {
        for address in ["[::1]", "::1", "[0:0::1]", "0:0:0:0:0:0:0:1"] {
            check_host(address, "http://[::1]/");
            check_host(address, "http://[::1]:3000/");
        }
        check_host("::ffff:127.0.0.1", "http://[::ffff:7f00:1]/");
        check_host("\\[fe80:*\\]", "http://[fe80::1]/");
        check_host("[[]fe80:*[]]", "http://[fe80::1]/");
        check_host("127.1", "http://127.0.0.1/");
        check_host("münchen.de", "http://münchen.de/");
        check_host("MÜNCHEN.DE", "http://xn--mnchen-3ya.de/");
        check_host("xn--mnchen-3ya.de", "http://münchen.de/");
        check_host("*.münchen.de", "http://www.MÜNCHEN.de/");
        check_host("{www,*.www}.münchen.de", "http://a.www.münchen.de/");
        check_host("Example.COM.", "http://example.com/");
        check_host("*.example.com.", "http://a.example.com/");
    }

    #[test]
    fn hosts_that_would_never_match_are_refused() {
        for (host, said) in [
            ("https://example.com", "must be a host, without scheme, got \"https://example.com\""),
            ("*://example.com", "without scheme"),
            ("example.com/path", "without path"),
            ("me@example.com", "without user"),
            ("example.com:3000", "without port"),
            ("*.example.com:*", "without port"),
            ("[::1]:3000", "without port"),
            ("[fe80:*]", "an IPv6 address in full"),
            ("mün*.de", "in its xn-- form"),
            ("{münchen,köln}.de", "in its xn-- form"),
            ("exa mple.com", "is not a host (invalid international domain name)"),
            ("1.2.3.4.5", "is not a host (invalid IPv4 address)"),
            ("a[", "is not a valid pattern: unclosed character class"),
        ] {
            let refused = host_pattern(host).expect_err(host);
            assert!(refused.contains(said), "{host}: {refused}");
        }
    }

    #[test]
    fn a_missing_scheme_is_a_choice() {
        let optional = UrlRule { scheme_is_optional: true, ..rule() };
        check(&optional, "example.com/x", Ok(()));
        check(&optional, "10.0.0.1/x", Err("private"));
        check(&optional, "file:///etc/passwd", Err("scheme"));
        check(&optional, "//file:///etc", Err(""));
    }

    #[test]
    fn length_has_a_bound_and_reasons_keep_the_url_secret() {
        let rule = UrlRule { max_bytes: Some(20), ..rule() };
        check(&rule, "http://example.com/1", Ok(()));
        check(&rule, "http://example.com/12", Err("20 bytes"));
        assert!(!rule.judge("s3cret://s3cret").unwrap_err().contains("s3cret"));
    }
}
