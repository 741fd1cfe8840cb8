//! From a pod's volumes to the volumes behind them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use longshore_cluster::{ApiError, Outcome};
use longshore_core::model::kinds::{
    Claim, Container, ObjectRef as ObjectReference, Pod, PodVolume, Volume, VolumeSpec,
};
use longshore_core::model::{AccessMode, ClaimPhase, ObjectKey, Uid, VolumeMode, keys::finalizers};
use longshore_core::names::{UniqueName, inline_handle};
use longshore_core::stage::claim::{ClaimView, Refusal, check_mode, volume_of_claim};
use longshore_core::stage::paths::publish_target;
use longshore_core::stage::selinux::{self, admit, label_of, mount_label};

use super::{Mounted, Plugin, PodFacts, Use, VolumeFacts, VolumeManager};

/// How long a claim may take to be bound before its pod gets a warning. Only a claim that is stuck
/// takes that long.
pub(super) const BIND_GRACE: Duration = Duration::from_secs(10);
/// How often a claim that is being bound is read where its changes cannot be watched.
const BIND_POLL: Duration = Duration::from_secs(1);

/// A use of a volume together with what is known of it.
struct Found {
    one: Use,
    facts: VolumeFacts,
    attachable: bool,
    /// How many bytes the volume has; 0 when that does not matter.
    size: i64,
}

/// What is behind one volume of a pod.
enum Resolved {
    /// A driver stages and publishes it.
    Driver(Box<Found>),
    /// A directory of this node, used as it is.
    Host(PathBuf),
}

impl VolumeManager {
    /// Looks up the volumes of a pod that are not known yet.
    pub(super) async fn resolve_pod(&self, uid: &Uid) -> Outcome {
        let waiting = self
            .state()
            .pods
            .get(uid)
            .filter(|facts| facts.uses.is_none())
            .map(|facts| (facts.pod.clone(), facts.since));
        let Some((pod, since)) = waiting else { return self.tell_unattached(uid) };
        match self.resolve(&pod).await {
            Ok(found) => {
                self.adopt(uid, found);
                self.tell_unattached(uid)
            }
            // Only a claim that stays so is worth an event.
            Err(failed) if failed.cause.passes() && since.elapsed() < BIND_GRACE => {
                self.set_error(uid, failed.to_string());
                Outcome::After(BIND_POLL)
            }
            Err(failed) => {
                self.refuse(uid, &pod, &failed.to_string());
                Outcome::retry(failed)
            }
        }
    }

    /// Pods that use a claim and whose volumes are not known yet.
    pub(super) fn pods_waiting_for(&self, claim: &Claim) -> Vec<Uid> {
        let Claim { metadata, .. } = claim;
        let waits = |facts: &PodFacts| {
            facts.uses.is_none()
                && facts.pod.metadata.namespace == metadata.namespace
                && facts.pod.claim_names().any(|(name, _)| name == metadata.name)
        };
        let state = self.state();
        state.pods.iter().filter(|(_, facts)| waits(facts)).map(|(uid, _)| uid.clone()).collect()
    }

    fn adopt(&self, uid: &Uid, behind: BTreeMap<String, Resolved>) {
        let (mut found, mut host) = (BTreeMap::new(), BTreeMap::new());
        for (name, one) in behind {
            match one {
                Resolved::Driver(one) => drop(found.insert(name, *one)),
                Resolved::Host(path) => drop(host.insert(name, path)),
            }
        }
        let mut state = self.state();
        let Some(facts) = state.pods.get_mut(uid) else { return };
        share_paths(&mut found);
        facts.error = None;
        facts.host = host;
        facts.uses =
            Some(found.iter().map(|(name, found)| (name.clone(), found.one.clone())).collect());
        // Backwards: of two volumes of the pod that are one, the first counts.
        for found in found.into_values().rev() {
            let wanted = state.world.desired.entry(found.one.unique.clone()).or_default();
            wanted.attachable = found.attachable;
            wanted.size = wanted.size.max(found.size);
            wanted.label.clone_from(&found.one.label);
            wanted.pods.insert(uid.to_owned());
            let of_pods = state.mounts.entry(found.one.unique.clone()).or_default();
            of_pods.insert(uid.to_owned(), found.facts.clone());
            // What is staged keeps the name under which it was.
            let device = state.world.actual.get(&found.one.unique).map(|known| known.device);
            let staged = device.is_some_and(|device| device != Mounted::No);
            match state.volumes.get_mut(&found.one.unique) {
                Some(known) if staged && !known.spec_name.is_empty() => {
                    known.volume = found.facts.volume;
                }
                _ => drop(state.volumes.insert(found.one.unique, found.facts)),
            }
        }
        state.world.unresolved.remove(uid);
        drop(state);
        self.notify();
    }

    fn refuse(&self, uid: &Uid, pod: &Pod, text: &str) {
        let message = format!("Unable to attach or mount volumes: {text}");
        self.deps.recorder.warning(pod, "FailedMount", message);
        self.set_error(uid, text.to_owned());
    }

    fn set_error(&self, uid: &Uid, text: String) {
        if let Some(facts) = self.state().pods.get_mut(uid) {
            facts.error = Some(text);
        }
        self.changes.send_modify(|count| *count += 1);
    }

    /// All volumes of drivers and claims that containers use; on failure the names that failed and
    /// the first cause, one that lasts before one that passes.
    async fn resolve(&self, pod: &Pod) -> Result<BTreeMap<String, Resolved>, Unresolved> {
        let (mut found, mut failed) = (BTreeMap::new(), Vec::new());
        let mut cause: Option<Cause> = None;
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
                    cause = match cause {
                        Some(first) if !first.passes() || error.passes() => Some(first),
                        _ => Some(error),
                    };
                }
            }
        }
        failed.sort();
        cause.map_or(Ok(found), |cause| Err(Unresolved { volumes: failed, cause }))
    }

    async fn resolve_one(
        &self,
        pod: &Pod,
        volume: &PodVolume,
        usage: &Usage,
    ) -> Result<Option<Resolved>, Cause> {
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
            let unique = UniqueName::of_pod(uid, &volume.name);
            Resolved::Driver(Box::new(Found {
                one: Use {
                    unique,
                    read_only: inline.read_only,
                    path: publish_target(&self.deps.paths.publish(uid, &volume.name)),
                    claim: None,
                    claim_size: 0,
                    label: String::new(),
                },
                facts: VolumeFacts {
                    inline: true,
                    ..VolumeFacts::csi(
                        &inline.driver,
                        &inline_handle(uid, &volume.name),
                        &volume.name,
                    )
                },
                attachable: false,
                size: 0,
            }))
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
    ) -> Result<Resolved, Cause> {
        let (claim, volume) = self.volume_behind(pod, claim_name, owner).await?;
        let block = volume.volume_mode() == &VolumeMode::Block;
        let (mounts, devices) =
            (usage.mounts.contains(&pod_volume.name), usage.devices.contains(&pod_volume.name));
        check_mode(&pod_volume.name, block, mounts, devices)?;
        let there = if block { local_device(&volume) } else { host_directory(&volume) };
        if let Some(path) = there? {
            return Ok(Resolved::Host(path));
        }
        let mut found = self.found_volume(&pod.metadata.uid, volume, read_only)?;
        found.one.claim = Some(claim.metadata.key());
        found.one.claim_size = claim.status.capacity.get("storage").map_or(0, |size| size.bytes());
        found.one.label = self.label(pod, &pod_volume.name, &found)?;
        Ok(Resolved::Driver(Box::new(found)))
    }

    /// The SELinux label that a volume is mounted with for a pod; empty for none.
    fn label(&self, pod: &Pod, volume: &str, found: &Found) -> Result<String, Cause> {
        if !self.deps.selinux || found.facts.plugin != Plugin::Csi {
            return Ok(String::new());
        }
        let label = label_of(pod, volume)?;
        let driver = self.deps.csi_drivers.get(&ObjectKey::cluster(&found.facts.driver));
        let mounts = driver.is_some_and(|driver| driver.spec.se_linux_mount == Some(true));
        let label = mount_label(pod, &label, mounts);
        if !mounts {
            return Ok(label);
        }
        let state = self.state();
        let wanted = state.world.desired.get(&found.one.unique);
        let others = wanted.filter(|wanted| wanted.pods.iter().any(|uid| *uid != pod.metadata.uid));
        let first = others.map(|wanted| wanted.label.as_str());
        admit(&found.facts.spec_name, first, &label).inspect_err(|_| {
            let volume = found.facts.volume.as_ref();
            let mode = volume.and_then(|volume| volume.spec.access_modes.first());
            self.deps
                .metrics
                .label_conflict(mode.map_or("", AccessMode::as_str), &found.facts.driver);
        })?;
        Ok(label)
    }

    /// The volume that a claim is bound to.
    async fn volume_behind(
        &self,
        pod: &Pod,
        claim_name: &str,
        owner: Option<&str>,
    ) -> Result<(Claim, Volume), Cause> {
        let key = ObjectKey::new(&pod.metadata.namespace, claim_name);
        let claim = self.deps.api.get::<Claim>(&key).await?;
        let claim = claim.ok_or_else(|| Cause::NoClaim {
            name: claim_name.to_owned(),
            ephemeral: owner.is_some(),
        })?;
        let name = volume_of_claim(claim_name, &claim_view(&claim, owner))?;
        let volume = self.deps.api.get::<Volume>(&ObjectKey::cluster(name)).await?;
        let volume = volume.ok_or_else(|| Cause::NoVolume(name.to_owned()))?;
        let ours = |reference: &ObjectReference| reference.uid == claim.metadata.uid;
        if volume.spec.claim_ref.as_ref().is_some_and(ours) {
            return Ok((claim, volume));
        }
        Err(Refusal::Stolen(name.to_owned()).into())
    }

    fn found_volume(&self, uid: &Uid, volume: Volume, read_only: bool) -> Result<Found, Cause> {
        let name = volume.metadata.name.clone();
        let block = volume.volume_mode() == &VolumeMode::Block;
        let (plugin, driver, handle) = match &volume.spec {
            VolumeSpec { csi: Some(csi), .. } => {
                (Plugin::Csi, csi.driver.clone(), csi.volume_handle.clone())
            }
            VolumeSpec { local: Some(_), .. } => {
                (Plugin::Local, Default::default(), Default::default())
            }
            VolumeSpec { nfs: Some(_), .. } => {
                (Plugin::Nfs, Default::default(), Default::default())
            }
            _ => {
                return Err(Cause::Unusable(format!(
                    "persistentvolume \"{name}\" is neither a CSI, local, hostPath nor NFS volume; \
                     this node mounts no others"
                )));
            }
        };
        let (unique, path, attachable) = if plugin == Plugin::Csi {
            let object = self.deps.csi_drivers.get(&ObjectKey::cluster(&driver));
            let unique = UniqueName::new(&driver, &handle);
            let path = match block {
                true => self.deps.paths.block(&name).publish.join(uid.as_str()),
                false => publish_target(&self.deps.paths.publish(uid, &name)),
            };
            (unique, path, object.is_none_or(|object| object.attach_required()))
        } else {
            let path = self.deps.paths.own_volume(uid, plugin.dir(), &name);
            (plugin.unique_name(uid, &name), path, false)
        };
        let size = if read_only { 0 } else { volume.capacity().bytes() };
        let volume = Some(Arc::new(volume));
        let facts =
            VolumeFacts { plugin, driver, handle, spec_name: name, volume, inline: false, block };
        let one = Use { unique, read_only, path, claim: None, claim_size: 0, label: String::new() };
        Ok(Found { one, facts, attachable, size })
    }
}

/// Two volumes of a pod may be one with one handle. It is mounted once, and both are found there.
fn share_paths(found: &mut BTreeMap<String, Found>) {
    let mut paths: BTreeMap<UniqueName, PathBuf> = BTreeMap::new();
    for found in found.values_mut() {
        let first = paths.entry(found.one.unique.clone());
        found.one.path.clone_from(first.or_insert_with(|| found.one.path.clone()));
    }
}

/// Why a volume cannot be looked up.
#[derive(Debug, thiserror::Error)]
enum Cause {
    #[error("persistentvolumeclaim \"{name}\" not found")]
    NoClaim { name: String, ephemeral: bool },
    #[error("persistentvolume \"{0}\" not found")]
    NoVolume(String),
    #[error(transparent)]
    Claim(#[from] Refusal),
    #[error(transparent)]
    Label(#[from] selinux::Refusal),
    #[error(transparent)]
    Api(#[from] ApiError),
    /// A kind of volume, or a path, that this node cannot mount.
    #[error("{0}")]
    Unusable(String),
}

impl Cause {
    /// Whether it is expected to pass by itself soon: a claim that is just being made or bound. The
    /// claim of an ephemeral volume is made after its pod.
    fn passes(&self) -> bool {
        matches!(self, Self::NoClaim { ephemeral: true, .. } | Self::Claim(Refusal::NotBound))
    }
}

/// Volumes of a pod that cannot be looked up, and why.
#[derive(Debug, thiserror::Error)]
#[error(
    "unmounted volumes=[{0}], unattached volumes=[], failed to process volumes=[{0}]: {cause}",
    volumes.join(" ")
)]
struct Unresolved {
    volumes: Vec<String>,
    cause: Cause,
}

/// The device of a local volume that is used as one; devices of drivers come later.
fn local_device(volume: &Volume) -> Result<Option<PathBuf>, Cause> {
    use std::os::unix::fs::FileTypeExt;
    let name = &volume.metadata.name;
    let VolumeSpec { csi, local, .. } = &volume.spec;
    let path = match (csi, local) {
        (Some(_), _) => return Ok(None),
        (None, Some(local)) => PathBuf::from(&local.path),
        (None, None) => {
            let text = format!("persistentvolume \"{name}\" cannot be used as a device");
            return Err(Cause::Unusable(text));
        }
    };
    let device = std::fs::metadata(&path).is_ok_and(|data| data.file_type().is_block_device());
    if device {
        return Ok(Some(path));
    }
    Err(Cause::Unusable(format!("{} is not a block device", path.display())))
}

/// The directory of a hostPath volume. Nothing is made here: a directory that is missing is a loss
/// that must be seen.
fn host_directory(volume: &Volume) -> Result<Option<PathBuf>, Cause> {
    let Some(source) = &volume.spec.host_path else { return Ok(None) };
    let path = PathBuf::from(&source.path);
    let kind = source.kind.as_deref().unwrap_or_default();
    let found = match path.is_dir() {
        true if ["", "Directory", "DirectoryOrCreate"].contains(&kind) => return Ok(Some(path)),
        true => "is a directory",
        false => "is not a directory",
    };
    let text = format!("hostPath type check failed: {} {found}", path.display());
    Err(Cause::Unusable(text))
}

fn claim_view<'a>(claim: &'a Claim, owner: Option<&str>) -> ClaimView<'a> {
    ClaimView {
        deleting: claim.metadata.deleting(),
        protected: claim.metadata.has_finalizer(finalizers::PVC_PROTECTION),
        bound: claim.status.phase == ClaimPhase::Bound,
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
