//! Pod Security admission of pods and namespaces.

use serde_json::Value;

use super::Core;
use crate::error::{ApiResult, Status};
use crate::metrics::Evaluation;
use crate::pod_security::{self, Level, LevelVersion, Pod, Policy};
use crate::registry::Resource;
use crate::store::Stored;

/// The version that a level is compared with, for the metric: this server's own.
const OWN_MINOR: u64 = 37;

/// A write that is to be admitted.
pub(super) struct Admission<'a> {
    pub(super) resource: &'a Resource,
    pub(super) namespace: &'a str,
    pub(super) name: &'a str,
    pub(super) new: &'a Value,
    pub(super) old: Option<&'a Stored>,
}

impl Core {
    /// Judges a pod by the labels of its namespace, and the labels of a namespace; returns texts for
    /// the `Warning` header.
    pub(super) fn admit_security(&self, admission: &Admission<'_>) -> ApiResult<Vec<String>> {
        match &*admission.resource.storage {
            "pods" => self.admit_pod(admission),
            "namespaces" => self.admit_labels(admission),
            _ => Ok(Vec::new()),
        }
    }

    fn admit_pod(&self, admission: &Admission<'_>) -> ApiResult<Vec<String>> {
        let Admission { resource, namespace, name, new, old } = *admission;
        let key = self.registry().core("namespaces").key("", namespace);
        let Some(stored) = self.store.head(&key) else { return Ok(Vec::new()) };
        // Labels that cannot be read, from before they were checked, are taken as strictly as can be.
        let (policy, _) = Policy::of(&stored.value()["metadata"]["labels"]);
        let count = |denied: bool, mode: &'static str, policy: LevelVersion| {
            self.metrics.evaluated(&Evaluation {
                decision: if denied { "deny" } else { "allow" },
                mode,
                policy_level: policy.level.name(),
                policy_version: version_label(policy),
                request_operation: if old.is_some() { "update" } else { "create" },
                resource: "pod",
                subresource: "",
            });
        };
        if policy.is_privileged() {
            count(false, "enforce", policy.enforce);
            return Ok(Vec::new());
        }
        if old.is_some_and(|old| !pod_security::is_significant(new, &old.value())) {
            return Ok(Vec::new());
        }
        let verdict = pod_security::judge(&policy, &Pod::of(new));
        count(verdict.enforce.is_some(), "enforce", policy.enforce);
        if let Some(why) = &verdict.audit {
            count(true, "audit", policy.audit);
            tracing::info!(namespace, pod = name, why, "audited pod");
        }
        if let Some(why) = verdict.enforce {
            return Err(Status::forbidden(resource, name, &why));
        }
        if verdict.warn.is_some() {
            count(true, "warn", policy.warn);
        }
        Ok(verdict.warn.into_iter().collect())
    }

    /// New labels must be good; of pods that a stricter level would refuse, its author is warned.
    fn admit_labels(&self, admission: &Admission<'_>) -> ApiResult<Vec<String>> {
        let Admission { resource, new, old, .. } = *admission;
        let name = new["metadata"]["name"].as_str().unwrap_or_default();
        let (policy, causes) = Policy::of(&new["metadata"]["labels"]);
        let before = old.map(|old| Policy::of(&old.value()["metadata"]["labels"]));
        let known = before.as_ref().is_some_and(|(_, old_causes)| *old_causes == causes);
        if !causes.is_empty() && !known {
            return Err(Status::invalid(resource, name, causes));
        }
        let Some((before, _)) = before else { return Ok(Vec::new()) };
        let (is, was) = (policy.enforce, before.enforce);
        let relaxed = is.version == was.version && is.level <= was.level;
        if is == was || is.level == Level::Privileged || relaxed {
            return Ok(Vec::new());
        }
        let pods = self.store.list("pods", Some(name)).objects;
        let pods: Vec<Value> = pods.iter().map(|pod| pod.value()).collect();
        Ok(pod_security::warnings_for_existing(name, is, &pods))
    }
}

fn version_label(policy: LevelVersion) -> String {
    match policy.version {
        Some(minor) if policy.level != Level::Privileged => {
            if minor > OWN_MINOR {
                "future".into()
            } else {
                format!("v1.{minor}")
            }
        }
        _ => "latest".into(),
    }
}
