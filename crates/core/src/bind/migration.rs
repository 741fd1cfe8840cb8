//! SyncMigrationAnnotations: the annotation and finalizers that follow from who provisioned an object.

use super::Write;
use crate::{
    claim::storage_provisioner,
    model::{
        ReclaimPolicy,
        keys::{annotations, finalizers},
        kinds::{Claim, Volume},
    },
    provision::migration,
};

/// The write that corrects the claim's annotation of the driver that took over.
pub(super) fn sync_claim_migration(claim: &Claim) -> Option<Write> {
    let wanted = migration::driver_for(storage_provisioner(claim)?);
    let noted = claim.metadata.annotation(annotations::MIGRATED_TO);
    // The annotation may already name the driver itself, which nobody migrated from: then the
    // note beside it was written together with it and is right.
    if wanted.is_none() && noted.is_some() && noted == storage_provisioner(claim) {
        return None;
    }
    (noted != wanted).then(|| Write::SyncClaimMigration { migrated_to: wanted.map(String::from) })
}

/// The write that corrects the volume's annotation and deletion finalizers.
pub(super) fn sync_volume_migration(volume: &Volume) -> Option<Write> {
    let provisioner = volume.metadata.annotation(annotations::PROVISIONED_BY)?;
    let wanted = migration::driver_for(provisioner);
    let noted = volume.metadata.annotation(annotations::MIGRATED_TO);
    let kept = deletion_finalizers(volume, provisioner, wanted.is_some());
    if noted == wanted && kept == volume.metadata.finalizers {
        return None;
    }
    Some(Write::SyncVolumeMigration { migrated_to: wanted.map(String::from), finalizers: kept })
}

fn deletion_finalizers(volume: &Volume, provisioner: &str, migrated: bool) -> Vec<String> {
    let mut kept = volume.metadata.finalizers.clone();
    if migrated {
        kept.retain(|one| one != finalizers::PV_CONTROLLER);
    } else if provisioner.starts_with("kubernetes.io/") {
        kept.retain(|one| one != finalizers::EXTERNAL_PROVISIONER);
        let ours = volume.spec.persistent_volume_reclaim_policy == ReclaimPolicy::Delete;
        if !ours {
            kept.retain(|one| one != finalizers::PV_CONTROLLER);
        } else if !volume.metadata.has_finalizer(finalizers::PV_CONTROLLER) {
            kept.push(finalizers::PV_CONTROLLER.into());
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bind::fixtures::{claim, volume};
    use serde_json::json;

    const OURS: &str = finalizers::PV_CONTROLLER;
    const EXTERNAL: &str = finalizers::EXTERNAL_PROVISIONER;

    #[test]
    fn notes_of_migration() {
        let driver = "pd.csi.storage.gke.io";
        let claim_with =
            |key: &str| claim(json!({"metadata": {"annotations": {key: "kubernetes.io/gce-pd"}}}));
        for key in [
            "volume.kubernetes.io/storage-provisioner",
            "volume.beta.kubernetes.io/storage-provisioner",
        ] {
            // case: pv-controller/mig-1 case: pv-controller/mig-2 (claim and volume side)
            let want = Some(Write::SyncClaimMigration { migrated_to: Some(driver.into()) });
            assert_eq!(sync_claim_migration(&claim_with(key)), want, "{key}");
        }
        let pv = volume(
            json!({"metadata": {"annotations": {"pv.kubernetes.io/provisioned-by": "kubernetes.io/gce-pd"}}}),
        );
        assert_eq!(
            sync_volume_migration(&pv),
            Some(Write::SyncVolumeMigration {
                migrated_to: Some(driver.into()),
                finalizers: vec![]
            })
        );
        // case: pv-controller/mig-3
        let stale = json!({"metadata": {"annotations": {
            "volume.kubernetes.io/storage-provisioner": "vendor.com/x", "pv.kubernetes.io/migrated-to": driver}}});
        assert_eq!(
            sync_claim_migration(&claim(stale)),
            Some(Write::SyncClaimMigration { migrated_to: None })
        );
        let stale = json!({"metadata": {"annotations": {
            "pv.kubernetes.io/provisioned-by": "vendor.com/x", "pv.kubernetes.io/migrated-to": driver}}});
        assert_eq!(
            sync_volume_migration(&volume(stale)),
            Some(Write::SyncVolumeMigration { migrated_to: None, finalizers: vec![] })
        );
    }

    #[test]
    fn a_plugin_that_is_not_migrated_takes_its_volume_back() {
        // case: pv-controller/5-9
        let pv = volume(json!({"metadata": {"finalizers": [EXTERNAL], "annotations": {
                "pv.kubernetes.io/provisioned-by": "kubernetes.io/other",
                "pv.kubernetes.io/migrated-to": "other.csi.example"}},
            "spec": {"persistentVolumeReclaimPolicy": "Delete"}}));
        let want = Write::SyncVolumeMigration { migrated_to: None, finalizers: vec![OURS.into()] };
        assert_eq!(sync_volume_migration(&pv), Some(want));
    }

    #[test]
    fn finalizers_of_deletion() {
        let in_tree = Some("kubernetes.io/other");
        let migrated = Some("kubernetes.io/gce-pd");
        type Row<'a> = (&'a str, Option<&'a str>, &'a str, &'a [&'a str], &'a [&'a str]);
        let cases: &[Row<'_>] = &[
            (
                "case: pv-controller/fin-13-1",
                Some("vendor.com/x"),
                "Delete",
                &[EXTERNAL],
                &[EXTERNAL],
            ),
            ("case: pv-controller/fin-13-3", in_tree, "Delete", &["custom"], &["custom", OURS]),
            ("case: pv-controller/fin-13-5", in_tree, "Delete", &[EXTERNAL], &[OURS]),
            ("case: pv-controller/fin-13-7", migrated, "Delete", &[OURS, EXTERNAL], &[EXTERNAL]),
            ("case: pv-controller/fin-13-12", in_tree, "Retain", &[], &[]),
            ("case: pv-controller/fin-13-14", in_tree, "Retain", &[OURS], &[]),
            ("case: pv-controller/fin-13-10", None, "Delete", &[OURS], &[OURS]),
            ("case: pv-controller/fin-13-11", None, "Retain", &[EXTERNAL], &[EXTERNAL]),
            ("case: pv-controller/fin-13-15", None, "Delete", &["custom"], &["custom"]),
        ];
        for (name, provisioner, policy, have, want) in cases {
            let mut pv = volume(json!({"spec": {"persistentVolumeReclaimPolicy": policy},
                "metadata": {"finalizers": have}}));
            if let Some(provisioner) = provisioner {
                let key = annotations::PROVISIONED_BY.to_string();
                pv.metadata.annotations.insert(key, (*provisioner).into());
            }
            let got = match sync_volume_migration(&pv) {
                Some(Write::SyncVolumeMigration { finalizers, .. }) => finalizers,
                _ => pv.metadata.finalizers.clone(),
            };
            assert_eq!(got, *want, "{name}");
        }
    }
}
