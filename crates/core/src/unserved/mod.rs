//! Decides which requests of an object wait for a program that may not run.
//!
//! A request is what an object asks for and does not have. It waits as long as the program that
//! serves it has left no mark on the object: a condition, a status, an error. Whether that program
//! runs is not decided here; [`Server::lock`] names the lease that it would hold.
//!
//! To add a request, add a case to the kind's [`Asks`]. To serve one, register its [`Server`] where
//! the program starts.

mod notice;
#[cfg(test)]
mod tests;

use crate::model::{
    ClaimPhase, NodeName, ReclaimPolicy, VolumePhase,
    keys::{annotations, finalizers},
    kinds::{
        Claim, Event, Meta, Pod, Volume, VolumeAttachment, VolumeGroupSnapshot,
        VolumeGroupSnapshotContent, VolumeSnapshot, VolumeSnapshotContent,
    },
};

pub use notice::{Surroundings, notice};

/// A program that serves requests, with the driver or the name that it serves.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Server {
    Provisioner(String),
    Attacher(String),
    /// The resizer's expansions.
    Resizer(String),
    /// Its other half, which gives volumes another VolumeAttributesClass. Many drivers can do only one.
    Modifier(String),
    Snapshotter(String),
    SnapshotController,
    Scheduler(String),
    /// The program that fills claims from sources of this kind, `kind.group`.
    Populator(String),
    /// The node that a pod names; there may be none of that name.
    Node(NodeName),
    /// No program does this for volumes of this kind.
    None(&'static str),
}

impl Server {
    /// The name of the official program.
    #[must_use]
    pub fn program(&self) -> &str {
        match self {
            Self::Provisioner(_) => "csi-provisioner",
            Self::Attacher(_) => "csi-attacher",
            Self::Resizer(_) | Self::Modifier(_) => "csi-resizer",
            Self::Snapshotter(_) => "csi-snapshotter",
            Self::SnapshotController => "snapshot-controller",
            Self::Scheduler(name) => name,
            Self::Populator(_) | Self::Node(_) | Self::None(_) => "",
        }
    }

    /// The driver that the program stands beside.
    #[must_use]
    pub fn driver(&self) -> Option<&str> {
        match self {
            Self::Provisioner(driver)
            | Self::Attacher(driver)
            | Self::Resizer(driver)
            | Self::Modifier(driver)
            | Self::Snapshotter(driver) => Some(driver),
            Self::SnapshotController
            | Self::Scheduler(_)
            | Self::Populator(_)
            | Self::Node(_)
            | Self::None(_) => None,
        }
    }

    /// The lock that the official program holds while it leads, before it is made fit for a lease.
    #[must_use]
    pub fn lock(&self) -> Option<String> {
        match self {
            Self::Provisioner(driver) => Some(driver.clone()),
            Self::Attacher(driver) => Some(format!("external-attacher-leader-{driver}")),
            Self::Resizer(driver) | Self::Modifier(driver) => {
                Some(format!("external-resizer-{driver}"))
            }
            Self::Snapshotter(driver) => Some(format!("external-snapshotter-leader-{driver}")),
            Self::SnapshotController => Some("snapshot-controller-leader".to_owned()),
            Self::Scheduler(name) => Some(name.clone()),
            Self::Populator(_) | Self::Node(_) | Self::None(_) => None,
        }
    }

    /// Whether an event was written by this program, as its component says. One driver has several
    /// programs, so the driver's name alone shows nothing.
    #[must_use]
    pub fn wrote(&self, event: &Event) -> bool {
        let component = event.source.component.as_str();
        match self {
            // `<driver>_<host>_<uid>`; other provisioners have the name alone.
            Self::Provisioner(driver) => component
                .strip_prefix(driver.as_str())
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('_')),
            Self::Resizer(driver) | Self::Modifier(driver) => {
                component == format!("external-resizer {driver}")
            }
            Self::Snapshotter(driver) => component == format!("csi-snapshotter {driver}"),
            Self::SnapshotController | Self::Scheduler(_) => component == self.program(),
            // Each has a name of its own; the library that they share words the reasons.
            Self::Populator(_) => event.reason.starts_with("Populator"),
            // It writes none.
            Self::Attacher(_) | Self::Node(_) | Self::None(_) => false,
        }
    }
}

/// What an object asks for, in words, and the program that serves it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Request {
    /// The beginning of a sentence, such as "The expansion to 2Gi".
    pub what: String,
    pub by: Server,
}

impl Request {
    fn new(what: impl Into<String>, by: Server) -> Self {
        Self { what: what.into(), by }
    }
}

/// Objects that say more about a request than the one that asks.
#[derive(Debug, Clone, Copy, Default)]
pub struct Related<'a> {
    /// The volume that a claim is bound to.
    pub volume: Option<&'a Volume>,
    /// The content that a snapshot is bound to.
    pub content: Option<&'a VolumeSnapshotContent>,
}

/// A kind whose objects ask for something.
pub trait Asks {
    /// The requests on which no program has left a mark.
    fn requests(&self, related: Related<'_>) -> Vec<Request>;
}

/// Conditions by which a resizer or a node shows that it is at work on a claim.
const RESIZE_MARKS: [&str; 4] =
    ["Resizing", "FileSystemResizePending", "ControllerResizeError", "NodeResizeError"];

impl Asks for Claim {
    fn requests(&self, related: Related<'_>) -> Vec<Request> {
        if self.metadata.deleting() {
            return Vec::new();
        }
        if self.status.phase != ClaimPhase::Bound {
            return provision(self).into_iter().collect();
        }
        let server = resizer(self, related.volume);
        let modifier = server.clone().map(|server| match server {
            Server::Resizer(driver) => Server::Modifier(driver),
            other => other,
        });
        let expansion = expansion(self).zip(server);
        let modification = modification(self).zip(modifier);
        let both = expansion.into_iter().chain(modification);
        both.map(|(what, by)| Request::new(what, by)).collect()
    }
}

/// The binder has asked a provisioner for a volume.
fn provision(claim: &Claim) -> Option<Request> {
    let provisioner = claim.metadata.annotation(annotations::STORAGE_PROVISIONER)?;
    let by = match populated_from(claim) {
        Some(_) if begun_by_populator(claim) => return None,
        Some(kind) => Server::Populator(kind),
        None => Server::Provisioner(provisioner.to_owned()),
    };
    claim.spec.volume_name.is_empty().then(|| Request::new("The volume of this claim", by))
}

/// The kind of the claim's source, if no provisioner fills claims from it.
fn populated_from(claim: &Claim) -> Option<String> {
    let source = claim.spec.data_source.as_ref().or(claim.spec.data_source_ref.as_ref())?;
    let provisioned = matches!(source.kind.as_str(), "VolumeSnapshot" | "PersistentVolumeClaim");
    let group = source.api_group.as_str();
    let dot = if group.is_empty() { "" } else { "." };
    (!provisioned).then(|| format!("{}{dot}{group}", source.kind))
}

/// A populator protects the source first, by a finalizer on the claim.
fn begun_by_populator(claim: &Claim) -> bool {
    claim.metadata.finalizers.iter().any(|one| one.ends_with(finalizers::POPULATOR_SUFFIX))
}

fn expansion(claim: &Claim) -> Option<String> {
    let status = &claim.status;
    let has = status.capacity.get("storage")?;
    let begun = status.allocated_resource_statuses.contains_key("storage")
        || status.conditions.iter().any(|one| RESIZE_MARKS.contains(&one.kind.as_str()));
    let asks = claim.request();
    (asks > *has && !begun).then(|| format!("The expansion from {has} to {asks}"))
}

fn modification(claim: &Claim) -> Option<String> {
    let wanted =
        claim.spec.volume_attributes_class_name.as_deref().filter(|one| !one.is_empty())?;
    let status = &claim.status;
    let has = status.current_volume_attributes_class_name.as_deref() == Some(wanted);
    let begun = status.modify_volume_status.as_ref();
    let begun = begun.is_some_and(|one| one.target_volume_attributes_class_name == wanted);
    (!has && !begun).then(|| format!("The change to VolumeAttributesClass {wanted:?}"))
}

/// The resizer of the volume's driver. FlexVolumes are the nodes', and have none.
fn resizer(claim: &Claim, volume: Option<&Volume>) -> Option<Server> {
    let spec = &volume?.spec;
    if let Some(csi) = &spec.csi {
        return Some(Server::Resizer(csi.driver.to_string()));
    }
    if let Some(named) = claim.metadata.annotation(annotations::STORAGE_RESIZER) {
        return Some(Server::Resizer(named.to_owned()));
    }
    let kinds = [
        (spec.host_path.is_some(), "hostPath"),
        (spec.nfs.is_some(), "nfs"),
        (spec.local.is_some(), "local"),
    ];
    kinds.into_iter().find_map(|(is, kind)| is.then_some(Server::None(kind)))
}

impl Asks for Volume {
    fn requests(&self, _: Related<'_>) -> Vec<Request> {
        let meta = &self.metadata;
        let released = self.status.phase == VolumePhase::Released
            && self.spec.persistent_volume_reclaim_policy == ReclaimPolicy::Delete;
        let held = meta.deleting() && meta.has_finalizer(finalizers::EXTERNAL_PROVISIONER);
        let by = meta.annotation(annotations::PROVISIONED_BY).filter(|_| released || held);
        let by = by.map(|name| Server::Provisioner(name.to_owned()));
        by.map(|by| Request::new("The deletion of this volume", by)).into_iter().collect()
    }
}

impl Asks for VolumeAttachment {
    fn requests(&self, _: Related<'_>) -> Vec<Request> {
        let (spec, status) = (&self.spec, &self.status);
        let node = &spec.node_name;
        let what = match self.metadata.deleting() {
            // Without a finalizer no detach is owed.
            true if self.metadata.finalizers.is_empty() || status.detach_error.is_some() => None,
            true => Some(format!("The detach from node {node}")),
            false if status.attached || status.attach_error.is_some() => None,
            false => Some(format!("The attach to node {node}")),
        };
        let by = || Server::Attacher(spec.attacher.clone());
        what.map(|what| Request::new(what, by())).into_iter().collect()
    }
}

impl Asks for Pod {
    fn requests(&self, _: Related<'_>) -> Vec<Request> {
        let spec = &self.spec;
        let ours = matches!(spec.scheduler_name.as_str(), "" | "default-scheduler");
        let placed = !spec.node_name.is_empty() || self.metadata.deleting() || self.finished();
        let waits = !ours && !placed && spec.scheduling_gates.is_empty();
        let request = if waits {
            let by = Server::Scheduler(spec.scheduler_name.clone());
            Some(Request::new("The placement of this pod", by))
        } else if !spec.node_name.is_empty() && !self.finished() {
            // A node that runs a pod writes when it took it, and deletes it in the end.
            let what = match (self.metadata.deleting(), self.status.start_time) {
                (true, _) => Some("The deletion of this pod"),
                (false, None) => Some("The start of this pod"),
                (false, Some(_)) => None,
            };
            what.map(|what| Request::new(what, Server::Node(spec.node_name.clone())))
        } else {
            None
        };
        request.into_iter().collect()
    }
}

impl Asks for VolumeSnapshot {
    fn requests(&self, related: Related<'_>) -> Vec<Request> {
        let by = || Server::SnapshotController;
        let mut requests = snapshot(&self.metadata, self.status.is_some(), "snapshot", by);
        // The content waits for its driver; whoever asked looks at the snapshot.
        let content = related.content.filter(|_| !self.metadata.deleting());
        requests.extend(content.into_iter().flat_map(|one| one.requests(Related::default())));
        requests
    }
}

impl Asks for VolumeSnapshotContent {
    fn requests(&self, _: Related<'_>) -> Vec<Request> {
        let by = || Server::Snapshotter(self.spec.driver.clone());
        let begun = self.metadata.annotation(annotations::SNAPSHOT_BEING_CREATED).is_some();
        snapshot(&self.metadata, self.status.is_some() || begun, "snapshot", by)
    }
}

impl Asks for VolumeGroupSnapshot {
    fn requests(&self, _: Related<'_>) -> Vec<Request> {
        let by = || Server::SnapshotController;
        snapshot(&self.metadata, self.status.is_some(), "group snapshot", by)
    }
}

impl Asks for VolumeGroupSnapshotContent {
    fn requests(&self, _: Related<'_>) -> Vec<Request> {
        let by = || Server::Snapshotter(self.spec.driver.clone());
        snapshot(&self.metadata, self.status.is_some(), "group snapshot", by)
    }
}

/// A snapshot is taken, or deleted; each by the program that writes its status.
fn snapshot(meta: &Meta, has_status: bool, noun: &str, by: impl Fn() -> Server) -> Vec<Request> {
    let ours = |one: &String| one.contains(finalizers::SNAPSHOT_DOMAIN);
    let what = match meta.deleting() {
        true => meta.finalizers.iter().any(ours).then(|| format!("The deletion of this {noun}")),
        false => (!has_status).then(|| format!("This {noun}")),
    };
    what.map(|what| Request::new(what, by())).into_iter().collect()
}
