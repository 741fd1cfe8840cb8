//! Requests of NodeStageVolume and NodePublishVolume.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use longshore_cluster::secrets::read_secret;
use longshore_core::access_mode;
use longshore_core::model::kinds::{CsiDriver, Pod, SecretRef};
use longshore_core::model::{AccessMode, ObjectKey};
use longshore_core::stage::fsgroup::{Policy, View, group_to_apply};
use longshore_core::stage::selinux::mount_flag;
use longshore_core::stage::tokens;
use longshore_core::stage::verdict::Failure;
use longshore_core::words;
use longshore_csi::capabilities::{NodeCapabilities, NodeCapability};
use longshore_csi::{Client, v1};

use super::mount::{PUBLISH, text};
use super::tokens::account;
use super::{OpCause, OpError, Use, VolumeFacts, VolumeManager};

/// A volume that is being mounted for a pod, with its driver.
pub(super) struct Mounting {
    pub facts: VolumeFacts,
    pub one: Use,
    pub pod: Arc<Pod>,
    pub driver_object: Option<Arc<CsiDriver>>,
    pub client: Client,
    pub capabilities: NodeCapabilities,
    pub publish_context: BTreeMap<String, String>,
    /// SELinux label to mount with; empty for none.
    pub label: String,
    /// The name under which the volume is staged, where that is by name: that of the PersistentVolume
    /// through which it was staged.
    pub staged_as: String,
}

impl VolumeManager {
    pub(super) async fn secrets(
        &self,
        step: &'static str,
        reference: Option<&SecretRef>,
        namespace: Option<&str>,
    ) -> Result<BTreeMap<String, String>, OpError> {
        let Some(reference) = reference else { return Ok(BTreeMap::new()) };
        let key = ObjectKey::new(namespace.unwrap_or(&reference.namespace), &reference.name);
        let read = read_secret(&self.deps.api, &key).await;
        read.map_err(|source| {
            OpError::new(step, Failure::Transient, OpCause::Secret { key, source })
        })
    }
}

impl Mounting {
    pub(super) async fn stage_request(
        &self,
        manager: &VolumeManager,
        step: &'static str,
        target: &Path,
    ) -> Result<v1::NodeStageVolumeRequest, OpError> {
        let facts = &self.facts;
        let volume = facts.volume.as_ref();
        let volume =
            volume.ok_or_else(|| OpError::new(step, Failure::Transient, "no such volume"))?;
        let csi = volume.spec.csi.as_ref();
        let secret = csi.and_then(|csi| csi.node_stage_secret_ref.as_ref());
        Ok(v1::NodeStageVolumeRequest {
            volume_id: facts.handle.to_string(),
            publish_context: self.publish_context.clone(),
            staging_target_path: text(target),
            volume_capability: Some(self.capability(step)?),
            secrets: manager.secrets(step, secret, None).await?,
            volume_context: csi
                .map(|csi| csi.volume_attributes.clone().into_iter().collect())
                .unwrap_or_default(),
        })
    }

    pub(super) async fn publish_request(
        &self,
        manager: &VolumeManager,
        step: &'static str,
        target: &Path,
        staging: Option<&Path>,
    ) -> Result<v1::NodePublishVolumeRequest, OpError> {
        let Self { facts, one, pod, .. } = self;
        let csi = facts.volume.as_ref().and_then(|volume| volume.spec.csi.as_ref());
        let inline = self.inline();
        let secret = csi.map_or_else(
            || inline.and_then(|inline| inline.node_publish_secret_ref.as_ref()),
            |csi| csi.node_publish_secret_ref.as_ref(),
        );
        let own_namespace = facts.inline.then_some(pod.metadata.namespace.as_str());
        let mut secrets = manager.secrets(step, secret, own_namespace).await?;
        let attributes = csi
            .map(|csi| &csi.volume_attributes)
            .or(inline.map(|inline| &inline.volume_attributes));
        let mut volume_context: BTreeMap<_, _> =
            attributes.cloned().unwrap_or_default().into_iter().collect();
        volume_context.extend(self.pod_info());
        let driver = self.driver_object.as_deref().filter(|_| !facts.block);
        if let Some(text) = manager.token_text(step, pod, driver).await? {
            let secret = driver
                .is_some_and(|driver| driver.spec.service_account_token_in_secrets == Some(true));
            let place = if secret { &mut secrets } else { &mut volume_context };
            place.insert(tokens::KEY.to_owned(), text);
        }
        Ok(v1::NodePublishVolumeRequest {
            volume_id: facts.handle.to_string(),
            publish_context: self.publish_context.clone(),
            staging_target_path: staging.map(text).unwrap_or_default(),
            target_path: text(target),
            volume_capability: Some(self.capability(step)?),
            readonly: one.read_only,
            secrets,
            volume_context,
        })
    }

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

    fn modes(&self) -> Vec<AccessMode> {
        self.facts
            .volume
            .as_ref()
            .map(|volume| volume.spec.access_modes.clone())
            .unwrap_or_default()
    }

    fn fs_group(&self) -> Option<u32> {
        self.pod.spec.security_context.fs_group
    }

    /// For stage and publish: with the pod's group and label.
    pub(super) fn capability(&self, step: &'static str) -> Result<v1::VolumeCapability, OpError> {
        use v1::volume_capability::AccessType;
        let mut capability = self.plain_capability(step)?;
        if let Some(AccessType::Mount(mount)) = &mut capability.access_type {
            let by_driver = self.capabilities.has(NodeCapability::VolumeMountGroup);
            let group = self.fs_group().filter(|_| by_driver);
            mount.volume_mount_group = group.map(|group| group.to_string()).unwrap_or_default();
            mount.mount_flags.extend(mount_flag(&self.label));
        }
        Ok(capability)
    }

    /// For growing, where no pod matters.
    pub(super) fn plain_capability(
        &self,
        step: &'static str,
    ) -> Result<v1::VolumeCapability, OpError> {
        use v1::volume_capability::{self, AccessType, BlockVolume, MountVolume};
        let multi_writer = self.capabilities.has(NodeCapability::SingleNodeMultiWriter);
        let mode = access_mode::for_node(&self.modes(), multi_writer).ok_or_else(|| {
            OpError::new(
                step,
                Failure::Transient,
                format!("unknown access modes {}", words::list(self.modes())),
            )
        })?;
        let access_mode = Some(volume_capability::AccessMode { mode: mode as i32 });
        if self.facts.block {
            let access_type = Some(AccessType::Block(BlockVolume {}));
            return Ok(v1::VolumeCapability { access_mode, access_type });
        }
        let own = self.facts.volume.as_ref().map(|volume| volume.spec.mount_options.as_slice());
        let access_type = Some(AccessType::Mount(MountVolume {
            fs_type: self.fs_type(),
            mount_flags: own.unwrap_or_default().to_vec(),
            volume_mount_group: String::new(),
        }));
        Ok(v1::VolumeCapability { access_mode, access_type })
    }

    pub(super) fn check_lifecycle(&self) -> Result<(), OpError> {
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
        if object.spec.fs_group_policy.as_deref() == Some("") {
            return Err(transient(format!("CSIDriver {driver} has an empty fsGroupPolicy")));
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
        let account = account(pod);
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

    pub(super) async fn apply_group(
        &self,
        manager: &VolumeManager,
        target: &Path,
    ) -> Result<(), OpError> {
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
        let began = tokio::time::Instant::now();
        let given = manager.give_to_group(&self.pod, target, group, on_mismatch).await;
        let part = "volume_apply_access_control";
        manager.measured_part(&self.facts, part, began.elapsed(), given.is_ok());
        given.map_err(|error| OpError::new(PUBLISH, Failure::Uncertain, OpCause::FsGroup(error)))
    }
}
