//! `Node`.

use std::collections::HashSet;
use std::sync::Arc;

use k8s_openapi::api::core::v1 as core;
use serde_json::{Value, json};

use crate::error::{Cause, Causes};
use crate::registry::builtin::{ALL, BuiltinKind, CORE, Names, Scope, Storage};
use crate::registry::codec::of;
use crate::registry::rules::{items, one_of, set_default, text};
use crate::registry::strategy::{Context, Strategy, Traits};
use crate::registry::table::{AGE, NAME, Row, Table, column, or, wide};
use crate::registry::{go_values, names};

pub(super) static NODE: BuiltinKind = BuiltinKind {
    group_version: CORE,
    names: Names { kind: "Node", plural: "nodes", short: &["no"], categories: &[] },
    scope: Scope::Cluster,
    verbs: ALL,
    subresources: &[],
    storage: Storage::Own,
    typed: of::<core::Node>,
    rules: || Arc::new(Node),
    table: Table {
        columns: &[
            NAME,
            column("Status"),
            column("Roles"),
            AGE,
            column("Version"),
            wide("Internal-IP"),
            wide("External-IP"),
            wide("OS-Image"),
            wide("Kernel-Version"),
            wide("Container-Runtime"),
        ],
        cells,
    },
    selectors: &["spec.unschedulable"],
    quantities: &["status.capacity.*", "status.allocatable.*"],
    patch_keys: &[("status.conditions", "type"), ("status.addresses", "type")],
    facts: &[
        "list core.v1.NodeSpec.podCIDRs",
        "list core.v1.NodeStatus.addresses type",
        "list core.v1.NodeStatus.conditions type",
        "standing core.v1.NodeCondition.lastHeartbeatTime",
        "standing core.v1.NodeCondition.lastTransitionTime",
        "standing core.v1.NodeDaemonEndpoints.kubeletEndpoint",
        "standing core.v1.NodeStatus.daemonEndpoints",
        "standing core.v1.NodeStatus.nodeInfo",
        "enum core.v1.NodeStatus.phase Pending Running Terminated",
        "enum core.v1.Taint.effect NoExecute NoSchedule PreferNoSchedule",
    ],
    protobuf: &[include_str!("node_protobuf.txt")],
};

fn cells(row: &Row<'_>) -> Value {
    let Row { object, name, age, .. } = row;
    let ready = items(object, "/status/conditions")
        .iter()
        .find(|c| c["type"] == "Ready")
        .map_or("Unknown", |c| if c["status"] == "True" { "Ready" } else { "NotReady" });
    let status = if object["spec"]["unschedulable"] == true {
        format!("{ready},SchedulingDisabled")
    } else {
        ready.to_owned()
    };
    let roles: Vec<&str> = object["metadata"]["labels"]
        .as_object()
        .into_iter()
        .flatten()
        .filter_map(|(key, _)| key.strip_prefix("node-role.kubernetes.io/"))
        .collect();
    let address = |kind: &str| {
        let found = items(object, "/status/addresses").iter().find(|a| a["type"] == kind);
        found.map_or("<none>", |a| text(a, "/address")).to_owned()
    };
    let info = &object["status"]["nodeInfo"];
    json!([
        name,
        status,
        or(&roles.join(","), "<none>"),
        age,
        text(info, "/kubeletVersion"),
        address("InternalIP"),
        address("ExternalIP"),
        or(text(info, "/osImage"), "<unknown>"),
        or(text(info, "/kernelVersion"), "<unknown>"),
        or(text(info, "/containerRuntimeVersion"), "<unknown>"),
    ])
}

/// The rules of nodes.
pub(super) struct Node;

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
                let shown = go_values::compact(go_values::TAINT, taint);
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
