//! The actual state, read past all wires: the API's objects and the driver's volumes.

use bytes::Bytes;
use futures::FutureExt;
use http::Request;
use http_body_util::{BodyExt, Empty};
use longshore_apiserver::ApiServer;
use longshore_apiserver::auth::{Identity, MASTERS};
use longshore_apiserver::http::Service;
use longshore_core::model::Kind;
use longshore_core::model::kinds::{
    Claim, ConfigMap, Pod, Volume, VolumeAttachment, VolumeGroupSnapshot,
    VolumeGroupSnapshotContent, VolumeSnapshot, VolumeSnapshotContent,
};
use longshore_csi::fake::Driver;
use serde_json::Value;

use crate::INTENTS;
use crate::checks::BY_HAND;

/// Reads both sides at once, without waiting: no time passes between request and response.
#[derive(Clone)]
pub struct Truth {
    service: Service,
    driver: Driver,
    /// The programs for snapshots run, so that those are theirs to delete.
    snapshots: bool,
}

impl Truth {
    pub(crate) fn new(server: &ApiServer, driver: &Driver, snapshots: bool) -> Self {
        let service = server.service_as(Identity::new("truth", [MASTERS]));
        Self { service, driver: driver.clone(), snapshots }
    }

    #[must_use]
    pub fn driver(&self) -> &Driver {
        &self.driver
    }

    /// All objects of a kind.
    #[must_use]
    pub fn list<T: Kind>(&self) -> Vec<Value> {
        let version = T::VERSION;
        let base = match T::GROUP {
            "" => format!("/api/{version}"),
            group => format!("/apis/{group}/{version}"),
        };
        let request = Request::get(format!("{base}/{}", T::PLURAL)).body(Empty::<Bytes>::new());
        let request = request.expect("a valid request");
        let read = async {
            let response = self.service.handle(request).await;
            let known = response.status().is_success();
            let body = response.into_body().collect().await;
            (known, body.map(http_body_util::Collected::to_bytes))
        };
        let (known, body) = read.now_or_never().expect("the server in memory responds at once");
        // Most runs have no kinds for snapshots.
        if !known {
            return Vec::new();
        }
        let body = body.expect("a response from memory is complete");
        let mut list: Value = serde_json::from_slice(&body).expect("the server responds in JSON");
        match list["items"].take() {
            Value::Array(items) => items,
            _ => Vec::new(),
        }
    }

    #[must_use]
    pub fn get<T: Kind>(&self, name: &str) -> Option<Value> {
        self.list::<T>().into_iter().find(|object| object["metadata"]["name"] == name)
    }

    /// The intents of the leak guard.
    #[must_use]
    pub fn intents(&self) -> Vec<Value> {
        let of_guard = |object: &Value| object["metadata"]["namespace"] == INTENTS;
        self.list::<ConfigMap>().into_iter().filter(of_guard).collect()
    }

    /// Everything that may not be left when the user has deleted everything.
    #[must_use]
    pub fn leftovers(&self) -> Vec<String> {
        let mut left = Vec::new();
        let world = self.driver.state();
        for volume in world.volumes.values() {
            // What an administrator has made may stay, but on no node.
            if volume.name.starts_with(BY_HAND) && volume.published.is_empty() {
                continue;
            }
            let on: Vec<&str> = volume.published.keys().map(String::as_str).collect();
            let published = match on.is_empty() {
                true => String::new(),
                false => format!(", published to {}", on.join(", ")),
            };
            left.push(format!("volume {} ({}){published} in the driver", volume.id, volume.name));
        }
        for (node, state) in &world.nodes {
            let all = state.volumes.keys();
            left.extend(all.map(|volume| format!("volume {volume} on node {node}")));
        }
        let mut objects = |what: &str, all: Vec<Value>| {
            left.extend(all.iter().map(|object| {
                let meta = &object["metadata"];
                let text = |name: &str| meta[name].as_str().unwrap_or_default().to_owned();
                let going = if meta["deletionTimestamp"].is_null() { "" } else { ", deleting" };
                let phase = object["status"]["phase"].as_str().unwrap_or_default();
                let holders = &meta["finalizers"];
                format!("{what} {} {phase}{going}, finalizers {holders}", text("name"))
            }));
        };
        objects("pod", self.list::<Pod>());
        objects("claim", self.list::<Claim>());
        objects("persistent volume", self.list::<Volume>());
        objects("attachment", self.list::<VolumeAttachment>());
        objects("intent", self.intents());
        if !world.snapshots.is_empty() || self.snapshots {
            objects("snapshot", self.list::<VolumeSnapshot>());
        }
        if self.snapshots {
            objects("content", self.list::<VolumeSnapshotContent>());
            objects("group snapshot", self.list::<VolumeGroupSnapshot>());
            objects("group content", self.list::<VolumeGroupSnapshotContent>());
            let snapshots = world.snapshots.values();
            left.extend(snapshots.map(|one| format!("snapshot {} in the driver", one.name)));
            let groups = world.groups.values();
            left.extend(groups.map(|one| format!("group {} in the driver", one.name)));
        }
        left
    }
}
