//! From a pod's volume to the volume that has to be attached.

use serde_json::Value;

use super::{AttachSpec, PodId};
use crate::{
    model::{
        AccessMode, ClaimPhase, VolumeName,
        kinds::{Claim, CsiDriver, Pod, PodStatus, PodVolume, Volume},
    },
    provision::migration::{inline_spec, inline_to_csi, volume_to_csi},
};

/// Why a pod's volume leads to no volume for now. Only this volume is skipped.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unresolved {
    /// The claim is not there.
    #[error("claim {0} does not exist")]
    NoClaim(String),
    /// A generic ephemeral volume whose claim belongs to someone else.
    #[error("claim {0} was not created for this pod (pod is not owner)")]
    NotOwner(String),
    /// The claim waits for a volume.
    #[error("claim {0} is not bound")]
    NotBound(String),
    /// The volume is not there.
    #[error("volume {0} does not exist")]
    NoVolume(VolumeName),
    /// The volume belongs to another claim, or to an earlier one of the same name.
    #[error("volume {0} is not bound to the claim")]
    Misbound(VolumeName),
    /// Nothing that a CSI driver could attach.
    #[error("volume {0} is not a CSI volume")]
    NotCsi(String),
    /// A volume that the driver makes on the node, for one pod.
    #[error("volume {0} is an inline CSI volume, which is never attached")]
    Inline(String),
}

/// The pod as events and the desired state know it.
#[must_use]
pub fn pod_id(pod: &Pod) -> PodId {
    let meta = &pod.metadata;
    PodId { namespace: meta.namespace.clone(), name: meta.name.clone(), uid: meta.uid.clone() }
}

/// Whether a pod needs its volumes no longer: it has ended, or it is being deleted and each of its
/// containers is known to wait or to have ended. A state that nobody wrote yet says neither.
#[must_use]
pub fn terminated(pod: &Pod) -> bool {
    if pod.finished() {
        return true;
    }
    let is = |container: &Value, state: &str| {
        container.pointer("/state").and_then(|all| all.get(state)).is_some_and(|one| !one.is_null())
    };
    let PodStatus {
        container_statuses, init_container_statuses, ephemeral_container_statuses, ..
    } = &pod.status;
    let mut all = container_statuses
        .iter()
        .chain(init_container_statuses)
        .chain(ephemeral_container_statuses);
    pod.metadata.deleting() && all.all(|one| is(one, "terminated") || is(one, "waiting"))
}

/// Whether a claim was made for this pod.
#[must_use]
pub fn owned_by(claim: &Claim, pod: &Pod) -> bool {
    claim
        .metadata
        .owner_references
        .iter()
        .any(|owner| owner.controller == Some(true) && owner.uid == pod.metadata.uid)
}

/// The claim's volume, if the claim may be relied on.
pub fn bound_volume_name<'a>(
    pod: &Pod,
    volume: &PodVolume,
    claim_name: &str,
    claim: Option<&'a Claim>,
) -> Result<&'a VolumeName, Unresolved> {
    let claim = claim.ok_or_else(|| Unresolved::NoClaim(claim_name.to_owned()))?;
    if volume.ephemeral.is_some() && !owned_by(claim, pod) {
        return Err(Unresolved::NotOwner(claim_name.to_owned()));
    }
    if claim.status.phase != ClaimPhase::Bound || claim.spec.volume_name.is_empty() {
        return Err(Unresolved::NotBound(claim_name.to_owned()));
    }
    Ok(&claim.spec.volume_name)
}

/// What to attach for a bound claim.
pub fn attach_spec(claim: &Claim, volume: Option<&Volume>) -> Result<AttachSpec, Unresolved> {
    let name = &claim.spec.volume_name;
    let volume = volume.ok_or_else(|| Unresolved::NoVolume(name.clone()))?;
    let owner = volume.spec.claim_ref.as_ref().map(|claim| &claim.uid);
    if owner != Some(&claim.metadata.uid) {
        return Err(Unresolved::Misbound(name.clone()));
    }
    spec_of_volume(volume)
}

/// The attach path's view of a volume.
pub fn spec_of_volume(volume: &Volume) -> Result<AttachSpec, Unresolved> {
    let name = &volume.metadata.name;
    // In-tree sources are attached by the drivers that took over.
    let translated = volume_to_csi(volume).map_err(|_| Unresolved::NotCsi(name.clone()))?;
    let migrated = translated.is_some();
    let volume = translated.as_ref().unwrap_or(volume);
    let csi = volume.spec.csi.as_ref().ok_or_else(|| Unresolved::NotCsi(name.clone()))?;
    Ok(AttachSpec {
        name: name.clone(),
        driver: csi.driver.clone(),
        handle: csi.volume_handle.clone(),
        shareable: shareable(&volume.spec.access_modes),
        migrated,
        inline: None,
    })
}

/// What to attach for a volume that stands in the pod itself: only in-tree sources that a driver
/// took over.
pub fn inline_attach_spec(pod: &Pod, volume: &PodVolume) -> Result<AttachSpec, Unresolved> {
    let name = &volume.name;
    if volume.csi.is_some() {
        return Err(Unresolved::Inline(name.clone()));
    }
    let translated = inline_to_csi(volume, &pod.metadata.namespace).ok().flatten();
    let translated = translated.ok_or_else(|| Unresolved::NotCsi(name.clone()))?;
    let inline = Some(Box::new(inline_spec(&translated)));
    Ok(AttachSpec { migrated: true, inline, ..spec_of_volume(&translated)? })
}

/// Whether a volume may be on several nodes at once.
#[must_use]
pub fn shareable(modes: &[AccessMode]) -> bool {
    let many =
        |mode: &AccessMode| matches!(mode, AccessMode::ReadWriteMany | AccessMode::ReadOnlyMany);
    modes.is_empty() || modes.iter().any(many)
}

/// Whether a driver's volumes are attached before use. A driver nobody described is taken to
/// need it: attaching needlessly fails visibly, the other mistake loses data.
#[must_use]
pub fn attach_required(driver: Option<&CsiDriver>) -> bool {
    driver.is_none_or(CsiDriver::attach_required)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read<T: serde::de::DeserializeOwned>(value: Value) -> T {
        serde_json::from_value(value).expect("valid test object")
    }

    fn claim() -> Claim {
        read(json!({"metadata": {"name": "c", "uid": "c1"}, "spec": {"volumeName": "pv"},
            "status": {"phase": "Bound"}}))
    }

    fn volume() -> Volume {
        read(json!({"metadata": {"name": "pv"}, "spec": {"accessModes": ["ReadWriteOnce"],
            "claimRef": {"uid": "c1"}, "csi": {"driver": "d", "volumeHandle": "h"}}}))
    }

    #[test]
    fn a_bound_claim_leads_to_its_volume() {
        let spec = attach_spec(&claim(), Some(&volume())).expect("bound");
        let want = AttachSpec {
            name: "pv".into(),
            driver: "d".into(),
            handle: "h".into(),
            shareable: false,
            migrated: false,
            inline: None,
        };
        assert_eq!(spec, want);
        assert_eq!(attach_spec(&claim(), None), Err(Unresolved::NoVolume("pv".into())));
        let mut other = volume();
        other.spec.claim_ref.as_mut().expect("set").uid = "c0".into();
        assert_eq!(attach_spec(&claim(), Some(&other)), Err(Unresolved::Misbound("pv".into())));
        other.spec.claim_ref = None;
        assert_eq!(attach_spec(&claim(), Some(&other)), Err(Unresolved::Misbound("pv".into())));
    }

    #[test]
    fn in_tree_sources_lead_to_their_drivers() {
        // case: attach-detach/F6, attach-detach/F7 (no CSINode is asked)
        let handle = "projects/UNSPECIFIED/zones/UNSPECIFIED/disks/disk";
        let driver = "pd.csi.storage.gke.io";
        let mut disk = volume();
        disk.spec.csi = None;
        disk.spec.gce_persistent_disk = Some(read(json!({"pdName": "disk"})));
        let spec = attach_spec(&claim(), Some(&disk)).expect("translated");
        assert_eq!((spec.driver.as_str(), spec.handle.as_str()), (driver, handle));
        assert_eq!((spec.name.as_str(), spec.migrated, spec.shareable), ("pv", true, false));
        assert_eq!(spec.plugin(), "kubernetes.io/csi:pd.csi.storage.gke.io");

        let pod: Pod = read(json!({"metadata": {"name": "p"}, "spec": {"volumes": [
            {"name": "v", "gcePersistentDisk": {"pdName": "disk"}},
            {"name": "w", "csi": {"driver": "d"}},
            {"name": "x", "emptyDir": {}}]}}));
        let [in_tree, csi, scratch] = &pod.spec.volumes[..] else { panic!("three volumes") };
        let spec = inline_attach_spec(&pod, in_tree).expect("translated");
        assert_eq!((spec.driver.as_str(), spec.handle.as_str()), (driver, handle));
        assert_eq!(spec.inline.expect("no object of its own")["csi"]["volumeHandle"], handle);
        // case: attach-detach/C4
        let refused = inline_attach_spec(&pod, csi).expect_err("never attached");
        assert_eq!(refused, Unresolved::Inline("w".into()));
        let refused = inline_attach_spec(&pod, scratch).expect_err("nothing to attach");
        assert_eq!(refused, Unresolved::NotCsi("x".into()));
    }

    #[test]
    fn claims_that_lead_nowhere() {
        let pod: Pod = read(json!({"metadata": {"name": "p", "uid": "p1"}, "spec": {"volumes": [
            {"name": "v", "ephemeral": {}}, {"name": "w", "persistentVolumeClaim": {"claimName": "c"}}]}}));
        let [ephemeral, plain] = &pod.spec.volumes[..] else { panic!("two volumes") };
        let (bound, mut owned, mut pending) = (claim(), claim(), claim());
        let name = |volume, claim| bound_volume_name(&pod, volume, "c", claim);
        assert_eq!(name(plain, Some(&bound)), Ok(&"pv".into()));
        assert_eq!(name(plain, None), Err(Unresolved::NoClaim("c".into())));
        assert_eq!(name(ephemeral, Some(&bound)), Err(Unresolved::NotOwner("c".into())));
        owned.metadata.owner_references =
            vec![read(json!({"uid": "p1", "kind": "Pod", "controller": true}))];
        assert_eq!(name(ephemeral, Some(&owned)), Ok(&"pv".into()));
        pending.status.phase = ClaimPhase::Pending;
        assert_eq!(name(plain, Some(&pending)), Err(Unresolved::NotBound("c".into())));
    }

    #[test]
    fn who_must_be_attached() {
        let driver = |required: Value| -> CsiDriver {
            read(json!({"metadata": {"name": "d"}, "spec": {"attachRequired": required}}))
        };
        // case: attach-detach/C5
        assert!(!attach_required(Some(&driver(json!(false)))));
        assert!(attach_required(Some(&driver(json!(true)))));
        // case: attach-detach/C6
        assert!(attach_required(None));
        assert!(shareable(&[]));
        assert!(shareable(&[AccessMode::ReadWriteOnce, AccessMode::ReadOnlyMany]));
        assert!(!shareable(&[AccessMode::ReadWriteOncePod]));
    }

    #[test]
    fn when_a_pod_is_through() {
        let running = json!([{"state": {"running": {}}}]);
        let stopped = json!([{"state": {"terminated": {}}}]);
        let waiting = json!([{"state": {"waiting": {"reason": "PodInitializing"}}}]);
        let mixed = json!([stopped[0], running[0]]);
        let empty = json!([{"state": {}}]);
        let cases = [
            ("running", json!({"phase": "Running", "containerStatuses": running}), false, false),
            ("failed", json!({"phase": "Failed", "containerStatuses": running}), false, true),
            ("deleted, running", json!({"containerStatuses": running}), true, false),
            ("deleted, init runs", json!({"initContainerStatuses": running}), true, false),
            ("deleted, stopped", json!({"containerStatuses": stopped}), true, true),
            ("deleted, never started", json!({}), true, true),
            ("deleted, waits", json!({"containerStatuses": waiting}), true, true),
            ("deleted, lists are null", json!({"containerStatuses": null}), true, true),
            ("deleted, one runs", json!({"containerStatuses": mixed}), true, false),
            // case: attach-detach/F1
            ("deleted, state is empty", json!({"containerStatuses": empty}), true, false),
            ("deleted, state is absent", json!({"initContainerStatuses": [{}]}), true, false),
            (
                "deleted, debugged",
                json!({"containerStatuses": stopped, "ephemeralContainerStatuses": running}),
                true,
                false,
            ),
            (
                "deleted, was debugged",
                json!({"containerStatuses": stopped, "ephemeralContainerStatuses": stopped}),
                true,
                true,
            ),
        ];
        for (name, status, deleting, want) in cases {
            let mut pod: Pod = read(json!({"metadata": {"name": "p"}, "status": status}));
            if deleting {
                pod.metadata.deletion_timestamp = Some(jiff::Timestamp::UNIX_EPOCH);
            }
            assert_eq!(terminated(&pod), want, "{name}");
        }
    }
}
