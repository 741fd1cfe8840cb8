//! Pods that leave, and the volumes that do not let them.
//!
//! A kubelet only logs a failed unmount. Here the pod gets an event, because a pod that stays
//! `Terminating` without a word is the last thing its user understands: which driver, which path, who
//! holds it, and what would help.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use longshore_cluster::EventType;
use longshore_core::model::ObjectRef;
use longshore_core::model::kinds::Pod;
use longshore_core::names::UniqueName;
use longshore_core::stage::paths::{publish_target, staging_target};
use longshore_core::stage::world::Action;
use longshore_files::holders::{self, Holder};

use super::{OpCause, OpError, Plugin, State, VolumeFacts, VolumeManager};

/// The reason of the event about a volume that cannot be unmounted or unstaged.
const FAILED_UNMOUNT: &str = "FailedUnmount";

/// A pod that no longer wants its volumes.
pub(super) struct Leaving {
    pod: Arc<Pod>,
    volumes: BTreeSet<UniqueName>,
}

/// A volume that is still mounted or staged, and whose it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LeftVolume {
    pub name: String,
    pub driver: String,
    /// Pods that used it last, as `namespace/name`.
    pub pods: Vec<String>,
    pub holders: Vec<Holder>,
    /// An attempt to unmount it has failed.
    pub stuck: bool,
}

impl std::fmt::Display for LeftVolume {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "volume {}", self.name)?;
        if !self.pods.is_empty() {
            write!(f, " of pod {}", self.pods.join(", "))?;
        }
        if !self.driver.is_empty() {
            write!(f, " (driver {})", self.driver)?;
        }
        match holders::name(&self.holders) {
            Some(names) => write!(f, ", held by {names}"),
            None => Ok(()),
        }
    }
}

impl VolumeManager {
    /// Removes a pod from the desired state and returns its volumes. Until they are unmounted, the
    /// pod hears of failures.
    pub(crate) fn let_go(&self, pod: &Arc<Pod>) -> BTreeSet<UniqueName> {
        let uid = &pod.metadata.uid;
        let volumes = self.volumes_of(uid);
        if !volumes.is_empty() {
            let leaving = Leaving { pod: pod.clone(), volumes: volumes.clone() };
            self.state().leaving.insert(uid.clone(), leaving);
        }
        self.remove_pod(uid);
        volumes
    }

    /// Writes a failed unmount or unstage to the log and to the pods that wait for it.
    pub(super) async fn report_teardown(&self, action: &Action, failure: &OpError) {
        let (Action::Unpublish { volume, .. } | Action::Unstage { volume }) = action else {
            return;
        };
        let (facts, pods, paths) = {
            let mut state = self.state();
            state.stuck.insert(volume.clone());
            let of_action =
                |one: &&Leaving| action.pod().is_none_or(|uid| one.pod.metadata.uid == *uid);
            let pods: Vec<Arc<Pod>> =
                state.leaving_with(volume).filter(of_action).map(|one| one.pod.clone()).collect();
            (state.facts(volume, action.pod()).cloned(), pods, self.places_of(&state, volume))
        };
        let (held, path) = search(paths).await;
        let text = teardown_text(volume, facts.as_ref(), failure, &held, path);
        tracing::warn!(error = text, "volume operation failed; will be tried again");
        for pod in pods {
            let about = ObjectRef::of::<Pod>(&pod.metadata);
            self.deps.recorder.event(&about, EventType::Warning, FAILED_UNMOUNT, &text);
        }
    }

    /// Where a volume is mounted for pods, and then where it is staged.
    fn places_of(&self, state: &State, volume: &UniqueName) -> Vec<PathBuf> {
        let Some(facts) = state.volumes.get(volume) else { return Vec::new() };
        let paths = &self.deps.paths;
        let pods = state.world.actual.get(volume).map(|known| known.pods.keys());
        let pods = pods.into_iter().flatten();
        let publish = pods.map(|uid| {
            let name = &state.facts(volume, Some(uid)).unwrap_or(facts).spec_name;
            match facts.plugin {
                Plugin::Csi if facts.block => paths.block(name).publish.join(uid.as_str()),
                Plugin::Csi => publish_target(&paths.publish(uid, name)),
                Plugin::Local | Plugin::Nfs => paths.own_volume(uid, facts.plugin.dir(), name),
            }
        });
        let staging = match facts.plugin {
            Plugin::Csi if facts.block => Some(paths.block(&facts.spec_name).staging),
            Plugin::Csi => paths.staging(&facts.driver, &facts.handle).ok(),
            Plugin::Local | Plugin::Nfs => Some(paths.local_mount(&facts.spec_name)),
        };
        let mount = |dir: PathBuf| match facts.plugin == Plugin::Csi && !facts.block {
            true => staging_target(&dir),
            false => dir,
        };
        publish.chain(staging.map(mount)).collect()
    }

    /// Volumes that are, or may be, mounted or staged, with what holds them.
    pub(crate) async fn left_volumes(&self) -> Vec<LeftVolume> {
        let found: Vec<(LeftVolume, Vec<PathBuf>)> = {
            let state = self.state();
            let all = state.world.actual.keys();
            all.map(|volume| (state.left(volume), self.places_of(&state, volume))).collect()
        };
        let mut left = Vec::new();
        for (mut one, paths) in found {
            if one.stuck {
                one.holders = search(paths).await.0;
            }
            left.push(one);
        }
        left
    }
}

impl State {
    fn leaving_with<'a>(&'a self, volume: &'a UniqueName) -> impl Iterator<Item = &'a Leaving> {
        self.leaving.values().filter(move |one| one.volumes.contains(volume))
    }

    fn left(&self, volume: &UniqueName) -> LeftVolume {
        let facts = self.volumes.get(volume);
        let leaving = self.leaving_with(volume).map(|one| &one.pod);
        let mounted = self.world.actual.get(volume).map(|known| known.pods.keys());
        let known = mounted.into_iter().flatten().filter_map(|uid| self.pods.get(uid));
        let pods = leaving.chain(known.map(|facts| &facts.pod));
        let pods: BTreeSet<String> = pods.map(|pod| pod.metadata.key().to_string()).collect();
        LeftVolume {
            name: facts.map_or(volume.to_string(), |facts| facts.spec_name.clone()),
            driver: facts.map_or(String::new(), |facts| facts.driver.to_string()),
            pods: pods.into_iter().collect(),
            holders: Vec::new(),
            stuck: self.stuck.contains(volume),
        }
    }
}

/// Holders of the first place that has any, and that place; else the first place.
async fn search(places: Vec<PathBuf>) -> (Vec<Holder>, Option<PathBuf>) {
    let found = tokio::task::spawn_blocking(move || {
        let held = places.iter().map(|place| (holders::of_mount(place), Some(place.clone())));
        let held = held.into_iter().find(|(holders, _)| !holders.is_empty());
        held.unwrap_or_else(|| (Vec::new(), places.into_iter().next()))
    });
    found.await.unwrap_or_default()
}

fn teardown_text(
    volume: &UniqueName,
    facts: Option<&VolumeFacts>,
    failure: &OpError,
    held: &[Holder],
    path: Option<PathBuf>,
) -> String {
    let name = facts.map_or(volume.as_str(), |facts| facts.spec_name.as_str());
    let driver = facts.map(|facts| facts.driver.as_str()).filter(|name| !name.is_empty());
    let driver = driver.map(|name| format!(" of driver {name}")).unwrap_or_default();
    let at = path.map(|path| format!(" at {}", path.display())).unwrap_or_default();
    let verb = if facts.is_some_and(|facts| facts.block) { "UnmapVolume" } else { "UnmountVolume" };
    let head =
        format!("{verb}.{} failed for volume \"{name}\"{driver}{at} : {failure}", failure.step);
    match (&*failure.cause, holders::name(held)) {
        (_, Some(names)) => format!(
            "{head}. It is held by {names}: end that, or unmount it there; it is tried again by itself"
        ),
        (OpCause::NotRegistered(_), None) => {
            format!("{head}. Start the driver again; then it is tried again at once")
        }
        (OpCause::Call(_), None) => {
            format!("{head}. The driver's log says more; it is tried again by itself")
        }
        (_, None) => format!("{head}. It is tried again by itself"),
    }
}
