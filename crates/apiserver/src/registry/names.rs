//! Rules for names, labels and annotations, and what is said when they are broken.
//!
//! Each rule answers with what is wrong with a text, in the words that Kubernetes uses: scripts
//! match them. Nothing wrong is an empty list.

const SUBDOMAIN: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
const LABEL: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";
const LABEL_1035: &str = "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is '[a-z]([-a-z0-9]*[a-z0-9])?')";
const QUALIFIED_PART: &str = "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
const QUALIFIED: &str = "a valid label key must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]') with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')";
const LABEL_VALUE: &str = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";
const CONFIG_KEY: &str = "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')";

const MAX_SUBDOMAIN: usize = 253;
const MAX_LABEL: usize = 63;

/// What is wrong with a text; empty when nothing is.
pub(crate) type Problems = Vec<String>;

fn is_lower(b: u8) -> bool {
    b.is_ascii_lowercase() || b.is_ascii_digit()
}

/// Made of some characters, with certain ones at both ends.
fn is_made_of(text: &str, inner: impl Fn(u8) -> bool, ends: impl Fn(u8) -> bool) -> bool {
    let bytes = text.as_bytes();
    bytes.iter().all(|&b| inner(b))
        && bytes.first().is_some_and(|&b| ends(b))
        && bytes.last().is_some_and(|&b| ends(b))
}

fn is_lower_part(text: &str) -> bool {
    is_made_of(text, |b| is_lower(b) || b == b'-', is_lower)
}

fn is_part(text: &str) -> bool {
    let inner = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    is_made_of(text, inner, |b| b.is_ascii_alphanumeric())
}

fn too_long(text: &str, max: usize) -> Option<String> {
    (text.len() > max).then(|| format!("must be no more than {max} characters"))
}

fn problems(length: Option<String>, holds: bool, rule: &str) -> Problems {
    length.into_iter().chain((!holds).then(|| rule.to_owned())).collect()
}

/// A DNS name: parts divided by dots.
pub(crate) fn subdomain(text: &str) -> Problems {
    problems(too_long(text, MAX_SUBDOMAIN), text.split('.').all(is_lower_part), SUBDOMAIN)
}

/// A DNS name in letters of any case.
pub(crate) fn subdomain_any_case(text: &str) -> Problems {
    let rule = SUBDOMAIN
        .replace("a lowercase RFC 1123", "an RFC 1123")
        .replace("lower case alphanumeric", "alphanumeric")
        .replace("'example.com'", "'Example.com'");
    problems(None, text.to_lowercase().split('.').all(is_lower_part), &rule)
}

/// One part of a DNS name.
pub(crate) fn label(text: &str) -> Problems {
    // A name that is valid but for its dots gets an error that says so.
    let rule = if text.split('.').all(is_lower_part) { "must not contain dots" } else { LABEL };
    problems(too_long(text, MAX_LABEL), is_lower_part(text), rule)
}

/// One part of a DNS name that starts with a letter.
pub(crate) fn label_1035(text: &str) -> Problems {
    let holds = is_lower_part(text) && text.starts_with(|c: char| c.is_ascii_lowercase());
    problems(too_long(text, MAX_LABEL), holds, LABEL_1035)
}

/// `name` or `prefix.example.com/name`.
pub(crate) fn qualified(text: &str) -> Problems {
    let mut found = Vec::new();
    let name = match text.split('/').collect::<Vec<_>>()[..] {
        [name] => name,
        [prefix, name] => {
            if prefix.is_empty() {
                found.push("prefix part must be non-empty".to_owned());
            } else {
                found.extend(subdomain(prefix).iter().map(|why| format!("prefix part {why}")));
            }
            name
        }
        _ => return vec![QUALIFIED.to_owned()],
    };
    if name.is_empty() {
        found.push("name part must be non-empty".to_owned());
    } else if let Some(why) = too_long(name, MAX_LABEL) {
        found.push(format!("name part {}", why.replace("characters", "bytes")));
    }
    if !is_part(name) {
        found.push(QUALIFIED_PART.to_owned());
    }
    found
}

/// A label's value: empty or like a qualified part.
pub(crate) fn label_value(text: &str) -> Problems {
    let length = too_long(text, MAX_LABEL).map(|why| why.replace("characters", "bytes"));
    problems(length, text.is_empty() || is_part(text), LABEL_VALUE)
}

/// A key of a config map or a secret.
pub(crate) fn config_key(text: &str) -> Problems {
    let inner = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    let mut found =
        problems(too_long(text, MAX_SUBDOMAIN), is_made_of(text, inner, inner), CONFIG_KEY);
    match text {
        "." => found.push("must not be '.'".into()),
        ".." => found.push("must not be '..'".into()),
        _ if text.starts_with("..") => found.push("must not start with '..'".into()),
        _ => {}
    }
    found
}

/// A name that is one part of a path.
pub(crate) fn path_segment(text: &str) -> Problems {
    match text {
        "." => return vec!["may not be '.'".into()],
        ".." => return vec!["may not be '..'".into()],
        _ => {}
    }
    let bad = ["/", "%"].into_iter().filter(|part| text.contains(part));
    bad.map(|part| format!("may not contain '{part}'")).collect()
}

/// Whether a text is a DNS name.
pub(crate) fn is_dns_subdomain(text: &str) -> bool {
    subdomain(text).is_empty()
}

/// Whether a text is `name` or `prefix.example.com/name`.
pub(crate) fn is_qualified_name(text: &str) -> bool {
    qualified(text).is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_names_are_refused() {
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
        assert!(!label(&"a".repeat(64)).is_empty());
        assert!(label_value("").is_empty());
        assert!(label_1035("0a").len() == 1 && label_1035("a0").is_empty());
    }

    #[test]
    fn every_fault_is_reported() {
        let rows: [(Problems, &[&str]); 6] = [
            (subdomain(&"A".repeat(254)), &["must be no more than 253", "a lowercase RFC 1123"]),
            (
                qualified("/"),
                &["prefix part must be", "name part must be non-empty", "name part must consist"],
            ),
            (qualified("Ex/a"), &["prefix part a lowercase"]),
            (qualified("a/b/c"), &["a valid label key must"]),
            (config_key("..x"), &["must not start with '..'"]),
            (path_segment("a/%"), &["may not contain '/'", "may not contain '%'"]),
        ];
        for (found, wanted) in rows {
            assert_eq!(found.len(), wanted.len(), "{found:?}");
            assert!(found.iter().zip(wanted).all(|(f, w)| f.starts_with(w)), "{found:?}");
        }
    }
}
