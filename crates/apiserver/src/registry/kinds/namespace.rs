//! `Namespace`.

use std::sync::Arc;

use k8s_openapi::api::core::v1 as core;
use serde_json::{Value, json};

use crate::registry::Subresource;
use crate::registry::builtin::{BuiltinKind, CORE, Names, Scope, Storage};
use crate::registry::codec::of;
use crate::registry::rules::text;
use crate::registry::strategy::{Context, Strategy, Traits};
use crate::registry::table::{AGE, NAME, Table, column};

pub(super) static NAMESPACE: BuiltinKind = BuiltinKind {
    group_version: CORE,
    names: Names { kind: "Namespace", plural: "namespaces", short: &["ns"], categories: &[] },
    scope: Scope::Cluster,
    verbs: &["create", "delete", "get", "list", "patch", "update", "watch"],
    subresources: &[Subresource::new("finalize", ("", "", "Namespace"), &["update"])],
    storage: Storage::Own,
    typed: of::<core::Namespace>,
    rules: || Arc::new(Namespace),
    table: Table {
        columns: &[NAME, column("Status"), AGE],
        cells: |row| json!([row.name, text(row.object, "/status/phase"), row.age]),
    },
    selectors: &["status.phase"],
    quantities: &[],
    patch_keys: &[("status.conditions", "type")],
    facts: &[
        "list core.v1.NamespaceStatus.conditions type",
        "standing core.v1.NamespaceCondition.lastTransitionTime",
        "enum core.v1.NamespaceStatus.phase Active Terminating",
    ],
    protobuf: &[
        "core.Namespace: 1 metadata meta.ObjectMeta, 2 spec core.NamespaceSpec, \
         3 status core.NamespaceStatus",
        "core.NamespaceCondition: 1 type =s, 2 status =s, 4 lastTransitionTime t, 5 reason s, \
         6 message s",
        "core.NamespaceSpec: 1 finalizers []s",
        "core.NamespaceStatus: 1 phase s, 2 conditions []core.NamespaceCondition",
    ],
};

/// The rules of namespaces.
pub(crate) struct Namespace;

const NAME_LABEL: &str = "kubernetes.io/metadata.name";

/// Whether the namespace is on its way out.
pub(crate) fn is_terminating(namespace: &Value) -> bool {
    !namespace["metadata"]["deletionTimestamp"].is_null()
        || text(namespace, "/status/phase") == "Terminating"
}

fn keep_name_label(object: &mut Value) {
    let name = object["metadata"]["name"].clone();
    // A name that is made up later, or refused, gets no label here.
    if name.is_string() {
        object["metadata"]["labels"][NAME_LABEL] = name;
    }
}

impl Strategy for Namespace {
    fn traits(&self) -> Traits {
        Traits { label_names: true, ..Traits::WITH_STATUS }
    }

    fn prepare_create(&self, object: &mut Value, _cx: &Context<'_>) {
        object["status"] = json!({"phase": "Active"});
        let finalizers = &mut object["spec"]["finalizers"];
        match finalizers.as_array_mut() {
            Some(list) if list.iter().any(|f| f == "kubernetes") => {}
            Some(list) => list.push(json!("kubernetes")),
            None => *finalizers = json!(["kubernetes"]),
        }
        keep_name_label(object);
    }

    fn prepare_update(&self, new: &mut Value, old: &Value, _cx: &Context<'_>) {
        new["spec"]["finalizers"] = old["spec"]["finalizers"].clone();
        keep_name_label(new);
    }

    fn prepare_status(&self, new: &mut Value, _old: &Value, _cx: &Context<'_>) {
        keep_name_label(new);
    }
}
