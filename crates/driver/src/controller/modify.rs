//! ControllerModifyVolume.

use longshore_csi::v1::{ControllerModifyVolumeRequest, ControllerModifyVolumeResponse};

use crate::driver::Inner;
use crate::id::VolumeId;
use crate::mutable::Mutable;
use crate::refusal::{Refusal, required_short};

impl Inner {
    /// Changes mutable parameters: those that are named, and no others. It succeeds when they are in
    /// effect wherever the volume is staged; what has to wait for the next stage is recorded, and the
    /// refusal says so.
    pub(crate) fn modify_volume(
        &self,
        request: &ControllerModifyVolumeRequest,
    ) -> Result<ControllerModifyVolumeResponse, Refusal> {
        let given = required_short("volume_id", &request.volume_id)?;
        let missing = || Refusal::NotFound(format!("volume {given} does not exist"));
        let id = VolumeId::parse(given).ok_or_else(missing)?;
        let (pool, record) = self.need(&id)?;
        Mutable::parse(&request.mutable_parameters, record.fstype)?;
        let record = pool.update(&id, |record| {
            Mutable::take_over(&mut record.mutable_parameters, &request.mutable_parameters);
            Ok::<_, Refusal>(())
        })?;
        self.fault("modify.recorded");
        self.tune_elsewhere(pool, &record)?;
        self.tune_staged(pool, &record)?;
        Ok(ControllerModifyVolumeResponse {})
    }
}
