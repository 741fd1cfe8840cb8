use std::sync::Arc;

use longshore_core::model::kinds::{Claim, Pod, Volume, VolumeAttachment};
use parking_lot::Mutex;

use super::*;
use crate::testing::{self, failure, respond};

type Log = Arc<Mutex<Vec<(String, Value)>>>;

/// Notes each request as `METHOD path?query` with its body, and responds with `reply`.
fn api(code: u16, reply: Value) -> (Api, Log) {
    let log = Log::default();
    let seen = log.clone();
    let client = testing::client(move |request| {
        let query =
            if request.query.is_empty() { String::new() } else { format!("?{}", request.query) };
        seen.lock().push((format!("{} {}{query}", request.method, request.path), request.body));
        let reply = respond(code, &reply);
        async move { reply }
    });
    (Api::new(client), log)
}

#[tokio::test]
async fn every_request_asks_for_objects_without_managed_fields() {
    let log = Arc::<Mutex<Vec<String>>>::default();
    let seen = log.clone();
    let client = testing::client(move |request| {
        seen.lock().push(request.accept);
        async { respond(200, &json!({"metadata": {"name": "x"}, "items": []})) }
    });
    let (api, key) = (Api::new(client), ObjectKey::cluster("pv"));
    api.get::<Volume>(&key).await.expect("response");
    api.list::<Volume>(None, &ListParams::default()).await.expect("response");
    api.watch::<Volume>(None, &ListParams::default(), &[]).await.expect("response");
    let patch = json!({"metadata": {"labels": {"a": "b"}}});
    api.patch::<Volume>(&key, Patch::Merge(&patch)).await.expect("response");
    assert_eq!(*log.lock(), ["application/json;drop=metadata.managedFields"; 4]);
}

#[tokio::test]
async fn requests_go_to_the_right_path() {
    let (api, log) = api(200, json!({"metadata": {"name": "x"}, "items": []}));
    let claim = ObjectKey::new("ns", "data");
    let volume = ObjectKey::cluster("pv");
    let body = json!({"metadata": {"name": "data", "namespace": "ns", "resourceVersion": "1"}});
    let attach = json!({"metadata": {"name": "va"}});
    let selected = ListParams {
        label_selector: Some("a=b,c!=d".into()),
        field_selector: Some("spec.nodeName=n".into()),
    };
    api.get::<Claim>(&claim).await.expect("response");
    api.get_raw::<Volume>(&volume).await.expect("response");
    api.list::<Pod>(Some("ns"), &selected).await.expect("response");
    api.list::<Volume>(None, &ListParams::default()).await.expect("response");
    api.create::<Claim>(&body).await.expect("response");
    api.create::<VolumeAttachment>(&attach).await.expect("response");
    api.update::<Claim>(&body).await.expect("response");
    api.update_status::<Claim>(&body).await.expect("response");
    api.patch::<Volume>(&volume, Patch::Merge(&body)).await.expect("response");
    api.patch_status::<Claim>(&claim, Patch::Json(&json!([]))).await.expect("response");
    api.create_subresource::<Pod>(&claim, "binding", &body).await.expect("response");
    let paths: Vec<String> = log.lock().iter().map(|(path, _)| path.clone()).collect();
    let want = [
        "GET /api/v1/namespaces/ns/persistentvolumeclaims/data",
        "GET /api/v1/persistentvolumes/pv",
        "GET /api/v1/namespaces/ns/pods?labelSelector=a%3Db%2Cc%21%3Dd&fieldSelector=spec.nodeName%3Dn&limit=500",
        "GET /api/v1/persistentvolumes?limit=500",
        "POST /api/v1/namespaces/ns/persistentvolumeclaims",
        "POST /apis/storage.k8s.io/v1/volumeattachments",
        "PUT /api/v1/namespaces/ns/persistentvolumeclaims/data",
        "PUT /api/v1/namespaces/ns/persistentvolumeclaims/data/status",
        "PATCH /api/v1/persistentvolumes/pv",
        "PATCH /api/v1/namespaces/ns/persistentvolumeclaims/data/status",
        "POST /api/v1/namespaces/ns/pods/data/binding",
    ];
    assert_eq!(paths, want);
    let made = &log.lock()[5].1;
    assert_eq!(
        (&made["apiVersion"], &made["kind"]),
        (&"storage.k8s.io/v1".into(), &"VolumeAttachment".into())
    );
}

#[tokio::test]
async fn preconditions_of_deletes_are_sent() {
    let (api, log) = api(200, json!({}));
    let params = DeleteParams {
        uid: Some("u".into()),
        resource_version: Some("7".into()),
        grace_period_seconds: Some(0),
        propagation: Some("Background".into()),
    };
    api.delete::<Volume>(&ObjectKey::cluster("pv"), &params).await.expect("response");
    let want = json!({
        "kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0,
        "propagationPolicy": "Background", "preconditions": {"uid": "u", "resourceVersion": "7"},
    });
    assert_eq!(log.lock()[0].1, want);
}

#[tokio::test]
async fn not_found_is_none_for_reads_and_an_error_for_deletes() {
    let (api, _) = api(404, json!({"message": "no such volume"}));
    let key = ObjectKey::cluster("pv");
    assert!(api.get::<Volume>(&key).await.expect("no error").is_none());
    let error = api.delete::<Volume>(&key, &DeleteParams::default()).await.expect_err("gone");
    assert!(error.is_not_found());
    assert_eq!(error.to_string(), "delete PersistentVolume pv: not found: no such volume");
}

#[tokio::test]
async fn an_expired_page_token_restarts_the_list_in_one_piece() {
    let page = |token: &str, name: &str| json!({"metadata": {"continue": token}, "items": [{"metadata": {"name": name}}]});
    let client = testing::client(move |request| {
        let reply = match request.query.as_str() {
            "limit=500" => respond(200, &page("t", "old")),
            "limit=500&continue=t" => failure(410, "Expired"),
            _ => respond(200, &page("", "new")),
        };
        async move { reply }
    });
    let volumes = Api::new(client).list::<Volume>(None, &ListParams::default()).await;
    let names: Vec<_> = volumes.expect("listed").into_iter().map(|v| v.metadata.name).collect();
    assert_eq!(names, ["new"]);
}

#[tokio::test]
async fn unreadable_responses_and_dead_servers_have_no_verdict() {
    let (api, _) = api(200, json!("not an object"));
    let key = ObjectKey::cluster("pv");
    let error = api.get::<Volume>(&key).await.expect_err("unreadable");
    assert!(error.is_without_verdict(), "{error}");
    let dead = tower::service_fn(|_: Request<Body>| async {
        Err::<Response<Body>, _>(std::io::Error::other("connection refused"))
    });
    let dead = Api::new(kube::Client::new(dead, "default"));
    let error = dead.get::<Volume>(&key).await.expect_err("dead");
    assert!(error.is_without_verdict(), "{error}");
    assert!(error.to_string().contains("connection refused"), "{error}");
}
