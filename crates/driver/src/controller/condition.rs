//! The condition of a volume, as far as its pool shows it.

use longshore_core::words;
use longshore_csi::v1::controller_get_volume_response::VolumeStatus;
use longshore_csi::v1::{ControllerGetVolumeRequest, ControllerGetVolumeResponse, VolumeCondition};

use crate::driver::Inner;
use crate::id::VolumeId;
use crate::pool::dir::Space;
use crate::pool::record::Record;
use crate::pool::{ImageState, Pool};
use crate::refusal::{Refusal, required_short};

impl Inner {
    /// One volume, where it is attached, and how it is.
    pub(crate) fn get_volume(
        &self,
        request: &ControllerGetVolumeRequest,
    ) -> Result<ControllerGetVolumeResponse, Refusal> {
        let given = required_short("volume_id", &request.volume_id)?;
        let missing = || Refusal::NotFound(format!("volume {given} does not exist"));
        let id = VolumeId::parse(given).ok_or_else(missing)?;
        let (pool, record) = self.need(&id)?;
        let status = VolumeStatus {
            published_node_ids: record.attachments.iter().map(|one| one.node.clone()).collect(),
            volume_condition: Some(self.condition(pool, &record, pool.space()?)?),
        };
        let volume = Some(self.describe(pool, &record));
        Ok(ControllerGetVolumeResponse { volume, status: Some(status) })
    }

    /// The condition of a volume, by its image and its pool.
    pub(crate) fn condition(
        &self,
        pool: &Pool,
        record: &Record,
        space: Space,
    ) -> Result<VolumeCondition, Refusal> {
        Ok(judge(pool.image_state(record)?, record, pool.name(), space))
    }
}

/// A condition that an administrator must act on.
pub(crate) fn abnormal(message: String) -> VolumeCondition {
    VolumeCondition { abnormal: true, message }
}

fn judge(image: ImageState, record: &Record, pool: &str, space: Space) -> VolumeCondition {
    let capacity = record.capacity_bytes;
    match image {
        ImageState::Missing => abnormal(format!(
            "the image file is missing from pool {pool}: its data is lost unless the file is put back"
        )),
        ImageState::Has { bytes, .. } if bytes < capacity && !record.is_blank() => {
            abnormal(format!(
                "the image file has {} of {}: data may be lost",
                words::room(bytes),
                words::size(capacity)
            ))
        }
        ImageState::Has { allocated_bytes, .. }
            if space.is_nearly_full() && allocated_bytes < capacity =>
        {
            abnormal(format!(
                "pool {pool} is nearly full ({} are free): writes will fail when nothing is left",
                words::room(space.free_bytes)
            ))
        }
        ImageState::Has { .. } => {
            VolumeCondition { abnormal: false, message: "the volume is healthy".to_owned() }
        }
    }
}
