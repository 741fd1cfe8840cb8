//! `CustomResourceDefinition`; its rules are in [`crate::crd::definition`].

use std::sync::Arc;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde_json::{Value, json};

use crate::crd::definition::{Definition, codec};
use crate::registry::builtin::{ALL, BuiltinKind, Names, Scope, Storage};
use crate::registry::codec::of;
use crate::registry::rules::{items, text};
use crate::registry::table::{CREATED, NAME, Row, Table, column, wide};

pub(super) static DEFINITION: BuiltinKind = BuiltinKind {
    group_version: ("apiextensions.k8s.io", "v1"),
    names: Names {
        kind: "CustomResourceDefinition",
        plural: "customresourcedefinitions",
        short: &["crd", "crds"],
        categories: &["api-extensions"],
    },
    scope: Scope::Cluster,
    verbs: ALL,
    subresources: &[],
    storage: Storage::Own,
    typed: || of::<CustomResourceDefinition>().checked_by(codec),
    rules: || Arc::new(Definition),
    table: Table {
        columns: &[
            NAME,
            column("Scope"),
            column("Versions"),
            CREATED,
            wide("Group"),
            wide("Kind"),
            wide("ShortNames"),
            ("Established", "boolean", "", 1),
        ],
        cells,
    },
    selectors: &[],
    quantities: &[],
    patch_keys: &[],
    facts: &[
        "list CustomResourceDefinitionStatus.conditions type",
        "patch CustomResourceDefinitionStatus.conditions replace",
        "standing CustomResourceDefinitionSpec.names",
        "standing CustomResourceDefinitionStatus.acceptedNames",
        "standing CustomResourceDefinitionStatus.conditions",
        "enum ValidationRule.reason FieldValueDuplicate FieldValueForbidden FieldValueInvalid \
         FieldValueRequired",
        "required CustomResourceDefinitionNames plural kind",
    ],
    protobuf: &[],
};

fn cells(row: &Row<'_>) -> Value {
    let Row { object, name, .. } = row;
    let versions = items(object, "/spec/versions").iter().map(|version| {
        let mut marks = Vec::new();
        if version["storage"] == true {
            marks.push("storage");
        }
        if version["served"] != true {
            marks.push("unserved");
        }
        if version["deprecated"] == true {
            marks.push("deprecated");
        }
        let name = text(version, "/name");
        if marks.is_empty() { name.to_owned() } else { format!("{name}({})", marks.join(",")) }
    });
    let short: Vec<&str> =
        items(object, "/spec/names/shortNames").iter().filter_map(Value::as_str).collect();
    json!([
        name,
        text(object, "/spec/scope"),
        versions.collect::<Vec<_>>().join(","),
        text(object, "/metadata/creationTimestamp"),
        text(object, "/spec/group"),
        text(object, "/spec/names/kind"),
        short.join(","),
        crate::crd::is_established(object),
    ])
}
