//! ControllerExpandVolume of a `shared` driver: the image grows here, what is seen of it on the
//! node.

use longshore_csi::v1::{ControllerExpandVolumeRequest, ControllerExpandVolumeResponse};

use super::size::Range;
use crate::access::Access;
use crate::driver::Inner;
use crate::id::VolumeId;
use crate::refusal::{Refusal, required_short};

impl Inner {
    /// Gives a volume more room.
    pub(crate) fn controller_expand(
        &self,
        request: &ControllerExpandVolumeRequest,
    ) -> Result<ControllerExpandVolumeResponse, Refusal> {
        let given = required_short("volume_id", &request.volume_id)?;
        if request.capacity_range.is_none() {
            return Err(Refusal::Invalid("capacity_range is missing".to_owned()));
        }
        let range = Range::parse(request.capacity_range.as_ref())?;
        let missing = || Refusal::NotFound(format!("volume {given} does not exist"));
        let id = VolumeId::parse(given).ok_or_else(missing)?;
        let (pool, record) = self.need(&id)?;
        if request.volume_capability.is_some() {
            let access = Access::parse(request.volume_capability.as_ref(), self.config.kind)?;
            if let Some(conflict) = access.conflict_with(&record) {
                return Err(Refusal::Invalid(conflict));
            }
        }
        let wanted = range.grow(record.capacity_bytes)?;
        let record = if wanted > record.capacity_bytes { pool.grow(&id, wanted)? } else { record };
        // Repeated after a crash in between: the image may still lack what the record promises.
        pool.stretch(&record)?;
        Ok(ControllerExpandVolumeResponse {
            capacity_bytes: record.capacity_bytes.cast_signed(),
            // A device keeps the size it was bound with, also a raw one.
            node_expansion_required: true,
        })
    }
}
