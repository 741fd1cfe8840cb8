//! OpenAPI v3: as much as `kubectl apply`, `create` and `replace` need.
//!
//! The documents name every path with its kind and the `fieldValidation` parameter, which tells
//! kubectl that the server checks fields itself. Schemas are not published, so `kubectl explain`
//! has nothing to show.

use serde_json::{Map, Value, json};

use super::quoted_hash;
use crate::registry::{Registry, Resource};

/// `api/v1` or `apis/group/version`.
fn document_path(group: &str, version: &str) -> String {
    if group.is_empty() { format!("api/{version}") } else { format!("apis/{group}/{version}") }
}

/// The index of documents.
pub fn index(registry: &Registry) -> Value {
    let mut paths = Map::new();
    for (group, version) in registry.group_versions() {
        let path = document_path(group, version);
        if let Some((_, hash)) = document(registry, &path) {
            let url = format!("/openapi/v3/{path}?hash={hash}");
            paths.insert(path, json!({"serverRelativeURL": url}));
        }
    }
    json!({"paths": paths})
}

/// A document and its hash.
pub fn document(registry: &Registry, path: &str) -> Option<(String, String)> {
    let mut paths = Map::new();
    for resource in registry.resources() {
        if document_path(&resource.group, &resource.version) == path {
            add_paths(&mut paths, resource);
        }
    }
    if paths.is_empty() {
        return None;
    }
    let text = json!({
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": super::GIT_VERSION},
        "paths": paths,
        "components": {"schemas": {}},
    })
    .to_string();
    let hash = quoted_hash(text.as_bytes()).trim_matches('"').to_owned();
    Some((text, hash))
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
            let (text, _) = document(&registry, &path).unwrap();
            let document: Value = serde_json::from_str(&text).unwrap();
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
