//! Who of several provisioners, one on each node, makes a volume for a claim that names no node.
//!
//! Each waits a while of its own before it writes its node onto the claim. The first write wins,
//! and the others see it before their own wait is over.

use std::time::Duration;

use crate::{
    backoff::Backoff,
    claim::selected_node,
    model::{
        NodeName,
        kinds::{Claim, StorageClass},
    },
};

/// What a claim means to the provisioner of one node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stake {
    /// It is ours.
    Ours,
    /// It is another node's, or waits for the scheduler.
    NotOurs,
    /// Nobody's yet; we may try to become its owner.
    Open,
}

/// Whose a claim is. `fits` says whether the class's topologies leave room for the node; it is
/// asked only when that matters.
#[must_use]
pub fn stake(
    claim: &Claim,
    class: &StorageClass,
    node: &NodeName,
    immediate: bool,
    fits: impl FnOnce() -> bool,
) -> Stake {
    match selected_node(claim) {
        Some(chosen) if *node == chosen => Stake::Ours,
        Some(_) => Stake::NotOurs,
        None => {
            let binds_now = class.volume_binding_mode.as_deref() == Some("Immediate");
            let candidate = class.allowed_topologies.is_empty() || fits();
            if immediate && binds_now && candidate { Stake::Open } else { Stake::NotOurs }
        }
    }
}

/// How long to wait before an attempt: doubling from `base` to `max`, less up to one `base` by
/// `luck`, which is at least 0 and less than 1.
#[must_use]
pub fn delay(base: Duration, max: Duration, earlier: u32, luck: f64) -> Duration {
    Backoff::new(base, max).after(earlier).saturating_sub(base.mul_f64(luck))
}

/// How often to look whether another node was faster: less often where waits are long.
#[must_use]
pub fn look_every(base: Duration) -> Duration {
    (base / 100).max(Duration::from_millis(10))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn stake_of(annotations: Value, mode: Option<&str>, allowed: bool, fits: bool) -> Stake {
        let claim =
            serde_json::from_value(json!({"metadata": {"annotations": annotations}})).unwrap();
        let allowed = if allowed { json!([{"matchLabelExpressions": []}]) } else { json!([]) };
        let class = serde_json::from_value(
            json!({"volumeBindingMode": mode, "allowedTopologies": allowed}),
        )
        .unwrap();
        stake(&claim, &class, &"node-a".into(), true, || fits)
    }

    /// case: provisioner/121 and case: provisioner/122, the rules
    #[test]
    fn the_stake_of_a_node_follows_selection_and_binding_mode() {
        let on = |node: &str| json!({"volume.kubernetes.io/selected-node": node});
        let (late, now) = (Some("WaitForFirstConsumer"), Some("Immediate"));
        let rows = [
            ("own node", on("node-a"), late, false, Stake::Ours),
            ("own node, at once", on("node-a"), now, false, Stake::Ours),
            ("other node", on("node-b"), late, false, Stake::NotOurs),
            ("late, without a node", json!({}), late, false, Stake::NotOurs),
            ("late, with an empty one", on(""), late, false, Stake::NotOurs),
            ("no mode", json!({}), None, false, Stake::NotOurs),
            ("at once", json!({}), now, false, Stake::Open),
            ("at once, empty", on(""), now, false, Stake::Open),
        ];
        for (name, notes, mode, allowed, want) in rows {
            assert_eq!(stake_of(notes, mode, allowed, false), want, "{name}");
        }
        assert_eq!(stake_of(json!({}), now, true, false), Stake::NotOurs, "not in the topologies");
        assert_eq!(stake_of(json!({}), now, true, true), Stake::Open, "in the topologies");
        let class = serde_json::from_value(json!({"volumeBindingMode": "Immediate"})).unwrap();
        assert_eq!(
            stake(&Claim::default(), &class, &"a".into(), false, || true),
            Stake::NotOurs,
            "off"
        );
    }

    /// case: provisioner/124
    #[test]
    fn the_delay_of_a_contest_grows_up_to_its_limit() {
        let (base, max) = (Duration::from_secs(20), Duration::from_secs(60));
        for attempt in 0..100 {
            for luck in [0.0, 0.25, 0.999] {
                let wait = delay(base, max, attempt, luck);
                assert!(wait <= max, "{attempt} {luck}: {wait:?}");
            }
        }
        assert_eq!(delay(base, max, 0, 0.0), base);
        assert_eq!(delay(base, max, 1, 0.5), Duration::from_secs(30));
        assert_eq!(delay(base, max, 9, 0.0), max);
        let less = Duration::from_secs(1);
        assert_eq!(delay(base, less, 0, 0.999), Duration::ZERO, "never negative");
        assert_eq!(look_every(base), Duration::from_millis(200));
        assert_eq!(look_every(Duration::from_millis(1)), Duration::from_millis(10));
    }
}
