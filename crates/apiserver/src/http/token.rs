//! `serviceaccounts/token`: a token for an account.

use jiff::SignedDuration;
use serde_json::{Value, json};

use crate::Inner;
use crate::auth::tokens::{Bound, Claims, ISSUER, OnNode};
use crate::clock::time_text;
use crate::error::{ApiResult, Cause, Status};
use crate::ops::Target;

const DEFAULT_SECONDS: i64 = 3600;
const MIN_SECONDS: i64 = 600;
const MAX_SECONDS: i64 = 1 << 32;

/// Answers a request for a token: the request with its status.
///
/// # Errors
/// 404 when the account, or what the token is to be bound to, is not there.
pub async fn answer(inner: &Inner, target: &Target, request: &Value) -> ApiResult<Value> {
    let account = inner.core.get(target, None).await?;
    let spec = &request["spec"];
    let seconds = spec["expirationSeconds"].as_i64().unwrap_or(DEFAULT_SECONDS);
    check_seconds(seconds)?;
    let mut audiences: Vec<String> = spec["audiences"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|audience| audience.as_str().map(str::to_owned))
        .collect();
    if audiences.is_empty() {
        audiences.push(ISSUER.to_owned());
    }
    let bound = bound(inner, target, &spec["boundObjectRef"]).await?;
    let now = inner.core.env.now();
    let end = now.checked_add(SignedDuration::from_secs(seconds)).unwrap_or(jiff::Timestamp::MAX);
    let claims = Claims {
        namespace: target.namespace.clone(),
        account: target.name.clone(),
        uid: account.uid.clone(),
        audiences: audiences.clone(),
        issued: now.as_second(),
        expires: end.as_second(),
        id: inner.core.env.uid(),
        bound,
    };
    let token = inner.signer().sign(&claims);
    let token = token.ok_or_else(|| Status::internal("the token could not be signed"))?;
    let mut answered = json!({
        "kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1",
        "metadata": {
            "name": target.name, "namespace": target.namespace, "uid": inner.core.env.uid(),
            "creationTimestamp": time_text(now),
        },
        "spec": {"audiences": audiences, "expirationSeconds": seconds, "boundObjectRef": null},
        "status": {"token": token, "expirationTimestamp": time_text(end)},
    });
    if spec["boundObjectRef"].is_object() {
        answered["spec"]["boundObjectRef"] = spec["boundObjectRef"].clone();
    }
    Ok(answered)
}

fn check_seconds(seconds: i64) -> ApiResult<()> {
    let why = match seconds {
        few if few < MIN_SECONDS => "may not specify a duration less than 10 minutes",
        many if many > MAX_SECONDS => "may not specify a duration larger than 2^32 seconds",
        _ => return Ok(()),
    };
    let cause = Cause::invalid("spec.expirationSeconds", &json!(seconds), why);
    Err(Status::invalid_kind("authentication.k8s.io", "TokenRequest", "", vec![cause]))
}

/// The object the token ends with.
async fn bound(inner: &Inner, target: &Target, reference: &Value) -> ApiResult<Option<Bound>> {
    if !reference.is_object() {
        return Ok(None);
    }
    let text = |field: &str| reference[field].as_str().unwrap_or_default();
    let (plural, namespace) = match text("kind") {
        "Pod" => ("pods", target.namespace.clone()),
        "Secret" => ("secrets", target.namespace.clone()),
        "Node" => ("nodes", String::new()),
        other => {
            return Err(Status::bad_request(format!(
                "cannot bind token for serviceaccount {:?} to object of type {:?}",
                target.name, other
            )));
        }
    };
    let place = Target {
        resource: inner.core.registry().core(plural).clone(),
        namespace,
        name: text("name").to_owned(),
    };
    let found = inner.core.get(&place, None).await?;
    let uid = text("uid");
    if !uid.is_empty() && uid != found.uid {
        let why = format!(
            "the UID in the bound object reference ({uid}) does not match the UID in record. The object might have been deleted and then recreated"
        );
        return Err(Status::conflict_kind(&place.resource, &place.name, &why));
    }
    let kind = text("kind").to_lowercase();
    let node = (kind == "pod").then(|| node_of(inner, &found.value())).flatten();
    Ok(Some(Bound { kind, name: place.name, uid: found.uid.clone(), node }))
}

/// The node that a pod is on.
fn node_of(inner: &Inner, pod: &Value) -> Option<OnNode> {
    let name = pod["spec"]["nodeName"].as_str().filter(|name| !name.is_empty())?;
    let node = inner.core.store.get(&inner.core.registry().core("nodes").key("", name));
    Some(OnNode { name: name.to_owned(), uid: node.map(|node| node.uid.clone()) })
}
