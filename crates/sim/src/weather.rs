//! How slow things are: calls of the driver, and the news that watches bring.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use http::Response;
use http_body_util::{BodyExt, BodyStream, StreamBody, combinators::UnsyncBoxBody};
use longshore_csi::Call;
use longshore_csi::fake::Action;
use parking_lot::Mutex;

type Body = UnsyncBoxBody<Bytes, std::io::Error>;

/// The longest time a driver takes; more than the callers' patience of ten seconds.
const SLOWEST_MILLIS: u64 = 12_000;

/// How slow the driver is when it makes a volume.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Making {
    /// The wait before the volume is made.
    pub(crate) before: Duration,
    /// The wait after the volume was made.
    pub(crate) after: Duration,
}

/// The weather of one world.
#[derive(Clone, Default)]
pub(crate) struct Weather {
    making: Making,
    /// With a seed, watches of different kinds are late by different times.
    late: Option<u64>,
    /// With a generator, any call of the driver may take a while.
    slow: Option<Arc<Mutex<fastrand::Rng>>>,
}

impl Weather {
    pub(crate) fn new(making: Making, rough: Option<u64>) -> Self {
        let slow = rough.map(|seed| Arc::new(Mutex::new(fastrand::Rng::with_seed(seed))));
        Self { making, late: rough, slow }
    }

    /// What happens before a call of the driver takes effect.
    pub(crate) fn before(&self, call: Call) -> Action {
        self.pause(call, self.making.before)
    }

    /// What happens after it took effect.
    pub(crate) fn after(&self, call: Call) -> Action {
        self.pause(call, self.making.after)
    }

    fn pause(&self, call: Call, making: Duration) -> Action {
        if call == Call::CreateVolume && !making.is_zero() {
            return Action::Delay(making);
        }
        let Some(slow) = &self.slow else { return Action::Continue };
        let mut rng = slow.lock();
        match rng.u8(..8) {
            0 => Action::Delay(Duration::from_millis(rng.u64(..SLOWEST_MILLIS))),
            1 | 2 => Action::Delay(Duration::from_millis(rng.u64(..200))),
            _ => Action::Continue,
        }
    }

    /// Delays what a watch brings, the same for all watches of a kind.
    pub(crate) fn delay(&self, plural: &str, answer: Response<Body>) -> Response<Body> {
        let Some(lag) = self.lag(plural) else { return answer };
        answer.map(|body| {
            let frames = BodyStream::new(body).then(move |frame| async move {
                tokio::time::sleep(lag).await;
                frame
            });
            StreamBody::new(frames).boxed_unsync()
        })
    }

    fn lag(&self, plural: &str) -> Option<Duration> {
        let kind = plural
            .bytes()
            .fold(0_u64, |sum, byte| sum.wrapping_mul(31).wrapping_add(u64::from(byte)));
        let mut rng = fastrand::Rng::with_seed(self.late?.wrapping_mul(7919) ^ kind);
        let most = [0, 20, 200, 3_000][rng.usize(..4)];
        (most > 0).then(|| Duration::from_millis(rng.u64(1..=most)))
    }
}
