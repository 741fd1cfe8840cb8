use serde_json::{Value, json};

use super::bind::{Class, ContentStep, Group, Step, View, decide, decide_content};
use super::class::{default_class, volume_of};
use super::create::{self, CreateError, Input, claim_lacks_finalizer};
use super::fixtures::{both, content, deleting, pre_provisioned, snapshot};
use super::params::{self, Role};
use super::{content_name, needs_claim, restored_from, status};
use crate::bind::fixtures::{claim, volume};
use crate::model::kinds::{
    Claim, Node, Volume, VolumeGroupSnapshot, VolumeSnapshot, VolumeSnapshotClass,
    VolumeSnapshotContent,
};

const SOURCE: &str = "snapshot.storage.kubernetes.io/volumesnapshot-as-source-protection";
const BOUND: &str = "snapshot.storage.kubernetes.io/volumesnapshot-bound-protection";
const IN_GROUP: &str = "snapshot.storage.kubernetes.io/volumesnapshot-in-group-protection";
const DELETED: &str = "snapshot.storage.kubernetes.io/volumesnapshot-being-deleted";

fn shown(step: &Step) -> String {
    let last = |all: &[&str]| {
        let word =
            |one: &&str| one.rsplit('/').next().map(|word| word.replace("volumesnapshot-", ""));
        all.iter().filter_map(word).collect::<Vec<_>>().join("+")
    };
    match step {
        Step::Nothing => "nothing".into(),
        Step::FindClass => "find class".into(),
        Step::AddFinalizers(all) => format!("add {}", last(all)),
        Step::CreateContent => "create".into(),
        Step::Bind(patch) => format!("bind {patch}"),
        Step::AddOwner(patch) => format!("own {}", patch["metadata"]["ownerReferences"]),
        Step::CopyStatus(copied) => format!("copy {}", copied.patch["status"]),
        Step::LookForContent => "look".into(),
        Step::MarkContent => "mark".into(),
        Step::DeleteContent => "delete".into(),
        Step::RemoveFinalizers(all) => format!("remove {}", last(all)),
        Step::Blocked { reason, .. } => format!("blocked {reason}"),
        Step::Wait(_) => "wait".into(),
        Step::Fail(failure) => {
            format!("fail {}{}", failure.reason, if failure.unready { " unready" } else { "" })
        }
    }
}

/// All that a view has but snapshot and content.
#[derive(Clone, Copy)]
struct Around(Class, Group<'static>, bool, bool);

/// A known class, no group, nothing restoring; the cache is all that was asked.
const PLAIN: Around = Around(Class::Known, Group::None, false, false);
/// The API was asked for the content.
const LIVE: Around = Around(Class::Known, Group::None, false, true);

fn next(
    snapshot: &VolumeSnapshot,
    content: Option<&VolumeSnapshotContent>,
    around: Around,
) -> String {
    let Around(class, group, restoring, content_is_live) = around;
    let parent = None;
    shown(&decide(&View { snapshot, content, content_is_live, class, group, parent, restoring }))
}

fn bound(over: Value) -> Value {
    let status =
        json!({"status": {"boundVolumeSnapshotContentName": "snapcontent-u", "readyToUse": false}});
    both(both(json!({"metadata": {"finalizers": [SOURCE, BOUND]}}), status), over)
}

fn ready() -> Value {
    bound(json!({"status": {"readyToUse": true, "creationTime": "2026-01-01T00:00:00Z"}}))
}

#[test]
fn a_dynamic_snapshot() {
    let bare = json!({"metadata": {"finalizers": []}});
    let foreign = json!({"spec": {"volumeSnapshotRef": {"uid": "other"}}});
    let given = json!({"spec": {"source": {"volumeHandle": null, "snapshotHandle": "s"}}});
    let two = json!({"spec": {"source": {"snapshotHandle": "s"}}});
    let sources = json!({"spec": {"source": {"volumeSnapshotContentName": "x"}}});
    let fresh = || Some(content(json!({})));
    let unknown = Around(Class::Unnamed, Group::None, false, false);
    let missing = Around(Class::Missing, Group::None, false, false);
    let cut = bound(json!({"status": {"creationTime": "2026-01-01T00:00:00Z"}}));
    let rows = [
        // case: snapshotter/7
        ("no class", json!({}), None, unknown, "find class"),
        // case: snapshotter/10
        ("class is missing", json!({}), None, missing, "fail GetSnapshotClassFailed"),
        ("new", bare, None, PLAIN, "add as-source-protection"),
        // case: snapshotter/5
        ("kept", json!({}), None, PLAIN, "create"),
        ("two sources", sources, None, PLAIN, "fail SnapshotValidationError unready"),
        (
            "content there",
            json!({}),
            fresh(),
            PLAIN,
            r#"copy {"boundVolumeSnapshotContentName":"snapcontent-u","readyToUse":false}"#,
        ),
        (
            "bound",
            both(bound(json!({})), json!({"metadata": {"finalizers": [SOURCE]}})),
            fresh(),
            PLAIN,
            "add bound-protection",
        ),
        ("waits for the driver", bound(json!({})), fresh(), PLAIN, "nothing"),
        (
            "another's content",
            json!({}),
            Some(content(foreign.clone())),
            PLAIN,
            "fail SnapshotContentMisbound unready",
        ),
        (
            "no dynamic content",
            json!({}),
            Some(content(given)),
            PLAIN,
            "fail SnapshotContentMismatch unready",
        ),
        ("two handles", json!({}), Some(content(two)), PLAIN, "fail SnapshotHandleSet unready"),
        ("ready", ready(), fresh(), PLAIN, "nothing"),
        // case: snapshotter/34
        ("ready, content not in the cache", ready(), None, PLAIN, "look"),
        ("ready, content lost", ready(), None, LIVE, "fail SnapshotContentMissing unready"),
        ("cut once, content lost", cut, None, LIVE, "fail SnapshotContentMissing unready"),
        ("never cut, content lost", bound(json!({})), None, LIVE, "create"),
        // case: snapshotter/35
        (
            "ready, misbound",
            ready(),
            Some(content(foreign)),
            PLAIN,
            "fail SnapshotMisbound unready",
        ),
    ];
    for (name, over, content, around, want) in rows {
        assert_eq!(next(&snapshot(over), content.as_ref(), around), want, "{name}");
    }
}

#[test]
fn a_pre_provisioned_snapshot() {
    let free = json!({"spec": {"volumeSnapshotRef": {"uid": ""}}});
    let dynamic = json!({"spec": {"source": {"volumeHandle": "h", "snapshotHandle": null}}});
    let other = json!({"spec": {"volumeSnapshotRef": {"uid": "other"}}});
    let classless = json!({"spec": {"volumeSnapshotClassName": null}});
    let rows = [
        // case: snapshotter/25
        ("free", free, r#"bind {"spec":{"volumeSnapshotRef":{"uid":"u"}}}"#),
        ("classless", classless.clone(), r#"bind {"spec":{"volumeSnapshotClassName":"fast"}}"#),
        (
            "bound",
            json!({}),
            r#"copy {"boundVolumeSnapshotContentName":"kept","readyToUse":false}"#,
        ),
        // case: snapshotter/27
        ("another's", other, "fail SnapshotContentMisbound unready"),
        // case: snapshotter/28
        ("dynamic", dynamic, "fail SnapshotContentMismatch unready"),
    ];
    for (name, over, want) in rows {
        let (snapshot, content) = pre_provisioned(json!({}), over);
        assert_eq!(next(&snapshot, Some(&content), PLAIN), want, "{name}");
    }
    let (snapshot, content) = pre_provisioned(classless.clone(), classless);
    // case: snapshotter/26
    assert_eq!(next(&snapshot, None, PLAIN), "fail SnapshotContentMissing unready");
    let unnamed = Around(Class::Unnamed, Group::None, false, false);
    assert!(next(&snapshot, Some(&content), unnamed).starts_with("copy"), "neither needs a class");
    assert_eq!(content_name(&snapshot), "kept");
}

#[test]
fn a_member_of_a_group() {
    let owner = |version: &str| {
        json!({"metadata": {"finalizers": [SOURCE, IN_GROUP], "ownerReferences": [
        {"apiVersion": format!("groupsnapshot.storage.k8s.io/{version}"), "kind": "VolumeGroupSnapshot", "name": "g", "uid": "ug"}]}})
    };
    let status = json!({"status": {"boundVolumeSnapshotContentName": "snapcontent-m"}});
    let content = content(json!({"metadata": {"name": "snapcontent-m"},
        "status": {"volumeGroupSnapshotHandle": "gh", "readyToUse": true}}));
    let in_group = Around(Class::Unnamed, Group::Known("g"), false, false);
    for version in ["v1", "v1beta2", "v1beta1"] {
        let fresh = snapshot(owner(version));
        assert_eq!(next(&fresh, None, in_group), "nothing", "{version}");
        let member = snapshot(both(owner(version), status.clone()));
        assert_eq!(content_name(&member), "snapcontent-m");
        let want = r#"copy {"readyToUse":true,"volumeGroupSnapshotName":"g"}"#;
        assert_eq!(next(&member, Some(&content), in_group), want, "{version}");
        let lost = Around(Class::Unnamed, Group::Missing, false, false);
        assert_eq!(next(&member, Some(&content), lost), "wait", "{version}");
    }
    // case: snapshotter/55
    let going = snapshot(both(both(owner("v1"), status), deleting()));
    assert_eq!(next(&going, Some(&content), in_group), "blocked SnapshotDeletePending");
    let with_it = Around(Class::Unnamed, Group::Going, false, false);
    assert_eq!(next(&going, Some(&content), with_it), "nothing");
    let unknown = Around(Class::Unnamed, Group::Unknown, false, false);
    assert_eq!(next(&going, Some(&content), unknown), "wait");
    let gone = Around(Class::Unnamed, Group::Missing, false, true);
    assert_eq!(next(&going, None, gone), "remove as-source-protection+in-group-protection");
}

#[test]
fn member_that_was_there_already_gets_its_group_for_an_owner() {
    let named = json!({"status": {"volumeGroupSnapshotName": "g",
        "boundVolumeSnapshotContentName": "kept", "readyToUse": true}});
    let group = json!({"metadata": {"name": "g", "namespace": "ns", "uid": "ug"}});
    let group: VolumeGroupSnapshot = serde_json::from_value(group).expect("a group snapshot");
    let next = |over: Value, parent: Option<&VolumeGroupSnapshot>| {
        let over = both(json!({"metadata": {"finalizers": [SOURCE, BOUND]}}), over);
        let (snapshot, content) = pre_provisioned(over, json!({}));
        shown(&decide(&View {
            snapshot: &snapshot,
            content: Some(&content),
            content_is_live: false,
            class: Class::Known,
            group: Group::Known("g"),
            parent,
            restoring: false,
        }))
    };
    let other = json!({"metadata": {"ownerReferences": [
        {"apiVersion": "v1", "kind": "ConfigMap", "name": "c", "uid": "uc"}]}});
    let owned = json!({"metadata": {"ownerReferences": [{"name": "g", "uid": "ug",
        "apiVersion": "groupsnapshot.storage.k8s.io/v1", "kind": "VolumeGroupSnapshot"}]}});
    let reference = r#"{"apiVersion":"groupsnapshot.storage.k8s.io/v1","kind":"VolumeGroupSnapshot","name":"g","uid":"ug"}"#;
    let kept = r#"{"apiVersion":"v1","kind":"ConfigMap","name":"c","uid":"uc"}"#;
    // case: snapshotter/58
    assert_eq!(next(named.clone(), Some(&group)), format!("own [{reference}]"));
    assert_eq!(
        next(both(named.clone(), other), Some(&group)),
        format!("own [{kept},{reference}]"),
        "other owners stay"
    );
    assert_eq!(next(both(named.clone(), owned), Some(&group)), "nothing");
    assert_eq!(next(named.clone(), None), "nothing", "the group snapshot is gone, or goes");
    let unready = both(named, json!({"status": {"readyToUse": false}}));
    assert_eq!(next(unready, Some(&group)), "nothing");
}

#[test]
fn a_snapshot_goes() {
    let going = |over: Value| both(both(bound(json!({})), deleting()), over);
    let marked = json!({"metadata": {"annotations": {DELETED: "yes"}}});
    let retain = json!({"spec": {"deletionPolicy": "Retain"}});
    let restoring = Around(Class::Known, Group::None, true, false);
    let classless = Around(Class::Missing, Group::None, false, false);
    let earlier = json!({"spec": {"volumeSnapshotRef": {"uid": "earlier"}}});
    let rows = [
        // case: snapshotter/36
        ("first", json!({}), Some(json!({})), PLAIN, "mark"),
        ("marked", json!({}), Some(marked.clone()), PLAIN, "delete"),
        (
            "content goes",
            json!({}),
            Some(both(marked.clone(), deleting())),
            PLAIN,
            "remove as-source-protection",
        ),
        (
            "waits for the content",
            json!({"metadata": {"finalizers": [BOUND]}}),
            Some(both(marked.clone(), deleting())),
            PLAIN,
            "nothing",
        ),
        ("content not in the cache", json!({}), None, PLAIN, "look"),
        (
            "content gone",
            json!({"metadata": {"finalizers": [BOUND]}}),
            None,
            LIVE,
            "remove bound-protection",
        ),
        // case: snapshotter/37
        ("kept by policy", json!({}), Some(retain.clone()), PLAIN, "mark"),
        (
            "kept and marked",
            json!({}),
            Some(both(retain, marked)),
            PLAIN,
            "remove as-source-protection+bound-protection",
        ),
        // case: snapshotter/38
        ("restoring", json!({}), Some(json!({})), restoring, "blocked SnapshotDeletePending"),
        ("its class is gone", json!({}), Some(json!({})), classless, "mark"),
        // case: snapshotter/43
        (
            "an earlier one's content",
            json!({}),
            Some(earlier),
            LIVE,
            "remove as-source-protection+bound-protection",
        ),
        ("none of ours", json!({"metadata": {"finalizers": ["foreign"]}}), None, PLAIN, "nothing"),
    ];
    for (name, over, other, around, want) in rows {
        let content = other.map(content);
        assert_eq!(next(&snapshot(going(over)), content.as_ref(), around), want, "{name}");
    }
}

#[test]
fn the_status_follows_the_content() {
    let copied = |snap: Value, said: Value| {
        let copied = status::copy(&snapshot(snap), &content(json!({"status": said})), None);
        copied.map(|copied| (copied.patch["status"].clone(), copied.created, copied.ready))
    };
    let nanos = 1_700_000_000_000_000_000_i64;
    let done = json!({"readyToUse": true, "creationTime": nanos, "restoreSize": 1 << 30, "snapshotHandle": "s"});
    let all = json!({"boundVolumeSnapshotContentName": "snapcontent-u", "creationTime": "2023-11-14T22:13:20Z",
        "readyToUse": true, "restoreSize": "1Gi"});
    // case: snapshotter/33
    assert_eq!(copied(json!({}), done.clone()), Some((all.clone(), true, true)));
    let failed = both(bound(json!({})), json!({"status": {"error": {"message": "no"}}}));
    let want = json!({"creationTime": "2023-11-14T22:13:20Z", "readyToUse": true, "restoreSize": "1Gi", "error": null});
    assert_eq!(copied(failed.clone(), done.clone()), Some((want, true, true)));
    assert_eq!(copied(json!({"status": all}), done), None);
    // case: snapshotter/32
    let said =
        json!({"readyToUse": false, "error": {"message": "no", "time": "2026-01-01T00:00:00Z"}});
    let want = json!({"error": {"message": "no", "time": "2026-01-01T00:00:00Z"}});
    assert_eq!(copied(bound(json!({})), said.clone()), Some((want, false, false)));
    assert_eq!(copied(failed.clone(), said), None, "the same message");
    assert_eq!(
        copied(failed, json!({"readyToUse": false})),
        Some((json!({"error": null}), false, false))
    );
    let zero = bound(json!({"status": {"restoreSize": "0"}}));
    assert_eq!(
        copied(zero, json!({"restoreSize": 5})),
        Some((json!({"restoreSize": "5"}), false, false))
    );
}

#[test]
fn a_bound_content_gets_a_finalizer() {
    let bare = json!({"metadata": {"finalizers": []}});
    let rows = [
        (bare.clone(), ContentStep::AddFinalizer),
        (json!({}), ContentStep::Nothing),
        (both(bare.clone(), deleting()), ContentStep::Nothing),
        (both(bare, json!({"spec": {"volumeSnapshotRef": {"uid": ""}}})), ContentStep::Nothing),
    ];
    for (over, want) in rows {
        assert_eq!(decide_content(&content(over.clone())), want, "{over}");
    }
    let two = content(json!({"spec": {"source": {"snapshotHandle": "s"}}}));
    assert!(matches!(decide_content(&two), ContentStep::Invalid { .. }));
}

fn class(over: Value) -> VolumeSnapshotClass {
    let base = json!({"metadata": {"name": "fast"}, "driver": "d", "deletionPolicy": "Delete"});
    serde_json::from_value(both(base, over)).expect("a class")
}

#[test]
fn only_one_default_class_of_the_driver() {
    let default = |name: &str, driver: &str, word: &str| {
        class(json!({"metadata": {"name": name, "annotations":
            {"snapshot.storage.kubernetes.io/is-default-class": word}}, "driver": driver}))
    };
    let found = |classes: &[VolumeSnapshotClass]| {
        default_class(classes, "d").map(str::to_owned).map_err(|error| error.to_string())
    };
    assert_eq!(found(&[default("a", "d", "true"), default("b", "e", "true")]), Ok("a".into()));
    // case: snapshotter/8
    // case: snapshotter/78
    let two = [default("b", "d", "true"), default("a", "d", "true")];
    assert_eq!(found(&two), Err("2 default snapshot classes were found".into()));
    // case: snapshotter/9
    assert_eq!(
        found(&[default("a", "d", "True")]),
        Err("cannot find default snapshot class".into())
    );
}

fn source() -> (Claim, Volume) {
    let claim = claim(json!({"metadata": {"name": "origin", "namespace": "ns"},
        "spec": {"volumeName": "volume"}, "status": {"phase": "Bound"}}));
    let volume = volume(json!({"spec": {"hostPath": null, "volumeMode": "Block",
        "csi": {"driver": "d", "volumeHandle": "h"},
        "claimRef": {"name": "origin", "namespace": "ns", "uid": "uid-c"}}}));
    (claim, volume)
}

fn made(
    claim: &Claim,
    volume: &Volume,
    class: Option<&VolumeSnapshotClass>,
) -> Result<Value, String> {
    let snapshot = snapshot(json!({}));
    let input = Input {
        snapshot: &snapshot,
        claim,
        volume: Some(volume),
        class,
        keep_mode: true,
        node: None,
    };
    create::content(&input).map_err(|error| error.to_string())
}

#[test]
fn a_content_is_made_of_claim_volume_and_class() {
    let (claim, volume) = source();
    let secrets = class(
        json!({"parameters": {"csi.storage.k8s.io/snapshotter-secret-name": "s-${volumesnapshot.name}",
        "csi.storage.k8s.io/snapshotter-secret-namespace": "${volumesnapshot.namespace}"}}),
    );
    let content = made(&claim, &volume, Some(&secrets)).expect("a content");
    let spec = &content["spec"];
    assert_eq!((&spec["driver"], &spec["deletionPolicy"]), (&json!("d"), &json!("Delete")));
    assert_eq!(
        (&spec["source"], &spec["sourceVolumeMode"]),
        (&json!({"volumeHandle": "h"}), &json!("Block"))
    );
    assert_eq!(content["metadata"]["name"], "snapcontent-u");
    // case: snapshotter/13
    let notes = &content["metadata"]["annotations"];
    assert_eq!(notes["snapshot.storage.kubernetes.io/deletion-secret-name"], "s-snap");
    assert_eq!(notes["snapshot.storage.kubernetes.io/deletion-secret-namespace"], "ns");

    let half = class(json!({"parameters": {"csi.storage.k8s.io/snapshotter-secret-name": "s"}}));
    let tokens = class(json!({"parameters": {"csi.storage.k8s.io/snapshotter-secret-name": "s",
        "csi.storage.k8s.io/snapshotter-secret-namespace": "${volumesnapshot.name}"}}));
    let pending = {
        let mut claim = claim.clone();
        claim.status.phase = "Pending".into();
        claim
    };
    let host_path = super::super::bind::fixtures::volume(
        json!({"spec": {"claimRef": {"name": "origin", "namespace": "ns", "uid": "uid-c"}}}),
    );
    let plain = class(json!({}));
    let rows = [
        (&claim, &volume, Some(&half), "Both must be specified"),
        // case: snapshotter/14
        (&claim, &volume, Some(&tokens), "invalid tokens: [\\\"volumesnapshot.name\\\"]"),
        // case: snapshotter/11
        (&pending, &volume, Some(&plain), "the PVC origin is not yet bound to a PV"),
        (
            &claim,
            &host_path,
            Some(&plain),
            "cannot find CSI PersistentVolumeSource for volume volume",
        ),
        (&claim, &volume, None, "without a snapshot class"),
    ];
    for (claim, volume, class, part) in rows {
        let error = made(claim, volume, class).expect_err(part);
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn the_claim_is_kept_first() {
    let snap = snapshot(json!({}));
    // case: snapshotter/11
    let error = claim_lacks_finalizer(&snap, None).expect_err("no claim").to_string();
    assert!(error.ends_with("cannot get claim from snapshot"), "{error}");
    let (claim, _) = source();
    assert_eq!(claim_lacks_finalizer(&snap, Some(&claim)), Ok(true));
    // case: snapshotter/12
    let mut going = claim;
    going.metadata.deletion_timestamp = snapshot(deleting()).metadata.deletion_timestamp;
    let error = claim_lacks_finalizer(&snap, Some(&going));
    assert!(matches!(error, Err(CreateError::ClaimDeleting { .. })));
    going.metadata.finalizers =
        vec!["snapshot.storage.kubernetes.io/pvc-as-source-protection".into()];
    assert_eq!(claim_lacks_finalizer(&snap, Some(&going)), Ok(false));
    // case: snapshotter/44
    assert!(
        needs_claim(&snap)
            && !needs_claim(&snapshot(ready()))
            && !needs_claim(&snapshot(deleting()))
    );
}

#[test]
fn a_volume_is_its_claims_only_in_both_directions() {
    let (claim, volume) = source();
    assert!(volume_of(&claim, Some(&volume)).is_ok());
    let mut other = volume;
    if let Some(reference) = &mut other.spec.claim_ref {
        reference.uid = "other".into();
    }
    let error = volume_of(&claim, Some(&other)).expect_err("another's").to_string();
    assert_eq!(error, "claim in dataSource not bound or invalid");
}

#[test]
fn claims_that_restore() {
    let source = |field: &str, over: Value| {
        let source = both(
            json!({"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "snap"}),
            over,
        );
        restored_from(&claim(json!({"spec": {field: source}}))).map(|key| key.to_string())
    };
    let here = Some("default/snap".to_owned());
    assert_eq!(source("dataSource", json!({})), here);
    // case: snapshotter/38
    assert_eq!(source("dataSourceRef", json!({})), here, "also without the older field");
    assert_eq!(source("dataSourceRef", json!({"namespace": "other"})), None);
    assert_eq!(source("dataSource", json!({"apiGroup": null})), None);
}

#[test]
fn parameters_and_secrets_of_the_driver() {
    let parameters = |over: Value| class(json!({"parameters": over})).parameters;
    let all =
        parameters(json!({"tier": "cold", "csi.storage.k8s.io/snapshotter-list-secret-name": "x"}));
    assert_eq!(params::for_driver(&all, None), Ok(parameters(json!({"tier": "cold"}))));
    // case: snapshotter/23
    let reference = content(json!({})).spec.volume_snapshot_ref;
    let named = params::for_driver(&parameters(json!({})), Some((&reference, "snapcontent-u")))
        .expect("stripped");
    let want = json!({"csi.storage.k8s.io/volumesnapshot/name": "snap",
        "csi.storage.k8s.io/volumesnapshot/namespace": "ns",
        "csi.storage.k8s.io/volumesnapshotcontent/name": "snapcontent-u"});
    assert_eq!(json!(named), want);
    // case: snapshotter/15
    let unknown = params::for_driver(&parameters(json!({"csi.storage.k8s.io/foo": "1"})), None);
    let error = unknown.expect_err("unknown").to_string();
    assert!(error.contains("found unknown parameter key \"csi.storage.k8s.io/foo\""), "{error}");
    let list = parameters(
        json!({"csi.storage.k8s.io/snapshotter-list-secret-name": "l-${volumesnapshotcontent.name}",
        "csi.storage.k8s.io/snapshotter-list-secret-namespace": "secrets"}),
    );
    let secret =
        params::secret(Role::List, &list, "kept", None).expect("resolved").expect("a secret");
    assert_eq!((secret.name.as_str(), secret.namespace.as_str()), ("l-kept", "secrets"));
    // case: snapshotter/24
    let uid = "7bb2e0f5-1f1a-4e5e-9a0e-0c5a0d5f1c11".into();
    assert_eq!(
        params::request_name("snapshot", &uid, Some(8)).as_deref(),
        Some("snapshot-7bb2e0f5")
    );
    let (name, namespace) = ("n", "ns");
    let noted = |over: Value| {
        params::noted_secret(
            &content(json!({"metadata": {"annotations": over}})).metadata,
            name,
            namespace,
        )
    };
    assert_eq!(noted(json!({"n": "a"})), Ok(None));
    assert!(noted(json!({"n": "a", "ns": ""})).is_err());
    assert!(noted(json!({"n": "a", "ns": "b"})).is_ok_and(|secret| secret.is_some()));
}

#[test]
fn the_managing_node_can_reach_the_volume() {
    // case: snapshotter/48
    let node = |name: &str| -> Node {
        serde_json::from_value(json!({"metadata": {"name": name, "labels": {"host": name}}}))
            .expect("a node")
    };
    let nodes = [node("c"), node("b"), node("a")];
    let at = |hosts: Value| {
        volume(json!({"spec": {"nodeAffinity": {"required": {"nodeSelectorTerms": [
            {"matchExpressions": [{"key": "host", "operator": "In", "values": hosts}]}]}}}}))
    };
    let found =
        |volume: &Volume| create::managing_node(volume, &nodes).map(|node| node.to_string());
    assert_eq!(found(&at(json!(["c", "b"]))).as_deref(), Some("b"));
    assert_eq!(found(&at(json!(["z"]))), None);
    assert_eq!(found(&volume(json!({}))), None);
}
