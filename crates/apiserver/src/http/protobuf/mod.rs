//! Request bodies in Kubernetes protobuf: what Go clients send for built-in kinds.
//!
//! A body is four magic bytes and an envelope that names the kind and holds the object. Objects
//! are decoded into the same trees as JSON, driven by a table of field numbers, so that everything
//! behind the decoder sees one form only.
//!
//! Each built-in kind states the messages that only it uses, one a line, and `registry/kinds` those
//! that several use. A field is "number name type". Types: s string, b bool, i integer, f double,
//! y bytes, q quantity, t time, u time with microseconds, o integer or string, or a message. `[]` is a
//! list, `{}` a map from strings, `~` fields that stand in the parent in JSON; after `=` zero values
//! are kept, elsewhere they mean "not set".

mod wire;

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::LazyLock;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use serde_json::{Map, Value, json};

use crate::clock::time_text;
use crate::registry::kinds::{KINDS, common};
use wire::{Field, Reader, Truncated};

const MAGIC: &[u8] = b"k8s\0";
/// Deeper nesting than any real object has.
const MAX_DEPTH: usize = 48;

static SCHEMA: LazyLock<HashMap<&'static str, Vec<Column>>> = LazyLock::new(|| {
    let stated = KINDS.iter().flat_map(|kind| kind.protobuf).copied();
    stated.chain([common::PROTOBUF]).flat_map(parse_schema).collect()
});

/// How a field is repeated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shape {
    /// Once; zero values are dropped.
    Single,
    /// Once; zero values are kept.
    Kept,
    List,
    Map,
    /// Its fields stand in the parent.
    Inline,
}

/// One field of a message.
#[derive(Debug, Clone, Copy)]
struct Column {
    number: u64,
    name: &'static str,
    shape: Shape,
    kind: &'static str,
}

fn parse_schema(text: &'static str) -> Vec<(&'static str, Vec<Column>)> {
    let column = |field: &'static str| {
        let mut parts = field.trim().split(' ');
        let number = parts.next()?.parse().ok()?;
        let (name, kind) = (parts.next()?, parts.next()?);
        let shapes = [
            ("[]", Shape::List),
            ("{}", Shape::Map),
            ("~", Shape::Inline),
            ("=", Shape::Kept),
            ("", Shape::Single),
        ];
        let (shape, kind) =
            shapes.iter().find_map(|(sign, shape)| Some((*shape, kind.strip_prefix(sign)?)))?;
        Some(Column { number, name, shape, kind })
    };
    text.lines()
        .filter_map(|line| line.split_once(':'))
        .map(|(name, fields)| (name, fields.split(',').filter_map(column).collect()))
        .collect()
}

/// Messages of one body. A few bytes are a message, and each takes hundreds of them in memory.
const MAX_MESSAGES: usize = 40_000;

thread_local! {
    /// Messages of the body that is being decoded.
    static MESSAGES: Cell<usize> = const { Cell::new(0) };
}

/// Why a body could not be decoded.
#[derive(Debug, thiserror::Error)]
pub(super) enum DecodeError {
    #[error(
        "provided data does not appear to be a protobuf message, expected prefix [{}]",
        MAGIC.iter().map(u8::to_string).collect::<Vec<_>>().join(" ")
    )]
    Prefix,
    #[error("unexpected EOF")]
    Truncated,
    #[error("no kind {kind:?} is registered for version {api_version:?}")]
    NoKind { kind: String, api_version: String },
    #[error("the object has more than {} parts", MAX_MESSAGES)]
    TooManyParts,
}

impl From<Truncated> for DecodeError {
    fn from(_: Truncated) -> Self {
        Self::Truncated
    }
}

/// Decodes a body.
///
/// # Errors
/// It is no such body, is cut short, or holds a kind that is not served.
pub(super) fn decode(body: &[u8]) -> Result<Value, DecodeError> {
    let envelope = body.strip_prefix(MAGIC).ok_or(DecodeError::Prefix)?;
    let (api_version, kind, raw) = open_envelope(envelope)?;
    let Some(message) = message_of(&api_version, &kind) else {
        return Err(DecodeError::NoKind { kind, api_version });
    };
    MESSAGES.set(0);
    let mut object = decode_message(message, raw, 0).map_err(|truncated| {
        match MESSAGES.get() > MAX_MESSAGES {
            true => DecodeError::TooManyParts,
            false => truncated.into(),
        }
    })?;
    object.insert("apiVersion".into(), json!(api_version));
    object.insert("kind".into(), json!(kind));
    Ok(Value::Object(object))
}

/// Kind and content of the envelope.
fn open_envelope(bytes: &[u8]) -> Result<(String, String, &[u8]), Truncated> {
    let (mut api_version, mut kind, mut raw) = (String::new(), String::new(), &[][..]);
    for field in Reader::new(bytes) {
        match field? {
            (1, Field::Bytes(kind_bytes)) => {
                for part in Reader::new(kind_bytes) {
                    match part? {
                        (1, Field::Bytes(text)) => api_version = lossy(text),
                        (2, Field::Bytes(text)) => kind = lossy(text),
                        _ => {}
                    }
                }
            }
            (2, Field::Bytes(object)) => raw = object,
            _ => {}
        }
    }
    Ok((api_version, kind, raw))
}

fn message_of(api_version: &str, kind: &str) -> Option<&'static str> {
    let group_version = api_version.split_once('/').unwrap_or(("", api_version));
    let package = match group_version {
        _ if kind == "DeleteOptions" => "meta",
        ("", "v1") => "core",
        ("policy", "v1") => "policy",
        served if KINDS.iter().any(|kind| kind.group_version == served) => {
            served.0.split('.').next()?
        }
        _ => return None,
    };
    SCHEMA.get_key_value(format!("{package}.{kind}").as_str()).map(|(name, _)| *name)
}

fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn decode_message(
    message: &str,
    bytes: &[u8],
    depth: usize,
) -> Result<Map<String, Value>, Truncated> {
    MESSAGES.set(MESSAGES.get() + 1);
    if MESSAGES.get() > MAX_MESSAGES {
        return Err(Truncated);
    }
    let mut out = Map::new();
    let Some(columns) = SCHEMA.get(message).filter(|_| depth < MAX_DEPTH) else {
        return Err(Truncated);
    };
    for field in Reader::new(bytes) {
        let (number, field) = field?;
        // Fields from newer clients are dropped, as with JSON.
        let Some(column) = columns.iter().find(|c| c.number == number) else { continue };
        match column.shape {
            Shape::List => {
                let item = decode_value(column.kind, field, depth)?;
                let list = out.entry(column.name).or_insert_with(|| json!([]));
                if let Some(list) = list.as_array_mut() {
                    list.push(item);
                }
            }
            Shape::Map => {
                let (key, value) = decode_entry(column.kind, field, depth)?;
                let map = out.entry(column.name).or_insert_with(|| json!({}));
                map[key] = value;
            }
            Shape::Inline => {
                if let Value::Object(fields) = decode_value(column.kind, field, depth)? {
                    out.extend(fields);
                }
            }
            Shape::Single | Shape::Kept => {
                let value = decode_value(column.kind, field, depth)?;
                if column.shape == Shape::Kept || !is_zero(&value) {
                    out.insert(column.name.into(), value);
                }
            }
        }
    }
    Ok(out)
}

/// Go writes scalars that are not set as zero; in JSON they are left out.
fn is_zero(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(flag) => !flag,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(_) | Value::Object(_) => false,
    }
}

fn decode_entry(kind: &str, field: Field<'_>, depth: usize) -> Result<(String, Value), Truncated> {
    let Field::Bytes(bytes) = field else { return Err(Truncated) };
    let (mut key, mut value) = (String::new(), Value::Null);
    for part in Reader::new(bytes) {
        match part? {
            (1, Field::Bytes(text)) => key = lossy(text),
            (2, field) => value = decode_value(kind, field, depth)?,
            _ => {}
        }
    }
    if value.is_null() && matches!(kind, "s" | "y") {
        value = json!("");
    }
    Ok((key, value))
}

fn decode_value(kind: &str, field: Field<'_>, depth: usize) -> Result<Value, Truncated> {
    match (kind, field) {
        ("s", Field::Bytes(text)) => Ok(json!(lossy(text))),
        ("y", Field::Bytes(bytes)) => Ok(json!(STANDARD.encode(bytes))),
        ("b", Field::Varint(number)) => Ok(json!(number != 0)),
        // Negative numbers of any width travel as 64-bit two's complement.
        ("i", Field::Varint(number)) => Ok(json!(number.cast_signed())),
        ("f", Field::Fixed64(bits)) => Ok(json!(f64::from_bits(bits))),
        ("q", Field::Bytes(bytes)) => decode_quantity(bytes),
        ("t" | "u", Field::Bytes(bytes)) => decode_time(bytes, kind == "u"),
        ("o", Field::Bytes(bytes)) => decode_int_or_string(bytes),
        (message, Field::Bytes(bytes)) => {
            Ok(Value::Object(decode_message(message, bytes, depth + 1)?))
        }
        _ => Err(Truncated),
    }
}

fn decode_quantity(bytes: &[u8]) -> Result<Value, Truncated> {
    let mut text = Value::Null;
    for field in Reader::new(bytes) {
        if let (1, Field::Bytes(amount)) = field? {
            text = json!(lossy(amount));
        }
    }
    Ok(text)
}

fn decode_time(bytes: &[u8], micro: bool) -> Result<Value, Truncated> {
    let (mut seconds, mut nanos) = (None, 0);
    for field in Reader::new(bytes) {
        match field? {
            (1, Field::Varint(number)) => seconds = Some(number.cast_signed()),
            (2, Field::Varint(number)) => nanos = i32::try_from(number).unwrap_or(0),
            _ => {}
        }
    }
    // An empty message is Go's zero time: not set.
    let Some(seconds) = seconds else { return Ok(Value::Null) };
    let Ok(time) = Timestamp::new(seconds, nanos) else { return Err(Truncated) };
    Ok(json!(if micro {
        time.strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string()
    } else {
        time_text(time)
    }))
}

fn decode_int_or_string(bytes: &[u8]) -> Result<Value, Truncated> {
    let (mut is_text, mut number, mut text) = (false, 0, String::new());
    for field in Reader::new(bytes) {
        match field? {
            (1, Field::Varint(kind)) => is_text = kind == 1,
            (2, Field::Varint(value)) => number = value.cast_signed(),
            (3, Field::Bytes(value)) => text = lossy(value),
            _ => {}
        }
    }
    Ok(if is_text { json!(text) } else { json!(number) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from_base64(text: &str) -> Result<Value, DecodeError> {
        decode(&STANDARD.decode(text).unwrap())
    }

    #[test]
    fn every_message_that_a_kind_or_a_field_names_is_stated() {
        for (name, columns) in SCHEMA.iter() {
            for column in columns {
                let simple = ["s", "b", "i", "f", "y", "q", "t", "u", "o"].contains(&column.kind);
                assert!(simple || SCHEMA.contains_key(column.kind), "{name}.{}", column.name);
            }
        }
        for kind in KINDS.iter().filter(|kind| !kind.protobuf.is_empty()) {
            let (group, version) = kind.group_version;
            let api_version = format!("{group}/{version}");
            let found = message_of(api_version.trim_start_matches('/'), kind.names.kind);
            assert!(found.is_some(), "{api_version} {}", kind.names.kind);
        }
    }

    #[test]
    fn a_config_map_is_decoded() {
        let map = from_base64("azhzAAoPCgJ2MRIJQ29uZmlnTWFwEhUKCwoBYVoGCgF4EgExEgYKAWsSAXYaACIA");
        let wanted = json!({
            "kind": "ConfigMap", "apiVersion": "v1",
            "metadata": {"name": "a", "labels": {"x": "1"}}, "data": {"k": "v"},
        });
        assert_eq!(map.unwrap(), wanted);
    }

    #[test]
    fn delete_options_are_decoded() {
        let options = from_base64("azhzAAoTCgJ2MRINRGVsZXRlT3B0aW9ucxIMIgpCYWNrZ3JvdW5kGgAiAA==");
        assert_eq!(options.unwrap()["propagationPolicy"], "Background");
    }

    #[test]
    fn broken_bodies_are_refused() {
        for body in [&b"{}"[..], b"k8s", b"k8s\0\xff\xff", b"k8s\0\x0a\x7f", b"k8s\0"] {
            assert!(decode(body).is_err(), "{body:?}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_give_a_result(bytes: Vec<u8>) {
            let mut body = b"k8s\0\x0a\x09\x0a\x02v1\x12\x03Pod\x12".to_vec();
            body.push(u8::try_from(bytes.len().min(120)).unwrap());
            body.extend_from_slice(&bytes[..bytes.len().min(120)]);
            let _ = decode(&body);
            let _ = decode(&bytes);
        }
    }
}
