//! The controller's side: making, removing, attaching and listing volumes. Everything blocks.

pub(crate) mod attach;
pub(crate) mod condition;
pub(crate) mod create;
pub(crate) mod expand;
pub(crate) mod list;
pub(crate) mod modify;
pub(crate) mod size;
pub(crate) mod source;
pub(crate) mod topology;

use longshore_csi::v1::validate_volume_capabilities_response::Confirmed;
use longshore_csi::v1::{
    DeleteVolumeRequest, DeleteVolumeResponse, ValidateVolumeCapabilitiesRequest,
    ValidateVolumeCapabilitiesResponse,
};

use crate::access::Access;
use crate::driver::Inner;
use crate::id::VolumeId;
use crate::loopdev;
use crate::mutable::Mutable;
use crate::pool::record::Record;
use crate::pool::{Pool, PoolError};
use crate::refusal::{Refusal, required_short};

impl Inner {
    /// Deletes a volume that is neither attached nor staged.
    pub(crate) fn delete_volume(
        &self,
        request: &DeleteVolumeRequest,
    ) -> Result<DeleteVolumeResponse, Refusal> {
        required_short("volume_id", &request.volume_id)?;
        let Some(id) = VolumeId::parse(&request.volume_id) else {
            return Ok(DeleteVolumeResponse {});
        };
        for pool in &self.pools {
            if let Some(record) = pool.read(&id)? {
                self.check_unused(pool, &record)?;
                self.release_device(pool, &id)?;
            }
            pool.delete(&id, |record| self.check_unused(pool, record))?;
            pool.forget_freeze(&id, &self.config.node_id)?;
        }
        Ok(DeleteVolumeResponse {})
    }

    /// Detaches a device that a crash left behind; refuses when something uses it.
    fn release_device(&self, pool: &Pool, id: &VolumeId) -> Result<(), Refusal> {
        let backing = match pool.image_id(id) {
            Ok(backing) => backing.into(),
            Err(PoolError::ImageMissing(_)) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let tag = loopdev::Tag::new(id, &self.config.node_id, pool.file_id());
        if let Some(device) = loopdev::find(id, backing, &tag)?
            && !loopdev::is_claimed(device)?
        {
            loopdev::detach(id, backing, &tag)?;
        }
        if loopdev::is_bound(id, backing)? {
            return Err(Refusal::Precondition(format!(
                "volume {id} is still in use on a loop device"
            )));
        }
        Ok(())
    }

    /// Validates the volume capabilities that a caller asks for.
    pub(crate) fn validate_volume_capabilities(
        &self,
        request: ValidateVolumeCapabilitiesRequest,
    ) -> Result<ValidateVolumeCapabilitiesResponse, Refusal> {
        let given = required_short("volume_id", &request.volume_id)?;
        if request.volume_capabilities.is_empty() {
            return Err(Refusal::Invalid("volume_capabilities are missing".to_owned()));
        }
        let missing = || Refusal::NotFound(format!("volume {given} does not exist"));
        let id = VolumeId::parse(given).ok_or_else(missing)?;
        let (_, record) = self.need(&id)?;
        let unsupported =
            |message: String| ValidateVolumeCapabilitiesResponse { confirmed: None, message };
        let all = match Access::parse_all(&request.volume_capabilities, self.config.kind) {
            Ok(all) => all,
            Err(refusal) => return Ok(unsupported(refusal.to_string())),
        };
        if let Some(conflict) = all.iter().find_map(|access| access.conflict_with(&record)) {
            return Ok(unsupported(conflict));
        }
        if let Err(error) = Mutable::parse(&request.mutable_parameters, record.fstype) {
            return Ok(unsupported(error.to_string()));
        }
        Ok(ValidateVolumeCapabilitiesResponse {
            confirmed: Some(Confirmed {
                volume_context: request.volume_context,
                volume_capabilities: request.volume_capabilities,
                parameters: request.parameters,
                mutable_parameters: request.mutable_parameters,
            }),
            message: String::new(),
        })
    }

    /// A volume that is attached or staged anywhere is left untouched. Staging needs an
    /// attachment where there are other nodes, so only this node's note has to be looked for.
    fn check_unused(&self, pool: &Pool, record: &Record) -> Result<(), Refusal> {
        let (id, node) = (&record.id, &self.config.node_id);
        if pool.is_staged(id, node)? {
            return Err(Refusal::Precondition(format!("volume {id} is staged on node {node}")));
        }
        if !record.attachments.is_empty() {
            let nodes: Vec<_> = record.attachments.iter().map(|one| one.node.as_str()).collect();
            let text = format!("volume {id} is attached to node {}", nodes.join(", "));
            return Err(Refusal::Precondition(text));
        }
        Ok(())
    }
}
