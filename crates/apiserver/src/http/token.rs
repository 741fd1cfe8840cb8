//! `serviceaccounts/token`: a token for an account.

use jiff::SignedDuration;
use k8s_openapi::api::authentication::v1::TokenRequest;
use serde_json::{Value, json};

use crate::Inner;
use crate::auth::tokens::{Bound, Claims, ISSUER, OnNode};
use crate::clock::time_text;
use crate::error::{ApiResult, Cause, Status};
use crate::ops::Target;
use crate::registry::codec::of;
use crate::registry::decode_as;

const GROUP: &str = "authentication.k8s.io";
const API_VERSION: &str = "authentication.k8s.io/v1";
const KIND: &str = "TokenRequest";
const DEFAULT_SECONDS: i64 = 3600;
const MIN_SECONDS: i64 = 600;
const MAX_SECONDS: i64 = 1 << 32;

/// Answers a request for a token: the request with its status.
///
/// # Errors
/// 400 when the request cannot be read, 404 when the account, or what the token is to be bound to,
/// is not there, 409 when one of them is another one than the request means.
pub(super) async fn respond(inner: &Inner, target: &Target, request: Value) -> ApiResult<Value> {
    let request = read(request)?;
    check_place(target, &request["metadata"])?;
    let account = inner.core.get(target, None).await?;
    let uid = text(&request["metadata"], "uid");
    if !uid.is_empty() && uid != account.uid {
        let why = format!(
            "the UID in the token request ({uid}) does not match the UID of the service account ({})",
            account.uid
        );
        return Err(Status::conflict_named(GROUP, KIND, &target.name, &why));
    }
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
        "kind": KIND, "apiVersion": API_VERSION,
        "metadata": {
            "name": target.name, "namespace": target.namespace, "uid": account.uid,
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

fn text<'a>(object: &'a Value, field: &str) -> &'a str {
    object[field].as_str().unwrap_or_default()
}

/// Checks the type of every field: what cannot be read must not pass for absent.
fn read(mut request: Value) -> ApiResult<Value> {
    let refuse = |kind: &str, version: &str, why: &str| {
        let version = version.rsplit('/').next().unwrap_or_default();
        Status::bad_request(format!(
            "{kind} in version {version:?} cannot be handled as a {KIND}: {why}"
        ))
    };
    let said = |field: &str, otherwise: &str| match text(&request, field) {
        "" => otherwise.to_owned(),
        said => said.to_owned(),
    };
    let (kind, version) = (said("kind", KIND), said("apiVersion", API_VERSION));
    if !request.is_object() {
        return Err(refuse(&kind, &version, "the body is not an object"));
    }
    if kind != KIND || version != API_VERSION {
        let why = format!("no kind {kind:?} is registered for version {version:?}");
        return Err(refuse(&kind, &version, &why));
    }
    // The type insists on audiences, Kubernetes does not.
    if request["spec"].is_object() && request["spec"]["audiences"].is_null() {
        request["spec"]["audiences"] = json!([]);
    }
    if request["spec"].is_null() {
        request["spec"] = json!({"audiences": []});
    }
    decode_as(&of::<TokenRequest>(), request).map_err(|fault| refuse(&kind, &version, &fault.why))
}

/// The body may repeat the path, but not contradict it.
fn check_place(target: &Target, meta: &Value) -> ApiResult<()> {
    let (name, namespace) = (text(meta, "name"), text(meta, "namespace"));
    if !namespace.is_empty() && namespace != target.namespace {
        return Err(Status::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    if !name.is_empty() && name != target.name {
        let why = "must match the service account name if specified";
        let cause = Cause::invalid("metadata.name", &name.into(), why);
        return Err(Status::invalid_kind(GROUP, KIND, &target.name, vec![cause]));
    }
    Ok(())
}

fn check_seconds(seconds: i64) -> ApiResult<()> {
    let why = match seconds {
        few if few < MIN_SECONDS => "may not specify a duration less than 10 minutes",
        many if many > MAX_SECONDS => "may not specify a duration larger than 2^32 seconds",
        _ => return Ok(()),
    };
    let cause = Cause::invalid("spec.expirationSeconds", &json!(seconds), why);
    Err(Status::invalid_kind(GROUP, KIND, "", vec![cause]))
}

/// The object the token ends with.
async fn bound(inner: &Inner, target: &Target, reference: &Value) -> ApiResult<Option<Bound>> {
    if !reference.is_object() {
        return Ok(None);
    }
    let text = |field: &str| text(reference, field);
    let core = !text("apiVersion").contains('/');
    let (plural, namespace) = match text("kind") {
        "Pod" if core => ("pods", target.namespace.clone()),
        "Secret" if core => ("secrets", target.namespace.clone()),
        "Node" if core => ("nodes", String::new()),
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
    if plural == "pods" && account_of(&found.value()) != target.name {
        return Err(Status::bad_request(format!(
            "cannot bind token for serviceaccount {:?} to pod running with different serviceaccount name.",
            target.name
        )));
    }
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

/// The service account of a pod. Where accounts are not filled in, none means the default one.
fn account_of(pod: &Value) -> String {
    let name = pod["spec"]["serviceAccountName"].as_str().unwrap_or_default();
    if name.is_empty() { "default".into() } else { name.into() }
}

/// The node that a pod is on.
fn node_of(inner: &Inner, pod: &Value) -> Option<OnNode> {
    let name = pod["spec"]["nodeName"].as_str().filter(|name| !name.is_empty())?;
    let node = inner.core.store.get(&inner.core.registry().core("nodes").key("", name));
    Some(OnNode { name: name.to_owned(), uid: node.map(|node| node.uid.clone()) })
}
