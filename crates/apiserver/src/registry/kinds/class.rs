//! `StorageClass`.

use std::collections::HashSet;
use std::sync::Arc;

use k8s_openapi::api::storage::v1 as storage;
use serde_json::{Value, json};

use longshore_core::model::keys::annotations::{BETA_IS_DEFAULT_CLASS, IS_DEFAULT_CLASS};

use crate::error::{Cause, Causes};
use crate::registry::builtin::{ALL, BuiltinKind, Names, STORAGE, Scope, Storage};
use crate::registry::codec::of;
use crate::registry::names;
use crate::registry::rules::{
    immutable, items, one_of, parameters, provisioner, set_default, text, without_empty,
};
use crate::registry::strategy::{Strategy, Traits};
use crate::registry::table::{AGE, NAME, Row, Table, column};

pub(super) static CLASS: BuiltinKind = BuiltinKind {
    group_version: STORAGE,
    names: Names {
        kind: "StorageClass",
        plural: "storageclasses",
        short: &["sc"],
        categories: &[],
    },
    scope: Scope::Cluster,
    verbs: ALL,
    subresources: &[],
    storage: Storage::Own,
    typed: of::<storage::StorageClass>,
    rules: || Arc::new(StorageClass),
    table: Table {
        columns: &[
            NAME,
            column("Provisioner"),
            column("ReclaimPolicy"),
            column("VolumeBindingMode"),
            column("AllowVolumeExpansion"),
            AGE,
        ],
        cells,
    },
    selectors: &[],
    quantities: &[],
    patch_keys: &[],
    facts: &[
        "atomic core.v1.TopologySelectorTerm",
        "enum storage.v1.StorageClass.reclaimPolicy Delete Recycle Retain",
        "enum storage.v1.StorageClass.volumeBindingMode Immediate WaitForFirstConsumer",
        "type storage.v1.StorageClass.reclaimPolicy v1.PersistentVolumeReclaimPolicy",
        "type storage.v1.StorageClass.volumeBindingMode v1.VolumeBindingMode",
    ],
    protobuf: &[
        "core.TopologySelectorLabelRequirement: 1 key =s, 2 values []s",
        "core.TopologySelectorTerm: \
         1 matchLabelExpressions []core.TopologySelectorLabelRequirement",
        "storage.StorageClass: 1 metadata meta.ObjectMeta, 2 provisioner =s, 3 parameters {}s, \
         4 reclaimPolicy =s, 5 mountOptions []s, 6 allowVolumeExpansion =b, \
         7 volumeBindingMode =s, 8 allowedTopologies []core.TopologySelectorTerm",
    ],
};

fn cells(row: &Row<'_>) -> Value {
    let Row { object, name, age, .. } = row;
    let is_default = [IS_DEFAULT_CLASS, BETA_IS_DEFAULT_CLASS]
        .iter()
        .any(|key| object["metadata"]["annotations"][*key] == "true");
    let name = if is_default { format!("{name} (default)") } else { (*name).to_owned() };
    json!([
        name,
        text(object, "/provisioner"),
        text(object, "/reclaimPolicy"),
        text(object, "/volumeBindingMode"),
        object["allowVolumeExpansion"] == true,
        age,
    ])
}

/// The rules of storage classes.
pub(super) struct StorageClass;

impl Strategy for StorageClass {
    fn traits(&self) -> Traits {
        Traits { returns_deleted: true, ..Traits::PLAIN }
    }

    fn default(&self, object: &mut Value) {
        set_default(object, "reclaimPolicy", "Delete");
        set_default(object, "volumeBindingMode", "Immediate");
    }

    fn validate_create(&self, object: &Value) -> Causes {
        let mut causes = Causes::new();
        provisioner(&mut causes, "provisioner", text(object, "/provisioner"));
        parameters(&mut causes, &object["parameters"]);
        one_of(&mut causes, "reclaimPolicy", text(object, "/reclaimPolicy"), &["Delete", "Retain"]);
        let mode = text(object, "/volumeBindingMode");
        one_of(&mut causes, "volumeBindingMode", mode, &["Immediate", "WaitForFirstConsumer"]);
        validate_topologies(&mut causes, object);
        causes
    }

    fn validate_update(&self, new: &Value, old: &Value) -> Causes {
        let mut causes = self.validate_create(new);
        let fields = ["parameters", "provisioner", "reclaimPolicy", "volumeBindingMode"];
        immutable(&mut causes, new, old, &fields);
        causes
    }
}

fn validate_topologies(causes: &mut Causes, object: &Value) {
    let mut terms = HashSet::new();
    for (t, term) in items(object, "/allowedTopologies").iter().enumerate() {
        let expressions = items(term, "/matchLabelExpressions");
        let mut keys = HashSet::new();
        for (e, expression) in expressions.iter().enumerate() {
            let field = format!("allowedTopologies[{t}].matchLabelExpressions[{e}]");
            let key = text(expression, "/key");
            causes.extend(Cause::each(&format!("{field}.key"), key, names::qualified(key)));
            let values = items(expression, "/values");
            if values.is_empty() {
                causes.push(Cause::required(format!("{field}.values"), ""));
            }
            let mut seen = HashSet::new();
            for (v, value) in values.iter().enumerate() {
                if !seen.insert(value) {
                    causes.push(Cause::duplicate(format!("{field}.values[{v}]"), value));
                }
            }
            if !keys.insert(&expression["key"]) {
                causes.push(Cause::duplicate(format!("{field}.key"), &expression["key"]));
            }
        }
        // A term without expressions is like every other that is not there.
        if !terms.insert(without_empty(term)) || expressions.is_empty() {
            let field = format!("allowedTopologies[{t}].matchLabelExpressions");
            causes.push(Cause::duplicate(field, &json!("")));
        }
    }
}
