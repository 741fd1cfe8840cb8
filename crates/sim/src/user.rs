//! A user: makes objects, waits for what should come of them, deletes them.

use std::time::Duration;

use longshore_cluster::{Api, ApiError, DeleteParams, ObjectKey};
use longshore_core::model::Kind;
use longshore_core::model::kinds::{
    Claim, Pod, StorageClass, Volume, VolumeGroupSnapshot, VolumeSnapshot,
};
use longshore_csi::{Call, CsiError};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::ledger::Ledger;
use crate::truth::Truth;
use crate::{DRIVER, snapshots};

/// How long anything may take once there are no more faults to come.
pub(crate) const SETTLE_TIMEOUT: Duration = Duration::from_secs(30 * 60);
const POLL_INTERVAL: Duration = Duration::from_millis(500);
const CLASS: &str = "sim";
pub(crate) const CLAIM: &str = "data";
/// A claim that is filled from the other.
pub(crate) const CLONE: &str = "copy";
pub(crate) const SNAPSHOT: &str = "snap";

/// Why a user's expectation failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UserError {
    #[error("{what}: not within {} minutes", SETTLE_TIMEOUT.as_secs() / 60)]
    Waited { what: String },
    #[error("the user's own request: {0}")]
    Api(#[from] ApiError),
    #[error("the user's own call of the driver: {0}")]
    Driver(#[from] CsiError),
    #[error("left behind: {}", .0.join("; "))]
    LeftBehind(Vec<String>),
    #[error("a controller ended by itself or worse happened; see the breaches")]
    Breached,
}

/// A user of the cluster, who may be hasty.
pub(crate) struct User {
    pub(crate) api: Api,
    pub(crate) truth: Truth,
    pub(crate) ledger: Ledger,
    /// Makes the user go on too early, at random moments.
    pub(crate) haste: Option<Mutex<fastrand::Rng>>,
    /// Deletes everything as soon as the first fault strikes.
    pub(crate) gives_up: bool,
}

impl User {
    /// Repeats a user's own call of the driver until the driver responds.
    ///
    /// A fault in a call of the controllers can close the connection under the user's call as well.
    /// It may have taken effect or not then, and it is idempotent, so a client repeats it.
    pub(crate) async fn until_responded<T, F>(
        &self,
        mut call: impl FnMut() -> F,
    ) -> Result<T, CsiError>
    where
        F: Future<Output = Result<T, CsiError>>,
    {
        let end = Instant::now() + SETTLE_TIMEOUT;
        loop {
            match call().await {
                Err(error) if !error.is_final() && Instant::now() < end => {
                    self.ledger.note(format!("the user repeats a call: {error}"));
                    sleep(POLL_INTERVAL).await;
                }
                response => return response,
            }
        }
    }

    pub(crate) async fn make_class(&self, binding: &str) -> Result<(), UserError> {
        let class = json!({
            "metadata": {"name": CLASS},
            "provisioner": DRIVER,
            "reclaimPolicy": "Delete",
            "volumeBindingMode": binding,
            "allowVolumeExpansion": true,
        });
        self.api.create::<StorageClass>(&class).await?;
        Ok(())
    }

    pub(crate) async fn make_claim(&self) -> Result<(), UserError> {
        self.ledger.note("the user makes the claim");
        self.create_claim(&claim(CLAIM)).await
    }

    pub(crate) async fn create_claim(&self, claim: &Value) -> Result<(), UserError> {
        let made = self.api.create::<Claim>(claim).await?;
        self.ledger.claim_created(made["metadata"]["uid"].as_str().unwrap_or_default());
        Ok(())
    }

    /// Makes a claim that is a clone of the first.
    pub(crate) async fn make_clone(&self) -> Result<(), UserError> {
        self.ledger.note("the user makes the clone");
        let mut clone = claim(CLONE);
        clone["spec"]["dataSource"] = json!({"kind": Claim::KIND, "name": CLAIM});
        self.create_claim(&clone).await
    }

    /// Takes a snapshot of the first claim, which is bound.
    pub(crate) async fn make_snapshot(&self) -> Result<(), UserError> {
        self.ledger.note("the user takes a snapshot");
        let volume = self.truth.get::<Claim>(CLAIM).unwrap_or_default();
        let volume = volume["spec"]["volumeName"].as_str().unwrap_or_default().to_owned();
        let volume = self.truth.get::<Volume>(&volume).unwrap_or_default();
        let handle = volume["spec"]["csi"]["volumeHandle"].as_str().unwrap_or_default();
        snapshots::take(self, handle, CLAIM, SNAPSHOT).await
    }

    /// Makes a claim that is filled from the snapshot.
    pub(crate) async fn make_restore(&self) -> Result<(), UserError> {
        self.ledger.note("the user restores the snapshot");
        let mut restored = claim(CLONE);
        restored["spec"]["dataSource"] = snapshots::source(SNAPSHOT);
        self.create_claim(&restored).await
    }

    /// Makes a pod that uses the claim, on one node or on any.
    pub(crate) async fn make_pod(&self, name: &str, node: Option<&str>) -> Result<(), UserError> {
        self.ledger.note(format!("the user makes pod {name}"));
        let mut pod = json!({
            "metadata": {"name": name, "namespace": "default"},
            "spec": {
                "containers": [{"name": "main", "image": "none"}],
                "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": CLAIM}}],
            },
        });
        if let Some(node) = node {
            pod["spec"]["nodeSelector"] = json!({"kubernetes.io/hostname": node});
        }
        self.api.create::<Pod>(&pod).await?;
        Ok(())
    }

    pub(crate) async fn delete<T: Kind>(&self, name: &str) -> Result<(), UserError> {
        self.ledger.note(format!("the user deletes {} {name}", T::KIND));
        let key = ObjectKey::new("default", name);
        match self.api.delete::<T>(&key, &DeleteParams::default()).await {
            Err(error) if !error.is_not_found() => Err(error.into()),
            _ => Ok(()),
        }
    }

    /// Deletes the volume that a claim is bound to, if it is.
    pub(crate) async fn delete_volume_of(&self, claim: &str) -> Result<(), UserError> {
        let claim = self.truth.get::<Claim>(claim).unwrap_or_default();
        match claim["spec"]["volumeName"].as_str() {
            Some(volume) => self.delete::<Volume>(volume).await,
            None => Ok(()),
        }
    }

    pub(crate) async fn bound(&self, claim: &str) -> Result<(), UserError> {
        self.wait_unless_hasty(&format!("claim {claim} is bound"), || {
            self.truth.get::<Claim>(claim).is_some_and(|claim| claim["status"]["phase"] == "Bound")
        })
        .await
    }

    /// As [`Self::bound`], also for a hasty user: what comes next is made from it.
    pub(crate) async fn bound_for_certain(&self, claim: &str) -> Result<(), UserError> {
        self.wait(&format!("claim {claim} is bound"), || {
            self.truth.get::<Claim>(claim).is_some_and(|claim| claim["status"]["phase"] == "Bound")
        })
        .await
    }

    pub(crate) async fn running(&self, pod: &str) -> Result<(), UserError> {
        self.wait_unless_hasty(&format!("pod {pod} runs"), || {
            self.truth.get::<Pod>(pod).is_some_and(|pod| pod["status"]["phase"] == "Running")
        })
        .await
    }

    /// As [`Self::running`], also for a hasty user.
    pub(crate) async fn running_for_certain(&self, pod: &str) -> Result<(), UserError> {
        self.wait(&format!("pod {pod} runs"), || {
            self.truth.get::<Pod>(pod).is_some_and(|pod| pod["status"]["phase"] == "Running")
        })
        .await
    }

    /// Waits until nothing is left of what `unsettled` tells.
    pub(crate) async fn settled(
        &self,
        what: &str,
        unsettled: impl Fn() -> String,
    ) -> Result<(), UserError> {
        match self.wait(what, || unsettled().is_empty()).await {
            Err(UserError::Waited { what }) => {
                Err(UserError::Waited { what: format!("{what} ({})", unsettled()) })
            }
            other => other,
        }
    }

    pub(crate) async fn gone<T: Kind>(&self, name: &str) -> Result<(), UserError> {
        let what = format!("{} {name} is gone", T::KIND);
        self.wait_unless_hasty(&what, || self.truth.get::<T>(name).is_none()).await
    }

    /// As [`Self::gone`], also for a hasty user: the name is needed again.
    pub(crate) async fn gone_for_certain<T: Kind>(&self, name: &str) -> Result<(), UserError> {
        let what = format!("{} {name} is gone", T::KIND);
        self.wait(&what, || self.truth.get::<T>(name).is_none()).await
    }

    /// Waits until the driver has begun to make a volume.
    pub(crate) async fn being_made(&self) -> Result<(), UserError> {
        self.wait_unless_hasty("CreateVolume has begun", || {
            !self.truth.driver().calls_of(Call::CreateVolume).is_empty()
        })
        .await
    }

    /// Waits for something that should come; a hasty user may go on before it does.
    async fn wait_unless_hasty(
        &self,
        what: &str,
        come: impl Fn() -> bool,
    ) -> Result<(), UserError> {
        let hurried = self.haste.as_ref().and_then(|rng| {
            let mut rng = rng.lock();
            rng.bool().then(|| Duration::from_millis(rng.u64(..20_000)))
        });
        let Some(hurried) = hurried else { return self.wait(what, come).await };
        let until = Instant::now() + hurried;
        while Instant::now() < until && !come() {
            sleep(POLL_INTERVAL).await;
        }
        Ok(())
    }

    async fn wait(&self, what: &str, come: impl Fn() -> bool) -> Result<(), UserError> {
        let until = Instant::now() + SETTLE_TIMEOUT;
        while !come() {
            if Instant::now() >= until {
                return Err(UserError::Waited { what: what.to_owned() });
            }
            if !self.ledger.breaches().is_empty() {
                return Err(UserError::Breached);
            }
            sleep(POLL_INTERVAL).await;
        }
        Ok(())
    }

    /// Waits until a user who gives up does so.
    pub(crate) async fn given_up(&self) {
        if !self.gives_up {
            std::future::pending::<()>().await;
        }
        self.ledger.strike().await;
        self.ledger.note("the user gives up");
    }

    /// Deletes everything and waits until nothing is left and nothing comes back.
    pub(crate) async fn leave(&self) -> Result<(), UserError> {
        for pod in self.truth.list::<Pod>() {
            self.delete::<Pod>(pod["metadata"]["name"].as_str().unwrap_or_default()).await?;
        }
        for claim in self.truth.list::<Claim>() {
            self.delete::<Claim>(claim["metadata"]["name"].as_str().unwrap_or_default()).await?;
        }
        for group in self.truth.list::<VolumeGroupSnapshot>() {
            let name = group["metadata"]["name"].as_str().unwrap_or_default();
            self.delete::<VolumeGroupSnapshot>(name).await?;
        }
        for snapshot in self.truth.list::<VolumeSnapshot>() {
            let name = snapshot["metadata"]["name"].as_str().unwrap_or_default();
            self.delete::<VolumeSnapshot>(name).await?;
        }
        let left = || self.truth.leftovers();
        match self.wait("everything is gone", || left().is_empty()).await {
            Err(UserError::Waited { .. }) => return Err(UserError::LeftBehind(left())),
            other => other?,
        }
        self.ledger.note("everything is gone");
        let until = Instant::now() + stays_gone();
        while Instant::now() < until {
            sleep(Duration::from_secs(5)).await;
            if !left().is_empty() {
                self.ledger.note(format!("came back: {}", left().join("; ")));
                let settled = self.wait("everything is gone again", || left().is_empty()).await;
                return settled.map_err(|_| UserError::LeftBehind(left()));
            }
        }
        Ok(())
    }
}

pub(crate) fn claim(name: &str) -> Value {
    json!({
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": CLASS,
            "resources": {"requests": {"storage": "1Gi"}},
        },
    })
}

/// How long nothing may come back after everything has gone: more than the pauses after which
/// loops resync by themselves.
fn stays_gone() -> Duration {
    Duration::from_secs(if crate::long() { 200 } else { 65 })
}
