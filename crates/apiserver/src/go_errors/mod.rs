//! How the Go server words its complaints about texts that cannot be read.
//!
//! Scripts match them and people search for them, so the same input is answered with the same
//! words here.

mod fault;
mod json;
mod time;

use serde_json::Value;

pub(crate) use fault::type_fault;
pub(crate) use json::json_fault;
pub(crate) use time::time_fault;

/// What is wrong with a text that should be base64.
pub(crate) fn base64_fault(text: &str) -> Option<String> {
    base64_fault_at(text, true).map(|at| format!("illegal base64 data at input byte {at}"))
}

/// Where a text stops being base64; `padded` says whether it has to end in `=`.
pub(crate) fn base64_fault_at(text: &str, padded: bool) -> Option<usize> {
    let valid = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'/' | b'-' | b'_');
    let bytes: Vec<(usize, u8)> =
        text.bytes().enumerate().filter(|(_, b)| !matches!(b, b'\r' | b'\n')).collect();
    let ends =
        if padded { bytes.iter().rev().take_while(|(_, b)| *b == b'=').count().min(2) } else { 0 };
    let body = &bytes[..bytes.len() - ends];
    if let Some((at, _)) = body.iter().find(|(_, b)| !valid(*b)) {
        return Some(*at);
    }
    let rest = body.len() % 4;
    let complete = match (rest, ends) {
        (0, 0) => true,
        (2 | 3, 0) => !padded,
        (rest, ends) => padded && rest + ends == 4,
    };
    if complete {
        return None;
    }
    // The last group of four is not complete.
    Some(match (rest, ends) {
        (_, 0) => text.len() - rest,
        (0 | 1, _) => body.len(),
        _ => text.len(),
    })
}

/// The type of a JSON value as Go calls it.
pub(crate) fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// A value as Go prints maps.
pub(crate) fn map_text(value: &Value) -> String {
    match value {
        Value::Null => "<nil>".into(),
        Value::String(text) => text.clone(),
        Value::Array(list) => {
            format!("[{}]", list.iter().map(map_text).collect::<Vec<_>>().join(" "))
        }
        Value::Object(map) => {
            let parts: Vec<String> =
                map.iter().map(|(key, value)| format!("{key}:{}", map_text(value))).collect();
            format!("map[{}]", parts.join(" "))
        }
        other => other.to_string(),
    }
}

/// The start of a body, for an error about it.
pub(crate) fn summary(body: &[u8]) -> String {
    const MOST: usize = 30;
    let more = if body.len() > MOST { " ..." } else { "" };
    let start = &body[..body.len().min(MOST)];
    match body.first() {
        None => "<empty>".into(),
        Some(b'{') => format!("{}{more}", String::from_utf8_lossy(start)),
        Some(_) => format!("{}{more}", hex::encode(start)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn base64_faults_have_an_offset() {
        let rows = [
            ("", None),
            ("YQ==", None),
            ("YWI=", None),
            ("YWJj", None),
            ("%", Some(0)),
            ("YWJj%", Some(4)),
            ("abc", Some(0)),
            ("YWJjZ", Some(4)),
        ];
        for (text, wanted) in rows {
            assert_eq!(base64_fault_at(text, true), wanted, "{text}");
        }
        assert_eq!(base64_fault_at("YWI", false), None);
    }

    #[test]
    fn maps_and_bodies_are_quoted_as_go_prints_them() {
        assert_eq!(
            map_text(&json!({"b": [1, "x"], "a": {"c": null}})),
            "map[a:map[c:<nil>] b:[1 x]]"
        );
        assert_eq!(summary(b""), "<empty>");
        assert_eq!(summary(b"{nope"), "{nope");
        assert_eq!(summary(&[0x6b, 0xff]), "6bff");
        assert!(summary(&[b'{'; 40]).ends_with("{ ..."));
    }
}
