//! How long operations on volumes take, and how many volumes there are.

use std::time::Duration;

use longshore_core::names::{UniqueName, metrics_plugin};
use longshore_core::stage::verdict::Mounted;
use longshore_core::stage::world::Action;
use tokio::time::Instant;

use crate::metrics::Counts;

use super::{Plugin, VolumeFacts, VolumeManager};

/// An operation in flight.
pub(super) struct Timed {
    plugin: String,
    name: &'static str,
    began: Instant,
    /// When the pod that now gets the volume was first seen; absent when it has it already.
    wanted: Option<Instant>,
}

impl VolumeManager {
    pub(super) fn timed(&self, action: &Action) -> Option<Timed> {
        let (volume, pod) = match action {
            Action::Mount { volume, pod }
            | Action::Unpublish { volume, pod }
            | Action::Expand { volume, pod } => (volume, Some(pod)),
            Action::Unstage { volume } => (volume, None),
            Action::Forget { .. } => return None,
        };
        let state = self.state();
        let facts = state.volumes.get(volume)?;
        let name = match (action, facts.block) {
            (Action::Mount { .. }, false) => "volume_mount",
            (Action::Mount { .. }, true) => "map_volume",
            (Action::Unpublish { .. }, false) => "volume_unmount",
            (Action::Unpublish { .. }, true) => "unmap_volume",
            (Action::Unstage { .. }, false) => "unmount_device",
            (Action::Unstage { .. }, true) => "unmap_device",
            (Action::Expand { .. } | Action::Forget { .. }, _) => "volume_fs_resize",
        };
        let wanted = pod.filter(|_| name == "volume_mount").and_then(|pod| {
            let known = state.world.actual.get(volume).and_then(|known| known.pods.get(pod));
            let there = known.is_some_and(|mount| mount.state == Mounted::Yes);
            state.pods.get(pod).filter(|_| !there).map(|facts| facts.since)
        });
        Some(Timed { plugin: plugin_name(facts), name, began: Instant::now(), wanted })
    }

    pub(super) fn measured(&self, timed: Option<Timed>, done: bool) {
        let Some(Timed { plugin, name, began, wanted }) = timed else { return };
        let operations = &self.deps.metrics.operations;
        operations.ended(&plugin, name, false, began.elapsed(), done);
        if let Some(wanted) = wanted.filter(|_| done) {
            operations.completed(&plugin, "overall_volume_mount", wanted.elapsed());
        }
    }

    /// A part of an operation that has a name of its own.
    pub(super) fn measured_part(
        &self,
        facts: &VolumeFacts,
        name: &str,
        took: Duration,
        done: bool,
    ) {
        self.deps.metrics.operations.ended(&plugin_name(facts), name, false, took, done);
    }

    /// Pairs of pods and volumes, by plugin and world.
    pub(crate) fn total_volumes(&self) -> Counts {
        let state = self.state();
        let mut counts = Counts::new();
        let mut add = |unique: &UniqueName, pods: usize, world: &'static str| {
            if let Some(facts) = state.volumes.get(unique).filter(|_| pods > 0) {
                *counts.entry((plugin_name(facts), world)).or_default() += pods as u64;
            }
        };
        for (unique, known) in &state.world.actual {
            add(unique, known.pods.len(), "actual_state_of_world");
        }
        for (unique, wanted) in &state.world.desired {
            add(unique, wanted.pods.len(), "desired_state_of_world");
        }
        counts
    }
}

fn plugin_name(facts: &VolumeFacts) -> String {
    match facts.plugin {
        Plugin::Csi => metrics_plugin(&facts.driver),
        own => format!("kubernetes.io/{}", own.dir()),
    }
}
