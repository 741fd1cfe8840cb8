//! ControllerModifyVolume.

use longshore_csi::v1::{ControllerModifyVolumeRequest, ControllerModifyVolumeResponse};

use crate::driver::Inner;
use crate::id::VolumeId;
use crate::mutable::Mutable;
use crate::refusal::{Refusal, required_short};

impl Inner {
    /// Changes mutable parameters: those that are named, and no others. What the node can change
    /// under a running pod is changed at once, the rest when the volume is staged next.
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
            record.mutable_parameters.extend(request.mutable_parameters.clone());
            Ok::<_, Refusal>(())
        })?;
        self.fault("modify.recorded");
        self.tune_staged(pool, &record)?;
        Ok(ControllerModifyVolumeResponse {})
    }
}
