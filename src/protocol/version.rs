//! Protocol versions and their eras.

/// The newest version that opens with `initialize`; what the broker speaks to servers.
pub const NEWEST_LEGACY: &str = "2025-11-25";
/// The version whose requests carry their own metadata.
pub const MODERN: &str = "2026-07-28";
/// What a legacy request without a version header means (2025-11-25, `transports`, Protocol version header).
pub const ASSUMED_LEGACY: &str = "2025-03-26";
/// Versions that `initialize` can agree on, oldest first.
pub const LEGACY: [&str; 4] = ["2024-11-05", "2025-03-26", "2025-06-18", NEWEST_LEGACY];

/// How a client speaks: with a session opened by `initialize`, or with metadata in each request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Era {
    Legacy,
    Modern,
}

/// Keys of `_meta` that 2026-07-28 reserves (`basic`, Request metadata).
pub mod meta {
    pub const PREFIX: &str = "io.modelcontextprotocol/";
    pub const PROTOCOL_VERSION: &str = "io.modelcontextprotocol/protocolVersion";
    pub const CLIENT_CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";
    pub const CLIENT_INFO: &str = "io.modelcontextprotocol/clientInfo";
    pub const LOG_LEVEL: &str = "io.modelcontextprotocol/logLevel";
    pub const SERVER_INFO: &str = "io.modelcontextprotocol/serverInfo";
    pub const SUBSCRIPTION_ID: &str = "io.modelcontextprotocol/subscriptionId";
}

/// The version that answers `initialize`: the one asked for if it is known, else the newest (2025-11-25, `lifecycle`).
pub fn negotiate(requested: &str) -> &'static str {
    LEGACY.into_iter().find(|known| *known == requested).unwrap_or(NEWEST_LEGACY)
}

/// All versions served, newest first, as `supported` of an error and of `server/discover` list them.
pub fn supported() -> impl Iterator<Item = &'static str> {
    std::iter::once(MODERN).chain(LEGACY.into_iter().rev())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_versions_are_echoed_and_others_get_the_newest() {
        for version in LEGACY {
            assert_eq!(negotiate(version), version);
        }
        assert_eq!(negotiate("1999-01-01"), NEWEST_LEGACY);
        assert_eq!(negotiate(MODERN), NEWEST_LEGACY);
    }
}
