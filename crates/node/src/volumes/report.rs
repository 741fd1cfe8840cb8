//! Failed operations as events of their pods.

use longshore_core::stage::world::Action;

use super::block::MAP_POD;
use super::mount::{NODE_AFFINITY, PUBLISH};
use super::{OpError, State, VolumeManager, expand};

impl VolumeManager {
    pub(super) fn clear_error(&self, state: &mut State, action: &Action) {
        if let Action::Mount { pod, .. } = action
            && let Some(facts) = state.pods.get_mut(pod)
        {
            facts.error = None;
        }
    }

    pub(super) fn report(&self, state: &mut State, action: &Action, failure: &OpError) {
        let (Action::Mount { volume, pod } | Action::Expand { volume, pod }) = action else {
            return;
        };
        let facts = state.facts(volume, Some(pod));
        let name = facts.map_or(volume.as_str(), |facts| facts.spec_name.as_str());
        let block = facts.is_some_and(|facts| facts.block);
        let (reason, head) = match (action, failure.step) {
            (Action::Expand { .. }, step) => {
                ("VolumeResizeFailed", format!("NodeExpandVolume.{step} failed"))
            }
            (_, expand::EXPAND_IN_MOUNT) if block => {
                let text = "MapVolume.MarkVolumeAsMounted failed while expanding volume";
                ("FailedMapVolume", text.to_owned())
            }
            (_, expand::EXPAND_IN_MOUNT) => {
                ("FailedMount", format!("MountVolume.{}", expand::EXPAND_IN_MOUNT))
            }
            (_, NODE_AFFINITY) if block => {
                ("FailedMount", format!("MapVolume.{NODE_AFFINITY} failed"))
            }
            // What is found out just before the call has the call's name.
            (_, PUBLISH) if block => ("FailedMapVolume", format!("MapVolume.{MAP_POD} failed")),
            (_, step) if block => ("FailedMapVolume", format!("MapVolume.{step} failed")),
            (_, step) => ("FailedMount", format!("MountVolume.{step} failed")),
        };
        let text = format!("{head} for volume \"{name}\" : {failure}");
        let of = state.pods.get(pod).map(|facts| facts.pod.metadata.key().to_string());
        let of = of.unwrap_or_else(|| pod.to_string());
        tracing::warn!(
            pod = of,
            volume = name,
            error = text,
            "volume operation failed; will be tried again"
        );
        if let Some(facts) = state.pods.get_mut(pod) {
            self.deps.recorder.warning(facts.pod.as_ref(), reason, &text);
            facts.error = Some(text);
        }
    }
}
