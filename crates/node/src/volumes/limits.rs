//! Pods that wait for a volume because the node has reached the limit of its driver.

use std::time::Duration;

use longshore_cluster::Outcome;
use longshore_core::model::kinds::VolumeAttachment;
use longshore_core::model::{DriverName, ObjectKey, Uid, VolumeHandle};
use longshore_core::names::attachment_name;

use super::resolve::BIND_GRACE;
use super::{Mounted, VolumeManager};

/// The code with which a driver says that no more volumes fit (`ResourceExhausted`).
const FULL: i32 = 8;

/// How often a pod is told that it waits for a CSIDriver.
const TELL_AGAIN: Duration = Duration::from_secs(120);

/// A driver that cannot attach any more volumes here.
pub(crate) struct Full {
    pub driver: String,
    /// Which volumes of the pod wait.
    pub text: String,
}

impl VolumeManager {
    /// Whether a pod waits for a volume that its driver refused to attach because the node is full,
    /// and the driver wants its limit to be looked at again.
    pub(crate) async fn full_driver(&self, uid: &Uid) -> Option<Full> {
        let (waiting, text) = self.unattached(uid)?;
        for (driver, handle) in waiting {
            let object = self.deps.csi_drivers.get(&ObjectKey::cluster(&driver))?;
            if object.spec.node_allocatable_update_period_seconds.is_none() {
                continue;
            }
            let name = attachment_name(&handle, &driver, &self.deps.node_name);
            let key = ObjectKey::cluster(&name);
            let attachment = match self.deps.api.get::<VolumeAttachment>(&key).await {
                Ok(attachment) => attachment?,
                Err(error) => {
                    tracing::warn!(attachment = name, %error, "cannot read why the volume is not attached");
                    continue;
                }
            };
            let error = attachment.status.attach_error;
            if error.is_some_and(|error| error.error_code == Some(FULL)) {
                return Some(Full { driver: driver.into(), text });
            }
        }
        None
    }

    /// Tells a pod whose volumes wait to be attached only because their drivers have no CSIDriver: then
    /// a volume has to be attached, and often nobody does it.
    pub(super) fn tell_unattached(&self, uid: &Uid) -> Outcome {
        let Some((waiting, text)) = self.unattached(uid) else { return Outcome::Done };
        let object = |name: &DriverName| self.deps.csi_drivers.get(&ObjectKey::cluster(name));
        let unknown = waiting.into_iter().map(|(driver, _)| driver);
        let Some(driver) = unknown.into_iter().find(|driver| object(driver).is_none()) else {
            return Outcome::Done;
        };
        let Some((pod, since)) =
            self.state().pods.get(uid).map(|facts| (facts.pod.clone(), facts.since))
        else {
            return Outcome::Done;
        };
        if since.elapsed() < BIND_GRACE {
            return Outcome::After(BIND_GRACE.saturating_sub(since.elapsed()));
        }
        let text = format!(
            "Unable to attach or mount volumes: {text}: csidriver.storage.k8s.io \"{driver}\" not \
             found. Without it a volume has to be attached by the attacher of {driver} first"
        );
        self.deps.recorder.warning(pod.as_ref(), "FailedMount", text);
        Outcome::After(TELL_AGAIN)
    }

    /// Driver and handle of the pod's volumes that are not attached, and the text for its event.
    fn unattached(&self, uid: &Uid) -> Option<(Vec<(DriverName, VolumeHandle)>, String)> {
        let state = self.state();
        let uses = state.pods.get(uid)?.uses.as_ref()?;
        let (mut unmounted, mut unattached, mut found) = (Vec::new(), Vec::new(), Vec::new());
        for (name, one) in uses {
            let known = state.world.actual.get(&one.unique).and_then(|known| known.pods.get(uid));
            if known.is_some_and(|mount| mount.state == Mounted::Yes) {
                continue;
            }
            unmounted.push(name.as_str());
            let wanted = state.world.desired.get(&one.unique);
            let attached = state.world.node.attached.contains(&one.unique);
            if wanted.is_some_and(|wanted| wanted.attachable) && !attached {
                unattached.push(name.as_str());
                let facts = state.volumes.get(&one.unique)?;
                found.push((facts.driver.clone(), facts.handle.clone()));
            }
        }
        let text = format!(
            "unmounted volumes=[{}], unattached volumes=[{}], failed to process volumes=[]",
            unmounted.join(" "),
            unattached.join(" ")
        );
        Some((found, text))
    }
}
