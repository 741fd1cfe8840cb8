//! Reviews: questions about who somebody is and what they may do. Nothing is stored.

use serde_json::{Value, json};

use crate::Inner;
use crate::auth::{Identity, MASTERS};
use crate::error::{ApiResult, Cause, Status};
use crate::registry::Resource;

/// Kinds that every known user may ask about themselves.
pub fn is_about_self(plural: &str) -> bool {
    matches!(plural, "selfsubjectreviews" | "selfsubjectaccessreviews" | "selfsubjectrulesreviews")
}

/// Answers a review: the object with its status.
///
/// # Errors
/// The question makes no sense.
pub fn answer(
    inner: &Inner,
    resource: &Resource,
    asker: &Identity,
    mut review: Value,
) -> ApiResult<Value> {
    if !review["metadata"].is_object() {
        review["metadata"] = json!({});
    }
    let invalid = |causes| Err(Status::invalid(resource, "", causes));
    review["status"] = match resource.kind.as_str() {
        "SelfSubjectReview" => {
            review["metadata"]["creationTimestamp"] = json!(inner.core.env.now_text());
            json!({"userInfo": user_info(asker)})
        }
        "TokenReview" => {
            let token = review["spec"]["token"].as_str().unwrap_or_default();
            if token.is_empty() {
                return Err(Status::bad_request(
                    "token is required for TokenReview in authentication",
                ));
            }
            match inner.identify_token(token) {
                Some(identity) => json!({"authenticated": true, "user": user_info(&identity)}),
                None => json!({"user": {}, "error": "invalid bearer token"}),
            }
        }
        "SelfSubjectRulesReview" => rules(asker),
        kind => {
            let spec = &review["spec"];
            let one =
                spec["resourceAttributes"].is_null() != spec["nonResourceAttributes"].is_null();
            if !one {
                let why =
                    "exactly one of nonResourceAttributes or resourceAttributes must be specified";
                return invalid(vec![Cause::invalid("spec.resourceAttributes", &Value::Null, why)]);
            }
            let subject =
                if kind == "SelfSubjectAccessReview" { asker.clone() } else { subject(spec) };
            if subject.user.is_empty() && subject.groups.is_empty() {
                let why = "at least one of user or group must be specified";
                return invalid(vec![Cause::invalid("spec.user", &json!(""), why)]);
            }
            json!({"allowed": subject.is_master()})
        }
    };
    Ok(review)
}

fn subject(spec: &Value) -> Identity {
    let groups = spec["groups"].as_array().into_iter().flatten().filter_map(Value::as_str);
    Identity::new(spec["user"].as_str().unwrap_or_default(), groups)
}

fn user_info(identity: &Identity) -> Value {
    json!({"username": identity.user, "groups": identity.groups})
}

/// Without role-based rules the answer is all or nothing.
fn rules(asker: &Identity) -> Value {
    let all = asker.groups.iter().any(|group| group == MASTERS);
    let (resource, other) = if all {
        (
            json!([{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}]),
            json!([{"verbs": ["*"], "nonResourceURLs": ["*"]}]),
        )
    } else {
        (json!([]), json!([]))
    };
    json!({"resourceRules": resource, "nonResourceRules": other, "incomplete": false})
}
