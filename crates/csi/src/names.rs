//! Rules for names and addresses.

use std::path::PathBuf;

/// Why a driver name is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadDriverName {
    /// The driver gave no name.
    #[error("driver name is empty")]
    Empty,
    /// The name breaks the rules of the protocol.
    #[error(
        "driver name {0:?} is invalid: at most 63 letters, digits, '-' and '.', the first and last a letter or digit"
    )]
    Invalid(String),
}

/// Checks the name a driver gave itself.
pub fn driver_name(name: &str) -> Result<(), BadDriverName> {
    let edge = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    let inner = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '.';
    if name.is_empty() {
        return Err(BadDriverName::Empty);
    }
    let good = name.len() <= 63
        && name.chars().all(inner)
        && edge(name.chars().next())
        && edge(name.chars().last());
    if good { Ok(()) } else { Err(BadDriverName::Invalid(name.to_owned())) }
}

/// True when a volume, snapshot or group name may be sent: not empty, at most 128 bytes, no control characters
/// other than tab, line feed and carriage return.
pub fn is_request_name(name: &str) -> bool {
    let banned = |c: char| matches!(c, '\0'..='\u{8}' | '\u{b}' | '\u{c}' | '\u{e}'..='\u{1f}' | '\u{7f}'..='\u{9f}');
    !name.is_empty() && name.len() <= 128 && !name.chars().any(banned)
}

/// Why an endpoint address is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("address {0:?} is not a unix socket: expected unix:///path, unix:path or /path")]
pub struct BadAddress(pub String);

/// The socket path of `unix:///path`, `unix:path` or `/path`.
///
/// ```
/// use longshore_csi::names::socket_path;
///
/// assert_eq!(socket_path("unix:///run/csi.sock"), socket_path("/run/csi.sock"));
/// assert!(socket_path("tcp://localhost:1").is_err());
/// ```
pub fn socket_path(address: &str) -> Result<PathBuf, BadAddress> {
    let path = match address.strip_prefix("unix:") {
        // With two slashes an authority follows, which must be empty.
        Some(rest) => match rest.strip_prefix("//") {
            Some(path) if path.starts_with('/') => path,
            Some(_) => "",
            None => rest,
        },
        None if address.starts_with('/') => address,
        None => "",
    };
    if path.is_empty() { Err(BadAddress(address.to_owned())) } else { Ok(PathBuf::from(path)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn driver_names_follow_the_rules() {
        let long = "a".repeat(63);
        for good in ["a", "A1", "local.csi.longshore.dev", "a-b.c", long.as_str()] {
            assert_eq!(driver_name(good), Ok(()), "{good}");
        }
        let too_long = "a".repeat(64);
        for bad in ["-a", "a-", ".a", "a.", "a_b", "a/b", "ä", too_long.as_str()] {
            assert_eq!(driver_name(bad), Err(BadDriverName::Invalid(bad.into())), "{bad}");
        }
        assert_eq!(driver_name("").unwrap_err().to_string(), "driver name is empty");
    }

    #[test]
    fn request_names_have_no_control_characters() {
        for good in ["pvc-1", "ü ☃", "a\tb\nc\rd", &"n".repeat(128)] {
            assert!(is_request_name(good), "{good:?}");
        }
        for bad in ["", "\0", "a\u{8}", "\u{b}", "\u{c}", "\u{1f}", "\u{7f}", "\u{9f}"] {
            assert!(!is_request_name(bad), "{bad:?}");
        }
        assert!(!is_request_name(&"n".repeat(129)));
    }

    #[test]
    fn addresses_name_a_socket() {
        let rows = [
            ("/run/csi/socket", Some("/run/csi/socket")),
            ("unix:///run/csi.sock", Some("/run/csi.sock")),
            ("unix:/run/csi.sock", Some("/run/csi.sock")),
            ("unix:csi.sock", Some("csi.sock")),
            ("unix://csi.sock", None),
            ("unix:", None),
            ("csi.sock", None),
            ("tcp://127.0.0.1:1", None),
            ("", None),
        ];
        for (address, path) in rows {
            assert_eq!(socket_path(address).ok(), path.map(PathBuf::from), "{address}");
        }
    }
}
