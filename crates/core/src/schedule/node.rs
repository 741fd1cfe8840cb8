//! What a node must be like, volumes aside.

use super::Reason;
use crate::model::{
    keys::taints,
    kinds::{Node, Pod, PodAffinity, Taint, Toleration},
};

/// Whether the pod may go to the node at all. The first objection is enough.
pub fn check_basics(pod: &Pod, node: &Node) -> Result<(), Reason> {
    if !node.ready() {
        return Err(Reason::NotReady);
    }
    let cordon = Taint {
        key: taints::UNSCHEDULABLE.to_owned(),
        value: String::new(),
        effect: "NoSchedule".to_owned(),
    };
    if node.spec.unschedulable && !tolerated(&cordon, &pod.spec.tolerations) {
        return Err(Reason::Unschedulable);
    }
    let keeps_away = |taint: &&Taint| taint.effect == "NoSchedule" || taint.effect == "NoExecute";
    let mut hard = node.spec.taints.iter().filter(keeps_away);
    if hard.any(|taint| !tolerated(taint, &pod.spec.tolerations)) {
        return Err(Reason::Taint);
    }
    if !labels_match(pod, node) {
        return Err(Reason::Affinity);
    }
    Ok(())
}

fn tolerated(taint: &Taint, tolerations: &[Toleration]) -> bool {
    tolerations.iter().any(|toleration| {
        let effect = toleration.effect.is_empty() || toleration.effect == taint.effect;
        let exists = toleration.operator == "Exists";
        // An empty key stands for all keys, but only where no value is compared.
        let key = toleration.key == taint.key || (toleration.key.is_empty() && exists);
        effect && key && (exists || toleration.value == taint.value)
    })
}

fn labels_match(pod: &Pod, node: &Node) -> bool {
    let labels = &node.metadata.labels;
    let selected = pod.spec.node_selector.iter().all(|(key, value)| labels.get(key) == Some(value));
    let required =
        pod.spec.affinity.as_ref().and_then(|affinity| affinity.node_affinity.as_ref()).and_then(
            |affinity| affinity.required_during_scheduling_ignored_during_execution.as_ref(),
        );
    selected && required.is_none_or(|terms| terms.matches(&node.metadata.name, labels))
}

/// What the pod says of its placement and this scheduler does not consider.
#[must_use]
pub fn not_considered(pod: &Pod) -> Vec<&'static str> {
    let affinity = pod.spec.affinity.as_ref();
    let says =
        |other: Option<&Option<PodAffinity>>| matches!(other, Some(Some(one)) if !one.is_empty());
    let prefers = affinity
        .and_then(|all| all.node_affinity.as_ref())
        .is_some_and(|one| !one.preferred_during_scheduling_ignored_during_execution.is_empty());
    [
        ("preferred node affinity", prefers),
        ("podAffinity", says(affinity.map(|all| &all.pod_affinity))),
        ("podAntiAffinity", says(affinity.map(|all| &all.pod_anti_affinity))),
        ("topologySpreadConstraints", !pod.spec.topology_spread_constraints.is_empty()),
    ]
    .into_iter()
    .filter_map(|(name, asked)| asked.then_some(name))
    .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn node(spec: Value, ready: &str) -> Node {
        serde_json::from_value(json!({
            "metadata": {"name": "n1", "labels": {"disk": "ssd", "cores": "8"}}, "spec": spec,
            "status": {"conditions": [{"type": "Ready", "status": ready}]}}))
        .expect("valid node")
    }

    fn pod(spec: Value) -> Pod {
        serde_json::from_value(json!({"metadata": {"name": "p"}, "spec": spec})).expect("valid pod")
    }

    fn affinity(expression: Value) -> Value {
        json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
            {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}}}})
    }

    #[test]
    fn a_node_must_fit_cordon_taints_and_selector() {
        let tainted = json!({"taints": [{"key": "k", "value": "v", "effect": "NoSchedule"}]});
        let soft = json!({"taints": [{"key": "k", "effect": "PreferNoSchedule"}]});
        let tolerate = |toleration: Value| json!({"tolerations": [toleration]});
        let cases = [
            ("plain", json!({}), json!({}), Ok(())),
            ("cordoned", json!({}), json!({"unschedulable": true}), Err(Reason::Unschedulable)),
            (
                "cordon tolerated",
                tolerate(json!({"key": taints::UNSCHEDULABLE, "operator": "Exists"})),
                json!({"unschedulable": true}),
                Ok(()),
            ),
            ("tainted", json!({}), tainted.clone(), Err(Reason::Taint)),
            ("soft taint", json!({}), soft, Ok(())),
            ("tolerated", tolerate(json!({"key": "k", "value": "v"})), tainted.clone(), Ok(())),
            (
                "other value",
                tolerate(json!({"key": "k", "value": "w"})),
                tainted.clone(),
                Err(Reason::Taint),
            ),
            ("all tolerated", tolerate(json!({"operator": "Exists"})), tainted.clone(), Ok(())),
            (
                "other effect",
                tolerate(json!({"operator": "Exists", "effect": "NoExecute"})),
                tainted,
                Err(Reason::Taint),
            ),
            ("selected", json!({"nodeSelector": {"disk": "ssd"}}), json!({}), Ok(())),
            (
                "not selected",
                json!({"nodeSelector": {"disk": "hdd"}}),
                json!({}),
                Err(Reason::Affinity),
            ),
            (
                "affine",
                affinity(json!({"key": "cores", "operator": "Gt", "values": ["4"]})),
                json!({}),
                Ok(()),
            ),
            (
                "not affine",
                affinity(json!({"key": "disk", "operator": "NotIn", "values": ["ssd"]})),
                json!({}),
                Err(Reason::Affinity),
            ),
        ];
        for (name, pod_spec, node_spec, want) in cases {
            assert_eq!(check_basics(&pod(pod_spec), &node(node_spec, "True")), want, "{name}");
        }
        for ready in ["False", "Unknown"] {
            let refused = check_basics(&pod(json!({})), &node(json!({}), ready));
            assert_eq!(refused, Err(Reason::NotReady));
        }
    }

    #[test]
    fn wishes_that_are_not_considered_are_named() {
        let term = json!([{"topologyKey": "zone"}]);
        let soft = json!({"preferredDuringSchedulingIgnoredDuringExecution": term});
        let hard = json!({"requiredDuringSchedulingIgnoredDuringExecution": term});
        let cases: [(Value, &[&str]); 7] = [
            (json!({}), &[]),
            (affinity(json!({"key": "disk", "operator": "Exists"})), &[]),
            (json!({"affinity": {"podAffinity": {}}, "topologySpreadConstraints": null}), &[]),
            (json!({"affinity": {"nodeAffinity": soft}}), &["preferred node affinity"]),
            (json!({"affinity": {"podAffinity": hard}}), &["podAffinity"]),
            (json!({"affinity": {"podAntiAffinity": soft}}), &["podAntiAffinity"]),
            (json!({"topologySpreadConstraints": term}), &["topologySpreadConstraints"]),
        ];
        for (spec, want) in cases {
            assert_eq!(not_considered(&pod(spec.clone())), want, "{spec}");
        }
    }
}
