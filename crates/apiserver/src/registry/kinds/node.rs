//! `Node`.

use serde_json::{Value, json};

use crate::error::Cause;
use crate::registry::names;
use crate::registry::rules::{items, one_of, set_default, text};
use crate::registry::strategy::{Context, Strategy, Traits};

/// The rules of nodes.
pub struct Node;

const NODE_INFO: &[&str] = &[
    "machineID",
    "systemUUID",
    "bootID",
    "kernelVersion",
    "osImage",
    "containerRuntimeVersion",
    "kubeletVersion",
    "kubeProxyVersion",
    "operatingSystem",
    "architecture",
];

impl Strategy for Node {
    fn traits(&self) -> Traits {
        // A kubelet registers itself with a status.
        Traits { status_at_creation: true, returns_deleted: false, ..Traits::WITH_STATUS }
    }

    fn prepare_create(&self, object: &mut Value, _cx: &Context<'_>) {
        let status = &mut object["status"];
        set_default(status, "daemonEndpoints", json!({"kubeletEndpoint": {"Port": 0}}));
        let mut info = json!({});
        for field in NODE_INFO {
            info[*field] = json!("");
        }
        set_default(status, "nodeInfo", info);
    }

    fn validate_create(&self, object: &Value) -> Vec<Cause> {
        let mut causes = Vec::new();
        for (i, taint) in items(object, "/spec/taints").iter().enumerate() {
            let effects = ["NoSchedule", "PreferNoSchedule", "NoExecute"];
            let field = format!("metadata.taints[{i}].effect");
            one_of(&mut causes, &field, text(taint, "/effect"), &effects);
            let (field, key) = (format!("metadata.taints[{i}].key"), text(taint, "/key"));
            causes.extend(Cause::each(&field, key, names::qualified(key)));
        }
        causes
    }

    fn validate_update(&self, new: &Value, old: &Value) -> Vec<Cause> {
        let mut causes = self.validate_create(new);
        let was = text(old, "/spec/providerID");
        if !was.is_empty() && was != text(new, "/spec/providerID") {
            let why = "field cannot be modified once set";
            causes.push(Cause::invalid("spec.providerID", &Value::Null, why));
        }
        causes
    }
}
