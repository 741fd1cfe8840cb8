//! From a pod's volumes to the volumes behind them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use longshore_cluster::EventType;
use longshore_core::model::kinds::{Claim, Container, Pod, PodVolume, Volume};
use longshore_core::model::{ObjectKey, ObjectRef, keys::finalizers};
use longshore_core::stage::claim::{ClaimView, Refusal, check_mode, volume_of_claim};
use longshore_core::stage::names::{inline_handle, pod_volume_name, unique_volume_name};

use super::{BACKOFF_FIRST, BACKOFF_MAX, Use, VolumeFacts, VolumeManager};

/// A use of a volume together with what is known of it.
struct Found {
    one: Use,
    facts: VolumeFacts,
    attachable: bool,
}

/// What is behind one volume of a pod.
enum Behind {
    /// A driver stages and publishes it.
    Driver(Found),
    /// A directory of this node, used as it is.
    Host(PathBuf),
}

impl VolumeManager {
    /// Looks a pod's volumes up, again and again until it works or nobody wants them any more.
    pub(super) async fn resolve_until_known(self: Arc<Self>, uid: String) {
        let mut delay = BACKOFF_FIRST;
        loop {
            let Some(pod) = self.state().pods.get(&uid).map(|facts| facts.pod.clone()) else {
                return;
            };
            match self.resolve(&pod).await {
                Ok(found) => return self.adopt(&uid, found),
                Err((volumes, cause)) => self.refuse(&uid, &pod, &volumes, &cause),
            }
            tokio::select! {
                () = self.stop.cancelled() => return,
                () = tokio::time::sleep(delay) => {}
            }
            delay = (delay * 2).min(BACKOFF_MAX);
        }
    }

    fn adopt(&self, uid: &str, behind: BTreeMap<String, Behind>) {
        let (mut found, mut host) = (BTreeMap::new(), BTreeMap::new());
        for (name, one) in behind {
            match one {
                Behind::Driver(one) => drop(found.insert(name, one)),
                Behind::Host(path) => drop(host.insert(name, path)),
            }
        }
        let mut state = self.state();
        let Some(facts) = state.pods.get_mut(uid) else { return };
        facts.resolving = false;
        facts.error = None;
        facts.host = host;
        facts.uses =
            Some(found.iter().map(|(name, found)| (name.clone(), found.one.clone())).collect());
        for found in found.into_values() {
            let wanted = state.world.desired.entry(found.one.unique.clone()).or_default();
            wanted.attachable = found.attachable;
            wanted.pods.insert(uid.to_owned());
            state.volumes.insert(found.one.unique, found.facts);
        }
        state.world.unresolved.remove(uid);
        drop(state);
        self.poke();
    }

    fn refuse(&self, uid: &str, pod: &Pod, volumes: &[String], cause: &str) {
        let list = volumes.join(" ");
        let text = format!(
            "unmounted volumes=[{list}], unattached volumes=[], failed to process volumes=[{list}]: {cause}"
        );
        tracing::warn!(pod = %pod.metadata.key(), error = text, "volumes cannot be used");
        if let Some(facts) = self.state().pods.get_mut(uid) {
            facts.error = Some(text.clone());
        }
        self.deps.recorder.event(
            &ObjectRef::of::<Pod>(&pod.metadata),
            EventType::Warning,
            "FailedMount",
            format!("Unable to attach or mount volumes: {text}"),
        );
        self.changes.send_modify(|count| *count += 1);
    }

    /// All volumes of drivers and claims that containers use; on failure the names that failed and
    /// the first cause.
    async fn resolve(&self, pod: &Pod) -> Result<BTreeMap<String, Behind>, (Vec<String>, String)> {
        let (mut found, mut failed, mut cause) = (BTreeMap::new(), Vec::new(), None);
        let usage = Usage::of(pod);
        for volume in &pod.spec.volumes {
            if !usage.mounts.contains(&volume.name) && !usage.devices.contains(&volume.name) {
                continue;
            }
            match self.resolve_one(pod, volume, &usage).await {
                Ok(None) => {}
                Ok(Some(one)) => {
                    found.insert(volume.name.clone(), one);
                }
                Err(error) => {
                    failed.push(volume.name.clone());
                    cause.get_or_insert(error);
                }
            }
        }
        failed.sort();
        cause.map_or(Ok(found), |cause| Err((failed, cause)))
    }

    async fn resolve_one(
        &self,
        pod: &Pod,
        volume: &PodVolume,
        usage: &Usage,
    ) -> Result<Option<Behind>, String> {
        if let Some(claim) = &volume.persistent_volume_claim {
            return self
                .resolve_claim(pod, volume, &claim.claim_name, claim.read_only, None, usage)
                .await
                .map(Some);
        }
        if volume.ephemeral.is_some() {
            let name = format!("{}-{}", pod.metadata.name, volume.name);
            let owner = Some(pod.metadata.uid.as_str());
            return self.resolve_claim(pod, volume, &name, false, owner, usage).await.map(Some);
        }
        Ok(volume.csi.as_ref().map(|inline| {
            let uid = &pod.metadata.uid;
            let unique = pod_volume_name(uid, &volume.name);
            Behind::Driver(Found {
                one: Use { unique, spec_name: volume.name.clone(), read_only: inline.read_only },
                facts: VolumeFacts {
                    driver: inline.driver.clone(),
                    handle: inline_handle(uid, &volume.name),
                    spec_name: volume.name.clone(),
                    volume: None,
                    inline: true,
                },
                attachable: false,
            })
        }))
    }

    async fn resolve_claim(
        &self,
        pod: &Pod,
        pod_volume: &PodVolume,
        claim_name: &str,
        read_only: bool,
        owner: Option<&str>,
        usage: &Usage,
    ) -> Result<Behind, String> {
        let key = ObjectKey::new(&pod.metadata.namespace, claim_name);
        let claim = self.deps.api.get::<Claim>(&key).await.map_err(|error| error.to_string())?;
        let claim =
            claim.ok_or_else(|| format!("persistentvolumeclaim \"{claim_name}\" not found"))?;
        let name = volume_of_claim(claim_name, &claim_view(&claim, owner))
            .map_err(|refusal| refusal.to_string())?;
        let volume = self
            .deps
            .api
            .get::<Volume>(&ObjectKey::cluster(name))
            .await
            .map_err(|error| error.to_string())?;
        let volume = volume.ok_or_else(|| format!("persistentvolume \"{name}\" not found"))?;
        if volume
            .spec
            .claim_ref
            .as_ref()
            .is_none_or(|reference| reference.uid != claim.metadata.uid)
        {
            return Err(Refusal::Stolen(name.to_owned()).to_string());
        }
        let block = volume.volume_mode() == "Block";
        let (mounts, devices) =
            (usage.mounts.contains(&pod_volume.name), usage.devices.contains(&pod_volume.name));
        check_mode(&pod_volume.name, block, mounts, devices)
            .map_err(|refusal| refusal.to_string())?;
        if block {
            return Err("block volumes are not served by this node yet".to_owned());
        }
        if let Some(path) = host_directory(&volume)? {
            return Ok(Behind::Host(path));
        }
        self.found_volume(volume, read_only).map(Behind::Driver)
    }

    fn found_volume(&self, volume: Volume, read_only: bool) -> Result<Found, String> {
        let name = volume.metadata.name.clone();
        let Some(csi) = &volume.spec.csi else {
            return Err(format!(
                "persistentvolume \"{name}\" is neither a CSI nor a hostPath volume; this node mounts no others"
            ));
        };
        let unique = unique_volume_name(&csi.driver, &csi.volume_handle);
        let driver = self.deps.csi_drivers.get(&ObjectKey::cluster(&csi.driver));
        Ok(Found {
            one: Use { unique, spec_name: name.clone(), read_only },
            attachable: driver.is_none_or(|driver| driver.attach_required()),
            facts: VolumeFacts {
                driver: csi.driver.clone(),
                handle: csi.volume_handle.clone(),
                spec_name: name,
                volume: Some(Arc::new(volume)),
                inline: false,
            },
        })
    }
}

/// The directory of a hostPath volume. Nothing is made here: a directory that is missing is a loss
/// that must be seen.
fn host_directory(volume: &Volume) -> Result<Option<PathBuf>, String> {
    let Some(source) = &volume.spec.host_path else { return Ok(None) };
    let path = PathBuf::from(&source.path);
    let kind = source.kind.as_deref().unwrap_or_default();
    match path.is_dir() {
        true if ["", "Directory", "DirectoryOrCreate"].contains(&kind) => Ok(Some(path)),
        true => Err(format!("hostPath type check failed: {} is a directory", path.display())),
        false => Err(format!("hostPath type check failed: {} is not a directory", path.display())),
    }
}

fn claim_view<'a>(claim: &'a Claim, owner: Option<&str>) -> ClaimView<'a> {
    ClaimView {
        deleting: claim.metadata.deleting(),
        protected: claim.metadata.has_finalizer(finalizers::PVC_PROTECTION),
        bound: claim.status.phase == "Bound",
        volume: &claim.spec.volume_name,
        owned_by_pod: owner
            .map(|uid| claim.metadata.owner_references.iter().any(|one| one.uid == uid)),
    }
}

/// Which volumes of a pod its containers use, and how.
struct Usage {
    mounts: BTreeSet<String>,
    devices: BTreeSet<String>,
}

impl Usage {
    fn of(pod: &Pod) -> Self {
        let all = || pod.spec.init_containers.iter().chain(&pod.spec.containers);
        let mounts = |one: &Container| {
            one.volume_mounts.iter().map(|mount| mount.name.clone()).collect::<Vec<_>>()
        };
        let devices = |one: &Container| {
            one.volume_devices.iter().map(|one| one.name.clone()).collect::<Vec<_>>()
        };
        Self {
            mounts: all().flat_map(mounts).collect(),
            devices: all().flat_map(devices).collect(),
        }
    }
}
