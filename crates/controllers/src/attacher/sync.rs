//! Compares VolumeAttachments with the driver's ListVolumes.

use std::collections::{BTreeMap, BTreeSet};

use longshore_core::{model::kinds::VolumeAttachment, provision::migration::repair_handle};
use longshore_csi::{
    Call, CsiError,
    capabilities::ControllerCapability,
    v1::{ListVolumesRequest, list_volumes_response::Entry},
};
use tokio::time::{Instant, sleep};

use super::Sidecar;

/// Node ids by volume handle.
type Published = BTreeMap<String, BTreeSet<String>>;

impl Sidecar {
    /// Compares again and again, while the driver can say what is published where.
    pub(super) async fn compare_forever(&self) {
        let mut losses = self.driver.connection_losses();
        loop {
            match self.compare_if_listed().await {
                Ok(true) => {}
                // Only another driver behind the socket can change that.
                Ok(false) => drop(losses.changed().await),
                Err(error) => {
                    tracing::warn!(%error, "the driver's list of volumes could not be read");
                }
            }
            sleep(self.config.reconcile_sync).await;
        }
    }

    /// Compares once, unless the driver does not list volumes with their nodes: then the answer is false.
    async fn compare_if_listed(&self) -> Result<bool, CsiError> {
        let driver = self.driver.controller_capabilities().await?;
        let listed = driver.has(ControllerCapability::ListVolumesPublishedNodes)
            && self.driver.supports(Call::ListVolumes).await?;
        if listed {
            self.compare().await?;
        }
        Ok(listed)
    }

    /// One comparison: whatever disagrees gets a pass that repeats the call.
    async fn compare(&self) -> Result<(), CsiError> {
        let attachments = self.attachments.list();
        let published = self.published().await?;
        for attachment in attachments.iter().filter(|one| one.spec.attacher == self.name) {
            let Some(actual) = self.is_published(attachment, &published) else { continue };
            if actual != attachment.status.attached {
                let name = &attachment.metadata.name;
                longshore_cluster::log_result!(attachment = %name, actual, "status and driver disagree");
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
            false => handle.to_string(),
        };
        let nodes = published.get(&handle);
        Some(nodes.is_some_and(|nodes| nodes.contains(&node_id)))
    }

    async fn published(&self) -> Result<Published, CsiError> {
        let driver = self.driver.with_deadline(Instant::now() + self.config.timeout);
        let mut published = Published::new();
        let request = ListVolumesRequest {
            max_entries: self.config.max_entries,
            ..ListVolumesRequest::default()
        };
        let collect = |entry: Entry| {
            if let (Some(volume), Some(status)) = (entry.volume, entry.status) {
                let nodes = status.published_node_ids.into_iter().collect();
                published.insert(volume.volume_id, nodes);
            }
        };
        driver.list_all_volumes(request, collect).await?;
        Ok(published)
    }
}
