//! A full disk: writes are refused, nothing is half there, and writing works again when there is room.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::path::Path;

use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ListParams, PostParams, WatchEvent, WatchParams};
use longshore_apiserver::{ApiServer, Config};
use longshore_testing::{Need, need};
use serde_json::json;

const DISK_BYTES: usize = 3 << 20;
const BALLAST_BYTES: usize = 1 << 20;

/// A small file system in memory, unmounted at the end.
struct Disk(tempfile::TempDir);

impl Disk {
    fn new() -> Self {
        let dir = tempfile::Builder::new().prefix("longshore-full-").tempdir().unwrap();
        let options = std::ffi::CString::new(format!("size={DISK_BYTES}")).unwrap();
        let flags = rustix::mount::MountFlags::empty();
        rustix::mount::mount("longshore", dir.path(), "tmpfs", flags, Some(&*options)).unwrap();
        Self(dir)
    }

    fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(self.path(), rustix::mount::UnmountFlags::DETACH);
    }
}

fn map(i: usize, bytes: usize) -> ConfigMap {
    let object =
        json!({"metadata": {"name": format!("m{i:04}")}, "data": {"k": "x".repeat(bytes)}});
    serde_json::from_value(object).unwrap()
}

/// Creates until a refusal; returns the names that were answered and the refusal.
async fn fill(maps: &Api<ConfigMap>, from: usize) -> (Vec<String>, kube::Error) {
    let mut made = Vec::new();
    for i in from..from + 1000 {
        match maps.create(&PostParams::default(), &map(i, 50_000)).await {
            Ok(map) => made.push(map.name_any()),
            Err(error) => return (made, error),
        }
    }
    panic!("the disk never filled up");
}

fn assert_refused(error: &kube::Error) {
    let kube::Error::Api(status) = error else { panic!("{error}") };
    assert_eq!((status.code, status.reason.as_str()), (503, "ServiceUnavailable"), "{status:?}");
    assert!(status.message.contains("no room left in"), "{status:?}");
    assert!(status.message.contains("nothing was changed"), "{status:?}");
}

async fn names(maps: &Api<ConfigMap>) -> Vec<String> {
    maps.list(&ListParams::default()).await.unwrap().iter().map(ResourceExt::name_any).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_refuses_writes_until_there_is_room() {
    if !need("a_full_disk_refuses_writes_until_there_is_room", &[Need::Root]) {
        return;
    }
    let disk = Disk::new();
    let ballast = disk.path().join("ballast");
    std::fs::write(&ballast, vec![1; BALLAST_BYTES]).unwrap();
    let server = ApiServer::open(Config::at(disk.path().join("data"))).await.unwrap();
    let maps: Api<ConfigMap> = Api::namespaced(server.client(), "default");
    let start = maps.list(&ListParams::default()).await.unwrap().metadata.resource_version.unwrap();
    let events = maps.watch(&WatchParams::default(), &start).await.unwrap();

    let (mut made, error) = fill(&maps, 0).await;
    assert!(made.len() > 5, "there was room for some: {made:?}");
    assert_refused(&error);
    // Everything that was there still is, and nothing else, for readers and for writers.
    assert_eq!(names(&maps).await, made);
    let refused = format!("m{:04}", made.len());
    assert!(maps.get_opt(&refused).await.unwrap().is_none());
    let mut first = maps.get(&made[0]).await.unwrap();
    first.data = map(0, 90_000).data;
    assert_refused(&maps.replace(&made[0], &PostParams::default(), &first).await.unwrap_err());
    assert_eq!(maps.get(&made[0]).await.unwrap().data, map(0, 50_000).data);

    std::fs::remove_file(&ballast).unwrap();
    maps.replace(&made[0], &PostParams::default(), &first).await.unwrap();
    let (more, error) = fill(&maps, made.len()).await;
    assert_refused(&error);
    assert!(more.len() > 5, "there was room again: {more:?}");
    made.extend(more);
    assert_eq!(names(&maps).await, made);
    // Every answered write is seen once, in order, and nothing else: all creations and one change.
    let mut events = events.boxed();
    let mut versions: Vec<u64> = Vec::new();
    while versions.len() < made.len() + 1 {
        match events.try_next().await.unwrap().unwrap() {
            WatchEvent::Added(map) | WatchEvent::Modified(map) => {
                versions.push(map.resource_version().unwrap().parse().unwrap());
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(versions.is_sorted_by(|one, next| one < next), "{versions:?}");
    // Small changes may still fit, or not; both are answered truly.
    let gone = made.remove(1);
    if maps.delete(&gone, &DeleteParams::default()).await.is_err() {
        made.insert(1, gone);
    }
    drop(events);
    server.shutdown().await;
    drop((server, maps));

    // A full disk does not keep the server from starting.
    let server = ApiServer::open(Config::at(disk.path().join("data"))).await.unwrap();
    let maps: Api<ConfigMap> = Api::namespaced(server.client(), "default");
    assert_eq!(names(&maps).await, made);
    server.shutdown().await;
}
