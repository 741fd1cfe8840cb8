//! Request and response bodies.

use std::convert::Infallible;
use std::io;

use bytes::{Bytes, BytesMut};
use futures::{Stream, StreamExt};
use http::{HeaderValue, Response, StatusCode, header};
use http_body::Frame;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use serde_json::{Map, Value};
use tokio::runtime::{Handle, RuntimeFlavor};

use super::negotiate::Encoding;
use crate::error::{ApiResult, Status, start};
use crate::field_path::FieldPath;
use crate::go_errors;
use crate::heavy::Reserved;
use crate::size_limits::{check_memory, check_parts, check_size};

pub type Body = UnsyncBoxBody<Bytes, io::Error>;
pub type ApiResponse = Response<Body>;

/// A response with a whole body.
pub fn response(code: u16, content_type: &'static str, body: impl Into<Bytes>) -> ApiResponse {
    let mut response = Response::new(Full::new(body.into()).map_err(never).boxed_unsync());
    *response.status_mut() =
        StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
    response
}

/// What is in memory always comes.
fn never(impossible: Infallible) -> io::Error {
    match impossible {}
}

/// A JSON response.
pub fn json(code: u16, body: &Value) -> ApiResponse {
    response(code, "application/json", body.to_string())
}

pub fn error(status: &Status) -> ApiResponse {
    if status.plain {
        return response(status.code, "text/plain; charset=utf-8", "404 page not found\n");
    }
    let mut response = json(status.code, &status.to_value());
    if let Some(seconds) = status.retry_after() {
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}

/// A response that goes on until the stream ends.
pub fn stream(
    content_type: &'static str,
    chunks: impl Stream<Item = Bytes> + Send + 'static,
) -> ApiResponse {
    let frames = chunks.map(|chunk| Ok(Frame::data(chunk)));
    streamed(content_type, StreamBody::new(frames).boxed_unsync())
}

/// A JSON response in pieces; what comes in one is a response with a whole body.
pub fn pieces(code: u16, pieces: impl Iterator<Item = Bytes> + Send + 'static) -> ApiResponse {
    let mut pieces = pieces;
    let first = pieces.next().unwrap_or_default();
    let Some(second) = pieces.next() else { return response(code, "application/json", first) };
    let all = [first, second].into_iter().chain(pieces);
    let mut response = stream("application/json", futures::stream::iter(all));
    *response.status_mut() =
        StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response
}

/// The same, each piece made on a thread for work that takes long, when its `turn` comes. On a runtime
/// with one thread there are no others to hold up.
pub fn pieces_elsewhere<F, T>(
    made: impl Iterator<Item = Bytes> + Send + 'static,
    turn: impl Fn() -> F + Send + 'static,
) -> ApiResponse
where
    F: Future<Output = T> + Send,
    T: Send + 'static,
{
    if Handle::current().runtime_flavor() == RuntimeFlavor::CurrentThread {
        return pieces(200, made);
    }
    let frames = futures::stream::unfold(Some((made, turn)), |state| async move {
        let (mut made, turn) = state?;
        let held = turn().await;
        let next = tokio::task::spawn_blocking(move || {
            let _held = held;
            made.next().map(|piece| (piece, made))
        });
        match next.await {
            Ok(next) => next.map(|(piece, made)| (Ok(Frame::data(piece)), Some((made, turn)))),
            Err(error) => Some((Err(io::Error::other(error)), None)),
        }
    });
    streamed("application/json", StreamBody::new(frames).boxed_unsync())
}

fn streamed(content_type: &'static str, body: Body) -> ApiResponse {
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
    response
}

/// Adds `Warning` headers: as many as upstream does, and where there are many each cut as it does.
pub fn warn(response: &mut ApiResponse, warnings: &[String]) {
    const ALL_BYTES: usize = 4 * 1024;
    const ONE_BYTES: usize = 256;
    // Clients take about a hundred headers.
    const MOST: usize = 64;
    let crowded = warnings.iter().map(String::len).sum::<usize>() > ALL_BYTES;
    let mut room = ALL_BYTES;
    for warning in warnings.iter().take(MOST) {
        let warning = start(warning, if crowded { ONE_BYTES } else { ALL_BYTES });
        let Some(left) = room.checked_sub(warning.len()) else { return };
        room = left;
        let quoted = warning.replace('\\', "\\\\").replace('"', "\\\"");
        if let Ok(value) = HeaderValue::from_str(&format!("299 - \"{quoted}\"")) {
            response.headers_mut().append(header::WARNING, value);
        }
    }
}

/// The next piece of a body.
async fn next_data<B>(body: &mut B) -> ApiResult<Option<Bytes>>
where
    B: http_body::Body<Data = Bytes> + Unpin,
    B::Error: std::fmt::Display,
{
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|e| Status::bad_request(format!("reading the body: {e}")))?;
        if let Ok(data) = frame.into_data() {
            return Ok(Some(data));
        }
    }
    Ok(None)
}

/// Reads a body up to a limit.
///
/// # Errors
/// 413 when it is larger, 400 when it breaks off.
pub async fn read<B>(mut body: B, limit: usize, room: &mut Reserved<'_>) -> ApiResult<Bytes>
where
    B: http_body::Body<Data = Bytes> + Unpin,
    B::Error: std::fmt::Display,
{
    // Most bodies come in one piece, which is taken as it is.
    let (mut first, mut out) = (Bytes::new(), BytesMut::new());
    // A bit more of a body that is too large is taken in: a client that is still sending when the
    // connection closes never sees the response.
    let mut seen = 0;
    while let Some(data) = next_data(&mut body).await? {
        seen += data.len();
        if seen > limit.saturating_mul(2) {
            break;
        }
        room.grow(seen.min(limit)).await?;
        if seen == data.len() && seen <= limit {
            first = data;
        } else if seen <= limit {
            if out.is_empty() {
                out.extend_from_slice(&first);
            }
            out.extend_from_slice(&data);
        }
    }
    match seen {
        _ if seen > limit => Err(Status::too_large(limit)),
        _ if out.is_empty() => Ok(first),
        _ => Ok(out.freeze()),
    }
}

/// What came with a request: text, or the object itself from a client in this process.
pub struct Sent<B> {
    pub text: B,
    pub tree: Option<Value>,
}

/// A parsed body, with the paths of fields that stood in it twice.
#[derive(Debug)]
pub struct Parsed {
    pub value: Value,
    /// Fields given twice; the last one counts.
    pub duplicate_fields: Vec<String>,
}

/// What Go calls the part of an object that says what it is.
const TYPE_META: &str = r#"struct { APIVersion string "json:\"apiVersion,omitempty\""; Kind string "json:\"kind,omitempty\"" }"#;

/// A body that is no object of the kind that was asked for.
pub fn unrecognized(kind: &str, why: &str, body: &[u8]) -> Status {
    let summary = go_errors::summary(body);
    Status::bad_request(format!(
        "the object provided is unrecognized (must be of type {kind}): {why} ({summary})"
    ))
}

/// Parses a body that should hold an object of a kind.
///
/// # Errors
/// 400 when it cannot be parsed.
pub fn parse(encoding: Encoding, body: &[u8], kind: &str) -> ApiResult<Parsed> {
    let mut parsed = read_tree(encoding, body, kind)?;
    let fault = match &parsed.value {
        // Nothing is an empty object.
        Value::Null => {
            parsed.value = empty();
            None
        }
        Value::Object(map) => ["apiVersion", "kind"].into_iter().find_map(|field| {
            let value = map.get(field).filter(|value| !value.is_string() && !value.is_null())?;
            let is = go_errors::type_name(value);
            Some(format!(
                "json: cannot unmarshal {is} into Go struct field .{field} of type string"
            ))
        }),
        other => {
            let is = go_errors::type_name(other);
            Some(format!("json: cannot unmarshal {is} into Go value of type {TYPE_META}"))
        }
    };
    match fault {
        None => Ok(parsed),
        Some(why) => Err(no_kind(kind, &why, body)),
    }
}

fn no_kind(kind: &str, why: &str, body: &[u8]) -> Status {
    unrecognized(kind, &format!("couldn't get version/kind; json parse error: {why}"), body)
}

fn read_tree(encoding: Encoding, body: &[u8], kind: &str) -> ApiResult<Parsed> {
    match encoding {
        Encoding::Json => {
            check_parts(body, kind)?;
            let mut duplicate_fields = Vec::new();
            let mut deserializer = serde_json::Deserializer::from_slice(body);
            let seed = duplicate_fields::Tree {
                path: FieldPath::Top(""),
                duplicate_fields: &mut duplicate_fields,
            };
            let value = serde::de::DeserializeSeed::deserialize(seed, &mut deserializer)
                .and_then(|value| deserializer.end().map(|()| value))
                .map_err(|e: serde_json::Error| {
                    let why = go_errors::json_fault(body).unwrap_or_else(|| e.to_string());
                    no_kind(kind, &why, body)
                })?;
            Ok(Parsed { value, duplicate_fields })
        }
        Encoding::Yaml => {
            // Most of it that is large is JSON, which is YAML as well.
            check_parts(body, kind)?;
            let bad = |why: String| unrecognized(kind, &format!("yaml: {why}"), body);
            let text = std::str::from_utf8(body).map_err(|e| bad(e.to_string()))?;
            let value = serde_saphyr::from_str(text).map_err(|e| bad(e.to_string()))?;
            check_size(&value)?;
            check_memory(&value, kind)?;
            Ok(Parsed { value, duplicate_fields: Vec::new() })
        }
        Encoding::Protobuf => {
            let value = super::protobuf::decode(body)
                .map_err(|error| unrecognized(kind, &error.to_string(), body))?;
            check_size(&value)?;
            check_memory(&value, kind)?;
            Ok(Parsed { value, duplicate_fields: Vec::new() })
        }
    }
}

/// An empty object, for bodies that may be left out.
pub fn empty() -> Value {
    Value::Object(Map::new())
}

/// Reads JSON into a tree and remembers keys that occur twice.
mod duplicate_fields {
    use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
    use serde_json::map::Entry;
    use serde_json::{Map, Number, Value};

    use crate::field_path::FieldPath;

    pub(super) struct Tree<'a, 'p> {
        pub path: FieldPath<'p>,
        pub duplicate_fields: &'a mut Vec<String>,
    }

    impl<'de> DeserializeSeed<'de> for Tree<'_, '_> {
        type Value = Value;

        fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
            deserializer.deserialize_any(self)
        }
    }

    impl<'de> Visitor<'de> for Tree<'_, '_> {
        type Value = Value;

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("any JSON value")
        }

        fn visit_bool<E>(self, v: bool) -> Result<Value, E> {
            Ok(Value::Bool(v))
        }

        fn visit_i64<E>(self, v: i64) -> Result<Value, E> {
            Ok(v.into())
        }

        fn visit_u64<E>(self, v: u64) -> Result<Value, E> {
            Ok(v.into())
        }

        fn visit_f64<E: Error>(self, v: f64) -> Result<Value, E> {
            Number::from_f64(v).map(Value::Number).ok_or_else(|| E::custom("not a finite number"))
        }

        fn visit_str<E>(self, v: &str) -> Result<Value, E> {
            Ok(Value::String(v.to_owned()))
        }

        fn visit_string<E>(self, v: String) -> Result<Value, E> {
            Ok(Value::String(v))
        }

        fn visit_unit<E>(self) -> Result<Value, E> {
            Ok(Value::Null)
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
            let mut items = Vec::new();
            loop {
                let path = FieldPath::Element(&self.path, items.len());
                match seq.next_element_seed(Tree {
                    path,
                    duplicate_fields: &mut *self.duplicate_fields,
                })? {
                    Some(item) => items.push(item),
                    None => return Ok(Value::Array(items)),
                }
            }
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
            let mut out = Map::new();
            while let Some(key) = map.next_key::<String>()? {
                let path = FieldPath::Field(&self.path, &key);
                let value = map.next_value_seed(Tree {
                    path,
                    duplicate_fields: &mut *self.duplicate_fields,
                })?;
                match out.entry(key) {
                    Entry::Vacant(place) => {
                        place.insert(value);
                    }
                    Entry::Occupied(mut place) => {
                        FieldPath::Field(&self.path, place.key()).report_to(self.duplicate_fields);
                        place.insert(value);
                    }
                }
            }
            Ok(Value::Object(out))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn duplicate_fields_are_reported_and_the_last_counts() {
        let parsed =
            parse(Encoding::Json, br#"{"a":{"k":1,"k":2},"l":[{"x":1,"x":2}]}"#, "A").unwrap();
        assert_eq!(parsed.value, json!({"a": {"k": 2}, "l": [{"x": 2}]}));
        assert_eq!(parsed.duplicate_fields, ["a.k", "l[0].x"]);
        let why = |body: &[u8]| parse(Encoding::Json, body, "A").unwrap_err().message;
        let start = "the object provided is unrecognized (must be of type A): couldn't get version/kind; json parse error: ";
        assert_eq!(
            why(b"{} {}"),
            format!("{start}invalid character '{{' after top-level value ({{}} {{}})")
        );
        assert!(
            why(b"[1]").starts_with(&format!("{start}json: cannot unmarshal array into Go value"))
        );
        assert!(
            why(br#"{"kind":1}"#).contains("cannot unmarshal number into Go struct field .kind")
        );
    }

    #[test]
    fn a_yaml_body_is_parsed_like_json() {
        let parsed = parse(Encoding::Yaml, b"a: 1\nb:\n- x\n", "A").unwrap();
        assert_eq!(parsed.value, json!({"a": 1, "b": ["x"]}));
    }
}
