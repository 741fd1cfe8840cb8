//! From a pod's claim to the volume behind it.

/// The facts of a claim.
#[derive(Debug, Clone, Copy, Default)]
pub struct ClaimView<'a> {
    /// It has a deletion timestamp.
    pub deleting: bool,
    /// It still has the finalizer that protects claims in use.
    pub protected: bool,
    /// `status.phase` is `Bound`.
    pub bound: bool,
    /// `spec.volumeName`, empty when unset.
    pub volume: &'a str,
    /// For the claim of an ephemeral volume: whether the pod owns it.
    pub owned_by_pod: Option<bool>,
}

/// Why a pod's volume cannot be used. The texts are the ones users know.
#[derive(Debug, Clone, thiserror::Error, PartialEq, Eq)]
pub enum Refusal {
    /// The claim goes away and nothing holds it.
    #[error("PVC is being deleted")]
    Deleting,
    /// The claim has no volume yet.
    #[error("PVC is not bound")]
    NotBound,
    /// The claim is bound but names no volume.
    #[error("PVC has empty pvc.Spec.VolumeName")]
    NoVolumeName,
    /// A claim of that name exists but belongs to somebody else.
    #[error("PVC {0} was not created for this pod (pod is not owner)")]
    NotOwned(String),
    /// The volume is bound to another claim.
    #[error("PV {0} is bound to another claim than the one of this pod")]
    Stolen(String),
    /// A mounted volume is a block volume.
    #[error("volume {0} has volumeMode Block, but is specified in volumeMounts")]
    BlockInMounts(String),
    /// A device is a filesystem volume.
    #[error("volume {0} has volumeMode Filesystem, but is specified in volumeDevices")]
    FilesystemInDevices(String),
}

/// The name of the volume behind a claim.
///
/// # Errors
/// The claim is not usable now.
pub fn volume_of_claim<'a>(name: &str, claim: &ClaimView<'a>) -> Result<&'a str, Refusal> {
    if claim.owned_by_pod == Some(false) {
        return Err(Refusal::NotOwned(name.to_owned()));
    }
    if claim.deleting && !claim.protected {
        return Err(Refusal::Deleting);
    }
    if !claim.bound {
        return Err(Refusal::NotBound);
    }
    if claim.volume.is_empty() {
        return Err(Refusal::NoVolumeName);
    }
    Ok(claim.volume)
}

/// Whether the way a pod uses a volume fits the volume's mode.
///
/// # Errors
/// It does not.
pub fn check_mode(
    pod_volume: &str,
    block: bool,
    in_mounts: bool,
    in_devices: bool,
) -> Result<(), Refusal> {
    if block && in_mounts {
        return Err(Refusal::BlockInMounts(pod_volume.to_owned()));
    }
    if !block && in_devices {
        return Err(Refusal::FilesystemInDevices(pod_volume.to_owned()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_gets_the_volume_of_a_bound_claim_only() {
        let good = ClaimView {
            deleting: false,
            protected: true,
            bound: true,
            volume: "pv",
            owned_by_pod: None,
        };
        for (case, claim, expected) in [
            ("bound", good, Ok("pv")),
            (
                "case: node/N52",
                ClaimView { deleting: true, protected: false, ..good },
                Err("PVC is being deleted"),
            ),
            ("deleting but protected", ClaimView { deleting: true, ..good }, Ok("pv")),
            ("pending", ClaimView { bound: false, ..good }, Err("PVC is not bound")),
            (
                "no volume",
                ClaimView { volume: "", ..good },
                Err("PVC has empty pvc.Spec.VolumeName"),
            ),
            (
                "ephemeral, foreign",
                ClaimView { owned_by_pod: Some(false), ..good },
                Err("PVC c was not created for this pod (pod is not owner)"),
            ),
        ] {
            let got = volume_of_claim("c", &claim).map_err(|refusal| refusal.to_string());
            assert_eq!(got, expected.map_err(str::to_owned), "{case}");
        }
    }

    #[test]
    fn volume_mode_and_use_in_the_pod_must_agree() {
        // case: node/N53
        assert_eq!(
            check_mode("v", true, true, false).unwrap_err().to_string(),
            "volume v has volumeMode Block, but is specified in volumeMounts"
        );
        assert_eq!(
            check_mode("v", false, false, true).unwrap_err().to_string(),
            "volume v has volumeMode Filesystem, but is specified in volumeDevices"
        );
        assert_eq!(check_mode("v", false, true, false), Ok(()));
        assert_eq!(check_mode("v", true, false, true), Ok(()));
    }
}
