//! Who may be deleted while someone still uses it: nobody.
//!
//! A claim that a scheduled pod names, and a volume that a claim is bound to, carry a finalizer
//! that is taken away only once the last user is gone. The rules here look at one object and
//! its users; `longshore_controllers::protect` carries the answers out.

use crate::{
    attach::resolve::{owned_by, terminated},
    model::{
        ClaimPhase, Meta, VolumePhase,
        kinds::{Claim, Pod, Volume},
    },
};

/// What to do about a protection finalizer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finalizer {
    /// It is as it should be.
    Leave,
    /// The object needs it.
    Add,
    /// Nothing uses the object any more.
    Remove,
}

/// Whether an object asks for a closer look at all.
#[must_use]
pub fn needs_attention(meta: &Meta, finalizer: &str) -> bool {
    meta.deleting() == meta.has_finalizer(finalizer)
}

/// Decides about a finalizer. `in_use` is asked only for an object that is going away: the
/// answer may cost a request.
#[must_use]
pub fn finalizer_step(meta: &Meta, finalizer: &str, in_use: bool) -> Finalizer {
    match (meta.deleting(), meta.has_finalizer(finalizer)) {
        (false, false) => Finalizer::Add,
        (true, true) if !in_use => Finalizer::Remove,
        (true, true) | (false, true) | (true, false) => Finalizer::Leave,
    }
}

/// Whether a pod keeps a claim from going away. A pod that has ended still does: its node may
/// not have unmounted the volume yet. One that was never placed does not: no node knows of it.
#[must_use]
pub fn pod_holds_claim(pod: &Pod, claim: &Claim) -> bool {
    !pod.spec.node_name.is_empty() && names_claim(pod, claim, !shut_down(pod))
}

/// Whether a pod counts as a user of a claim for the `Unused` condition.
#[must_use]
pub fn pod_uses_claim(pod: &Pod, claim: &Claim) -> bool {
    !terminated(pod) && names_claim(pod, claim, true)
}

fn names_claim(pod: &Pod, claim: &Claim, ephemeral_counts: bool) -> bool {
    if pod.metadata.namespace != claim.metadata.namespace {
        return false;
    }
    pod.claim_names().any(|(name, volume)| {
        let same = name == claim.metadata.name;
        same && (volume.ephemeral.is_none() || (ephemeral_counts && owned_by(claim, pod)))
    })
}

/// A pod whose containers are certainly gone: the node has confirmed its end.
fn shut_down(pod: &Pod) -> bool {
    let meta = &pod.metadata;
    meta.deleting() && meta.deletion_grace_period_seconds == Some(0)
}

/// Whether a volume has to stay.
#[must_use]
pub fn volume_in_use(volume: &Volume) -> bool {
    volume.status.phase == VolumePhase::Bound
}

/// The volume attributes classes that a volume names.
#[must_use]
pub fn classes_of_volume(volume: &Volume) -> Vec<String> {
    volume
        .spec
        .volume_attributes_class_name
        .iter()
        .filter(|name| !name.is_empty())
        .cloned()
        .collect()
}

/// The volume attributes classes that a claim names: that it wants, that it has, and that it is on
/// the way to.
#[must_use]
pub fn classes_of_claim(claim: &Claim) -> Vec<String> {
    let status = &claim.status;
    let target = status.modify_volume_status.as_ref();
    let names = [
        claim.spec.volume_attributes_class_name.as_ref(),
        status.current_volume_attributes_class_name.as_ref(),
        target.map(|modify| &modify.target_volume_attributes_class_name),
    ];
    let mut names: Vec<String> =
        names.into_iter().flatten().filter(|name| !name.is_empty()).cloned().collect();
    names.sort();
    names.dedup();
    names
}

/// The `Unused` condition as it should stand on a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnusedCondition {
    /// `True` or `False`.
    pub status: &'static str,
    /// One word.
    pub reason: &'static str,
    /// A sentence.
    pub message: &'static str,
}

/// The type of the condition.
pub const UNUSED: &str = "Unused";

/// The condition to write, or `None` when the claim has it already or is not one to have it.
#[must_use]
pub fn unused_condition(claim: &Claim, used: bool) -> Option<UnusedCondition> {
    if claim.metadata.deleting() || claim.status.phase != ClaimPhase::Bound {
        return None;
    }
    let want = if used {
        UnusedCondition {
            status: "False",
            reason: "PodUsingPVC",
            message: "A pod is currently referencing this PVC",
        }
    } else {
        UnusedCondition {
            status: "True",
            reason: "NoPodsUsingPVC",
            message: "No pods are currently referencing this PVC",
        }
    };
    let have = claim.status.conditions.iter().find(|condition| condition.kind == UNUSED);
    (have.map(|condition| condition.status.as_str()) != Some(want.status)).then_some(want)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::model::keys::finalizers::{PV_PROTECTION, PVC_PROTECTION};

    const GONE: &str = "2026-01-01T00:00:00Z";

    fn read<T: serde::de::DeserializeOwned>(value: Value) -> T {
        serde_json::from_value(value).expect("valid test object")
    }

    fn claim(deleting: bool, finalizer: bool) -> Claim {
        read(json!({"metadata": {"name": "c", "namespace": "ns", "uid": "c1",
            "deletionTimestamp": if deleting { json!(GONE) } else { Value::Null },
            "finalizers": if finalizer { json!([PVC_PROTECTION]) } else { json!([]) }},
            "status": {"phase": "Bound"}}))
    }

    fn pod(node: &str, phase: &str) -> Pod {
        read(json!({"metadata": {"name": "p", "namespace": "ns", "uid": "p1"},
            "spec": {"nodeName": node, "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]},
            "status": {"phase": phase}}))
    }

    #[test]
    fn claims() {
        let cases = [
            ("case: pv-controller/pvcp-add", claim(false, false), None, Finalizer::Add),
            (
                "case: pv-controller/pvcp-used",
                claim(true, true),
                Some(pod("n1", "Failed")),
                Finalizer::Leave,
            ),
            (
                "case: pv-controller/pvcp-unsched",
                claim(true, true),
                Some(pod("", "Pending")),
                Finalizer::Remove,
            ),
            ("live", claim(false, true), None, Finalizer::Leave),
            ("going, not ours", claim(true, false), None, Finalizer::Leave),
        ];
        for (name, claim, pod, want) in cases {
            let in_use = pod.is_some_and(|pod| pod_holds_claim(&pod, &claim));
            assert_eq!(finalizer_step(&claim.metadata, PVC_PROTECTION, in_use), want, "{name}");
        }
    }

    #[test]
    fn another_namespace_does_not_count() {
        let mut other = pod("n1", "Running");
        other.metadata.namespace = "other".into();
        assert!(!pod_holds_claim(&other, &claim(true, true)));
    }

    #[test]
    fn ephemeral_claims_are_held_by_their_owner_until_it_is_shut_down() {
        let mut pod: Pod = read(json!({"metadata": {"name": "c", "namespace": "ns", "uid": "p1"},
            "spec": {"nodeName": "n1", "volumes": [{"name": "v", "ephemeral": {}}]}}));
        let mut claim: Claim = read(
            json!({"metadata": {"name": "c-v", "namespace": "ns", "deletionTimestamp": GONE}}),
        );
        assert!(!pod_holds_claim(&pod, &claim), "not the owner");
        claim.metadata.owner_references = vec![read(json!({"uid": "p1", "controller": true}))];
        assert!(pod_holds_claim(&pod, &claim));
        pod.metadata.deletion_timestamp = claim.metadata.deletion_timestamp;
        assert!(pod_holds_claim(&pod, &claim), "still in its grace");
        pod.metadata.deletion_grace_period_seconds = Some(0);
        assert!(!pod_holds_claim(&pod, &claim));
    }

    #[test]
    fn volumes() {
        // case: pv-controller/pvp
        for (phase, want) in [("Bound", Finalizer::Leave), ("Released", Finalizer::Remove)] {
            let volume: Volume = read(json!({"metadata": {"name": "pv",
                "deletionTimestamp": GONE, "finalizers": [PV_PROTECTION]}, "status": {"phase": phase}}));
            let step = finalizer_step(&volume.metadata, PV_PROTECTION, volume_in_use(&volume));
            assert_eq!(step, want, "{phase}");
        }
    }

    #[test]
    fn attributes_classes() {
        let of = |claim: Value| classes_of_claim(&read(claim));
        assert_eq!(of(json!({})), [""; 0]);
        assert_eq!(of(json!({"spec": {"volumeAttributesClassName": "gold"}})), ["gold"]);
        assert_eq!(of(json!({"spec": {"volumeAttributesClassName": ""}})), [""; 0]);
        let status = json!({"currentVolumeAttributesClassName": "gold",
            "modifyVolumeStatus": {"targetVolumeAttributesClassName": "silver", "status": "InProgress"}});
        let spec = json!({"volumeAttributesClassName": "gold"});
        assert_eq!(of(json!({"spec": spec, "status": status})), ["gold", "silver"]);
        let volume: Volume = read(json!({"spec": {"volumeAttributesClassName": "gold"}}));
        assert_eq!(classes_of_volume(&volume), ["gold"]);
    }

    #[test]
    fn unused() {
        let live = claim(false, true);
        let status = |used| unused_condition(&live, used).map(|condition| condition.status);
        // case: pv-controller/pvcp-unused
        assert_eq!(status(false), Some("True"));
        // case: pv-controller/pvcp-busy
        assert_eq!(status(pod_uses_claim(&pod("", "Pending"), &live)), Some("False"));
        // case: pv-controller/pvcp-term
        let ended = pod("n1", "Succeeded");
        assert_eq!(status(pod_uses_claim(&ended, &live)), Some("True"));
        assert!(pod_holds_claim(&ended, &claim(true, true)), "and yet it holds the claim");
        let mut known = claim(false, true);
        known.status.conditions = vec![read(json!({"type": "Unused", "status": "True"}))];
        assert_eq!(unused_condition(&known, false), None, "no change, no write");
        assert_eq!(unused_condition(&claim(true, true), false), None, "going away");
    }
}
