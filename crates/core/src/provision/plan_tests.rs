use serde_json::{Value, json};

use super::{
    super::{made::Created, topology::Term},
    *,
};
use crate::bind::fixtures::{claim as base_claim, merge};

fn claim(over: Value) -> Claim {
    let mut base = json!({"metadata": {"uid": "testid"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "100"}}}});
    merge(&mut base, over);
    base_claim(base)
}

fn class(parameters: Value) -> StorageClass {
    serde_json::from_value(json!({"metadata": {"name": "c"}, "provisioner": "test-driver",
        "reclaimPolicy": "Delete", "parameters": parameters}))
    .unwrap()
}

fn able() -> DriverCapabilities {
    DriverCapabilities {
        controller_service: true,
        create_delete_volume: true,
        ..DriverCapabilities::default()
    }
}

fn settings() -> PlanSettings {
    PlanSettings {
        name_prefix: "test".into(),
        name_uuid_length: Some(5),
        ..PlanSettings::default()
    }
}

fn plan_with(
    claim: &Claim,
    class: &StorageClass,
    change: impl FnOnce(&mut PlanView<'_>),
) -> Result<Plan, NotPlanned> {
    let settings = settings();
    let mut view = PlanView {
        claim,
        class,
        in_tree: false,
        driver: "test-driver",
        capabilities: able(),
        settings: &settings,
        selected_node: None,
        grants: None,
        content: None,
        topology: None,
    };
    change(&mut view);
    plan(&view)
}

fn made(bytes: i64) -> Created {
    Created { handle: "id".into(), bytes, ..Created::default() }
}

#[test]
fn a_plain_volume() {
    // case: provisioner/54
    let plan = plan_with(&claim(json!({})), &class(json!({"fstype": "ext3"})), |_| {}).unwrap();
    assert_eq!(plan.parameters, BTreeMap::from([("fstype".into(), "ext3".into())]));
    let want = json!({
        "apiVersion": "v1", "kind": "PersistentVolume",
        "metadata": {"name": "test-testi", "annotations": {
            "volume.kubernetes.io/provisioner-deletion-secret-name": "",
            "volume.kubernetes.io/provisioner-deletion-secret-namespace": ""}},
        "spec": {"capacity": {"storage": "100"}, "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Delete",
            "csi": {"driver": "test-driver", "volumeHandle": "id", "fsType": "ext3",
                "volumeAttributes": {"storage.kubernetes.io/csiProvisionerIdentity": "test-provisioner"}}}
    });
    assert_eq!(plan.volume(&made(100), "test-provisioner"), want);
}

#[test]
fn a_mount_capability_has_the_filesystem_type_of_the_class() {
    // case: provisioner/56
    let prefixed = class(json!({"csi.storage.k8s.io/fstype": "ext3"}));
    let plan = plan_with(&claim(json!({})), &prefixed, |_| {}).unwrap();
    assert!(plan.parameters.is_empty());
    assert_eq!(plan.volume(&made(0), "i")["spec"]["csi"]["fsType"], "ext3");
    // case: provisioner/58
    let block = claim(json!({"spec": {"volumeMode": "Block"}}));
    let plan = plan_with(&block, &prefixed, |_| {}).unwrap();
    let pv = plan.volume(&made(0), "i");
    assert!(pv["spec"]["csi"].get("fsType").is_none());
    assert_eq!(pv["spec"]["volumeMode"], "Block");
    assert_eq!(plan.capabilities[0].access, Access::Block);
}

#[test]
fn every_access_mode_becomes_one_capability() {
    let modes = |names: &[&str], fine: bool| {
        let claim = claim(json!({"spec": {"accessModes": names}}));
        plan_with(&claim, &class(json!({})), |view| {
            view.capabilities.single_node_multi_writer = fine
        })
        .map(|plan| plan.capabilities.into_iter().map(|c| c.mode).collect::<Vec<_>>())
    };
    let cases: [(&str, &[&str], bool, &[&str]); 6] = [
        ("case: provisioner/71", &["ReadWriteMany"], false, &["MULTI_NODE_MULTI_WRITER"]),
        ("case: provisioner/71", &["ReadOnlyMany"], false, &["MULTI_NODE_READER_ONLY"]),
        ("case: provisioner/71", &["ReadWriteOnce"], false, &["SINGLE_NODE_WRITER"]),
        ("case: provisioner/72", &["ReadWriteOnce"], true, &["SINGLE_NODE_MULTI_WRITER"]),
        ("case: provisioner/72", &["ReadWriteOncePod"], true, &["SINGLE_NODE_SINGLE_WRITER"]),
        (
            "case: provisioner/73",
            &["ReadOnlyMany", "ReadWriteOnce"],
            false,
            &["MULTI_NODE_READER_ONLY", "SINGLE_NODE_WRITER"],
        ),
    ];
    for (name, given, fine, want) in cases {
        assert_eq!(modes(given, fine).unwrap(), want, "{name}");
    }
    assert!(matches!(modes(&["Sometimes"], false), Err(NotPlanned::Final(_))));
}

#[test]
fn read_only_volumes() {
    let read_only = |modes: &[&str], flag: bool| {
        let claim = claim(json!({"spec": {"accessModes": modes}}));
        let settings = PlanSettings { publish_read_only: flag, ..settings() };
        let class = class(json!({}));
        let view = PlanView {
            claim: &claim,
            class: &class,
            in_tree: false,
            driver: "d",
            capabilities: able(),
            settings: &settings,
            selected_node: None,
            grants: None,
            content: None,
            topology: None,
        };
        let pv = plan(&view).unwrap().volume(&made(0), "i");
        (pv["spec"]["csi"].get("readOnly").cloned(), pv["spec"]["accessModes"].clone())
    };
    // case: provisioner/74
    assert_eq!(read_only(&["ReadOnlyMany"], false).0, None);
    assert_eq!(read_only(&["ReadOnlyMany"], true).0, Some(json!(true)));
    // case: provisioner/73
    let two = ["ReadOnlyMany", "ReadWriteOnce"];
    assert_eq!(read_only(&two, true), (None, json!(two)));
}

#[test]
fn sizes_and_options() {
    let mut with_options = class(json!({}));
    with_options.mount_options = vec!["foo=bar".into(), "baz=qux".into()];
    let plan = plan_with(&claim(json!({})), &with_options, |_| {}).unwrap();
    // case: provisioner/75
    let flags = Access::Mount { fs_type: String::new(), flags: with_options.mount_options.clone() };
    assert_eq!(plan.capabilities[0].access, flags);
    assert_eq!(plan.volume(&made(0), "i")["spec"]["mountOptions"], json!(["foo=bar", "baz=qux"]));
    // case: provisioner/77 case: provisioner/80
    let sizes = [
        (0, "100"),
        (5_970_004_541, "5970004541"),
        (5_905_580_032, "5632Mi"),
        (5_368_709_120, "5Gi"),
        (102_400, "100Ki"),
    ];
    for (bytes, want) in sizes {
        assert_eq!(plan.volume(&made(bytes), "i")["spec"]["capacity"]["storage"], want);
    }
    let short = plan.useless(&made(99)).unwrap();
    assert_eq!(short.problem, "created volume capacity 99 less than requested capacity 100");
    assert_eq!([plan.useless(&made(0)), plan.useless(&made(100))], [None, None]);
}

#[test]
fn extra_metadata_names_claim_and_volume() {
    // case: provisioner/61
    let settings = PlanSettings { extra_create_metadata: true, ..settings() };
    let (claim, class) = (claim(json!({})), class(json!({"pool": "a"})));
    let view = PlanView {
        claim: &claim,
        class: &class,
        in_tree: false,
        driver: "d",
        capabilities: able(),
        settings: &settings,
        selected_node: None,
        grants: None,
        content: None,
        topology: None,
    };
    let want = [
        ("csi.storage.k8s.io/pv/name", "test-testi"),
        ("csi.storage.k8s.io/pvc/name", "claim"),
        ("csi.storage.k8s.io/pvc/namespace", "default"),
        ("pool", "a"),
    ];
    let want = want.map(|(k, v)| (k.to_string(), v.to_string()));
    assert_eq!(plan(&view).unwrap().parameters, BTreeMap::from(want));
}

#[test]
fn default_secret_everywhere() {
    // The references only: the content is the loop's.
    let class = class(
        json!({"csi.storage.k8s.io/secret-name": "s", "csi.storage.k8s.io/secret-namespace": "n"}),
    );
    let pv = plan_with(&claim(json!({})), &class, |_| {}).unwrap().volume(&made(0), "i");
    let reference = json!({"name": "s", "namespace": "n"});
    let fields =
        ["controllerPublish", "nodeStage", "nodePublish", "controllerExpand", "nodeExpand"];
    for field in fields {
        assert_eq!(pv["spec"]["csi"][format!("{field}SecretRef")], reference, "{field}");
    }
    for role in ["provisioner-deletion", "controller-modify"] {
        let notes = &pv["metadata"]["annotations"];
        assert_eq!(notes[format!("volume.kubernetes.io/{role}-secret-name")], "s");
        assert_eq!(notes[format!("volume.kubernetes.io/{role}-secret-namespace")], "n");
    }
}

#[test]
fn what_the_driver_cannot_do_is_not_planned() {
    use NotPlanned::*;
    let of = |over: Value, parameters: Value| plan_with(&claim(over), &class(parameters), |_| {});
    let state = |result: Result<Plan, NotPlanned>| match result.unwrap_err() {
        Final(text) => ("final", text),
        Unchanged(text) => ("unchanged", text),
        Elsewhere(text) => ("elsewhere", text),
        Populator => ("populator", String::new()),
    };
    // case: provisioner/70
    assert_eq!(
        state(of(json!({"spec": {"selector": {}}}), json!({}))),
        ("final", "claim Selector is not supported".into())
    );
    assert_eq!(state(of(json!({"metadata": {"uid": ""}}), json!({}))).0, "final");
    // case: provisioner/55
    assert_eq!(
        state(of(json!({}), json!({"fstype": "a", "csi.storage.k8s.io/fstype": "b"}))).0,
        "final"
    );
    let half = json!({"csi.storage.k8s.io/provisioner-secret-name": "s"});
    assert_eq!(state(of(json!({}), half)).0, "unchanged");
    assert_eq!(state(of(json!({}), json!({"csi.storage.k8s.io/what": "s"}))).0, "final");
    let source = |kind: &str, group: &str| json!({"spec": {"dataSource": {"kind": kind, "name": "n", "apiGroup": group}}});
    assert_eq!(state(of(source("MyPopulator", "x.io"), json!({}))).0, "populator");
    assert_eq!(state(of(source("VolumeSnapshot", "x.io"), json!({}))).0, "final");
    let snapshot = source("VolumeSnapshot", "snapshot.storage.k8s.io");
    assert_eq!(
        state(of(snapshot, json!({}))).1,
        "CSI driver does not support snapshot restore: controller CREATE_DELETE_SNAPSHOT capability is not reported"
    );
    let plain = claim(json!({}));
    let unable = plan_with(&plain, &class(json!({})), |view| {
        view.capabilities = DriverCapabilities::default()
    });
    assert!(state(unable).1.ends_with("plugin CONTROLLER_SERVICE capability is not reported"));
    let node = TopologyError::NoCsiNode { node: "n".into() };
    let gone = plan_with(&plain, &class(json!({})), |view| view.topology = Some(Err(node)));
    assert_eq!(state(gone).0, "elsewhere");
    let nothing = plan_with(&plain, &class(json!({})), |view| {
        view.topology = Some(Err(TopologyError::NoneAvailable))
    });
    assert_eq!(state(nothing).0, "unchanged");
}

#[test]
fn the_plan_carries_the_topology_requirement() {
    let created = Created { places: vec![Term::from([("zone".into(), "a".into())])], ..made(0) };
    let plain = claim(json!({}));
    let plan_of =
        |topology| plan_with(&plain, &class(json!({})), |view| view.topology = topology).unwrap();
    let on = plan_of(Some(Ok(None))).volume(&created, "i");
    assert!(on["spec"].get("nodeAffinity").is_some());
    // case: provisioner/114 (topology off)
    let off = plan_of(None).volume(&created, "i");
    assert!(off["spec"].get("nodeAffinity").is_none());
}

#[test]
fn a_plan_survives_being_written_down() {
    let class = class(
        json!({"csi.storage.k8s.io/secret-name": "s", "csi.storage.k8s.io/secret-namespace": "n"}),
    );
    let planned = plan_with(&claim(json!({})), &class, |_| {}).unwrap();
    let plan = Plan { selected_node: Some("n1".into()), ..planned };
    let text = serde_json::to_string(&plan).unwrap();
    assert_eq!(serde_json::from_str::<Plan>(&text).unwrap(), plan);
}
