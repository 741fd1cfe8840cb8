//! Stage and publish.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use base64::Engine;
use longshore_core::model::ObjectKey;
use longshore_core::model::kinds::{CsiDriver, Pod, Secret, SecretRef, VolumeAttachment};
use longshore_core::stage::access::{csi_access, only_one_pod};
use longshore_core::stage::fsgroup::{Policy, View, group_to_apply};
use longshore_core::stage::names::attachment_name;
use longshore_core::stage::paths::{VolData, publish_target, staging_target};
use longshore_core::stage::verdict::{Failure, Mounted, after_failure};
use longshore_core::stage::world::{Known, PodMount};
use longshore_csi::capabilities::{NodeCapabilities, NodeCapability};
use longshore_csi::{Client, CsiError, v1};

use super::{OpError, Plugin, Use, VolumeFacts, VolumeManager, files, fsgroup};

const STAGE: &str = "MountDevice";
const PUBLISH: &str = "SetUp";

/// Everything that both calls need.
struct Mounting {
    facts: VolumeFacts,
    one: Use,
    pod: Arc<Pod>,
    driver_object: Option<Arc<CsiDriver>>,
    client: Client,
    capabilities: NodeCapabilities,
    publish_context: BTreeMap<String, String>,
}

impl VolumeManager {
    /// Stages the volume if it is not, then publishes it to the pod.
    pub(super) async fn mount(&self, unique: &str, uid: &str) -> Result<(), OpError> {
        let Some((facts, one, pod, attachable)) = self.look(unique, uid) else { return Ok(()) };
        self.check_node(&facts)?;
        self.check_other_pods(unique, uid, &facts)?;
        if facts.plugin != Plugin::Csi {
            return self.mount_own(unique, uid, &facts, &one, &pod).await;
        }
        let publish_context =
            if attachable { self.attachment(&facts).await? } else { BTreeMap::new() };
        let client = self
            .deps
            .drivers
            .client(&facts.driver)
            .ok_or_else(|| not_registered(STAGE, &facts.driver))?;
        let capabilities = client.node_get_capabilities(v1::NodeGetCapabilitiesRequest {}).await;
        let capabilities = capabilities.map_err(|error| call_failed(STAGE, &error))?;
        let driver_object = self.deps.csi_drivers.get(&ObjectKey::cluster(&facts.driver));
        let capabilities = NodeCapabilities::from(&capabilities);
        let mounting =
            Mounting { facts, one, pod, driver_object, client, capabilities, publish_context };
        if !mounting.facts.inline {
            self.stage(unique, attachable, &mounting).await?;
        }
        self.publish(unique, uid, &mounting).await
    }

    fn look(&self, unique: &str, uid: &str) -> Option<(VolumeFacts, Use, Arc<Pod>, bool)> {
        let state = self.state();
        let pod = state.pods.get(uid)?;
        let one = pod.uses.as_ref()?.values().find(|one| one.unique == unique)?.clone();
        let attachable = state.world.desired.get(unique)?.attachable;
        Some((state.volumes.get(unique)?.clone(), one, pod.pod.clone(), attachable))
    }

    fn check_node(&self, facts: &VolumeFacts) -> Result<(), OpError> {
        let Some(volume) = &facts.volume else { return Ok(()) };
        let node = self.deps.node.get(&ObjectKey::cluster(&self.deps.node_name));
        let labels = node.map(|node| node.metadata.labels.clone()).unwrap_or_default();
        if volume.reachable_from(&self.deps.node_name, &labels) {
            return Ok(());
        }
        let text = format!(
            "no matching NodeSelectorTerms: volume cannot be reached from node {}",
            self.deps.node_name
        );
        Err(OpError::new("NodeAffinity check", Failure::Transient, text))
    }

    fn check_other_pods(
        &self,
        unique: &str,
        uid: &str,
        facts: &VolumeFacts,
    ) -> Result<(), OpError> {
        let single =
            facts.volume.as_ref().is_some_and(|volume| only_one_pod(&volume.spec.access_modes));
        if single && self.state().world.used_by_other_pod(unique, uid) {
            let text =
                "volume uses the ReadWriteOncePod access mode and is already in use by another pod";
            return Err(OpError::new(PUBLISH, Failure::Transient, text));
        }
        Ok(())
    }

    /// The attachment's publish context; it must be there now, whatever the node object said.
    async fn attachment(&self, facts: &VolumeFacts) -> Result<BTreeMap<String, String>, OpError> {
        let step = "WaitForAttach";
        let name = attachment_name(&facts.handle, &facts.driver, &self.deps.node_name);
        let found = self.deps.api.get::<VolumeAttachment>(&ObjectKey::cluster(&name)).await;
        let found = found.map_err(|error| OpError::new(step, Failure::Transient, error))?;
        let problem = match &found {
            None => format!("volumeattachments.storage.k8s.io \"{name}\" not found"),
            Some(one) if one.metadata.deleting() => {
                format!("volume attachment {name} is being deleted")
            }
            Some(one) if !one.status.attached => {
                format!("volume attachment {name} is not attached yet")
            }
            Some(one) => return Ok(one.status.attachment_metadata.clone().into_iter().collect()),
        };
        Err(OpError::new(step, Failure::Transient, problem))
    }

    async fn stage(
        &self,
        unique: &str,
        attachable: bool,
        mounting: &Mounting,
    ) -> Result<(), OpError> {
        let before = {
            let mut state = self.state();
            let known = state.world.actual.entry(unique.to_owned()).or_default();
            known.attachable = attachable;
            (known.device, known.reconstructed)
        };
        if before.0 == Mounted::Yes {
            return Ok(());
        }
        let result = self.try_stage(unique, mounting).await;
        self.change(unique, |known| match &result {
            Ok(()) => (known.device, known.reconstructed) = (Mounted::Yes, false),
            Err(error) => known.device = after_failure(before.0, error.failure, before.1),
        });
        result
    }

    async fn try_stage(&self, unique: &str, mounting: &Mounting) -> Result<(), OpError> {
        let Mounting { facts, client, .. } = mounting;
        let local = |error: std::io::Error| OpError::new(STAGE, Failure::Transient, error);
        let volume = facts
            .volume
            .as_ref()
            .ok_or_else(|| OpError::new(STAGE, Failure::Transient, "no such volume"))?;
        let csi = volume.spec.csi.as_ref();
        let secrets = self
            .secrets(STAGE, csi.and_then(|csi| csi.node_stage_secret_ref.as_ref()), None)
            .await?;
        let dir = self.deps.paths.staging(&facts.driver, &facts.handle);
        let dir = dir.map_err(|error| OpError::new(STAGE, Failure::Transient, error))?;
        let target = staging_target(&dir);
        files::make_dir(&target).map_err(local)?;
        if !mounting.capabilities.has(NodeCapability::StageUnstageVolume) {
            return Ok(());
        }
        files::write_vol_data(&dir, &VolData::staged(&facts.driver, &facts.handle))
            .map_err(local)?;
        // From here on the driver may have done it, whatever becomes of this task.
        self.change(unique, |known| known.device = known.device.max(Mounted::Unknown));
        let request = v1::NodeStageVolumeRequest {
            volume_id: facts.handle.clone(),
            publish_context: mounting.publish_context.clone(),
            staging_target_path: text(&target),
            volume_capability: Some(mounting.capability(STAGE)?),
            secrets,
            volume_context: csi
                .map(|csi| csi.volume_attributes.clone().into_iter().collect())
                .unwrap_or_default(),
        };
        let Err(error) = client.node_stage_volume(request).await else { return Ok(()) };
        let error = call_failed(STAGE, &error);
        let reconstructed =
            self.state().world.actual.get(unique).is_some_and(|known| known.reconstructed);
        if error.failure == Failure::Final && !reconstructed {
            files::clean(&target).map_err(local)?;
        }
        Err(error)
    }

    async fn publish(&self, unique: &str, uid: &str, mounting: &Mounting) -> Result<(), OpError> {
        let before = {
            let mut state = self.state();
            let known = state.world.actual.entry(unique.to_owned()).or_default();
            known.pods.get(uid).copied().unwrap_or_default()
        };
        let result = self.try_publish(unique, uid, before, mounting).await;
        self.change(unique, |known| match &result {
            Ok(()) => {
                known.pods.insert(
                    uid.to_owned(),
                    PodMount { state: Mounted::Yes, ..PodMount::default() },
                );
            }
            Err(error) => match after_failure(before.state, error.failure, before.reconstructed) {
                Mounted::No => drop(known.pods.remove(uid)),
                state => drop(known.pods.insert(uid.to_owned(), PodMount { state, ..before })),
            },
        });
        result
    }

    async fn try_publish(
        &self,
        unique: &str,
        uid: &str,
        before: PodMount,
        mounting: &Mounting,
    ) -> Result<(), OpError> {
        let local = |error: std::io::Error| OpError::new(PUBLISH, Failure::Transient, error);
        let facts = &mounting.facts;
        mounting.check_lifecycle()?;
        let dir = self.deps.paths.publish(uid, &facts.spec_name);
        let request = self.publish_request(&dir, mounting).await?;
        files::make_dir(&dir).map_err(local)?;
        let node = &self.deps.node_name;
        let data =
            VolData::published(&facts.driver, &facts.handle, &facts.spec_name, node, facts.inline);
        files::write_vol_data(&dir, &data).map_err(local)?;
        self.change(unique, |known| {
            let mount = known.pods.entry(uid.to_owned()).or_default();
            mount.state = mount.state.max(Mounted::Unknown);
        });
        if let Err(error) = mounting.client.node_publish_volume(request).await {
            let error = call_failed(PUBLISH, &error);
            if error.failure == Failure::Final && before == PodMount::default() {
                files::clean(&publish_target(&dir)).map_err(local)?;
            }
            return Err(error);
        }
        mounting.apply_group(&publish_target(&dir)).await
    }

    async fn publish_request(
        &self,
        dir: &Path,
        mounting: &Mounting,
    ) -> Result<v1::NodePublishVolumeRequest, OpError> {
        let Mounting { facts, one, pod, .. } = mounting;
        let csi = facts.volume.as_ref().and_then(|volume| volume.spec.csi.as_ref());
        let inline = mounting.inline();
        let secret = csi.map_or_else(
            || inline.and_then(|inline| inline.node_publish_secret_ref.as_ref()),
            |csi| csi.node_publish_secret_ref.as_ref(),
        );
        let own_namespace = facts.inline.then_some(pod.metadata.namespace.as_str());
        let staged = !facts.inline && mounting.capabilities.has(NodeCapability::StageUnstageVolume);
        let staging = self.deps.paths.staging(&facts.driver, &facts.handle);
        let staging = staging.map_err(|error| OpError::new(PUBLISH, Failure::Transient, error))?;
        let attributes = csi
            .map(|csi| &csi.volume_attributes)
            .or(inline.map(|inline| &inline.volume_attributes));
        let mut volume_context: BTreeMap<_, _> =
            attributes.cloned().unwrap_or_default().into_iter().collect();
        volume_context.extend(mounting.pod_info());
        Ok(v1::NodePublishVolumeRequest {
            volume_id: facts.handle.clone(),
            publish_context: mounting.publish_context.clone(),
            staging_target_path: if staged {
                text(&staging_target(&staging))
            } else {
                String::new()
            },
            target_path: text(&publish_target(dir)),
            volume_capability: Some(mounting.capability(PUBLISH)?),
            readonly: one.read_only,
            secrets: self.secrets(PUBLISH, secret, own_namespace).await?,
            volume_context,
        })
    }

    async fn secrets(
        &self,
        step: &'static str,
        reference: Option<&SecretRef>,
        namespace: Option<&str>,
    ) -> Result<BTreeMap<String, String>, OpError> {
        let Some(reference) = reference else { return Ok(BTreeMap::new()) };
        let transient = |text: String| OpError::new(step, Failure::Transient, text);
        let key = ObjectKey::new(namespace.unwrap_or(&reference.namespace), &reference.name);
        let secret = self
            .deps
            .api
            .get::<Secret>(&key)
            .await
            .map_err(|error| transient(error.to_string()))?;
        let secret = secret.ok_or_else(|| transient(format!("secret {key} not found")))?;
        decode(&secret.data)
            .map_err(|name| transient(format!("secret {key}: value of {name} is not text")))
    }

    pub(super) fn change(&self, unique: &str, change: impl FnOnce(&mut Known)) {
        change(self.state().world.actual.entry(unique.to_owned()).or_default());
    }
}

/// Decoded values; on failure the key whose value is not base64 of text.
fn decode(data: &BTreeMap<String, String>) -> Result<BTreeMap<String, String>, String> {
    data.iter()
        .map(|(key, value)| {
            let bytes =
                base64::engine::general_purpose::STANDARD.decode(value).map_err(|_| key.clone())?;
            String::from_utf8(bytes).map(|value| (key.clone(), value)).map_err(|_| key.clone())
        })
        .collect()
}

impl Mounting {
    fn inline(&self) -> Option<&longshore_core::model::kinds::InlineCsi> {
        let volume =
            self.pod.spec.volumes.iter().find(|volume| volume.name == self.facts.spec_name)?;
        volume.csi.as_ref().filter(|_| self.facts.inline)
    }

    fn fs_type(&self) -> String {
        let csi = self.facts.volume.as_ref().and_then(|volume| volume.spec.csi.as_ref());
        let inline = self.inline().and_then(|inline| inline.fs_type.clone());
        csi.map(|csi| csi.fs_type.clone()).or(inline).unwrap_or_default()
    }

    fn modes(&self) -> Vec<String> {
        self.facts
            .volume
            .as_ref()
            .map(|volume| volume.spec.access_modes.clone())
            .unwrap_or_default()
    }

    fn fs_group(&self) -> Option<u32> {
        self.pod.spec.security_context.fs_group
    }

    fn capability(&self, step: &'static str) -> Result<v1::VolumeCapability, OpError> {
        use v1::volume_capability::{AccessMode, AccessType, MountVolume};
        let multi_writer = self.capabilities.has(NodeCapability::SingleNodeMultiWriter);
        let mode = csi_access(&self.modes(), multi_writer).ok_or_else(|| {
            OpError::new(
                step,
                Failure::Transient,
                format!("unknown access modes {:?}", self.modes()),
            )
        })?;
        let by_driver = self.capabilities.has(NodeCapability::VolumeMountGroup);
        let group = self.fs_group().filter(|_| by_driver).map(|group| group.to_string());
        let flags = self.facts.volume.as_ref().map(|volume| volume.spec.mount_options.clone());
        Ok(v1::VolumeCapability {
            access_mode: Some(AccessMode { mode: mode as i32 }),
            access_type: Some(AccessType::Mount(MountVolume {
                fs_type: self.fs_type(),
                mount_flags: flags.unwrap_or_default(),
                volume_mount_group: group.unwrap_or_default(),
            })),
        })
    }

    fn check_lifecycle(&self) -> Result<(), OpError> {
        let driver = &self.facts.driver;
        let transient = |text: String| OpError::new(PUBLISH, Failure::Transient, text);
        let mode = if self.facts.inline { "Ephemeral" } else { "Persistent" };
        let Some(object) = &self.driver_object else {
            let refuse = || {
                transient(format!(
                    "volume mode \"Ephemeral\" not supported by driver {driver} (no CSIDriver object)"
                ))
            };
            return if self.facts.inline { Err(refuse()) } else { Ok(()) };
        };
        let modes = &object.spec.volume_lifecycle_modes;
        let listed =
            modes.iter().any(|one| one == mode) || (modes.is_empty() && !self.facts.inline);
        if !listed {
            return Err(transient(format!(
                "volume mode \"{mode}\" not supported by driver {driver} (only supports {modes:?})"
            )));
        }
        if !object.spec.token_requests.is_empty() {
            return Err(transient(format!(
                "driver {driver} asks for service account tokens, which this node cannot give yet"
            )));
        }
        Ok(())
    }

    fn pod_info(&self) -> Vec<(String, String)> {
        let wanted = self
            .driver_object
            .as_ref()
            .is_some_and(|driver| driver.spec.pod_info_on_mount == Some(true));
        if !wanted {
            return Vec::new();
        }
        let pod = &self.pod;
        let account = match pod.spec.service_account_name.as_str() {
            "" => "default",
            name => name,
        };
        [
            ("pod.name", pod.metadata.name.as_str()),
            ("pod.namespace", &pod.metadata.namespace),
            ("pod.uid", &pod.metadata.uid),
            ("serviceAccount.name", account),
            ("ephemeral", if self.facts.inline { "true" } else { "false" }),
        ]
        .map(|(key, value)| (format!("csi.storage.k8s.io/{key}"), value.to_owned()))
        .into()
    }

    async fn apply_group(&self, target: &Path) -> Result<(), OpError> {
        let uncertain = |text: String| OpError::new(PUBLISH, Failure::Uncertain, text);
        let word =
            self.driver_object.as_ref().and_then(|driver| driver.spec.fs_group_policy.clone());
        let policy =
            word.as_deref().and_then(Policy::parse).unwrap_or(Policy::ReadWriteOnceWithFsType);
        let modes = self.modes();
        let fs_type = self.fs_type();
        let view = View {
            policy,
            fs_group: self.fs_group(),
            read_only: self.one.read_only,
            driver_does_it: self.capabilities.has(NodeCapability::VolumeMountGroup),
            fs_type: &fs_type,
            modes: (!self.facts.inline).then_some(modes.as_slice()),
        };
        let Some(group) = group_to_apply(&view) else { return Ok(()) };
        let on_mismatch = self.pod.spec.security_context.fs_group_change_policy.as_deref()
            == Some("OnRootMismatch");
        let target = target.to_owned();
        let done =
            tokio::task::spawn_blocking(move || fsgroup::apply(&target, group, on_mismatch)).await;
        match done {
            Ok(result) => {
                result.map_err(|error| uncertain(format!("applyFSGroup failed: {error}")))
            }
            Err(error) => Err(uncertain(format!("applyFSGroup failed: {error}"))),
        }
    }
}

pub(super) fn not_registered(step: &'static str, driver: &str) -> OpError {
    let text = format!("driver name {driver} not found in the list of registered CSI drivers");
    OpError::new(step, Failure::Transient, text)
}

/// A driver's answer as a failure of a step.
pub(super) fn call_failed(step: &'static str, error: &CsiError) -> OpError {
    let failure =
        if error.is_final() || error.is_infeasible() { Failure::Final } else { Failure::Uncertain };
    OpError::new(step, failure, longshore_csi::status_text(error.status()))
}

pub(super) fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}
