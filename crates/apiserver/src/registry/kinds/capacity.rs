//! `CSIStorageCapacity`.

use super::prelude::*;

pub(super) static CAPACITY: BuiltinKind = BuiltinKind {
    group_version: STORAGE,
    names: Names::new("CSIStorageCapacity", "csistoragecapacities", &[], &[]),
    scope: Scope::Namespaced,
    verbs: ALL,
    subresources: &[],
    storage: Storage::Own,
    typed: of::<storage::CSIStorageCapacity>,
    traits: Traits { unconditional_update: false, ..Traits::PLAIN },
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

pub(super) struct StorageCapacity;

impl Strategy for StorageCapacity {
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
