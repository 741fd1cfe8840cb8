//! `longshore status`: nodes, drivers, pools with their room, and what waits and why, on one screen.

mod facts;

use jiff::Timestamp;
use longshore_core::{model::age, words};
use serde_json::{Value, json};

use super::select::list;
use super::session::{JSON, Session};
use super::show::{items_of, pretty_json};
use super::table::Printer;
use super::{ClientError, Screen};

use facts::Facts;

/// Show how things stand.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Status {
    /// Whether to show it as JSON.
    pub json: bool,
}

/// What is looked at, under the names that the server has for them.
const KINDS: [&str; 9] = [
    "nodes",
    "csinodes",
    "csidrivers",
    "storageclasses",
    "csistoragecapacities",
    "persistentvolumes",
    "persistentvolumeclaims",
    "pods",
    "events",
];

/// Shows nodes, drivers, pools and what waits.
pub(super) async fn status(
    session: &Session,
    request: Status,
    screen: &mut Screen<'_>,
) -> Result<(), ClientError> {
    let mut found = Vec::new();
    for kind in KINDS {
        let resource = session.resource(kind).await?;
        let all = list(session, resource, None, "", JSON).await?;
        found.push(items_of(resource, &all));
    }
    let Ok([nodes, csi_nodes, drivers, classes, capacities, volumes, claims, pods, events]) =
        <[Vec<Value>; 9]>::try_from(found)
    else {
        return Ok(());
    };
    let facts =
        Facts { nodes, csi_nodes, drivers, classes, capacities, volumes, claims, pods, events };
    match request.json {
        true => writeln!(screen.out, "{}", pretty_json(&document(session.url(), &facts))?)?,
        false => write!(screen.out, "{}", page(session.url(), &facts, Timestamp::now()))?,
    }
    Ok(screen.out.flush()?)
}

/// The facts for programs.
fn document(server: &str, facts: &Facts) -> Value {
    let nodes = facts.node_rows().into_iter().map(|node| {
        json!({"name": node.name, "status": node.status, "pods": node.pods, "drivers": node.drivers})
    });
    let drivers = facts.driver_rows().into_iter().map(|driver| {
        json!({
            "name": driver.name, "attachRequired": driver.attaches, "nodes": driver.nodes,
            "volumes": driver.volumes, "classes": driver.classes,
        })
    });
    let pools = facts.pool_rows().into_iter().map(|pool| {
        json!({
            "driver": pool.driver, "pool": pool.pool, "node": pool.node, "freeBytes": pool.free_bytes,
        })
    });
    let waiting = facts.waiting().into_iter().map(|one| {
        json!({
            "kind": one.kind, "namespace": one.namespace, "name": one.name, "since": one.since,
            "reason": one.reason, "message": one.message,
        })
    });
    json!({
        "server": server,
        "nodes": nodes.collect::<Vec<_>>(),
        "drivers": drivers.collect::<Vec<_>>(),
        "pools": pools.collect::<Vec<_>>(),
        "claims": facts.claims.len(),
        "pods": facts.pods.len(),
        "waiting": waiting.collect::<Vec<_>>(),
    })
}

/// The facts for people.
fn page(server: &str, facts: &Facts, now: Timestamp) -> String {
    let waiting = facts.waiting();
    let waits = |kind: &str| match waiting.iter().filter(|one| one.kind == kind).count() {
        0 => String::new(),
        count => format!(" ({count} waiting)"),
    };
    let mut page = format!(
        "{server} answers: {}, {}, {}{}, {}{}\n",
        counted(facts.nodes.len(), "node"),
        counted(facts.drivers.len(), "driver"),
        counted(facts.claims.len(), "claim"),
        waits("PersistentVolumeClaim"),
        counted(facts.pods.len(), "pod"),
        waits("Pod"),
    );
    let nodes = facts
        .node_rows()
        .into_iter()
        .map(|node| vec![node.name, node.status, node.pods.to_string(), listed(&node.drivers)]);
    page += &table(["NODE", "STATUS", "PODS", "DRIVERS"], nodes);
    let drivers = facts.driver_rows().into_iter().map(|driver| {
        let attach = if driver.attaches { "yes" } else { "no" };
        let (nodes, volumes) = (driver.nodes.to_string(), driver.volumes.to_string());
        vec![driver.name, attach.into(), nodes, volumes, listed(&driver.classes)]
    });
    page += &table(["DRIVER", "ATTACH", "NODES", "VOLUMES", "CLASSES"], drivers);
    let pools = facts.pool_rows().into_iter().map(|pool| {
        vec![
            pool.pool.unwrap_or_else(|| "<default>".into()),
            pool.driver,
            pool.node,
            words::room(pool.free_bytes),
        ]
    });
    page += &table(["POOL", "DRIVER", "NODE", "FREE"], pools);
    let rows = waiting.iter().map(|one| {
        let object = format!("{} {}/{}", one.kind, one.namespace, one.name);
        let why = match (one.reason.as_str(), one.message.as_str()) {
            ("", _) => "no event says why".to_owned(),
            (reason, message) => format!("{reason}: {message}"),
        };
        vec![object, age::since(&one.since, now), why]
    });
    page + &table(["WAITING", "SINCE", "WHY"], rows)
}

fn counted(count: usize, noun: &str) -> String {
    if count == 1 { format!("1 {noun}") } else { format!("{count} {noun}s") }
}

fn listed(names: &[String]) -> String {
    if names.is_empty() { "<none>".into() } else { names.join(", ") }
}

/// A section; nothing when it has no rows.
fn table<const N: usize>(header: [&str; N], rows: impl Iterator<Item = Vec<String>>) -> String {
    let rows: Vec<Vec<String>> = rows.collect();
    match rows.is_empty() {
        true => String::new(),
        false => {
            format!("\n{}", Printer::default().text(&header.map(str::to_owned), &rows))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> Facts {
        let list = |value: Value| value.as_array().cloned().unwrap_or_default();
        let driver = "d.example.com";
        Facts {
            nodes: list(json!([{"metadata": {"name": "n1"}, "status": {"conditions": [
                {"type": "Ready", "status": "True"}]}}])),
            csi_nodes: list(
                json!([{"metadata": {"name": "n1"}, "spec": {"drivers": [{"name": driver}]}}]),
            ),
            drivers: list(
                json!([{"metadata": {"name": driver}, "spec": {"attachRequired": false}}]),
            ),
            classes: list(json!([
                {"metadata": {"name": "fast"}, "provisioner": driver, "parameters": {"pool": "ssd"}},
                {"metadata": {"name": "slow"}, "provisioner": driver},
                {"metadata": {"name": "slow-too"}, "provisioner": driver},
            ])),
            capacities: list(json!([
                {"storageClassName": "fast", "capacity": "75785424896",
                 "nodeTopology": {"matchLabels": {"topology.d/node": "n1"}}},
                {"storageClassName": "slow", "capacity": "1Gi",
                 "nodeTopology": {"matchLabels": {"topology.d/node": "n1"}}},
                {"storageClassName": "slow-too", "capacity": "1Gi",
                 "nodeTopology": {"matchLabels": {"topology.d/node": "n1"}}},
            ])),
            volumes: list(json!([{"spec": {"csi": {"driver": driver}}}])),
            claims: list(json!([
                {"kind": "PersistentVolumeClaim", "metadata": {"name": "a", "namespace": "x", "uid": "u"},
                 "status": {"phase": "Bound"}},
                {"kind": "PersistentVolumeClaim", "metadata": {"name": "b", "namespace": "x", "uid": "v",
                 "creationTimestamp": "2026-01-01T00:00:00Z"}, "status": {"phase": "Pending"}},
            ])),
            pods: list(json!([
                {"kind": "Pod", "metadata": {"name": "p", "namespace": "x", "uid": "p"},
                 "spec": {"nodeName": "n1"}, "status": {"phase": "Running"}},
            ])),
            events: list(json!([
                {"involvedObject": {"uid": "v"}, "reason": "Old", "message": "old",
                 "lastTimestamp": "2026-01-01T00:00:01Z"},
                {"involvedObject": {"uid": "v"}, "reason": "ProvisioningFailed", "message": "no room\n",
                 "lastTimestamp": "2026-01-01T00:00:02Z"},
                {"involvedObject": {"uid": "other"}, "reason": "Newer", "message": "x",
                 "lastTimestamp": "2026-01-01T00:00:03Z"},
            ])),
        }
    }

    #[test]
    fn one_screen_says_what_there_is_and_what_waits_and_why() {
        let now = "2026-01-01T00:00:10Z".parse().unwrap();
        assert_eq!(
            page("https://x/", &facts(), now),
            "https://x/ answers: 1 node, 1 driver, 2 claims (1 waiting), 1 pod\n\
             \n\
             NODE   STATUS   PODS   DRIVERS\n\
             n1     Ready    1      d.example.com\n\
             \n\
             DRIVER          ATTACH   NODES   VOLUMES   CLASSES\n\
             d.example.com   no       1       1         fast, slow, slow-too\n\
             \n\
             POOL        DRIVER          NODE   FREE\n\
             <default>   d.example.com   n1     1Gi\n\
             ssd         d.example.com   n1     70Gi\n\
             \n\
             WAITING                     SINCE   WHY\n\
             PersistentVolumeClaim x/b   10s     ProvisioningFailed: no room\n"
        );
    }

    #[test]
    fn programs_get_the_same_as_json() {
        let document = document("https://x/", &facts());
        assert_eq!(document["pools"][1]["freeBytes"], 75_785_424_896_u64);
        assert_eq!(document["waiting"][0]["reason"], "ProvisioningFailed");
        assert_eq!(document["nodes"][0]["drivers"], json!(["d.example.com"]));
    }
}
