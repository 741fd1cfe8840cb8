//! OpenAPI: what `kubectl apply`, `create`, `replace` and `explain` ask for.
//!
//! The documents name every path with its kind and the `fieldValidation` parameter, which tells
//! kubectl that the server checks fields itself. They are made when first asked for and kept with
//! the registry; those of built-in kinds survive a change of definitions.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use serde_json::{Map, Value, json};

use super::{quoted_hash, schemas};
use crate::registry::{Registry, Resource};

/// `api/v1` or `apis/group/version`.
fn document_path(group: &str, version: &str) -> String {
    if group.is_empty() { format!("api/{version}") } else { format!("apis/{group}/{version}") }
}

/// A document and its hash.
#[derive(Debug, Clone)]
pub(crate) struct Document {
    pub text: Bytes,
    pub hash: String,
}

/// Documents by path, made when first asked for.
#[derive(Debug, Default, Clone)]
pub struct Documents(Arc<OnceLock<BTreeMap<String, Document>>>);

impl Documents {
    fn get(&self, registry: &Registry, custom: bool) -> &BTreeMap<String, Document> {
        self.0.get_or_init(|| {
            let all = registry.group_versions().into_iter();
            let made = all.filter_map(|(group, version)| {
                let of = |r: &&Arc<Resource>| {
                    r.group == group && r.version == version && r.custom.is_some() == custom
                };
                let kinds: Vec<&Arc<Resource>> = registry.resources().iter().filter(of).collect();
                Some((document_path(group, version), make(&kinds)?))
            });
            made.collect()
        })
    }
}

/// All documents: of built-in kinds, then of definitions.
fn all(registry: &Registry) -> impl Iterator<Item = (&String, &Document)> {
    let (builtin, custom) = registry.documents();
    builtin.get(registry, false).iter().chain(custom.get(registry, true))
}

pub(crate) fn index(registry: &Registry) -> Value {
    let mut paths = Map::new();
    for (path, document) in all(registry) {
        let url = format!("/openapi/v3/{path}?hash={}", document.hash);
        paths.insert(path.clone(), json!({"serverRelativeURL": url}));
    }
    json!({"paths": paths})
}

/// The document at a path.
pub(crate) fn document<'a>(registry: &'a Registry, path: &str) -> Option<&'a Document> {
    all(registry).find(|(known, _)| *known == path).map(|(_, document)| document)
}

fn make(kinds: &[&Arc<Resource>]) -> Option<Document> {
    if kinds.is_empty() {
        return None;
    }
    let mut paths = Map::new();
    kinds.iter().for_each(|resource| add_paths(&mut paths, resource));
    let text = json!({
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": super::GIT_VERSION},
        "paths": paths,
        "components": {"schemas": schemas::of(kinds.iter().copied())},
    })
    .to_string();
    let hash = quoted_hash(text.as_bytes()).trim_matches('"').to_owned();
    Some(Document { text: text.into(), hash })
}

/// The media type of the second version as protobuf.
pub(crate) const PROTOBUF: &str = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";

/// The second version as protobuf, without kinds: kubectl asks for it about a kind that the third
/// version does not have, and shall learn that it is not here either. Fields are checked by the
/// server, so no client needs it for that.
pub(crate) fn v2_as_protobuf() -> Vec<u8> {
    fn text(number: u8, value: &str, out: &mut Vec<u8>) {
        out.extend([number << 3 | 2, u8::try_from(value.len()).unwrap_or(0)]);
        out.extend(value.as_bytes());
    }
    let mut info = Vec::new();
    text(1, "Kubernetes", &mut info);
    text(2, super::GIT_VERSION, &mut info);
    let mut document = Vec::new();
    text(1, "2.0", &mut document);
    document.extend([2 << 3 | 2, u8::try_from(info.len()).unwrap_or(0)]);
    document.extend(info);
    document
}

/// The document of the second version, for older clients.
pub(crate) fn v2(registry: &Registry) -> Value {
    let mut paths = Map::new();
    registry.resources().iter().for_each(|resource| add_paths(&mut paths, resource));
    json!({
        "swagger": "2.0",
        "info": {"title": "Kubernetes", "version": super::GIT_VERSION},
        "paths": paths,
        "definitions": schemas::as_v2(&schemas::of(registry.resources().iter())),
    })
}

fn add_paths(paths: &mut Map<String, Value>, resource: &Resource) {
    let base = format!("/{}", document_path(&resource.group, &resource.version));
    let collection = if resource.namespaced {
        format!("{base}/namespaces/{{namespace}}/{}", resource.plural)
    } else {
        format!("{base}/{}", resource.plural)
    };
    let verbs = |pairs: &[(&str, &str)]| -> Value {
        pairs
            .iter()
            .map(|(method, action)| ((*method).to_owned(), operation(resource, action)))
            .collect::<Map<_, _>>()
            .into()
    };
    paths.insert(
        format!("{collection}/{{name}}"),
        verbs(&[("get", "get"), ("put", "put"), ("patch", "patch"), ("delete", "delete")]),
    );
    paths.insert(collection, verbs(&[("get", "list"), ("post", "post")]));
}

fn operation(resource: &Resource, action: &str) -> Value {
    let parameter = |name: &str| json!({"name": name, "in": "query", "schema": {"type": "string", "uniqueItems": true}});
    let mut parameters = vec![parameter("pretty")];
    if matches!(action, "post" | "put" | "patch") {
        for name in ["dryRun", "fieldManager", "fieldValidation"] {
            parameters.push(parameter(name));
        }
    }
    json!({
        "tags": [format!("{}_{}", resource.group, resource.version)],
        "operationId": format!("{action}{}", resource.kind),
        "parameters": parameters,
        "responses": {"200": {"description": "OK"}},
        "x-kubernetes-action": action,
        "x-kubernetes-group-version-kind": {
            "group": resource.group, "version": resource.version, "kind": resource.kind,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_tells_that_fields_are_validated() {
        let registry = Registry::builtin();
        let index = index(&registry);
        for resource in registry.resources() {
            let path = document_path(&resource.group, &resource.version);
            assert!(index["paths"][&path].is_object(), "{path}");
            let found = document(&registry, &path).unwrap();
            let document: Value = serde_json::from_slice(&found.text).unwrap();
            let found = document["paths"].as_object().unwrap().values().any(|path| {
                let patch = &path["patch"];
                patch["x-kubernetes-group-version-kind"]["kind"] == resource.kind.as_str()
                    && patch["parameters"]
                        .as_array()
                        .is_some_and(|list| list.iter().any(|p| p["name"] == "fieldValidation"))
            });
            assert!(found, "{}", resource.kind);
        }
        assert!(document(&registry, "apis/nope.example.com/v1").is_none());
    }
}
