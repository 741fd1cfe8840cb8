//! Volumes that are going away lose the attacher's finalizer.

use std::sync::Arc;

use longshore_cluster::{OptionalExt as _, Outcome, Patch, Reconciler, Sources, Subject};
use longshore_core::{
    attach::sidecar::{VolumeView, drop_volume_finalizer, is_rolled_back, remove_finalizer_patch},
    model::{ObjectKey, VolumeName, kinds::Volume},
};

use super::Sidecar;
use crate::index::attachments_of_volume;

/// Volumes that may have to lose the finalizer.
pub(super) struct ReleasedVolumes(pub(super) Arc<Sidecar>);

impl ReleasedVolumes {
    fn candidate(&self, volume: &Volume) -> Option<VolumeName> {
        let unwanted = volume.metadata.deleting() || is_rolled_back(volume, &self.0.name);
        let held = volume.metadata.has_finalizer(&self.0.finalizer);
        (unwanted && held).then(|| volume.name())
    }
}

impl Reconciler for ReleasedVolumes {
    type Key = VolumeName;

    fn sources(&self, sources: &mut Sources<Self>) {
        let Self(sidecar) = self;
        sources
            .on(&sidecar.attachments, |_, change| {
                change.deleted().and_then(|old| old.spec.source.persistent_volume_name.clone())
            })
            .on(&sidecar.volumes, |this, change| {
                change.applied().and_then(|new| this.candidate(new))
            })
            .on_resync(&sidecar.volumes, Self::candidate);
    }

    fn subject(&self, name: &VolumeName) -> Subject {
        Subject::volume(name)
    }

    /// Takes our finalizer off a volume that is going away and that nothing is attached to.
    async fn reconcile(&self, name: &VolumeName) -> Outcome {
        let sidecar = &self.0;
        let key = ObjectKey::cluster(name);
        let Some(volume) = sidecar.volumes.get(&key) else { return Outcome::Done };
        let view = VolumeView {
            deleting: volume.metadata.deleting(),
            rolled_back: is_rolled_back(&volume, &sidecar.name),
            finalizer: volume.metadata.has_finalizer(&sidecar.finalizer),
            referenced: !attachments_of_volume(&sidecar.attachments, name).is_empty(),
        };
        let finalizers = &volume.metadata.finalizers;
        let patch = remove_finalizer_patch(finalizers, &sidecar.finalizer);
        let Some(patch) = patch.filter(|_| drop_volume_finalizer(&view)) else {
            return Outcome::Done;
        };
        let written = sidecar.api.patch::<Volume>(&key, Patch::Json(&patch)).await;
        written.optional().map(drop).into()
    }
}
