//! Comparing attachments with the driver's own list.

use std::collections::{BTreeMap, BTreeSet};

use longshore_core::{model::kinds::VolumeAttachment, provision::migration::repair_handle};
use longshore_csi::{CsiError, capabilities::ControllerCapability, v1::ListVolumesRequest};
use tokio::time::{Instant, sleep};

use super::Sidecar;

/// Node ids by volume handle.
type Published = BTreeMap<String, BTreeSet<String>>;

impl Sidecar {
    /// Compares again and again, if the driver can say what is published where.
    pub(super) async fn compare_forever(&self) {
        let can = |capability| self.capabilities.has(capability);
        if !can(ControllerCapability::ListVolumes)
            || !can(ControllerCapability::ListVolumesPublishedNodes)
        {
            return;
        }
        loop {
            if let Err(error) = self.compare().await {
                tracing::warn!(%error, "the driver's list of volumes could not be read");
            }
            sleep(self.config.reconcile_sync).await;
        }
    }

    /// One comparison: whatever disagrees gets a pass that repeats the call.
    async fn compare(&self) -> Result<(), CsiError> {
        let attachments = self.caches.attachments.list();
        let published = self.published().await?;
        for attachment in attachments.iter().filter(|one| one.spec.attacher == self.name) {
            let Some(actual) = self.is_published(attachment, &published) else { continue };
            if actual != attachment.status.attached {
                let name = &attachment.metadata.name;
                tracing::info!(attachment = %name, actual, "status and driver disagree");
                self.lanes.force(name);
                self.enqueue(attachment);
            }
        }
        Ok(())
    }

    fn is_published(&self, attachment: &VolumeAttachment, published: &Published) -> Option<bool> {
        let node_id = self.last_node_id(attachment).ok()?;
        let attached = self.look_up(attachment).ok()?;
        // The driver lists handles whole; a translated one may lack what the volume did not say.
        let handle = &attached.csi.volume_handle;
        let handle = match attached.translated || attached.volume.is_none() {
            true => repair_handle(&self.name, handle, &node_id).ok()?,
            false => handle.clone(),
        };
        let nodes = published.get(&handle);
        Some(nodes.is_some_and(|nodes| nodes.contains(&node_id)))
    }

    async fn published(&self) -> Result<Published, CsiError> {
        let driver = self.driver.with_deadline(Instant::now() + self.config.timeout);
        let mut published = Published::new();
        let mut request = ListVolumesRequest {
            max_entries: self.config.max_entries,
            ..ListVolumesRequest::default()
        };
        loop {
            let page = driver.list_volumes(request.clone()).await?;
            for entry in page.entries {
                if let (Some(volume), Some(status)) = (entry.volume, entry.status) {
                    let nodes = status.published_node_ids.into_iter().collect();
                    published.insert(volume.volume_id, nodes);
                }
            }
            if page.next_token.is_empty() {
                return Ok(published);
            }
            request.starting_token = page.next_token;
        }
    }
}
