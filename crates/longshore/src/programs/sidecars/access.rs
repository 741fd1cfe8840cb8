//! Self-access reviews: whether a controller may do what its work needs, asked before it leads.

use std::time::Duration;

use futures::future::join_all;
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use kube::api::PostParams;
use longshore_core::words;

use crate::programs::sidecar::Right;

/// A review that takes longer says nothing.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The rules that are missing, as a role would have them, and what for; none if everything is allowed.
pub(super) async fn missing(client: &kube::Client, rights: &[Right]) -> Option<String> {
    let mut rules = Vec::new();
    for right in rights {
        let asked = right.verbs.iter().map(|verb| async move { !may(client, right, verb).await });
        let refused = join_all(asked).await;
        let verbs: Vec<&str> = right
            .verbs
            .iter()
            .zip(refused)
            .filter(|(_, refused)| *refused)
            .map(|(verb, _)| *verb)
            .collect();
        if !verbs.is_empty() {
            rules.push(rule(right, &verbs));
        }
    }
    (!rules.is_empty()).then(|| words::list(rules))
}

/// A rule in one line.
fn rule(right: &Right, verbs: &[&str]) -> String {
    let Right { group, resource, .. } = right;
    let group = if group.is_empty() { "\"\"" } else { group };
    let verbs = verbs.join(", ");
    format!("{{apiGroups: [{group}], resources: [{resource}], verbs: [{verbs}]}}")
}

/// Only a review that says no counts: a server that cannot be asked leaves it to the work to find out.
async fn may(client: &kube::Client, right: &Right, verb: &str) -> bool {
    let (resource, subresource) = right.resource.split_once('/').unwrap_or((right.resource, ""));
    let attributes = ResourceAttributes {
        group: Some(right.group.to_owned()),
        resource: Some(resource.to_owned()),
        subresource: Some(subresource.to_owned()),
        verb: Some(verb.to_owned()),
        ..ResourceAttributes::default()
    };
    let spec = SelfSubjectAccessReviewSpec {
        resource_attributes: Some(attributes),
        ..SelfSubjectAccessReviewSpec::default()
    };
    let review = SelfSubjectAccessReview { spec, ..SelfSubjectAccessReview::default() };
    let reviews: kube::Api<SelfSubjectAccessReview> = kube::Api::all(client.clone());
    let params = PostParams::default();
    let error = match tokio::time::timeout(TIMEOUT, reviews.create(&params, &review)).await {
        Ok(Ok(review)) => return review.status.is_none_or(|status| status.allowed),
        Ok(Err(error)) => words::causes(&error),
        Err(_) => format!("no response within {}", words::time(TIMEOUT)),
    };
    tracing::warn!(error, resource = right.resource, verb, "cannot ask whether this is allowed");
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_written_as_in_a_role() {
        for (group, resource, verbs, want) in [
            (
                "",
                "persistentvolumeclaims/status",
                &["patch"][..],
                "{apiGroups: [\"\"], resources: [persistentvolumeclaims/status], verbs: [patch]}",
            ),
            (
                "storage.k8s.io",
                "csinodes",
                &["list", "watch"],
                "{apiGroups: [storage.k8s.io], resources: [csinodes], verbs: [list, watch]}",
            ),
        ] {
            assert_eq!(rule(&Right::new(group, resource, &[]), verbs), want);
        }
    }
}
