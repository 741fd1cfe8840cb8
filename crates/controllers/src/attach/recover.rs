//! What a new controller makes of what an earlier one left behind, and the slow check that
//! attachments still stand.

use std::sync::Arc;

use longshore_core::{
    attach::{AttachState, UniqueName, attachment_name, resolve::spec_of_volume},
    model::{ObjectKey, kinds::VolumeAttachment},
};

use super::Controller;

impl Controller {
    /// Builds both worlds from the caches. A volume that a node was told about is attached; one
    /// that only has an attachment is uncertain, and either attached again or cleaned up.
    pub(super) fn recover(&self) {
        crate::index::index_pods(&self.caches.pods);
        for node in self.caches.nodes.list() {
            let name = &node.metadata.name;
            self.world.change(|world| {
                for volume in &node.status.volumes_attached {
                    let unique = UniqueName::reported(&volume.name);
                    world.actual.mark_attached(&unique, None, name, &volume.device_path);
                }
                // This is what the node was told: there is nothing to write.
                world.actual.take_report(name);
            });
            self.take_in_node(&node, false);
        }
        for attachment in self.caches.attachments.list() {
            self.recover_attachment(&attachment);
        }
        for pod in self.caches.pods.list() {
            self.take_in_pod(&pod);
        }
        self.fill_in_specs();
    }

    fn recover_attachment(&self, attachment: &VolumeAttachment) {
        let Some(pv) = attachment.spec.source.persistent_volume_name.as_deref() else { return };
        let Some(volume) = self.caches.volumes.get(&ObjectKey::cluster(pv)) else { return };
        let Ok(spec) = spec_of_volume(&volume) else { return };
        if !self.must_attach(&spec.driver) {
            return;
        }
        let (unique, node) = (spec.unique_name(), attachment.spec.node_name.as_str());
        self.world.change(|world| {
            if world.actual.state(&unique, node) == AttachState::Detached {
                world.actual.mark_uncertain(&unique, Some(spec), node);
                if attachment.status.attached {
                    // The end of an earlier detach is not known: no other node may have it yet.
                    world.actual.mark_held(&unique, node);
                }
                world.mark(&unique);
            }
        });
    }

    /// A volume known only by name gets its description from the pods that want it.
    fn fill_in_specs(&self) {
        self.world.change(|world| {
            let wanted: Vec<_> = world
                .desired
                .all()
                .map(|(node, name, wanted)| (node.to_owned(), name.clone(), wanted.spec.clone()))
                .collect();
            for (node, volume, spec) in wanted {
                if world.actual.state(&volume, &node) == AttachState::Attached {
                    world.actual.mark_attached(&volume, Some(spec), &node, "");
                }
            }
        });
    }

    /// Looks at every confirmed attachment; one whose object is gone or no longer says
    /// "attached" is not there, and a wanted one is attached again.
    pub(super) async fn verify(self: Arc<Self>) {
        let all = self.world.lock().actual.all();
        for entry in all.into_iter().filter(|entry| entry.confirmed) {
            let Some(spec) = entry.spec else { continue };
            if !self.must_attach(&spec.driver) {
                continue;
            }
            let name = attachment_name(&spec.handle, &spec.driver, &entry.node);
            if !self.still_attached(&ObjectKey::cluster(name)).await {
                self.world.change(|world| {
                    world.actual.mark_detached(&entry.volume, &entry.node);
                    world.mark(&entry.volume);
                });
            }
        }
    }

    async fn still_attached(&self, key: &ObjectKey) -> bool {
        if let Some(attachment) = self.caches.attachments.get(key) {
            return attachment.status.attached;
        }
        // The cache may be behind; only the API's own word counts as "gone".
        match self.api.get::<VolumeAttachment>(key).await {
            Ok(attachment) => attachment.is_some_and(|attachment| attachment.status.attached),
            Err(_) => false,
        }
    }
}
