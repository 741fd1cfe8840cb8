//! What a new controller makes of what an earlier one left behind, and the slow check that
//! attachments still stand.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use longshore_cluster::DeleteParams;
use longshore_core::{
    attach::{AttachState, OnNode, resolve::spec_of_volume},
    model::{
        NodeName, ObjectKey,
        kinds::{Volume, VolumeAttachment},
    },
    names::{UniqueName, attachment_name},
};

use tokio::time::Instant;

use super::{Controller, reconcile::key_of};
use crate::planted::Planted;

impl Controller {
    /// Builds both worlds from the caches. A volume that a node was told about is attached; one
    /// that only has an attachment is uncertain, and either attached again or cleaned up.
    pub(super) fn recover(&self) {
        for node in self.nodes.list() {
            let name = &node.name();
            self.state.change(|state| {
                for volume in &node.status.volumes_attached {
                    let unique = UniqueName::from(&volume.name);
                    state.actual.mark_attached(&unique, None, name, &volume.device_path);
                }
                // This is what the node was told: there is nothing to write.
                state.actual.take_report(name);
            });
            self.observe_node(&node, false);
        }
        if !self.config.has(Planted::ForgetsAttachments) {
            for attachment in self.attachments.list() {
                self.recover_attachment(&attachment);
            }
        }
        for pod in self.pods.list() {
            self.observe_pod(&pod);
        }
        self.fill_in_specs();
        self.sweep_soon.notify_one();
    }

    fn recover_attachment(&self, attachment: &VolumeAttachment) {
        let Some(pv) = attachment.spec.source.persistent_volume_name.as_deref() else { return };
        let Some(volume) = self.volumes.get(&ObjectKey::cluster(pv)) else { return };
        let Ok(spec) = spec_of_volume(&volume) else { return };
        if !self.must_attach(&spec.driver) {
            return;
        }
        let (unique, node) = (spec.unique_name(), &attachment.spec.node_name);
        self.state.change(|state| {
            if state.actual.state(&unique, node) == AttachState::Detached {
                state.actual.mark_uncertain(&unique, Some(spec), node);
                if attachment.status.attached {
                    // The end of an earlier detach is not known: no other node may have it yet.
                    state.actual.mark_held(&unique, node);
                }
                state.mark(&unique);
            }
        });
    }

    /// A volume known only by name gets its description from the pods that want it.
    fn fill_in_specs(&self) {
        self.state.change(|state| {
            let wanted: Vec<_> = state
                .desired
                .all()
                .map(|(node, name, wanted)| (node.clone(), name.clone(), wanted.spec.clone()))
                .collect();
            for (node, volume, spec) in wanted {
                if state.actual.state(&volume, &node) == AttachState::Attached {
                    state.actual.mark_attached(&volume, Some(spec), &node, "");
                }
            }
        });
    }

    /// Looks at every confirmed attachment; one whose object is gone or no longer says
    /// "attached" is not there, and a wanted one is attached again.
    pub(super) async fn verify(self: Arc<Self>) {
        let all = self.state.lock().actual.all();
        let mut nodes: BTreeMap<NodeName, Vec<OnNode>> = BTreeMap::new();
        for entry in all.into_iter().filter(|entry| entry.confirmed) {
            nodes.entry(entry.node.clone()).or_default().push(entry);
        }
        for entries in nodes.into_values() {
            let started = Instant::now();
            for entry in entries {
                self.verify_entry(&entry).await;
            }
            self.counted.verified(started.elapsed());
        }
        self.sweep().await;
        self.sweep_needless().await;
    }

    /// Deletes attachments that were asked for just before their volume went, by a controller that
    /// ended before it could take that back. Without their volume nobody knows what they are about,
    /// so nobody else would ever delete them.
    async fn sweep(&self) {
        let ours: BTreeSet<String> = {
            let state = self.state.lock();
            let name = |entry: &OnNode| {
                let spec = entry.spec.as_ref()?;
                Some(attachment_name(&spec.handle, &spec.driver, &entry.node))
            };
            state.actual.all().iter().filter_map(name).collect()
        };
        for attachment in self.attachments.list() {
            if is_untouched(&attachment) && !ours.contains(&attachment.metadata.name) {
                self.sweep_one(&attachment).await;
            }
        }
    }

    /// Deletes attachments of drivers whose CSIDriver says that they need none: such an object is there
    /// when the CSIDriver was away for a moment. No attacher ever acts on it, and whoever deletes the
    /// volume would wait for it.
    pub(super) async fn sweep_needless(&self) {
        for attachment in self.attachments.list() {
            if is_untouched(&attachment) && !self.must_attach(&attachment.spec.attacher) {
                self.sweep_away(&attachment, "deleted: its driver needs no attachments").await;
            }
        }
    }

    async fn sweep_one(&self, attachment: &VolumeAttachment) {
        let Some(pv) = attachment.spec.source.persistent_volume_name.as_deref() else { return };
        let volume = ObjectKey::cluster(pv);
        if self.volumes.get(&volume).is_some() {
            return;
        }
        let name = &attachment.metadata.name;
        // The cache may be behind; only the API's own word counts as "gone".
        match self.api.get::<Volume>(&volume).await {
            Ok(None) => {}
            Ok(Some(_)) => return,
            Err(error) => return tracing::warn!(attachment = name, %error, "cannot be looked at"),
        }
        self.sweep_away(attachment, "deleted: its volume is gone").await;
    }

    async fn sweep_away(&self, attachment: &VolumeAttachment, why: &str) {
        let name = &attachment.metadata.name;
        let volume = attachment.spec.source.persistent_volume_name.as_deref().unwrap_or_default();
        let only = DeleteParams::uid(attachment.metadata.uid.clone());
        match self.api.delete::<VolumeAttachment>(&attachment.metadata.key(), &only).await {
            Ok(()) => longshore_cluster::log_result!(attachment = name, volume, "{why}"),
            Err(error) if error.is_not_found() || error.is_conflict() => {}
            Err(error) => tracing::warn!(attachment = name, %error, "cannot be deleted"),
        }
    }

    async fn verify_entry(&self, entry: &OnNode) {
        if self.is_attached(entry).await != Some(false) {
            return;
        }
        let (volume, node) = (&entry.volume, &entry.node);
        self.state.change(|state| {
            // An operation under way knows better, and must not lose what is known so far.
            if state.pending.is_pending(&key_of(entry)) {
                return;
            }
            tracing::warn!(%volume, node = node.as_str(), "no longer attached");
            state.actual.mark_detached(volume, node);
            state.mark(volume);
        });
    }

    /// Whether the attachment stands; `None` when nobody can tell, so that nothing changes.
    pub(super) async fn is_attached(&self, entry: &OnNode) -> Option<bool> {
        let spec = entry.spec.as_ref()?;
        if !self.must_attach(&spec.driver) {
            return Some(true);
        }
        let key = ObjectKey::cluster(attachment_name(&spec.handle, &spec.driver, &entry.node));
        if let Some(attachment) = self.attachments.get(&key) {
            return Some(attachment.status.attached);
        }
        // The cache may be behind; only the API's own word counts as "gone".
        match self.api.get::<VolumeAttachment>(&key).await {
            Ok(attachment) => Some(attachment.is_some_and(|found| found.status.attached)),
            Err(error) => {
                tracing::warn!(attachment = %key, %error, "cannot be looked at");
                None
            }
        }
    }
}

/// Whether an attachment is one of this controller's making that no attacher has begun to act on.
fn is_untouched(attachment: &VolumeAttachment) -> bool {
    let meta = &attachment.metadata;
    let hash = meta.name.strip_prefix("csi-").unwrap_or_default();
    hash.len() == 64
        && hash.bytes().all(|digit| digit.is_ascii_hexdigit())
        && meta.finalizers.is_empty()
        && !meta.deleting()
        && !attachment.status.attached
}
