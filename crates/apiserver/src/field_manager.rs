//! Field managers: the program that asks, unless the request names another one.

use http::HeaderMap;
use http::header::USER_AGENT;

use serde_json::Value;

use crate::error::{Cause, Causes};

/// Longer names are cut, or refused when they were given by name.
const MAX_BYTES: usize = 128;
const MAX_SUBRESOURCE_BYTES: usize = 256;
/// A refusal names this many odd characters.
const MAX_ODD: usize = 16;

/// The manager of requests that name none: what stands before the first slash of the user agent, as
/// far as it can be printed.
pub(crate) fn of_agent(headers: &HeaderMap) -> String {
    let agent = headers.get(USER_AGENT).map(|value| String::from_utf8_lossy(value.as_bytes()));
    let agent = agent.unwrap_or_default();
    let mut name = String::new();
    for letter in agent.split('/').next().unwrap_or_default().chars().filter(|c| is_print(*c)) {
        if name.len() + letter.len_utf8() > MAX_BYTES {
            break;
        }
        name.push(letter);
    }
    if name.is_empty() { "unknown".into() } else { name }
}

/// Judges the name of a manager.
pub(crate) fn validate(causes: &mut Causes, field: &str, name: &str) {
    if name.len() > MAX_BYTES {
        causes.push(Cause::too_long(field, MAX_BYTES));
    }
    let odd = name.char_indices().filter(|(_, letter)| !is_print(*letter));
    for (at, letter) in odd.take(MAX_ODD) {
        let why = format!("invalid character U+{:04X} (at position {at})", u32::from(letter));
        causes.push(Cause::invalid(field, &name.into(), &why));
    }
}

/// Judges the managers that an object brings along.
pub(crate) fn validate_entries(causes: &mut Causes, entries: &Value) {
    for (i, entry) in entries.as_array().into_iter().flatten().enumerate() {
        let text = |field: &str| entry[field].as_str().unwrap_or_default();
        let field = format!("metadata.managedFields[{i}]");
        validate(causes, &format!("{field}.manager"), text("manager"));
        if text("subresource").len() > MAX_SUBRESOURCE_BYTES {
            causes.push(Cause::too_long(format!("{field}.subresource"), MAX_SUBRESOURCE_BYTES));
        }
        if causes.len() > MAX_ODD {
            return;
        }
    }
}

/// Whether a character leaves a mark. Of white space only the plain blank counts.
fn is_print(letter: char) -> bool {
    let unseen = matches!(letter,
        '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}' | '\u{e000}'..='\u{f8ff}' | '\u{feff}' | '\u{fff0}'..='\u{fffb}'
        | '\u{e0000}'..='\u{10ffff}');
    letter == ' ' || !(unseen || letter.is_control() || letter.is_whitespace())
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn the_agent_up_to_the_slash_is_cut_to_what_can_be_kept() {
        let long = "a".repeat(200_000);
        let cut = "a".repeat(128);
        let wide = "é".repeat(100);
        let rows: &[(&[u8], &str)] = &[
            (b"kubectl/v1.37 (linux)", "kubectl"),
            (b"", "unknown"),
            (b"/x", "unknown"),
            (b"a b\tc", "a bc"),
            (long.as_bytes(), &cut),
            (wide.as_bytes(), &wide[..128]),
            (b"a\xff", "a\u{fffd}"),
        ];
        for (agent, wanted) in rows {
            let mut headers = HeaderMap::new();
            headers.insert(USER_AGENT, HeaderValue::from_bytes(agent).unwrap());
            assert_eq!(of_agent(&headers), *wanted);
        }
        assert_eq!(of_agent(&HeaderMap::new()), "unknown");
    }

    #[test]
    fn named_managers_are_short_and_printable() {
        let count = |name: &str| {
            let mut causes = Causes::new();
            validate(&mut causes, "fieldManager", name);
            causes.len()
        };
        assert_eq!(count("kubectl edit"), 0);
        assert_eq!(count(&"a".repeat(129)), 1);
        assert_eq!(count("a\nb\u{200b}"), 2);
        assert!(count(&"\n".repeat(1_000_000)) <= 17);
        let entry = serde_json::json!({"manager": "a".repeat(200), "subresource": "b".repeat(300)});
        let mut causes = Causes::new();
        validate_entries(&mut causes, &Value::Array(vec![entry; 1000]));
        assert!(causes.len() > 2 && causes.len() < 20, "{}", causes.len());
    }
}
