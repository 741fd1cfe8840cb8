//! Files from the API follow their objects while the pod runs, and tokens are replaced before they end.

use std::time::Duration;

use longshore_cluster::EventType;
use longshore_core::model::kinds::Pod;
use tokio::time::Instant;

use super::api_files::{self, Sources};
use super::worker::Worker;

/// When the files of a pod are looked at again.
pub(super) struct Refreshing {
    /// Never for a pod without such files.
    at: Option<Instant>,
    period: Duration,
}

impl Refreshing {
    pub(super) fn new(pod: &Pod, period: Duration) -> Self {
        let has_files = pod.spec.volumes.iter().any(api_files::is_one);
        Self { at: has_files.then(|| Instant::now() + period), period }
    }

    /// Ends when it is time; never for a pod without such files.
    pub(super) async fn due(&self) {
        match self.at {
            Some(at) => tokio::time::sleep_until(at).await,
            None => std::future::pending().await,
        }
    }

    /// Takes in a change of the pod: files may show its labels and annotations.
    pub(super) fn seen(&mut self, old: &Pod, new: &Pod) {
        let (old, new) = (&old.metadata, &new.metadata);
        let changed = old.labels != new.labels || old.annotations != new.annotations;
        if let Some(at) = self.at.as_mut().filter(|_| changed) {
            *at = Instant::now();
        }
    }

    fn done(&mut self) {
        if let Some(at) = &mut self.at {
            *at = Instant::now() + self.period;
        }
    }
}

impl Worker {
    /// Where the files of the pod come from.
    pub(super) fn files(&self) -> Sources<'_> {
        Sources { api: &self.deps.api, volumes: &self.deps.volumes }
    }

    /// Writes the files anew where their objects have changed. What cannot be had leaves the old ones.
    pub(super) async fn refresh_files(&mut self) {
        for volume in self.pod.spec.volumes.iter().filter(|volume| api_files::is_one(volume)) {
            let written = api_files::write(self.files(), &self.deps.paths, &self.pod, volume).await;
            if let Err(error) = written {
                let name = &volume.name;
                let text = format!("MountVolume.SetUp failed for volume \"{name}\" : {error}");
                self.event(EventType::Warning, "FailedMount", &text);
            }
        }
        self.refreshing.done();
    }
}
