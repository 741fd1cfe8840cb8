//! Who has been promised how much.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::{Pool, PoolError, capacity, names};
use crate::id::VolumeId;

/// How long a sum of free space is believed while volumes are created in quick succession.
const ESTIMATE_AGE: Duration = Duration::from_millis(100);

/// Sizes of all volumes. Only the controller, being alone, needs and can keep them.
#[derive(Debug, Default)]
pub(super) struct Accounts {
    pub(super) reserved: HashMap<VolumeId, u64>,
    /// Room left when last summed up; wrong by what others did since.
    estimate: Option<(Instant, u64)>,
}

impl Pool {
    /// Bytes that new volumes may have, summed up now.
    pub fn allocatable_bytes(&self) -> Result<u64, PoolError> {
        let mut accounts = self.accounts.lock();
        self.sum_up(&mut accounts)
    }

    fn sum_up(&self, accounts: &mut Accounts) -> Result<u64, PoolError> {
        let mut allocated_bytes = 0;
        for id in accounts.reserved.keys() {
            let stat = self.io("look at an image", self.dir.stat(&names::image(id)))?;
            allocated_bytes += stat.map_or(0, |stat| stat.st_blocks.max(0).cast_unsigned() * 512);
        }
        let room = capacity::allocatable_bytes(&capacity::View {
            space: self.io("measure it", self.dir.space())?,
            limit_bytes: self.limit_bytes,
            reserved_bytes: accounts.reserved.values().sum(),
            allocated_bytes,
            overcommit: self.overcommit,
        });
        accounts.estimate = Some((Instant::now(), room));
        Ok(room)
    }

    /// Sets bytes aside for a volume, or confirms that they are.
    pub(super) fn reserve(&self, id: &VolumeId, bytes: u64) -> Result<(), PoolError> {
        let mut accounts = self.accounts.lock();
        if accounts.reserved.contains_key(id) {
            return Ok(());
        }
        let fresh = |&(at, room): &(Instant, u64)| at.elapsed() < ESTIMATE_AGE && room >= bytes;
        let room = match accounts.estimate.filter(fresh) {
            Some((_, room)) => room,
            None => self.sum_up(&mut accounts)?,
        };
        if room < bytes {
            return Err(PoolError::Full {
                pool: self.name.clone(),
                allocatable_bytes: room,
                wanted_bytes: bytes,
            });
        }
        accounts.estimate = accounts.estimate.map(|(at, room)| (at, room - bytes));
        accounts.reserved.insert(id.clone(), bytes);
        Ok(())
    }

    pub(super) fn release(&self, id: &VolumeId) {
        let mut accounts = self.accounts.lock();
        if accounts.reserved.remove(id).is_some() {
            accounts.estimate = None;
        }
    }
}
