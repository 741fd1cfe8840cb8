use serde_json::{Value, json};

use super::super::bind::Class;
use super::super::fixtures::{both, deleting};
use super::bind::{Step, View, copy, decide};
use super::create::{content, member, selector_text};
use super::sidecar::{self, Next};
use super::writes::{Taken, begun, cleared, described};
use super::{content_name, member_names};
use crate::bind::fixtures::{merge, volume};
use crate::model::kinds::{
    VolumeGroupSnapshot, VolumeGroupSnapshotClass, VolumeGroupSnapshotContent, VolumeSnapshotInfo,
};

const BOUND: &str = "groupsnapshot.storage.kubernetes.io/volumegroupsnapshot-bound-protection";
const CREATED: &str = "groupsnapshot.storage.kubernetes.io/volumegroupsnapshot-being-created";
const DELETED: &str = "groupsnapshot.storage.kubernetes.io/volumegroupsnapshot-being-deleted";

fn group(over: Value) -> VolumeGroupSnapshot {
    let mut base = json!({
        "metadata": {"name": "g", "namespace": "ns", "uid": "u", "resourceVersion": "7"},
        "spec": {"source": {"selector": {"matchLabels": {"app": "db"}}}, "volumeGroupSnapshotClassName": "fast"},
    });
    merge(&mut base, over);
    serde_json::from_value(base).expect("a group snapshot")
}

fn kept(over: Value) -> VolumeGroupSnapshotContent {
    let mut base = json!({
        "metadata": {"name": "groupsnapcontent-u", "uid": "c", "resourceVersion": "9",
            "finalizers": ["groupsnapshot.storage.kubernetes.io/volumegroupsnapshotcontent-bound-protection"]},
        "spec": {"driver": "d", "deletionPolicy": "Delete", "source": {"volumeHandles": ["h1", "h2"]},
            "volumeGroupSnapshotClassName": "fast",
            "volumeGroupSnapshotRef": {"name": "g", "namespace": "ns", "uid": "u"}},
    });
    merge(&mut base, over);
    serde_json::from_value(base).expect("a group content")
}

fn given() -> Value {
    json!({"spec": {"source": {"volumeHandles": null, "groupSnapshotHandles":
        {"volumeGroupSnapshotHandle": "g-1", "volumeSnapshotHandles": ["s1"]}}}})
}

fn bound(over: Value) -> Value {
    let base = json!({"metadata": {"finalizers": [BOUND]},
        "status": {"boundVolumeGroupSnapshotContentName": "groupsnapcontent-u", "readyToUse": false}});
    both(base, over)
}

fn shown(step: &Step) -> String {
    match step {
        Step::Fail(failure) => format!("fail {}", failure.reason),
        Step::Blocked { reason, .. } => format!("blocked {reason}"),
        Step::CopyStatus(copied) => format!("copy {}", copied.patch["status"]),
        Step::Bind(patch) => format!("bind {patch}"),
        other => format!("{other:?}"),
    }
}

#[test]
fn the_next_step_of_a_group_snapshot() {
    let plain = View {
        group: &group(json!({})),
        content: None,
        content_is_live: false,
        class: Class::Known,
        members_missing: false,
        restoring: false,
        members_left: false,
    };
    let ready =
        bound(json!({"status": {"readyToUse": true, "creationTime": "2026-01-01T00:00:00Z"}}));
    let unkept = both(bound(json!({})), json!({"metadata": {"finalizers": []}}));
    let fixed =
        json!({"spec": {"source": {"selector": null, "volumeGroupSnapshotContentName": "kept"}}});
    let free = both(given(), json!({"spec": {"volumeGroupSnapshotRef": {"uid": ""}}}));
    let going = both(bound(json!({})), deleting());
    let marked = json!({"metadata": {"annotations": {DELETED: "yes"}}});
    let retain = json!({"spec": {"deletionPolicy": "Retain"}});
    let has = |over: Value| Some(kept(over));
    type Change = fn(&mut View<'_>);
    let same: Change = |_| ();
    let live: Change = |view| view.content_is_live = true;
    let rows: Vec<(&str, Value, Option<VolumeGroupSnapshotContent>, Change, &str)> = vec![
        ("no class", json!({}), None, |view| view.class = Class::Unnamed, "FindClass"),
        (
            "class is missing",
            json!({}),
            None,
            |view| view.class = Class::Missing,
            "fail GetGroupSnapshotClassFailed",
        ),
        // case: snapshotter/51
        ("new", json!({}), None, same, "CreateContent"),
        (
            "made",
            json!({}),
            has(json!({})),
            same,
            r#"copy {"boundVolumeGroupSnapshotContentName":"groupsnapcontent-u","readyToUse":false}"#,
        ),
        ("bound", unkept, has(json!({})), same, "AddFinalizer"),
        ("waits for the driver", bound(json!({})), has(json!({})), same, "Nothing"),
        (
            "members first",
            bound(json!({})),
            has(json!({})),
            |view| view.members_missing = true,
            "CreateMembers",
        ),
        (
            "another's content",
            json!({}),
            has(json!({"spec": {"volumeGroupSnapshotRef": {"uid": "x"}}})),
            same,
            "fail GroupSnapshotContentMisbound",
        ),
        ("given content", json!({}), has(given()), same, "fail GroupSnapshotHandleSet"),
        ("ready", ready.clone(), has(json!({})), same, "Nothing"),
        ("ready, content lost", ready, None, live, "fail GroupSnapshotContentMissing"),
        ("fixed, missing", fixed.clone(), None, same, "fail GroupSnapshotContentMissing"),
        (
            "fixed, dynamic",
            fixed.clone(),
            has(json!({})),
            same,
            "fail GroupSnapshotContentMismatch",
        ),
        // case: snapshotter/58
        (
            "fixed, free",
            fixed,
            has(free),
            same,
            r#"bind {"spec":{"volumeGroupSnapshotRef":{"uid":"u"}}}"#,
        ),
        // case: snapshotter/56
        ("going", going.clone(), has(json!({})), same, "MarkContent"),
        ("marked", going.clone(), has(marked.clone()), same, "DeleteContent"),
        (
            "content goes",
            going.clone(),
            has(both(marked.clone(), deleting())),
            |view| view.members_left = true,
            "DeleteMembers",
        ),
        (
            "waits for the content",
            going.clone(),
            has(both(marked.clone(), deleting())),
            same,
            "Nothing",
        ),
        ("content not in the cache", going.clone(), None, same, "LookForContent"),
        ("content gone", going.clone(), None, live, "RemoveFinalizer"),
        ("kept by policy", going.clone(), has(both(marked, retain)), same, "RemoveFinalizer"),
        // case: snapshotter/73
        (
            "restoring",
            going,
            has(json!({})),
            |view| view.restoring = true,
            "blocked SnapshotDeletePending",
        ),
    ];
    for (name, over, content, change, want) in rows {
        let group = group(over);
        let mut view = View { group: &group, content: content.as_ref(), ..plain };
        change(&mut view);
        assert_eq!(shown(&decide(&view)), want, "{name}");
    }
}

#[test]
fn the_next_call_for_a_group_content() {
    let ready = json!({"status": {"volumeGroupSnapshotHandle": "g-1", "readyToUse": true,
        "volumeSnapshotInfoList": [{"snapshotHandle": "s1", "volumeHandle": "h1"}]}});
    let note = json!({"metadata": {"annotations": {CREATED: "yes"}}});
    let going = both(deleting(), json!({"metadata": {"annotations": {DELETED: "yes"}}}));
    let error = json!({"status": {"readyToUse": false, "error": {"message": "no"}}});
    let retain = json!({"spec": {"deletionPolicy": "Retain"}});
    let unbound = json!({"spec": {"volumeGroupSnapshotRef": {"uid": ""}}});
    let delete = Next::Delete { handle: "g-1".into(), members: vec!["s1".into()] };
    let find = Next::Find { handle: "g-1".into(), members: vec!["s1".into()] };
    let all =
        |parts: &[&Value]| parts.iter().fold(json!({}), |all, part| both(all, (*part).clone()));
    let rows = [
        ("new", json!({}), Next::Create { first: true }),
        ("refused once", error.clone(), Next::Create { first: false }),
        ("ready", ready.clone(), Next::Nothing),
        ("ready, a note left over", all(&[&ready, &note]), Next::DropNote),
        ("given", given(), find),
        (
            "deleted while it is created",
            all(&[&going, &note, &error]),
            Next::Create { first: false },
        ),
        ("deleted, and refused", all(&[&going, &error]), Next::Release),
        // case: snapshotter/56
        ("deleted", all(&[&going, &ready]), delete.clone()),
        ("deleted, kept by policy", all(&[&going, &ready, &retain]), Next::Release),
        ("deleted while its group lives", all(&[&deleting(), &ready]), Next::Nothing),
        ("given, never bound", all(&[&given(), &unbound, &deleting()]), delete),
        (
            "cleared",
            all(&[&given(), &going, &json!({"status": {"readyToUse": false}})]),
            Next::Release,
        ),
    ];
    for (name, over, want) in rows {
        assert_eq!(sidecar::decide(&kept(over)), want, "{name}");
    }
}

#[test]
fn all_that_the_driver_says_is_one_patch() {
    // case: snapshotter/70
    let info = VolumeSnapshotInfo {
        volume_handle: "h1".into(),
        snapshot_handle: "s1".into(),
        creation_time: Some(5),
        ready_to_use: Some(true),
        restore_size: Some(7),
    };
    let taken = Taken { handle: "g-1".into(), ready: true, cut_at: None, members: vec![info] };
    let list = json!([{"volumeHandle": "h1", "snapshotHandle": "s1", "creationTime": 5, "readyToUse": true, "restoreSize": 7}]);
    let want = json!({"status": {"volumeGroupSnapshotHandle": "g-1", "volumeSnapshotInfoList": list, "readyToUse": true}});
    assert_eq!(described(None, &taken, true), Some(want));
    let has = kept(json!({"status": {"volumeGroupSnapshotHandle": "g-1", "readyToUse": false,
        "volumeSnapshotInfoList": [{"snapshotHandle": "s0"}]}}))
    .status;
    assert_eq!(
        described(has.as_ref(), &taken, true),
        Some(json!({"status": {"readyToUse": true}}))
    );
    assert_eq!(cleared()["status"]["readyToUse"], false);
    let bare = kept(json!({"metadata": {"finalizers": []}})).metadata;
    assert_eq!(begun(&bare, true)["metadata"]["finalizers"].as_array().map(Vec::len), Some(1));
    let said =
        kept(json!({"status": {"readyToUse": true, "creationTime": "2026-01-01T00:00:00Z"}}));
    let copied = copy(&group(bound(json!({}))), &said).expect("news");
    assert!(copied.created && copied.ready);
}

#[test]
fn objects_of_a_group() {
    let class: VolumeGroupSnapshotClass =
        serde_json::from_value(json!({"metadata": {"name": "fast"}, "driver": "d",
        "deletionPolicy": "Retain"}))
        .expect("a class");
    let of = |driver: &str, handle: &str| {
        volume(json!({"spec": {"hostPath": null, "csi": {"driver": driver, "volumeHandle": handle},
            "claimRef": {"name": "data", "namespace": "ns"}}}))
    };
    let group = group(json!({}));
    let made = content(&group, &class, &[of("d", "h2"), of("d", "h1")], None).expect("a content");
    assert_eq!(made["spec"]["source"], json!({"volumeHandles": ["h2", "h1"]}));
    assert_eq!(
        (&made["spec"]["driver"], &made["spec"]["deletionPolicy"]),
        (&json!("d"), &json!("Retain"))
    );
    let error =
        content(&group, &class, &[of("e", "h1")], None).expect_err("another driver's").to_string();
    assert!(error.contains("belongs to driver e"), "{error}");
    assert_eq!(content_name(&group), "groupsnapcontent-u");

    let content = kept(json!({"status": {"volumeGroupSnapshotHandle": "g-1"}}));
    let info = VolumeSnapshotInfo {
        volume_handle: "h1".into(),
        snapshot_handle: "s1".into(),
        ..Default::default()
    };
    let one = member(&group, &content, &info, Some(&of("d", "h1")), None);
    // case: snapshotter/71
    let (snapshot, content_name) = member_names(&"u".into(), &"h1".into());
    assert_eq!(one.snapshot["metadata"]["name"], json!(snapshot));
    assert_eq!(one.content["metadata"]["name"], json!(content_name));
    assert_eq!(one.snapshot["spec"]["source"]["persistentVolumeClaimName"], "data");
    assert_eq!(
        one.snapshot["metadata"]["ownerReferences"][0]["apiVersion"],
        "groupsnapshot.storage.k8s.io/v1"
    );
    assert_eq!(
        one.content["metadata"]["annotations"]["groupsnapshot.storage.k8s.io/volumeGroupSnapshotHandle"],
        "g-1"
    );
    assert_eq!(one.status["status"]["snapshotHandle"], "s1");
    let gone = member(&group, &content, &info, None, None);
    assert_eq!(gone.snapshot["spec"]["source"]["persistentVolumeClaimName"], "");
}

#[test]
fn selectors_as_text() {
    let selector = serde_json::from_value(
        json!({"matchLabels": {"app": "db"}, "matchExpressions": [
        {"key": "tier", "operator": "In", "values": ["a", "b"]}, {"key": "old", "operator": "DoesNotExist"}]}),
    );
    assert_eq!(selector_text(&selector.expect("a selector")), "app=db,tier in (a,b),!old");
}
