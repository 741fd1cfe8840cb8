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

use super::{Look, show};
use crate::access::{Access, AccessKind};
use crate::config::{DriverKind, FsType};
use crate::controller::size::Range;
use crate::driver::Inner;
use crate::id::VolumeId;
use crate::mount::options::Options;
use crate::mount::place::Place;
use crate::mount::unmount;
use crate::pool::Pool;
use crate::pool::record::{Content, Record, Staged, VERSION};
use crate::refusal::Refusal;

/// By this the kubelet says that there is no volume yet.
const EPHEMERAL: &str = "csi.storage.k8s.io/ephemeral";
/// What the kubelet adds of its own accord.
const KUBELET_PREFIX: &str = "csi.storage.k8s.io/";
const SIZE: &str = "size";
const FSTYPE: &str = "fstype";

/// Whether a publish request is for an inline volume.
pub fn is_ephemeral(request: &NodePublishVolumeRequest) -> bool {
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
        let wish = Wish::parse(&request.volume_context)?;
        let fstype = wish.fstype.or(*fstype).unwrap_or(self.config.default_fstype);
        let mut options = Options::parse(flags, fstype).map_err(Refusal::Invalid)?;
        options.read_only |= request.readonly || access.reads_only();
        let bytes = wish.range.choose(fstype.minimum_bytes())?;
        let target = self.node_place("target_path", &request.target_path)?;

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
            // Nobody was told of it, and nobody else will take it away.
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
        target: &Place,
        options: &Options,
    ) -> Result<(), Refusal> {
        let look = self.look(pool, &record.id)?;
        if look.at(target).is_some_and(|entry| look.is_filesystem(entry)) {
            return Ok(());
        }
        self.clear_leftover(&look, record)?;
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
        target: &Place,
    ) -> Result<NodeUnpublishVolumeResponse, Refusal> {
        self.remove_ephemeral(pool, id, target)?;
        Ok(NodeUnpublishVolumeResponse {})
    }

    fn remove_ephemeral(&self, pool: &Pool, id: &VolumeId, target: &Place) -> Result<(), Refusal> {
        let look = self.look(pool, id)?;
        match look.at(target) {
            Some(entry) if look.is_filesystem(entry) => unmount(&entry.path)?,
            Some(entry) => {
                let text = format!("what is mounted at {} is not volume {id}", show(&entry.path));
                return Err(Refusal::Precondition(text));
            }
            None => {}
        }
        self.fault("ephemeral.unmounted");
        self.drop_ephemeral(pool, &look)?;
        Ok(target.remove()?)
    }

    /// Removes the volume once nothing shows it.
    pub(super) fn drop_ephemeral(&self, pool: &Pool, look: &Look) -> Result<(), Refusal> {
        self.let_go(look)?;
        pool.forget_staging(&look.id, &self.config.node_id)?;
        self.fault("ephemeral.forgotten");
        pool.delete(&look.id, |_| Ok::<_, Refusal>(()))
    }
}

/// What a pod may say about its inline volume.
struct Wish {
    range: Range,
    fstype: Option<FsType>,
}

impl Wish {
    fn parse(context: &BTreeMap<String, String>) -> Result<Self, Refusal> {
        let mut wish = Self { range: Range::parse(None)?, fstype: None };
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
                    wish.range = Range::parse(Some(&range))?;
                }
                FSTYPE => wish.fstype = Some(value.parse().map_err(invalid)?),
                key if key.starts_with(KUBELET_PREFIX) => {}
                _ => return Err(invalid("only size and fstype can be given".to_owned())),
            }
        }
        Ok(wish)
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
