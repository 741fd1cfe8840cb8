//! The secret that serves every role unless a role has its own.

use std::collections::BTreeMap;
use std::time::Duration;

use longshore_cluster::ObjectKey;
use longshore_core::model::kinds::{Secret, Volume};
use serde_json::json;

use super::bench::Bench;

#[tokio::test(start_paused = true)]
async fn the_default_secret_serves_every_role() {
    // case: provisioner/67
    let mut bench = Bench::new().await;
    let parameters = json!({"csi.storage.k8s.io/secret-name": "key",
        "csi.storage.k8s.io/secret-namespace": "default"});
    bench.class("locked", "Immediate", parameters).await;
    let secret = json!({"metadata": {"name": "key", "namespace": "default"},
        "data": {"password": "aHVudGVyMg==", "user": "am9l"}});
    bench.api.create::<Secret>(&secret).await.unwrap();
    let content = [("password", "hunter2"), ("user", "joe")];
    let content: BTreeMap<String, String> =
        content.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
    bench.driver.configure(|config| config.create_secrets = Some(content));
    bench.start();
    bench.claim("data", "locked").await;
    let volume = bench.until_bound("data").await;
    let key = ObjectKey::cluster(&volume.metadata.name);
    let whole = bench.api.get_raw::<Volume>(&key).await.unwrap().unwrap();
    let reference = json!({"name": "key", "namespace": "default"});
    let roles = ["controllerPublish", "nodeStage", "nodePublish", "controllerExpand", "nodeExpand"];
    for role in roles {
        assert_eq!(whole["spec"]["csi"][format!("{role}SecretRef")], reference, "{role}");
    }
    for role in ["provisioner-deletion", "controller-modify"] {
        let notes = &whole["metadata"]["annotations"];
        assert_eq!(notes[format!("volume.kubernetes.io/{role}-secret-name")], "key");
        assert_eq!(notes[format!("volume.kubernetes.io/{role}-secret-namespace")], "default");
    }
    bench.delete_claim("data").await;
    bench.until_clean().await;
}

#[tokio::test(start_paused = true)]
async fn claim_that_lacks_a_secret_goes_on_as_soon_as_it_is_there() {
    let mut bench = Bench::new().await;
    let parameters = json!({"csi.storage.k8s.io/secret-name": "late",
        "csi.storage.k8s.io/secret-namespace": "default"});
    bench.class("locked", "Immediate", parameters).await;
    bench.start();
    bench.claim("data", "locked").await;
    // Long enough for a backoff of minutes.
    tokio::time::sleep(Duration::from_secs(400)).await;
    let secret = json!({"metadata": {"name": "late", "namespace": "default"}});
    bench.api.create::<Secret>(&secret).await.unwrap();
    let since = tokio::time::Instant::now();
    bench.until_bound("data").await;
    assert!(since.elapsed() < Duration::from_secs(5), "{:?}", since.elapsed());
}
