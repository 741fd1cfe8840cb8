//! Who has been promised how much.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::capacity::{self, View};
use super::dir::Space;
use super::{Pool, PoolError, names};
use crate::id::VolumeId;

/// How long a sum of free space is believed while volumes are created in quick succession.
const ESTIMATE_AGE: Duration = Duration::from_millis(100);

/// Sizes of all volumes. Only the controller, being alone, needs and can keep them.
#[derive(Debug, Default)]
pub(super) struct Accounts {
    pub(super) reserved: HashMap<VolumeId, u64>,
    /// The pool when last summed up, with what was promised since; wrong by what others did.
    estimate: Option<(Instant, View)>,
}

impl Accounts {
    /// Adds a promise to the sum that is believed for now.
    fn promised(&mut self, bytes: u64) {
        if let Some((_, view)) = &mut self.estimate {
            view.reserved_bytes += bytes;
            view.owed_bytes += bytes;
        }
    }
}

impl Pool {
    /// Bytes that new volumes may have when free space is promised `overcommit` times.
    pub fn allocatable_bytes(&self, overcommit: f64) -> Result<u64, PoolError> {
        let view = self.view()?;
        if view.space.is_nearly_full() {
            return Ok(0);
        }
        Ok(capacity::allocatable_bytes(&view, overcommit.max(self.overcommit)))
    }

    /// Room on the filesystem below.
    pub fn space(&self) -> Result<Space, PoolError> {
        self.io("measure it", self.dir.space())
    }

    /// The pool's sums, made now.
    fn view(&self) -> Result<View, PoolError> {
        let mut accounts = self.accounts.lock();
        self.sum_up(&mut accounts)
    }

    fn sum_up(&self, accounts: &mut Accounts) -> Result<View, PoolError> {
        if self._lock.is_none() {
            // Another process makes and deletes volumes here, so nothing is known for long.
            accounts.reserved = self.sizes()?;
        }
        let (mut reserved_bytes, mut owed_bytes) = (0, 0);
        for (id, reserved) in &accounts.reserved {
            let stat = self.io("look at an image", self.dir.stat(&names::image(id)))?;
            let (size, allocated) = stat.map_or((0, 0), |stat| {
                (stat.st_size.max(0).cast_unsigned(), stat.st_blocks.max(0).cast_unsigned() * 512)
            });
            // A node may have grown it since it was counted.
            let bytes = size.max(*reserved);
            reserved_bytes += bytes;
            owed_bytes += bytes.saturating_sub(allocated);
        }
        let view = View {
            space: self.space()?,
            limit_bytes: self.limit_bytes,
            reserved_bytes,
            owed_bytes,
        };
        accounts.estimate = Some((Instant::now(), view));
        Ok(view)
    }

    /// Sets bytes aside for a volume, or confirms that they are.
    pub(super) fn reserve(
        &self,
        id: &VolumeId,
        bytes: u64,
        overcommit: f64,
    ) -> Result<(), PoolError> {
        let mut accounts = self.accounts.lock();
        if accounts.reserved.contains_key(id) {
            return Ok(());
        }
        self.check_room(&mut accounts, bytes, overcommit)?;
        accounts.promised(bytes);
        accounts.reserved.insert(id.clone(), bytes);
        Ok(())
    }

    /// Sets aside what a volume lacks to `bytes`, and returns what it had.
    pub(super) fn reserve_more(
        &self,
        id: &VolumeId,
        bytes: u64,
        overcommit: f64,
    ) -> Result<u64, PoolError> {
        let mut accounts = self.accounts.lock();
        let stat = self.io("look at an image", self.dir.stat(&names::image(id)))?;
        let size = stat.map_or(0, |stat| stat.st_size.max(0).cast_unsigned());
        let before = accounts.reserved.get(id).copied().unwrap_or(size);
        let more = bytes.saturating_sub(before);
        if more > 0 {
            self.check_room(&mut accounts, more, overcommit)?;
            accounts.promised(more);
            accounts.reserved.insert(id.clone(), bytes);
        }
        Ok(before)
    }

    /// Takes a promise back that could not be kept.
    pub(super) fn set_reserved(&self, id: &VolumeId, bytes: u64) {
        let mut accounts = self.accounts.lock();
        accounts.reserved.insert(id.clone(), bytes);
        accounts.estimate = None;
    }

    fn check_room(
        &self,
        accounts: &mut Accounts,
        bytes: u64,
        overcommit: f64,
    ) -> Result<(), PoolError> {
        let overcommit = overcommit.max(self.overcommit);
        let fits = |view: &View| capacity::allocatable_bytes(view, overcommit) >= bytes;
        let fresh = |(at, view): &(Instant, View)| at.elapsed() < ESTIMATE_AGE && fits(view);
        let view = match accounts.estimate.filter(fresh) {
            Some((_, view)) => view,
            None => self.sum_up(accounts)?,
        };
        if view.space.is_nearly_full() {
            return Err(PoolError::NearlyFull {
                pool: self.name.clone(),
                free_bytes: view.space.free_bytes,
                total_bytes: view.space.total_bytes,
            });
        }
        if !fits(&view) {
            return Err(PoolError::Full {
                pool: self.name.clone(),
                allocatable_bytes: capacity::allocatable_bytes(&view, overcommit),
                wanted_bytes: bytes,
            });
        }
        Ok(())
    }

    pub(super) fn release(&self, id: &VolumeId) {
        let mut accounts = self.accounts.lock();
        if accounts.reserved.remove(id).is_some() {
            accounts.estimate = None;
        }
    }
}
