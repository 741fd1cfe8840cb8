//! Migrations of stored objects. Here an object is stored without its version and shown in the one
//! that is asked for, so all that is left to do is to say so.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::error::ApiResult;
use crate::ops::{Core, Part, Source, Target, WriteOptions};
use crate::patch::Patch;

/// Where migrations are stored.
pub(super) const STORAGE: &str = "storagemigration.k8s.io/storageversionmigrations";

/// Sets the status of migrations that have none yet.
pub(super) async fn settle(core: &Core) -> ApiResult<()> {
    for stored in core.store.list(STORAGE, None).objects {
        let migration = stored.value();
        if is_answered(&migration) {
            continue;
        }
        let registry = core.registry();
        let found = registry.find("storagemigration.k8s.io", "v1", "storageversionmigrations");
        let Some(resource) = found else { return Ok(()) };
        let target = Target {
            resource: Arc::clone(resource),
            namespace: String::new(),
            name: stored.name.clone(),
        };
        let status = json!({"status": {
            "resourceVersion": core.store.revision().to_string(),
            "conditions": [condition(core, &migration)],
        }});
        let source = Source::Patch(Patch::Merge(status));
        match core.update(&target, Part::Status, &source, WriteOptions::default()).await {
            Ok(_) => {}
            Err(status) if status.code == 404 => {}
            Err(status) => return Err(status),
        }
    }
    Ok(())
}

fn is_answered(migration: &Value) -> bool {
    let conditions = migration["status"]["conditions"].as_array();
    conditions.into_iter().flatten().any(|condition| {
        condition["status"] == "True"
            && matches!(condition["type"].as_str(), Some("Succeeded" | "Failed"))
    })
}

fn condition(core: &Core, migration: &Value) -> Value {
    let asked = &migration["spec"]["resource"];
    let registry = core.registry();
    let served =
        registry.stored().any(|r| asked["resource"] == *r.plural && asked["group"] == *r.group);
    let (kind, message) = match served {
        true => ("Succeeded", "objects are stored without a version; there is nothing to rewrite"),
        false => ("Failed", "the resource is not served"),
    };
    json!({
        "type": kind, "status": "True", "reason": "StorageVersionMigration",
        "message": message, "lastTransitionTime": core.env.now_text(),
    })
}
