//! Why fields were refused: a bounded list, each entry of bounded length.

use std::borrow::Cow;
use std::io;

use serde::Serialize;
use serde_json::Value;

/// One reason why a field was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cause {
    /// Machine-readable reason, e.g. `FieldValueInvalid`.
    pub reason: &'static str,
    /// Path of the field, e.g. `spec.accessModes`.
    pub field: String,
    pub message: String,
}

impl Cause {
    fn new(reason: &'static str, field: impl Into<String>, message: String) -> Self {
        // Names of fields are the client's as well.
        Self { reason, field: cut(&field.into()).into_owned(), message }
    }

    /// A value is missing.
    pub fn required(field: impl Into<String>, why: &str) -> Self {
        let message = if why.is_empty() {
            "Required value".into()
        } else {
            format!("Required value: {}", cut(why))
        };
        Self::new("FieldValueRequired", field, message)
    }

    /// A value breaks a rule.
    pub fn invalid(field: impl Into<String>, value: &Value, why: &str) -> Self {
        let (value, why) = (brief(value), cut(why));
        Self::new("FieldValueInvalid", field, format!("Invalid value: {value}: {why}"))
    }

    /// One cause for each thing that is wrong with a text.
    pub fn each<'a>(
        field: &'a str,
        value: &'a str,
        problems: Vec<String>,
    ) -> impl Iterator<Item = Self> + 'a {
        let value = Value::from(value);
        problems.into_iter().map(move |why| Self::invalid(field, &value, &why))
    }

    /// A text breaks a rule; it is shown in quotes.
    pub fn invalid_whole(field: &str, text: &str, why: &str) -> Self {
        Self::invalid_shown(field, &brief(text), why)
    }

    /// A value breaks a rule; it is shown as given.
    pub fn invalid_shown(field: impl Into<String>, shown: &str, why: &str) -> Self {
        let (shown, why) = (cut(shown), cut(why));
        Self::new("FieldValueInvalid", field, format!("Invalid value: {shown}: {why}"))
    }

    /// A value is not one of the known ones.
    pub fn not_supported(field: impl Into<String>, value: &str, known: &[&str]) -> Self {
        let known = known.iter().map(|k| format!("{k:?}")).collect::<Vec<_>>().join(", ");
        let value = brief(value);
        let message = format!("Unsupported value: {value}: supported values: {known}");
        Self::new("FieldValueNotSupported", field, message)
    }

    /// A value has the wrong JSON type.
    pub fn wrong_type(field: &str, is: &str, wanted: &str) -> Self {
        let message =
            format!("Invalid value: {is:?}: {field} in body must be of type {wanted}: {is:?}");
        Self::new("FieldValueTypeInvalid", field, message)
    }

    /// A text does not have the form it should have.
    pub fn wrong_format(field: &str, value: &Value, format: &str) -> Self {
        let value = brief(value);
        let message =
            format!("Invalid value: {value}: {field} in body must be of type {format}: {value}");
        Self::new("FieldValueTypeInvalid", field, message)
    }

    /// A value of any type is not one of the known ones.
    pub fn not_one_of(field: &str, value: &Value, known: &[Value]) -> Self {
        let mut texts = String::new();
        for value in known {
            if texts.len() > MAX_SHOWN {
                break;
            }
            if !texts.is_empty() {
                texts.push_str(", ");
            }
            texts.push_str(&brief(value));
        }
        let (value, known) = (brief(value), cut(&texts));
        let message = format!("Unsupported value: {value}: supported values: {known}");
        Self::new("FieldValueNotSupported", field, message)
    }

    /// A rule of a definition does not hold.
    pub fn of_rule(reason: &str, field: &str, value: Option<&Value>, why: &str) -> Self {
        match reason {
            "FieldValueForbidden" => Self::forbidden(field, why),
            "FieldValueRequired" => Self::required(field, why),
            "FieldValueDuplicate" => Self::duplicate(field, value.unwrap_or(&Value::Null)),
            _ => match value {
                Some(value) if !value.is_object() && !value.is_array() => {
                    Self::invalid(field, value, why)
                }
                _ => Self::new("FieldValueInvalid", field, format!("Invalid value: {}", cut(why))),
            },
        }
    }

    /// A field may not be set or changed here.
    pub fn forbidden(field: impl Into<String>, why: &str) -> Self {
        Self::new("FieldValueForbidden", field, format!("Forbidden: {}", cut(why)))
    }

    /// A value that must be unique occurs twice.
    pub fn duplicate(field: impl Into<String>, value: &Value) -> Self {
        Self::new("FieldValueDuplicate", field, format!("Duplicate value: {}", brief(value)))
    }

    /// A reference inside the object leads nowhere.
    pub fn not_found(field: impl Into<String>, value: &Value) -> Self {
        Self::new("FieldValueNotFound", field, format!("Not found: {}", brief(value)))
    }

    /// A value is longer than allowed.
    pub fn too_long(field: impl Into<String>, max_bytes: usize) -> Self {
        let message = format!("Too long: may not be more than {max_bytes} bytes");
        Self::new("FieldValueTooLong", field, message)
    }

    /// A text has more characters than allowed.
    pub fn too_long_chars(field: impl Into<String>, max: usize) -> Self {
        let message = format!("Too long: may not be more than {max} characters");
        Self::new("FieldValueTooLong", field, message)
    }

    /// A record that must be unique occurs twice; it is shown as given.
    pub fn duplicate_record(field: impl Into<String>, shown: &str) -> Self {
        Self::new("FieldValueDuplicate", field, format!("Duplicate value: {}", cut(shown)))
    }

    /// A value that must be unique occurs twice; it is shown as given, with a reason.
    pub fn duplicate_shown(field: impl Into<String>, shown: &str, why: &str) -> Self {
        let (shown, why) = (cut(shown), cut(why));
        Self::new("FieldValueDuplicate", field, format!("Duplicate value: {shown}: {why}"))
    }

    /// A list or map has more entries than allowed.
    pub fn too_many(field: impl Into<String>, count: usize, max: usize) -> Self {
        let message = format!("Too many: {count}: must have at most {max} items");
        Self::new("FieldValueTooMany", field, message)
    }
}

/// Longer values are cut in error texts: a response stays small whatever was sent.
const MAX_SHOWN: usize = 16 * 1024;
/// Causes that are kept; of further ones only the number is.
const MAX_CAUSES: usize = 100;
/// Text of all causes that are kept. It stands in a response twice, and escapes make it longer.
const MAX_TEXT: usize = 20 * 1024;

/// The reasons why an object was refused: the first ones, and how many there are beside them.
///
/// An object of a few megabytes can have hundreds of thousands of faults. No client reads them, and their
/// texts would be a hundred times as large as the object.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Causes {
    kept: Vec<Cause>,
    text: usize,
    /// How many are left out.
    more: usize,
}

impl Causes {
    /// No reasons so far.
    pub const fn new() -> Self {
        Self { kept: Vec::new(), text: 0, more: 0 }
    }

    pub fn push(&mut self, cause: Cause) {
        let text = cause.field.len() + cause.message.len();
        let full = self.kept.len() >= MAX_CAUSES || self.text + text > MAX_TEXT;
        if full && !self.kept.is_empty() {
            self.more += 1;
        } else {
            self.text += text;
            self.kept.push(cause);
        }
    }

    /// Whether there is no reason.
    pub fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    /// How many reasons there are.
    pub fn len(&self) -> usize {
        self.kept.len() + self.more
    }

    /// Whether further reasons would only be counted, so that who looks for them may stop.
    pub fn is_full(&self) -> bool {
        self.more > 0
    }

    /// How many are left out.
    pub fn more(&self) -> usize {
        self.more
    }

    /// Those that are kept.
    pub fn iter(&self) -> std::slice::Iter<'_, Cause> {
        self.kept.iter()
    }

    /// Those that are kept, to be reworded.
    pub fn iter_mut(&mut self) -> std::slice::IterMut<'_, Cause> {
        self.kept.iter_mut()
    }
}

impl Extend<Cause> for Causes {
    fn extend<I: IntoIterator<Item = Cause>>(&mut self, causes: I) {
        causes.into_iter().for_each(|cause| self.push(cause));
    }
}

impl FromIterator<Cause> for Causes {
    fn from_iter<I: IntoIterator<Item = Cause>>(causes: I) -> Self {
        let mut all = Self::new();
        all.extend(causes);
        all
    }
}

impl From<Cause> for Causes {
    fn from(cause: Cause) -> Self {
        [cause].into_iter().collect()
    }
}

impl From<Vec<Cause>> for Causes {
    fn from(causes: Vec<Cause>) -> Self {
        causes.into_iter().collect()
    }
}

impl IntoIterator for Causes {
    type Item = Cause;
    type IntoIter = std::vec::IntoIter<Cause>;

    fn into_iter(self) -> Self::IntoIter {
        self.kept.into_iter()
    }
}

impl<'a> IntoIterator for &'a Causes {
    type Item = &'a Cause;
    type IntoIter = std::slice::Iter<'a, Cause>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl<'a> IntoIterator for &'a mut Causes {
    type Item = &'a mut Cause;
    type IntoIter = std::slice::IterMut<'a, Cause>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter_mut()
    }
}

/// The start of a text, at most so many bytes of it.
pub fn start(text: &str, bytes: usize) -> &str {
    let end = (0..=bytes.min(text.len())).rev().find(|at| text.is_char_boundary(*at));
    &text[..end.unwrap_or(0)]
}

/// A text that is not too long for an error.
pub fn cut(text: &str) -> Cow<'_, str> {
    if text.len() <= MAX_SHOWN {
        return Cow::Borrowed(text);
    }
    Cow::Owned(format!("{}…", start(text, MAX_SHOWN)))
}

/// A value as it stands in an error text, strings quoted. What is cut off is never written.
pub fn brief(value: &(impl Serialize + ?Sized)) -> String {
    let mut shown = Shown(Vec::new());
    // The only error is that there is no more room.
    let whole = serde_json::to_writer(&mut shown, value).is_ok();
    let text = String::from_utf8_lossy(&shown.0);
    let text = text.trim_end_matches(char::REPLACEMENT_CHARACTER);
    if whole { text.to_owned() } else { format!("{text}…") }
}

/// Takes so much of a text and no more.
struct Shown(Vec<u8>);

impl io::Write for Shown {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        let room = MAX_SHOWN - self.0.len();
        let taken = text.len().min(room);
        self.0.extend_from_slice(&text[..taken]);
        if taken == 0 && !text.is_empty() {
            return Err(io::ErrorKind::WriteZero.into());
        }
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn values_are_cut_and_written_no_further() {
        assert_eq!(brief(&json!({"a": [1, "ü"]})), r#"{"a":[1,"ü"]}"#);
        let long = brief(&json!("ü".repeat(MAX_SHOWN)));
        assert!(long.len() <= MAX_SHOWN + 3 && long.ends_with("ü…"), "{}", long.len());
        assert!(cut(&"ü".repeat(MAX_SHOWN)).ends_with("ü…"));
        assert_eq!(cut("short"), "short");
    }

    #[test]
    fn of_many_causes_the_first_are_kept_and_the_others_counted() {
        let mut causes = Causes::new();
        (0..200_000).for_each(|i| causes.push(Cause::required(format!("f[{i}]"), "")));
        assert_eq!((causes.len(), causes.iter().len()), (200_000, MAX_CAUSES));
        let mut long = Causes::new();
        (0..9).for_each(|_| long.push(Cause::invalid("f", &json!("x".repeat(1 << 20)), "bad")));
        assert!(long.text <= MAX_TEXT, "{}", long.text);
        assert_eq!(long.len(), 9);
    }
}
