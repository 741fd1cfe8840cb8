//! A file into a pool, and the objects by which it is a snapshot of the cluster.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use longshore_cluster::{Api, DeleteParams, ListParams};
use longshore_core::{
    model::{
        ObjectKey,
        keys::{embedded, labels},
        kinds::{VolumeSnapshot, VolumeSnapshotClass, VolumeSnapshotContent},
    },
    words,
};
use longshore_driver::transfer::{self, Transferred};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::{At, Place};
use crate::cli;

/// How long the snapshot may take to be ready once its objects are there.
const PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(100);

pub(super) async fn run(name: String, file: Option<PathBuf>, at: At) -> Result<()> {
    match at {
        At::Pool(pool) => {
            let done = read(&pool, &name, file.as_deref())?;
            let text = format!(
                "{} is in {}; a VolumeSnapshotContent with this snapshotHandle makes it a snapshot of a cluster\n",
                done.id,
                pool.display()
            );
            cli::print(&text)
        }
        At::Instance(place) => place.import(&name, file.as_deref()).await,
    }
}

/// Reads the file into a pool.
fn read(pool: &Path, name: &str, file: Option<&Path>) -> Result<Transferred> {
    let shown = file.map_or_else(|| "the standard input".into(), |file| file.display().to_string());
    let mut input: Box<dyn Read> = match file {
        None => Box::new(std::io::stdin().lock()),
        Some(file) => Box::new(File::open(file).with_context(|| format!("cannot open {shown}"))?),
    };
    transfer::import(pool, name, &mut input).with_context(|| format!("cannot import {shown}"))
}

/// Where an imported snapshot goes.
struct Target {
    class: VolumeSnapshotClass,
    pool: PathBuf,
    /// Of a local driver.
    node: Option<String>,
}

impl Place {
    async fn import(&self, name: &str, file: Option<&Path>) -> Result<()> {
        let (api, key) = self.reach(name).await?;
        if api.get::<VolumeSnapshot>(&key).await?.is_some() {
            bail!("VolumeSnapshot {key} is there already; choose another name, or delete it first");
        }
        let target = self.target(&api).await?;
        let done = read(&target.pool, &key.to_string(), file)?;
        check_free(&api, &done).await?;
        if let Err(error) = publish(&api, &key, &target, &done).await {
            // Without objects nobody would ever delete it.
            let content = ObjectKey::cluster(content_name(&done));
            let gone =
                api.delete::<VolumeSnapshotContent>(&content, &DeleteParams::default()).await;
            match gone {
                Err(error) if !error.is_not_found() => eprintln!("longshore: {content}: {error}"),
                _ => transfer::remove(&target.pool, &done.id)?,
            }
            return Err(error);
        }
        until_ready(&api, &key).await?;
        let (size, created) = (words::size(done.size_bytes), done.created);
        cli::print(&format!(
            "volumesnapshot.snapshot.storage.k8s.io/{name} imported: cut {created}, a volume of {size}\n"
        ))
    }

    /// The pool that the class' driver has here.
    async fn target(&self, api: &Api) -> Result<Target> {
        let class = &self.class;
        let found = api.get::<VolumeSnapshotClass>(&ObjectKey::cluster(class)).await?;
        let found = found.with_context(|| {
            format!("there is no VolumeSnapshotClass {class}; choose one with --class")
        })?;
        let nodes = self.nodes()?;
        let node = match &self.node {
            Some(name) => nodes.iter().find(|node| node.node == *name).with_context(|| {
                let names: Vec<&str> = nodes.iter().map(|node| &*node.node).collect();
                format!("there is no node {name}; there are {}", names.join(", "))
            })?,
            None => nodes.iter().find(|node| node.first).unwrap_or(&nodes[0]),
        };
        match found.driver.as_str() {
            embedded::SHARED_DRIVER => {
                Ok(Target { class: found, pool: node.shared_pool.clone(), node: None })
            }
            embedded::LOCAL_DRIVER => {
                let pool = node.pools.first().context("the node has no pool")?.dir.clone();
                Ok(Target { class: found, pool, node: Some(node.node.clone()) })
            }
            other => bail!(
                "VolumeSnapshotClass {class} is of the driver {other}, and only longshore's drivers take imported snapshots"
            ),
        }
    }
}

/// Refuses a snapshot that an object of an earlier name still stands for: it would be deleted with that.
async fn check_free(api: &Api, done: &Transferred) -> Result<()> {
    let all = api.list::<VolumeSnapshotContent>(None, &ListParams::default()).await?;
    let holder = all
        .iter()
        .find(|content| content.spec.source.snapshot_handle.as_deref() == Some(done.id.as_str()));
    if let Some(holder) = holder {
        let (name, reference) = (&holder.metadata.name, &holder.spec.volume_snapshot_ref);
        bail!(
            "this snapshot is there already, as VolumeSnapshotContent {name} of {}/{}; delete that first, or wait until it is gone",
            reference.namespace,
            reference.name
        );
    }
    Ok(())
}

fn content_name(done: &Transferred) -> String {
    format!("imported-{}", done.id.as_str().trim_start_matches("snap-"))
}

/// Makes the content first: what it stands for is there.
async fn publish(api: &Api, key: &ObjectKey, target: &Target, done: &Transferred) -> Result<()> {
    let (class, name) = (&target.class, content_name(done));
    let mut content: Value = json!({
        "metadata": {"name": name},
        "spec": {
            "driver": class.driver, "deletionPolicy": class.deletion_policy.as_str(),
            "source": {"snapshotHandle": done.id.as_str()},
            "sourceVolumeMode": if done.raw { "Block" } else { "Filesystem" },
            "volumeSnapshotClassName": class.metadata.name,
            "volumeSnapshotRef": {"name": key.name, "namespace": key.namespace},
        },
    });
    if let Some(node) = &target.node {
        content["metadata"]["labels"] = json!({labels::SNAPSHOT_MANAGED_BY: node});
    }
    api.create::<VolumeSnapshotContent>(&content).await?;
    let snapshot = json!({
        "metadata": {"name": key.name, "namespace": key.namespace},
        "spec": {"source": {"volumeSnapshotContentName": name},
            "volumeSnapshotClassName": class.metadata.name},
    });
    api.create::<VolumeSnapshot>(&snapshot).await?;
    Ok(())
}

async fn until_ready(api: &Api, key: &ObjectKey) -> Result<()> {
    let end = Instant::now() + PATIENCE;
    loop {
        let snapshot = api.get::<VolumeSnapshot>(key).await?;
        if snapshot.is_some_and(|snapshot| snapshot.ready()) {
            return Ok(());
        }
        if Instant::now() >= end {
            bail!(
                "VolumeSnapshot {key} is there and not ready yet; see `longshore describe volumesnapshot {}`",
                key.name
            );
        }
        sleep(PAUSE).await;
    }
}
