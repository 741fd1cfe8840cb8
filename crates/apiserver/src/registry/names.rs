//! Rules for names, labels and annotations, and the text said when they are broken.

/// Rule of an RFC 1123 subdomain.
pub const SUBDOMAIN: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character";
/// Rule of an RFC 1123 label.
pub const LABEL: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character";
/// Rule of a qualified name's last part.
pub const QUALIFIED: &str = "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character";

fn is_lower(b: u8) -> bool {
    b.is_ascii_lowercase() || b.is_ascii_digit()
}

/// One part of a DNS name.
pub fn is_dns_label(text: &str) -> bool {
    let bytes = text.as_bytes();
    !bytes.is_empty()
        && bytes.len() <= 63
        && bytes.iter().all(|&b| is_lower(b) || b == b'-')
        && bytes.first().is_some_and(|&b| is_lower(b))
        && bytes.last().is_some_and(|&b| is_lower(b))
}

/// A DNS name: at most 253 bytes, parts divided by dots.
pub fn is_dns_subdomain(text: &str) -> bool {
    let part = |p: &str| {
        let bytes = p.as_bytes();
        !bytes.is_empty()
            && bytes.iter().all(|&b| is_lower(b) || b == b'-')
            && bytes.first().is_some_and(|&b| is_lower(b))
            && bytes.last().is_some_and(|&b| is_lower(b))
    };
    text.len() <= 253 && text.split('.').all(part)
}

/// The part of a qualified name after the slash.
pub fn is_qualified_part(text: &str) -> bool {
    let bytes = text.as_bytes();
    !bytes.is_empty()
        && bytes.len() <= 63
        && bytes.iter().all(|&b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
        && bytes.first().is_some_and(u8::is_ascii_alphanumeric)
        && bytes.last().is_some_and(u8::is_ascii_alphanumeric)
}

/// `name` or `prefix.example.com/name`.
pub fn is_qualified_name(text: &str) -> bool {
    match text.split_once('/') {
        None => is_qualified_part(text),
        Some((prefix, name)) => is_dns_subdomain(prefix) && is_qualified_part(name),
    }
}

/// A label's value: empty or like a qualified part.
pub fn is_label_value(text: &str) -> bool {
    text.is_empty() || is_qualified_part(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked() {
        for good in ["a", "a-b.c", "0.x"] {
            assert!(is_dns_subdomain(good), "{good}");
        }
        for bad in ["", "A", "-a", "a-", "a..b", "a_b", "a."] {
            assert!(!is_dns_subdomain(bad), "{bad}");
        }
        for good in ["a", "A_b.c", "example.com/x"] {
            assert!(is_qualified_name(good), "{good}");
        }
        for bad in ["", "/x", "x/", "a/b/c", "-a", "EX.com/a"] {
            assert!(!is_qualified_name(bad), "{bad}");
        }
        assert!(!is_dns_label(&"a".repeat(64)));
        assert!(is_label_value(""));
    }
}
