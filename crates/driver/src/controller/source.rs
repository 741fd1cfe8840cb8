//! CreateVolume with a content source: restoring a snapshot, or cloning a volume.

use longshore_csi::v1::volume_content_source::{SnapshotSource, Type, VolumeSource};
use longshore_csi::v1::{CreateVolumeRequest, VolumeContentSource};

use crate::config::{DriverKind, FsType};
use crate::copy::{self, Method, Terms};
use crate::driver::Inner;
use crate::id::{SnapshotId, VolumeId};
use crate::locks::LockRequest;
use crate::pool::Pool;
use crate::pool::record::{Content, Record, Source};
use crate::pool::snapshots::SnapshotRecord;
use crate::refusal::{Refusal, required_short};
use crate::snapshot::cut::Job;

/// What CreateVolume needs for itself. A snapshot never changes, so many may read it at once.
pub(crate) fn locks_for_create(inner: &Inner, request: &CreateVolumeRequest) -> Vec<LockRequest> {
    let mut locks = vec![LockRequest::exclusive(inner.id_for(&request.name))];
    match request.volume_content_source.as_ref().and_then(|source| source.r#type.as_ref()) {
        Some(Type::Snapshot(source)) => {
            locks.extend(SnapshotId::parse(&source.snapshot_id).map(LockRequest::shared));
        }
        Some(Type::Volume(source)) => {
            locks.extend(VolumeId::parse(&source.volume_id).map(LockRequest::exclusive));
        }
        None => {}
    }
    locks
}

/// What a new volume is to be filled with.
pub(super) enum Origin<'a> {
    Snapshot(&'a Pool, Box<SnapshotRecord>),
    Volume(&'a Pool, Box<Record>),
}

impl<'a> Origin<'a> {
    /// Where it is: a copy is made in the same pool.
    pub(super) fn pool(&self) -> &'a Pool {
        match self {
            Self::Snapshot(pool, _) | Self::Volume(pool, _) => pool,
        }
    }

    /// Least size of a copy.
    pub(super) fn size_bytes(&self) -> u64 {
        match self {
            Self::Snapshot(_, record) => record.size_bytes,
            Self::Volume(_, record) => record.capacity_bytes,
        }
    }

    /// The filesystem it was made for.
    pub(super) fn fstype(&self) -> Option<FsType> {
        match self {
            Self::Snapshot(_, record) => record.fstype,
            Self::Volume(_, record) => record.fstype,
        }
    }

    fn block(&self) -> bool {
        match self {
            Self::Snapshot(_, record) => record.block,
            Self::Volume(_, record) => record.block,
        }
    }

    /// What is known of a copy's bytes.
    pub(super) fn content(&self) -> Content {
        let content = match self {
            Self::Snapshot(_, record) => record.content,
            Self::Volume(_, record) => record.content,
        };
        match content {
            Content::Filesystem => Content::Copy,
            other => other,
        }
    }

    /// As it is recorded.
    pub(super) fn source(&self) -> Source {
        match self {
            Self::Snapshot(_, record) => Source::Snapshot(record.id.clone()),
            Self::Volume(_, record) => Source::Volume(record.id.clone()),
        }
    }

    /// A copy is used as its source was: bytes do not turn into a filesystem or back.
    pub(super) fn check_use(&self, fstype: Option<FsType>, block: bool) -> Result<(), Refusal> {
        let differs = match (fstype, self.fstype()) {
            (Some(_), None) => "holds raw blocks and cannot be had as a filesystem".to_owned(),
            (Some(wanted), Some(has)) if wanted != has => format!("holds {has}, not {wanted}"),
            _ if block && !self.block() => {
                "holds a filesystem and cannot be had as raw blocks".to_owned()
            }
            _ => return Ok(()),
        };
        Err(Refusal::Invalid(format!("volume_content_source {} {differs}", self.label())))
    }

    pub(super) fn label(&self) -> String {
        match self {
            Self::Snapshot(_, record) => format!("snapshot {}", record.id),
            Self::Volume(_, record) => format!("volume {}", record.id),
        }
    }
}

impl Inner {
    /// Finds what a request wants to be filled from.
    pub(super) fn origin(
        &self,
        source: Option<&VolumeContentSource>,
    ) -> Result<Option<Origin<'_>>, Refusal> {
        let Some(source) = source else { return Ok(None) };
        match &source.r#type {
            None => {
                let text = "volume_content_source names neither a snapshot nor a volume";
                Err(Refusal::Invalid(text.to_owned()))
            }
            Some(Type::Snapshot(SnapshotSource { snapshot_id })) => {
                required_short("volume_content_source.snapshot.snapshot_id", snapshot_id)?;
                let found = SnapshotId::parse(snapshot_id).map(|id| self.find_snapshot(&id));
                let (pool, record) = found.transpose()?.flatten().ok_or_else(|| {
                    self.elsewhere(&format!("snapshot {snapshot_id}"), "where it was cut")
                })?;
                Ok(Some(Origin::Snapshot(pool, Box::new(record))))
            }
            Some(Type::Volume(VolumeSource { volume_id })) => {
                required_short("volume_content_source.volume.volume_id", volume_id)?;
                let missing = || self.elsewhere(&format!("volume {volume_id}"), "where that is");
                let id = VolumeId::parse(volume_id).ok_or_else(missing)?;
                let (pool, record) = self.find(&id)?.ok_or_else(missing)?;
                Ok(Some(Origin::Volume(pool, Box::new(record))))
            }
        }
    }

    /// A source that is not here. What a local driver has may be on another node, which the claim's events should say.
    fn elsewhere(&self, what: &str, place: &str) -> Refusal {
        let node = &self.config.node_id;
        Refusal::NotFound(match self.config.kind {
            DriverKind::Shared => format!("{what} does not exist"),
            DriverKind::Local => format!(
                "{what} is not on node {node}; what a local driver has stays on its node, so its pod has to run {place}"
            ),
        })
    }

    /// Copies a source into an empty file, which may share its blocks or not.
    pub(super) fn fill(
        &self,
        origin: &Origin<'_>,
        to: &std::fs::File,
        share: bool,
    ) -> Result<Option<Method>, Refusal> {
        match origin {
            Origin::Volume(pool, record) => {
                Ok(self.cut(&[Job { pool, record, to, share }])?.first().copied())
            }
            Origin::Snapshot(pool, record) => {
                let image = pool.snapshot_image(&record.id)?;
                // Only the caller waits for this copy.
                let terms = Terms { share: share && pool.shares(), until: None };
                let copied = copy::copy(&image, to, terms);
                let copied =
                    copied.map_err(|source| Refusal::Copy { id: record.source.clone(), source })?;
                Ok(Some(copied))
            }
        }
    }
}

/// A recorded source as callers see it.
pub(super) fn describe(source: &Source) -> VolumeContentSource {
    let r#type = match source {
        Source::Snapshot(id) => Type::Snapshot(SnapshotSource { snapshot_id: id.to_string() }),
        Source::Volume(id) => Type::Volume(VolumeSource { volume_id: id.to_string() }),
    };
    VolumeContentSource { r#type: Some(r#type) }
}

/// The source that a request names, in the form in which it is recorded.
pub(super) fn named(source: Option<&VolumeContentSource>) -> Option<Source> {
    match source?.r#type.as_ref()? {
        Type::Snapshot(source) => SnapshotId::parse(&source.snapshot_id).map(Source::Snapshot),
        Type::Volume(source) => VolumeId::parse(&source.volume_id).map(Source::Volume),
    }
}
