//! `CSIStorageCapacity`.

use std::sync::Arc;

use k8s_openapi::api::storage::v1 as storage;
use serde_json::Value;

use crate::error::{Cause, Causes};
use crate::registry::builtin::{ALL, BuiltinKind, Names, STORAGE, Scope, Storage};
use crate::registry::codec::of;
use crate::registry::rules::{immutable, label_selector, quantity, subdomain, text};
use crate::registry::strategy::{Strategy, Traits};
use crate::registry::table::PLAIN;

pub(super) static CAPACITY: BuiltinKind = BuiltinKind {
    group_version: STORAGE,
    names: Names {
        kind: "CSIStorageCapacity",
        plural: "csistoragecapacities",
        short: &[],
        categories: &[],
    },
    scope: Scope::Namespaced,
    verbs: ALL,
    subresources: &[],
    storage: Storage::Own,
    typed: of::<storage::CSIStorageCapacity>,
    rules: || Arc::new(StorageCapacity),
    table: PLAIN,
    selectors: &[],
    quantities: &["capacity", "maximumVolumeSize"],
    patch_keys: &[],
    facts: &[],
    protobuf: &["storage.CSIStorageCapacity: 1 metadata meta.ObjectMeta, \
         2 nodeTopology meta.LabelSelector, 3 storageClassName =s, 4 capacity q, \
         5 maximumVolumeSize q"],
};

/// The rules of capacity reports.
pub(super) struct StorageCapacity;

impl Strategy for StorageCapacity {
    fn traits(&self) -> Traits {
        Traits { unconditional_update: false, ..Traits::PLAIN }
    }

    fn validate_create(&self, object: &Value) -> Causes {
        let mut causes = Causes::new();
        let class = text(object, "/storageClassName");
        subdomain(&mut causes, "storageClassName", class);
        if quantity(object, "/capacity").is_some_and(|q| q.is_negative()) {
            let why = "must be greater than or equal to 0";
            causes.push(Cause::invalid("capacity", &object["capacity"], why));
        }
        if !object["nodeTopology"].is_null() {
            label_selector(&mut causes, "nodeTopology", &object["nodeTopology"]);
        }
        causes
    }

    fn validate_update(&self, new: &Value, old: &Value) -> Causes {
        let mut causes = self.validate_create(new);
        immutable(&mut causes, new, old, &["nodeTopology", "storageClassName"]);
        causes
    }
}
