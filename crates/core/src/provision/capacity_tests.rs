use std::collections::BTreeSet;

use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::*;
use crate::model::{Quantity, kinds::LabelSelector};

fn read<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

fn term(pairs: &[(&str, &str)]) -> Term {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

fn node(name: &str, labels: Value) -> Node {
    read(json!({"metadata": {"name": name, "labels": labels}}))
}

fn csi_node(name: &str, driver: &str, keys: &[&str]) -> CsiNode {
    read(json!({"metadata": {"name": name},
        "spec": {"drivers": [{"name": driver, "nodeID": name, "topologyKeys": keys}]}}))
}

fn found(csi_nodes: &[CsiNode], nodes: &[Node]) -> Vec<Term> {
    let place = |csi_node: &CsiNode| {
        let node = nodes.iter().find(|node| node.metadata.name == csi_node.metadata.name);
        segment_on("d", csi_node, node?)
    };
    let places: BTreeSet<Term> = csi_nodes.iter().filter_map(place).collect();
    places.into_iter().collect()
}

/// case: provisioner/133
#[test]
fn places_of_a_driver() {
    let z1 = || node("a", json!({"zone": "z1", "rack": "r1"}));
    let zones = || csi_node("a", "d", &["zone"]);
    let none: Vec<Term> = Vec::new();
    assert_eq!(found(&[], &[z1()]), none, "no CSINode");
    assert_eq!(found(&[zones()], &[]), none, "no Node");
    assert_eq!(found(&[zones()], &[node("a", json!({}))]), none, "no label");
    assert_eq!(found(&[csi_node("a", "other", &["zone"])], &[z1()]), none, "no driver");
    assert_eq!(found(&[zones()], &[z1()]), [term(&[("zone", "z1")])]);
    let same = [zones(), csi_node("b", "d", &["zone"])];
    let nodes = [z1(), node("b", json!({"zone": "z1"}))];
    assert_eq!(found(&same, &nodes), [term(&[("zone", "z1")])], "equal labels are one place");
    let both = term(&[("rack", "r1"), ("zone", "z1")]);
    for keys in [["zone", "rack"], ["rack", "zone"]] {
        let places = found(&[csi_node("a", "d", &keys)], &[z1()]);
        assert_eq!(places, std::slice::from_ref(&both), "{keys:?}");
    }
    assert_eq!(
        found(&[csi_node("a", "d", &[])], &[z1()]),
        [Term::new()],
        "without keys everywhere"
    );
}

/// case: provisioner/126
#[test]
fn classes_whose_capacity_is_published() {
    let class = |provisioner: &str, mode: Option<&str>| -> StorageClass {
        read(
            json!({"metadata": {"name": "c"}, "provisioner": provisioner, "volumeBindingMode": mode}),
        )
    };
    let late = Some("WaitForFirstConsumer");
    let rows = [
        ("late", class("d", late), true, true),
        ("immediate only when asked for", class("d", Some("Immediate")), false, true),
        ("without a mode", class("d", None), true, true),
        ("of another driver", class("other", late), false, false),
    ];
    for (name, class, without, with) in rows {
        assert_eq!(is_published(&class, "d", false), without, "{name}");
        assert_eq!(is_published(&class, "d", true), with, "{name}");
    }
}

fn object(over: Value) -> CsiStorageCapacity {
    let mut base = json!({"metadata": {"name": "csisc-1"}, "storageClassName": "c",
        "nodeTopology": {"matchLabels": {"zone": "z1"}}, "capacity": "1Gi"});
    crate::bind::fixtures::merge(&mut base, over);
    read(base)
}

#[test]
fn objects_and_items() {
    let item = Item { segment: term(&[("zone", "z1")]), class: "c".into() };
    assert!(item.describes(&object(json!({}))));
    for (name, over) in [
        ("other class", json!({"storageClassName": "x"})),
        ("more labels", json!({"nodeTopology": {"matchLabels": {"rack": "r"}}})),
        ("other value", json!({"nodeTopology": {"matchLabels": {"zone": "z2"}}})),
        (
            "expressions",
            json!({"nodeTopology": {"matchExpressions": [{"key": "a", "operator": "Exists"}]}}),
        ),
        ("nowhere", json!({"nodeTopology": null})),
    ] {
        assert!(!item.describes(&object(over)), "{name}");
    }
    let everywhere = Item { segment: Term::new(), class: "c".into() };
    let mut all = object(json!({}));
    all.node_topology = Some(LabelSelector::default());
    assert!(everywhere.describes(&all));
}

/// The comparisons behind case 127.
#[test]
fn objects_that_are_current() {
    let gib = Quantity::from_bytes(1 << 30).bytes();
    let room = |capacity, maximum| Room { capacity, maximum };
    let owner = OwnerReference { uid: "u1".into(), ..OwnerReference::default() };
    let owned = json!({"metadata": {"ownerReferences": [{"uid": "u0"}, {"uid": "u1"}]}});
    let rows = [
        ("same", json!({}), room(gib, None), None, true),
        ("same, in other words", json!({"capacity": "1024Mi"}), room(gib, None), None, true),
        ("changed", json!({}), room(gib + 1, None), None, false),
        ("no value", json!({"capacity": null}), room(0, None), None, false),
        ("a maximum appears", json!({}), room(gib, Some(1)), None, false),
        ("a maximum goes", json!({"maximumVolumeSize": "1"}), room(gib, None), None, false),
        ("same maximum", json!({"maximumVolumeSize": "1"}), room(gib, Some(1)), None, true),
        ("owner missing", json!({}), room(gib, None), Some(&owner), false),
        ("owned", owned.clone(), room(gib, None), Some(&owner), true),
        ("owners of others stay", owned, room(gib, None), None, true),
    ];
    for (name, over, room, owner, want) in rows {
        assert_eq!(is_current(&object(over), room, owner), want, "{name}");
    }
}

/// case: provisioner/132
#[test]
fn places_in_node_selectors() {
    let one = |key: &str, operator: &str, values: &[&str]| json!({"key": key, "operator": operator, "values": values});
    let parse = |value: Value| segment_of(&read::<NodeSelectorTerm>(value));
    let unsorted =
        json!({"matchExpressions": [one("zone", "In", &["z1"]), one("rack", "In", &["r1"])]});
    assert_eq!(parse(unsorted), Some(term(&[("rack", "r1"), ("zone", "z1")])));
    assert_eq!(parse(json!({})), Some(Term::new()));
    for bad in [
        json!({"matchFields": [one("metadata.name", "In", &["a"])]}),
        json!({"matchExpressions": [one("zone", "NotIn", &["z1"])]}),
        json!({"matchExpressions": [one("zone", "Exists", &[])]}),
        json!({"matchExpressions": [one("zone", "In", &[])]}),
        json!({"matchExpressions": [one("zone", "In", &["z1", "z2"])]}),
    ] {
        assert_eq!(parse(bad.clone()), None, "{bad}");
    }
}

#[test]
fn what_a_volume_touches() {
    let affinity = |value: Value| touched(&read::<VolumeNodeAffinity>(value));
    assert_eq!(affinity(json!({})), Touched::Class);
    let terms = json!({"required": {"nodeSelectorTerms": [
        {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["z1"]}]},
        {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["z1", "z2"]}]},
    ]}});
    assert_eq!(affinity(terms), Touched::Segments(vec![term(&[("zone", "z1")])]));
}

/// case: provisioner/135
#[test]
fn long_node_names_are_hashed_in_the_manager_name() {
    let a = |count: usize| "a".repeat(count);
    let rows: Vec<(String, String)> = vec![
        ("node01".into(), "external-provisioner-node01".into()),
        (a(42), format!("external-provisioner-{}", a(42))),
        (a(43), format!("external-p-53f40b57-{}", a(43))),
        (a(52), format!("e-53f40b57-{}", a(52))),
        (format!("node{}", a(49)), "external-provisioner-a3607ff1".into()),
        (format!("node{}", a(63)), "external-provisioner-df38e37f".into()),
    ];
    for (node, want) in rows {
        let name = manager_on(MANAGER, &node.as_str().into());
        assert_eq!(name, want, "{node}");
        assert!(name.len() <= 63, "{name}");
    }
    assert_eq!(manager_on("", &format!("node{}", a(63)).into()), "fa65587e");
    assert_eq!(manager_on("", &"node01".into()), "node01");
}
