use super::*;
use crate::bind::fixtures::{claim, claim_json, volume, volume_json};

const BBC: &str = "/metadata/annotations/pv.kubernetes.io~1bound-by-controller";
const BC: &str = "/metadata/annotations/pv.kubernetes.io~1bind-completed";

#[test]
fn pointing_a_volume() {
    let claim = claim(json!({}));
    let mut pv = volume_json(json!({"spec": {"somethingNew": 1}}));
    assert!(point_volume(&mut pv, &claim.metadata, true));
    let want = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": "default",
        "name": "claim", "uid": "uid-c", "resourceVersion": "5"});
    assert_eq!(pv["spec"]["claimRef"], want);
    assert_eq!(pv["spec"]["somethingNew"], 1);
    assert_eq!(pv.pointer(BBC), Some(&json!("yes")));
    assert!(!point_volume(&mut pv, &claim.metadata, false), "nothing left to change");
}

#[test]
fn unbinding_keeps_what_a_person_wrote() {
    let reference = json!({"namespace": "default", "name": "claim", "uid": "uid-c"});
    let mut ours = volume_json(json!({"spec": {"claimRef": reference},
        "metadata": {"annotations": {"pv.kubernetes.io/bound-by-controller": "yes"}}}));
    assert!(unbind_volume(&mut ours));
    assert!(
        ours["spec"].get("claimRef").is_none() && ours["metadata"].get("annotations").is_none()
    );
    let mut kept = volume_json(json!({"spec": {"claimRef": reference}}));
    assert!(unbind_volume(&mut kept));
    assert_eq!(kept["spec"]["claimRef"], json!({"namespace": "default", "name": "claim"}));
    assert!(!unbind_volume(&mut kept));
}

#[test]
fn pointing_a_claim() {
    let mut fresh = claim_json(json!({}));
    assert!(point_claim(&mut fresh, &"pv".into()));
    assert!(fresh.pointer(BBC).is_some() && fresh.pointer(BC).is_some());
    assert!(!point_claim(&mut fresh, &"pv".into()));
    let mut by_user =
        claim_json(json!({"spec": {"volumeName": "pv"}, "metadata": {"annotations": null}}));
    assert!(point_claim(&mut by_user, &"pv".into()));
    assert!(by_user.pointer(BBC).is_none() && by_user.pointer(BC).is_some());
}

#[test]
fn a_bound_claim_shows_size_and_modes_of_its_volume() {
    // case: pv-controller/5-2-3
    let pv = volume(
        json!({"spec": {"capacity": {"storage": "2Gi"}, "volumeAttributesClassName": "gold"},
        "metadata": {"annotations": {"volume.alpha.kubernetes.io/pre-resize-capacity": "1Gi"}}}),
    );
    let mut fresh = claim_json(json!({}));
    assert!(set_claim_bound(&mut fresh, &pv));
    let want = json!({"phase": "Bound", "accessModes": ["ReadWriteOnce", "ReadOnlyMany"],
        "capacity": {"storage": "1Gi"}, "currentVolumeAttributesClassName": "gold"});
    // case: pv-controller/2-12 (status)
    // case: resizer/62 (the binder's part)
    assert_eq!(fresh["status"], want);
    assert!(!set_claim_bound(&mut fresh, &pv));
    // case: resizer/63
    let mut odd = volume(json!({"spec": {"capacity": {"storage": "2Gi"}}}));
    odd.metadata.annotations.insert(annotations::PRE_RESIZE_CAPACITY.into(), "nonsense".into());
    let mut fresh = claim_json(json!({}));
    assert!(set_claim_bound(&mut fresh, &odd));
    assert_eq!(fresh["status"]["capacity"]["storage"], "2Gi");
    let mut bound =
        claim_json(json!({"status": {"phase": "Bound", "capacity": {"storage": "1Gi"}}}));
    assert!(set_claim_bound(&mut bound, &odd), "modes were missing");
    assert_eq!(bound["status"]["capacity"]["storage"], "1Gi", "a bound claim keeps its size");
}

#[test]
fn losing_clears_the_status() {
    let mut bound = claim_json(json!({"status": {"phase": "Bound", "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteOnce"], "currentVolumeAttributesClassName": "x", "conditions": []}}));
    assert!(set_claim_phase(&mut bound, &ClaimPhase::Lost));
    assert_eq!(bound["status"], json!({"phase": "Lost", "conditions": []}));
    assert!(!set_claim_phase(&mut bound, &ClaimPhase::Lost));
}

#[test]
fn annotations_finalizers_and_phases_change_once() {
    let mut fresh = claim_json(json!({}));
    assert!(ask_provisioner(&mut fresh, "vendor.com/x"));
    let notes = &fresh["metadata"]["annotations"];
    assert_eq!(notes["volume.kubernetes.io/storage-provisioner"], "vendor.com/x");
    assert_eq!(notes["volume.beta.kubernetes.io/storage-provisioner"], "vendor.com/x");
    assert!(!ask_provisioner(&mut fresh, "vendor.com/x"));
    assert!(note_migration(&mut fresh, Some("d")) && ask_provisioner(&mut fresh, "vendor.com/x"));
    assert!(fresh["metadata"]["annotations"].get("pv.kubernetes.io/migrated-to").is_none());
    assert!(note_migration(&mut fresh, Some("d")) && note_migration(&mut fresh, None));
    assert!(!set_finalizers(&mut fresh, &[]) && set_finalizers(&mut fresh, &["a".into()]));
    let mut pv = volume_json(json!({"status": {"phase": "Pending", "message": "old"}}));
    assert!(set_volume_phase(&mut pv, &VolumePhase::Available, ""));
    assert_eq!(pv["status"], json!({"phase": "Available"}));
    assert!(!set_volume_phase(&mut pv, &VolumePhase::Available, ""));
}
