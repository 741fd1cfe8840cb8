use serde_json::{Value, json};

use super::fixtures::{both, content, deleting};
use super::sidecar::{Next, decide, serves, worth_a_look};
use super::writes::{Taken, begun, cleared, described, failed, without_finalizers};
use crate::model::kinds::VolumeSnapshotClass;

const CREATED: &str = "snapshot.storage.kubernetes.io/volumesnapshot-being-created";
const DELETED: &str = "snapshot.storage.kubernetes.io/volumesnapshot-being-deleted";

fn note(key: &str) -> Value {
    json!({"metadata": {"annotations": {key: "yes"}}})
}

/// A content whose snapshot the driver has already.
fn given() -> Value {
    json!({"spec": {"source": {"volumeHandle": null, "snapshotHandle": "s-1"}}})
}

fn unbound() -> Value {
    both(
        given(),
        json!({"metadata": {"finalizers": []}, "spec": {"volumeSnapshotRef": {"uid": ""}}}),
    )
}

fn status(over: Value) -> Value {
    json!({"status": both(json!({"snapshotHandle": "s-1", "readyToUse": false}), over)})
}

fn shown(next: &Next) -> String {
    match next {
        Next::Nothing => "nothing".into(),
        Next::Release => "release".into(),
        Next::Delete { handle } => format!("delete {handle}"),
        Next::Create { first: true } => "create".into(),
        Next::Create { first: false } => "create again".into(),
        Next::Find { handle } => format!("find {handle}"),
        Next::DropNote => "drop note".into(),
    }
}

#[test]
fn the_next_call() {
    let ready = status(json!({"readyToUse": true}));
    let error = json!({"status": {"readyToUse": false, "error": {"message": "no"}}});
    let member = json!({"metadata": {"annotations": {"groupsnapshot.storage.k8s.io/volumeGroupSnapshotHandle": "g"}}});
    let in_group = status(json!({"volumeGroupSnapshotHandle": "g"}));
    let going = both(deleting(), note(DELETED));
    let retain = json!({"spec": {"deletionPolicy": "Retain"}});
    let all =
        |parts: &[&Value]| parts.iter().fold(json!({}), |all, part| both(all, (*part).clone()));
    let rows = [
        ("new", json!({}), "create"),
        // case: snapshotter/17
        ("not ready yet", status(json!({})), "create again"),
        // case: snapshotter/18
        ("refused once", error.clone(), "create again"),
        // case: snapshotter/16
        ("ready", ready.clone(), "nothing"),
        ("ready, and a note is left over", all(&[&ready, &note(CREATED)]), "drop note"),
        // case: snapshotter/25
        ("given, unbound", unbound(), "find s-1"),
        ("given, refused once", all(&[&given(), &error]), "find s-1"),
        // case: snapshotter/52
        ("member", member.clone(), "nothing"),
        ("member with handles", all(&[&member, &in_group]), "find s-1"),
        ("member, going", all(&[&member, &in_group, &going]), "release"),
        // case: snapshotter/20
        ("deleted while it is created", all(&[&going, &note(CREATED)]), "create"),
        ("deleted after no verdict", all(&[&going, &note(CREATED), &error]), "create again"),
        // case: snapshotter/21
        ("deleted, and the create was refused", all(&[&going, &error]), "release"),
        // case: snapshotter/36
        ("deleted, ready", all(&[&going, &ready]), "delete s-1"),
        // case: snapshotter/75
        ("deleted, not ready", all(&[&going, &status(json!({}))]), "delete s-1"),
        // case: snapshotter/37
        ("deleted, kept by policy", all(&[&going, &ready, &retain]), "release"),
        // case: snapshotter/42
        ("deleted while its snapshot lives", all(&[&deleting(), &ready]), "nothing"),
        ("deleted before the first call", deleting(), "nothing"),
        ("given, never bound, no finalizer", all(&[&unbound(), &deleting(), &retain]), "nothing"),
        // case: snapshotter/66
        ("given, never asked about", all(&[&unbound(), &deleting()]), "delete s-1"),
        ("given, asked about in vain", all(&[&unbound(), &deleting(), &error]), "delete s-1"),
        // case: snapshotter/40
        ("cleared", all(&[&given(), &going, &json!({"status": {"readyToUse": false}})]), "release"),
        (
            "cleared, never bound",
            all(&[&unbound(), &deleting(), &json!({"status": {"readyToUse": false}})]),
            "nothing",
        ),
    ];
    for (name, over, want) in rows {
        assert_eq!(shown(&decide(&content(over))), want, "{name}");
    }
}

#[test]
fn contents_of_other_drivers_are_not_served() {
    let class = |driver: &str| VolumeSnapshotClass { driver: driver.into(), ..Default::default() };
    let without_source = json!({"spec": {"source": {"volumeHandle": null}}});
    let rows = [
        ("its own", json!({}), Some("d"), true),
        ("no class", json!({}), None, true),
        // case: snapshotter/45
        ("another driver's", json!({"spec": {"driver": "e"}}), None, false),
        ("another driver's class", json!({}), Some("e"), false),
        ("nothing to take it of", without_source, None, false),
    ];
    for (name, over, of, want) in rows {
        let class = of.map(class);
        assert_eq!(serves("d", &content(over), class.as_ref()), want, "{name}");
    }
}

#[test]
fn changes_that_call_for_work() {
    // case: snapshotter/46
    let rows = [
        ("status", json!({"status": {"snapshotHandle": "s"}}), false),
        ("finalizers", json!({"metadata": {"finalizers": ["x"], "resourceVersion": "10"}}), false),
        ("our note", note(CREATED), false),
        ("going", note(DELETED), true),
        ("deleted", deleting(), true),
        ("ready", status(json!({"readyToUse": true})), true),
        ("policy", json!({"spec": {"deletionPolicy": "Retain"}}), true),
        ("label", json!({"metadata": {"labels": {"poke": "1"}}}), true),
    ];
    for (name, over, want) in rows {
        assert_eq!(worth_a_look(&content(json!({})), &content(over)), want, "{name}");
    }
    // The controller makes the content of a member, and then says which snapshot it is.
    let member = json!({"metadata": {"annotations":
        {"groupsnapshot.storage.k8s.io/volumeGroupSnapshotHandle": "g-1"}}});
    let known = both(member.clone(), status(json!({"volumeGroupSnapshotHandle": "g-1"})));
    assert!(worth_a_look(&content(member), &content(known)));
}

#[test]
fn the_status_after_a_response() {
    let taken = Taken { handle: "s".into(), ready: true, cut_at: 5, size: Some(7), group: None };
    let has = |status: Value| content(json!({"status": status})).status;
    let error = json!({"message": "no"});
    let rows = [
        (
            "first",
            None,
            Some(
                json!({"snapshotHandle": "s", "creationTime": 5, "restoreSize": 7, "readyToUse": true}),
            ),
        ),
        (
            "ready now",
            has(
                json!({"snapshotHandle": "s", "creationTime": 5, "restoreSize": 7, "readyToUse": false, "error": error}),
            ),
            Some(json!({"readyToUse": true, "error": null})),
        ),
        (
            "set once",
            has(
                json!({"snapshotHandle": "old", "creationTime": 1, "restoreSize": 1, "readyToUse": true}),
            ),
            None,
        ),
    ];
    for (name, has, want) in rows {
        let want = want.map(|status| json!({"status": status}));
        assert_eq!(described(has.as_ref(), &taken), want, "{name}");
    }
    let waits = Taken { ready: false, size: None, ..taken };
    let refused = has(json!({"error": error, "readyToUse": false}));
    let want = json!({"status": {"snapshotHandle": "s", "creationTime": 5}});
    assert_eq!(
        described(refused.as_ref(), &waits),
        Some(want),
        "the error stays until it is ready"
    );
    // case: snapshotter/22
    let shown = refused.as_ref().and_then(|status| status.error.as_ref());
    assert_eq!(failed(shown, "no", "now"), None);
    assert!(failed(shown, "other", "now").is_some());
    assert_eq!(cleared()["status"]["snapshotHandle"], Value::Null);
}

#[test]
fn a_guarded_content_gets_its_finalizer_with_the_note() {
    let bare = content(json!({"metadata": {"finalizers": ["foreign"]}})).metadata;
    assert_eq!(begun(&bare, false)["metadata"]["finalizers"], Value::Null);
    let guarded = begun(&bare, true);
    assert_eq!(guarded["metadata"]["finalizers"].as_array().map(Vec::len), Some(2));
    assert_eq!(guarded["metadata"]["resourceVersion"], "9");
    let has = content(json!({})).metadata;
    assert_eq!(begun(&has, true)["metadata"]["finalizers"], Value::Null, "it has one");
    let all = content(json!({"metadata": {"finalizers": ["a", "b"]}})).metadata;
    assert_eq!(without_finalizers(&all, &["a"])["metadata"]["finalizers"], json!(["b"]));
}
