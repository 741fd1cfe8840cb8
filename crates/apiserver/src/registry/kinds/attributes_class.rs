//! `VolumeAttributesClass`.

use longshore_core::model::keys::finalizers::VAC_PROTECTION;

use super::prelude::*;
use super::volume::add_finalizer;

pub(super) static ATTRIBUTES_CLASS: BuiltinKind = BuiltinKind {
    group_version: STORAGE,
    names: Names::new("VolumeAttributesClass", "volumeattributesclasses", &["vac"], &[]),
    scope: Scope::Cluster,
    verbs: ALL,
    subresources: &[],
    storage: Storage::Own,
    typed: of::<storage::VolumeAttributesClass>,
    traits: Traits { returns_deleted: true, ..Traits::PLAIN },
    rules: || Arc::new(AttributesClass),
    table: Table {
        columns: &[NAME, column("DriverName"), AGE],
        cells: |row| json!([row.name, text(row.object, "/driverName"), row.age]),
    },
    selectors: &[],
    quantities: &[],
    patch_keys: &[],
    facts: &[],
    protobuf: &["storage.VolumeAttributesClass: 1 metadata meta.ObjectMeta, 2 driverName =s, \
         3 parameters {}s"],
};

pub(super) struct AttributesClass;

impl Strategy for AttributesClass {
    fn admit_create(&self, object: &mut Value, _cx: &Context<'_>) -> ApiResult<()> {
        add_finalizer(object, VAC_PROTECTION);
        Ok(())
    }

    fn validate_create(&self, object: &Value) -> Causes {
        let mut causes = Causes::new();
        provisioner(&mut causes, "driverName", text(object, "/driverName"));
        if object["parameters"].as_object().is_none_or(serde_json::Map::is_empty) {
            causes.push(Cause::required("parameters", "must contain at least one key/value pair"));
        }
        parameters(&mut causes, &object["parameters"]);
        causes
    }

    fn validate_update(&self, new: &Value, old: &Value) -> Causes {
        let mut causes = self.validate_create(new);
        for field in ["driverName", "parameters"] {
            if !same(&new[field], &old[field]) {
                causes.push(Cause::forbidden(field, "updates are forbidden."));
            }
        }
        causes
    }
}
