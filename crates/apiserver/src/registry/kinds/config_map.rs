//! `ConfigMap`.

use std::sync::Arc;

use k8s_openapi::api::core::v1 as core;
use serde_json::{Value, json};

use crate::error::{Cause, Causes};
use crate::registry::builtin::{ALL, BuiltinKind, CORE, Names, Scope, Storage};
use crate::registry::codec::of;
use crate::registry::names;
use crate::registry::rules::same;
use crate::registry::strategy::{Strategy, Traits};
use crate::registry::table::{AGE, NAME, Row, Table, column};

pub(super) static CONFIG_MAP: BuiltinKind = BuiltinKind {
    group_version: CORE,
    names: Names { kind: "ConfigMap", plural: "configmaps", short: &["cm"], categories: &[] },
    scope: Scope::Namespaced,
    verbs: ALL,
    subresources: &[],
    storage: Storage::Own,
    typed: of::<core::ConfigMap>,
    rules: || Arc::new(ConfigMap),
    table: Table { columns: &[NAME, column("Data"), AGE], cells },
    selectors: &[],
    quantities: &[],
    patch_keys: &[],
    facts: &[],
    protobuf: &[
        "core.ConfigMap: 1 metadata meta.ObjectMeta, 2 data {}s, 3 binaryData {}y, 4 immutable =b",
    ],
};

fn cells(row: &Row<'_>) -> Value {
    let size = |field: &str| row.object[field].as_object().map_or(0, serde_json::Map::len);
    json!([row.name, size("data") + size("binaryData"), row.age])
}

/// All values of one object together.
pub(super) const MAX_BYTES: usize = 1024 * 1024;

pub(super) fn validate_keys(causes: &mut Causes, object: &Value, field: &str) -> usize {
    let mut size = 0;
    for (key, value) in object[field].as_object().into_iter().flatten() {
        causes.extend(Cause::each(&format!("{field}[{key}]"), key, names::config_key(key)));
        size += value.as_str().map_or(0, str::len);
    }
    size
}

pub(super) fn validate_frozen(causes: &mut Causes, new: &Value, old: &Value, fields: &[&str]) {
    const WHY: &str = "field is immutable when `immutable` is set";
    if old["immutable"] != true {
        return;
    }
    if new["immutable"] != true {
        causes.push(Cause::forbidden("immutable", WHY));
    }
    for field in fields {
        if !same(&new[*field], &old[*field]) {
            causes.push(Cause::forbidden(*field, WHY));
        }
    }
}

/// The rules of config maps.
pub(super) struct ConfigMap;

impl Strategy for ConfigMap {
    fn traits(&self) -> Traits {
        Traits::PLAIN
    }

    fn validate_create(&self, object: &Value) -> Causes {
        let mut causes = Causes::new();
        let size = validate_keys(&mut causes, object, "data")
            + validate_keys(&mut causes, object, "binaryData");
        for key in object["data"].as_object().into_iter().flatten().map(|(k, _)| k) {
            if !object["binaryData"][key].is_null() {
                let why = "duplicate of key present in binaryData";
                causes.push(Cause::invalid(format!("data[{key}]"), &json!(key), why));
            }
        }
        if size > MAX_BYTES {
            causes.push(Cause::too_long("[]", MAX_BYTES));
        }
        causes
    }

    fn validate_update(&self, new: &Value, old: &Value) -> Causes {
        let mut causes = Causes::new();
        validate_frozen(&mut causes, new, old, &["data", "binaryData"]);
        causes.extend(self.validate_create(new));
        causes
    }
}
