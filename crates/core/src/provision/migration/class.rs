//! Classes, from in-tree to CSI.

use std::collections::BTreeMap;

use super::{Plugin, TranslationError, topology::is_zone_key};
use crate::model::kinds::{StorageClass, TopologyExpression, TopologyTerm};

const CSI_FS_TYPE: &str = "csi.storage.k8s.io/fstype";

/// Roles of secrets that Portworx' two parameters stand for.
const PORTWORX_ROLES: [&str; 6] = [
    "provisioner",
    "controller-publish",
    "node-publish",
    "node-stage",
    "controller-expand",
    "node-expand",
];

/// vSphere's parameters that its driver knows under a name of their own.
const VSPHERE_RENAMED: [&str; 8] = [
    "datastore",
    "diskformat",
    "hostfailurestotolerate",
    "forceprovisioning",
    "cachereservation",
    "diskstripes",
    "objectspacereservation",
    "iopslimit",
];

type Parameters = BTreeMap<String, String>;

/// The class as the driver that took over understands it.
///
/// # Errors
/// When no driver took over from the class's provisioner, or the class contradicts itself.
pub fn class_to_csi(class: &StorageClass) -> Result<StorageClass, TranslationError> {
    let plugin = Plugin::named(&class.provisioner)
        .ok_or_else(|| TranslationError::UnknownPlugin(class.provisioner.clone()))?;
    let mut new = class.clone();
    let mut zones = None;
    match plugin {
        Plugin::AzureFile => return Ok(new),
        Plugin::Portworx => {
            new.parameters = portworx(&class.parameters);
            new.provisioner = plugin.driver().into();
            return Ok(new);
        }
        Plugin::Vsphere => new.parameters = vsphere(&class.parameters),
        Plugin::Aws | Plugin::Gce | Plugin::AzureDisk | Plugin::Cinder => {
            (new.parameters, zones) = zoned(plugin, &class.parameters);
        }
    }
    new.allowed_topologies = allowed(plugin, class, zones)?;
    Ok(new)
}

/// Parameters without zones, and the zones.
fn zoned(plugin: Plugin, parameters: &Parameters) -> (Parameters, Option<Vec<String>>) {
    let mut new = Parameters::new();
    let mut zones = None;
    for (key, value) in parameters {
        match (key.to_lowercase().as_str(), plugin) {
            ("fstype", Plugin::Aws | Plugin::Gce | Plugin::Cinder) => {
                new.insert(CSI_FS_TYPE.into(), value.clone());
            }
            ("zone", Plugin::Aws | Plugin::Gce | Plugin::AzureDisk) => {
                zones = Some(vec![value.clone()]);
            }
            ("zones", Plugin::Aws | Plugin::Gce | Plugin::AzureDisk) => {
                zones = Some(value.split(',').map(String::from).collect());
            }
            (lower, _) => {
                new.insert(key.clone(), value.clone());
                if lower == "iopspergb" && plugin == Plugin::Aws {
                    // The in-tree plugin raised values that were too low, and classes rely on it.
                    new.insert("allowautoiopspergbincrease".into(), "true".into());
                }
            }
        }
    }
    (new, zones)
}

fn vsphere(parameters: &Parameters) -> Parameters {
    // Tells the driver to answer with the path that the in-tree form needs.
    let mut new = Parameters::from([("csimigration".into(), "true".into())]);
    for (key, value) in parameters {
        let lower = key.to_lowercase();
        let key = match lower.as_str() {
            "fstype" => CSI_FS_TYPE.to_owned(),
            "storagepolicyname" => lower,
            known if VSPHERE_RENAMED.contains(&known) => format!("{known}-migrationparam"),
            _ => continue,
        };
        new.insert(key, value.clone());
    }
    new
}

fn portworx(parameters: &Parameters) -> Parameters {
    let mut new = Parameters::new();
    let mut for_all = |part: &str, value: &String| {
        for role in PORTWORX_ROLES {
            new.insert(format!("csi.storage.k8s.io/{role}-secret-{part}"), value.clone());
        }
    };
    let mut others = Vec::new();
    for (key, value) in parameters {
        match key.to_lowercase().as_str() {
            "openstorage.io/auth-secret-name" => for_all("name", value),
            "openstorage.io/auth-secret-namespace" => for_all("namespace", value),
            _ => others.push((key.clone(), value.clone())),
        }
    }
    new.extend(others);
    new
}

/// Where volumes may be, in the driver's keys.
fn allowed(
    plugin: Plugin,
    class: &StorageClass,
    zones: Option<Vec<String>>,
) -> Result<Vec<TopologyTerm>, TranslationError> {
    let given = &class.allowed_topologies;
    let Some(key) = plugin.zone_key() else { return Ok(given.clone()) };
    let mut terms = match zones {
        Some(_) if !given.is_empty() => return Err(TranslationError::ZonesTwice),
        Some(values) => {
            let expression = TopologyExpression { key: key.into(), values };
            vec![TopologyTerm { match_label_expressions: vec![expression] }]
        }
        None => given.clone(),
    };
    for one in terms.iter_mut().flat_map(|term| &mut term.match_label_expressions) {
        if is_zone_key(&one.key) {
            one.key = key.into();
        }
        if plugin == Plugin::AzureDisk && one.key == key {
            // Places without zones were numbered; the driver has an empty zone for them.
            one.values.iter_mut().filter(|value| is_number(value)).for_each(String::clear);
        }
    }
    Ok(terms)
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}
