//! How large and how deep objects may be.
//!
//! Everything that is stored is read again as JSON, whose parser stops at 128 levels. Bodies of
//! other formats, and patches that copy, could otherwise build what can never be read again.

use serde_json::Value;

use crate::error::{ApiResult, Status};

/// Levels of an object, what belongs to its managers included.
const MAX_DEPTH: usize = 120;
/// Text of an object. Requests are as large at most, but objects grow with each patch.
pub const MAX_BYTES: usize = 3 << 20;

/// Refuses an object that is too large or too deep.
///
/// # Errors
/// 413 or 400.
pub fn check_extent(object: &Value) -> ApiResult<()> {
    let mut bytes = 0;
    if depth(object, MAX_DEPTH, &mut bytes).is_none() {
        return Err(too_deep());
    }
    if bytes > MAX_BYTES {
        return Err(Status::too_large(MAX_BYTES));
    }
    Ok(())
}

/// 400 for an object with too many levels.
pub fn too_deep() -> Status {
    Status::bad_request(format!("the object is nested more than {MAX_DEPTH} levels deep"))
}

/// Whether an object is so far from the bounds that its managers cannot bring it over them: what they
/// have is a few levels deeper than the object.
pub fn leaves_room(object: &Value, managers: &str) -> bool {
    const LEVELS: usize = 8;
    let mut bytes = managers.len();
    depth(object, MAX_DEPTH - LEVELS, &mut bytes).is_some() && bytes <= MAX_BYTES
}

/// About how long the text of a value is.
pub fn text_len(value: &Value) -> usize {
    let mut bytes = 0;
    depth(value, usize::MAX, &mut bytes);
    bytes
}

/// Adds up the length; `None` when there are more levels than allowed.
fn depth(value: &Value, left: usize, bytes: &mut usize) -> Option<()> {
    match value {
        Value::Null | Value::Bool(_) => *bytes += 4,
        Value::Number(_) => *bytes += 8,
        Value::String(text) => *bytes += text.len() + 2,
        Value::Array(items) => {
            let left = left.checked_sub(1)?;
            *bytes += 2 + items.len();
            for item in items {
                depth(item, left, bytes)?;
            }
        }
        Value::Object(map) => {
            let left = left.checked_sub(1)?;
            *bytes += 2;
            for (key, item) in map {
                *bytes += key.len() + 4;
                depth(item, left, bytes)?;
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
        assert!(check_extent(&nested(MAX_DEPTH)).is_ok());
        assert_eq!(check_extent(&nested(MAX_DEPTH + 1)).unwrap_err().code, 400);
        assert!(check_extent(&json!({"a": "x".repeat(MAX_BYTES / 2)})).is_ok());
        assert_eq!(check_extent(&json!({"a": "x".repeat(MAX_BYTES)})).unwrap_err().code, 413);
        let deepest = nested(MAX_DEPTH).to_string();
        assert!(serde_json::from_str::<Value>(&deepest).is_ok(), "it can be read again");
    }

    #[test]
    fn lengths_are_about_right() {
        let value = json!({"metadata": {"name": "x", "labels": {"a": "b"}}, "list": ["y", "z"]});
        let (guess, real) = (text_len(&value), value.to_string().len());
        assert!(guess.abs_diff(real) < 10, "{guess} {real}");
    }
}
