//! Which form of a response the client wants, and which form its body has.

use http::HeaderMap;
use http::header::{ACCEPT, CONTENT_TYPE};

use crate::error::{ApiResult, Status};

/// What table rows carry beside their cells.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Include {
    None,
    #[default]
    Metadata,
    Object,
}

/// The form of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    Object,
    /// Its metadata only.
    Partial,
    /// Rows for people.
    Table(Include),
}

/// Whether one object or many are asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// One object, or single events.
    Single,
    List,
}

/// One entry of an `Accept` header.
struct Entry<'a> {
    media: &'a str,
    parameters: Vec<(&'a str, &'a str)>,
}

impl<'a> Entry<'a> {
    fn parse(text: &'a str) -> Self {
        let mut parts = text.split(';').map(str::trim);
        let media = parts.next().unwrap_or_default();
        let parameters = parts.filter_map(|p| p.split_once('=')).collect();
        Self { media, parameters }
    }

    fn get(&self, name: &str) -> Option<&'a str> {
        self.parameters.iter().find(|(key, _)| *key == name).map(|(_, value)| *value)
    }

    /// Whether some response of ours has this media type, if not this form.
    fn is_known(&self) -> bool {
        self.is_json()
            || matches!(self.media, "application/yaml" | "application/vnd.kubernetes.protobuf")
    }

    fn is_json(&self) -> bool {
        matches!(self.media, "application/json" | "*/*" | "application/*")
    }
}

fn accept(headers: &HeaderMap) -> Option<&str> {
    headers.get(ACCEPT).and_then(|v| v.to_str().ok()).filter(|v| !v.trim().is_empty())
}

/// The form of the response: the first entry we can serve.
///
/// # Errors
/// 406 when none can be served.
pub fn form(headers: &HeaderMap, include: Include, shape: Shape) -> ApiResult<Form> {
    let Some(accept) = accept(headers) else { return Ok(Form::Object) };
    if !accept.split(',').map(Entry::parse).any(|entry| entry.is_known()) {
        return Err(Status::no_representation(shape == Shape::List));
    }
    for entry in accept.split(',').map(Entry::parse).filter(Entry::is_json) {
        let meta = entry.get("g") == Some("meta.k8s.io") && entry.get("v") == Some("v1");
        match (entry.get("as"), shape) {
            (None, _) => return Ok(Form::Object),
            (Some("Table"), _) if meta => return Ok(Form::Table(include)),
            (Some("PartialObjectMetadata"), Shape::Single)
            | (Some("PartialObjectMetadataList"), Shape::List)
                if meta =>
            {
                return Ok(Form::Partial);
            }
            _ => {}
        }
    }
    Err(Status::not_acceptable())
}

/// Whether the client wants discovery in one document.
pub fn wants_aggregated(headers: &HeaderMap) -> ApiResult<bool> {
    let Some(accept) = accept(headers) else { return Ok(false) };
    let entries: Vec<Entry<'_>> = accept.split(',').map(Entry::parse).collect();
    let aggregated = |e: &Entry<'_>| {
        e.media == "application/json"
            && e.get("g") == Some("apidiscovery.k8s.io")
            && e.get("v") == Some("v2")
            && e.get("as") == Some("APIGroupDiscoveryList")
    };
    if entries.iter().any(aggregated) {
        return Ok(true);
    }
    if entries.iter().any(|e| e.is_json() && e.get("as").is_none()) {
        return Ok(false);
    }
    Err(Status::not_acceptable())
}

/// Whether the client wants the second version of OpenAPI as protobuf, and nothing else.
pub fn wants_protobuf_openapi(headers: &HeaderMap) -> bool {
    accept(headers).is_some_and(|accept| {
        let mut entries = accept.split(',').map(Entry::parse).peekable();
        entries.peek().is_some() && entries.all(|entry| entry.media.contains("proto-openapi"))
    })
}

/// How a request body is encoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encoding {
    Json,
    Yaml,
    Protobuf,
}

/// The media type of the body, without parameters.
pub fn content_type(headers: &HeaderMap) -> &str {
    let text = headers.get(CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or_default();
    text.split(';').next().unwrap_or_default().trim()
}

/// The encoding of a body.
///
/// # Errors
/// 415 for anything we cannot read.
pub fn encoding(headers: &HeaderMap) -> ApiResult<Encoding> {
    match content_type(headers) {
        "" | "application/json" => Ok(Encoding::Json),
        "application/yaml" => Ok(Encoding::Yaml),
        "application/vnd.kubernetes.protobuf" => Ok(Encoding::Protobuf),
        _ => Err(Status::unsupported_media_type(
            "application/json, application/yaml, application/vnd.kubernetes.protobuf",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(accept: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, accept.parse().unwrap());
        headers
    }

    #[test]
    fn the_first_servable_form_wins() {
        let table = Form::Table(Include::Metadata);
        let rows = [
            ("*/*", Shape::Single, Some(Form::Object)),
            (
                "application/json;as=Table;v=v1;g=meta.k8s.io,application/json",
                Shape::List,
                Some(table),
            ),
            (
                "application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json",
                Shape::List,
                Some(Form::Object),
            ),
            (
                "application/vnd.kubernetes.protobuf,application/json",
                Shape::Single,
                Some(Form::Object),
            ),
            ("application/vnd.kubernetes.protobuf, */*", Shape::List, Some(Form::Object)),
            ("application/vnd.kubernetes.protobuf", Shape::Single, None),
            ("text/html", Shape::Single, None),
            ("application/json;as=Nope;g=meta.k8s.io;v=v1", Shape::Single, None),
            (
                "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1",
                Shape::Single,
                Some(Form::Partial),
            ),
            (
                "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1",
                Shape::Single,
                None,
            ),
        ];
        for (accept, shape, wanted) in rows {
            assert_eq!(form(&headers(accept), Include::Metadata, shape).ok(), wanted, "{accept}");
        }
        assert_eq!(form(&HeaderMap::new(), Include::None, Shape::List), Ok(Form::Object));
    }

    #[test]
    fn aggregated_discovery_wins_over_plain_json() {
        let v2 =
            "application/json,application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
        assert_eq!(wants_aggregated(&headers(v2)), Ok(true));
        assert_eq!(wants_aggregated(&headers("application/json")), Ok(false));
        let old = "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList";
        assert!(wants_aggregated(&headers(old)).is_err());
    }
}
