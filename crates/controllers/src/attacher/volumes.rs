//! Giving volumes up that are going away.

use longshore_cluster::{Outcome, Patch};
use longshore_core::{
    attach::sidecar::{VolumeView, drop_volume_finalizer, is_rolled_back, remove_finalizer_patch},
    model::{ObjectKey, kinds::Volume},
};

use super::Sidecar;
use crate::index::attachments_of_volume;

impl Sidecar {
    /// Takes our finalizer off a volume that is going away and that nothing is attached to.
    pub(super) async fn give_up_volume(&self, name: &str) -> Outcome {
        let key = ObjectKey::cluster(name);
        let Some(volume) = self.caches.volumes.get(&key) else { return Outcome::Done };
        let view = VolumeView {
            deleting: volume.metadata.deleting(),
            rolled_back: is_rolled_back(&volume, &self.name),
            finalizer: volume.metadata.has_finalizer(&self.finalizer),
            referenced: !attachments_of_volume(&self.caches.attachments, name).is_empty(),
        };
        if !drop_volume_finalizer(&view) {
            return Outcome::Done;
        }
        let finalizers = &volume.metadata.finalizers;
        let Some(patch) = remove_finalizer_patch(finalizers, &self.finalizer) else {
            return Outcome::Done;
        };
        match self.api.patch::<Volume>(&key, Patch::Json(&patch)).await {
            Ok(_) => Outcome::Done,
            Err(error) if error.is_not_found() => Outcome::Done,
            Err(error) => Outcome::retry(error),
        }
    }
}
