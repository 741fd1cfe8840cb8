//! Volumes, from CSI back to in-tree.

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{
    Plugin, TranslationError,
    topology::{self, aws_region, gce_region},
};
use crate::model::kinds::{CsiSource, Volume};

const AZURE_RESOURCE_GROUP: &str = "kubernetes.io/azure-file-resource-group";
const VSPHERE_REGION: &str = "topology.csi.vmware.com/region";

/// Puts the in-tree source in the place of the CSI source of a driver that took over; affinity and
/// labels follow. Everything else in the object stays as it is.
///
/// # Errors
/// When the volume cannot be expressed in the old form; it is unchanged then.
pub fn volume_to_in_tree(object: &mut Value) -> Result<(), TranslationError> {
    let mut volume = Volume::deserialize(&*object)
        .map_err(|error| TranslationError::Unreadable(error.to_string()))?;
    let unknown = |driver: &str| TranslationError::UnknownDriver(driver.to_owned());
    let csi = volume.spec.csi.take().ok_or_else(|| unknown(""))?;
    let plugin = Plugin::of_driver(&csi.driver).ok_or_else(|| unknown(&csi.driver))?;
    let mut notes = None;
    let (field, source) = match plugin {
        Plugin::Aws => ("awsElasticBlockStore", aws(&csi)?),
        Plugin::Gce => ("gcePersistentDisk", gce(&csi)?),
        Plugin::AzureDisk => ("azureDisk", azure_disk(&csi)?),
        Plugin::AzureFile => {
            let (source, group) = azure_file(&csi)?;
            notes = group;
            ("azureFile", source)
        }
        Plugin::Cinder => ("cinder", by_id(&csi)),
        Plugin::Vsphere => ("vsphereVolume", vsphere(&csi)),
        Plugin::Portworx => ("portworxVolume", by_id(&csi)),
    };
    translate_topology(plugin, &mut volume)?;
    write(object, field, source, &volume);
    if let Some(group) = notes {
        object["metadata"]["annotations"][AZURE_RESOURCE_GROUP] = json!(group);
    }
    Ok(())
}

fn translate_topology(plugin: Plugin, volume: &mut Volume) -> Result<(), TranslationError> {
    let Some(zone) = plugin.zone_key() else { return Ok(()) };
    match plugin {
        Plugin::Aws => topology::from_csi(volume, zone, Some(aws_region)),
        Plugin::Gce => topology::from_csi(volume, zone, Some(gce_region)),
        // A zone does not say which region it is in.
        Plugin::Cinder => topology::from_csi(volume, zone, None),
        Plugin::Vsphere => {
            topology::from_csi_with_region(volume, zone, VSPHERE_REGION);
            Ok(())
        }
        // An Azure disk keeps the driver's affinity.
        Plugin::AzureDisk | Plugin::AzureFile | Plugin::Portworx => Ok(()),
    }
}

fn write(object: &mut Value, field: &str, source: Value, volume: &Volume) {
    if !volume.metadata.labels.is_empty() {
        object["metadata"]["labels"] = json!(volume.metadata.labels);
    }
    if let Some(required) = &volume.spec.node_affinity.required {
        object["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"] =
            json!(required.node_selector_terms);
    }
    if let Some(spec) = object["spec"].as_object_mut() {
        spec.remove("csi");
        spec.insert(field.into(), source);
    }
}

/// A source with those fields that are not empty: that is how the API prints it.
fn source(fields: impl IntoIterator<Item = (&'static str, Value)>) -> Value {
    let empty = |value: &Value| matches!(value.as_str(), Some("")) || *value == json!(false);
    let kept = fields.into_iter().filter(|(_, value)| !empty(value));
    Value::Object(kept.map(|(key, value)| (key.to_owned(), value)).collect::<Map<_, _>>())
}

fn partition(csi: &CsiSource) -> Result<Option<i32>, TranslationError> {
    match csi.volume_attributes.get("partition") {
        Some(text) => text.parse().map(Some).map_err(|_| TranslationError::Partition(text.clone())),
        None => Ok(None),
    }
}

fn with_partition(mut source: Value, partition: Option<i32>) -> Value {
    if let Some(partition) = partition.filter(|partition| *partition != 0) {
        source["partition"] = json!(partition);
    }
    source
}

fn aws(csi: &CsiSource) -> Result<Value, TranslationError> {
    Ok(with_partition(by_id(csi), partition(csi)?))
}

fn gce(csi: &CsiSource) -> Result<Value, TranslationError> {
    let parts: Vec<&str> = csi.volume_handle.split('/').collect();
    let name = parts.get(5).ok_or_else(|| TranslationError::Handle {
        handle: csi.volume_handle.to_string(),
        why: format!("it has {} parts instead of 6 or more", parts.len()),
    })?;
    let fields = [
        ("pdName", json!(name)),
        ("fsType", json!(csi.fs_type)),
        ("readOnly", json!(csi.read_only)),
    ];
    let partition = match csi.volume_attributes.get("partition").map(String::as_str) {
        Some("") => None,
        _ => partition(csi)?,
    };
    Ok(with_partition(source(fields), partition))
}

fn by_id(csi: &CsiSource) -> Value {
    source([
        ("volumeID", json!(csi.volume_handle)),
        ("fsType", json!(csi.fs_type)),
        ("readOnly", json!(csi.read_only)),
    ])
}

fn vsphere(csi: &CsiSource) -> Value {
    let path = csi.volume_attributes.get("initialvolumefilepath").cloned().unwrap_or_default();
    let mut new = source([("fsType", json!(csi.fs_type))]);
    new["volumePath"] = json!(path);
    new
}

fn azure_disk(csi: &CsiSource) -> Result<Value, TranslationError> {
    let uri = &csi.volume_handle;
    let mut new = json!({
        "diskName": disk_name(uri)?, "diskURI": uri, "kind": "Managed",
        "fsType": csi.fs_type, "readOnly": csi.read_only,
    });
    for (key, value) in csi.volume_attributes.iter().filter(|(_, value)| !value.is_empty()) {
        match key.to_lowercase().as_str() {
            "cachingmode" => new["cachingMode"] = json!(value),
            "fstype" => new["fsType"] = json!(value),
            _ => {}
        }
    }
    Ok(new)
}

/// The last part of a managed disk's address, or of the address of a disk in a storage account.
fn disk_name(uri: &str) -> Result<String, TranslationError> {
    let wrong = |why: &str| TranslationError::Handle { handle: uri.into(), why: why.into() };
    let unmanaged = uri.len() > 4 && uri.get(..4).is_some_and(|s| s.eq_ignore_ascii_case("http"));
    let parts: &[&str] = if unmanaged {
        &["://", "/vhds/"]
    } else {
        &["/subscriptions/", "/resourceGroups/", "/providers/Microsoft.Compute/disks/"]
    };
    let found = parts.last().and_then(|last| uri.rsplit_once(last));
    let (before, name) = found.ok_or_else(|| wrong("it does not name a disk"))?;
    let mut rest = before;
    for part in &parts[..parts.len() - 1] {
        rest =
            rest.split_once(part).ok_or_else(|| wrong("it is not the address of an Azure disk"))?.1;
    }
    if name.is_empty() {
        return Err(wrong("the disk's name is empty"));
    }
    Ok(name.to_owned())
}

/// The source, and the resource group where the handle had to be asked.
fn azure_file(csi: &CsiSource) -> Result<(Value, Option<String>), TranslationError> {
    let attribute = |wanted: &str| {
        let mut all = csi.volume_attributes.iter();
        all.find(|(key, _)| key.eq_ignore_ascii_case(wanted)).map(|(_, value)| value.clone())
    };
    let mut share = attribute("sharename").unwrap_or_default();
    let mut secret = attribute("secretname").unwrap_or_default();
    let mut namespace = attribute("secretnamespace");
    if let Some(reference) = csi.node_stage_secret_ref.as_ref().filter(|one| !one.name.is_empty()) {
        secret.clone_from(&reference.name);
        namespace = Some(reference.namespace.clone());
    }
    let mut group = None;
    if share.is_empty() || secret.is_empty() {
        let parts: Vec<&str> = csi.volume_handle.split('#').collect();
        let [in_group, account, in_share, ..] = parts[..] else {
            return Err(TranslationError::Handle {
                handle: csi.volume_handle.to_string(),
                why: "it should at least contain two #".into(),
            });
        };
        if share.is_empty() {
            share = in_share.to_owned();
        }
        if secret.is_empty() {
            secret = format!("azure-storage-account-{account}-secret");
        }
        group = Some(in_group.to_owned()).filter(|group| !group.is_empty());
    }
    let mut new = source([("readOnly", json!(csi.read_only))]);
    new["shareName"] = json!(share);
    new["secretName"] = json!(secret);
    new["secretNamespace"] = json!(namespace.unwrap_or_else(|| "default".into()));
    Ok((new, group))
}
