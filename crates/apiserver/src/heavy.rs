//! Large requests: how many are in memory at a time, and where they are worked on.
//!
//! A body of a few megabytes becomes many times as much while it is worked on, and takes the processor for
//! as long as it takes. So such requests are worked on by a few at a time, on threads of their own: those
//! that serve all other requests are never blocked, and deadlines fire.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::error::{ApiResult, Status};

/// Requests with larger bodies are worked on elsewhere.
pub(crate) const LARGE: usize = 64 << 10;
/// Bodies that may be in memory, in kilobytes; small ones do not count.
const BODIES: u32 = 32 << 10;
/// What may be worked on at a time, in quarters of a megabyte: four small ones, or one large one.
const WORK: u32 = 4;
/// Places in lists that are being sent, in thousands: a place is a few bytes, but a list that its client does not read
/// has one for each object.
const LISTED: usize = 4 << 10;
/// How long a body waits for others to go.
const PATIENCE: Duration = Duration::from_secs(10);

/// The room for large requests. Administrators, and the loops of this process, have their own: they get
/// through when other clients fill the server.
#[derive(Debug)]
pub(crate) struct Heavy {
    lists: Arc<Semaphore>,
    common: Lane,
    reserve: Lane,
}

#[derive(Debug)]
struct Lane {
    bodies: Arc<Semaphore>,
    work: Arc<Semaphore>,
}

impl Default for Lane {
    fn default() -> Self {
        let places = |count: u32| Arc::new(Semaphore::new(count as usize));
        Self { bodies: places(BODIES), work: places(WORK) }
    }
}

impl Default for Heavy {
    fn default() -> Self {
        let lists = Arc::new(Semaphore::new(LISTED));
        Self { lists, common: Lane::default(), reserve: Lane::default() }
    }
}

/// Room for a body, as far as it has come.
#[derive(Debug)]
pub struct Reserved<'a> {
    lane: &'a Lane,
    taken: u32,
    permits: Option<OwnedSemaphorePermit>,
}

impl Heavy {
    fn lane(&self, is_master: bool) -> &Lane {
        if is_master { &self.reserve } else { &self.common }
    }

    /// Room for a body of which nothing has come yet.
    pub(crate) fn reserve(&self, is_master: bool) -> Reserved<'_> {
        Reserved { lane: self.lane(is_master), taken: 0, permits: None }
    }

    /// Room for a list of so many objects, to be held until it is sent; short ones need none.
    ///
    /// # Errors
    /// 429 when lists that clients do not read take all of it.
    pub(crate) fn list(&self, objects: usize) -> ApiResult<Option<OwnedSemaphorePermit>> {
        let thousands = u32::try_from((objects >> 10).min(LISTED)).unwrap_or(u32::MAX);
        if thousands == 0 {
            return Ok(None);
        }
        let room = Arc::clone(&self.lists).try_acquire_many_owned(thousands);
        room.map(Some).map_err(|_| {
            Status::too_many_requests(
                "Too many long lists are being sent, please try again later.",
                1,
            )
        })
    }

    /// Waits for the turn of work on objects of this size; it ends with what is returned.
    pub(crate) async fn turn(&self, bytes: usize, is_master: bool) -> Option<OwnedSemaphorePermit> {
        let weight = u32::try_from(bytes >> 18).unwrap_or(WORK).saturating_add(1).min(WORK);
        // It is never closed.
        Arc::clone(&self.lane(is_master).work).acquire_many_owned(weight).await.ok()
    }

    /// Does work on objects of this size on another thread, when its turn comes. On a
    /// runtime with one thread there are no others to hold up, and it is done at once.
    ///
    /// # Errors
    /// That of the work.
    pub(crate) async fn run<T, F>(&self, bytes: usize, is_master: bool, work: F) -> ApiResult<T>
    where
        T: Send + 'static,
        F: Future<Output = ApiResult<T>> + Send + 'static,
    {
        let runtime = Handle::current();
        if runtime.runtime_flavor() == RuntimeFlavor::CurrentThread {
            return work.await;
        }
        let turn = self.turn(bytes, is_master).await;
        let done = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            runtime.block_on(work)
        });
        done.await.map_err(|error| {
            tracing::error!(%error, "a large request could not be worked on");
            Status::internal("the request could not be worked on")
        })?
    }
}

impl Reserved<'_> {
    /// More of the body has come: so much altogether.
    ///
    /// # Errors
    /// 429 when other bodies take all the room for too long.
    pub async fn grow(&mut self, bytes: usize) -> ApiResult<()> {
        if bytes <= LARGE {
            return Ok(());
        }
        let wanted = u32::try_from(bytes >> 10).unwrap_or(BODIES).min(BODIES);
        let Some(more) = wanted.checked_sub(self.taken).filter(|more| *more > 0) else {
            return Ok(());
        };
        let permits = Arc::clone(&self.lane.bodies).acquire_many_owned(more);
        let Ok(Ok(permits)) = tokio::time::timeout(PATIENCE, permits).await else {
            return Err(Status::too_many_requests(
                "Too many large requests, please try again later.",
                1,
            ));
        };
        self.taken = wanted;
        match &mut self.permits {
            Some(taken) => taken.merge(permits),
            none => *none = Some(permits),
        }
        Ok(())
    }

    /// The room, to be held as long as the body.
    pub fn into_held(self) -> Option<OwnedSemaphorePermit> {
        self.permits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn bodies_wait_for_room_and_small_ones_do_not() {
        let heavy = Heavy::default();
        let mut first = heavy.reserve(false);
        first.grow(3 << 20).await.unwrap();
        first.grow(BODIES as usize * 1024).await.unwrap();
        let mut second = heavy.reserve(false);
        second.grow(LARGE).await.unwrap();
        assert_eq!(second.grow(1 << 20).await.unwrap_err().code, 429);
        heavy.reserve(true).grow(1 << 20).await.unwrap();
        drop(first.into_held());
        second.grow(1 << 20).await.unwrap();
    }

    #[test]
    fn long_lists_have_room_until_it_is_taken() {
        let heavy = Heavy::default();
        assert!(heavy.list(1000).unwrap().is_none());
        let held: Vec<_> = (0..16).map(|_| heavy.list(LISTED << 6).unwrap()).collect();
        assert_eq!(heavy.list(2000).unwrap_err().code, 429);
        drop(held);
        assert!(heavy.list(usize::MAX).unwrap().is_some(), "one list is never too long");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn heavy_work_blocks_no_other_task_and_a_deadline_fires() {
        let heavy = Heavy::default();
        let work = heavy.run(3 << 20, false, async {
            std::thread::sleep(Duration::from_secs(2));
            Ok(())
        });
        let late = tokio::time::timeout(Duration::from_millis(50), work).await;
        assert!(late.is_err(), "the only worker was free to look at the clock");
        assert_eq!(
            heavy.run(1, true, async { Ok(7) }).await,
            Ok(7),
            "an administrator does not wait"
        );
    }
}
