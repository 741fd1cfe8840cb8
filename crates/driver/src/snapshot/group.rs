//! Group snapshots: all members cut at one moment, or none.
//!
//! A group exists exactly while its record exists, and its snapshots exist only with it. They are
//! committed first, each as any snapshot; then the group's record makes all of them visible.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use longshore_csi::v1::{
    CreateVolumeGroupSnapshotRequest, CreateVolumeGroupSnapshotResponse,
    DeleteVolumeGroupSnapshotRequest, DeleteVolumeGroupSnapshotResponse,
    GetVolumeGroupSnapshotRequest, GetVolumeGroupSnapshotResponse, VolumeGroupSnapshot,
};

use super::cut::Job;
use super::{check_parameters, describe, new_record, time};
use crate::controller::create::check_name;
use crate::copy::Method;
use crate::driver::Inner;
use crate::id::{GroupId, SnapshotId, VolumeId};
use crate::locks::LockRequest;
use crate::pool::Pool;
use crate::pool::record::{Record, VERSION};
use crate::pool::snapshots::{GroupRecord, Member, SnapshotRecord};
use crate::refusal::{Refusal, required_short};

/// What CreateVolumeGroupSnapshot needs for itself.
pub(crate) fn locks_for_create(
    inner: &Inner,
    request: &CreateVolumeGroupSnapshotRequest,
) -> Vec<LockRequest> {
    let sources: BTreeSet<_> =
        request.source_volume_ids.iter().filter_map(|id| VolumeId::parse(id)).collect();
    let group = LockRequest::exclusive(GroupId::for_name(inner.scope(), &request.name));
    std::iter::once(group).chain(sources.into_iter().map(LockRequest::exclusive)).collect()
}

/// What DeleteVolumeGroupSnapshot needs for itself: no member may be in use for a restore.
pub(crate) fn locks_for_delete(
    inner: &Inner,
    request: &DeleteVolumeGroupSnapshotRequest,
) -> Vec<LockRequest> {
    let Some(id) = GroupId::parse(&request.group_snapshot_id) else { return vec![] };
    let group = inner.find_group(&id).ok().flatten();
    let members = group.into_iter().flat_map(|(_, group)| group.members);
    let mut locks = vec![LockRequest::exclusive(&id)];
    locks.extend(members.map(|member| LockRequest::exclusive(member.snapshot)));
    locks
}

/// A member on its way.
struct Draft<'a> {
    pool: &'a Pool,
    source: Record,
    file: std::fs::File,
    record: SnapshotRecord,
}

impl Inner {
    /// Cuts all volumes at one moment, or finds the group that an earlier identical call cut.
    pub(crate) fn create_group(
        &self,
        request: &CreateVolumeGroupSnapshotRequest,
    ) -> Result<CreateVolumeGroupSnapshotResponse, Refusal> {
        check_name(&request.name)?;
        check_parameters(&request.parameters)?;
        if request.source_volume_ids.is_empty() {
            return Err(Refusal::Invalid("source_volume_ids are missing".to_owned()));
        }
        let given: BTreeSet<&str> = request.source_volume_ids.iter().map(String::as_str).collect();
        if given.len() != request.source_volume_ids.len() {
            return Err(Refusal::Invalid("source_volume_ids name a volume twice".to_owned()));
        }
        let id = GroupId::for_name(self.scope(), &request.name);
        if let Some((_, group)) = self.find_group(&id)? {
            if !group.members.iter().map(|member| member.source.as_str()).eq(given) {
                return Err(Refusal::Exists(format!(
                    "group snapshot name {:?} is taken by a group of other volumes",
                    request.name
                )));
            }
            return Ok(CreateVolumeGroupSnapshotResponse {
                group_snapshot: Some(self.describe_group(&group)?),
            });
        }
        let mut sources = Vec::with_capacity(given.len());
        for given in given {
            let missing = || Refusal::NotFound(format!("volume {given} does not exist"));
            sources.push(self.need(&VolumeId::parse(given).ok_or_else(missing)?)?);
        }
        check_one_node(&sources)?;
        let group = self.take_group(&id, &request.name, sources)?;
        Ok(CreateVolumeGroupSnapshotResponse { group_snapshot: Some(self.describe_group(&group)?) })
    }

    fn take_group(
        &self,
        id: &GroupId,
        name: &str,
        sources: Vec<(&Pool, Record)>,
    ) -> Result<GroupRecord, Refusal> {
        let home = sources[0].0;
        let mut drafts = Vec::with_capacity(sources.len());
        let taken = self.take_members(id, name, sources, &mut drafts).and_then(|()| {
            let group = GroupRecord {
                version: VERSION,
                id: id.clone(),
                name: name.to_owned(),
                members: drafts.iter().map(|draft| member(&draft.record)).collect(),
                created: drafts[0].record.created,
            };
            Ok(home.commit_group(&group).map(|()| group)?)
        });
        if taken.is_err() {
            // Partial groups are undone here, or by the next start.
            for draft in &drafts {
                let (pool, id) = (draft.pool, &draft.record.id);
                if let Err(error) = pool.drop_draft(id).and_then(|()| pool.delete_snapshot(id)) {
                    tracing::warn!(snapshot = %id, %error, "a member of a failed group stays behind");
                }
            }
        }
        taken
    }

    fn take_members<'a>(
        &self,
        group: &GroupId,
        name: &str,
        sources: Vec<(&'a Pool, Record)>,
        drafts: &mut Vec<Draft<'a>>,
    ) -> Result<(), Refusal> {
        for (pool, source) in sources {
            let id = SnapshotId::in_group(group, &source.id);
            // Left of a group that never came to be.
            pool.delete_snapshot(&id)?;
            let mut record = new_record(id, name, &source);
            record.group = Some(group.clone());
            let file = pool.draft_snapshot(&record.id, pool.data_bytes(&source.id)?)?;
            drafts.push(Draft { pool, source, file, record });
        }
        self.fault("group.drafted");
        let jobs: Vec<_> = drafts
            .iter()
            .map(|draft| Job {
                pool: draft.pool,
                record: &draft.source,
                to: &draft.file,
                share: true,
            })
            .collect();
        let methods: Vec<Method> = self.cut(&jobs)?;
        let created = Timestamp::now();
        for (draft, method) in drafts.iter_mut().zip(methods) {
            draft.record.created = created;
            draft.pool.commit_snapshot(&mut draft.record, &draft.file, method)?;
            self.fault("group.member-saved");
        }
        Ok(())
    }

    /// The pool that has a group's record, and the record.
    pub(crate) fn find_group(&self, id: &GroupId) -> Result<Option<(&Pool, GroupRecord)>, Refusal> {
        for pool in &self.pools {
            if let Some(record) = pool.group(id)? {
                return Ok(Some((pool, record)));
            }
        }
        Ok(None)
    }

    /// Removes a group with all its snapshots; one that is not there is as good.
    pub(crate) fn delete_group(
        &self,
        request: &DeleteVolumeGroupSnapshotRequest,
    ) -> Result<DeleteVolumeGroupSnapshotResponse, Refusal> {
        let given = required_short("group_snapshot_id", &request.group_snapshot_id)?;
        let done = Ok(DeleteVolumeGroupSnapshotResponse {});
        let Some(id) = GroupId::parse(given) else { return done };
        let Some((home, group)) = self.find_group(&id)? else { return done };
        check_members(&group, &request.snapshot_ids)?;
        home.retire_group(&id)?;
        for member in &group.members {
            for pool in &self.pools {
                pool.delete_snapshot(&member.snapshot)?;
            }
            self.fault("group.member-deleted");
        }
        home.forget_group(&id)?;
        done
    }

    pub(crate) fn get_group(
        &self,
        request: &GetVolumeGroupSnapshotRequest,
    ) -> Result<GetVolumeGroupSnapshotResponse, Refusal> {
        let given = required_short("group_snapshot_id", &request.group_snapshot_id)?;
        let missing = || Refusal::NotFound(format!("group snapshot {given} does not exist"));
        let id = GroupId::parse(given).ok_or_else(missing)?;
        let (_, group) = self.find_group(&id)?.ok_or_else(missing)?;
        check_members(&group, &request.snapshot_ids)?;
        let group_snapshot = Some(self.describe_group(&group)?);
        Ok(GetVolumeGroupSnapshotResponse { group_snapshot })
    }

    fn describe_group(&self, group: &GroupRecord) -> Result<VolumeGroupSnapshot, Refusal> {
        let mut snapshots = Vec::with_capacity(group.members.len());
        for member in &group.members {
            let (_, record) = self.need_snapshot(member.snapshot.as_str())?;
            snapshots.push(describe(&record));
        }
        Ok(VolumeGroupSnapshot {
            group_snapshot_id: group.id.to_string(),
            snapshots,
            creation_time: Some(time(group.created)),
            ready_to_use: true,
        })
    }

    /// Finishes deletions and undoes groups that a crash cut short.
    pub(crate) fn settle_groups(&self) -> Result<(), Refusal> {
        for pool in &self.pools {
            for member in pool.group_leftovers()?.0 {
                let group = member.group.as_ref();
                if group.map(|group| self.find_group(group)).transpose()?.flatten().is_none() {
                    pool.delete_snapshot(&member.id)?;
                }
            }
        }
        for pool in &self.pools {
            for group in pool.group_leftovers()?.1 {
                pool.forget_group(&group)?;
            }
        }
        Ok(())
    }
}

fn member(record: &SnapshotRecord) -> Member {
    Member { source: record.source.clone(), snapshot: record.id.clone() }
}

/// The caller's list must be the group's.
fn check_members(group: &GroupRecord, given: &[String]) -> Result<(), Refusal> {
    let ours: BTreeSet<&str> = group.members.iter().map(|one| one.snapshot.as_str()).collect();
    let theirs: BTreeSet<&str> = given.iter().map(String::as_str).collect();
    if ours == theirs {
        return Ok(());
    }
    Err(Refusal::Invalid(format!(
        "snapshot_ids are not the {} snapshots of group {}",
        ours.len(),
        group.id
    )))
}

/// One moment is the same only on one node.
fn check_one_node(sources: &[(&Pool, Record)]) -> Result<(), Refusal> {
    let mut nodes: BTreeMap<&str, &VolumeId> = BTreeMap::new();
    for (_, record) in sources {
        for one in record.attachments.iter().filter(|one| !one.many_nodes) {
            nodes.entry(&one.node).or_insert(&record.id);
        }
    }
    if nodes.len() < 2 {
        return Ok(());
    }
    let places: Vec<_> = nodes.iter().map(|(node, id)| format!("{id} on {node}")).collect();
    Err(Refusal::Precondition(format!(
        "the volumes are in use on different nodes ({}) and cannot be held still together",
        places.join(", ")
    )))
}
