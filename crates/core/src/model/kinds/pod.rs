//! Pods.

use std::collections::BTreeMap;

use crate::model::{DriverName, NodeName, PodPhase};
use jiff::Timestamp;
use serde::Deserialize;

use super::{Condition, Meta, NodeSelector, PodVolumeHealth, meta::nullable};

/// A volume of a pod that names a claim.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClaimVolume {
    /// The claim in the pod's namespace.
    pub claim_name: String,
    /// Mounted read-only everywhere.
    pub read_only: bool,
}

/// An inline CSI volume.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct InlineCsi {
    pub driver: DriverName,
    pub read_only: bool,
    /// Filesystem type.
    pub fs_type: Option<String>,
    /// What the driver is told.
    #[serde(deserialize_with = "nullable")]
    pub volume_attributes: BTreeMap<String, String>,
    /// Secret in the pod's namespace.
    pub node_publish_secret_ref: Option<super::SecretRef>,
}

/// One volume of a pod. What is not modelled here is kept only as "some other source".
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodVolume {
    /// Name within the pod.
    pub name: String,
    pub persistent_volume_claim: Option<ClaimVolume>,
    /// A claim made for this pod alone; the template stays raw.
    pub ephemeral: Option<serde_json::Value>,
    /// An inline CSI volume.
    pub csi: Option<InlineCsi>,
    /// Scratch space.
    pub empty_dir: Option<serde_json::Value>,
    /// Files from a config map.
    pub config_map: Option<serde_json::Value>,
    /// Files from a secret.
    pub secret: Option<serde_json::Value>,
    /// A host directory.
    pub host_path: Option<super::HostPathSource>,
    /// Files from several sources.
    pub projected: Option<serde_json::Value>,
    /// Files from the pod's own fields.
    #[serde(rename = "downwardAPI")]
    pub downward_api: Option<serde_json::Value>,
    /// In-tree source of AWS disks.
    pub aws_elastic_block_store: Option<Box<super::AwsSource>>,
    /// In-tree source of Google disks.
    pub gce_persistent_disk: Option<Box<super::GceSource>>,
    /// In-tree source of OpenStack disks.
    pub cinder: Option<Box<super::IdSource>>,
    /// In-tree source of Azure disks.
    pub azure_disk: Option<Box<super::AzureDiskSource>>,
    /// In-tree source of Azure shares.
    pub azure_file: Option<Box<super::AzureFileSource>>,
    /// In-tree source of vSphere disks.
    pub vsphere_volume: Option<Box<super::VsphereSource>>,
    /// In-tree source of Portworx volumes.
    pub portworx_volume: Option<Box<super::IdSource>>,
}

/// A volume mounted into a container.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeMount {
    /// Volume name.
    pub name: String,
    /// Where.
    pub mount_path: String,
    pub read_only: bool,
    /// Only this part of the volume.
    #[serde(deserialize_with = "nullable")]
    pub sub_path: String,
    /// Only this part, with variables.
    #[serde(deserialize_with = "nullable")]
    pub sub_path_expr: String,
    /// Mount propagation, where asked for.
    pub mount_propagation: Option<String>,
}

/// A raw device handed to a container.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeDevice {
    /// Volume name.
    pub name: String,
    /// Where.
    pub device_path: String,
}

/// An environment variable.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EnvVar {
    pub name: String,
    /// Plain value.
    #[serde(deserialize_with = "nullable")]
    pub value: String,
    /// Value from elsewhere, raw.
    pub value_from: Option<serde_json::Value>,
}

/// Linux capabilities to add and drop.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Capabilities {
    /// Added.
    #[serde(deserialize_with = "nullable")]
    pub add: Vec<String>,
    /// Dropped.
    #[serde(deserialize_with = "nullable")]
    pub drop: Vec<String>,
}

/// An SELinux label; parts that are empty are the node's choice.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct SeLinuxOptions {
    #[serde(deserialize_with = "nullable")]
    pub user: String,
    #[serde(deserialize_with = "nullable")]
    pub role: String,
    /// Type.
    #[serde(rename = "type", deserialize_with = "nullable")]
    pub kind: String,
    #[serde(deserialize_with = "nullable")]
    pub level: String,
}

/// Which system calls a container may make.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SeccompProfile {
    /// `RuntimeDefault`, `Unconfined` or `Localhost`.
    #[serde(rename = "type", deserialize_with = "nullable")]
    pub kind: String,
    /// File of a `Localhost` profile.
    #[serde(deserialize_with = "nullable")]
    pub localhost_profile: String,
}

/// A kernel setting of a pod's namespaces.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Sysctl {
    /// Name with dots or slashes.
    #[serde(deserialize_with = "nullable")]
    pub name: String,
    #[serde(deserialize_with = "nullable")]
    pub value: String,
}

/// A container's security settings.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SecurityContext {
    /// User id.
    pub run_as_user: Option<u32>,
    /// Group id.
    pub run_as_group: Option<u32>,
    /// Refuse user 0.
    pub run_as_non_root: Option<bool>,
    pub capabilities: Option<Capabilities>,
    /// May a child gain rights.
    pub allow_privilege_escalation: Option<bool>,
    /// All rights.
    pub privileged: Option<bool>,
    pub read_only_root_filesystem: Option<bool>,
    /// SELinux label.
    #[serde(rename = "seLinuxOptions")]
    pub se_linux_options: Option<SeLinuxOptions>,
    /// System calls; the pod's when absent.
    pub seccomp_profile: Option<SeccompProfile>,
    /// `Default` or `Unmasked`.
    pub proc_mount: Option<String>,
    /// AppArmor profile, raw.
    pub app_armor_profile: Option<serde_json::Value>,
    /// Settings for Windows, raw: only their presence matters.
    pub windows_options: Option<serde_json::Value>,
}

/// A pod's security settings.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodSecurityContext {
    /// User id.
    pub run_as_user: Option<u32>,
    /// Group id.
    pub run_as_group: Option<u32>,
    /// Refuse user 0.
    pub run_as_non_root: Option<bool>,
    /// Further groups.
    #[serde(deserialize_with = "nullable")]
    pub supplemental_groups: Vec<u32>,
    /// Group that owns the volumes.
    pub fs_group: Option<u32>,
    /// `Always` or `OnRootMismatch`.
    pub fs_group_change_policy: Option<String>,
    /// SELinux label.
    #[serde(rename = "seLinuxOptions")]
    pub se_linux_options: Option<SeLinuxOptions>,
    /// `MountOption` (default) or `Recursive`.
    #[serde(rename = "seLinuxChangePolicy")]
    pub se_linux_change_policy: Option<String>,
    /// System calls of containers that say nothing themselves.
    pub seccomp_profile: Option<SeccompProfile>,
    /// Kernel settings.
    #[serde(deserialize_with = "nullable")]
    pub sysctls: Vec<Sysctl>,
    /// AppArmor profile, raw.
    pub app_armor_profile: Option<serde_json::Value>,
    /// Settings for Windows, raw: only their presence matters.
    pub windows_options: Option<serde_json::Value>,
}

/// A container.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Container {
    pub name: String,
    #[serde(deserialize_with = "nullable")]
    pub image: String,
    /// Program.
    #[serde(deserialize_with = "nullable")]
    pub command: Vec<String>,
    /// Arguments.
    #[serde(deserialize_with = "nullable")]
    pub args: Vec<String>,
    /// Environment.
    #[serde(deserialize_with = "nullable")]
    pub env: Vec<EnvVar>,
    /// Environment from elsewhere, raw.
    #[serde(deserialize_with = "nullable")]
    pub env_from: Vec<serde_json::Value>,
    /// Working directory.
    #[serde(deserialize_with = "nullable")]
    pub working_dir: String,
    /// Mounted volumes.
    #[serde(deserialize_with = "nullable")]
    pub volume_mounts: Vec<VolumeMount>,
    /// Raw devices.
    #[serde(deserialize_with = "nullable")]
    pub volume_devices: Vec<VolumeDevice>,
    #[serde(deserialize_with = "nullable")]
    pub security_context: SecurityContext,
    /// Sidecar-style restart of an init container.
    pub restart_policy: Option<String>,
    /// Ports, raw: only their presence matters.
    #[serde(deserialize_with = "nullable")]
    pub ports: Vec<serde_json::Value>,
    /// Limits and requests, raw: only their presence matters.
    pub resources: Option<serde_json::Value>,
    /// Probe, raw: only its presence matters.
    pub liveness_probe: Option<serde_json::Value>,
    /// Probe, raw: only its presence matters.
    pub readiness_probe: Option<serde_json::Value>,
    /// Probe, raw: only its presence matters.
    pub startup_probe: Option<serde_json::Value>,
    /// Hooks, raw: only their presence matters.
    pub lifecycle: Option<serde_json::Value>,
    /// Where the container writes its last words.
    #[serde(deserialize_with = "nullable")]
    pub termination_message_path: String,
    /// `File` or `FallbackToLogsOnError`.
    #[serde(deserialize_with = "nullable")]
    pub termination_message_policy: String,
    /// It has a standard input, which clients attach to.
    #[serde(deserialize_with = "nullable")]
    pub stdin: bool,
    /// The input ends when the first client that was attached to it leaves.
    #[serde(deserialize_with = "nullable")]
    pub stdin_once: bool,
    /// Its standard streams are a terminal.
    #[serde(deserialize_with = "nullable")]
    pub tty: bool,
}

/// A toleration.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Toleration {
    /// Key; empty with `Exists` tolerates all.
    #[serde(deserialize_with = "nullable")]
    pub key: String,
    /// `Equal` (default) or `Exists`.
    #[serde(deserialize_with = "nullable")]
    pub operator: String,
    #[serde(deserialize_with = "nullable")]
    pub value: String,
    /// Effect; empty tolerates all.
    #[serde(deserialize_with = "nullable")]
    pub effect: String,
}

/// Affinity to nodes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeAffinity {
    /// Must hold at scheduling.
    pub required_during_scheduling_ignored_during_execution: Option<NodeSelector>,
    /// Preferences, raw: only their presence matters.
    #[serde(deserialize_with = "nullable")]
    pub preferred_during_scheduling_ignored_during_execution: Vec<serde_json::Value>,
}

/// Affinity to other pods, raw: only its presence matters.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodAffinity {
    #[serde(deserialize_with = "nullable")]
    pub required_during_scheduling_ignored_during_execution: Vec<serde_json::Value>,
    #[serde(deserialize_with = "nullable")]
    pub preferred_during_scheduling_ignored_during_execution: Vec<serde_json::Value>,
}

impl PodAffinity {
    /// Whether it says anything.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.required_during_scheduling_ignored_during_execution.is_empty()
            && self.preferred_during_scheduling_ignored_during_execution.is_empty()
    }
}

/// Affinity of a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Affinity {
    pub node_affinity: Option<NodeAffinity>,
    pub pod_affinity: Option<PodAffinity>,
    pub pod_anti_affinity: Option<PodAffinity>,
}

/// A condition of the pod that another program sets.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ReadinessGate {
    /// Its type.
    pub condition_type: String,
}

/// What a pod is told.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodSpec {
    /// Where it runs; empty until scheduled.
    #[serde(deserialize_with = "nullable")]
    pub node_name: NodeName,
    #[serde(deserialize_with = "nullable")]
    pub volumes: Vec<PodVolume>,
    #[serde(deserialize_with = "nullable")]
    pub containers: Vec<Container>,
    #[serde(deserialize_with = "nullable")]
    pub init_containers: Vec<Container>,
    /// `Always`, `OnFailure`, `Never`.
    #[serde(deserialize_with = "nullable")]
    pub restart_policy: String,
    /// Grace at deletion.
    pub termination_grace_period_seconds: Option<i64>,
    /// Labels that the node must carry.
    #[serde(deserialize_with = "nullable")]
    pub node_selector: BTreeMap<String, String>,
    pub affinity: Option<Affinity>,
    #[serde(deserialize_with = "nullable")]
    pub tolerations: Vec<Toleration>,
    #[serde(deserialize_with = "nullable")]
    pub security_context: PodSecurityContext,
    #[serde(deserialize_with = "nullable")]
    pub service_account_name: String,
    /// Which scheduler shall place it.
    #[serde(deserialize_with = "nullable")]
    pub scheduler_name: String,
    /// Host name inside the pod.
    #[serde(deserialize_with = "nullable")]
    pub hostname: String,
    /// Gates that hold scheduling back, raw.
    #[serde(deserialize_with = "nullable")]
    pub scheduling_gates: Vec<serde_json::Value>,
    /// Domain of the host name.
    #[serde(deserialize_with = "nullable")]
    pub subdomain: String,
    /// The host name shall have its domain.
    #[serde(rename = "setHostnameAsFQDN")]
    pub set_hostname_as_fqdn: Option<bool>,
    /// The node's network; pods of this node have it in any case.
    #[serde(deserialize_with = "nullable")]
    pub host_network: bool,
    /// The node's processes are seen.
    #[serde(rename = "hostPID", deserialize_with = "nullable")]
    pub host_pid: bool,
    /// The node's IPC objects are seen.
    #[serde(rename = "hostIPC", deserialize_with = "nullable")]
    pub host_ipc: bool,
    /// False asks for a user namespace.
    pub host_users: Option<bool>,
    /// Containers see each other's processes.
    pub share_process_namespace: Option<bool>,
    /// Which runtime runs it.
    pub runtime_class_name: Option<String>,
    /// Operating system, raw.
    pub os: Option<serde_json::Value>,
    /// Further lines of `/etc/hosts`, raw.
    #[serde(deserialize_with = "nullable")]
    pub host_aliases: Vec<serde_json::Value>,
    /// Name service, raw: only its presence matters.
    pub dns_config: Option<serde_json::Value>,
    /// How long the pod may be active on its node.
    pub active_deadline_seconds: Option<i64>,
    /// Conditions of others without which the pod is not ready.
    #[serde(deserialize_with = "nullable")]
    pub readiness_gates: Vec<ReadinessGate>,
    /// Devices, raw: only their presence matters.
    #[serde(deserialize_with = "nullable")]
    pub resource_claims: Vec<serde_json::Value>,
    /// Limits and requests of the pod as a whole, raw: only their presence matters.
    pub resources: Option<serde_json::Value>,
    /// How pods are spread over nodes, raw: only its presence matters.
    #[serde(deserialize_with = "nullable")]
    pub topology_spread_constraints: Vec<serde_json::Value>,
}

/// How a pod stands. Container statuses stay raw: only the node writes them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodStatus {
    #[serde(deserialize_with = "nullable")]
    pub phase: PodPhase,
    #[serde(deserialize_with = "nullable")]
    pub conditions: Vec<Condition>,
    /// Since when the node knows it.
    pub start_time: Option<Timestamp>,
    /// Container statuses, raw.
    #[serde(deserialize_with = "nullable")]
    pub container_statuses: Vec<serde_json::Value>,
    /// Init container statuses, raw.
    #[serde(deserialize_with = "nullable")]
    pub init_container_statuses: Vec<serde_json::Value>,
    /// Statuses of containers that were added to the running pod, raw.
    #[serde(deserialize_with = "nullable")]
    pub ephemeral_container_statuses: Vec<serde_json::Value>,
    /// What the node sees of the health of the pod's volumes.
    #[serde(deserialize_with = "nullable")]
    pub volume_health: Vec<PodVolumeHealth>,
}

/// A `Pod`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Pod {
    pub metadata: Meta,
    /// What it is told.
    pub spec: PodSpec,
    /// How it stands.
    #[serde(deserialize_with = "nullable")]
    pub status: PodStatus,
}

impl Pod {
    /// Whether the pod has ended for good.
    #[must_use]
    pub fn finished(&self) -> bool {
        matches!(self.status.phase, PodPhase::Succeeded | PodPhase::Failed)
    }

    /// The claim that one of the pod's volumes names, an ephemeral one under its generated name.
    #[must_use]
    pub fn claim_name(&self, volume: &PodVolume) -> Option<String> {
        if let Some(claim) = &volume.persistent_volume_claim {
            return Some(claim.claim_name.clone());
        }
        volume.ephemeral.as_ref().map(|_| format!("{}-{}", self.metadata.name, volume.name))
    }

    /// The claims that the pod names, with ephemeral ones under their generated names.
    pub fn claim_names(&self) -> impl Iterator<Item = (String, &PodVolume)> {
        let named = |volume| self.claim_name(volume).map(|name| (name, volume));
        self.spec.volumes.iter().filter_map(named)
    }
}
