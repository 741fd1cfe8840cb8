//! How large and how deep objects may be.
//!
//! Everything that is stored is read again as JSON, whose parser stops at 128 levels. Bodies of
//! other formats, and patches that copy, could otherwise build what can never be read again.

use serde_json::Value;

use crate::error::{ApiResult, Status};

/// Levels of an object, what belongs to its managers included.
const MAX_DEPTH: usize = 120;
/// Text of an object. Requests are as large at most, but objects grow with each patch.
pub(crate) const MAX_BYTES: usize = 3 << 20;

/// What an object takes.
#[derive(Debug, Default)]
struct Size {
    /// Length of its text, about.
    bytes: usize,
    /// Memory, about, its texts apart.
    memory: usize,
}

/// Refuses an object that is too large or too deep.
///
/// # Errors
/// 413 or 400.
pub(crate) fn check_size(object: &Value) -> ApiResult<()> {
    let mut size = Size::default();
    if depth(object, MAX_DEPTH, &mut size).is_none() {
        return Err(too_deep());
    }
    if size.bytes > MAX_BYTES {
        return Err(Status::too_large(MAX_BYTES));
    }
    Ok(())
}

/// Refuses an object of a kind that would take many times its length in memory. Objects grow with each
/// patch, so it is not enough to look at what is sent.
///
/// # Errors
/// 413.
pub(crate) fn check_memory(object: &Value, kind: &str) -> ApiResult<()> {
    let mut size = Size::default();
    depth(object, usize::MAX, &mut size);
    match most_memory(kind) {
        most if size.memory > most => Err(Status::too_many_parts(size.memory, most)),
        _ => Ok(()),
    }
}

/// 400 for an object with too many levels.
pub(crate) fn too_deep() -> Status {
    Status::bad_request(format!("the object is nested more than {MAX_DEPTH} levels deep"))
}

/// Whether an object is so far from the bounds that its managers cannot bring it over them: what they
/// have is a few levels deeper than the object.
pub(crate) fn leaves_room(object: &Value, managers: &str) -> bool {
    const LEVELS: usize = 8;
    let mut size = Size { bytes: managers.len(), memory: 0 };
    depth(object, MAX_DEPTH - LEVELS, &mut size).is_some() && size.bytes <= MAX_BYTES
}

/// What a value of so many parts takes in memory, about: an object has room for eleven fields from its
/// first on, a list for four elements.
const OBJECT_BYTES: usize = 640;
const LIST_BYTES: usize = 160;
const VALUE_BYTES: usize = 32;
/// What the value of a request may take. There are several copies of it at a time.
const MAX_IN_MEMORY: usize = 10 << 20;
/// The same for definitions: only administrators write them, and schemas have many small parts.
const MAX_DEFINITION: usize = 40 << 20;
/// A request of this length can be no bomb of this kind.
const SHORT: usize = 64 << 10;

/// Refuses a JSON text that would take many times its length in memory.
///
/// # Errors
/// 413 that says so.
pub(crate) fn check_parts(text: &[u8], kind: &str) -> ApiResult<()> {
    if text.len() <= SHORT {
        return Ok(());
    }
    let (bytes, most) = (in_memory(text), most_memory(kind));
    if bytes > most { Err(Status::too_many_parts(bytes, most)) } else { Ok(()) }
}

fn most_memory(kind: &str) -> usize {
    if kind == "CustomResourceDefinition" { MAX_DEFINITION } else { MAX_IN_MEMORY }
}

/// What the value of a JSON text takes in memory, beside its texts.
fn in_memory(text: &[u8]) -> usize {
    let (mut bytes, mut quoted, mut escaped) = (0_usize, false, false);
    let mut opened = None;
    for c in text {
        if quoted {
            (quoted, escaped) = (escaped || *c != b'"', !escaped && *c == b'\\');
            continue;
        }
        if c.is_ascii_whitespace() {
            continue;
        }
        // What is empty takes nothing.
        if let Some(size) = opened.take()
            && !matches!(c, b'}' | b']')
        {
            bytes = bytes.saturating_add(size);
        }
        match c {
            b'{' => opened = Some(OBJECT_BYTES),
            b'[' => opened = Some(LIST_BYTES),
            b',' => bytes = bytes.saturating_add(VALUE_BYTES),
            b'"' => quoted = true,
            _ => {}
        }
    }
    bytes
}

/// About how long the text of a value is.
pub(crate) fn text_len(value: &Value) -> usize {
    let mut size = Size::default();
    depth(value, usize::MAX, &mut size);
    size.bytes
}

/// Adds up what a value takes; `None` when there are more levels than allowed.
fn depth(value: &Value, left: usize, size: &mut Size) -> Option<()> {
    match value {
        Value::Null | Value::Bool(_) => size.bytes += 4,
        Value::Number(_) => size.bytes += 8,
        Value::String(text) => size.bytes += text.len() + 2,
        Value::Array(items) => {
            let left = left.checked_sub(1)?;
            size.bytes += 2 + items.len();
            if !items.is_empty() {
                size.memory += LIST_BYTES + items.len() * VALUE_BYTES;
            }
            for item in items {
                depth(item, left, size)?;
            }
        }
        Value::Object(map) => {
            let left = left.checked_sub(1)?;
            size.bytes += 2;
            if !map.is_empty() {
                size.memory += OBJECT_BYTES + map.len() * VALUE_BYTES;
            }
            for (key, item) in map {
                size.bytes += key.len() + 4;
                depth(item, left, size)?;
            }
        }
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn nested(levels: usize) -> Value {
        (0..levels).fold(json!(1), |inner, _| json!({"a": inner}))
    }

    #[test]
    fn depth_and_size_are_bounded() {
        assert!(check_size(&nested(MAX_DEPTH)).is_ok());
        assert_eq!(check_size(&nested(MAX_DEPTH + 1)).unwrap_err().code, 400);
        assert!(check_size(&json!({"a": "x".repeat(MAX_BYTES / 2)})).is_ok());
        assert_eq!(check_size(&json!({"a": "x".repeat(MAX_BYTES)})).unwrap_err().code, 413);
        let deepest = nested(MAX_DEPTH).to_string();
        assert!(serde_json::from_str::<Value>(&deepest).is_ok(), "it can be read again");
    }

    #[test]
    fn texts_of_many_parts_are_refused() {
        assert_eq!(in_memory(br#"{"a": [1, 2], "b": {}, "c": "{[,\"{"}"#), 640 + 160 + 3 * 32);
        let many = |part: &str, times: usize| format!("[{}1]", part.repeat(times));
        for bomb in [many("{\"a\":1},", 300_000), many("[1],", 700_000), many("1,", 1_500_000)] {
            assert_eq!(check_parts(bomb.as_bytes(), "").unwrap_err().code, 413);
        }
        for usual in
            [many("{\"name\":\"some name\"},", 10_000), many("1,", 300_000), many("{},", 300_000)]
        {
            assert!(check_parts(usual.as_bytes(), "").is_ok());
        }
    }

    #[test]
    fn lengths_are_about_right() {
        let value = json!({"metadata": {"name": "x", "labels": {"a": "b"}}, "list": ["y", "z"]});
        let (guess, real) = (text_len(&value), value.to_string().len());
        assert!(guess.abs_diff(real) < 10, "{guess} {real}");
    }

    #[test]
    fn objects_that_grew_to_many_parts_are_refused() {
        let many = json!({"a": vec![json!({"b": 1}); 40_000]});
        assert_eq!(check_memory(&many, "Pod").unwrap_err().code, 413);
        assert!(check_memory(&many, "CustomResourceDefinition").is_ok());
        assert!(check_memory(&json!({"a": vec![json!({"b": 1}); 10_000]}), "Pod").is_ok());
    }
}
