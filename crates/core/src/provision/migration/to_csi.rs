//! Volumes, from in-tree to CSI.

use std::collections::BTreeMap;

use super::{
    Plugin, TranslationError,
    topology::{self, BETA_ZONE, SEPARATOR, ZONE, gce_region},
};
use crate::model::AccessMode;
use crate::model::kinds::{
    AwsSource, AzureDiskSource, AzureFileSource, CsiSource, GceSource, IdSource, SecretRef, Volume,
    VsphereSource,
};

/// Stands in a Google handle for what is not known.
const UNSPECIFIED: &str = "UNSPECIFIED";

const AZURE_RESOURCE_GROUP: &str = "kubernetes.io/azure-file-resource-group";
const PORTWORX_SECRET_NAME: &str = "openstorage.io/auth-secret-name";
const PORTWORX_SECRET_NAMESPACE: &str = "openstorage.io/auth-secret-namespace";
const VSPHERE_REGION: &str = "topology.csi.vmware.com/region";

/// The volume with a CSI source in place of its in-tree one; `None` when it has no source that a
/// driver took over.
///
/// # Errors
/// When the source cannot be expressed.
pub fn volume_to_csi(volume: &Volume) -> Result<Option<Volume>, TranslationError> {
    let Some(plugin) = Plugin::of_volume(volume) else { return Ok(None) };
    let mut new = volume.clone();
    let spec = &mut new.spec;
    let mut source = if let Some(disk) = spec.aws_elastic_block_store.take() {
        aws(*disk)?
    } else if let Some(disk) = spec.gce_persistent_disk.take() {
        spec.access_modes = gce_modes(&volume.spec.access_modes);
        gce(volume, *disk)?
    } else if let Some(disk) = spec.azure_disk.take() {
        azure_disk(*disk)?
    } else if let Some(share) = spec.azure_file.take() {
        azure_file(volume, *share)?
    } else if let Some(disk) = spec.cinder.take() {
        cinder(*disk)
    } else if let Some(disk) = spec.vsphere_volume.take() {
        vsphere(*disk)
    } else if let Some(disk) = spec.portworx_volume.take() {
        portworx(volume, *disk)
    } else {
        return Ok(None);
    };
    source.driver = plugin.driver().into();
    new.spec.csi = Some(source);
    match (plugin, plugin.zone_key()) {
        (Plugin::Vsphere, Some(zone)) => {
            topology::to_csi_with_region(&mut new, zone, VSPHERE_REGION);
        }
        // An Azure disk's affinity is the driver's already.
        (Plugin::AzureDisk, _) | (_, None) => {}
        (_, Some(zone)) => topology::to_csi(&mut new, zone),
    }
    Ok(Some(new))
}

fn attribute(key: &str, value: impl Into<String>) -> BTreeMap<String, String> {
    BTreeMap::from([(key.to_owned(), value.into())])
}

fn aws(disk: AwsSource) -> Result<CsiSource, TranslationError> {
    Ok(CsiSource {
        volume_handle: aws_id(&disk.volume_id)?,
        read_only: disk.read_only,
        fs_type: disk.fs_type,
        volume_attributes: attribute("partition", disk.partition.to_string()),
        ..CsiSource::default()
    })
}

/// The bare id in `aws://zone/id`; anything without that scheme is bare already.
fn aws_id(id: &str) -> Result<String, TranslationError> {
    let Some(rest) = id.strip_prefix("aws://") else { return Ok(id.to_owned()) };
    let rest = rest.split(['?', '#']).next().unwrap_or_default();
    let path = rest.split_once('/').map_or("", |(_, path)| path).trim_matches('/');
    if !path.starts_with("vol-") || path.contains('/') {
        return Err(TranslationError::AwsId(id.to_owned()));
    }
    Ok(path.to_owned())
}

fn gce(volume: &Volume, disk: GceSource) -> Result<CsiSource, TranslationError> {
    let label = |key| volume.metadata.labels.get(key).filter(|value| !value.is_empty());
    let zones: Vec<String> = label(BETA_ZONE)
        .or_else(|| label(ZONE))
        .map(|all| all.split(SEPARATOR).map(String::from).collect())
        .unwrap_or_default();
    let name = &disk.pd_name;
    let handle = match &zones[..] {
        [] => zonal(UNSPECIFIED, UNSPECIFIED, name),
        [zone] => zonal(UNSPECIFIED, zone, name),
        several => regional(UNSPECIFIED, &gce_region(several)?, name),
    };
    let partition = if disk.partition == 0 { String::new() } else { disk.partition.to_string() };
    Ok(CsiSource {
        volume_handle: handle,
        read_only: disk.read_only,
        fs_type: disk.fs_type,
        volume_attributes: attribute("partition", partition),
        ..CsiSource::default()
    })
}

fn zonal(project: &str, zone: &str, disk: &str) -> String {
    format!("projects/{project}/zones/{zone}/disks/{disk}")
}

fn regional(project: &str, region: &str, disk: &str) -> String {
    format!("projects/{project}/regions/{region}/disks/{disk}")
}

/// The in-tree plugin took any modes and attached for one writer; the driver refuses what it
/// cannot do, so volumes are described as they were used.
fn gce_modes(modes: &[AccessMode]) -> Vec<AccessMode> {
    if modes.is_empty() {
        return Vec::new();
    }
    let read_only = modes.iter().all(|mode| *mode == AccessMode::ReadOnlyMany);
    vec![if read_only { AccessMode::ReadOnlyMany } else { AccessMode::ReadWriteOnce }]
}

fn azure_disk(disk: AzureDiskSource) -> Result<CsiSource, TranslationError> {
    if let Some(kind) = disk.kind.filter(|kind| !kind.eq_ignore_ascii_case("Managed")) {
        return Err(TranslationError::AzureKind(kind));
    }
    let mut attributes = attribute("kind", "Managed");
    attributes.extend(disk.caching_mode.map(|mode| ("cachingmode".to_owned(), mode)));
    attributes.extend(disk.fs_type.clone().map(|fs_type| ("fstype".to_owned(), fs_type)));
    Ok(CsiSource {
        volume_handle: disk.disk_uri,
        read_only: disk.read_only.unwrap_or_default(),
        fs_type: disk.fs_type.unwrap_or_default(),
        volume_attributes: attributes,
        ..CsiSource::default()
    })
}

fn azure_file(volume: &Volume, share: AzureFileSource) -> Result<CsiSource, TranslationError> {
    let secret = share.secret_name;
    let account = account_of(&secret).unwrap_or(&secret);
    let group = volume.metadata.annotation(AZURE_RESOURCE_GROUP).unwrap_or_default();
    let of_claim = || volume.spec.claim_ref.as_ref().map(|claim| claim.namespace.clone());
    let namespace = share.secret_namespace.or_else(of_claim).unwrap_or_default();
    if namespace.is_empty() {
        return Err(TranslationError::NoSecretNamespace);
    }
    let name = &volume.metadata.name;
    Ok(CsiSource {
        volume_handle: format!("{group}#{account}#{}#{name}#{namespace}", share.share_name),
        read_only: share.read_only,
        volume_attributes: attribute("sharename", share.share_name),
        node_stage_secret_ref: Some(SecretRef { name: secret, namespace }),
        ..CsiSource::default()
    })
}

/// The storage account in `azure-storage-account-NAME-secret`.
fn account_of(secret: &str) -> Option<&str> {
    let (_, rest) = secret.split_once("azure-storage-account-")?;
    let end = rest.rfind("-secret").filter(|end| *end > 0)?;
    Some(&rest[..end])
}

fn cinder(disk: IdSource) -> CsiSource {
    CsiSource {
        volume_handle: disk.volume_id,
        read_only: disk.read_only,
        fs_type: disk.fs_type,
        ..CsiSource::default()
    }
}

fn vsphere(disk: VsphereSource) -> CsiSource {
    let policy = Some(disk.storage_policy_name).filter(|policy| !policy.is_empty());
    CsiSource {
        volume_handle: disk.volume_path,
        fs_type: disk.fs_type,
        volume_attributes: policy
            .map(|policy| attribute("storagepolicyname", policy))
            .unwrap_or_default(),
        ..CsiSource::default()
    }
}

fn portworx(volume: &Volume, disk: IdSource) -> CsiSource {
    let note = |key| volume.metadata.annotation(key).map(String::from);
    let secret = note(PORTWORX_SECRET_NAME)
        .zip(note(PORTWORX_SECRET_NAMESPACE))
        .map(|(name, namespace)| SecretRef { name, namespace });
    CsiSource {
        volume_handle: disk.volume_id,
        fs_type: disk.fs_type,
        controller_publish_secret_ref: secret.clone(),
        node_stage_secret_ref: secret.clone(),
        node_publish_secret_ref: secret.clone(),
        controller_expand_secret_ref: secret.clone(),
        node_expand_secret_ref: secret,
        ..CsiSource::default()
    }
}

/// The handle as the driver lists it. A Google handle that was translated lacks the project and
/// perhaps the place; the id of the node it is on has both.
///
/// # Errors
/// For a driver that took over from no plugin, and for handles that cannot be read.
pub fn repair_handle(
    driver: &str,
    handle: &str,
    node_id: &str,
) -> Result<String, TranslationError> {
    match Plugin::of_driver(driver) {
        Some(Plugin::Gce) => repair_gce(handle, node_id),
        Some(_) => Ok(handle.to_owned()),
        None => Err(TranslationError::UnknownDriver(driver.to_owned())),
    }
}

fn repair_gce(handle: &str, node_id: &str) -> Result<String, TranslationError> {
    let wrong = |handle: &str, why: String| TranslationError::Handle { handle: handle.into(), why };
    let few = |parts: usize| format!("it has {parts} parts instead of 6 or more");
    let parts: Vec<&str> = handle.split('/').collect();
    let [_, project, kind, place, _, disk, ..] = parts[..] else {
        return Err(wrong(handle, few(parts.len())));
    };
    if project != UNSPECIFIED {
        return Ok(handle.to_owned());
    }
    let node: Vec<&str> = node_id.split('/').collect();
    let [_, node_project, _, node_zone, _, _, ..] = node[..] else {
        return Err(wrong(node_id, few(node.len())));
    };
    let known = place != UNSPECIFIED;
    match kind {
        "zones" => Ok(zonal(node_project, if known { place } else { node_zone }, disk)),
        "regions" if known => Ok(regional(node_project, place, disk)),
        "regions" => Ok(regional(node_project, &gce_region(&[node_zone.to_owned()])?, disk)),
        other => Err(wrong(handle, format!("{other:?} is neither zones nor regions"))),
    }
}
