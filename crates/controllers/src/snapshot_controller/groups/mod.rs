//! Group snapshots: the loop, and what single snapshots ask about groups.

mod act;
mod create;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use longshore_cluster::{
    Cache, Change, Context, Loop, Outcome, Reconciler, Sources, Subject, WorkQueue,
};
use longshore_core::{
    model::{
        ClaimPhase, ObjectKey,
        kinds::{
            Claim, HasMeta as _, Volume, VolumeGroupSnapshot, VolumeGroupSnapshotClass,
            VolumeGroupSnapshotContent, VolumeSnapshot, VolumeSnapshotContent,
        },
    },
    snapshot::{
        bind::{Class, Group},
        group::{
            bind::{Step, View, decide},
            content_name, member_names,
        },
        group_owner, restored_from,
    },
};
use tokio_util::sync::CancellationToken;

use super::{
    BY_GROUP, BY_GROUP_NAME, BY_SNAPSHOT, Shared,
    contents::Contents,
    snapshots::{Flow, STEPS, pass_outcome},
};

/// Group contents by the driver's id of the group snapshot.
const BY_HANDLE: &str = "group-contents-by-handle";
/// Group snapshots that are not cut yet and have a selector, by namespace.
const UNCUT: &str = "groups-not-cut";
/// Volumes by driver and handle.
const BY_VOLUME: &str = "volumes-by-handle";

/// What is known of the group kinds.
#[derive(Clone, Default)]
pub(super) enum Kinds {
    /// They may be defined.
    #[default]
    Unknown,
    /// They are not defined, or nobody wants them.
    Absent,
    Known(Arc<GroupCaches>),
}

/// Caches of the group kinds.
pub(super) struct GroupCaches {
    groups: Cache<VolumeGroupSnapshot>,
    contents: Cache<VolumeGroupSnapshotContent>,
    classes: Cache<VolumeGroupSnapshotClass>,
    volumes: Cache<Volume>,
}

impl GroupCaches {
    fn new(context: &Context) -> Self {
        let contents: Cache<VolumeGroupSnapshotContent> = context.cache();
        contents.index(BY_HANDLE, |content: &VolumeGroupSnapshotContent| {
            let status = content.status.iter();
            status.filter_map(|status| status.volume_group_snapshot_handle.clone()).collect()
        });
        let volumes: Cache<Volume> = context.cache();
        volumes.index(BY_VOLUME, |volume: &Volume| {
            let csi = volume.spec.csi.iter();
            csi.map(|csi| format!("{}^{}", csi.driver, csi.volume_handle)).collect()
        });
        let groups: Cache<VolumeGroupSnapshot> = context.cache();
        groups.index(UNCUT, |group: &VolumeGroupSnapshot| {
            let waits = is_uncut(group) && group.spec.source.selector.is_some();
            waits.then(|| group.metadata.namespace.clone()).into_iter().collect()
        });
        Self { groups, contents, classes: context.cache(), volumes }
    }

    async fn synced(&self) {
        tokio::join!(
            self.groups.synced(),
            self.contents.synced(),
            self.classes.synced(),
            self.volumes.synced(),
        );
    }

    /// The volume of a handle.
    fn volume_of(&self, driver: &str, handle: &str) -> Option<Arc<Volume>> {
        self.volumes.by_index(BY_VOLUME, &format!("{driver}^{handle}")).into_iter().next()
    }
}

impl Shared {
    /// The group snapshot of a single one: the one that its content belongs to, or that its status names
    /// when it goes.
    pub(super) fn group_of(
        &self,
        snapshot: &VolumeSnapshot,
        content: Option<&VolumeSnapshotContent>,
    ) -> GroupName {
        let status = snapshot.status.as_ref();
        let named = status.and_then(|status| status.volume_group_snapshot_name.as_deref());
        let said = content.and_then(|content| content.status.as_ref());
        let handle = said.and_then(|status| status.volume_group_snapshot_handle.as_deref());
        if named.is_none() && handle.is_none() {
            return GroupName::None;
        }
        let kinds = match &*self.group_kinds.read() {
            Kinds::Unknown => return GroupName::Unknown,
            Kinds::Absent => return GroupName::Missing,
            Kinds::Known(kinds) => kinds.clone(),
        };
        let namespace = &snapshot.metadata.namespace;
        let found = match (snapshot.metadata.deleting(), named, handle) {
            (true, Some(name), _) => {
                // One that was made anew under the name of the owner is another.
                let owner = group_owner(&snapshot.metadata);
                let owns = |group: &Arc<VolumeGroupSnapshot>| {
                    owner.is_none_or(|owner| owner.uid == group.metadata.uid)
                };
                let group = kinds.groups.get(&ObjectKey::new(namespace, name)).filter(owns);
                if group.as_ref().is_some_and(|group| group.metadata.deleting()) {
                    return GroupName::Going;
                }
                group.map(|_| name.to_owned())
            }
            (true, None, _) => None,
            (false, _, handle) => {
                let handle = handle.unwrap_or_default();
                let contents = kinds.contents.by_index(BY_HANDLE, handle);
                contents.first().map(|one| one.spec.volume_group_snapshot_ref.name.clone())
            }
        };
        found.map_or(GroupName::Missing, GroupName::Known)
    }

    /// The group snapshot that the status of a snapshot names, unless it is going.
    pub(super) fn parent_of(&self, snapshot: &VolumeSnapshot) -> Option<Arc<VolumeGroupSnapshot>> {
        let name = snapshot.status.as_ref()?.volume_group_snapshot_name.as_deref()?;
        let Kinds::Known(kinds) = self.group_kinds.read().clone() else { return None };
        let group = kinds.groups.get(&ObjectKey::new(&snapshot.metadata.namespace, name));
        group.filter(|group| !group.metadata.deleting())
    }
}

fn is_uncut(group: &VolumeGroupSnapshot) -> bool {
    group.status.as_ref().is_none_or(|status| status.creation_time.is_none())
}

/// The owned form of [`Group`].
pub(super) enum GroupName {
    None,
    Known(String),
    Missing,
    Going,
    Unknown,
}

impl GroupName {
    pub(super) fn view(&self) -> Group<'_> {
        match self {
            Self::None => Group::None,
            Self::Known(name) => Group::Known(name),
            Self::Missing => Group::Missing,
            Self::Going => Group::Going,
            Self::Unknown => Group::Unknown,
        }
    }
}

/// Serves group snapshots while their kinds are defined.
pub(super) async fn run(
    shared: &Arc<Shared>,
    snapshots: &WorkQueue<ObjectKey>,
    shutdown: &CancellationToken,
) {
    if !shared.config.groups {
        *shared.group_kinds.write() = Kinds::Absent;
        return;
    }
    let absent = || *shared.group_kinds.write() = Kinds::Absent;
    let work = |stop: CancellationToken| async move {
        let kinds = Arc::new(GroupCaches::new(&shared.context));
        if stop.run_until_cancelled(kinds.synced()).await.is_none() {
            return;
        }
        *shared.group_kinds.write() = Kinds::Known(kinds.clone());
        let groups = Groups::new(shared, &kinds, snapshots);
        let name = "snapshot-controller-group-content";
        let contents = Contents::new(shared, &kinds.contents, name);
        tokio::join!(groups.run(&stop), contents.run("group-content", &stop));
        *shared.group_kinds.write() = Kinds::Unknown;
    };
    crate::group_kinds::while_defined(&shared.api, shutdown, absent, work).await;
}

/// The loop over group snapshots.
struct Groups {
    shared: Arc<Shared>,
    kinds: Arc<GroupCaches>,
    queue: WorkQueue<ObjectKey>,
    /// The loop over single snapshots, which waits for what happens here.
    snapshots: WorkQueue<ObjectKey>,
}

impl Groups {
    fn new(
        shared: &Arc<Shared>,
        kinds: &Arc<GroupCaches>,
        snapshots: &WorkQueue<ObjectKey>,
    ) -> Self {
        let options = shared.queue_options();
        let queue = shared.context.queue("snapshot-controller-group-snapshot", options);
        Self { shared: shared.clone(), kinds: kinds.clone(), queue, snapshots: snapshots.clone() }
    }

    async fn run(self, shutdown: &CancellationToken) {
        let (queue, shared) = (self.queue.clone(), self.shared.clone());
        let groups = Loop::new("group-snapshot", Arc::new(self), queue);
        groups.workers(shared.workers()).resync(shared.config.resync_period).run(shutdown).await;
    }

    fn members(&self, group: &VolumeGroupSnapshot) -> Vec<Arc<VolumeSnapshot>> {
        self.shared.snapshots.by_index(BY_GROUP, &group.metadata.uid)
    }

    fn changed(&self, change: &Change<VolumeGroupSnapshot>) -> Option<ObjectKey> {
        match change {
            Change::Applied { old, new } => {
                if old.is_none() {
                    // Members that were there before it, and are not owned by it yet.
                    let named =
                        self.shared.snapshots.by_index(BY_GROUP_NAME, &new.key().to_string());
                    named.iter().for_each(|member| self.snapshots.add(member.key()));
                }
                Some(new.key())
            }
            Change::Deleted { old } => {
                self.shared.metrics.deleted(&**old);
                self.members(old).iter().for_each(|member| self.snapshots.add(member.key()));
                None
            }
        }
    }

    /// Members wait for the group's handle.
    fn content_changed(&self, content: &VolumeGroupSnapshotContent) -> ObjectKey {
        let reference = &content.spec.volume_group_snapshot_ref;
        let key = ObjectKey::new(&reference.namespace, &reference.name);
        if let Some(group) = self.kinds.groups.get(&key) {
            let waiting = self.members(&group).into_iter().filter(|member| !member.ready());
            waiting.for_each(|member| self.snapshots.add(member.key()));
        }
        key
    }

    fn of_member(snapshot: &VolumeSnapshot) -> Option<ObjectKey> {
        let owner = group_owner(&snapshot.metadata)?;
        Some(ObjectKey::new(&snapshot.metadata.namespace, &owner.name))
    }

    /// A claim that was bound lets a group snapshot begin, and one that it was restored from go.
    fn of_claim(&self, claim: &Claim) -> Vec<ObjectKey> {
        let restored = restored_from(claim);
        let member = restored.and_then(|key| self.shared.snapshots.get(&key));
        let owner = member.and_then(|member| Self::of_member(&member));
        let waits = |group: &VolumeGroupSnapshot| {
            let selector = group.spec.source.selector.as_ref();
            selector.is_some_and(|selector| selector.matches(&claim.metadata.labels))
        };
        let groups = self.kinds.groups.by_index(UNCUT, &claim.metadata.namespace);
        let waiting = groups.iter().filter(|group| waits(group)).map(|group| group.key());
        waiting.chain(owner).collect()
    }

    fn of_class(&self, class: &VolumeGroupSnapshotClass) -> Vec<ObjectKey> {
        let waits = |group: &VolumeGroupSnapshot| {
            let named = group.spec.volume_group_snapshot_class_name.as_ref();
            is_uncut(group) && named.is_none_or(|named| *named == class.metadata.name)
        };
        let groups = self.kinds.groups.list();
        groups.iter().filter(|group| waits(group)).map(|group| group.key()).collect()
    }

    /// The driver of the group snapshot, by its content or its class.
    fn driver_of(&self, group: &VolumeGroupSnapshot, content: &str) -> Option<String> {
        if let Some(content) = self.kinds.contents.get(&ObjectKey::cluster(content)) {
            return Some(content.spec.driver.clone());
        }
        let class = group.spec.volume_group_snapshot_class_name.as_deref()?;
        Some(self.kinds.classes.get(&ObjectKey::cluster(class))?.driver.clone())
    }

    fn look(&self, group: &VolumeGroupSnapshot, name: &str, content_is_live: bool) -> Step {
        let content = self.kinds.contents.get(&ObjectKey::cluster(name));
        let class = match &group.spec.volume_group_snapshot_class_name {
            None => Class::Unnamed,
            Some(class) => match self.kinds.classes.get(&ObjectKey::cluster(class)) {
                Some(_) => Class::Known,
                None => Class::Missing,
            },
        };
        let members = self.members(group);
        let restores = |member: &Arc<VolumeSnapshot>| {
            let claims = self.shared.claims.by_index(BY_SNAPSHOT, &member.key().to_string());
            claims.iter().any(|claim| claim.status.phase == ClaimPhase::Pending)
        };
        decide(&View {
            group,
            content: content.as_deref(),
            content_is_live,
            class,
            members_missing: content.as_deref().is_some_and(|one| self.lacks_members(group, one)),
            restoring: members.iter().any(restores),
            members_left: members.iter().any(|member| !member.metadata.deleting()),
        })
    }

    /// Whether some member of the driver's group snapshot lacks one of its objects, or their bond.
    fn lacks_members(
        &self,
        group: &VolumeGroupSnapshot,
        content: &VolumeGroupSnapshotContent,
    ) -> bool {
        let infos = content.status.iter().flat_map(|status| &status.volume_snapshot_info_list);
        infos.into_iter().any(|info| {
            let (snapshot, content) = member_names(&group.metadata.uid, &info.volume_handle);
            let key = ObjectKey::new(&group.metadata.namespace, snapshot);
            let snapshot = self.shared.snapshots.get(&key);
            let content = self.shared.contents.get(&ObjectKey::cluster(content));
            let bound = snapshot.is_some_and(|snapshot| snapshot.bound_content().is_some());
            !bound || content.is_none_or(|content| content.status.is_none())
        })
    }

    async fn pass(&self, key: &ObjectKey) -> Outcome {
        let (mut live, mut conflict) = (None, None);
        for _ in 0..STEPS {
            let Some(group) = self.kinds.groups.get(key) else { return Outcome::Done };
            let name = content_name(&group);
            self.shared.metrics.begun(&*group, || self.driver_of(&group, &name));
            let step = self.look(&group, &name, live.as_ref() == Some(&name));
            match self.act(step, &group, &name).await {
                Ok(Flow::On) => conflict = None,
                Ok(Flow::NoContent) => live = Some(name),
                Ok(Flow::End(outcome)) => return outcome,
                Err(error) if error.is_conflict() => {
                    if let Err(error) = self.refresh(key, &name).await {
                        return Outcome::retry(error);
                    }
                    conflict = Some(error);
                }
                Err(error) => return Outcome::retry(error),
            }
        }
        conflict.map_or(Outcome::Again, Outcome::retry)
    }
}

impl Reconciler for Groups {
    type Key = ObjectKey;

    fn sources(&self, sources: &mut Sources<Self>) {
        let GroupCaches { groups, contents, classes, volumes } = &*self.kinds;
        let shared = &self.shared;
        sources
            .needs(volumes)
            .needs(&shared.contents)
            .on(classes, |this, change| {
                change.applied().map_or_else(Vec::new, |class| this.of_class(class))
            })
            .on(&shared.claims, |this, change| this.of_claim(change.object()))
            .on(&shared.snapshots, |_, change| Self::of_member(change.object()))
            .on(contents, |this, change| [this.content_changed(change.object())])
            .on(groups, Self::changed)
            .on_resync(groups, |_, group| [group.key()]);
    }

    fn subject(&self, key: &ObjectKey) -> Subject {
        Subject::key(key)
    }

    async fn reconcile(&self, key: &ObjectKey) -> Outcome {
        pass_outcome(self.pass(key).await)
    }
}
