//! What a provisioner is told, and what its answers lead to.

use super::*;

#[tokio::test(start_paused = true)]
async fn the_request_carries_class_and_node_unchanged() {
    // case: provisioner/13
    let lab = Lab::new().await;
    let topology = json!([{"matchLabelExpressions": [
        {"key": "zone", "values": ["a", "b"]}, {"key": "rack", "values": ["1"]}]}]);
    let over = json!({
        "allowedTopologies": topology,
        "mountOptions": ["noatime"],
        "parameters": {"type": "fast"},
        "reclaimPolicy": "Retain",
        "volumeBindingMode": "WaitForFirstConsumer",
    });
    lab.class("placed", NAME, over).await;
    let node = json!({"volume.kubernetes.io/selected-node": "node-1"});
    let uid = lab.claim("claim-1", "placed", node, json!({})).await;
    let controller = lab.controller(Config::new(NAME), Scripted::default());
    assert!(matches!(controller.inner.sync_claim(&uid).await, Outcome::Done));
    let request = controller.inner.provisioner.asked.lock()[0].clone();
    assert_eq!(request.node.as_deref(), Some("node-1"));
    assert_eq!((request.bytes, request.volume.as_str()), (1 << 30, &*format!("pvc-{uid}")));
    let terms = &request.class.allowed_topologies[0].match_label_expressions;
    let seen: Vec<_> = terms.iter().map(|one| (one.key.as_str(), one.values.join(","))).collect();
    assert_eq!(seen, [("zone", "a,b".to_owned()), ("rack", "1".to_owned())]);
    assert_eq!(request.class.parameters["type"], "fast");
    assert_eq!(request.claim.metadata.uid, uid);
    // case: provisioner/24
    let volume = &lab.volumes().await[&format!("pvc-{uid}")];
    assert_eq!(
        volume.spec.persistent_volume_reclaim_policy,
        longshore_core::model::ReclaimPolicy::Retain
    );
    assert_eq!(volume.spec.mount_options, ["noatime"]);
}

/// Changes the claim while it is asked for the claim's volume, and then has no room for it.
struct Meddler(Api);

impl Provisioner for Meddler {
    async fn provision(&self, request: &Request) -> Result<ProvisionedVolume, ProvisionError> {
        let patch = json!({"metadata": {"labels": {"changed": "meanwhile"}}});
        let key = request.claim.metadata.key();
        self.0.patch::<Claim>(&key, Patch::Merge(&patch)).await.unwrap();
        Err(ProvisionError::Elsewhere("full".into()))
    }

    async fn delete(&self, _volume: &Volume) -> Result<(), DeleteError> {
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_changed_meanwhile_keeps_its_node_and_is_tried_again() {
    // case: provisioner/22
    let lab = Lab::new().await;
    let node = "volume.kubernetes.io/selected-node";
    let uid = lab.claim("claim-1", "class-1", json!({node: "node-1"}), json!({})).await;
    let meddler = Meddler(lab.api.clone());
    let controller = ProvisionController::new(Config::new(NAME), &lab.context, meddler);
    let outcome = controller.inner.sync_claim(&uid).await;
    assert!(matches!(&outcome, Outcome::Retry(error) if error.to_string() == "full"));
    let key = ObjectKey::new("default", "claim-1");
    let claim = lab.api.get::<Claim>(&key).await.unwrap().unwrap();
    assert_eq!(claim.metadata.annotation(node), Some("node-1"));
    assert_eq!(claim.metadata.labels["changed"], "meanwhile");
}

/// Something that failed because of something else.
#[derive(Debug, thiserror::Error)]
#[error("pool \"gold\": {0}")]
struct Wrapped(#[source] std::io::Error);

#[tokio::test(start_paused = true)]
async fn what_is_infeasible_may_wrap_any_cause() {
    // case: provisioner/31
    let lab = Lab::new().await;
    let uid = lab.plain_claim().await;
    let wrapped =
        || ProvisionError::Infeasible(Wrapped(std::io::Error::other("no such pool")).into());
    let config = Config { infeasible_pause: Duration::from_secs(60), ..Config::new(NAME) };
    let controller = lab.controller(config, refusing(&[wrapped, wrapped]));
    let inner = &controller.inner;
    for _ in 0..2 {
        let rest = inner.sync_claim(&uid).await;
        let in_time = |left: &Duration| *left <= Duration::from_secs(60);
        assert!(matches!(&rest, Outcome::After(left) if in_time(left)), "{rest:?}");
        assert_eq!(inner.provisioner.asked.lock().len(), 1);
    }
    let text = "ProvisioningFailed: Volume provisioning failed with infeasible error. \
        Retries will be delayed. pool \"gold\": no such pool";
    assert!(lab.events().await.iter().any(|event| event == text));
    // case: provisioner/29: the rest ends when its time is over, and only then.
    tokio::time::sleep(Duration::from_secs(61)).await;
    assert!(matches!(inner.sync_claim(&uid).await, Outcome::After(_)));
    assert_eq!(inner.provisioner.asked.lock().len(), 2);
}
