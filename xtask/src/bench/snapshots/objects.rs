//! The objects, and what can be seen of a snapshot.

use std::{collections::BTreeMap, time::Instant};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use super::super::{
    http::Server,
    load::{NAMESPACE, send_all},
    seen::{Seen, last},
};

pub(super) const GROUP: &str = "/apis/snapshot.storage.k8s.io/v1";
/// The class of all snapshots here, unless they need none.
pub(super) const CLASS: &str = "bench";

pub(super) fn snapshots() -> String {
    format!("{GROUP}/namespaces/{NAMESPACE}/volumesnapshots")
}

/// What can be seen of a snapshot or its content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Happened {
    Ready,
    Gone,
}

pub(super) fn happened(event: &Value) -> Option<Happened> {
    match event["type"].as_str() {
        Some("DELETED") => Some(Happened::Gone),
        _ => (event["object"]["status"]["readyToUse"] == true).then_some(Happened::Ready),
    }
}

/// The class of a driver's snapshots.
pub(super) fn make_class(server: &Server, driver: &str) -> Result<()> {
    let class = json!({"apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotClass",
        "metadata": {"name": CLASS}, "driver": driver, "deletionPolicy": "Delete"});
    let path = format!("{GROUP}/volumesnapshotclasses");
    server.connect()?.call("POST", &path, Some(&class)).map(drop)
}

pub(super) fn snapshot(name: &str, claim: &str, class: Option<&str>) -> Value {
    let mut snapshot = json!({"apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot",
        "metadata": {"name": name}, "spec": {"source": {"persistentVolumeClaimName": claim}}});
    if let Some(class) = class {
        snapshot["spec"]["volumeSnapshotClassName"] = class.into();
    }
    snapshot
}

/// How long a storm took, in seconds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Storm {
    /// From the first request until the last snapshot was seen ready.
    pub(super) ready: f64,
    /// From the first deletion until the last was seen gone.
    pub(super) gone: f64,
}

/// Takes a snapshot for each name, of the claim at its place in `claims`, over and over; and deletes them.
pub(super) fn storm(
    server: &Server,
    names: &[String],
    claims: &[String],
    class: Option<&str>,
) -> Result<Storm> {
    let place: BTreeMap<&str, &String> = names
        .iter()
        .zip(claims.iter().cycle())
        .map(|(name, claim)| (name.as_str(), claim))
        .collect();
    let path = snapshots();
    let seen = Seen::start(server, &path, happened)?;
    let sent = send_all(server, names, |connection, name| {
        connection.post(&path, &snapshot(name, place[name], class).to_string())
    })?;
    let ready = took(&sent, last(&seen.each(names, Happened::Ready)?)?)?;
    let sent = send_all(server, names, |connection, name| {
        connection.call("DELETE", &format!("{path}/{name}"), None).map(drop)
    })?;
    let gone = took(&sent, last(&seen.each(names, Happened::Gone)?)?)?;
    Ok(Storm { ready, gone })
}

fn took(sent: &[Instant], last: Instant) -> Result<f64> {
    let first = sent.iter().min().context("at least one")?;
    Ok((last - *first).as_secs_f64())
}

/// Claims that are bound to volumes of a driver, without anybody who binds.
pub(super) fn make_bound(
    server: &Server,
    driver: &str,
    names: &[String],
    handles: &[String],
) -> Result<()> {
    let handle: BTreeMap<&str, &String> = names.iter().map(String::as_str).zip(handles).collect();
    let claims = format!("/api/v1/namespaces/{NAMESPACE}/persistentvolumeclaims");
    send_all(server, names, |connection, name| {
        let size = json!({"storage": "1Mi"});
        let claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "metadata": {"name": name}, "spec": {"accessModes": ["ReadWriteOnce"],
                "storageClassName": "none", "volumeName": name, "resources": {"requests": size}}});
        let made = connection.call("POST", &claims, Some(&claim))?;
        let volume = json!({"apiVersion": "v1", "kind": "PersistentVolume",
            "metadata": {"name": name}, "spec": {"capacity": size,
                "accessModes": ["ReadWriteOnce"], "storageClassName": "none",
                "claimRef": {"namespace": NAMESPACE, "name": name, "uid": made["metadata"]["uid"]},
                "csi": {"driver": driver, "volumeHandle": handle[name]}}});
        connection.call("POST", "/api/v1/persistentvolumes", Some(&volume))?;
        let bound = json!({"status": {"phase": "Bound", "accessModes": ["ReadWriteOnce"],
            "capacity": size}});
        connection.call("PATCH", &format!("{claims}/{name}/status"), Some(&bound)).map(drop)
    })
    .map(drop)
}

pub(super) fn numbered(prefix: &str, count: usize) -> Vec<String> {
    (0..count).map(|at| format!("{prefix}-{at}")).collect()
}
