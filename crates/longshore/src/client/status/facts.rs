//! What a status is made of, read from the objects of the server.

use std::collections::BTreeMap;

use longshore_core::model::Quantity;
use serde_json::Value;

use crate::client::discovery::{array, text};
use crate::client::events::last_seen;

/// The objects that a status looks at.
pub(super) struct Facts {
    pub(super) nodes: Vec<Value>,
    pub(super) csi_nodes: Vec<Value>,
    pub(super) drivers: Vec<Value>,
    pub(super) classes: Vec<Value>,
    pub(super) capacities: Vec<Value>,
    pub(super) volumes: Vec<Value>,
    pub(super) claims: Vec<Value>,
    pub(super) pods: Vec<Value>,
    pub(super) events: Vec<Value>,
}

pub(super) struct NodeRow {
    pub(super) name: String,
    pub(super) status: String,
    pub(super) pods: usize,
    pub(super) drivers: Vec<String>,
}

pub(super) struct DriverRow {
    pub(super) name: String,
    pub(super) attaches: bool,
    pub(super) nodes: usize,
    pub(super) volumes: usize,
    pub(super) classes: Vec<String>,
}

pub(super) struct PoolRow {
    /// None means the driver's choice.
    pub(super) pool: Option<String>,
    pub(super) driver: String,
    pub(super) node: String,
    pub(super) free_bytes: u64,
}

/// A claim or a pod that is not where it should be, and its last event.
pub(super) struct Waiting {
    pub(super) kind: String,
    pub(super) namespace: String,
    pub(super) name: String,
    /// When it was made.
    pub(super) since: String,
    pub(super) reason: String,
    pub(super) message: String,
}

impl Facts {
    pub(super) fn node_rows(&self) -> Vec<NodeRow> {
        let row = |node: &Value| {
            let name = name_of(node);
            let on_node = |pod: &&Value| pod["spec"]["nodeName"] == *name;
            let drivers = self.csi_nodes.iter().find(|one| name_of(one) == name);
            let drivers = drivers.map(|one| array(&one["spec"]["drivers"])).unwrap_or_default();
            NodeRow {
                status: node_status(node),
                pods: self.pods.iter().filter(on_node).count(),
                drivers: drivers.iter().map(|driver| text(&driver["name"])).collect(),
                name,
            }
        };
        self.nodes.iter().map(row).collect()
    }

    pub(super) fn driver_rows(&self) -> Vec<DriverRow> {
        let row = |driver: &Value| {
            let name = name_of(driver);
            let on = |node: &&Value| {
                array(&node["spec"]["drivers"]).iter().any(|driver| driver["name"] == *name)
            };
            let of_class = |class: &&Value| class["provisioner"] == *name;
            DriverRow {
                attaches: driver["spec"]["attachRequired"] != false,
                nodes: self.csi_nodes.iter().filter(on).count(),
                volumes: self
                    .volumes
                    .iter()
                    .filter(|pv| pv["spec"]["csi"]["driver"] == *name)
                    .count(),
                classes: self.classes.iter().filter(of_class).map(name_of).collect(),
                name,
            }
        };
        self.drivers.iter().map(row).collect()
    }

    /// Room is published for each class; classes of one pool publish the same.
    pub(super) fn pool_rows(&self) -> Vec<PoolRow> {
        let mut rows = BTreeMap::new();
        for capacity in &self.capacities {
            let class = text(&capacity["storageClassName"]);
            let Some(class) = self.classes.iter().find(|one| name_of(one) == class) else {
                continue;
            };
            let pool = class["parameters"]["pool"].as_str().map(str::to_owned);
            let driver = text(&class["provisioner"]);
            let labels = capacity["nodeTopology"]["matchLabels"].as_object();
            let node: Vec<String> =
                labels.into_iter().flatten().map(|(_, value)| text(value)).collect();
            let free = text(&capacity["capacity"]).parse::<Quantity>();
            let free_bytes = free.map(|free| free.bytes().unsigned_abs()).unwrap_or_default();
            let node = if node.is_empty() { "<any>".into() } else { node.join(", ") };
            rows.insert((driver, pool, node), free_bytes);
        }
        let row = |((driver, pool, node), free_bytes)| PoolRow { pool, driver, node, free_bytes };
        rows.into_iter().map(row).collect()
    }

    pub(super) fn waiting(&self) -> Vec<Waiting> {
        let claims = self.claims.iter().filter(|claim| claim["status"]["phase"] != "Bound");
        let pods = self.pods.iter().filter(|pod| {
            matches!(pod["status"]["phase"].as_str(), None | Some("Pending" | "Unknown"))
        });
        claims.chain(pods).map(|object| self.why(object)).collect()
    }

    fn why(&self, object: &Value) -> Waiting {
        let metadata = &object["metadata"];
        let about = |event: &&Value| event["involvedObject"]["uid"] == metadata["uid"];
        let last = self.events.iter().filter(about).max_by_key(|event| last_seen(event));
        let of_event = |field: &str| last.map(|event| text(&event[field])).unwrap_or_default();
        Waiting {
            kind: text(&object["kind"]),
            namespace: text(&metadata["namespace"]),
            name: text(&metadata["name"]),
            since: text(&metadata["creationTimestamp"]),
            reason: of_event("reason"),
            message: of_event("message").trim().to_owned(),
        }
    }
}

fn name_of(object: &Value) -> String {
    text(&object["metadata"]["name"])
}

fn node_status(node: &Value) -> String {
    let mut conditions = array(&node["status"]["conditions"]).iter();
    let ready = conditions.find(|one| one["type"] == "Ready").map(|one| text(&one["status"]));
    let mut status = match ready.as_deref() {
        Some("True") => "Ready".to_owned(),
        Some("Unknown") | None => "Unknown".to_owned(),
        Some(_) => "NotReady".to_owned(),
    };
    if node["spec"]["unschedulable"] == true {
        status += ",SchedulingDisabled";
    }
    status
}
