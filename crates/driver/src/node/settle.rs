//! What a node does first, and what it can do at any time: let go of what nothing uses.

use crate::config::DriverKind;
use crate::driver::Inner;
use crate::id::VolumeId;
use crate::locks::LockRequest;
use crate::loopdev;
use crate::pool::{Pool, PoolError};
use crate::refusal::Refusal;

impl Inner {
    /// Registers the node, drops notes of staging that a reboot made untrue, and detaches what
    /// a crash left.
    pub(crate) fn settle_node(&self) -> Result<(), Refusal> {
        if self.config.kind == DriverKind::Shared {
            for pool in &self.pools {
                pool.register_node(&self.config.node_id)?;
            }
        }
        // First, because nothing else can be done with a frozen filesystem.
        self.thaw_leftovers()?;
        let freed = self.cleanup_orphans()?;
        if freed > 0 {
            tracing::info!(target: "longshore::v3", freed, "detached loop devices that nothing used");
        }
        Ok(())
    }

    /// Detaches every device of ours that nothing uses. Returns how many.
    pub(crate) fn cleanup_orphans(&self) -> Result<usize, Refusal> {
        self.free_unused(false)
    }

    /// Detaches every device of ours for a node that has no pods any more, and fails when one is in
    /// use all the same.
    pub(crate) fn evacuate(&self) -> Result<usize, Refusal> {
        let freed = self.free_unused(true)?;
        for pool in &self.pools {
            for id in pool.list()? {
                if pool.is_staged(&id, &self.config.node_id)? {
                    let node = &self.config.node_id;
                    let mut text = format!("volume {id} is still in use on node {node}");
                    let left = self.left_devices()?.into_iter().find(|left| left.volume == id);
                    if let Some(left) = left {
                        text.push_str(&format!(": {left}"));
                    }
                    return Err(Refusal::Precondition(text));
                }
            }
        }
        Ok(freed)
    }

    /// `raw` says that raw volumes go too, which nothing shows to be in use while they are staged.
    fn free_unused(&self, raw: bool) -> Result<usize, Refusal> {
        let bound = loopdev::bound_volumes()?;
        let mut freed = 0;
        for pool in &self.pools {
            for id in pool.list()? {
                match self.free_volume(pool, &id, bound.contains(&id), raw) {
                    Ok(done) => freed += usize::from(done),
                    // One volume that cannot be understood is no reason to keep the others waiting;
                    // its own calls are refused, and say why.
                    Err(Refusal::Pool(error @ PoolError::BadRecord { .. })) if !raw => {
                        tracing::error!(pool = %pool.name(), volume = %id, %error,
                            "volume is out of service: restore its record from a backup");
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(freed)
    }

    /// Frees one volume; whether a device went.
    fn free_volume(
        &self,
        pool: &Pool,
        id: &VolumeId,
        bound: bool,
        raw: bool,
    ) -> Result<bool, Refusal> {
        // A volume that a call is busy with is no orphan.
        let Ok(_guard) = self.locks.acquire(&LockRequest::exclusive(id)) else { return Ok(false) };
        let mut freed = false;
        if bound {
            freed = self.free_if_unused(pool, id, raw)?;
        } else if pool.is_staged(id, &self.config.node_id)? {
            // No device, so not staged, whatever the note says.
            pool.forget_staging(id, &self.config.node_id)?;
        }
        self.drop_if_ephemeral(pool, id)?;
        Ok(freed)
    }

    /// An inline volume that is shown nowhere has lost its pod.
    fn drop_if_ephemeral(&self, pool: &Pool, id: &VolumeId) -> Result<(), Refusal> {
        if self.config.mode.controller()
            && pool.read(id)?.is_some_and(|record| record.ephemeral)
            && !pool.is_staged(id, &self.config.node_id)?
        {
            pool.delete(id, |_| Ok::<_, Refusal>(()))?;
        }
        Ok(())
    }

    fn free_if_unused(&self, pool: &Pool, id: &VolumeId, raw_too: bool) -> Result<bool, Refusal> {
        let observed = match self.observe(pool, id) {
            Ok(observed) => observed,
            Err(Refusal::Pool(PoolError::ImageMissing(_))) => return Ok(false),
            Err(error) => return Err(error),
        };
        let Some(device) = observed.device else {
            // Bound by another program: not ours to detach, but not staged by us.
            if observed.staged.is_some() {
                pool.forget_staging(id, &self.config.node_id)?;
            }
            return Ok(false);
        };
        // A raw volume may be staged and not yet published: nothing shows, and yet it is wanted.
        let raw = !raw_too && observed.staged.as_ref().is_some_and(|staged| staged.block);
        if raw || !observed.mounts().is_empty() || loopdev::is_claimed(device)? {
            return Ok(false);
        }
        loopdev::detach(id, observed.backing, &observed.tag)?;
        pool.forget_staging(id, &self.config.node_id)?;
        Ok(true)
    }
}
