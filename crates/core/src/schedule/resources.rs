//! Whether a node has room for what a pod's containers request.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::Reason;
use crate::model::Quantity;
use crate::model::kinds::{Container, Node, Pod};

/// Amounts by resource: thousandths for `cpu`, else whole units.
pub type Amounts = BTreeMap<String, i64>;

/// What a pod needs at its worst moment. Init containers run one after the other, each beside the
/// sidecars that were started before it; the others run together.
#[must_use]
pub fn requests_of(pod: &Pod) -> Amounts {
    let (mut sidecars, mut init) = (Amounts::new(), Amounts::new());
    for container in &pod.spec.init_containers {
        let own = requests_of_container(container);
        let step = if container.restart_policy.as_deref() == Some("Always") {
            add(&mut sidecars, &own);
            sidecars.clone()
        } else {
            let mut both = sidecars.clone();
            add(&mut both, &own);
            both
        };
        raise(&mut init, &step);
    }
    let mut all = sidecars;
    for container in &pod.spec.containers {
        add(&mut all, &requests_of_container(container));
    }
    raise(&mut all, &init);
    all.retain(|_, amount| *amount > 0);
    all
}

/// Whether `wanted` fits beside what the node's pods request; else every resource that is short.
///
/// # Errors
/// The resources that are short.
pub fn check_resources(
    wanted: &Amounts,
    node: &Node,
    used: &Amounts,
) -> Result<(), BTreeSet<Reason>> {
    let allocatable = &node.status.allocatable;
    let short = wanted.iter().filter(|(resource, wanted)| {
        let there = allocatable.get(*resource).map(|all| amount(resource, *all));
        // What every node has and this one does not measure is not counted.
        let own = matches!(resource.as_str(), "cpu" | "memory" | "ephemeral-storage");
        let Some(there) = there.or((!own).then_some(0)) else { return false };
        **wanted > there.saturating_sub(used.get(*resource).copied().unwrap_or(0))
    });
    let short: BTreeSet<Reason> =
        short.map(|(resource, _)| Reason::Insufficient(resource.clone())).collect();
    if short.is_empty() { Ok(()) } else { Err(short) }
}

/// Adds amounts to others.
pub fn add(all: &mut Amounts, more: &Amounts) {
    for (resource, amount) in more {
        let sum = all.entry(resource.clone()).or_default();
        *sum = sum.saturating_add(*amount);
    }
}

fn raise(all: &mut Amounts, at_least: &Amounts) {
    for (resource, amount) in at_least {
        let most = all.entry(resource.clone()).or_default();
        *most = (*most).max(*amount);
    }
}

/// A limit without a request is the request, too.
fn requests_of_container(container: &Container) -> Amounts {
    let listed = |list: &str| {
        let all = container.resources.as_ref().and_then(|all| all.get(list)?.as_object());
        all.into_iter().flatten().filter_map(|(name, value)| {
            let amount = amount(name, quantity(value)?);
            Some((name.clone(), amount))
        })
    };
    let mut all: Amounts = listed("limits").collect();
    all.extend(listed("requests"));
    all
}

fn quantity(value: &Value) -> Option<Quantity> {
    match value {
        Value::String(text) => text.parse().ok(),
        Value::Number(number) => number.to_string().parse().ok(),
        _ => None,
    }
}

fn amount(resource: &str, quantity: Quantity) -> i64 {
    if resource == "cpu" { quantity.millis() } else { quantity.bytes() }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn container(requests: Value) -> Value {
        json!({"name": "c", "resources": {"requests": requests}})
    }

    fn pod(containers: Value, init: Value) -> Pod {
        let spec = json!({"containers": containers, "initContainers": init});
        serde_json::from_value(json!({"metadata": {"name": "p"}, "spec": spec})).expect("valid pod")
    }

    fn amounts(all: &[(&str, i64)]) -> Amounts {
        all.iter().map(|(name, amount)| ((*name).to_owned(), *amount)).collect()
    }

    #[test]
    fn a_pod_needs_what_its_worst_moment_needs() {
        let cpu = |text: &str| container(json!({"cpu": text}));
        let sidecar = |text: &str| {
            let mut one = cpu(text);
            one["restartPolicy"] = "Always".into();
            one
        };
        for (case, containers, init, expected) in [
            ("nothing", json!([{"name": "c"}]), json!([]), amounts(&[])),
            ("sum", json!([cpu("1"), cpu("500m")]), json!([]), amounts(&[("cpu", 1500)])),
            (
                "a number",
                json!([container(json!({"cpu": 2}))]),
                json!([]),
                amounts(&[("cpu", 2000)]),
            ),
            (
                "the largest init",
                json!([cpu("1")]),
                json!([cpu("3"), cpu("2")]),
                amounts(&[("cpu", 3000)]),
            ),
            ("init smaller", json!([cpu("4")]), json!([cpu("3")]), amounts(&[("cpu", 4000)])),
            (
                "sidecar beside all",
                json!([cpu("1")]),
                json!([sidecar("2")]),
                amounts(&[("cpu", 3000)]),
            ),
            (
                "init after a sidecar",
                json!([cpu("1")]),
                json!([sidecar("1"), cpu("3")]),
                amounts(&[("cpu", 4000)]),
            ),
            (
                "init before a sidecar",
                json!([cpu("1")]),
                json!([cpu("3"), sidecar("1")]),
                amounts(&[("cpu", 3000)]),
            ),
            (
                "limit without request",
                json!([{"name": "c", "resources": {"limits": {"memory": "1Gi", "cpu": "2"}, "requests": {"cpu": "1"}}}]),
                json!([]),
                amounts(&[("cpu", 1000), ("memory", 1 << 30)]),
            ),
        ] {
            assert_eq!(requests_of(&pod(containers, init)), expected, "{case}");
        }
    }

    #[test]
    fn a_node_lacks_what_its_other_pods_have() {
        let node: Node = serde_json::from_value(json!({"metadata": {"name": "n"},
            "status": {"allocatable": {"cpu": "2", "memory": "1Gi"}}}))
        .expect("valid node");
        for (case, wanted, used, short) in [
            ("fits", amounts(&[("cpu", 2000)]), amounts(&[]), vec![]),
            ("larger than the node", amounts(&[("cpu", 2001)]), amounts(&[]), vec!["cpu"]),
            ("beside others", amounts(&[("cpu", 1000)]), amounts(&[("cpu", 1001)]), vec!["cpu"]),
            (
                "both",
                amounts(&[("cpu", 3000), ("memory", 2 << 30)]),
                amounts(&[]),
                vec!["cpu", "memory"],
            ),
            ("not measured", amounts(&[("ephemeral-storage", 5)]), amounts(&[]), vec![]),
            ("nobody has it", amounts(&[("acme.com/gpu", 1)]), amounts(&[]), vec!["acme.com/gpu"]),
        ] {
            let short: BTreeSet<Reason> =
                short.into_iter().map(|name| Reason::Insufficient(name.to_owned())).collect();
            let found = check_resources(&wanted, &node, &used).err().unwrap_or_default();
            assert_eq!(found, short, "{case}");
        }
    }
}
