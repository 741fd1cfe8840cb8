//! Pod Security admission: what the labels of a namespace allow its pods to do.
//!
//! The decision is pure: a policy read from labels, and a pod. [`evaluate`] lists what a pod violates;
//! [`judge`] turns that into a verdict for the three modes. `ops::security` fetches the namespace,
//! counts and logs.
//!
//! Checks, their versions and their words are those of `k8s.io/pod-security-admission`.

mod checks;
mod host;
mod policy;
mod privileges;
mod profiles;
mod view;
mod volumes;

use std::collections::BTreeMap;

use serde_json::Value;

pub(crate) use checks::evaluate;
pub(crate) use policy::{Level, LevelVersion, Policy};
pub(crate) use view::Pod;

/// What a check has against a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Violation {
    /// What is violated, in a few words.
    pub reason: String,
    /// Which fields of which containers violate it.
    pub detail: String,
}

impl Violation {
    fn new(reason: impl Into<String>, detail: impl Into<String>) -> Option<Self> {
        Some(Self { reason: reason.into(), detail: detail.into() })
    }
}

/// What a policy says of a pod, mode by mode. `None` means that the mode has nothing against it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Verdict {
    /// Why the pod is refused.
    pub enforce: Option<String>,
    /// What is to be noted.
    pub audit: Option<String>,
    /// What its author is to be warned of; never for a pod that is refused.
    pub warn: Option<String>,
}

/// Judges a pod by the policy of its namespace.
pub(crate) fn judge(policy: &Policy, pod: &Pod<'_>) -> Verdict {
    let against = |mode: LevelVersion, verb: &str| {
        let violations = evaluate(mode, pod);
        let text = format!("{verb} PodSecurity \"{mode}\": {}", details(&violations));
        (!violations.is_empty()).then_some(text)
    };
    let enforce = against(policy.enforce, "violates");
    let audit = against(policy.audit, "would violate");
    let warn = match enforce {
        Some(_) => None,
        None => against(policy.warn, "would violate"),
    };
    Verdict { enforce, audit, warn }
}

fn details(violations: &[Violation]) -> String {
    let one = |violation: &Violation| match violation.detail.as_str() {
        "" => violation.reason.clone(),
        detail => format!("{} ({detail})", violation.reason),
    };
    violations.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// Whether an update of a pod calls for a judgement: only images can change what a pod does, and
/// debugging containers can be added.
pub(crate) fn is_significant(new: &Value, old: &Value) -> bool {
    let list = |pod: &Value, name: &str| -> Vec<Value> {
        pod["spec"][name].as_array().cloned().unwrap_or_default()
    };
    let differs = |name: &str| {
        let (new, old) = (list(new, name), list(old, name));
        new.len() != old.len() || new.iter().zip(&old).any(|(n, o)| n["image"] != o["image"])
    };
    let before = list(old, "ephemeralContainers");
    differs("containers")
        || differs("initContainers")
        || list(new, "ephemeralContainers").iter().any(|new| {
            let known = before.iter().find(|old| old["name"] == new["name"]);
            known.is_none_or(|old| old["image"] != new["image"])
        })
}

/// More pods of one namespace are not looked at when its policy changes.
const MAX_PODS: usize = 3000;

/// What the author of a stricter policy is warned of: pods that are there already and violate it.
pub(crate) fn warnings_for_existing(
    namespace: &str,
    enforce: LevelVersion,
    pods: &[Value],
) -> Vec<String> {
    let chosen = one_of_each_controller_first(pods);
    // By what is violated: the first name, and how many pods.
    let mut found: BTreeMap<String, (&str, usize)> = BTreeMap::new();
    for pod in chosen.iter().take(MAX_PODS) {
        let violations = evaluate(enforce, &Pod::of(pod));
        if violations.is_empty() {
            continue;
        }
        let reasons: Vec<&str> = violations.iter().map(|v| v.reason.as_str()).collect();
        let name = pod["metadata"]["name"].as_str().unwrap_or_default();
        let entry = found.entry(reasons.join(", ")).or_insert((name, 0));
        *entry = (entry.0.min(name), entry.1 + 1);
    }
    let mut warnings = Vec::new();
    if pods.len() > MAX_PODS {
        warnings.push(format!(
            "new PodSecurity enforce level only checked against the first {MAX_PODS} of {} existing pods",
            pods.len()
        ));
    }
    if !found.is_empty() {
        warnings.push(format!(
            "existing pods in namespace {namespace:?} violate the new PodSecurity enforce level \"{enforce}\""
        ));
    }
    let mut lines: Vec<String> = found
        .iter()
        .map(|(reasons, (name, count))| match count {
            1 => format!("{name}: {reasons}"),
            2 => format!("{name} (and 1 other pod): {reasons}"),
            _ => format!("{name} (and {} other pods): {reasons}", count - 1),
        })
        .collect();
    lines.sort();
    warnings.extend(lines);
    warnings
}

/// Pods of one controller are alike, so one of each is looked at before the others.
fn one_of_each_controller_first(pods: &[Value]) -> Vec<&Value> {
    let controller = |pod: &Value| {
        let owners = pod["metadata"]["ownerReferences"].as_array()?;
        owners.iter().find(|owner| owner["controller"] == true)?["uid"].as_str().map(str::to_owned)
    };
    let mut seen = std::collections::HashSet::new();
    let (mut first, rest): (Vec<&Value>, Vec<&Value>) =
        pods.iter().partition(|pod| controller(pod).is_none_or(|uid| seen.insert(uid)));
    first.extend(rest);
    first
}

#[cfg(test)]
mod tests;
