use serde_json::{Value, json};

use super::{
    super::{
        Created, DriverCapabilities, NotPlanned, PlanSettings, PlanView, Useless, check, plan,
    },
    *,
};
use crate::{
    bind::fixtures::{claim, merge, volume},
    model::kinds::VolumeAttributesClass,
};

const OURS: &str = "ours";
const GROUP: &str = SNAPSHOT_GROUP;

fn merged<T: serde::de::DeserializeOwned>(mut base: Value, over: Value) -> T {
    merge(&mut base, over);
    serde_json::from_value(base).expect("an object")
}

fn class(over: Value) -> StorageClass {
    merged(json!({"metadata": {"name": "fast"}, "provisioner": OURS}), over)
}

fn snapshot(over: Value) -> VolumeSnapshot {
    let base = json!({"metadata": {"name": "snap", "namespace": "default", "uid": "u-s"},
        "status": {"boundVolumeSnapshotContentName": "content", "readyToUse": true,
            "restoreSize": "1Gi"}});
    merged(base, over)
}

fn content(over: Value) -> VolumeSnapshotContent {
    let base = json!({"metadata": {"name": "content"}, "spec": {"driver": OURS,
            "volumeSnapshotRef": {"namespace": "default", "name": "snap", "uid": "u-s"}},
        "status": {"snapshotHandle": "handle"}});
    merged(base, over)
}

fn said(result: Result<String, SourceError>) -> String {
    result.unwrap_or_else(|error| error.to_string())
}

#[test]
fn a_snapshot_must_be_ready_bound_and_large_enough() {
    let gone = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}});
    let with = |finalizer: &str| {
        let mut gone = gone.clone();
        gone["metadata"]["finalizers"] = json!([finalizer]);
        gone
    };
    let no = || json!({});
    let reference = |key: &str| json!({"spec": {"volumeSnapshotRef": {key: "another"}}});
    let another = "snapshotcontent content for snapshot snap is bound to a different snapshot";
    let cases: &[(&str, Value, Value, Value, &str)] = &[
        ("case: provisioner/85", no(), no(), no(), "handle"),
        (
            "larger",
            json!({"spec": {"resources": {"requests": {"storage": "2Gi"}}}}),
            no(),
            no(),
            "handle",
        ),
        (
            "case: provisioner/86 request below restoreSize",
            no(),
            json!({"status": {"restoreSize": "2Gi"}}),
            no(),
            "requested volume size 1073741824 is less than the size 2147483648 for the source snapshot snap",
        ),
        (
            "no request",
            json!({"spec": {"resources": null}}),
            no(),
            no(),
            "error getting capacity for PVC claim when creating snapshot snap",
        ),
        (
            "no request, no size",
            json!({"spec": {"resources": null}}),
            json!({"status": {"restoreSize": null}}),
            no(),
            "handle",
        ),
        (
            "case: provisioner/86 not ready",
            no(),
            json!({"status": {"readyToUse": false}}),
            no(),
            "snapshot snap is not Ready",
        ),
        (
            "case: provisioner/86 readyToUse nil",
            no(),
            json!({"status": {"readyToUse": null}}),
            no(),
            "snapshot snap is not Ready",
        ),
        (
            "case: provisioner/86 status nil",
            no(),
            json!({"status": null}),
            no(),
            "snapshot snap not bound",
        ),
        (
            "case: provisioner/86 bound name nil",
            no(),
            json!({"status": {"boundVolumeSnapshotContentName": null}}),
            no(),
            "snapshot snap not bound",
        ),
        (
            "case: provisioner/86 content status nil",
            no(),
            no(),
            json!({"status": null}),
            "snapshot handle snap is not available",
        ),
        (
            "case: provisioner/86 handle nil",
            no(),
            no(),
            json!({"status": {"snapshotHandle": null}}),
            "snapshot handle snap is not available",
        ),
        ("case: provisioner/87 uid", no(), no(), reference("uid"), another),
        ("case: provisioner/87 namespace", no(), no(), reference("namespace"), another),
        ("case: provisioner/87 name", no(), no(), reference("name"), another),
        (
            "case: provisioner/87 driver",
            no(),
            no(),
            json!({"spec": {"driver": "theirs"}}),
            "snapshotcontent content for snapshot snap is not handled by CSI driver of StorageClass fast",
        ),
        (
            "case: provisioner/90 no finalizer",
            no(),
            gone.clone(),
            no(),
            "snapshot snap is being deleted",
        ),
        (
            "case: provisioner/90 foreign finalizer",
            no(),
            with("x/y"),
            no(),
            "snapshot snap is being deleted",
        ),
        (
            "case: provisioner/90 our finalizer",
            no(),
            with("provisioner.storage.kubernetes.io/volumesnapshot-as-source-protection"),
            no(),
            "handle",
        ),
    ];
    for (name, for_claim, for_snapshot, for_content, want) in cases {
        let (claim, class) = (claim(for_claim.clone()), class(json!({})));
        let (snapshot, content) = (snapshot(for_snapshot.clone()), content(for_content.clone()));
        let view = RestoreView {
            claim: &claim,
            class: &class,
            snapshot: &snapshot,
            content: Some(&content),
            guard_volume_mode: true,
        };
        assert_eq!(said(restore(&view)), *want, "{name}");
    }
    let (claim, class, snapshot) = (claim(no()), class(no()), snapshot(no()));
    let view = RestoreView {
        claim: &claim,
        class: &class,
        snapshot: &snapshot,
        content: None,
        guard_volume_mode: true,
    };
    assert_eq!(said(restore(&view)), "error getting snapshotcontent content for snapshot snap");
}

#[test]
fn a_restored_volume_keeps_its_mode_unless_allowed() {
    // case: provisioner/89
    let key = "snapshot.storage.kubernetes.io/allow-volume-mode-change";
    let start = "requested volume default/claim modifies the mode of the source volume but does not have permission to do so. ";
    let absent = format!("{key} annotation is not present on snapshotcontent content");
    let denied = format!("{key} is set to false on snapshotcontent content");
    let garbage = format!(
        "failed to convert {key} annotation value to boolean with error: strconv.ParseBool: parsing \"maybe\": invalid syntax"
    );
    type Row<'a> =
        (&'a str, Option<&'a str>, Option<&'a str>, Option<&'a str>, bool, Option<&'a str>);
    let cases: &[Row] = &[
        ("allowed", Some("Filesystem"), Some("Block"), Some("true"), true, None),
        ("allowed in short", Some("Filesystem"), Some("Block"), Some("T"), true, None),
        ("absent", Some("Filesystem"), Some("Block"), None, true, Some(&absent)),
        ("false", Some("Filesystem"), Some("Block"), Some("false"), true, Some(&denied)),
        ("garbage", Some("Filesystem"), Some("Block"), Some("maybe"), true, Some(&garbage)),
        ("the guard is off", Some("Filesystem"), Some("Block"), None, false, None),
        ("the other way", Some("Block"), Some("Filesystem"), None, true, Some(&absent)),
        ("equal", Some("Block"), Some("Block"), None, true, None),
        ("the source does not say", None, Some("Block"), None, true, None),
        ("the claim does not say", Some("Block"), None, None, true, None),
    ];
    for (name, have, wanted, note, guard, refusal) in cases {
        let claim = claim(json!({"spec": {"volumeMode": wanted}}));
        let content = content(json!({"metadata": {"annotations": {key: note}},
            "spec": {"sourceVolumeMode": have}}));
        let view = RestoreView {
            claim: &claim,
            class: &class(json!({})),
            snapshot: &snapshot(json!({})),
            content: Some(&content),
            guard_volume_mode: *guard,
        };
        let want = refusal.map_or_else(|| "handle".to_owned(), |why| format!("{start}{why}"));
        assert_eq!(said(restore(&view)), want, "{name}");
    }
}

fn origin(over: Value) -> Claim {
    let mut base = json!({"metadata": {"name": "origin", "uid": "u-o"},
        "spec": {"storageClassName": "fast", "volumeName": "pv"}, "status": {"phase": "Bound"}});
    merge(&mut base, over);
    claim(base)
}

fn origin_volume(over: Value) -> Volume {
    let mut base = json!({"spec": {"csi": {"driver": OURS, "volumeHandle": "handle"},
            "claimRef": {"namespace": "default", "name": "origin", "uid": "u-o"}},
        "status": {"phase": "Bound"}});
    merge(&mut base, over);
    volume(base)
}

#[test]
fn a_clone_needs_a_bound_source_of_the_same_driver() {
    let no = || json!({});
    let unfit = "claim in dataSource not bound or invalid";
    let phase = |phase: &str| json!({"status": {"phase": phase}});
    let owner = |key: &str| json!({"spec": {"claimRef": {key: "another"}}});
    let cases: &[(&str, Value, Value, Value, &str)] = &[
        ("case: provisioner/93", no(), no(), no(), "handle"),
        (
            "case: provisioner/94",
            no(),
            json!({"spec": {"storageClassName": "another"}}),
            no(),
            "handle",
        ),
        (
            "case: provisioner/95 smaller",
            no(),
            json!({"spec": {"resources": {"requests": {"storage": "2Gi"}}}}),
            no(),
            "error, new PVC request must be greater than or equal in size to the specified PVC data source, requested 1073741824 but source is 2147483648",
        ),
        (
            "case: provisioner/95 Pending",
            no(),
            phase("Pending"),
            no(),
            "the PVC DataSource origin must have a status of Bound.  Got Pending",
        ),
        (
            "case: provisioner/95 Lost",
            no(),
            phase("Lost"),
            no(),
            "the PVC DataSource origin must have a status of Bound.  Got Lost",
        ),
        (
            "deleted",
            no(),
            json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}),
            no(),
            "the PVC DataSource origin is currently being deleted",
        ),
        (
            "case: provisioner/95 source without class",
            no(),
            json!({"spec": {"storageClassName": null}}),
            no(),
            "the source PVC (origin) storageclass cannot be empty",
        ),
        (
            "case: provisioner/95 claim without class",
            json!({"spec": {"storageClassName": null}}),
            no(),
            no(),
            "the requested PVC (claim) storageclass cannot be empty",
        ),
        (
            "no volume name",
            no(),
            json!({"spec": {"volumeName": ""}}),
            no(),
            "volume name is empty in source PVC origin",
        ),
        ("not CSI", no(), no(), json!({"spec": {"csi": null}}), unfit),
        (
            "case: provisioner/95 other driver",
            no(),
            no(),
            json!({"spec": {"csi": {"driver": "theirs"}}}),
            unfit,
        ),
        ("case: provisioner/95 unbound", no(), no(), json!({"spec": {"claimRef": null}}), unfit),
        ("case: provisioner/95 Released", no(), no(), phase("Released"), unfit),
        ("case: provisioner/95 Failed", no(), no(), phase("Failed"), unfit),
        ("case: provisioner/95 PV Pending", no(), no(), phase("Pending"), unfit),
        ("case: provisioner/95 Available", no(), no(), phase("Available"), unfit),
        ("case: provisioner/95 other uid", no(), no(), owner("uid"), unfit),
        ("case: provisioner/95 other namespace", no(), no(), owner("namespace"), unfit),
        ("case: provisioner/95 other name", no(), no(), owner("name"), unfit),
    ];
    for (name, for_claim, for_origin, for_volume, want) in cases {
        let mut base = json!({"spec": {"storageClassName": "fast"}});
        merge(&mut base, for_claim.clone());
        let (claim, class) = (claim(base), class(json!({})));
        let (source, volume) = (origin(for_origin.clone()), origin_volume(for_volume.clone()));
        let view =
            CloneView { claim: &claim, class: &class, source: &source, volume: Some(&volume) };
        assert_eq!(said(clone(&view)), *want, "{name}");
    }
    let claim = claim(json!({"spec": {"storageClassName": "fast"}}));
    let (class, source) = (class(no()), origin(no()));
    let view = CloneView { claim: &claim, class: &class, source: &source, volume: None };
    assert_eq!(said(clone(&view)), unfit, "case: provisioner/95 PV missing");
}

#[test]
fn a_clone_has_the_mode_of_its_source() {
    // case: provisioner/96
    let wrong = |have: &str, wanted: &str| {
        format!(
            "the source PVC and destination PVCs must have the same volume mode for cloning.  Source is {have}, but new PVC requested {wanted}"
        )
    };
    let (file, block) = (Some("Filesystem"), Some("Block"));
    let cases = [
        (block, block, None),
        (file, file, None),
        (None, file, None),
        (file, None, None),
        (None, None, None),
        (file, block, Some(wrong("Filesystem", "Block"))),
        (None, block, Some(wrong("Filesystem", "Block"))),
        (block, file, Some(wrong("Block", "Filesystem"))),
        (block, None, Some(wrong("Block", "Filesystem"))),
    ];
    for (have, wanted, refusal) in cases {
        let claim = claim(json!({"spec": {"storageClassName": "fast", "volumeMode": wanted}}));
        let volume = origin_volume(json!({"spec": {"volumeMode": have}}));
        let (class, source) = (class(json!({})), origin(json!({})));
        let view =
            CloneView { claim: &claim, class: &class, source: &source, volume: Some(&volume) };
        let want = refusal.unwrap_or_else(|| "handle".into());
        assert_eq!(said(clone(&view)), want, "{wanted:?} of {have:?}");
    }
}

fn grant(over: Value) -> Arc<ReferenceGrant> {
    let mut spec = json!({
        "from": {"group": "", "kind": "PersistentVolumeClaim", "namespace": "default"},
        "to": {"group": GROUP, "kind": "VolumeSnapshot", "name": "snap"}});
    merge(&mut spec, over.get("spec").cloned().unwrap_or_else(|| json!({})));
    let list = |key: &str| match &spec[key] {
        Value::Array(all) => json!(all),
        one => json!([one]),
    };
    let namespace = over.get("namespace").cloned().unwrap_or_else(|| json!("other"));
    let grant = json!({"metadata": {"name": "g", "namespace": namespace},
        "spec": {"from": list("from"), "to": list("to")}});
    Arc::new(serde_json::from_value(grant).expect("a grant"))
}

#[test]
fn sources_of_other_namespaces() {
    // case: provisioner/92
    let refused =
        "accessing other/snap of VolumeSnapshot dataSource from default/claim isn't allowed";
    let off = "dataSourceRef namespace specified but the CrossNamespaceVolumeDataSource feature is disabled";
    let of = |over: Value| Some(vec![grant(over)]);
    let from = |key: &str| of(json!({"spec": {"from": {key: "another"}}}));
    let to = |key: &str| of(json!({"spec": {"to": {key: "another"}}}));
    let half = |key: &str| json!({"spec": {key: []}});
    type Row<'a> = (&'a str, Value, Option<Vec<Arc<ReferenceGrant>>>, Result<&'a str, &'a str>);
    let other = || json!("other");
    let cases: Vec<Row<'_>> = vec![
        ("gate off", other(), None, Err(off)),
        ("no grant", other(), Some(vec![]), Err(refused)),
        ("grant elsewhere", other(), of(json!({"namespace": "default"})), Err(refused)),
        ("from group", other(), from("group"), Err(refused)),
        ("from kind", other(), from("kind"), Err(refused)),
        ("from namespace", other(), from("namespace"), Err(refused)),
        ("to group", other(), to("group"), Err(refused)),
        ("to kind", other(), to("kind"), Err(refused)),
        ("to name", other(), to("name"), Err(refused)),
        ("no from", other(), of(half("from")), Err(refused)),
        ("no to", other(), of(half("to")), Err(refused)),
        (
            "halves of two grants",
            other(),
            Some(vec![grant(half("from")), grant(half("to"))]),
            Err(refused),
        ),
        ("exact", other(), of(json!({})), Ok("other")),
        ("any name", other(), of(json!({"spec": {"to": {"name": null}}})), Ok("other")),
        ("empty name", other(), of(json!({"spec": {"to": {"name": ""}}})), Ok("other")),
        ("own namespace", json!("default"), Some(vec![]), Ok("default")),
        ("nil", Value::Null, Some(vec![]), Ok("default")),
        ("nil, gate off", Value::Null, None, Ok("default")),
        ("empty", json!(""), Some(vec![]), Ok("default")),
    ];
    for (name, namespace, grants, want) in cases {
        let claim = claim(json!({"spec": {"dataSourceRef": {"apiGroup": GROUP,
            "kind": "VolumeSnapshot", "name": "snap", "namespace": namespace}}}));
        let got = reference(&claim, grants.as_deref());
        let got = got.map(|found| found.expect("a source").namespace.to_owned());
        let got = got.map_err(|error| error.to_string());
        assert_eq!(got, want.map(String::from).map_err(String::from), "{name}");
    }
}

#[test]
fn grants_for_claims_need_no_group() {
    let claim = claim(json!({"spec": {"dataSourceRef": {
        "kind": "PersistentVolumeClaim", "name": "origin", "namespace": "other"}}}));
    let to = |group: &str| {
        vec![grant(json!({"spec": {"to": {"group": group, "kind": "PersistentVolumeClaim",
            "name": "origin"}}}))]
    };
    assert!(reference(&claim, Some(&to(""))).is_ok());
    assert!(reference(&claim, Some(&to("v1"))).is_err());
}

#[test]
fn protection_of_clone_sources() {
    // case: provisioner/98
    let clone = |namespace: &str, phase: &str, source: Value| {
        claim(json!({"metadata": {"name": "clone", "namespace": namespace},
            "spec": {"dataSource": source}, "status": {"phase": phase}}))
    };
    let of = |name: &str| json!({"kind": "PersistentVolumeClaim", "name": name});
    let cases = [
        ("no clones", vec![], false),
        ("bound", vec![clone("default", "Bound", of("origin"))], false),
        ("pending", vec![clone("default", "Pending", of("origin"))], true),
        (
            "one of several",
            vec![
                clone("default", "Bound", of("origin")),
                clone("default", "Pending", of("origin")),
            ],
            true,
        ),
        ("another namespace", vec![clone("other", "Pending", of("origin"))], false),
        ("another source", vec![clone("default", "Pending", of("else"))], false),
        (
            "another kind",
            vec![clone("default", "Pending", json!({"kind": "VolumeSnapshot", "name": "origin"}))],
            false,
        ),
        ("no source", vec![clone("default", "Pending", Value::Null)], false),
    ];
    for (name, claims, want) in cases {
        let source = origin(json!({}));
        assert_eq!(cloning(&source.metadata, &claims).is_some(), want, "{name}");
    }
}

#[test]
fn a_pending_claim_waits_for_its_snapshot() {
    // case: provisioner/99
    let source =
        |group: Value| json!({"apiGroup": group, "kind": "VolumeSnapshot", "name": "snap"});
    let plain = || source(json!(GROUP));
    let mut elsewhere = plain();
    elsewhere["namespace"] = json!("other");
    let cases = [
        ("bound", "Bound", json!({"dataSource": plain()}), None),
        ("lost", "Lost", json!({"dataSource": plain()}), None),
        ("pending", "Pending", json!({"dataSource": plain()}), Some("default/snap")),
        ("no phase", "", json!({"dataSource": plain()}), Some("default/snap")),
        ("reference", "Pending", json!({"dataSourceRef": plain()}), Some("default/snap")),
        ("other namespace", "Pending", json!({"dataSourceRef": elsewhere}), Some("other/snap")),
        ("no group", "Pending", json!({"dataSource": source(Value::Null)}), Some("default/snap")),
        ("foreign group", "Pending", json!({"dataSource": source(json!("x.io"))}), None),
        ("no source", "Pending", json!({}), None),
    ];
    for (name, phase, spec, want) in cases {
        let claim = claim(json!({"spec": spec, "status": {"phase": phase}}));
        let got = awaited_snapshot(&claim).map(|key| key.to_string());
        assert_eq!(got.as_deref(), want, "{name}");
    }
}

fn able() -> DriverCapabilities {
    DriverCapabilities {
        controller_service: true,
        create_delete_volume: true,
        create_delete_snapshot: true,
        clone_volume: true,
        modify_volume: true,
        ..DriverCapabilities::default()
    }
}

fn view<'a>(
    claim: &'a Claim,
    class: &'a StorageClass,
    settings: &'a PlanSettings,
    capabilities: DriverCapabilities,
) -> PlanView<'a> {
    PlanView {
        claim,
        class,
        in_tree: false,
        driver: OURS,
        capabilities,
        settings,
        selected_node: None,
        grants: None,
        content: None,
        topology: None,
    }
}

#[test]
fn what_is_looked_up() {
    let able = able();
    let without = |take: fn(&mut DriverCapabilities)| {
        let mut less = able;
        take(&mut less);
        less
    };
    let source = |group: &str, kind: &str, name: &str| json!({"dataSource": {"apiGroup": group, "kind": kind, "name": name}});
    let restore = || source(GROUP, "VolumeSnapshot", "snap");
    let clone = || source("", "PersistentVolumeClaim", "origin");
    let no_restore = "CSI driver does not support snapshot restore: controller CREATE_DELETE_SNAPSHOT capability is not reported";
    let no_clone = "CSI driver does not support clone operations: controller CLONE_VOLUME capability is not reported";
    let cases: Vec<(&str, Value, DriverCapabilities, &str)> = vec![
        ("nothing", json!({}), able, "none"),
        ("snapshot", restore(), able, "VolumeSnapshot default/snap"),
        ("claim", clone(), able, "PersistentVolumeClaim default/origin"),
        (
            "case: provisioner/86 empty source name",
            source(GROUP, "VolumeSnapshot", ""),
            able,
            "the PVC source not found for PVC claim",
        ),
        (
            "case: provisioner/86 wrong API group",
            source("x.io", "VolumeSnapshot", "snap"),
            able,
            "the PVC source does not belong to the right APIGroup. Expected snapshot.storage.k8s.io, Got x.io",
        ),
        ("populator", source("x.io", "Recipe", "r"), able, "populator"),
        ("no restore", restore(), without(|c| c.create_delete_snapshot = false), no_restore),
        (
            "case: provisioner/95 no CLONE_VOLUME",
            clone(),
            without(|c| c.clone_volume = false),
            no_clone,
        ),
        (
            "one is not the other",
            clone(),
            without(|c| c.create_delete_snapshot = false),
            "PersistentVolumeClaim default/origin",
        ),
    ];
    for (name, spec, capabilities, want) in cases {
        let (claim, class) = (claim(json!({"spec": spec})), class(json!({})));
        let settings = PlanSettings::default();
        let got = match check(&view(&claim, &class, &settings, capabilities)) {
            Ok(None) => "none".into(),
            Ok(Some(source)) => format!("{} {}", source.kind, source.key),
            Err(NotPlanned::Final(text)) => text,
            Err(NotPlanned::Populator) => "populator".into(),
            Err(other) => format!("{other:?}"),
        };
        assert_eq!(got, want, "{name}");
    }
}

#[test]
fn a_source_is_never_forgotten() {
    let source =
        json!({"spec": {"dataSource": {"kind": "PersistentVolumeClaim", "name": "origin"}}});
    let (claim, class) = (claim(source), class(json!({})));
    let settings = PlanSettings::default();
    let mut view = view(&claim, &class, &settings, able());
    assert!(matches!(plan(&view), Err(NotPlanned::Unchanged(_))));
    let content = Content {
        kind: SourceKind::Claim,
        namespace: "default".into(),
        name: "origin".into(),
        handle: "handle".into(),
    };
    view.content = Some(content.clone());
    let plan = plan(&view).unwrap();
    assert_eq!(plan.content, Some(content));
    // What is written down is what is read again.
    let text = serde_json::to_string(&plan).unwrap();
    assert_eq!(serde_json::from_str::<super::super::Plan>(&text).unwrap(), plan);
    // case: provisioner/88
    let made = Created { bytes: plan.bytes, ..Created::default() };
    let missing = Useless { problem: "volume content source missing".into(), removal: "cleanup" };
    assert_eq!(plan.useless(&made), Some(missing));
    assert_eq!(plan.useless(&Created { has_content: true, ..made }), None);
}

#[test]
fn attributes_classes_become_mutable_parameters() {
    let named = |name: &str| claim(json!({"spec": {"volumeAttributesClassName": name}}));
    let vac = |driver: &str| -> VolumeAttributesClass {
        serde_json::from_value(json!({"metadata": {"name": "silver"}, "driverName": driver,
            "parameters": {"iops": "500"}}))
        .unwrap()
    };
    let class = class(json!({}));
    let (on, claim) = (PlanSettings::default(), named("silver"));
    // case: provisioner/81
    let tuned = plan(&view(&claim, &class, &on, able())).unwrap().tuned(&vac(OURS)).unwrap();
    assert_eq!(tuned.mutable_parameters["iops"], "500");
    let pv = tuned.volume(&Created::default(), "i");
    assert_eq!(pv["spec"]["volumeAttributesClassName"], "silver");
    let off = PlanSettings { attributes_classes: false, ..PlanSettings::default() };
    let weak = DriverCapabilities { modify_volume: false, ..able() };
    let plain = plan(&view(&claim, &class, &off, weak)).unwrap();
    assert_eq!(plain.attributes_class, None);
    assert!(plain.volume(&Created::default(), "i")["spec"]["volumeAttributesClassName"].is_null());
    // An empty name is none.
    let empty = named("");
    assert_eq!(plan(&view(&empty, &class, &on, weak)).unwrap().attributes_class, None);
    // case: provisioner/82
    let text = "CSI driver does not support VolumeAttributesClass: controller MODIFY_VOLUME capability is not reported";
    let refused = plan(&view(&claim, &class, &on, weak)).unwrap_err();
    assert_eq!(refused, NotPlanned::Final(text.into()));
    let text =
        "VAC silver referenced in PVC is for driver theirs which does not match driver name ours";
    let refused = plan(&view(&claim, &class, &on, able())).unwrap().tuned(&vac("theirs"));
    assert_eq!(refused.unwrap_err(), NotPlanned::Final(text.into()));
}
