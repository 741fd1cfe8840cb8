//! Saving volumes.

use super::*;

/// Makes storage whose volume the API refuses: it has no access mode.
struct Unsavable(Scripted);

impl Provisioner for Unsavable {
    async fn provision(&self, request: &Request) -> Result<ProvisionedVolume, ProvisionError> {
        let mut made = self.0.provision(request).await?;
        if self.0.asked.lock().len() == 1 {
            made.volume["spec"]["accessModes"] = json!([]);
        }
        Ok(made)
    }

    async fn delete(&self, volume: &Volume) -> Result<(), DeleteError> {
        self.0.delete(volume).await
    }
}

#[tokio::test(start_paused = true)]
async fn volumes_that_cannot_be_saved() {
    // case: provisioner/33
    let lab = Lab::new().await;
    let uid = lab.plain_claim().await;
    let make = |save, delete_fails| {
        let config = Config { save, ..Config::new(NAME) };
        let scripted = Scripted { delete_fails, ..Scripted::default() };
        ProvisionController::new(config, &lab.context, Unsavable(scripted))
    };
    let attempts = Save::attempts(5, Duration::from_secs(10));
    let controller = make(attempts, false);
    assert!(matches!(controller.inner.sync_claim(&uid).await, Outcome::Retry(_)));
    assert_eq!(controller.inner.provisioner.0.deleted.lock().len(), 1);
    assert!(lab.volumes().await.is_empty() && lab.failed(1));
    let told = |events: &[String], reason: &str| events.iter().any(|e| e.starts_with(reason));
    let events = lab.events().await;
    assert!(told(&events, "ProvisioningFailed: Error creating provisioned PV object for claim"));
    assert!(!told(&events, "ProvisioningCleanupFailed"));
    // case: provisioner/34
    let controller = make(attempts, true);
    controller.inner.sync_claim(&uid).await;
    assert_eq!(controller.inner.provisioner.0.deleted.lock().len(), 5);
    assert!(told(
        &lab.events().await,
        "ProvisioningCleanupFailed: Error cleaning provisioned volume"
    ));
    // case: provisioner/35
    let controller = make(Save::Always, false);
    assert!(matches!(controller.inner.sync_claim(&uid).await, Outcome::Done));
    let name = format!("pvc-{uid}");
    assert!(controller.inner.is_unsaved(&uid));
    assert!(controller.inner.provisioner.0.deleted.lock().is_empty());
    assert!(matches!(controller.inner.save_again(&uid).await, Outcome::Retry(_)));
    // case: provisioner/37: somebody else has saved it meanwhile
    controller.inner.mend_unsaved(&uid);
    lab.volume(&name, "Available", json!({}), json!({})).await;
    assert!(matches!(controller.inner.save_again(&uid).await, Outcome::Done));
    assert!(!controller.inner.is_unsaved(&uid));
    assert!(told(&lab.events().await, "ProvisioningSucceeded"));
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_is_gone_is_not_told() {
    let lab = Lab::new().await;
    let uid = lab.plain_claim().await;
    let config = Config { save: Save::Always, ..Config::new(NAME) };
    let scripted = Unsavable(Scripted::default());
    let controller = ProvisionController::new(config, &lab.context, scripted);
    assert!(matches!(controller.inner.sync_claim(&uid).await, Outcome::Done));
    lab.delete_claim("claim-1").await;
    let name = format!("pvc-{uid}");
    controller.inner.mend_unsaved(&uid);
    assert!(matches!(controller.inner.save_again(&uid).await, Outcome::Done));
    assert!(lab.volumes().await.contains_key(&name));
    let events = lab.events().await;
    assert!(!events.iter().any(|event| event.starts_with("ProvisioningSucceeded")), "{events:?}");
}

/// Makes storage whose volume the API refuses until told otherwise.
#[derive(Default)]
struct LateQuota {
    refused: Mutex<u32>,
}

impl Provisioner for LateQuota {
    async fn provision(&self, request: &Request) -> Result<ProvisionedVolume, ProvisionError> {
        Ok(ProvisionedVolume::new(request, json!({"hostPath": {"path": "/srv"}})))
    }

    async fn delete(&self, _volume: &Volume) -> Result<(), DeleteError> {
        *self.refused.lock() += 1;
        Ok(())
    }
}

/// A client of an account that may do everything but what a role will give it later.
async fn without_creating(lab: &Lab, server: &ApiServer) -> Api {
    let rule = json!({"apiGroups": ["*"], "resources": ["*"], "verbs": ["get", "list", "watch"]});
    let events = json!({"apiGroups": [""], "resources": ["events"], "verbs": ["*"]});
    lab.grant("reader", json!([rule, events])).await;
    Api::new(server.client_as("saver", ["system:authenticated"]))
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_is_refused_twice_is_saved_in_the_end() {
    // case: provisioner/36
    let lab = Lab::new().await;
    let uid = lab.plain_claim().await;
    let api = without_creating(&lab, &lab.server).await;
    let context = lab.context.with_api(api);
    let config = Config { save: Save::Always, ..Config::new(NAME) };
    let controller = ProvisionController::new(config, &context, LateQuota::default());
    let inner = &controller.inner;
    assert!(matches!(inner.sync_claim(&uid).await, Outcome::Done));
    let name = format!("pvc-{uid}");
    assert!(matches!(inner.save_again(&uid).await, Outcome::Retry(_)), "refused again");
    let told = |events: &[String]| events.iter().any(|e| e.starts_with("ProvisioningSucceeded"));
    assert!(lab.volumes().await.is_empty() && !told(&lab.events().await));
    let rule = json!({"apiGroups": [""], "resources": ["persistentvolumes"], "verbs": ["create"]});
    lab.grant("creator", json!([rule])).await;
    assert!(matches!(inner.save_again(&uid).await, Outcome::Done));
    assert!(lab.volumes().await.contains_key(&name));
    assert!(!inner.is_unsaved(&uid));
    let events = lab.events().await;
    assert!(
        events.contains(&format!("ProvisioningSucceeded: Successfully provisioned volume {name}"))
    );
    assert_eq!(*inner.provisioner.refused.lock(), 0, "nothing was removed meanwhile");
}

#[tokio::test(start_paused = true)]
async fn pauses_between_attempts_grow_up_to_the_longest() {
    let lab = Lab::new().await;
    let uid = lab.plain_claim().await;
    let api = without_creating(&lab, &lab.server).await;
    let context = lab.context.with_api(api);
    let seconds = Duration::from_secs;
    let save = Save::Attempts { count: 5, interval: seconds(1), factor: 3.0, longest: seconds(5) };
    let config = Config { save, ..Config::new(NAME) };
    let controller = ProvisionController::new(config, &context, LateQuota::default());
    let began = tokio::time::Instant::now();
    assert!(matches!(controller.inner.sync_claim(&uid).await, Outcome::Retry(_)));
    // 1, 3, 5 and 5 seconds between five attempts; the removal succeeds at once.
    assert_eq!(began.elapsed().as_secs(), 14);
    assert_eq!(*controller.inner.provisioner.refused.lock(), 1);
}
