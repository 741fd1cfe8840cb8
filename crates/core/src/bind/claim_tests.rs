use serde_json::{Value, json};

use super::*;
use crate::bind::fixtures::{claim, render, volume};

/// One row of the specification: a claim, the volumes there are, and the steps to expect.
struct Case {
    id: &'static str,
    claim: Value,
    volumes: Vec<Value>,
    class: Option<Value>,
    default_class: Option<&'static str>,
    pods: &'static [&'static str],
    options: Options,
    want: &'static str,
}

const ALL: &str = "volume->claim+BBC; volume Bound; claim->volume; claim Bound";
/// A bind of a volume that already points at the claim by name.
const KEPT: &str = "volume->claim; volume Bound; claim->volume; claim Bound";
const NO_MATCH: &str = "Normal Claim FailedBinding";

fn case(id: &'static str, claim: Value, volumes: Vec<Value>, want: &'static str) -> Case {
    let options = Options::default();
    Case { id, claim, volumes, class: None, default_class: None, pods: &[], options, want }
}

fn check(case: &Case) {
    let claim = claim(case.claim.clone());
    let volumes: Vec<Volume> = case.volumes.iter().cloned().map(volume).collect();
    let class: Option<StorageClass> =
        case.class.clone().map(|class| serde_json::from_value(class).unwrap());
    let pods: Vec<String> = case.pods.iter().map(|pod| (*pod).to_string()).collect();
    let view = ClaimView {
        claim: &claim,
        named: volumes.iter().find(|v| v.name() == claim.spec.volume_name),
        candidates: &volumes.iter().collect::<Vec<_>>(),
        reserved: &BTreeSet::new(),
        class: class.as_ref(),
        default_class: case.default_class,
        waiting_pods: &pods,
        options: case.options,
    };
    assert_eq!(render(&decide_claim(&view)), case.want, "{}", case.id);
}

fn named(name: &str, size: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {"capacity": {"storage": size}}})
}

fn to_claim(uid: Option<&str>) -> Value {
    json!({"namespace": "default", "name": "claim", "uid": uid})
}

fn pointing(uid: Option<&str>, phase: &str) -> Value {
    json!({"spec": {"claimRef": to_claim(uid)}, "status": {"phase": phase}})
}

fn asks(size: &str) -> Value {
    json!({"spec": {"resources": {"requests": {"storage": size}}}})
}

fn wait_class() -> Option<Value> {
    Some(json!({"metadata": {"name": "wait"}, "provisioner": "vendor.com/x",
        "volumeBindingMode": "WaitForFirstConsumer"}))
}

fn class_of(provisioner: &str) -> Option<Value> {
    Some(
        json!({"metadata": {"name": "gold"}, "provisioner": provisioner, "volumeBindingMode": "Immediate"}),
    )
}

#[test]
fn an_unbound_claim_is_bound_or_provisioned_or_waits() {
    let of_class = |class: &str| json!({"spec": {"storageClassName": class}});
    let selecting = || json!({"spec": {"selector": {"matchLabels": {"key": "value"}}}});
    let prebound_10 = |uid| {
        json!({"metadata": {"name": "volume"},
            "spec": {"capacity": {"storage": "10Gi"}, "claimRef": to_claim(uid)}})
    };
    let cases = [
        case("case: pv-controller/1-1", json!({}), vec![json!({})], ALL),
        case("case: pv-controller/1-2", asks("10Gi"), vec![json!({})], NO_MATCH),
        case(
            "case: pv-controller/1-3",
            json!({"spec": {"resources": {"requests": {"storage": "10Gi"}}}, "status": {"phase": "Bound"}}),
            vec![json!({})],
            "Normal Claim FailedBinding; claim Pending",
        ),
        case(
            "case: pv-controller/1-4",
            json!({}),
            vec![named("big", "10Gi"), named("volume", "1Gi")],
            ALL,
        ),
        case(
            "case: pv-controller/1-5",
            json!({}),
            vec![prebound_10(None), named("small", "1Gi")],
            KEPT,
        ),
        case(
            "case: pv-controller/1-6",
            json!({}),
            vec![named("small", "1Gi"), prebound_10(Some("uid-c"))],
            "volume Bound; claim->volume; claim Bound",
        ),
        case(
            "case: pv-controller/1-7",
            json!({}),
            vec![pointing(Some("other"), "Available")],
            NO_MATCH,
        ),
        case(
            "case: pv-controller/1-8",
            json!({}),
            vec![pointing(Some("uid-c"), "Available")],
            "volume Bound; claim->volume; claim Bound",
        ),
        case(
            "case: pv-controller/1-9",
            json!({}),
            vec![pointing(Some("uid-c"), "Bound")],
            "claim->volume; claim Bound",
        ),
        case(
            "case: pv-controller/1-10",
            json!({"spec": {"volumeName": "volume"}, "metadata": {"annotations": {
                "pv.kubernetes.io/bind-completed": "yes", "pv.kubernetes.io/bound-by-controller": "yes"}}}),
            vec![pointing(Some("uid-c"), "Bound")],
            "claim Bound",
        ),
        case(
            "case: pv-controller/1-11",
            selecting(),
            vec![json!({"metadata": {"labels": {"key": "value"}}})],
            ALL,
        ),
        case("case: pv-controller/1-12", selecting(), vec![json!({})], NO_MATCH),
        Case {
            class: wait_class(),
            ..case(
                "case: pv-controller/1-13",
                of_class("wait"),
                vec![json!({"spec": {"storageClassName": "wait"}})],
                "Normal Claim WaitForFirstConsumer",
            )
        },
        Case {
            class: wait_class(),
            ..case(
                "case: pv-controller/1-14",
                of_class("wait"),
                vec![pointing(None, "Available")],
                KEPT,
            )
        },
        case(
            "case: pv-controller/1-17",
            json!({}),
            ["Pending", "Failed", "Released", ""]
                .iter()
                .map(|phase| json!({"metadata": {"name": phase}, "status": {"phase": phase}}))
                .collect(),
            NO_MATCH,
        ),
        Case {
            class: wait_class(),
            ..case(
                "case: pv-controller/1-18",
                json!({"spec": {"storageClassName": "wait"},
                    "metadata": {"annotations": {"volume.kubernetes.io/selected-node": "node1"}}}),
                vec![pointing(Some("uid-c"), "Available")],
                "volume Bound; claim->volume; claim Bound",
            )
        },
        Case {
            class: wait_class(),
            pods: &["a", "b"],
            ..case(
                "case: pv-controller/L-1",
                of_class("wait"),
                vec![],
                "Normal Claim WaitForPodScheduled",
            )
        },
        Case {
            class: Some(json!({"metadata": {"name": "gold"}, "provisioner": "vendor.com/x"})),
            ..case("case: pv-controller/L-2", of_class("gold"), vec![json!({})], "fail")
        },
    ];
    cases.iter().for_each(check);
}

#[test]
fn a_waiting_claim_gets_an_event_that_names_its_pods() {
    let text = |pods: &[&str]| {
        let pods: Vec<String> = pods.iter().map(|pod| (*pod).to_string()).collect();
        match wait_note(&pods) {
            Action::Event(note) => note.message,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(text(&[]), "waiting for first consumer to be created before binding");
    assert_eq!(text(&["a"]), "waiting for pod a to be scheduled");
    assert_eq!(text(&["a", "b"]), "waiting for pods a,b to be scheduled");
}

#[test]
fn claims_that_name_a_volume() {
    let names = |over: Value| {
        let mut base = json!({"spec": {"volumeName": "volume"}});
        crate::bind::fixtures::merge(&mut base, over);
        base
    };
    let other = || {
        json!({"spec": {"claimRef": {"namespace": "default", "name": "other", "uid": "o"}},
            "status": {"phase": "Bound"}})
    };
    let no_bbc = "volume->claim+BBC; volume Bound; claim->volume; claim Bound";
    let mismatch = "Warning Claim VolumeMismatch";
    let attributes = |name: &str| json!({"spec": {"volumeAttributesClassName": name}});
    let cases = [
        case(
            "case: pv-controller/1-15",
            names(json!({})),
            vec![named("volume", "10Gi"), named("small", "1Gi")],
            no_bbc,
        ),
        case(
            "case: pv-controller/1-16",
            names(json!({"spec": {"accessModes": ["ReadWriteMany"]}})),
            vec![json!({})],
            mismatch,
        ),
        case("case: pv-controller/2-1", names(json!({})), vec![], ""),
        case(
            "case: pv-controller/2-2",
            names(json!({"status": {"phase": "Bound"}})),
            vec![],
            "claim Pending",
        ),
        case("case: pv-controller/2-3", names(json!({})), vec![json!({})], no_bbc),
        case("case: pv-controller/2-4", names(json!({})), vec![pointing(None, "Available")], KEPT),
        case(
            "case: pv-controller/2-5",
            names(json!({})),
            vec![pointing(Some("uid-c"), "Available")],
            "volume Bound; claim->volume; claim Bound",
        ),
        case(
            "case: pv-controller/2-6",
            names(json!({"status": {"phase": "Bound"}})),
            vec![other()],
            "Warning Claim FailedBinding; claim Pending",
        ),
        case(
            "case: pv-controller/2-7",
            names(
                json!({"metadata": {"annotations": {"pv.kubernetes.io/bound-by-controller": "yes"}}}),
            ),
            vec![other()],
            "Warning Claim FailedBinding; fail",
        ),
        case(
            "case: pv-controller/2-8",
            names(json!({"spec": {"selector": {"matchLabels": {"a": "b"}}}})),
            vec![json!({})],
            no_bbc,
        ),
        case("case: pv-controller/2-9", names(asks("2Gi")), vec![json!({})], mismatch),
        case(
            "case: pv-controller/2-10",
            names(json!({})),
            vec![json!({"spec": {"storageClassName": "gold"}})],
            mismatch,
        ),
        case("case: pv-controller/2-11", names(json!({})), vec![attributes("gold")], mismatch),
        Case {
            options: Options { attributes_classes: false, ..Options::default() },
            ..case(
                "case: pv-controller/2-13",
                names(attributes("gold")),
                vec![attributes("gold")],
                mismatch,
            )
        },
        case(
            "case: pv-controller/L-3",
            names(json!({})),
            vec![json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}})],
            mismatch,
        ),
        case(
            "case: pv-controller/14-5-2",
            names(json!({"spec": {"storageClassName": "silver"}})),
            vec![json!({"spec": {"storageClassName": "gold"}})],
            mismatch,
        ),
        case(
            "case: pv-controller/14-8",
            names(json!({"spec": {"volumeMode": "Block"}})),
            vec![json!({})],
            mismatch,
        ),
        case(
            "case: pv-controller/15-4",
            names(json!({"spec": {"storageClassName": "copper"}, "status": {"phase": "Bound"}})),
            vec![],
            "claim Pending",
        ),
    ];
    cases.iter().for_each(check);
}

#[test]
fn a_bound_claim_is_completed_or_lost() {
    let complete = |over: Value| {
        let mut base = json!({"spec": {"volumeName": "volume"}, "metadata": {"annotations": {
            "pv.kubernetes.io/bind-completed": "yes"}}});
        crate::bind::fixtures::merge(&mut base, over);
        base
    };
    let lost = "claim Lost; Warning Claim ClaimLost";
    let misbound = "claim Lost; Warning Claim ClaimMisbound";
    let is_bound =
        || json!({"status": {"phase": "Bound", "accessModes": ["ReadWriteOnce", "ReadOnlyMany"]}});
    let cases = [
        case(
            "case: pv-controller/3-1",
            complete(json!({"spec": {"volumeName": null}})),
            vec![],
            lost,
        ),
        case("case: pv-controller/3-2", complete(is_bound()), vec![], lost),
        case(
            "case: pv-controller/3-3",
            complete(json!({})),
            vec![json!({})],
            "volume->claim+BBC; volume Bound; claim Bound",
        ),
        case(
            "case: pv-controller/3-4",
            complete(is_bound()),
            vec![pointing(Some("o"), "Bound")],
            misbound,
        ),
        case(
            "case: pv-controller/3-5",
            complete(json!({})),
            vec![pointing(Some("uid-c"), "Available")],
            "volume Bound; claim Bound",
        ),
        case(
            "case: pv-controller/3-6",
            complete(is_bound()),
            vec![
                json!({"spec": {"claimRef": {"namespace": "default", "name": "other", "uid": "o"}}}),
            ],
            misbound,
        ),
        case(
            "case: pv-controller/3-7",
            complete(json!({"spec": {"selector": {"matchLabels": {"a": "b"}}}})),
            vec![json!({})],
            "volume->claim+BBC; volume Bound; claim Bound",
        ),
        case(
            "case: pv-controller/L-4",
            complete(is_bound()),
            vec![pointing(None, "Available")],
            misbound,
        ),
        case("case: pv-controller/L-5", complete(json!({"status": {"phase": "Lost"}})), vec![], ""),
        Case {
            default_class: Some("gold"),
            ..case("case: pv-controller/15-3", complete(is_bound()), vec![], lost)
        },
        case("settled", complete(is_bound()), vec![pointing(Some("uid-c"), "Bound")], ""),
    ];
    cases.iter().for_each(check);
}

#[test]
fn classes_and_modes() {
    let pv = |name: &str, size: &str, class: &str| json!({"metadata": {"name": name}, "spec": {"capacity": {"storage": size}, "storageClassName": class}});
    let of_class = |class: &str| json!({"spec": {"storageClassName": class}});
    let block = || json!({"spec": {"volumeMode": "Block"}});
    let cases = [
        case(
            "case: pv-controller/13-1",
            of_class("gold"),
            vec![pv("o", "1Gi", ""), pv("volume", "10Gi", "gold")],
            ALL,
        ),
        case(
            "case: pv-controller/13-2",
            json!({}),
            vec![pv("o", "1Gi", "gold"), pv("volume", "10Gi", "")],
            ALL,
        ),
        case(
            "case: pv-controller/13-3",
            of_class("gold"),
            vec![pv("o", "1Gi", "silver"), pv("volume", "10Gi", "gold")],
            ALL,
        ),
        case(
            "case: pv-controller/13-4",
            of_class(""),
            vec![pv("o", "1Gi", "gold"), json!({})],
            ALL,
        ),
        case("case: pv-controller/13-5", json!({}), vec![pv("o", "1Gi", "gold"), json!({})], ALL),
        case("case: pv-controller/14-1", block(), vec![block()], ALL),
        case(
            "case: pv-controller/14-2",
            json!({"spec": {"volumeMode": "Filesystem"}}),
            vec![json!({})],
            ALL,
        ),
        case("case: pv-controller/14-3", block(), vec![json!({})], NO_MATCH),
        case("case: pv-controller/14-4", json!({}), vec![block()], NO_MATCH),
        case(
            "case: pv-controller/14-5",
            json!({"spec": {"storageClassName": "gold", "volumeMode": "Block"}}),
            vec![pv("volume", "1Gi", "gold")],
            "Warning Claim ProvisioningFailed",
        ),
        case(
            "case: pv-controller/14-7",
            block(),
            vec![json!({"spec": {"volumeMode": "Block", "claimRef": to_claim(None)}})],
            KEPT,
        ),
        case("case: pv-controller/14-8-1", block(), vec![pointing(None, "Available")], NO_MATCH),
        case("case: pv-controller/15-1", json!({}), vec![], NO_MATCH),
        Case {
            default_class: Some("gold"),
            ..case("case: pv-controller/15-5", json!({}), vec![], "class gold")
        },
        Case {
            class: class_of("kubernetes.io/no-provisioner"),
            default_class: Some("gold"),
            ..case(
                "case: pv-controller/15-6",
                of_class("copper"),
                vec![],
                "Warning Claim ProvisioningFailed",
            )
        },
        Case {
            default_class: Some("gold"),
            ..case(
                "case: pv-controller/15-7",
                json!({"metadata": {"annotations": {"volume.beta.kubernetes.io/storage-class": ""}}}),
                vec![],
                NO_MATCH,
            )
        },
    ];
    cases.iter().for_each(check);
}

#[test]
fn an_external_provisioner_is_asked_by_annotation() {
    let gold = || json!({"spec": {"storageClassName": "gold"}});
    let chosen = || {
        json!({"spec": {"storageClassName": "wait"},
            "metadata": {"annotations": {"volume.kubernetes.io/selected-node": "node1"}}})
    };
    let ask = "ask vendor.com/x; Normal Claim ExternalProvisioning";
    let class = |id, claim, volumes, class, want| Case { class, ..case(id, claim, volumes, want) };
    let cases = [
        class(
            "case: pv-controller/11-6",
            gold(),
            vec![json!({"spec": {"storageClassName": "gold"}})],
            class_of("vendor.com/x"),
            ALL,
        ),
        case("case: pv-controller/11-14", gold(), vec![], "Warning Claim ProvisioningFailed"),
        case("case: pv-controller/11-16", json!({}), vec![], NO_MATCH),
        case(
            "case: pv-controller/11-15",
            json!({"spec": {"storageClassName": ""}}),
            vec![],
            NO_MATCH,
        ),
        class("case: pv-controller/11-17", gold(), vec![], class_of("vendor.com/x"), ask),
        class(
            "case: pv-controller/11-2 case: pv-controller/11-18",
            gold(),
            vec![],
            class_of("kubernetes.io/unknown"),
            "Warning Claim ProvisioningFailed",
        ),
        class(
            "a plugin that is off",
            gold(),
            vec![],
            class_of("kubernetes.io/host-path"),
            "ask kubernetes.io/host-path; Warning Claim ProvisioningFailed",
        ),
        class(
            "a plugin that cannot",
            gold(),
            vec![],
            class_of("kubernetes.io/nfs"),
            "Warning Claim ProvisioningFailed",
        ),
        class(
            "case: pv-controller/11-21",
            gold(),
            vec![],
            class_of("kubernetes.io/gce-pd"),
            "ask pd.csi.storage.gke.io; Normal Claim ExternalProvisioning",
        ),
        class(
            "case: pv-controller/11-22",
            gold(),
            vec![json!({"spec": {"storageClassName": "gold"}})],
            class_of("vendor.com/x"),
            ALL,
        ),
        class(
            "case: pv-controller/11-24",
            chosen(),
            vec![json!({"spec": {"storageClassName": "wait"}})],
            wait_class(),
            ask,
        ),
        class(
            "case: pv-controller/11-26",
            json!({"spec": {"storageClassName": "gold", "dataSource": {"kind": "VolumeSnapshot", "name": "s"}},
                "metadata": {"annotations": {"volume.kubernetes.io/storage-provisioner": "vendor.com/x"}}}),
            vec![],
            class_of("vendor.com/x"),
            "Normal Claim ExternalProvisioning",
        ),
        Case {
            class: class_of("vendor.com/x"),
            options: Options { dynamic_provisioning: false, ..Options::default() },
            ..case("case: pv-controller/off", gold(), vec![], "")
        },
    ];
    cases.iter().for_each(check);
}
