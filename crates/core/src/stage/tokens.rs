//! Service account tokens for drivers.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use serde::Serialize;

/// Where drivers find tokens, in the volume context or in the secrets.
pub const KEY: &str = "csi.storage.k8s.io/serviceAccount.tokens";

/// However long a token lives, it is used no longer than this.
const LONGEST: SignedDuration = SignedDuration::from_hours(24);

/// A token and its end.
#[derive(Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Token {
    /// The token itself.
    pub token: String,
    /// When it ends, as the API wrote it.
    pub expiration_timestamp: String,
}

// By hand, so that a stray debug line cannot print a token.
impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Token")
            .field("expiration_timestamp", &self.expiration_timestamp)
            .finish_non_exhaustive()
    }
}

/// The text for drivers: tokens by audience.
#[must_use]
pub fn to_json(tokens: &BTreeMap<String, Token>) -> String {
    serde_json::to_string(tokens).expect("a map of strings is always JSON")
}

/// When a token is replaced: after 80 % of its life, and at the latest after a day.
#[must_use]
pub fn renew_at(issued: Timestamp, expires: Timestamp) -> Timestamp {
    let life = expires.duration_since(issued).max(SignedDuration::ZERO);
    let use_for = (life * 4 / 5).min(LONGEST);
    issued.checked_add(use_for).unwrap_or(expires)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_by_audience() {
        // case: node/N24
        let token = |text: &str| Token {
            token: text.to_owned(),
            expiration_timestamp: "2026-01-01T00:00:00Z".to_owned(),
        };
        let tokens = BTreeMap::from([("gcp".to_owned(), token("b")), (String::new(), token("a"))]);
        assert_eq!(
            to_json(&tokens),
            "{\"\":{\"token\":\"a\",\"expirationTimestamp\":\"2026-01-01T00:00:00Z\"},\
             \"gcp\":{\"token\":\"b\",\"expirationTimestamp\":\"2026-01-01T00:00:00Z\"}}"
        );
        assert!(!format!("{tokens:?}").contains("\"a\""));
    }

    #[test]
    fn tokens_are_renewed_before_they_expire() {
        let issued: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        for (expires, expected) in [
            ("2026-01-01T01:00:00Z", "2026-01-01T00:48:00Z"),
            ("2026-01-01T00:15:00Z", "2026-01-01T00:12:00Z"),
            ("2026-03-01T00:00:00Z", "2026-01-02T00:00:00Z"),
            ("2025-12-31T00:00:00Z", "2026-01-01T00:00:00Z"),
        ] {
            let expected: Timestamp = expected.parse().unwrap();
            assert_eq!(renew_at(issued, expires.parse().unwrap()), expected, "{expires}");
        }
    }
}
