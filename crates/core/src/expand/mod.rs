//! Who expands a claim's volume: somebody outside, or the node alone.
//!
//! All that is left of in-tree expansion is to say so, to name the resizer of a driver that took over
//! from an in-tree plugin, and to keep the books for FlexVolumes ([`flex`]). The resizer itself lives
//! beside its driver.

pub mod flex;

use serde_json::Value;

use crate::{
    model::{
        ClaimPhase,
        keys::annotations,
        kinds::{Claim, Volume},
    },
    provision::migration,
};

/// Sources of volumes that belonged to in-tree plugins, and the plugins.
const MIGRATED_SOURCES: [(&str, &str); 7] = [
    ("awsElasticBlockStore", "kubernetes.io/aws-ebs"),
    ("gcePersistentDisk", "kubernetes.io/gce-pd"),
    ("azureDisk", "kubernetes.io/azure-disk"),
    ("azureFile", "kubernetes.io/azure-file"),
    ("cinder", "kubernetes.io/cinder"),
    ("vsphereVolume", "kubernetes.io/vsphere-volume"),
    ("portworxVolume", "kubernetes.io/portworx-volume"),
];

/// What to do about a claim that may want to grow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Expansion {
    /// It has the size that it asks for.
    Nothing,
    /// The event to send, and then the resizer to write down, where the claim does not name it yet.
    External {
        /// A sentence for the `Normal` event `ExternalExpanding`.
        message: String,
        /// The driver that took over from an in-tree plugin.
        resizer: Option<&'static str>,
    },
    /// A FlexVolume: its driver is the nodes'.
    Flex {
        /// The driver.
        driver: String,
        /// The next step.
        step: flex::FlexStep,
    },
}

/// Why a claim cannot be expanded now.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("persistent Volume is not bound to PVC being updated : {0}")]
pub struct NotBound(String);

/// Whether a change of a claim is worth a look: it is bound, and asks for or has more than before.
#[must_use]
pub fn worth_a_look(old: Option<&Claim>, new: &Claim) -> bool {
    let more = |old: &Claim| new.request() > old.request() || flex::size(new) > flex::size(old);
    new.status.phase == ClaimPhase::Bound && old.is_none_or(more)
}

/// Whether records alone show that there is nothing to do: the volume is a driver's and the claim's own,
/// and the claim has what it asks for.
#[must_use]
pub fn is_settled(claim: &Claim, volume: &Volume) -> bool {
    volume.spec.csi.is_some()
        && matches!(decide_expansion(claim, volume, &Value::Null), Ok(Expansion::Nothing))
}

/// Decides about one claim. `live` is the volume's JSON as the API has it now, for records do not
/// hold the sources of in-tree plugins.
///
/// # Errors
/// When the volume does not point back at this claim.
pub fn decide_expansion(
    claim: &Claim,
    volume: &Volume,
    live: &Value,
) -> Result<Expansion, NotBound> {
    let meta = &claim.metadata;
    let ours = volume.spec.claim_ref.as_ref().is_some_and(|reference| {
        reference.namespace == meta.namespace && reference.uid == meta.uid
    });
    if !ours {
        return Err(NotBound(meta.key().to_string()));
    }
    let pending = volume.metadata.annotation(annotations::PRE_RESIZE_CAPACITY).is_some();
    if claim.request() <= flex::size(claim) && !pending {
        return Ok(Expansion::Nothing);
    }
    if let Some(driver) = flex::driver(live) {
        let step = flex::decide_flex(claim, volume);
        return Ok(Expansion::Flex { driver: driver.to_owned(), step });
    }
    let Some(plugin) = in_tree_plugin(live) else {
        let message = "waiting for an external controller to expand this PVC".to_owned();
        return Ok(Expansion::External { message, resizer: None });
    };
    let message = format!(
        "CSI migration enabled for {plugin}; waiting for external resizer to expand the pvc"
    );
    let named = meta.annotation(annotations::STORAGE_RESIZER);
    let resizer = migration::driver_for(plugin).filter(|driver| named != Some(driver));
    Ok(Expansion::External { message, resizer })
}

/// The in-tree plugin that a volume's source belonged to.
fn in_tree_plugin(volume: &Value) -> Option<&'static str> {
    let found = MIGRATED_SOURCES.iter().find(|(field, _)| has_source(volume, field));
    found.map(|(_, plugin)| *plugin)
}

fn has_source(volume: &Value, field: &str) -> bool {
    volume.get("spec").and_then(|spec| spec.get(field)).is_some_and(|source| !source.is_null())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bind::fixtures::{claim, merge, volume_json};
    use serde_json::json;

    fn decide(claim_over: Value, volume_over: Value) -> Result<Expansion, NotBound> {
        let mut bound = json!({"spec": {"resources": {"requests": {"storage": "2Gi"}}},
            "status": {"phase": "Bound", "capacity": {"storage": "1Gi"}}});
        merge(&mut bound, claim_over);
        let mut pointing = json!({"spec": {"hostPath": null, "csi": {"driver": "d", "volumeHandle": "h"},
            "claimRef": {"namespace": "default", "name": "claim", "uid": "uid-c"}}});
        merge(&mut pointing, volume_over);
        let live = volume_json(pointing);
        let volume = serde_json::from_value(live.clone()).expect("a volume");
        decide_expansion(&claim(bound), &volume, &live)
    }

    fn outside(message: &str, resizer: Option<&'static str>) -> Result<Expansion, NotBound> {
        Ok(Expansion::External { message: message.to_owned(), resizer })
    }

    #[test]
    fn expansion_is_somebody_elses() {
        let waiting = "waiting for an external controller to expand this PVC";
        let ebs = json!({"spec": {"csi": null, "awsElasticBlockStore": {"volumeID": "v"}}});
        let migrated = "CSI migration enabled for kubernetes.io/aws-ebs; waiting for external resizer to expand the pvc";
        let told = json!({"metadata": {"annotations": {"volume.kubernetes.io/storage-resizer": "ebs.csi.aws.com"}}});
        let other =
            json!({"metadata": {"annotations": {"volume.kubernetes.io/storage-resizer": "x"}}});
        let grown = json!({"status": {"capacity": {"storage": "2Gi"}}});
        let on_node = json!({"metadata": {"annotations": {"volume.alpha.kubernetes.io/pre-resize-capacity": "1Gi"}}});
        let none = || json!({});
        let nothing = || Ok(Expansion::Nothing);
        let cases = [
            ("case: pv-controller/exp-csi", none(), none(), outside(waiting, None)),
            (
                "case: pv-controller/exp-mig",
                none(),
                ebs.clone(),
                outside(migrated, Some("ebs.csi.aws.com")),
            ),
            ("the resizer is named already", told, ebs.clone(), outside(migrated, None)),
            ("another is named", other, ebs, outside(migrated, Some("ebs.csi.aws.com"))),
            ("it has what it asks for", grown.clone(), none(), nothing()),
            ("and yet the node is not done", grown, on_node, outside(waiting, None)),
            (
                "a volume made by hand",
                none(),
                json!({"spec": {"csi": null, "nfs": {"server": "s", "path": "/"}}}),
                outside(waiting, None),
            ),
            (
                "the node's alone",
                none(),
                json!({"spec": {"csi": null, "flexVolume": {"driver": "example.com/flex"}}}),
                Ok(Expansion::Flex {
                    driver: "example.com/flex".to_owned(),
                    step: flex::FlexStep::Grow("2Gi".parse().expect("a quantity")),
                }),
            ),
        ];
        for (name, claim, volume, want) in cases {
            assert_eq!(decide(claim, volume), want, "{name}");
        }
    }

    #[test]
    fn a_volume_that_points_elsewhere_is_an_error() {
        // case: pv-controller/exp-unbound
        let text = "persistent Volume is not bound to PVC being updated : default/claim";
        for reference in [json!({"uid": "other"}), json!({"namespace": "other"})] {
            let error = decide(json!({}), json!({"spec": {"claimRef": reference}}));
            assert_eq!(error.expect_err("not ours").to_string(), text);
        }
        let error = decide(json!({}), json!({"spec": {"claimRef": null}}));
        assert_eq!(error.expect_err("nobody's").to_string(), text);
    }

    #[test]
    fn every_source_has_a_driver() {
        for (field, plugin) in MIGRATED_SOURCES {
            assert_eq!(in_tree_plugin(&json!({"spec": {field: {}}})), Some(plugin));
            assert!(migration::driver_for(plugin).is_some(), "{plugin}");
        }
    }

    #[test]
    fn looks() {
        let with = |phase: &str, request: &str, size: &str| {
            claim(json!({"spec": {"resources": {"requests": {"storage": request}}},
                "status": {"phase": phase, "capacity": {"storage": size}}}))
        };
        let small = with("Bound", "1Gi", "1Gi");
        assert!(worth_a_look(None, &small));
        assert!(!worth_a_look(None, &with("Pending", "1Gi", "1Gi")));
        assert!(!worth_a_look(Some(&small), &small));
        assert!(worth_a_look(Some(&small), &with("Bound", "2Gi", "1Gi")), "asks for more");
        assert!(worth_a_look(Some(&small), &with("Bound", "1Gi", "2Gi")), "has more");
        assert!(!worth_a_look(Some(&with("Bound", "2Gi", "2Gi")), &small), "less of both");
    }
}
