//! Latency of the driver's calls and of watch events.

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

/// The longest time a driver takes; more than the callers' timeout of ten seconds.
const SLOWEST_MILLIS: u64 = 12_000;

/// How long the driver takes to make a volume.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct CreateDelay {
    /// The wait before the volume is made.
    pub(crate) before: Duration,
    /// The wait after the volume was made.
    pub(crate) after: Duration,
}

/// The latencies of one run.
#[derive(Clone, Default)]
pub(crate) struct Latency {
    create_delay: CreateDelay,
    /// With a seed, watches of different kinds are late by different times.
    late: Option<u64>,
    /// With a generator, any call of the driver may take a while.
    slow: Option<Arc<Mutex<fastrand::Rng>>>,
}

impl Latency {
    pub(crate) fn new(create_delay: CreateDelay, seed: Option<u64>) -> Self {
        let slow = seed.map(|seed| Arc::new(Mutex::new(fastrand::Rng::with_seed(seed))));
        Self { create_delay, late: seed, slow }
    }

    /// Delays a call of the driver before it takes effect.
    pub(crate) fn before(&self, call: Call) -> Action {
        self.pause(call, self.create_delay.before)
    }

    /// Delays the response of a call after it took effect.
    pub(crate) fn after(&self, call: Call) -> Action {
        self.pause(call, self.create_delay.after)
    }

    fn pause(&self, call: Call, create_delay: Duration) -> Action {
        if call == Call::CreateVolume && !create_delay.is_zero() {
            return Action::Delay(create_delay);
        }
        let Some(slow) = &self.slow else { return Action::Continue };
        let mut rng = slow.lock();
        match rng.u8(..8) {
            0 => Action::Delay(Duration::from_millis(rng.u64(..SLOWEST_MILLIS))),
            1 | 2 => Action::Delay(Duration::from_millis(rng.u64(..200))),
            _ => Action::Continue,
        }
    }

    /// Delays the events of a watch, by the same time for all watches of a kind.
    pub(crate) fn delay(&self, plural: &str, response: Response<Body>) -> Response<Body> {
        let Some(lag) = self.lag(plural) else { return response };
        response.map(|body| {
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
