//! `StorageVersionMigration`: objects are to be stored in the newest version of their kind.

use std::sync::Arc;

use k8s_openapi::api::storagemigration::v1 as storagemigration;
use serde_json::{Value, json};

use crate::error::{Cause, Causes};
use crate::registry::builtin::{ALL, BuiltinKind, Names, Scope, Storage};
use crate::registry::codec::of;
use crate::registry::names;
use crate::registry::rules::{items, same, text};
use crate::registry::strategy::{Context, Strategy, Traits};
use crate::registry::table::{NAME, Row, Table, column};

pub(super) static MIGRATION: BuiltinKind = BuiltinKind {
    group_version: ("storagemigration.k8s.io", "v1"),
    names: Names {
        kind: "StorageVersionMigration",
        plural: "storageversionmigrations",
        short: &[],
        categories: &[],
    },
    scope: Scope::Cluster,
    verbs: ALL,
    subresources: &[],
    storage: Storage::Own,
    typed: of::<storagemigration::StorageVersionMigration>,
    rules: || Arc::new(Migration),
    table: Table { columns: &[NAME, column("Resource"), column("Status")], cells },
    selectors: &[],
    quantities: &[],
    patch_keys: &[],
    facts: &[],
    protobuf: &[],
};

fn cells(row: &Row<'_>) -> Value {
    let Row { object, name, .. } = row;
    let resource =
        match (text(object, "/spec/resource/resource"), text(object, "/spec/resource/group")) {
            (resource, "") => resource.to_owned(),
            (resource, group) => format!("{resource}.{group}"),
        };
    let conditions = items(object, "/status/conditions").iter();
    let holds = conditions.filter(|c| c["status"] == "True").map(|c| text(c, "/type")).next_back();
    json!([name, resource, holds.unwrap_or("Unknown")])
}

/// The rules of migrations.
pub(super) struct Migration;

impl Strategy for Migration {
    fn traits(&self) -> Traits {
        Traits { status: true, returns_deleted: true, ..Traits::PLAIN }
    }

    fn prepare_create(&self, object: &mut Value, _cx: &Context<'_>) {
        object["status"] = json!({});
    }

    fn validate_create(&self, object: &Value) -> Causes {
        let resource = &object["spec"]["resource"];
        let (name, group) = (text(resource, "/resource"), text(resource, "/group"));
        let mut causes = Causes::new();
        if name.is_empty() {
            causes
                .push(Cause::required("spec.resource.resource", "resource is required to be set"));
        } else {
            causes.extend(Cause::each("spec.resource.resource", name, names::label_1035(name)));
        }
        if !group.is_empty() {
            causes.extend(Cause::each("spec.resource.group", group, names::subdomain(group)));
        }
        causes
    }

    fn validate_update(&self, new: &Value, old: &Value) -> Causes {
        let mut causes = self.validate_create(new);
        if !same(&new["spec"], &old["spec"]) {
            let shown = format!("{{\"Resource\":{}}}", new["spec"]["resource"]);
            causes.push(Cause::invalid_shown("spec", &shown, "field is immutable"));
        }
        causes
    }
}
