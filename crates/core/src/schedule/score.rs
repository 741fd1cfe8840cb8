//! Scores nodes by the capacity that a claim would leave.

use std::collections::BTreeMap;

use super::{Cluster, NodePlan, PodClaims, capacity::find_capacity};
use crate::model::kinds::Node;

/// What is asked of one class on a node, and what there is, in bytes.
#[derive(Debug, Clone, Copy, Default)]
struct Room {
    requested: i64,
    capacity: i64,
}

impl Room {
    /// 100 for an unused class, 0 for one that is used up.
    fn score(self) -> i64 {
        if self.capacity <= 0 || self.requested > self.capacity {
            return 0;
        }
        let used = i128::from(self.requested) * 100 / i128::from(self.capacity);
        100 - i64::try_from(used).unwrap_or(100)
    }
}

/// From 0 to 100: the more room a node keeps, the higher. 0 as well when nothing can be said.
///
/// Where existing volumes are taken, they alone count: a volume that is much larger than the claim
/// leaves "room" that nobody else can use, and yet it is preferred, for the claim may grow into it.
#[must_use]
pub fn volume_score(
    claims: &PodClaims<'_>,
    plan: &NodePlan,
    node: &Node,
    cluster: &Cluster<'_>,
) -> i64 {
    let mut classes: BTreeMap<&str, Room> = BTreeMap::new();
    for facts in &claims.delayed {
        let key = facts.claim.metadata.key();
        let request = facts.claim.request().bytes();
        let taken = plan.bind.iter().find(|(claim, _)| *claim == key).map(|(_, volume)| volume);
        if let Some(taken) = taken {
            let volume = cluster.volumes.iter().find(|volume| *taken == volume.metadata.name);
            let room = classes.entry(facts.claim.class_name()).or_default();
            room.requested += request;
            room.capacity += volume.map_or(0, |volume| volume.capacity().bytes());
        } else if plan.bind.is_empty()
            && let Some(found) =
                find_capacity(facts, node, cluster.capacities.iter().map(AsRef::as_ref))
        {
            // All claims of a class draw on the same room.
            let room = classes.entry(facts.claim.class_name()).or_default();
            room.requested += request;
            room.capacity = found.capacity.map_or(0, |capacity| capacity.bytes());
        }
    }
    let scores: Vec<i64> = classes.values().map(|room| room.score()).collect();
    mean(&scores)
}

/// Rounded half up, and 0 for none.
fn mean(scores: &[i64]) -> i64 {
    let count = i64::try_from(scores.len()).unwrap_or(i64::MAX);
    if count == 0 { 0 } else { (2 * scores.iter().sum::<i64>() + count) / (2 * count) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn score_falls_with_the_share_of_capacity_requested() {
        for (requested, capacity, want) in
            [(0, 10, 100), (10, 100, 90), (1, 3, 67), (10, 10, 0), (11, 10, 0), (1, 0, 0)]
        {
            assert_eq!(Room { requested, capacity }.score(), want, "{requested} of {capacity}");
        }
        for (scores, want) in [(&[][..], 0), (&[90, 50], 70), (&[1, 2], 2), (&[0, 0, 100], 33)] {
            assert_eq!(mean(scores), want, "{scores:?}");
        }
    }
}
