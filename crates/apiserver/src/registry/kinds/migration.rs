//! `StorageVersionMigration`: objects are to be stored in the newest version of their kind.

use serde_json::{Value, json};

use crate::error::{Cause, Causes};
use crate::registry::names;
use crate::registry::rules::{same, text};
use crate::registry::strategy::{Context, Strategy, Traits};

/// The rules of migrations.
pub struct Migration;

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
