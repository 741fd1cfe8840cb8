//! The snapshot controller and a snapshotter over a real API server and a driver in memory.

use std::time::Duration;

use longshore_core::model::{
    ObjectKey,
    kinds::{Claim, VolumeSnapshot, VolumeSnapshotClass, VolumeSnapshotContent},
};
use longshore_csi::{
    Call,
    fake::{self, Driver},
};
use serde_json::{Value, json};

use crate::snapshot_controller::{self, SnapshotController};
use crate::snapshotter::{self, Snapshotter};
use crate::testing::{Bench, DRIVER, Process, key};

pub(crate) struct World {
    pub(crate) bench: Bench,
    pub(crate) driver: Driver,
    pub(crate) controller: Option<Process>,
    pub(crate) snapshotter: Option<Process>,
    pub(crate) config: snapshotter::Config,
}

impl World {
    /// Both programs, a claim `origin` with its volume, and the class `fast`.
    pub(crate) async fn start() -> Self {
        Self::start_with(snapshotter::Config::default(), |_| ()).await
    }

    pub(crate) async fn start_with(
        config: snapshotter::Config,
        configure: impl FnOnce(&mut fake::Config),
    ) -> Self {
        let (bench, driver) = (Bench::with_snapshots().await, Driver::new(DRIVER));
        driver.configure(configure);
        let mut world = Self { bench, driver, controller: None, snapshotter: None, config };
        world.claim("origin").await;
        world.class("fast", json!({})).await;
        world.run_controller();
        world.run_snapshotter();
        world
    }

    pub(crate) fn run_controller(&mut self) {
        let mut process = self.bench.process();
        let config = snapshot_controller::Config::default();
        let controller = SnapshotController::new(&process.context, config);
        let shutdown = process.shutdown.clone();
        process.spawn(async move { controller.run(shutdown).await });
        self.controller = Some(process);
    }

    pub(crate) fn run_snapshotter(&mut self) {
        let mut process = self.bench.process();
        let driver = self.driver.client();
        let snapshotter = Snapshotter::new(&process.context, driver, self.config.clone());
        let shutdown = process.shutdown.clone();
        process.spawn(async move { snapshotter.run(DRIVER.to_owned(), shutdown).await });
        self.snapshotter = Some(process);
    }

    /// Ends both as a kill does, and starts them again.
    pub(crate) fn restart(&mut self) {
        self.controller.take().into_iter().for_each(Process::kill);
        self.snapshotter.take().into_iter().for_each(Process::kill);
        self.run_controller();
        self.run_snapshotter();
    }

    /// A claim that is bound to a volume of the driver.
    pub(crate) async fn claim(&self, name: &str) {
        self.bench.claim(name, "any").await;
        let request = fake::create_request(&format!("v-{name}"), 1 << 30);
        let made = self.driver.client().create_volume(request).await.expect("made");
        let handle = made.volume.expect("a volume").volume_id;
        self.bench.bind(name, &format!("pv-{name}"), &handle).await;
    }

    /// A class of the driver's snapshots.
    pub(crate) async fn class(&self, name: &str, over: Value) {
        let mut class =
            json!({"metadata": {"name": name}, "driver": DRIVER, "deletionPolicy": "Delete"});
        if let (Some(class), Some(over)) = (class.as_object_mut(), over.as_object()) {
            class.extend(over.clone());
        }
        self.bench.create::<VolumeSnapshotClass>(class).await;
    }

    /// A snapshot of `origin`; with no class when it is empty.
    pub(crate) async fn snapshot_of_class(&self, name: &str, class: &str) -> ObjectKey {
        let mut spec = json!({"source": {"persistentVolumeClaimName": "origin"}});
        if !class.is_empty() {
            spec["volumeSnapshotClassName"] = class.into();
        }
        let metadata = json!({"name": name, "namespace": "default"});
        self.bench.create::<VolumeSnapshot>(json!({"metadata": metadata, "spec": spec})).await;
        key(name)
    }

    pub(crate) async fn snapshot(&self, name: &str) -> ObjectKey {
        self.snapshot_of_class(name, "fast").await
    }

    /// A content of a snapshot that the driver has already, with the policy.
    pub(crate) async fn given(&self, name: &str, handle: &str, over: Value) -> ObjectKey {
        let mut spec = json!({"driver": DRIVER, "deletionPolicy": "Delete",
            "source": {"snapshotHandle": handle}, "volumeSnapshotClassName": "fast",
            "volumeSnapshotRef": {"name": name, "namespace": "default"}});
        if let (Some(spec), Some(over)) = (spec.as_object_mut(), over.as_object()) {
            spec.extend(over.clone());
        }
        let content = json!({"metadata": {"name": name}, "spec": spec});
        self.bench.create::<VolumeSnapshotContent>(content).await;
        ObjectKey::cluster(name)
    }

    /// A snapshot of a content that is there already.
    pub(crate) async fn snapshot_of_content(&self, name: &str) -> ObjectKey {
        let spec = json!({"source": {"volumeSnapshotContentName": name}});
        let metadata = json!({"name": name, "namespace": "default"});
        self.bench.create::<VolumeSnapshot>(json!({"metadata": metadata, "spec": spec})).await;
        key(name)
    }

    pub(crate) async fn until_ready(&self, key: &ObjectKey) -> VolumeSnapshot {
        self.bench.until::<VolumeSnapshot>(key, VolumeSnapshot::ready).await
    }

    pub(crate) async fn delete(&self, key: &ObjectKey) {
        self.bench.delete::<VolumeSnapshot>(key).await;
    }

    pub(crate) async fn until_gone(&self, key: &ObjectKey) {
        self.bench.until_gone::<VolumeSnapshot>(key).await;
    }

    pub(crate) async fn content_of(&self, snapshot: &VolumeSnapshot) -> VolumeSnapshotContent {
        let name = snapshot.bound_content().expect("bound");
        self.bench.get(&ObjectKey::cluster(name)).await.expect("a content")
    }

    /// Contents that are there.
    pub(crate) async fn contents(&self) -> Vec<VolumeSnapshotContent> {
        let all = longshore_cluster::ListParams::default();
        self.bench.api.list(None, &all).await.expect("listed")
    }

    pub(crate) fn calls(&self, call: Call) -> usize {
        self.driver.calls_of(call).len()
    }

    /// Snapshots that the driver has.
    pub(crate) fn taken(&self) -> usize {
        self.driver.state().snapshots.len()
    }

    pub(crate) async fn pass(&self, seconds: u64) {
        self.bench.pass(Duration::from_secs(seconds)).await;
    }

    pub(crate) async fn claim_finalizers(&self) -> Vec<String> {
        self.bench.get::<Claim>(&key("origin")).await.expect("there").metadata.finalizers
    }
}

impl World {
    /// What the controller's metrics say now.
    fn metrics(&self) -> String {
        self.controller.as_ref().expect("runs").context.metrics.render()
    }

    /// How often the controller has counted the operation with the status, for the driver's snapshots.
    pub(crate) fn counted(&self, operation: &str, status: &str) -> u64 {
        let labels = [
            format!("driver_name=\"{DRIVER}\""),
            format!("operation_name=\"{operation}\""),
            format!("operation_status=\"{status}\""),
        ];
        let metrics = self.metrics();
        let all = metrics
            .lines()
            .filter(|line| line.starts_with("snapshot_controller_operation_total_seconds_count{"));
        let fitting = all.filter(|line| labels.iter().all(|label| line.contains(label)));
        fitting.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum()
    }

    /// Operations that the controller has begun and not ended.
    pub(crate) fn in_flight(&self) -> i64 {
        let metrics = self.metrics();
        let name = "snapshot_controller_operations_in_flight ";
        let value = metrics.lines().find_map(|line| line.strip_prefix(name));
        value.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("{metrics}"))
    }
}

/// The message of the status' error.
pub(crate) fn error(snapshot: &VolumeSnapshot) -> &str {
    let error = snapshot.status.as_ref().and_then(|status| status.error.as_ref());
    error.and_then(|error| error.message.as_deref()).unwrap_or_default()
}
