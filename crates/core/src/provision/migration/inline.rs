//! In-tree sources that stand in a pod, without an object of their own.

use serde_json::{Map, Value, json};

use super::{TranslationError, volume_to_csi};
use crate::model::{
    AccessMode, VolumeMode,
    kinds::{CsiSource, PodVolume, SecretRef, Volume, VolumeSpec},
};

/// The volume that a pod's in-tree source stands for; `None` when no driver took over from it.
/// Its name is unique per disk, because nodes keep its staging directory under it.
///
/// # Errors
/// When the source cannot be expressed.
pub fn inline_to_csi(
    volume: &PodVolume,
    namespace: &str,
) -> Result<Option<Volume>, TranslationError> {
    let Some(in_tree) = in_tree(volume, namespace) else { return Ok(None) };
    let mode = access_mode(volume);
    let Some(mut new) = volume_to_csi(&in_tree)? else { return Ok(None) };
    let Some(csi) = &new.spec.csi else { return Ok(None) };
    new.metadata.name = if volume.azure_disk.is_some() || volume.azure_file.is_some() {
        csi.volume_handle.clone()
    } else if let Some(disk) = &volume.gce_persistent_disk {
        format!("{}-{}", csi.driver, disk.pd_name)
    } else {
        format!("{}-{}", csi.driver, csi.volume_handle)
    };
    new.spec.access_modes = vec![mode];
    new.spec.volume_mode = Some(VolumeMode::Filesystem);
    Ok(Some(new))
}

/// The source as a volume would have it.
fn in_tree(volume: &PodVolume, namespace: &str) -> Option<Volume> {
    let mut azure_disk = volume.azure_disk.clone();
    if let Some(disk) = &mut azure_disk {
        disk.caching_mode.take_if(|mode| mode.is_empty());
    }
    let mut azure_file = volume.azure_file.clone();
    if let Some(share) = &mut azure_file {
        let namespace = if namespace.is_empty() { "default" } else { namespace };
        share.secret_namespace = Some(namespace.to_owned());
    }
    let spec = VolumeSpec {
        aws_elastic_block_store: volume.aws_elastic_block_store.clone(),
        gce_persistent_disk: volume.gce_persistent_disk.clone(),
        cinder: volume.cinder.clone(),
        azure_disk,
        azure_file,
        vsphere_volume: volume.vsphere_volume.clone(),
        portworx_volume: volume.portworx_volume.clone(),
        ..VolumeSpec::default()
    };
    let mut new = Volume { spec, ..Volume::default() };
    // A share's handle holds the name that the pod has for it.
    new.metadata.name.clone_from(&volume.name);
    super::is_migratable(&new).then_some(new)
}

fn access_mode(volume: &PodVolume) -> AccessMode {
    let disk = volume.gce_persistent_disk.as_ref().is_some_and(|disk| disk.read_only);
    let portworx = volume.portworx_volume.as_ref().is_some_and(|disk| disk.read_only);
    match (volume.azure_file.is_some(), disk || portworx) {
        (true, _) => AccessMode::ReadWriteMany,
        (false, true) => AccessMode::ReadOnlyMany,
        (false, false) => AccessMode::ReadWriteOnce,
    }
}

/// What a `VolumeAttachment` says of a volume that has no object of its own.
#[must_use]
pub fn inline_spec(volume: &Volume) -> Value {
    let spec = &volume.spec;
    let mut out = json!({"accessModes": spec.access_modes, "volumeMode": spec.volume_mode});
    if let Some(csi) = &spec.csi {
        out["csi"] = csi_value(csi);
    }
    out
}

fn csi_value(csi: &CsiSource) -> Value {
    let mut out = Map::new();
    out.insert("driver".into(), json!(csi.driver));
    out.insert("volumeHandle".into(), json!(csi.volume_handle));
    if csi.read_only {
        out.insert("readOnly".into(), json!(true));
    }
    if !csi.fs_type.is_empty() {
        out.insert("fsType".into(), json!(csi.fs_type));
    }
    if !csi.volume_attributes.is_empty() {
        out.insert("volumeAttributes".into(), json!(csi.volume_attributes));
    }
    let secrets: [(&str, &Option<SecretRef>); 5] = [
        ("controllerPublishSecretRef", &csi.controller_publish_secret_ref),
        ("nodeStageSecretRef", &csi.node_stage_secret_ref),
        ("nodePublishSecretRef", &csi.node_publish_secret_ref),
        ("controllerExpandSecretRef", &csi.controller_expand_secret_ref),
        ("nodeExpandSecretRef", &csi.node_expand_secret_ref),
    ];
    for (key, secret) in secrets {
        if let Some(secret) = secret {
            out.insert(key.into(), json!(secret));
        }
    }
    Value::Object(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn translated(source: Value) -> Result<Option<(String, Value)>, TranslationError> {
        let mut volume = json!({"name": "v"});
        for (key, value) in source.as_object().expect("a source") {
            volume[key] = value.clone();
        }
        let volume: PodVolume = serde_json::from_value(volume).expect("a pod's volume");
        let new = inline_to_csi(&volume, "ns")?;
        Ok(new.map(|new| (new.metadata.name.clone(), inline_spec(&new))))
    }

    #[test]
    fn sources_in_pods() {
        let rows = [
            (
                // case: attach-detach/F6
                json!({"gcePersistentDisk": {"pdName": "disk", "fsType": "ext4"}}),
                "pd.csi.storage.gke.io-disk",
                json!({"accessModes": ["ReadWriteOnce"], "csi": {
                    "driver": "pd.csi.storage.gke.io", "fsType": "ext4",
                    "volumeAttributes": {"partition": ""},
                    "volumeHandle": "projects/UNSPECIFIED/zones/UNSPECIFIED/disks/disk"}}),
            ),
            (
                json!({"gcePersistentDisk": {"pdName": "d", "partition": 2, "readOnly": true}}),
                "pd.csi.storage.gke.io-d",
                json!({"accessModes": ["ReadOnlyMany"], "csi": {"readOnly": true,
                    "driver": "pd.csi.storage.gke.io", "volumeAttributes": {"partition": "2"},
                    "volumeHandle": "projects/UNSPECIFIED/zones/UNSPECIFIED/disks/d"}}),
            ),
            (
                json!({"awsElasticBlockStore": {"volumeID": "aws://us-east-1/vol-01"}}),
                "ebs.csi.aws.com-vol-01",
                json!({"accessModes": ["ReadWriteOnce"], "csi": {"driver": "ebs.csi.aws.com",
                    "volumeHandle": "vol-01", "volumeAttributes": {"partition": "0"}}}),
            ),
            (
                json!({"azureDisk": {"diskURI": "/subs/d", "cachingMode": "", "fsType": "xfs"}}),
                "/subs/d",
                json!({"accessModes": ["ReadWriteOnce"], "csi": {"driver": "disk.csi.azure.com",
                    "volumeHandle": "/subs/d", "fsType": "xfs",
                    "volumeAttributes": {"kind": "Managed", "fstype": "xfs"}}}),
            ),
            (
                json!({"azureFile": {"secretName": "azure-storage-account-acc-secret",
                    "shareName": "share"}}),
                "#acc#share#v#ns",
                json!({"accessModes": ["ReadWriteMany"], "csi": {"driver": "file.csi.azure.com",
                    "volumeHandle": "#acc#share#v#ns", "volumeAttributes": {"sharename": "share"},
                    "nodeStageSecretRef": {"name": "azure-storage-account-acc-secret",
                        "namespace": "ns"}}}),
            ),
            (
                json!({"cinder": {"volumeID": "c1"}}),
                "cinder.csi.openstack.org-c1",
                json!({"accessModes": ["ReadWriteOnce"],
                    "csi": {"driver": "cinder.csi.openstack.org", "volumeHandle": "c1"}}),
            ),
            (
                json!({"vsphereVolume": {"volumePath": "[ds] a.vmdk"}}),
                "csi.vsphere.vmware.com-[ds] a.vmdk",
                json!({"accessModes": ["ReadWriteOnce"],
                    "csi": {"driver": "csi.vsphere.vmware.com", "volumeHandle": "[ds] a.vmdk"}}),
            ),
            (
                json!({"portworxVolume": {"volumeID": "p1", "readOnly": true}}),
                "pxd.portworx.com-p1",
                json!({"accessModes": ["ReadOnlyMany"],
                    "csi": {"driver": "pxd.portworx.com", "volumeHandle": "p1"}}),
            ),
        ];
        for (source, name, mut want) in rows {
            want["volumeMode"] = json!("Filesystem");
            let got = translated(source.clone()).expect("translatable");
            assert_eq!(got, Some((name.to_owned(), want)), "{source}");
        }
    }

    #[test]
    fn what_stays_as_it_is() {
        assert_eq!(translated(json!({"csi": {"driver": "d"}})), Ok(None));
        assert_eq!(translated(json!({"emptyDir": {}})), Ok(None));
        let kind = translated(json!({"azureDisk": {"diskURI": "d", "kind": "Dedicated"}}));
        assert_eq!(kind, Err(TranslationError::AzureKind("Dedicated".into())));
    }
}
