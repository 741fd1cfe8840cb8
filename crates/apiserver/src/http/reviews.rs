//! Reviews: a client asks who a user is and what the user may do. Nothing is stored.

use serde_json::{Value, json};

use crate::Inner;
use crate::auth::Identity;
use crate::auth::rbac::{Action, rules_review};
use crate::error::{ApiResult, Cause, Status};
use crate::registry::{Resource, go_values};

/// Answers a review: the object with its status.
///
/// # Errors
/// The question makes no sense.
pub(super) fn respond(
    inner: &Inner,
    resource: &Resource,
    asker: &Identity,
    mut review: Value,
) -> ApiResult<Value> {
    if !review["metadata"].is_object() {
        review["metadata"] = json!({});
    }
    // These errors never named their kind.
    let invalid = |causes| Err(Status::invalid_kind(&resource.group, "", "", causes));
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
            let audiences: Vec<String> = texts(&review["spec"]["audiences"]).collect();
            match inner.identify_token(token, &audiences) {
                Ok((identity, meant)) => json!({
                    "authenticated": true, "user": user_info(&identity), "audiences": meant,
                }),
                Err(_) => json!({"user": {}, "error": "invalid bearer token"}),
            }
        }
        "SelfSubjectRulesReview" => {
            let namespace = review["spec"]["namespace"].as_str().unwrap_or_default();
            if namespace.is_empty() {
                return Err(Status::bad_request("no namespace on request"));
            }
            rules_review(&inner.access.policy().rules_for(asker, namespace))
        }
        kind => {
            let spec = &review["spec"];
            let one =
                spec["resourceAttributes"].is_null() != spec["nonResourceAttributes"].is_null();
            if !one {
                let why =
                    "exactly one of nonResourceAttributes or resourceAttributes must be specified";
                let path = &spec["nonResourceAttributes"];
                let path = go_values::compact(go_values::PATH_ATTRIBUTES, path);
                return invalid(vec![Cause::invalid_shown("spec", &path, why)]);
            }
            let subject =
                if kind == "SelfSubjectAccessReview" { asker.clone() } else { subject(spec) };
            if subject.user.is_empty() && subject.groups.is_empty() {
                let why = "at least one of user or group must be specified";
                return invalid(vec![Cause::invalid("spec.user", &json!(""), why)]);
            }
            let namespace = &review["metadata"]["namespace"];
            if kind == "LocalSubjectAccessReview"
                && spec["resourceAttributes"]["namespace"] != *namespace
            {
                let why = format!("must match metadata.namespace: {namespace}");
                let field = "spec.resourceAttributes.namespace";
                return invalid(vec![Cause::invalid(field, namespace, &why)]);
            }
            match inner.access.policy().allows(&subject, &action(spec)) {
                Some(reason) if reason.is_empty() => json!({"allowed": true}),
                Some(reason) => json!({"allowed": true, "reason": reason}),
                None => json!({"allowed": false}),
            }
        }
    };
    Ok(review)
}

fn texts(list: &Value) -> impl Iterator<Item = String> {
    list.as_array().into_iter().flatten().filter_map(|v| v.as_str().map(str::to_owned))
}

fn subject(spec: &Value) -> Identity {
    Identity::new(spec["user"].as_str().unwrap_or_default(), texts(&spec["groups"]))
}

/// What is asked about.
fn action(spec: &Value) -> Action {
    let path = &spec["nonResourceAttributes"];
    let attributes = &spec["resourceAttributes"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    if path.is_object() {
        return Action::Path { verb: text(&path["verb"]), path: text(&path["path"]) };
    }
    let resource = text(&attributes["resource"]);
    Action::Object {
        verb: text(&attributes["verb"]),
        group: text(&attributes["group"]),
        resource: match attributes["subresource"].as_str().unwrap_or_default() {
            "" => resource,
            sub => format!("{resource}/{sub}"),
        },
        namespace: text(&attributes["namespace"]),
        name: text(&attributes["name"]),
    }
}

fn user_info(identity: &Identity) -> Value {
    let mut info = json!({"username": identity.user, "groups": identity.groups});
    if !identity.uid.is_empty() {
        info["uid"] = json!(identity.uid);
    }
    if !identity.extra.is_empty() {
        info["extra"] = json!(identity.extra);
    }
    info
}
