//! Which objects ask for what, and the texts.

use serde_json::{Value, json};

use super::*;
use crate::bind::fixtures::{claim, merge, volume};

/// `what -> program(driver)` for each request.
fn asked(by: &impl Asks, volume: Option<&Volume>) -> Vec<String> {
    let show = |one: Request| {
        let driver = one.by.driver().map(|driver| format!("({driver})")).unwrap_or_default();
        format!("{} -> {}{driver}", one.what, one.by.program())
    };
    by.requests(Related { volume, content: None }).into_iter().map(show).collect()
}

fn read<T: serde::de::DeserializeOwned>(object: Value) -> T {
    serde_json::from_value(object).expect("an object")
}

fn deleting() -> Value {
    json!({"metadata": {"deletionTimestamp": "2026-11-18T10:00:00Z"}})
}

#[test]
fn claim_asks_for_a_volume_a_size_or_a_class_until_a_program_has_left_a_mark() {
    let csi =
        volume(json!({"spec": {"hostPath": null, "csi": {"driver": "d", "volumeHandle": "h"}}}));
    let host = volume(json!({}));
    let grows = || {
        json!({"spec": {"resources": {"requests": {"storage": "2Gi"}}},
            "status": {"phase": "Bound", "capacity": {"storage": "1Gi"}}})
    };
    let with = |over: Value| {
        let mut base = grows();
        merge(&mut base, over);
        base
    };
    let expansion = "The expansion from 1Gi to 2Gi -> csi-resizer(d)";
    let modified = || {
        json!({"spec": {"volumeAttributesClassName": "gold"},
            "status": {"phase": "Bound", "capacity": {"storage": "1Gi"}}})
    };
    let provisioned = json!({"metadata": {"annotations": {annotations::STORAGE_PROVISIONER: "d"}}});
    let filled = |kind: &str, group: &str| {
        let source = json!({"apiGroup": group, "kind": kind, "name": "s"});
        json!({"metadata": {"annotations": {annotations::STORAGE_PROVISIONER: "d"}},
            "spec": {"dataSourceRef": source}})
    };
    let mut populated = filled("Image", "example.com");
    populated["metadata"]["finalizers"] = json!(["example.com/populate-target-protection"]);
    let cases: [(&str, Value, &Volume, &[&str]); 16] = [
        (
            "filled from a snapshot",
            filled("VolumeSnapshot", "snapshot.storage.k8s.io"),
            &csi,
            &["The volume of this claim -> csi-provisioner(d)"],
        ),
        (
            "filled by a populator",
            filled("Image", "example.com"),
            &csi,
            &["The volume of this claim -> "],
        ),
        ("a populator fills it", populated, &csi, &[]),
        ("pending, no provisioner asked", json!({}), &csi, &[]),
        (
            "provisioner asked",
            provisioned,
            &csi,
            &["The volume of this claim -> csi-provisioner(d)"],
        ),
        ("bound, content", json!({"status": {"phase": "Bound"}}), &csi, &[]),
        ("grows", grows(), &csi, &[expansion]),
        ("grows, deleted", with(deleting()), &csi, &[]),
        (
            "grows, resizer at work",
            with(json!({"status": {"conditions": [{"type": "Resizing", "status": "True"}]}})),
            &csi,
            &[],
        ),
        (
            "grows, refused",
            with(
                json!({"status": {"allocatedResourceStatuses": {"storage": "ControllerResizeInfeasible"}}}),
            ),
            &csi,
            &[],
        ),
        ("hostPath grows", grows(), &host, &["The expansion from 1Gi to 2Gi -> "]),
        (
            "migrated plugin grows",
            with(json!({"metadata": {"annotations": {annotations::STORAGE_RESIZER: "m"}}})),
            &host,
            &["The expansion from 1Gi to 2Gi -> csi-resizer(m)"],
        ),
        (
            "class",
            modified(),
            &csi,
            &["The change to VolumeAttributesClass \"gold\" -> csi-resizer(d)"],
        ),
        (
            "class reached",
            json!({"spec": {"volumeAttributesClassName": "gold"},
                "status": {"phase": "Bound", "currentVolumeAttributesClassName": "gold"}}),
            &csi,
            &[],
        ),
        (
            "class begun",
            json!({"spec": {"volumeAttributesClassName": "gold"}, "status": {"phase": "Bound",
                "modifyVolumeStatus": {"targetVolumeAttributesClassName": "gold", "status": "Pending"}}}),
            &csi,
            &[],
        ),
        (
            "size and class",
            with(json!({"spec": {"volumeAttributesClassName": "gold"}})),
            &csi,
            &[expansion, "The change to VolumeAttributesClass \"gold\" -> csi-resizer(d)"],
        ),
    ];
    for (name, over, volume, want) in cases {
        assert_eq!(asked(&claim(over), Some(volume)), want, "{name}");
    }
    assert!(asked(&claim(grows()), None).is_empty(), "the volume is not known yet");
}

#[test]
fn volume_asks_for_its_deletion_when_it_is_released_or_held() {
    let made = |over: Value| {
        let mut base = json!({"metadata": {"annotations": {annotations::PROVISIONED_BY: "d"}},
            "spec": {"persistentVolumeReclaimPolicy": "Delete"}, "status": {"phase": "Released"}});
        merge(&mut base, over);
        volume(base)
    };
    let want = ["The deletion of this volume -> csi-provisioner(d)"];
    assert_eq!(asked(&made(json!({})), None), want);
    let held = json!({"metadata": {"deletionTimestamp": "2026-11-18T10:00:00Z",
        "finalizers": [finalizers::EXTERNAL_PROVISIONER]}, "status": {"phase": "Bound"}});
    assert_eq!(asked(&made(held), None), want);
    for other in [
        json!({"status": {"phase": "Bound"}}),
        json!({"spec": {"persistentVolumeReclaimPolicy": "Retain"}}),
        json!({"metadata": {"annotations": null}}),
    ] {
        assert!(asked(&made(other.clone()), None).is_empty(), "{other}");
    }
}

#[test]
fn attachments_snapshots_and_pods_ask_until_their_program_has_answered() {
    let attachment = |over: Value| {
        let mut base =
            json!({"metadata": {"name": "a"}, "spec": {"attacher": "d", "nodeName": "n"}});
        merge(&mut base, over);
        asked(&read::<VolumeAttachment>(base), None)
    };
    assert_eq!(attachment(json!({})), ["The attach to node n -> csi-attacher(d)"]);
    assert!(attachment(json!({"status": {"attached": true}})).is_empty());
    assert!(attachment(json!({"status": {"attachError": {"message": "no"}}})).is_empty());
    assert!(attachment(deleting()).is_empty(), "no detach is owed");
    let owed = json!({"metadata": {"deletionTimestamp": "2026-11-18T10:00:00Z",
        "finalizers": ["external-attacher/d"]}, "status": {"attached": true}});
    assert_eq!(attachment(owed), ["The detach from node n -> csi-attacher(d)"]);

    let held = |finalizer: &str| {
        json!({"metadata": {"name": "s", "deletionTimestamp": "2026-11-18T10:00:00Z",
            "finalizers": [finalizer]}, "spec": {"driver": "d"}, "status": {}})
    };
    let fresh = || json!({"metadata": {"name": "s"}, "spec": {"driver": "d"}});
    let done = json!({"metadata": {"name": "s"}, "spec": {"driver": "d"}, "status": {}});
    let snapshot = |object: Value| {
        [
            asked(&read::<VolumeSnapshot>(object.clone()), None),
            asked(&read::<VolumeSnapshotContent>(object.clone()), None),
            asked(&read::<VolumeGroupSnapshot>(object.clone()), None),
            asked(&read::<VolumeGroupSnapshotContent>(object), None),
        ]
        .concat()
    };
    assert_eq!(
        snapshot(fresh()),
        [
            "This snapshot -> snapshot-controller",
            "This snapshot -> csi-snapshotter(d)",
            "This group snapshot -> snapshot-controller",
            "This group snapshot -> csi-snapshotter(d)",
        ]
    );
    assert!(snapshot(done).is_empty());
    let bound = |content: Value, over: Value| {
        let mut base =
            json!({"metadata": {"name": "s"}, "status": {"boundVolumeSnapshotContentName": "c"}});
        merge(&mut base, over);
        let content = read::<VolumeSnapshotContent>(content);
        let related = Related { content: Some(&content), volume: None };
        read::<VolumeSnapshot>(base).requests(related).len()
    };
    let begun = json!({"metadata": {"name": "c", "annotations": {
        annotations::SNAPSHOT_BEING_CREATED: "yes"}}, "spec": {"driver": "d"}});
    assert_eq!(bound(fresh(), json!({})), 1, "the snapshot waits for the driver of its content");
    assert_eq!(bound(fresh(), deleting()), 0, "a deletion is the content's");
    assert_eq!(bound(begun, json!({})), 0, "the driver is asked");
    assert_eq!(snapshot(held("snapshot.storage.kubernetes.io/x-bound-protection")).len(), 4);
    assert!(snapshot(held("example.com/other")).is_empty());

    let pod = |over: Value| {
        let mut base = json!({"metadata": {"name": "p"}, "spec": {"schedulerName": "mine"}});
        merge(&mut base, over);
        asked(&read::<Pod>(base), None)
    };
    assert_eq!(pod(json!({})), ["The placement of this pod -> mine"]);
    assert!(pod(json!({"spec": {"schedulerName": "default-scheduler"}})).is_empty());
    let on_node = |over: Value| {
        let mut base = json!({"spec": {"nodeName": "n"}});
        merge(&mut base, over);
        pod(base)
    };
    assert_eq!(on_node(json!({})), ["The start of this pod -> "]);
    assert_eq!(on_node(deleting()), ["The deletion of this pod -> "]);
    for taken in [
        json!({"status": {"startTime": "2026-11-18T10:00:00Z"}}),
        json!({"status": {"phase": "Failed"}}),
    ] {
        assert!(on_node(taken.clone()).is_empty(), "{taken}");
    }
    assert!(pod(json!({"spec": {"schedulingGates": [{"name": "g"}]}})).is_empty());
}

#[test]
fn notice_says_what_waits_for_whom_and_how_to_start_it() {
    let around = Surroundings {
        socket: Some("/data/d/csi.sock"),
        kubeconfig: Some("/data/kubeconfig"),
        drivers: "d",
        nodes: "n1, n2",
        unable: false,
    };
    let none = Surroundings::default();
    let elsewhere = Surroundings { socket: None, ..around };
    for (by, around, want) in [
        (
            Server::Resizer("d".into()),
            around,
            "X waits: no csi-resizer runs for driver d. Start the official one beside this instance: \
             csi-resizer --kubeconfig=/data/kubeconfig --csi-address=/data/d/csi.sock",
        ),
        (
            Server::Modifier("d".into()),
            Surroundings { unable: true, ..around },
            "X is not carried out: driver d does not offer it. Ask for what the claim has, or copy the data \
             to a volume of another driver",
        ),
        (
            Server::Snapshotter("d".into()),
            Surroundings { unable: true, ..around },
            "X is not carried out: driver d takes no snapshots. Copy the data to another volume while no \
             pod writes to it",
        ),
        (
            Server::Provisioner("e".into()),
            elsewhere,
            "X waits: no csi-provisioner runs for e, and no driver of that name is here (there are: d). \
             Start both, the driver with --csi-endpoint",
        ),
        (
            Server::SnapshotController,
            around,
            "X waits: no snapshot-controller runs. Start the official one beside this instance: \
             snapshot-controller --kubeconfig=/data/kubeconfig",
        ),
        (
            Server::SnapshotController,
            none,
            "X waits: no snapshot-controller runs. Start the official one beside this instance: \
             snapshot-controller",
        ),
        (
            Server::Scheduler("mine".into()),
            around,
            "X waits: no scheduler \"mine\" runs. Leave spec.schedulerName out, or start that scheduler \
             with --kubeconfig=/data/kubeconfig",
        ),
        (
            Server::Populator("Image.example.com".into()),
            around,
            "X waits: its data source is of kind Image.example.com, which no driver fills a volume from, and \
             no populator has taken it on. Start the populator of that kind with \
             --kubeconfig=/data/kubeconfig, or name a VolumeSnapshot or a PersistentVolumeClaim as the \
             source",
        ),
        (
            Server::Node("n3".into()),
            around,
            "X waits: there is no node \"n3\" (there are: n1, n2). Delete the pod with --force, and leave \
             spec.nodeName out or name a node that is there",
        ),
        (
            Server::None("nfs"),
            around,
            "X is not carried out: no program does that for volumes of kind nfs. Make another volume and \
             copy the data",
        ),
    ] {
        assert_eq!(notice(&Request::new("X", by), &around), want);
    }
}

#[test]
fn events_of_the_program_are_known_by_their_component() {
    let event = |component: &str| read::<Event>(json!({"source": {"component": component}}));
    let provisioner = Server::Provisioner("d.example".into());
    assert!(provisioner.wrote(&event("d.example_host_1234")));
    assert!(!provisioner.wrote(&event("persistentvolume-controller")));
    assert!(!provisioner.wrote(&event("external-resizer d.example")));
    assert!(!Server::Resizer("d.example".into()).wrote(&event("d.example_host_1234")));
    assert!(Server::Resizer("d.example".into()).wrote(&event("external-resizer d.example")));
    assert!(Server::SnapshotController.wrote(&event("snapshot-controller")));
    assert!(!Server::None("nfs").wrote(&event("any")));
    let populator = Server::Populator("Image.example.com".into());
    assert!(!populator.wrote(&event("any")));
    let created = json!({"reason": "PopulatorCreated", "source": {"component": "image-populator"}});
    assert!(populator.wrote(&read::<Event>(created)));
}
