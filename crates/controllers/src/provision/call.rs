//! Builds CSI requests from plans, and reads responses and secrets.

use std::collections::BTreeMap;

use longshore_cluster::{
    Api,
    secrets::{self, SecretError},
};
use longshore_core::{
    model::{ObjectKey, kinds::SecretRef},
    provision::{
        Access, Created, Plan,
        source::{self, SourceKind},
        topology::Term,
    },
};
use longshore_csi::v1::{
    CapacityRange, CreateVolumeRequest, Topology, TopologyRequirement, Volume, VolumeCapability,
    VolumeContentSource,
    volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume, access_mode::Mode},
    volume_content_source::{SnapshotSource, Type, VolumeSource},
};

/// The content of a secret.
pub(super) type Content = BTreeMap<String, String>;

/// The CreateVolume call that a plan describes.
pub(super) fn create_request(plan: &Plan, secrets: Content) -> CreateVolumeRequest {
    let topologies = |terms: &[Term]| {
        terms.iter().map(|term| Topology { segments: term.clone() }).collect::<Vec<_>>()
    };
    CreateVolumeRequest {
        name: plan.volume.to_string(),
        capacity_range: Some(CapacityRange { required_bytes: plan.bytes, limit_bytes: 0 }),
        volume_capabilities: capabilities(plan),
        parameters: plan.parameters.clone(),
        secrets,
        accessibility_requirements: plan.topology.as_ref().map(|wanted| TopologyRequirement {
            requisite: topologies(&wanted.requisite),
            preferred: topologies(&wanted.preferred),
        }),
        volume_content_source: plan.content.as_ref().map(content_source),
        mutable_parameters: plan.mutable_parameters.clone(),
    }
}

fn content_source(content: &source::Content) -> VolumeContentSource {
    let handle = content.handle.clone();
    VolumeContentSource {
        r#type: Some(match content.kind {
            SourceKind::Snapshot => Type::Snapshot(SnapshotSource { snapshot_id: handle }),
            SourceKind::Claim => Type::Volume(VolumeSource { volume_id: handle }),
        }),
    }
}

/// What the volume of a plan must be good for.
pub(super) fn capabilities(plan: &Plan) -> Vec<VolumeCapability> {
    plan.capabilities.iter().map(capability).collect()
}

fn capability(wanted: &longshore_core::provision::Capability) -> VolumeCapability {
    let mode = Mode::from_str_name(&wanted.mode).unwrap_or(Mode::Unknown);
    VolumeCapability {
        access_mode: Some(AccessMode { mode: mode.into() }),
        access_type: Some(match &wanted.access {
            Access::Block => AccessType::Block(BlockVolume {}),
            Access::Mount { fs_type, flags } => AccessType::Mount(MountVolume {
                fs_type: fs_type.clone(),
                mount_flags: flags.clone(),
                ..MountVolume::default()
            }),
        }),
    }
}

/// What the driver's answer says.
pub(super) fn created(volume: Volume) -> Created {
    Created {
        handle: volume.volume_id,
        bytes: volume.capacity_bytes,
        context: volume.volume_context,
        has_content: volume.content_source.is_some(),
        places: volume.accessible_topology.into_iter().map(|one| one.segments).collect(),
    }
}

/// A Secret that a call needs cannot be had.
#[derive(Debug, thiserror::Error)]
#[error("error getting secret {} in namespace {}: {source}", .secret.name, .secret.namespace)]
pub(super) struct NoSecret {
    secret: ObjectKey,
    source: SecretError,
}

/// Reads a secret from the API; nothing of it is kept.
pub(super) async fn read_secret(api: &Api, reference: &SecretRef) -> Result<Content, NoSecret> {
    let secret = ObjectKey::new(&reference.namespace, &reference.name);
    secrets::read_secret(api, &secret).await.map_err(|source| NoSecret { secret, source })
}
