//! `VolumeAttributesClass`.

use std::sync::Arc;

use k8s_openapi::api::storage::v1 as storage;
use serde_json::{Value, json};

use longshore_core::model::keys::finalizers::VAC_PROTECTION;

use super::volume::add_finalizer;
use crate::error::{ApiResult, Cause, Causes};
use crate::registry::builtin::{ALL, BuiltinKind, Names, STORAGE, Scope, Storage};
use crate::registry::codec::of;
use crate::registry::rules::{parameters, provisioner, same, text};
use crate::registry::strategy::{Context, Strategy, Traits};
use crate::registry::table::{AGE, NAME, Table, column};

pub(super) static ATTRIBUTES_CLASS: BuiltinKind = BuiltinKind {
    group_version: STORAGE,
    names: Names {
        kind: "VolumeAttributesClass",
        plural: "volumeattributesclasses",
        short: &["vac"],
        categories: &[],
    },
    scope: Scope::Cluster,
    verbs: ALL,
    subresources: &[],
    storage: Storage::Own,
    typed: of::<storage::VolumeAttributesClass>,
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

/// The rules of volume attributes classes.
pub(super) struct AttributesClass;

impl Strategy for AttributesClass {
    fn traits(&self) -> Traits {
        Traits { returns_deleted: true, ..Traits::PLAIN }
    }

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
