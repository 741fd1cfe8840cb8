//! Users who create pods and claims and delete them, over and over, whatever happens to the programs.

use std::{
    collections::BTreeMap,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, PostParams},
};
use longshore_cluster::config::ClientConfig;
use serde_json::json;
use tokio::{sync::watch, task::JoinSet};

use super::common::PATIENCE;

/// How often the lists are read, for all together.
const LOOK: Duration = Duration::from_millis(100);

/// Writes a file with its checksum, then counts until it is stopped.
pub const WRITE_AND_COUNT: &str = "trap exit TERM; cd /data && head -c 200000 /dev/urandom > blob && \
    sha256sum blob > sum && sync && i=0; while :; do i=$((i+1)); echo $i >> ticks; sleep 0.2; done";
const WRITE: &str = "cd /data && head -c 50000 /dev/urandom > blob && sha256sum blob > sum && sync";
const CHECK: &str = "cd /data && sha256sum -c sum";
const STAY: &str = "cd /data && sha256sum -c sum && trap exit TERM; while :; do sleep 0.2; done";

/// All pods and claims at one moment.
pub struct Seen {
    began: Instant,
    pub pods: BTreeMap<String, Pod>,
    pub claims: BTreeMap<String, PersistentVolumeClaim>,
}

impl Seen {
    fn phase(&self, pod: &str) -> Option<&str> {
        self.pods.get(pod)?.status.as_ref()?.phase.as_deref()
    }
}

/// A client of the API that creates the load. It retries errors: the API may be down.
#[derive(Clone)]
pub struct Load {
    pods: Api<Pod>,
    claims: Api<PersistentVolumeClaim>,
    volumes: Api<PersistentVolume>,
    seen: watch::Receiver<Arc<Seen>>,
    stop: Arc<AtomicBool>,
    rounds: Arc<AtomicUsize>,
}

impl Load {
    pub async fn new(kubeconfig: &Path) -> Self {
        let client: Client = ClientConfig::from_kubeconfig(kubeconfig).client().await.unwrap();
        let pods = Api::default_namespaced(client.clone());
        let claims = Api::default_namespaced(client.clone());
        let first = Seen { began: Instant::now(), pods: BTreeMap::new(), claims: BTreeMap::new() };
        let (sender, seen) = watch::channel(Arc::new(first));
        tokio::spawn(look(pods.clone(), claims.clone(), sender));
        let volumes = Api::all(client);
        Self { pods, claims, volumes, seen, stop: Arc::default(), rounds: Arc::default() }
    }

    /// What is there, asked for after this call.
    pub async fn now(&self) -> Arc<Seen> {
        let (mut seen, asked) = (self.seen.clone(), Instant::now());
        let fresh = seen.wait_for(|seen| seen.began >= asked).await.unwrap();
        fresh.clone()
    }

    /// Waits for something; a fault of the product when it never comes.
    pub async fn wait(&self, what: &str, done: impl Fn(&Seen) -> bool) -> Result<(), String> {
        let began = Instant::now();
        let mut asked = Instant::now();
        let mut seen = self.seen.clone();
        loop {
            let fresh = seen.wait_for(|seen| seen.began >= asked).await.unwrap().clone();
            if done(&fresh) {
                return Ok(());
            }
            if began.elapsed() > patience() {
                let pods = fresh.pods.keys().map(|name| (name, fresh.phase(name)));
                return Err(format!("never happened: {what}; {:?}", pods.collect::<Vec<_>>()));
            }
            asked = fresh.began + Duration::from_nanos(1);
        }
    }

    pub async fn make_claim(&self, name: &str, class: &str) {
        let object = json!({"metadata": {"name": name}, "spec": {"accessModes": ["ReadWriteOnce"],
            "storageClassName": class, "resources": {"requests": {"storage": "8Mi"}}}});
        let claim: PersistentVolumeClaim = serde_json::from_value(object).unwrap();
        insist(&format!("make the claim {name}"), || async {
            done_or(self.claims.create(&PostParams::default(), &claim).await, 409)
        })
        .await;
    }

    pub async fn make_pod(&self, name: &str, claim: &str, script: &str) {
        let object = json!({"metadata": {"name": name}, "spec": {"restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            "containers": [{"name": "main", "image": "host", "command": ["/bin/sh", "-c", script],
                "volumeMounts": [{"name": "data", "mountPath": "/data"}]}],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}]}});
        let pod: Pod = serde_json::from_value(object).unwrap();
        insist(&format!("make the pod {name}"), || async {
            done_or(self.pods.create(&PostParams::default(), &pod).await, 409)
        })
        .await;
    }

    /// Deletes a pod and waits until it is gone.
    pub async fn delete_pod(&self, name: &str, grace: u32) -> Result<(), String> {
        let params = DeleteParams { grace_period_seconds: Some(grace), ..DeleteParams::default() };
        insist(&format!("delete the pod {name}"), || async {
            done_or(self.pods.delete(name, &params).await, 404)
        })
        .await;
        self.wait(&format!("the pod {name} goes"), |seen| !seen.pods.contains_key(name)).await
    }

    pub async fn delete_claim(&self, name: &str) -> Result<(), String> {
        insist(&format!("delete the claim {name}"), || async {
            done_or(self.claims.delete(name, &DeleteParams::default()).await, 404)
        })
        .await;
        self.wait(&format!("the claim {name} goes"), |seen| !seen.claims.contains_key(name)).await
    }

    pub async fn runs(&self, pod: &str) -> Result<(), String> {
        self.wait(&format!("{pod} runs"), |seen| seen.phase(pod) == Some("Running")).await
    }

    /// No volume is left.
    pub async fn volumes_gone(&self) -> Result<(), String> {
        let began = Instant::now();
        while began.elapsed() < patience() {
            let left = self.volumes.list(&ListParams::default()).await;
            if left.is_ok_and(|left| left.items.is_empty()) {
                return Ok(());
            }
            tokio::time::sleep(LOOK).await;
        }
        Err("volumes stay in the API".to_owned())
    }

    /// Lets `count` users work until [`Self::rest`].
    pub fn work(&self, count: usize, seed: u64) -> JoinSet<Result<(), String>> {
        let mut all = JoinSet::new();
        for index in 0..count {
            all.spawn(self.clone().one(index, fastrand::Rng::with_seed(seed + index as u64)));
        }
        all
    }

    /// How many claims have had their whole life.
    pub fn rounds(&self) -> usize {
        self.rounds.load(Ordering::Relaxed)
    }

    /// Everybody finishes what they began.
    pub fn rest(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    async fn one(self, index: usize, mut random: fastrand::Rng) -> Result<(), String> {
        let class = if index.is_multiple_of(3) { "shared" } else { "local" };
        for round in 0.. {
            if self.stop.load(Ordering::Relaxed) {
                return Ok(());
            }
            let name = format!("churn-{index}-{round}");
            self.make_claim(&name, class).await;
            for (turn, script) in [("write", WRITE), ("check", CHECK)] {
                let pod = format!("{name}-{turn}");
                self.make_pod(&pod, &name, script).await;
                let over =
                    |seen: &Seen| ["Succeeded", "Failed"].map(Some).contains(&seen.phase(&pod));
                self.wait(&format!("{pod} ends"), over).await?;
                if self.now().await.phase(&pod) == Some("Failed") {
                    return Err(format!("{pod} failed: its data is not what was written"));
                }
                self.delete_pod(&pod, 1).await?;
            }
            // This one is stopped at any moment of its life, with and without grace.
            let pod = format!("{name}-stay");
            self.make_pod(&pod, &name, STAY).await;
            if random.bool() {
                self.runs(&pod).await?;
            } else {
                tokio::time::sleep(Duration::from_millis(random.u64(0..400))).await;
            }
            self.delete_pod(&pod, random.u32(0..2)).await?;
            self.delete_claim(&name).await?;
            self.rounds.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }
}

/// An agent that is killed all the time gets little done, and the API may be away for a minute.
fn patience() -> Duration {
    PATIENCE * 10
}

async fn look(pods: Api<Pod>, claims: Api<PersistentVolumeClaim>, seen: watch::Sender<Arc<Seen>>) {
    let all = ListParams::default();
    while !seen.is_closed() {
        let began = Instant::now();
        let both = tokio::time::timeout(Duration::from_secs(5), async {
            tokio::try_join!(pods.list(&all), claims.list(&all))
        });
        if let Ok(Ok((pods, claims))) = both.await {
            let name = |name: &Option<String>| name.clone().unwrap_or_default();
            let pods = pods.into_iter().map(|pod| (name(&pod.metadata.name), pod)).collect();
            let claims = claims.into_iter().map(|one| (name(&one.metadata.name), one)).collect();
            seen.send_replace(Arc::new(Seen { began, pods, claims }));
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// An answer that says that it was so already is as good.
fn done_or<T>(answer: kube::Result<T>, fine: u16) -> Result<(), String> {
    match answer {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == fine => Ok(()),
        Err(error) => Err(error.to_string()),
    }
}

/// Asks until the API answers.
async fn insist<F: Future<Output = Result<(), String>>>(what: &str, ask: impl Fn() -> F) {
    let began = Instant::now();
    loop {
        let answer = match tokio::time::timeout(Duration::from_secs(5), ask()).await {
            Ok(Ok(())) => return,
            Ok(Err(error)) => error,
            Err(_) => "no answer".to_owned(),
        };
        assert!(began.elapsed() < patience(), "cannot {what}: {answer}");
        tokio::time::sleep(LOOK).await;
    }
}
