//! Who has been promised how much.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use rustix::fs::OFlags;

use super::capacity::{self, View};
use super::dir::Space;
use super::{Pool, PoolError};
use crate::extents;

/// How long a sum of what is owed is believed while volumes are created in quick succession.
const ESTIMATE_AGE: Duration = Duration::from_millis(250);
/// A sum that took long is believed for so many times as long: summing up is never most of the work,
/// however many volumes there are.
const ESTIMATE_WORTH: u32 = 50;

/// How much work a sum is worth.
#[derive(Debug, Clone, Copy)]
enum Care {
    /// Images that were made by sharing have nothing for themselves: never too little is owed.
    Quick,
    /// Each of them is asked.
    Exact,
}

/// What has been promised to one image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Promise {
    /// Most bytes it can ever occupy.
    pub(super) bytes: u64,
    /// It may grow, as volumes do; a snapshot stays as it is.
    pub(super) grows: bool,
    /// It was made by sharing the blocks of another image.
    pub(super) shares: bool,
}

impl Promise {
    /// To an image with blocks of its own.
    pub(super) fn to_volume(bytes: u64) -> Self {
        Self { bytes, grows: true, shares: false }
    }
}

/// What has been promised to all volumes and snapshots, by id. Only the controller, being alone,
/// needs and can keep it.
#[derive(Debug, Default)]
pub(super) struct Accounts {
    pub(super) reserved: HashMap<String, Promise>,
    /// The pool when last summed up, with what was promised since, and until when that is believed.
    /// It is wrong by what others did, and never has less promised than there is.
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
        self.sum_up(&mut accounts, Care::Exact)
    }

    fn sum_up(&self, accounts: &mut Accounts, care: Care) -> Result<View, PoolError> {
        if self._lock.is_none() {
            // Another process makes and deletes volumes here, so nothing is known for long.
            accounts.reserved = self.promises()?;
        }
        let began = Instant::now();
        let (mut reserved_bytes, mut owed_bytes) = (0, 0);
        for (id, promise) in &accounts.reserved {
            let (size, allocated) = self.measure(id)?;
            // A node may have grown it since it was counted.
            let bytes = if promise.grows { size.max(promise.bytes) } else { promise.bytes };
            // Blocks that an image shares count with the image they came from, and may all have
            // to be had a second time.
            let own = match (promise.shares, care) {
                (false, _) => allocated,
                (true, Care::Quick) => 0,
                (true, Care::Exact) => self.own_bytes(id).min(allocated),
            };
            reserved_bytes += bytes;
            owed_bytes += bytes.saturating_sub(own);
        }
        let view = View {
            space: self.space()?,
            limit_bytes: self.limit_bytes,
            reserved_bytes,
            owed_bytes,
        };
        let believed = ESTIMATE_AGE.max(began.elapsed() * ESTIMATE_WORTH);
        accounts.estimate = Some((Instant::now() + believed, view));
        Ok(view)
    }

    /// What an image that was made by sharing has for itself by now; nothing if that is unknown.
    fn own_bytes(&self, id: &str) -> u64 {
        let file = self.dir.open_file(&format!("{id}.img"), OFlags::RDONLY);
        file.and_then(|file| extents::own_bytes(&file)).unwrap_or(0)
    }

    /// Size of an image and what it occupies; nothing when it is not there.
    fn measure(&self, id: &str) -> Result<(u64, u64), PoolError> {
        let stat = self.io("look at an image", self.dir.stat(&format!("{id}.img")))?;
        Ok(stat.map_or((0, 0), |stat| {
            (stat.st_size.max(0).cast_unsigned(), stat.st_blocks.max(0).cast_unsigned() * 512)
        }))
    }

    /// Sets bytes aside for a volume or snapshot, or confirms that they are.
    pub(super) fn reserve(
        &self,
        id: &str,
        promise: Promise,
        overcommit: f64,
    ) -> Result<(), PoolError> {
        let mut accounts = self.accounts.lock();
        if accounts.reserved.contains_key(id) {
            return Ok(());
        }
        self.check_room(&mut accounts, promise.bytes, overcommit)?;
        accounts.promised(promise.bytes);
        accounts.reserved.insert(id.to_owned(), promise);
        Ok(())
    }

    /// Sets aside what a volume lacks to `bytes`, and returns what it had.
    pub(super) fn reserve_more(
        &self,
        id: &str,
        bytes: u64,
        overcommit: f64,
    ) -> Result<Promise, PoolError> {
        let mut accounts = self.accounts.lock();
        let (size, _) = self.measure(id)?;
        let before = accounts.reserved.get(id).copied().unwrap_or(Promise::to_volume(size));
        let more = bytes.saturating_sub(before.bytes);
        if more > 0 {
            self.check_room(&mut accounts, more, overcommit)?;
            accounts.promised(more);
            accounts.reserved.insert(id.to_owned(), Promise { bytes, ..before });
        }
        Ok(before)
    }

    /// Says what an image came to be, or takes a promise back that could not be kept.
    pub(super) fn set_reserved(&self, id: &str, promise: Promise) {
        let mut accounts = self.accounts.lock();
        accounts.reserved.insert(id.to_owned(), promise);
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
        let fresh = |(until, view): &(Instant, View)| Instant::now() < *until && fits(view);
        // What is free is asked each time: it takes no longer than a stat of one image, and others may
        // have filled the disk meanwhile.
        let space = self.space()?;
        let estimate = accounts.estimate.map(|(until, view)| (until, View { space, ..view }));
        let mut view = match estimate.filter(fresh) {
            Some((_, view)) => view,
            None => self.sum_up(accounts, Care::Quick)?,
        };
        if !fits(&view) && accounts.reserved.values().any(|promise| promise.shares) {
            view = self.sum_up(accounts, Care::Exact)?;
        }
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

    pub(super) fn release(&self, id: &str) {
        // The estimate still counts it: too much promised is no harm, and is looked into when it matters.
        self.accounts.lock().reserved.remove(id);
    }
}
