//! What a pod needs before its first container: its volumes.

use longshore_cluster::EventType;

use super::hidden::hidden_dirs;
use super::own_volumes::{self, OwnVolumeError};
use super::status::Waiting;
use super::worker::Worker;
use crate::volumes::PodVolumes;

impl Worker {
    /// Whether all volumes are there. The node's own are made while drivers mount theirs: a token costs
    /// as much time as a mount.
    pub(super) async fn volumes_ready(&mut self) -> bool {
        if self.volumes.is_some() {
            return true;
        }
        let own = match self.own_volumes.take() {
            Some(own) => own,
            None => match own_volumes::make_all(self.files(), &self.deps.paths, &self.pod).await {
                Ok(own) => own,
                Err((volume, error)) => return self.refuse_volume(&volume, &error),
            },
        };
        let PodVolumes::Ready(mut mounted) = self.deps.volumes.pod_volumes(self.uid()) else {
            self.own_volumes = Some(own);
            return false;
        };
        mounted.extend(own);
        let hidden = hidden_dirs(&self.deps.hidden);
        let shown = own_volumes::refuse_hidden(&self.deps.paths, &hidden, &self.pod, &mounted);
        if let Err((volume, error)) = shown {
            return self.refuse_volume(&volume, &error);
        }
        self.waiting = Waiting::new("ContainerCreating", "");
        self.deps.faults.at("pod.mounted");
        self.volumes = Some(mounted);
        true
    }

    fn refuse_volume(&mut self, volume: &str, error: &OwnVolumeError) -> bool {
        let text = format!("MountVolume.SetUp failed for volume \"{volume}\" : {error}");
        self.event(EventType::Warning, "FailedMount", &text);
        self.waiting = Waiting::new("CreateContainerConfigError", text);
        false
    }
}
