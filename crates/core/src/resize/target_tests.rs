use serde_json::{Value, json};

use super::target::{Expansion, Resizer, decide, is_recorded, worth_a_look};
use super::writes::{Begin, begun, finished, grown, node_pending, refused};
use crate::bind::fixtures::{claim, merge, volume_json};
use crate::model::kinds::{Claim, Volume};

const DRIVER: &str = "d";
const NOW: &str = "2026-01-01T00:00:00Z";

/// `S C P [A] [status]`, sizes in GiB and `-` for none.
fn objects(line: &str, status: &str) -> (Claim, Volume) {
    let sizes: Vec<&str> = line.split_whitespace().collect();
    let [request, size, backend, allocated] = sizes[..] else { panic!("{line}: four sizes") };
    let gi = |size: &str| format!("{size}Gi");
    let mut over = json!({"spec": {"volumeName": "pv", "resources": {"requests": {"storage": gi(request)}}},
        "status": {"phase": "Bound", "capacity": {"storage": gi(size)}}});
    if allocated != "-" {
        over["status"]["allocatedResources"] = json!({"storage": gi(allocated), "cpu": "1"});
    }
    match status {
        "" => {}
        "pending" => {
            over["status"]["conditions"] =
                json!([{"type": "FileSystemResizePending", "status": "True"}]);
        }
        stage => over["status"]["allocatedResourceStatuses"] = json!({"storage": stage}),
    }
    let volume = volume_json(
        json!({"spec": {"hostPath": null, "csi": {"driver": DRIVER, "volumeHandle": "h"},
        "capacity": {"storage": gi(backend)},
        "claimRef": {"namespace": "default", "name": "claim", "uid": "uid-c"}}}),
    );
    (claim(over), serde_json::from_value(volume).expect("a volume"))
}

fn resizer() -> Resizer<'static> {
    Resizer { driver: DRIVER, controller_expands: true, recovers: true, annotates: true }
}

fn shown(expansion: Expansion) -> String {
    match expansion {
        Expansion::Nothing => "stop".into(),
        Expansion::DropMark => "unmark".into(),
        Expansion::To(size) => size.to_string(),
    }
}

#[test]
fn the_next_size() {
    use Flavor::{Plain, Refused, Trivial};
    enum Flavor {
        Plain,
        /// The last answer was a final error.
        Refused,
        /// Only nodes expand.
        Trivial,
    }
    let rows = [
        // case: resizer/1
        ("2 1 1 -", "", Plain, "2Gi"),
        // case: resizer/3
        ("1 1 1 -", "", Plain, "stop"),
        // case: resizer/4
        ("5 3 3 10", "ControllerResizeInfeasible", Plain, "5Gi"),
        // case: resizer/5
        ("5 3 3 10", "ControllerResizeInProgress", Plain, "10Gi"),
        // case: resizer/6
        ("5 3 3 10", "ControllerResizeInProgress", Refused, "5Gi"),
        ("5 3 3 -", "ControllerResizeInProgress", Plain, "5Gi"),
        // case: resizer/9
        ("10 2 3 3", "NodeResizePending", Plain, "stop"),
        // case: resizer/10
        ("10 2 3 3", "NodeResizeInProgress", Plain, "stop"),
        ("10 2 3 5", "NodeResizePending", Plain, "5Gi"),
        ("10 2 3 -", "NodeResizePending", Plain, "10Gi"),
        ("10 2 3 5", "NodeResizeInfeasible", Plain, "5Gi"),
        // case: resizer/11
        ("2 1 2 2", "NodeResizeInfeasible", Plain, "2Gi"),
        ("2 1 3 3", "NodeResizeInfeasible", Plain, "3Gi"),
        ("5 3 10 10", "NodeResizeInfeasible", Trivial, "5Gi"),
        // case: resizer/13
        ("2 1 2 2", "NodeResizePending", Plain, "stop"),
        ("2 1 2 2", "NodeResizeInProgress", Plain, "stop"),
        ("2 1 3 3", "ControllerResizeInProgress", Plain, "3Gi"),
        ("2 1 3 3", "ControllerResizeInfeasible", Plain, "3Gi"),
        ("2 1 3 -", "ControllerResizeInfeasible", Plain, "2Gi"),
        ("2 1 2 2", "", Plain, "2Gi"),
        // case: resizer/14
        ("2 1 2 -", "pending", Plain, "stop"),
        ("2 1 2 -", "", Plain, "2Gi"),
        ("2 1 1 -", "AWordOfTomorrow", Plain, "2Gi"),
    ];
    for (sizes, status, flavor, want) in rows {
        let (claim, volume) = objects(sizes, status);
        let resizer = Resizer { controller_expands: !matches!(flavor, Trivial), ..resizer() };
        let refused = matches!(flavor, Refused);
        assert_eq!(shown(decide(&resizer, &claim, &volume, refused)), want, "{sizes} {status}");
    }
}

#[test]
fn claims_of_others_and_unbound_ones_are_left_alone() {
    // case: resizer/15
    for reference in [
        Value::Null,
        json!({"namespace": "other", "name": "claim", "uid": "uid-c"}),
        json!({"namespace": "default", "name": "claim", "uid": "another"}),
    ] {
        let (claim, mut volume) = objects("2 1 1 -", "");
        volume.spec.claim_ref = serde_json::from_value(reference.clone()).expect("a reference");
        assert_eq!(shown(decide(&resizer(), &claim, &volume, false)), "stop", "{reference}");
    }
    let (mut claim, volume) = objects("2 1 1 -", "");
    claim.status.phase = crate::model::ClaimPhase::Pending;
    assert_eq!(shown(decide(&resizer(), &claim, &volume, false)), "stop");
    let (claim, volume) = objects("2 1 1 -", "");
    let other = Resizer { driver: "other", ..resizer() };
    assert_eq!(shown(decide(&other, &claim, &volume, false)), "stop");
}

#[test]
fn a_driver_that_took_over_expands_what_the_claim_gives_to_it() {
    // case: resizer/32
    let (driver, in_tree) = ("ebs.csi.aws.com", "kubernetes.io/aws-ebs");
    for (named, want) in [(driver, "2Gi"), (in_tree, "stop"), ("", "stop")] {
        let (mut claim, mut volume) = objects("2 1 1 -", "");
        volume.spec.csi = None;
        claim
            .metadata
            .annotations
            .insert("volume.kubernetes.io/storage-resizer".into(), named.into());
        let resizer = Resizer { driver, ..resizer() };
        assert_eq!(shown(decide(&resizer, &claim, &volume, false)), want, "{named}");
    }
}

#[test]
fn the_mark_of_a_finished_expansion_is_taken_off_first() {
    // case: resizer/26
    let (claim, mut volume) = objects("2 2 2 2", "");
    let mark = "volume.alpha.kubernetes.io/pre-resize-capacity";
    volume.metadata.annotations.insert(mark.into(), "1Gi".into());
    assert_eq!(shown(decide(&resizer(), &claim, &volume, false)), "unmark");
    // case: resizer/27
    let silent = Resizer { annotates: false, ..resizer() };
    assert_eq!(shown(decide(&silent, &claim, &volume, false)), "stop");
    let (claim, _) = objects("2 1 2 2", "NodeResizePending");
    assert_eq!(shown(decide(&resizer(), &claim, &volume, false)), "stop");
    assert!(grown(&claim, &volume, claim.request(), true)["metadata"].is_null(), "written once");
}

#[test]
fn without_recovery_only_the_request_counts() {
    let old = Resizer { recovers: false, ..resizer() };
    for (sizes, status, want) in [
        ("5 1 1 10", "ControllerResizeInProgress", "5Gi"),
        ("2 1 2 -", "pending", "stop"),
        ("2 1 2 -", "", "2Gi"),
        ("3 1 2 -", "pending", "3Gi"),
    ] {
        let (claim, volume) = objects(sizes, status);
        assert_eq!(shown(decide(&old, &claim, &volume, false)), want, "{sizes} {status}");
    }
}

#[test]
fn changes_worth_a_look() {
    let (before, _) = objects("2 1 1 -", "");
    let after = |sizes, status| objects(sizes, status).0;
    let mut labelled = before.clone();
    labelled.metadata.labels.insert("a".into(), "b".into());
    assert!(!worth_a_look(&before, &labelled, true));
    assert!(worth_a_look(&before, &after("3 1 1 -", ""), true), "asks for more");
    assert!(worth_a_look(&after("3 1 1 -", ""), &before, true), "asks for less");
    assert!(!worth_a_look(&after("3 1 1 -", ""), &before, false), "without recovery");
    assert!(worth_a_look(&before, &after("2 2 1 -", ""), true), "has more");
    assert!(worth_a_look(&before, &after("2 1 1 -", "NodeResizePending"), true), "the node's");
    let (request, recorded) = objects("2 1 1 2", "");
    assert!(is_recorded(&request, request.request()) && recorded.capacity() < request.request());
}

#[test]
fn patches_touch_what_they_must() {
    let (mut claim, volume) = objects("2 1 1 10", "ControllerResizeInfeasible");
    let mut over = json!([{"type": "Resizing", "status": "True"},
        {"type": "NodeResizeError", "status": "True"}, {"type": "Foreign", "status": "True"}]);
    claim.status.conditions = serde_json::from_value(over.take()).expect("conditions");
    claim.status.allocated_resource_statuses.insert("cpu".into(), "X".into());
    // case: resizer/29
    let patch = begun(&claim, claim.request(), Begin::Anew, NOW);
    let mut want = json!({"status": {"allocatedResources": {"storage": "2Gi"},
        "allocatedResourceStatuses": {"storage": "ControllerResizeInProgress"},
        "conditions": [{"$patch": "delete", "type": "NodeResizeError"},
            {"type": "Resizing", "status": "True", "lastTransitionTime": NOW}]}});
    assert_eq!(patch, want);
    want["status"].as_object_mut().expect("a map").remove("allocatedResourceStatuses");
    want["status"]["conditions"].as_array_mut().expect("a list").remove(0);
    assert_eq!(begun(&claim, claim.request(), Begin::Again, NOW), want);
    // case: resizer/30
    let done = finished(&claim, claim.request(), true);
    assert_eq!(done["status"]["allocatedResourceStatuses"], json!({"storage": null}));
    claim.status.allocated_resource_statuses.remove("cpu");
    let done = finished(&claim, claim.request(), true);
    assert_eq!(done["status"]["allocatedResourceStatuses"], Value::Null);
    assert_eq!(done["status"]["conditions"].as_array().map(Vec::len), Some(2));
    // case: resizer/65
    let note = "volume.kubernetes.io/node-expansion-not-required";
    assert_eq!(done["metadata"]["annotations"][note], "true");
    claim.metadata.annotations.insert(note.into(), "true".into());
    for patch in
        [begun(&claim, claim.request(), Begin::Again, NOW), node_pending(&claim, true, NOW)]
    {
        assert_eq!(patch["metadata"]["annotations"], json!({note: null}));
    }
    assert!(refused("no", true, NOW)["status"]["allocatedResourceStatuses"].is_object());
    assert!(refused("no", false, NOW)["status"]["allocatedResourceStatuses"].is_null());
    let pv = grown(&claim, &volume, claim.request(), true);
    let mark = "volume.alpha.kubernetes.io/pre-resize-capacity";
    assert_eq!(
        (&pv["spec"]["capacity"]["storage"], &pv["metadata"]["annotations"][mark]),
        (&json!("2Gi"), &json!("1Gi"))
    );
    merge(&mut want, json!({}));
}
