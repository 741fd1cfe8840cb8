//! Thaws what an earlier process left frozen.

use crate::driver::Inner;
use crate::freeze;
use crate::id::VolumeId;
use crate::pool::{Pool, PoolError};
use crate::refusal::Refusal;

use super::cut::open_mount;

impl Inner {
    /// Thaws filesystems that this node's notes say were frozen here and never thawed. Only a
    /// holder that was killed leaves one behind; others are not touched.
    pub(crate) fn thaw_leftovers(&self) -> Result<(), Refusal> {
        for pool in &self.pools {
            for id in pool.freeze_notes(&self.config.node_id)? {
                match self.thaw_leftover(pool, &id) {
                    Ok(true) => {
                        tracing::warn!(volume = %id, "thawed a filesystem that a killed process left frozen");
                    }
                    Ok(false) => {}
                    Err(Refusal::Pool(error @ PoolError::BadRecord { .. })) => {
                        tracing::error!(volume = %id, %error, "volume is out of service");
                        continue;
                    }
                    Err(error) => return Err(error),
                }
                pool.forget_freeze(&id, &self.config.node_id)?;
            }
        }
        Ok(())
    }

    fn thaw_leftover(&self, pool: &Pool, id: &VolumeId) -> Result<bool, Refusal> {
        let note = pool.freeze_note(id, &self.config.node_id)?;
        let observed = match self.observe(pool, id) {
            Ok(observed) => Some(observed),
            Err(Refusal::Pool(PoolError::ImageMissing(_))) => None,
            Err(error) => return Err(error),
        };
        let mount = observed.as_ref().and_then(|observed| {
            observed.mounts().into_iter().find(|entry| observed.is_filesystem(entry))
        });
        let mount = mount.map(|entry| open_mount(&entry.path, entry.device)).transpose()?;
        let thawed = freeze::thaw_leftover(&note, mount);
        thawed.map_err(|source| Refusal::Freeze { id: id.clone(), source })
    }
}
