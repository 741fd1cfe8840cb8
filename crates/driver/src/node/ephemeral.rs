//! Inline ephemeral volumes of a `local` driver: made when a pod's path is published, and gone
//! when it is not any more.
//!
//! The caller chooses the id, and there is no staging: the filesystem is mounted at the target
//! itself. The pod's specification says `size` and `fstype`, and nothing else.

use std::collections::BTreeMap;

use jiff::Timestamp;
use longshore_core::model::Quantity;
use longshore_csi::v1::{
    CapacityRange, NodePublishVolumeRequest, NodePublishVolumeResponse, NodeUnpublishVolumeResponse,
};

use super::{Observed, show};
use crate::access::{Access, AccessKind};
use crate::config::{DriverKind, FsType};
use crate::controller::size::Range;
use crate::driver::Inner;
use crate::id::VolumeId;
use crate::mount::checked_path::CheckedPath;
use crate::mount::options::Options;
use crate::mount::unmount;
use crate::pool::Pool;
use crate::pool::record::{Content, Record, Staged, VERSION};
use crate::refusal::Refusal;

/// The kubelet sets this when there is no volume yet.
const EPHEMERAL: &str = "csi.storage.k8s.io/ephemeral";
/// What the kubelet adds of its own accord.
const KUBELET_PREFIX: &str = "csi.storage.k8s.io/";
const SIZE: &str = "size";
const FSTYPE: &str = "fstype";

/// Whether a publish request is for an inline volume.
pub(crate) fn is_ephemeral(request: &NodePublishVolumeRequest) -> bool {
    request.volume_context.get(EPHEMERAL).is_some_and(|value| value == "true")
}

impl Inner {
    /// The id of the volume that a caller's own id stands for.
    pub(crate) fn ephemeral_id(&self, given: &str) -> VolumeId {
        // No node id holds a zero byte, so no volume of CreateVolume can have this id.
        VolumeId::for_name(&format!("{}\0ephemeral", self.config.node_id), given)
    }

    /// Makes a volume and mounts it at the target.
    pub(super) fn publish_ephemeral(
        &self,
        request: &NodePublishVolumeRequest,
        access: &Access,
    ) -> Result<NodePublishVolumeResponse, Refusal> {
        if self.config.kind == DriverKind::Shared {
            let text = "inline ephemeral volumes are offered by a local driver only";
            return Err(Refusal::Invalid(text.to_owned()));
        }
        let AccessKind::Mount { fstype, flags } = &access.kind else {
            let text = "volume_capability: an inline ephemeral volume is a filesystem";
            return Err(Refusal::Invalid(text.to_owned()));
        };
        let fields = [("target_path", request.target_path.as_str())];
        let id = self.node_volume(&request.volume_id, &fields)?;
        let attributes = EphemeralAttributes::parse(&request.volume_context)?;
        let fstype = attributes.fstype.or(*fstype).unwrap_or(self.config.default_fstype);
        let mut options = Options::parse(flags, fstype)?;
        options.read_only |= request.readonly || access.reads_only();
        let bytes = attributes.range.choose(fstype.minimum_bytes())?;
        let target = self.node_path("target_path", &request.target_path)?;

        let (pool, record) = match self.find(&id)? {
            Some((_, record)) if !record.ephemeral => {
                return Err(Refusal::Exists(format!("volume {id} is not ephemeral")));
            }
            Some((pool, record)) => (pool, record),
            None => {
                let record = ephemeral_record(id, &request.volume_id, bytes, fstype);
                self.pools[0].create(&record)?;
                self.fault("ephemeral.created");
                (&self.pools[0], record)
            }
        };
        let published = self.mount_ephemeral(pool, &record, &target, &options);
        if published.is_err() {
            // The kubelet does not know of it, so that this call must delete it.
            if let Err(error) = self.remove_ephemeral(pool, &record.id, &target) {
                tracing::warn!(volume = %record.id, %error, "a failed ephemeral volume stays until it is unpublished");
            }
        }
        published.map(|()| NodePublishVolumeResponse {})
    }

    fn mount_ephemeral(
        &self,
        pool: &Pool,
        record: &Record,
        target: &CheckedPath,
        options: &Options,
    ) -> Result<(), Refusal> {
        let observed = self.observe(pool, &record.id)?;
        if observed.at(target).is_some_and(|entry| observed.is_filesystem(entry)) {
            return Ok(());
        }
        self.clear_leftover(&observed, record)?;
        let fstype = record.fstype.unwrap_or(self.config.default_fstype);
        pool.note_staging(
            &record.id,
            &Staged {
                node: self.config.node_id.clone(),
                path: show(target.path()),
                block: false,
                read_only: options.read_only,
            },
        )?;
        self.fault("ephemeral.noted");
        target.make_dir()?;
        self.stage_filesystem(pool, record, target, fstype, options, false)
    }

    /// Takes an inline volume away, bytes and all.
    pub(super) fn unpublish_ephemeral(
        &self,
        pool: &Pool,
        id: &VolumeId,
        target: &CheckedPath,
    ) -> Result<NodeUnpublishVolumeResponse, Refusal> {
        self.remove_ephemeral(pool, id, target)?;
        Ok(NodeUnpublishVolumeResponse {})
    }

    fn remove_ephemeral(
        &self,
        pool: &Pool,
        id: &VolumeId,
        target: &CheckedPath,
    ) -> Result<(), Refusal> {
        let observed = self.observe(pool, id)?;
        match observed.at(target) {
            Some(entry) if observed.is_filesystem(entry) => unmount(&entry.path)?,
            Some(entry) => {
                let text = format!("what is mounted at {} is not volume {id}", show(&entry.path));
                return Err(Refusal::Precondition(text));
            }
            None => {}
        }
        self.fault("ephemeral.unmounted");
        self.drop_ephemeral(pool, &observed)?;
        Ok(target.remove()?)
    }

    /// Removes the volume once nothing shows it.
    pub(super) fn drop_ephemeral(&self, pool: &Pool, observed: &Observed) -> Result<(), Refusal> {
        self.free_device(observed)?;
        pool.forget_staging(&observed.id, &self.config.node_id)?;
        self.fault("ephemeral.forgotten");
        pool.delete(&observed.id, |_| Ok::<_, Refusal>(()))
    }
}

/// The attributes that a pod may set for its inline volume.
struct EphemeralAttributes {
    range: Range,
    fstype: Option<FsType>,
}

impl EphemeralAttributes {
    fn parse(context: &BTreeMap<String, String>) -> Result<Self, Refusal> {
        let mut attributes = Self { range: Range::parse(None)?, fstype: None };
        for (key, value) in context {
            let invalid = |why: String| Refusal::Invalid(format!("volume attribute {key}: {why}"));
            match key.as_str() {
                SIZE => {
                    let size: Quantity =
                        value.parse().map_err(|error| invalid(format!("{error}")))?;
                    if size.bytes() <= 0 {
                        return Err(invalid(format!("{value:?} is not a size")));
                    }
                    let required_bytes = size.bytes();
                    let range = CapacityRange { required_bytes, limit_bytes: 0 };
                    attributes.range = Range::parse(Some(&range))?;
                }
                FSTYPE => attributes.fstype = Some(value.parse().map_err(invalid)?),
                key if key.starts_with(KUBELET_PREFIX) => {}
                _ => return Err(invalid("only size and fstype can be given".to_owned())),
            }
        }
        Ok(attributes)
    }
}

fn ephemeral_record(id: VolumeId, given: &str, capacity_bytes: u64, fstype: FsType) -> Record {
    Record {
        version: VERSION,
        id,
        name: given.to_owned(),
        capacity_bytes,
        fstype: Some(fstype),
        block: false,
        ephemeral: true,
        parameters: BTreeMap::new(),
        mutable_parameters: BTreeMap::new(),
        content: Content::Blank,
        source: None,
        shares: false,
        attachments: vec![],
        created: Timestamp::now(),
    }
}
