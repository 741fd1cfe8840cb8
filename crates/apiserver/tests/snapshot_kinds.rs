//! The kinds for snapshots that every server starts with: their rules, and whose they are.
#![allow(clippy::unwrap_used, reason = "tests")]

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use longshore_apiserver::{ApiServer, Config};
use serde_json::{Value, json};

const SNAPSHOT: &str = "snapshot.storage.k8s.io";
const GROUP: &str = "groupsnapshot.storage.k8s.io";

fn api(server: &ApiServer, group: &str, version: &str, kind: &str) -> Api<DynamicObject> {
    let kind = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
    if kind.kind == "VolumeSnapshot" || kind.kind == "VolumeGroupSnapshot" {
        return Api::namespaced_with(server.client(), "default", &kind);
    }
    Api::all_with(server.client(), &kind)
}

fn object(api: &Api<DynamicObject>, name: &str, rest: Value) -> DynamicObject {
    // The path names group and version, so the object need not know them from elsewhere.
    let parts: Vec<&str> = api.resource_url().trim_start_matches("/apis/").split('/').collect();
    let kinds = [
        ("volumesnapshots", "VolumeSnapshot"),
        ("volumesnapshotcontents", "VolumeSnapshotContent"),
        ("volumesnapshotclasses", "VolumeSnapshotClass"),
        ("volumegroupsnapshots", "VolumeGroupSnapshot"),
        ("volumegroupsnapshotcontents", "VolumeGroupSnapshotContent"),
        ("volumegroupsnapshotclasses", "VolumeGroupSnapshotClass"),
    ];
    let kind = kinds.iter().find(|(plural, _)| parts.last() == Some(plural)).unwrap().1;
    let mut all = json!({"apiVersion": format!("{}/{}", parts[0], parts[1]), "kind": kind,
        "metadata": {"name": name}});
    all.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
    serde_json::from_value(all).unwrap()
}

async fn create(api: &Api<DynamicObject>, name: &str, rest: Value) -> Result<(), String> {
    let made = api.create(&PostParams::default(), &object(api, name, rest)).await;
    made.map(drop).map_err(|error| error.to_string())
}

async fn patch(api: &Api<DynamicObject>, name: &str, change: Value) -> Result<(), String> {
    let done = api.patch(name, &PatchParams::default(), &Patch::Merge(change)).await;
    done.map(drop).map_err(|error| error.to_string())
}

/// The word of an answer that must be a refusal.
fn refused(result: Result<(), String>, why: &str) {
    let error = result.expect_err(why);
    assert!(error.contains(why), "{error:?} does not say {why:?}");
}

/// case: snapshotter/1, snapshotter/2
#[tokio::test]
async fn a_snapshot_has_one_source_for_ever() {
    let server = ApiServer::open(Config::memory()).await.unwrap();
    let snapshots = api(&server, SNAPSHOT, "v1", "VolumeSnapshot");
    let (claim, content) = ("persistentVolumeClaimName", "volumeSnapshotContentName");
    let one = "exactly one of volumeSnapshotContentName and persistentVolumeClaimName must be set";
    let source = |source: Value| json!({"spec": {"source": source}});
    refused(create(&snapshots, "both", source(json!({claim: "a", content: "b"}))).await, one);
    refused(create(&snapshots, "none", source(json!({}))).await, one);
    create(&snapshots, "s", source(json!({claim: "a"}))).await.unwrap();
    refused(
        patch(&snapshots, "s", source(json!({claim: "b"}))).await,
        "persistentVolumeClaimName is immutable",
    );
    refused(
        patch(&snapshots, "s", source(json!({claim: null, content: "c"}))).await,
        "persistentVolumeClaimName is required once set",
    );
    let class = |name: &str| json!({"spec": {"volumeSnapshotClassName": name}});
    refused(
        patch(&snapshots, "s", class("")).await,
        "volumeSnapshotClassName must not be the empty string when set",
    );
    patch(&snapshots, "s", class("fast")).await.unwrap();
    patch(&snapshots, "s", class("slow")).await.unwrap();
}

/// case: snapshotter/3
#[tokio::test]
async fn a_content_belongs_to_a_named_snapshot() {
    let server = ApiServer::open(Config::memory()).await.unwrap();
    let contents = api(&server, SNAPSHOT, "v1", "VolumeSnapshotContent");
    let spec = |reference: Value| {
        json!({"spec": {"driver": "d", "deletionPolicy": "Delete", "sourceVolumeMode": "Block",
            "source": {"volumeHandle": "h"}, "volumeSnapshotRef": reference}})
    };
    refused(
        create(&contents, "c", spec(json!({"name": "s"}))).await,
        "both spec.volumeSnapshotRef.name and spec.volumeSnapshotRef.namespace must be set",
    );
    create(&contents, "c", spec(json!({"name": "s", "namespace": "default"}))).await.unwrap();
    let mode = |mode: Value| json!({"spec": {"sourceVolumeMode": mode}});
    refused(
        patch(&contents, "c", mode(json!("Filesystem"))).await,
        "sourceVolumeMode is immutable",
    );
    refused(
        patch(&contents, "c", mode(Value::Null)).await,
        "sourceVolumeMode is required once set",
    );
    let size = json!({"status": {"restoreSize": -1}});
    let done =
        contents.patch_status("c", &PatchParams::default(), &Patch::Merge(size)).await.map(drop);
    refused(
        done.map_err(|error| error.to_string()),
        "restoreSize in body should be greater than or equal to 0",
    );
}

/// case: snapshotter/4
#[tokio::test]
async fn a_group_content_keeps_its_owner() {
    let server = ApiServer::open(Config::memory()).await.unwrap();
    let contents = api(&server, GROUP, "v1", "VolumeGroupSnapshotContent");
    let spec = json!({"spec": {"driver": "d", "deletionPolicy": "Retain",
        "volumeGroupSnapshotClassName": "fast", "source": {"volumeHandles": ["a", "b"]},
        "volumeGroupSnapshotRef": {"name": "g", "namespace": "default"}}});
    create(&contents, "c", spec).await.unwrap();
    let uid = |uid: &str| json!({"spec": {"volumeGroupSnapshotRef": {"uid": uid}}});
    patch(&contents, "c", uid("first")).await.unwrap();
    refused(
        patch(&contents, "c", uid("second")).await,
        "volumeGroupSnapshotRef.uid is immutable once set",
    );
    refused(
        patch(&contents, "c", json!({"spec": {"volumeGroupSnapshotClassName": "slow"}})).await,
        "volumeGroupSnapshotClassName is immutable once set",
    );
    // All three versions are served, and they are one object.
    for version in ["v1beta1", "v1beta2"] {
        let same = api(&server, GROUP, version, "VolumeGroupSnapshotContent");
        assert_eq!(same.get("c").await.unwrap().data["spec"]["driver"], "d");
    }
}

/// Members as a client of this version writes them, and their field.
fn members(version: &str) -> (&'static str, Value) {
    match version {
        "v1beta1" => (
            "volumeSnapshotHandlePairList",
            json!([{"volumeHandle": "a", "snapshotHandle": "s-a"}, {"volumeHandle": "b", "snapshotHandle": "s-b"}]),
        ),
        _ => (
            "volumeSnapshotInfoList",
            json!([
                {"volumeHandle": "a", "snapshotHandle": "s-a", "creationTime": 7, "readyToUse": true, "restoreSize": 9},
                {"volumeHandle": "b", "snapshotHandle": "s-b", "creationTime": 8, "readyToUse": false, "restoreSize": 5},
            ]),
        ),
    }
}

/// case: snapshotter/61, snapshotter/65
#[tokio::test]
async fn members_of_a_group_are_the_same_in_every_version() {
    const VERSIONS: [&str; 3] = ["v1", "v1beta2", "v1beta1"];
    let server = ApiServer::open(Config::memory()).await.unwrap();
    let of = |version: &str| api(&server, GROUP, version, "VolumeGroupSnapshotContent");
    let spec = json!({"spec": {"driver": "d", "deletionPolicy": "Retain",
        "source": {"volumeHandles": ["a", "b"]},
        "volumeGroupSnapshotRef": {"name": "g", "namespace": "default"}}});
    for written in VERSIONS {
        create(&of(written), written, spec.clone()).await.unwrap();
        let (field, list) = members(written);
        let status = json!({"status": {"readyToUse": true, field: list}});
        let params = PatchParams::default();
        of(written).patch_status(written, &params, &Patch::Merge(status)).await.unwrap();
        for read in VERSIONS {
            // Another client of that version changes something else meanwhile.
            let labels = json!({"metadata": {"labels": {read: "seen"}}});
            patch(&of(read), written, labels).await.unwrap();
            let found = of(read).get(written).await.unwrap();
            let (field, mut want) = members(read);
            if written == "v1beta1" {
                want = members(written).1;
            }
            assert_eq!(found.data["status"][field], want, "{written} read as {read}");
            let fields = found.data["status"].as_object().unwrap().len();
            assert_eq!(fields, 2, "{written} read as {read}: {}", found.data);
            let listed = of(read).list(&kube::api::ListParams::default()).await.unwrap();
            let same = listed.items.iter().find(|one| one.metadata.name == found.metadata.name);
            assert_eq!(same.unwrap().data, found.data, "{written} listed as {read}");
        }
        let back = of(written).get(written).await.unwrap();
        assert_eq!(back.data["status"][field], members(written).1, "{written} there and back");
    }
    // A client of v1beta1 that writes what it read loses nothing of what it was not shown.
    let old = of("v1beta1");
    let read = old.get("v1").await.unwrap();
    old.replace("v1", &PostParams::default(), &read).await.unwrap();
    old.replace_status("v1", &PostParams::default(), &old.get("v1").await.unwrap()).await.unwrap();
    let found = of("v1").get("v1").await.unwrap();
    assert_eq!(found.data["status"]["volumeSnapshotInfoList"], members("v1").1);
    assert!(found.metadata.annotations.unwrap_or_default().is_empty());
    of("v1alpha1").get("v1").await.expect_err("no such version");
}

async fn note(server: &ApiServer, name: &str) -> (i64, String) {
    let definitions: Api<CustomResourceDefinition> = Api::all(server.client());
    let found = definitions.get(name).await.unwrap().metadata;
    let notes = found.annotations.unwrap_or_default();
    (found.generation.unwrap(), notes.get("longshore.dev/made-from").cloned().unwrap_or_default())
}

#[tokio::test]
async fn an_old_definition_is_renewed_and_a_changed_one_is_left_alone() {
    let dir = tempfile::Builder::new().prefix("longshore-kinds-").tempdir().unwrap();
    let (old, theirs) = (
        "volumesnapshots.snapshot.storage.k8s.io",
        "volumesnapshotclasses.snapshot.storage.k8s.io",
    );
    let server = ApiServer::open(Config::at(dir.path())).await.unwrap();
    let (_, current) = note(&server, old).await;
    let definitions: Api<CustomResourceDefinition> = Api::all(server.client());
    // As an earlier release would have left one, and as a user would change the other.
    let short = |note: &str| {
        json!({"metadata": {"annotations": {"longshore.dev/made-from": note}},
            "spec": {"names": {"shortNames": ["short"]}}})
    };
    for name in [old, theirs] {
        let change = Patch::Merge(short(if name == old { "0123/2" } else { "0123/1" }));
        definitions.patch(name, &PatchParams::default(), &change).await.unwrap();
    }
    server.shutdown().await;
    drop((definitions, server));

    for _ in 0..2 {
        let server = ApiServer::open(Config::at(dir.path())).await.unwrap();
        let renewed = current.split('/').next().unwrap();
        assert_eq!(note(&server, old).await, (3, format!("{renewed}/3")));
        assert_eq!(note(&server, theirs).await, (2, "0123/1".to_owned()));
        server.shutdown().await;
    }
}
