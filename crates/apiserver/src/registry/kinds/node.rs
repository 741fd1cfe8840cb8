//! `Node`.

use std::collections::HashSet;

use serde_json::{Value, json};

use crate::error::{Cause, Causes};
use crate::registry::names;
use crate::registry::rules::{items, one_of, set_default, text};
use crate::registry::shown;
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

    fn validate_create(&self, object: &Value) -> Causes {
        let mut causes = Causes::new();
        let mut seen = HashSet::new();
        for (i, taint) in items(object, "/spec/taints").iter().enumerate() {
            let field = format!("metadata.taints[{i}]");
            let (key, value) = (text(taint, "/key"), text(taint, "/value"));
            causes.extend(Cause::each(&format!("{field}.key"), key, names::qualified(key)));
            causes.extend(Cause::each(&format!("{field}.value"), value, names::label_value(value)));
            match text(taint, "/effect") {
                "" => causes.push(Cause::required(format!("{field}.effect"), "")),
                effect => {
                    let effects = ["NoSchedule", "PreferNoSchedule", "NoExecute"];
                    one_of(&mut causes, &format!("{field}.effect"), effect, &effects);
                }
            }
            if !seen.insert((&taint["key"], &taint["effect"])) {
                let why = "taints must be unique by key and effect pair";
                let shown = shown::compact(shown::TAINT, taint);
                causes.push(Cause::duplicate_shown(field, &shown, why));
            }
        }
        causes
    }

    fn validate_update(&self, new: &Value, old: &Value) -> Causes {
        let mut causes = self.validate_create(new);
        let was = text(old, "/spec/providerID");
        if !was.is_empty() && was != text(new, "/spec/providerID") {
            let why = "field cannot be modified once set";
            causes.push(Cause::invalid("spec.providerID", &Value::Null, why));
        }
        causes
    }
}
