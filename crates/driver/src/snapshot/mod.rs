//! Snapshots of volumes, one at a time or as a group. Everything blocks.

pub(crate) mod cut;
pub(crate) mod group;
pub(crate) mod list;
pub(crate) mod thaw;

use std::collections::BTreeMap;

use jiff::Timestamp;
use longshore_csi::v1::{
    CreateSnapshotRequest, CreateSnapshotResponse, DeleteSnapshotRequest, DeleteSnapshotResponse,
    Snapshot,
};

use crate::controller::create::check_name;
use crate::controller::topology;
use crate::driver::Inner;
use crate::id::{SnapshotId, VolumeId};
use crate::locks::LockRequest;
use crate::pool::Pool;
use crate::pool::record::{Record, VERSION};
use crate::pool::snapshots::SnapshotRecord;
use crate::refusal::{Refusal, required_short};
use cut::Job;

/// Names of the objects, which the snapshotter adds on request. They say nothing about the copy.
const OBJECT_NAMES: [&str; 6] = [
    "csi.storage.k8s.io/volumesnapshot/name",
    "csi.storage.k8s.io/volumesnapshot/namespace",
    "csi.storage.k8s.io/volumesnapshotcontent/name",
    "csi.storage.k8s.io/volumegroupsnapshot/name",
    "csi.storage.k8s.io/volumegroupsnapshot/namespace",
    "csi.storage.k8s.io/volumegroupsnapshotcontent/name",
];

/// What CreateSnapshot needs for itself.
pub(crate) fn locks_for_create(inner: &Inner, request: &CreateSnapshotRequest) -> Vec<LockRequest> {
    let mut locks =
        vec![LockRequest::exclusive(SnapshotId::for_name(inner.scope(), &request.name))];
    locks.extend(VolumeId::parse(&request.source_volume_id).map(LockRequest::exclusive));
    locks
}

impl Inner {
    /// Cuts a snapshot, or finds the one that an earlier identical call cut.
    pub(crate) fn create_snapshot(
        &self,
        request: &CreateSnapshotRequest,
    ) -> Result<CreateSnapshotResponse, Refusal> {
        check_name(&request.name)?;
        let given = required_short("source_volume_id", &request.source_volume_id)?;
        check_parameters(&request.parameters)?;
        topology::check(
            &self.config,
            request.accessibility_requirements.as_ref(),
            topology::Made::Snapshot,
        )?;
        let id = SnapshotId::for_name(self.scope(), &request.name);
        if let Some((_, record)) = self.find_snapshot(&id)? {
            if record.source.as_str() != given {
                return Err(Refusal::Exists(format!(
                    "snapshot name {:?} is taken by a snapshot of volume {}",
                    request.name, record.source
                )));
            }
            return Ok(CreateSnapshotResponse { snapshot: Some(describe(&record)) });
        }
        let source = VolumeId::parse(given)
            .ok_or_else(|| Refusal::NotFound(format!("volume {given} does not exist")))?;
        let (pool, source) = self.need(&source)?;
        let mut record = new_record(id, &request.name, &source);
        self.take_snapshot(pool, &source, &mut record)?;
        Ok(CreateSnapshotResponse { snapshot: Some(describe(&record)) })
    }

    fn take_snapshot(
        &self,
        pool: &Pool,
        source: &Record,
        record: &mut SnapshotRecord,
    ) -> Result<(), Refusal> {
        let draft = pool.draft_snapshot(&record.id, pool.data_bytes(&source.id)?)?;
        let cut = self.cut(&[Job { pool, record: source, to: &draft, share: true }]);
        let done = cut.and_then(|methods| {
            record.created = Timestamp::now();
            Ok(pool.commit_snapshot(record, &draft, methods[0])?)
        });
        if done.is_err()
            && let Err(error) = pool.drop_draft(&record.id)
        {
            // The first failure is returned; the next start removes the draft.
            tracing::warn!(snapshot = %record.id, %error, "a draft stays behind");
        }
        done
    }

    /// Removes a snapshot; one that is not there is as good.
    pub(crate) fn delete_snapshot(
        &self,
        request: &DeleteSnapshotRequest,
    ) -> Result<DeleteSnapshotResponse, Refusal> {
        let given = required_short("snapshot_id", &request.snapshot_id)?;
        let Some(id) = SnapshotId::parse(given) else { return Ok(DeleteSnapshotResponse {}) };
        if let Some((_, record)) = self.find_snapshot(&id)?
            && let Some(group) = record.group
        {
            return Err(Refusal::Invalid(format!(
                "snapshot {id} belongs to group {group}; delete the group snapshot instead"
            )));
        }
        for pool in &self.pools {
            pool.delete_snapshot(&id)?;
        }
        Ok(DeleteSnapshotResponse {})
    }

    /// The pool that has a snapshot, and its record. The snapshots of a group exist when it does.
    pub(crate) fn find_snapshot(
        &self,
        id: &SnapshotId,
    ) -> Result<Option<(&Pool, SnapshotRecord)>, Refusal> {
        for pool in &self.pools {
            let Some(record) = pool.snapshot(id)? else { continue };
            return match &record.group {
                Some(group) if self.find_group(group)?.is_none() => Ok(None),
                _ => Ok(Some((pool, record))),
            };
        }
        Ok(None)
    }

    /// As [`Inner::find_snapshot`], for calls that need the snapshot to exist.
    pub(crate) fn need_snapshot(&self, given: &str) -> Result<(&Pool, SnapshotRecord), Refusal> {
        let missing = || Refusal::NotFound(format!("snapshot {given} does not exist"));
        let id = SnapshotId::parse(given).ok_or_else(missing)?;
        self.find_snapshot(&id)?.ok_or_else(missing)
    }
}

/// A record without what only the cut can know.
fn new_record(id: SnapshotId, name: &str, source: &Record) -> SnapshotRecord {
    SnapshotRecord {
        version: VERSION,
        id,
        name: name.to_owned(),
        source: source.id.clone(),
        size_bytes: source.capacity_bytes,
        data_bytes: 0,
        fstype: source.fstype,
        block: source.block,
        content: source.content,
        shares: false,
        group: None,
        created: source.created,
    }
}

/// A snapshot as callers see it.
pub(crate) fn describe(record: &SnapshotRecord) -> Snapshot {
    Snapshot {
        size_bytes: record.size_bytes.cast_signed(),
        snapshot_id: record.id.to_string(),
        source_volume_id: record.source.to_string(),
        creation_time: Some(time(record.created)),
        // A copy is complete when its call returns.
        ready_to_use: true,
        group_snapshot_id: record.group.as_ref().map(ToString::to_string).unwrap_or_default(),
        // Only for drivers that advertise SNAPSHOT_ACCESSIBILITY_CONSTRAINTS.
        accessible_topology: Vec::new(),
    }
}

fn time(at: Timestamp) -> prost_types::Timestamp {
    prost_types::Timestamp { seconds: at.as_second(), nanos: at.subsec_nanosecond() }
}

/// Unknown parameters are refused: a misspelt one must not silently mean something else.
fn check_parameters(parameters: &BTreeMap<String, String>) -> Result<(), Refusal> {
    match parameters.keys().find(|key| !OBJECT_NAMES.contains(&key.as_str())) {
        Some(key) => Err(Refusal::Invalid(format!(
            "parameter {key:?} is not known; remove it from the class: snapshots of this driver take none"
        ))),
        None => Ok(()),
    }
}
