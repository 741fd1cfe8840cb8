//! The walk: claim, pod writes, a snapshot is taken, the volume grows, another pod reads, the snapshot is restored,
//! everything goes.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use longshore_cluster::{Api, Cache, Cacheable, DeleteParams, Patch, Scope};
use longshore_core::model::{
    Kind as _, ObjectKey, PodPhase, Quantity,
    kinds::{Claim, Node, Pod, Volume, VolumeSnapshot},
};
use longshore_core::resize::conditions;
use longshore_core::words;

use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::{display::Display, instance::Instance};

const PATIENCE: Duration = Duration::from_secs(30);

/// Writes, syncs, and leaves the checksum where the next pod finds it. A pod whose first container has
/// done so is running.
const WRITE: &str =
    "head -c 1048576 /dev/urandom > /data/blob && sha256sum /data/blob > /data/sum && sync";
/// Goes on writing, so that the volume is in use.
const KEEP_WRITING: &str =
    "trap 'exit 0' TERM; while :; do date >> /data/ticks; sync /data/ticks; sleep 0.1; done";
/// Compares the data with the checksum that the first pod left.
const READER: &str = "sha256sum --check --status /data/sum";

/// Walks both embedded drivers: one with attach, one without.
pub(super) async fn walk(instance: &Instance, display: &mut Display) -> Result<()> {
    let api = &instance.api;
    display.step("node", node_ready(api)).await?;
    for class in ["longshore-local", "longshore-shared"] {
        let gone = "claim, volume and image file are gone";
        let life = Life {
            class,
            size: "16Mi",
            grows_to: Some("32Mi"),
            snapshots: Some(When::InUse),
            gone,
        };
        life.walk(api, display).await?;
    }
    Ok(())
}

/// When a snapshot is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum When {
    /// While the first pod writes.
    InUse,
    /// Between two pods: every driver that takes snapshots can do that.
    Idle,
}

/// One volume's life.
pub(super) struct Life<'a> {
    pub class: &'a str,
    /// What the claim asks for.
    pub size: &'a str,
    /// What it asks for later, while its first pod writes.
    pub grows_to: Option<&'a str>,
    /// When a snapshot is taken that is restored later.
    pub snapshots: Option<When>,
    /// What is said at its end.
    pub gone: &'a str,
}

impl Life<'_> {
    /// Walks through it.
    pub(super) async fn walk(&self, api: &Api, display: &mut Display) -> Result<()> {
        let class = self.class;
        println!("\n  class {class}");
        let claim = ObjectKey::new("default", format!("{class}-data"));
        display.step("claim", make_claim(api, &claim, self)).await?;
        let writer = ObjectKey::new("default", format!("{class}-writer"));
        display.step("write", start_writer(api, &writer, &claim)).await?;
        let volume = display.step("volume", bound_volume(api, &claim)).await?;
        let snapshot = ObjectKey::new("default", format!("{class}-snapshot"));
        if self.snapshots == Some(When::InUse) {
            let taken = take_snapshot(api, &snapshot, &claim, "while the pod writes");
            display.step("snapshot", taken).await?;
        }
        if let Some(size) = self.grows_to {
            display.step("expand", expand(api, &claim, size)).await?;
        }
        let gone = delete_and_wait::<Pod>(api, &writer, "the first pod is gone, the data stays");
        display.step("unmount", gone).await?;
        if self.snapshots == Some(When::Idle) {
            let taken = take_snapshot(api, &snapshot, &claim, "while no pod has the volume");
            display.step("snapshot", taken).await?;
        }
        let reader = ObjectKey::new("default", format!("{class}-reader"));
        display.step("read", self.read(api, &reader, &claim)).await?;
        display
            .step("unmount", delete_and_wait::<Pod>(api, &reader, "the second pod is gone"))
            .await?;
        if self.snapshots.is_some() {
            display.step("restore", self.restore(api, &snapshot)).await?;
        }
        display.step("delete", delete_claim(api, &claim, &volume, self.gone)).await
    }

    /// A new claim, as large as the first one is by now, has what was in it then. Nothing of this stays.
    async fn restore(&self, api: &Api, snapshot: &ObjectKey) -> Result<((), String)> {
        let claim = ObjectKey::new("default", format!("{}-restored", self.class));
        let size = self.grows_to.unwrap_or(self.size);
        let mut object = claim_object(&claim, self.class, size);
        object["spec"]["dataSource"] = json!({"apiGroup": VolumeSnapshot::GROUP,
            "kind": VolumeSnapshot::KIND, "name": snapshot.name});
        api.create::<Claim>(&object).await?;
        let pod = ObjectKey::new("default", format!("{}-restored", self.class));
        run_pod(api, &pod, &claim, READER, "").await?;
        let (volume, _) = bound_volume(api, &claim).await?;
        delete_and_wait::<Pod>(api, &pod, "").await?;
        delete_claim(api, &claim, &volume, "").await?;
        delete_and_wait::<VolumeSnapshot>(api, snapshot, "").await?;
        Ok(((), format!("a new claim of {size} from the snapshot: the checksum matches")))
    }

    /// Another pod finds the data, and the size.
    async fn read(&self, api: &Api, reader: &ObjectKey, claim: &ObjectKey) -> Result<((), String)> {
        let Some(size) = self.grows_to else {
            return run_pod(api, reader, claim, READER, "another pod: the checksum matches").await;
        };
        // What a filesystem keeps for its tables is less than a quarter.
        let least = size.parse::<Quantity>()?.bytes() / 4 * 3;
        let script =
            format!("{READER} && [ $(stat -f -c '%b * %S' /data | xargs expr) -gt {least} ]");
        let done = format!("another pod: the checksum matches, and it sees {size}");
        let done = run_pod(api, reader, claim, &script, &done).await?;
        wait_for::<Claim>(api, claim, |claim| has(claim, size), "has its new size").await?;
        Ok(done)
    }
}

fn has(claim: Option<&Claim>, size: &str) -> bool {
    let capacity = claim.and_then(|claim| claim.status.capacity.get("storage"));
    capacity.is_some_and(|capacity| Ok(*capacity) == size.parse::<Quantity>())
}

/// Asks for more while the writer writes. A filesystem that cannot grow while it is mounted has the new
/// size when the next pod starts, and the claim says so.
async fn expand(api: &Api, key: &ObjectKey, size: &str) -> Result<((), String)> {
    let patch = json!({"spec": {"resources": {"requests": {"storage": size}}}});
    api.patch::<Claim>(key, Patch::Merge(&patch)).await?;
    let said = |claim: &Claim, kind: &str| {
        let said = claim.status.conditions.iter().find(|one| one.kind == kind);
        said.map(|condition| condition.message.clone())
    };
    let (refused, waits) = (conditions::CONTROLLER_RESIZE_ERROR, conditions::NODE_RESIZE_ERROR);
    let settled = |claim: Option<&Claim>| {
        let told = |claim: &Claim| said(claim, refused).or(said(claim, waits)).is_some();
        has(claim, size) || claim.is_none_or(told)
    };
    let claim = wait_for::<Claim>(api, key, settled, "has grown").await?;
    let claim = claim.with_context(|| format!("claim {key} is gone"))?;
    if let Some(text) = said(&claim, refused) {
        bail!("claim {key}: {text}");
    }
    Ok((
        (),
        match said(&claim, waits) {
            None => format!("{size}, seen by the pod that writes"),
            Some(_) => format!(
                "{size}, seen by the next pod: this filesystem does not grow here while it is mounted"
            ),
        },
    ))
}

pub(super) async fn node_ready(api: &Api) -> Result<((), String)> {
    let nodes = api.list::<Node>(None, &Default::default()).await?;
    let name = nodes.first().context("there is no node")?.metadata.key();
    wait_for::<Node>(api, &name, |node| node.is_some_and(Node::ready), "is ready").await?;
    Ok(((), format!("node {name} is Ready")))
}

async fn make_claim(api: &Api, key: &ObjectKey, life: &Life<'_>) -> Result<((), String)> {
    let size = life.size;
    api.create::<Claim>(&claim_object(key, life.class, size)).await?;
    Ok(((), format!("claim {key} asks for {size}; it waits for its first pod")))
}

fn claim_object(key: &ObjectKey, class: &str, size: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {"name": key.name, "namespace": key.namespace},
        "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": class,
            "resources": {"requests": {"storage": size}},
        },
    })
}

/// Takes a snapshot of the default class of the volume's driver.
async fn take_snapshot(
    api: &Api,
    key: &ObjectKey,
    claim: &ObjectKey,
    when: &str,
) -> Result<((), String)> {
    let object = json!({
        "metadata": {"name": key.name, "namespace": key.namespace},
        "spec": {"source": {"persistentVolumeClaimName": claim.name}},
    });
    api.create::<VolumeSnapshot>(&object).await?;
    let ready = |snapshot: Option<&VolumeSnapshot>| snapshot.is_some_and(VolumeSnapshot::ready);
    wait_for::<VolumeSnapshot>(api, key, ready, "is ready").await?;
    Ok(((), format!("snapshot {key}, {when}")))
}

/// Starts a pod that has written, and goes on writing.
async fn start_writer(api: &Api, key: &ObjectKey, claim: &ObjectKey) -> Result<((), String)> {
    let mut pod = pod(key, claim, KEEP_WRITING);
    let mut first = pod["spec"]["containers"][0].clone();
    first["name"] = "first".into();
    first["command"] = json!(["/bin/sh", "-c", WRITE]);
    pod["spec"]["initContainers"] = json!([first]);
    pod["spec"]["terminationGracePeriodSeconds"] = 5.into();
    api.create::<Pod>(&pod).await?;
    let runs = |pod: &Pod| pod.finished() || pod.status.phase == PodPhase::Running;
    let begun = wait_for::<Pod>(api, key, |pod| pod.is_some_and(runs), "runs").await?;
    match begun.as_ref().map(|pod| &pod.status.phase) {
        Some(PodPhase::Running) => Ok(((), "wrote 1 MiB and its checksum, and goes on".to_owned())),
        other => bail!("pod {key} ended as {}", other.map_or("nothing", PodPhase::as_str)),
    }
}

fn pod(key: &ObjectKey, claim: &ObjectKey, script: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": key.name, "namespace": key.namespace},
        "spec": {
            "restartPolicy": "Never",
            "containers": [{
                "name": "main", "image": "host", "command": ["/bin/sh", "-c", script],
                "volumeMounts": [{"name": "data", "mountPath": "/data"}],
            }],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": claim.name}}],
        },
    })
}

async fn run_pod(
    api: &Api,
    key: &ObjectKey,
    claim: &ObjectKey,
    script: &str,
    done: &str,
) -> Result<((), String)> {
    api.create::<Pod>(&pod(key, claim, script)).await?;
    let ended =
        wait_for::<Pod>(api, key, |pod| pod.is_some_and(Pod::finished), "has ended").await?;
    match ended.as_ref().map(|pod| &pod.status.phase) {
        Some(PodPhase::Succeeded) => Ok(((), done.to_owned())),
        other => bail!("pod {key} ended as {}", other.map_or("nothing", PodPhase::as_str)),
    }
}

async fn bound_volume(api: &Api, key: &ObjectKey) -> Result<(ObjectKey, String)> {
    let claim = api.get::<Claim>(key).await?.with_context(|| format!("claim {key} is gone"))?;
    let name = ObjectKey::cluster(claim.spec.volume_name.clone());
    let volume =
        api.get::<Volume>(&name).await?.with_context(|| format!("volume {name} is gone"))?;
    let source = volume.spec.csi.as_ref().context("the volume has no CSI source")?;
    let fs_type = if source.fs_type.is_empty() { "(default)" } else { &source.fs_type };
    let text = format!("{name}: {} {fs_type} on {}", volume.capacity(), source.driver);
    Ok((name, text))
}

async fn delete_and_wait<T>(api: &Api, key: &ObjectKey, done: &str) -> Result<((), String)>
where
    T: Cacheable + Clone,
{
    api.delete::<T>(key, &DeleteParams::default()).await?;
    wait_for::<T>(api, key, |object| object.is_none(), "is gone").await?;
    Ok(((), done.to_owned()))
}

async fn delete_claim(
    api: &Api,
    claim: &ObjectKey,
    volume: &ObjectKey,
    gone: &str,
) -> Result<((), String)> {
    api.delete::<Claim>(claim, &DeleteParams::default()).await?;
    wait_for::<Claim>(api, claim, |object| object.is_none(), "is gone").await?;
    wait_for::<Volume>(api, volume, |object| object.is_none(), "is gone").await?;
    Ok(((), gone.to_owned()))
}

/// Watches one object until `done` says yes.
pub(super) async fn wait_for<T>(
    api: &Api,
    key: &ObjectKey,
    done: impl Fn(Option<&T>) -> bool,
    what: &str,
) -> Result<Option<T>>
where
    T: Cacheable + Clone,
{
    let stop = CancellationToken::new();
    let _guard = stop.clone().drop_guard();
    let scope = Scope {
        namespace: T::NAMESPACED.then(|| key.namespace.clone()),
        field_selector: Some(format!("metadata.name={}", key.name)),
        ..Scope::default()
    };
    let (cache, _task) = Cache::<T>::start(api, scope, &stop);
    let changed = std::sync::Arc::new(tokio::sync::Notify::new());
    let wake = changed.clone();
    let _notified = cache.subscribe(move |_| wake.notify_one());
    let wait = async {
        cache.synced().await;
        loop {
            let object = cache.get(key);
            if done(object.as_deref()) {
                return object.map(|object| T::clone(&object));
            }
            changed.notified().await;
        }
    };
    tokio::time::timeout(PATIENCE, wait).await.with_context(|| {
        format!("waited {} in vain until {} {key} {what}", words::time(PATIENCE), T::KIND)
    })
}
