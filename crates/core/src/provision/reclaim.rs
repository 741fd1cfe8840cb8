//! When a volume is this provisioner's, and when to delete it.

use std::collections::BTreeMap;

use super::params::{ParamError, Role, Tokens, secret};
use crate::model::{
    ReclaimPolicy, VolumePhase,
    keys::{annotations, finalizers},
    kinds::{SecretRef, StorageClass, Volume},
};

/// Whether a volume belongs to one of these provisioner names.
#[must_use]
pub fn is_ours(volume: &Volume, names: &[String]) -> bool {
    let known = |name: &str| names.iter().any(|own| own == name);
    let migrated = volume.metadata.annotation(annotations::MIGRATED_TO).is_some_and(known);
    match volume.metadata.annotation(annotations::PROVISIONED_BY) {
        Some(by) => known(by) || migrated,
        None => match &volume.spec.csi {
            Some(csi) => known(&csi.driver),
            None => migrated,
        },
    }
}

/// The volume's finalizers as they shall be, when that differs from what they are.
#[must_use]
pub fn finalizers_after(volume: &Volume, add_finalizer: bool) -> Option<Vec<String>> {
    let policy = &volume.spec.persistent_volume_reclaim_policy;
    let present = volume.metadata.has_finalizer(finalizers::EXTERNAL_PROVISIONER);
    let bound = volume.status.phase == VolumePhase::Bound;
    let add =
        add_finalizer && *policy == ReclaimPolicy::Delete && !volume.metadata.deleting() && bound;
    let remove = !add_finalizer || matches!(policy, ReclaimPolicy::Retain | ReclaimPolicy::Recycle);
    if add && !present {
        let mut longer = volume.metadata.finalizers.clone();
        longer.push(finalizers::EXTERNAL_PROVISIONER.into());
        return Some(longer);
    }
    (remove && present).then(|| without_ours(&volume.metadata.finalizers))
}

fn without_ours(all: &[String]) -> Vec<String> {
    all.iter().filter(|one| *one != finalizers::EXTERNAL_PROVISIONER).cloned().collect()
}

/// Whether a volume of ours shall be deleted with its storage.
#[must_use]
pub fn wants_deletion(volume: &Volume, add_finalizer: bool) -> bool {
    let deleting = volume.metadata.deleting();
    let present = volume.metadata.has_finalizer(finalizers::EXTERNAL_PROVISIONER);
    // Without our finalizer a deletion under way means that the object may vanish at any moment:
    // whoever asked for it took the storage over.
    let too_late = deleting && !(add_finalizer && present);
    !too_late
        && volume.status.phase == VolumePhase::Released
        && volume.spec.persistent_volume_reclaim_policy == ReclaimPolicy::Delete
}

/// Where the secret for DeleteVolume comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeletionSecret {
    /// There is none.
    None,
    /// This one; when it cannot be read the call goes out without.
    From(SecretRef),
}

/// Finds the secret for DeleteVolume: the volume's own note first, its class otherwise.
///
/// # Errors
/// When the class's template cannot be resolved.
pub fn deletion_secret(
    volume: &Volume,
    class: Option<&StorageClass>,
) -> Result<DeletionSecret, ParamError> {
    let note = |key| volume.metadata.annotation(key);
    let name = note(annotations::DELETION_SECRET_NAME);
    let namespace = note(annotations::DELETION_SECRET_NAMESPACE);
    if let (Some(name), Some(namespace)) = (name, namespace) {
        if name.is_empty() || namespace.is_empty() {
            return Ok(DeletionSecret::None);
        }
        let reference = SecretRef { name: name.into(), namespace: namespace.into() };
        return Ok(DeletionSecret::From(reference));
    }
    let (Some(class), Some(claim)) = (class, &volume.spec.claim_ref) else {
        return Ok(DeletionSecret::None);
    };
    let tokens = Tokens {
        volume: &volume.metadata.name,
        claim_namespace: &claim.namespace,
        claim_name: &claim.name,
        claim_annotations: None::<&BTreeMap<String, String>>,
    };
    let found = secret(Role::Provisioner, &class.parameters, &tokens)?;
    Ok(found.map_or(DeletionSecret::None, DeletionSecret::From))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::bind::fixtures::{merge, volume};

    const OURS: &str = finalizers::EXTERNAL_PROVISIONER;

    fn pv(phase: &str, policy: &str, over: Value) -> Volume {
        let mut base =
            json!({"spec": {"persistentVolumeReclaimPolicy": policy}, "status": {"phase": phase}});
        merge(&mut base, over);
        volume(base)
    }

    fn deleting(finalizers: &[&str]) -> Value {
        json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": finalizers}})
    }

    #[test]
    fn deletions() {
        let cases: &[(&str, Volume, bool, bool)] = &[
            ("case: provisioner/40 Bound", pv("Bound", "Delete", json!({})), false, false),
            ("case: provisioner/40 Available", pv("Available", "Delete", json!({})), false, false),
            ("case: provisioner/40 Failed", pv("Failed", "Delete", json!({})), false, false),
            ("case: provisioner/41", pv("Released", "Retain", json!({})), false, false),
            ("case: provisioner/42", pv("Released", "Delete", deleting(&["x"])), false, false),
            ("case: provisioner/48", pv("Released", "Delete", deleting(&["x"])), true, false),
            (
                "case: provisioner/49 deleting",
                pv("Released", "Delete", deleting(&[OURS])),
                true,
                true,
            ),
            (
                "case: provisioner/49",
                pv("Released", "Delete", json!({"metadata": {"finalizers": [OURS]}})),
                true,
                true,
            ),
            ("released", pv("Released", "Delete", json!({})), false, true),
        ];
        for (name, volume, add_finalizer, want) in cases {
            assert_eq!(wants_deletion(volume, *add_finalizer), *want, "{name}");
        }
    }

    #[test]
    fn finalizers() {
        let with = |names: &[&str]| json!({"metadata": {"finalizers": names}});
        let cases: &[(&str, Volume, bool, Option<&[&str]>)] = &[
            ("case: provisioner/46", pv("Bound", "Delete", with(&[OURS])), false, Some(&[])),
            ("case: provisioner/47", pv("Bound", "Retain", with(&[OURS])), true, Some(&[])),
            ("case: provisioner/48", pv("Released", "Delete", deleting(&["x"])), true, None),
            (
                "case: provisioner/52 remove",
                pv("Bound", "Delete", with(&["dummy", OURS])),
                false,
                Some(&["dummy"]),
            ),
            (
                "case: provisioner/52 nothing to remove",
                pv("Bound", "Delete", with(&["dummy"])),
                false,
                None,
            ),
            (
                "case: provisioner/52 add",
                pv("Bound", "Delete", with(&["dummy"])),
                true,
                Some(&["dummy", OURS]),
            ),
            (
                "case: provisioner/52 add to none",
                pv("Bound", "Delete", json!({})),
                true,
                Some(&[OURS]),
            ),
            ("case: provisioner/52 present", pv("Bound", "Delete", with(&[OURS])), true, None),
        ];
        for (name, volume, add, want) in cases {
            let got = finalizers_after(volume, *add);
            let want = want.map(|names| names.iter().map(|n| (*n).to_string()).collect::<Vec<_>>());
            assert_eq!(got, want, "{name}");
        }
    }

    #[test]
    fn ownership() {
        let notes = |by: Option<&str>, to: Option<&str>| {
            json!({"metadata": {"annotations": {
                "pv.kubernetes.io/provisioned-by": by, "pv.kubernetes.io/migrated-to": to}}})
        };
        let csi = |driver: &str| json!({"spec": {"csi": {"driver": driver, "volumeHandle": "h"}}});
        let cases: &[(&str, Value, bool)] = &[
            ("made by us", notes(Some("ours"), None), true),
            ("made by others", notes(Some("theirs"), None), false),
            ("case: provisioner/43", notes(Some("theirs"), Some("ours")), true),
            ("case: provisioner/50 our driver", csi("ours"), true),
            ("case: provisioner/50 foreign driver", csi("theirs"), false),
            ("case: provisioner/51", notes(None, Some("ours")), true),
            ("case: provisioner/51 no note", json!({}), false),
        ];
        for (name, over, want) in cases {
            assert_eq!(is_ours(&volume(over.clone()), &["ours".to_string()]), *want, "{name}");
        }
    }

    #[test]
    fn deletion_secrets() {
        let class = |name: &str| -> StorageClass {
            serde_json::from_value(
                json!({"metadata": {"name": "c"}, "provisioner": "p", "parameters": {
                "csi.storage.k8s.io/provisioner-secret-name": name,
                "csi.storage.k8s.io/provisioner-secret-namespace": "ns"}}),
            )
            .unwrap()
        };
        let notes = |name: &str, namespace: &str| {
            json!({"metadata": {"annotations": {
                "volume.kubernetes.io/provisioner-deletion-secret-name": name,
                "volume.kubernetes.io/provisioner-deletion-secret-namespace": namespace}}})
        };
        let claimed =
            || json!({"spec": {"claimRef": {"namespace": "default", "name": "claim", "uid": "u"}}});
        let from = |name: &str, namespace: &str| {
            DeletionSecret::From(SecretRef { name: name.into(), namespace: namespace.into() })
        };
        let half = || -> StorageClass {
            let mut class = class("s");
            class.parameters.remove("csi.storage.k8s.io/provisioner-secret-namespace");
            class
        };
        type Row = (&'static str, Value, Option<StorageClass>, Option<DeletionSecret>);
        let cases: [Row; 8] = [
            ("case: provisioner/118 half a pair", claimed(), Some(half()), None),
            (
                "case: provisioner/117 empty pair",
                notes("", ""),
                Some(class("s")),
                Some(DeletionSecret::None),
            ),
            ("case: provisioner/117 pair", notes("a", "b"), None, Some(from("a", "b"))),
            ("half empty", notes("a", ""), Some(class("s")), Some(DeletionSecret::None)),
            (
                "case: provisioner/118",
                claimed(),
                Some(class("${pvc.name}")),
                Some(from("claim", "ns")),
            ),
            (
                "case: provisioner/118 annotation",
                claimed(),
                Some(class("${pvc.annotations['a']}")),
                None,
            ),
            ("case: provisioner/118 no class", claimed(), None, Some(DeletionSecret::None)),
            ("no claim", json!({}), Some(class("s")), Some(DeletionSecret::None)),
        ];
        for (name, over, class, want) in cases {
            assert_eq!(deletion_secret(&volume(over), class.as_ref()).ok(), want, "{name}");
        }
    }
}
