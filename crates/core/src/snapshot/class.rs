//! The class of a snapshot that names none.

use crate::model::{
    ClaimPhase,
    keys::annotations,
    kinds::{Claim, Meta, Volume, VolumeGroupSnapshotClass, VolumeSnapshotClass},
};

/// Why there is no default class, or no volume to look one up for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SourceError {
    #[error(
        "failed to retrieve PVC {0} from the lister: \"persistentvolumeclaim \\\"{0}\\\" not found\""
    )]
    NoClaim(String),
    #[error("the PVC {0} is not yet bound to a PV, will not attempt to take a snapshot")]
    NotBound(String),
    #[error(
        "failed to retrieve PV {0} from the API server: \"persistentvolumes \\\"{0}\\\" not found\""
    )]
    NoVolume(String),
    #[error("claim in dataSource not bound or invalid")]
    NotItsVolume,
    #[error("snapshotting non-CSI volumes is not supported, snapshot:{0}")]
    NotCsi(String),
    #[error("cannot find default snapshot class")]
    NoDefault,
    #[error("{} default snapshot classes were found", .0.len())]
    Ambiguous(Vec<String>),
}

/// The volume of the claim: bound, and in both directions.
///
/// # Errors
/// When there is none.
pub fn volume_of<'a>(claim: &Claim, volume: Option<&'a Volume>) -> Result<&'a Volume, SourceError> {
    let name = &claim.spec.volume_name;
    if claim.status.phase != ClaimPhase::Bound || name.is_empty() {
        return Err(SourceError::NotBound(claim.metadata.name.clone()));
    }
    let volume = volume.ok_or_else(|| SourceError::NoVolume(name.to_string()))?;
    let is_its = volume.spec.claim_ref.as_ref().is_some_and(|reference| {
        super::refers_to(reference, &claim.metadata)
            && (reference.uid.is_empty() || reference.uid == claim.metadata.uid)
    });
    is_its.then_some(volume).ok_or(SourceError::NotItsVolume)
}

/// The one default class of the driver. Only the word `true` makes a class the default.
///
/// # Errors
/// When there is none, or more than one.
pub fn default_class<'a>(
    classes: impl IntoIterator<Item = &'a VolumeSnapshotClass>,
    driver: &str,
) -> Result<&'a str, SourceError> {
    let classes = classes.into_iter().map(|class| (&class.metadata, class.driver.as_str()));
    only_default(classes, annotations::SNAPSHOT_IS_DEFAULT_CLASS, driver)
}

/// The one default class of the driver for group snapshots.
///
/// # Errors
/// When there is none, or more than one.
pub fn default_group_class<'a>(
    classes: impl IntoIterator<Item = &'a VolumeGroupSnapshotClass>,
    driver: &str,
) -> Result<&'a str, SourceError> {
    let classes = classes.into_iter().map(|class| (&class.metadata, class.driver.as_str()));
    only_default(classes, annotations::GROUP_SNAPSHOT_IS_DEFAULT_CLASS, driver)
}

fn only_default<'a>(
    classes: impl IntoIterator<Item = (&'a Meta, &'a str)>,
    annotation: &str,
    driver: &str,
) -> Result<&'a str, SourceError> {
    let mut found: Vec<&str> = classes
        .into_iter()
        .filter(|(meta, of)| meta.annotation(annotation) == Some("true") && *of == driver)
        .map(|(meta, _)| meta.name.as_str())
        .collect();
    found.sort_unstable();
    match found[..] {
        [] => Err(SourceError::NoDefault),
        [one] => Ok(one),
        _ => Err(SourceError::Ambiguous(found.into_iter().map(str::to_owned).collect())),
    }
}
