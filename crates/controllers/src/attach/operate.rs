//! One attach or detach, from the first request to the verdict.

use std::{future::Future, panic::AssertUnwindSafe, sync::Arc};

use futures::FutureExt;
use longshore_cluster::{ApiError, DeleteParams, EventType, OptionalExt as _};
use longshore_core::{
    attach::{
        AttachSpec, OnNode, Operation, OperationKey, PodId, Shown, Verdict, attach_verdict,
        detach_verdict, timeout_message,
    },
    model::{
        Kind, NodeName, ObjectKey, ObjectRef,
        kinds::{Node, Pod, Volume, VolumeAttachment},
    },
    names::{CSI_PLUGIN, NameError, UniqueName, attachment_name, metrics_plugin},
};
use serde_json::json;
use tokio::time::{Instant, timeout};

use super::{Controller, permit::PermitGuard, reconcile::out_of_service};
use crate::{index::pods_of_claim, planted::Planted};

/// Why an attach or a detach did not come to its end.
#[derive(Debug, thiserror::Error)]
enum OperationError {
    #[error("{0}")]
    Api(#[from] ApiError),
    #[error("detacher.Detach failed to delete VolumeAttachment [{name}]: {source}")]
    Delete { name: String, source: ApiError },
    #[error("{0}")]
    Name(#[from] NameError),
    #[error("volume is still in use by node, according to Node status")]
    StillInUse,
    #[error("the node is ready and uses the volume: it is not taken away by force")]
    Healthy,
    /// The attacher's own words, or that there were none.
    #[error("{0}")]
    Verdict(String),
    #[error("the operation panicked")]
    Panicked,
}

impl Controller {
    /// Attaches a volume and tells the pods that wait for it.
    pub(super) async fn attach(
        self: Arc<Self>,
        mut permit: PermitGuard,
        key: OperationKey,
        node: NodeName,
        spec: AttachSpec,
    ) {
        let volume = spec.unique_name();
        let started = Instant::now();
        let result = guarded(self.attach_once(&mut permit, &node, &spec)).await;
        let (took, done) = (started.elapsed(), result.is_ok());
        self.counted.operation(Operation::Attach, &spec.plugin(), spec.migrated, took, done);
        let now = self.state.now();
        let pods = self.state.change(|state| {
            match &result {
                Ok(()) => {
                    state.actual.mark_attached(&volume, Some(spec.clone()), &node, "");
                    state.pending.succeed(&key);
                }
                Err(_) => {
                    // It may have happened all the same.
                    state.actual.mark_uncertain(&volume, Some(spec.clone()), &node);
                    let until = state.pending.fail(&key, now);
                    state.wake_at(until, &volume);
                }
            }
            state.mark(&volume);
            let wanted = state.desired.get(&volume, &node);
            wanted.map(|wanted| wanted.pods.values().cloned().collect::<Vec<_>>())
        });
        let name = &spec.name;
        for pod in pods.unwrap_or_default() {
            match &result {
                Ok(()) => {
                    // The space at the end is part of the recorded text.
                    let text = format!("AttachVolume.Attach succeeded for volume \"{name}\" ");
                    let pod = pod_ref(&pod);
                    self.recorder.event(&pod, EventType::Normal, "SuccessfulAttachVolume", text);
                }
                Err(error) => {
                    let text =
                        format!("AttachVolume.Attach failed for volume \"{name}\" : {error}");
                    self.warn_pod(&pod, text);
                }
            }
        }
        if let Err(error) = result {
            if !self.must_attach(&spec.driver) {
                self.sweep_soon.notify_one();
            }
            tracing::warn!(volume = %name, node = node.as_str(), %error, "attach failed");
        }
    }

    async fn attach_once(
        &self,
        permit: &mut PermitGuard,
        node: &NodeName,
        spec: &AttachSpec,
    ) -> Result<(), OperationError> {
        let name = attachment_name(&spec.handle, &spec.driver, node);
        let key = ObjectKey::cluster(&name);
        if self.attachments.get(&key).is_none() {
            let source = match &spec.inline {
                None => json!({"persistentVolumeName": spec.name}),
                Some(inline) => json!({"inlineVolumeSpec": inline}),
            };
            let object = json!({
                "metadata": {"name": name},
                "spec": {"attacher": spec.driver, "nodeName": node, "source": source},
            });
            match self.api.create::<VolumeAttachment>(&object).await {
                Ok(made) => self.attachments.assume(&made),
                Err(error) if error.is_already_exists() => {}
                Err(error) => return Err(error.into()),
            }
        }
        permit.release_permit();
        let late = || timeout_message(Some(&spec.driver), "attach", &spec.handle);
        let verdict = |seen: Option<Shown<'_>>| match self.must_attach(&spec.driver) {
            true => attach_verdict(seen),
            false => Verdict::Failed(format!("CSIDriver {} needs no attachments", spec.driver)),
        };
        self.wait(&key, verdict, late).await
    }

    /// Takes a volume off the node's report, then off the node.
    pub(super) async fn detach(
        self: Arc<Self>,
        mut permit: PermitGuard,
        key: OperationKey,
        entry: OnNode,
        verify_safe: bool,
    ) {
        let (volume, node) = (&entry.volume, &entry.node);
        if let Err(error) = self.report(node).await {
            // The node may still rely on it: nothing has begun.
            tracing::warn!(%volume, node = node.as_str(), %error, "detach put off: the node's report failed");
            return self.state.change(|state| {
                state.actual.add_to_report(volume, node);
                let until = state.pending.fail(&key, self.state.now());
                state.wake_at(until, volume);
            });
        }
        let started = Instant::now();
        let result = guarded(self.detach_once(&mut permit, volume, node, verify_safe)).await;
        let (took, done) = (started.elapsed(), result.is_ok());
        let (plugin, migrated) = plugin(&entry);
        self.counted.operation(Operation::Detach, &plugin, migrated, took, done);
        let now = self.state.now();
        self.state.change(|state| {
            match &result {
                Ok(()) => {
                    state.actual.mark_detached(volume, node);
                    state.pending.succeed(&key);
                }
                Err(_) => {
                    state.actual.mark_uncertain(volume, entry.spec.clone(), node);
                    let until = state.pending.fail(&key, now);
                    state.wake_at(until, volume);
                }
            }
            state.mark(volume);
        });
        if let Err(error) = result {
            tracing::warn!(%volume, node = node.as_str(), %error, "detach failed");
            if self.config.failed_detach_events
                && let OperationError::Verdict(why) = error
            {
                self.warn_detach(&entry, &why);
            }
        }
    }

    /// Tells a volume, and the pods that name its claim, that it cannot leave its node.
    fn warn_detach(&self, entry: &OnNode, why: &str) {
        let Some(spec) = &entry.spec else { return };
        let Some(volume) = self.volumes.get(&ObjectKey::cluster(&spec.name)) else { return };
        let text = format!(
            "DetachVolume.Detach failed for volume {:?} of driver {} from node {:?} : {why}. The log of \
             the driver's attacher says more; it is tried again, and no other node gets the volume before",
            spec.name, spec.driver, entry.node
        );
        let claim = volume.spec.claim_ref.as_ref();
        let claim = claim.map(|claim| ObjectKey::new(&claim.namespace, &claim.name));
        let pods = claim.into_iter().flat_map(|claim| pods_of_claim(&self.pods, &claim));
        let pods = pods.map(|pod| ObjectRef::of::<Pod>(&pod.metadata));
        for object in pods.chain([ObjectRef::of::<Volume>(&volume.metadata)]) {
            self.recorder.event(&object, EventType::Warning, "FailedDetach", &text);
        }
    }

    async fn detach_once(
        &self,
        permit: &mut PermitGuard,
        volume: &UniqueName,
        node: &NodeName,
        verify_safe: bool,
    ) -> Result<(), OperationError> {
        self.check_unused(volume, node, verify_safe).await?;
        let (driver, handle) = volume.driver_and_handle()?;
        let name = attachment_name(&handle, &driver, node);
        let key = ObjectKey::cluster(&name);
        let deleted = self.api.delete::<VolumeAttachment>(&key, &DeleteParams::default()).await;
        let deleted = deleted.optional();
        if deleted.map_err(|source| OperationError::Delete { name, source })?.is_none() {
            return Ok(());
        }
        permit.release_permit();
        self.wait(&key, detach_verdict, || timeout_message(None, "detach", &handle)).await
    }

    /// The node's word in the API itself; the cache may be behind. Force is for nodes that
    /// cannot speak for themselves: one that has come back meanwhile keeps what it uses.
    async fn check_unused(
        &self,
        volume: &UniqueName,
        node: &NodeName,
        verify_safe: bool,
    ) -> Result<(), OperationError> {
        if self.config.has(Planted::EarlyDetach) {
            return Ok(());
        }
        let Some(node) = self.api.get::<Node>(&ObjectKey::cluster(node)).await? else {
            return Ok(());
        };
        let used = node.status.volumes_in_use.iter().any(|name| name == volume.as_str());
        match (used, verify_safe) {
            (true, true) => Err(OperationError::StillInUse),
            (true, false) if node.ready() && !out_of_service(&node) => Err(OperationError::Healthy),
            _ => Ok(()),
        }
    }

    /// Waits until the attachment gives a verdict.
    async fn wait(
        &self,
        key: &ObjectKey,
        verdict: impl Fn(Option<Shown<'_>>) -> Verdict,
        late: impl FnOnce() -> String,
    ) -> Result<(), OperationError> {
        let notifier = self.notifiers.notifier(&key.name);
        let settled = async {
            loop {
                let seen = self.attachments.get(key);
                match verdict(seen.as_deref().map(shown)) {
                    Verdict::Done => return Ok(()),
                    Verdict::Failed(why) => return Err(OperationError::Verdict(why)),
                    Verdict::Waiting => notifier.notified().await,
                }
            }
        };
        let limit = timeout(self.config.operation_timeout, settled).await;
        limit.unwrap_or_else(|_| Err(OperationError::Verdict(late())))
    }

    /// Tells a pod that its volume does not come.
    pub(super) fn warn_pod(&self, pod: &PodId, message: String) {
        self.recorder.event(&pod_ref(pod), EventType::Warning, "FailedAttachVolume", message);
    }
}

/// A panic counts as a failure: the operation must not stay taken.
async fn guarded(
    operation: impl Future<Output = Result<(), OperationError>>,
) -> Result<(), OperationError> {
    let result = AssertUnwindSafe(operation).catch_unwind().await;
    result.unwrap_or(Err(OperationError::Panicked))
}

/// What metrics call the volume's plugin, and whether the API knows it by another.
fn plugin(entry: &OnNode) -> (String, bool) {
    match (&entry.spec, entry.volume.driver_and_handle()) {
        (Some(spec), _) => (spec.plugin(), spec.migrated),
        (None, Ok((driver, _))) => (metrics_plugin(&driver), false),
        (None, Err(_)) => (CSI_PLUGIN.to_owned(), false),
    }
}

fn shown(attachment: &VolumeAttachment) -> Shown<'_> {
    let status = &attachment.status;
    Shown {
        deleting: attachment.metadata.deleting(),
        attached: status.attached,
        attach_error: status.attach_error.as_ref().map(|error| error.message.as_str()),
        detach_error: status.detach_error.as_ref().map(|error| error.message.as_str()),
    }
}

fn pod_ref(pod: &PodId) -> ObjectRef {
    ObjectRef {
        api_version: Pod::api_version(),
        kind: Pod::KIND.to_owned(),
        namespace: pod.namespace.clone(),
        name: pod.name.clone(),
        uid: pod.uid.clone(),
        ..ObjectRef::default()
    }
}
