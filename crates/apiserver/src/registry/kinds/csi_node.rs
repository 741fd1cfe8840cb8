//! `CSINode`.

use std::collections::{HashMap, HashSet};

use super::health;
use super::prelude::*;

pub(super) static CSI_NODE: BuiltinKind = BuiltinKind {
    group_version: STORAGE,
    names: Names::new("CSINode", "csinodes", &[], &[]),
    scope: Scope::Cluster,
    verbs: ALL,
    subresources: &[],
    storage: Storage::Own,
    typed: of::<storage::CSINode>,
    traits: Traits { status_metadata: false, unconditional_update: false, ..Traits::WITH_STATUS },
    rules: || Arc::new(CsiNode),
    table: Table {
        columns: &[NAME, ("Drivers", "integer", "", 0), AGE],
        cells: |row| json!([row.name, items(row.object, "/spec/drivers").len(), row.age]),
    },
    selectors: &[],
    quantities: &[],
    patch_keys: &[("spec.drivers", "name")],
    facts: &[include_str!("csi_node_facts.txt")],
    protobuf: &[include_str!("csi_node_protobuf.txt")],
};

/// The rules of a node's driver list and of the health of its storage.
pub(super) struct CsiNode;

const MAX_NODE_ID_BYTES: usize = 256;

impl Strategy for CsiNode {
    fn validate_create(&self, object: &Value) -> Causes {
        let mut causes = Causes::new();
        let mut seen = HashSet::new();
        for (i, driver) in items(object, "/spec/drivers").iter().enumerate() {
            validate_driver(&mut causes, &format!("spec.drivers[{i}]"), driver);
            if !seen.insert(&driver["name"]) {
                causes.push(Cause::duplicate(format!("spec.drivers[{i}].name"), &driver["name"]));
            }
        }
        causes
    }

    fn validate_update(&self, new: &Value, old: &Value) -> Causes {
        let mut causes = self.validate_create(new);
        let mut named: HashMap<&Value, &Value> = HashMap::new();
        for driver in items(new, "/spec/drivers") {
            named.entry(&driver["name"]).or_insert(driver);
        }
        for was in items(old, "/spec/drivers") {
            let is = named.get(&was["name"]).copied();
            let changed = is.is_some_and(|is| {
                ["nodeID", "topologyKeys"].iter().any(|field| !same(&is[*field], &was[*field]))
            });
            if changed {
                // What may change is not shown.
                let mut is = is.cloned().unwrap_or_default();
                is["allocatable"] = Value::Null;
                let driver = go_values::compact(go_values::NODE_DRIVER, &is);
                causes.push(Cause::invalid_shown("spec.drivers", &driver, "field is immutable"));
            }
        }
        causes
    }

    fn prepare_status(&self, new: &mut Value, old: &Value, cx: &Context<'_>) {
        health::drop_disabled(new, old, "storageHealth", cx);
    }

    fn validate_status(&self, new: &Value, _old: &Value) -> Causes {
        let mut causes = Causes::new();
        health::validate_csi_node(&mut causes, new);
        causes
    }
}

fn validate_driver(causes: &mut Causes, field: &str, driver: &Value) {
    driver_name(causes, &format!("{field}.name"), text(driver, "/name"));
    match text(driver, "/nodeID") {
        "" => causes.push(Cause::required(format!("{field}.nodeID"), "")),
        id if id.len() > MAX_NODE_ID_BYTES => {
            let why = format!("must be {MAX_NODE_ID_BYTES} characters or less");
            causes.push(Cause::invalid(format!("{field}.nodeID"), &id.into(), &why));
        }
        _ => {}
    }
    let count = &driver["allocatable"]["count"];
    if count.as_i64().is_some_and(|count| count < 0) {
        let field = format!("{field}.allocatable.count");
        causes.push(Cause::invalid(field, count, "must be greater than or equal to 0"));
    }
    let mut seen = HashSet::new();
    for key in items(driver, "/topologyKeys") {
        let name = key.as_str().unwrap_or_default();
        if name.is_empty() {
            causes.push(Cause::required(field, ""));
        }
        causes.extend(Cause::each(field, name, names::qualified(name)));
        if !seen.insert(key) {
            causes.push(Cause::duplicate(field, key));
        }
    }
}
