//! Time and randomness, injected so that a whole run can be repeated from a seed.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;

/// Where the server gets the time of day from.
pub trait Clock: Send + Sync + 'static {
    fn now(&self) -> Timestamp;
}

#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        Timestamp::now()
    }
}

/// A clock that follows tokio's, so that timestamps move with paused and advanced time.
#[derive(Debug, Clone, Copy)]
pub struct TokioClock {
    base: Timestamp,
    start: tokio::time::Instant,
}

impl TokioClock {
    /// A clock that shows `base` now.
    pub fn starting_at(base: Timestamp) -> Self {
        Self { base, start: tokio::time::Instant::now() }
    }
}

impl Clock for TokioClock {
    fn now(&self) -> Timestamp {
        let passed = SignedDuration::try_from(self.start.elapsed()).unwrap_or(SignedDuration::MAX);
        self.base.checked_add(passed).unwrap_or(Timestamp::MAX)
    }
}

/// Characters of generated names: no vowels, so no words, and nothing that is easily confused.
const NAME_ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
/// Generated names keep this much of the prefix, so that they stay valid labels.
const MAX_PREFIX_CHARS: usize = 58;

/// Time, uids and generated names.
#[derive(Clone)]
pub struct Environment {
    clock: Arc<dyn Clock>,
    rng: Arc<Mutex<fastrand::Rng>>,
}

impl Environment {
    /// With a seed every uid and name is determined by the order of requests.
    pub fn new(clock: Arc<dyn Clock>, seed: Option<u64>) -> Self {
        let rng = seed.map_or_else(fastrand::Rng::new, fastrand::Rng::with_seed);
        Self { clock, rng: Arc::new(Mutex::new(rng)) }
    }

    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// The current time as API objects hold it: whole seconds, UTC.
    pub fn now_text(&self) -> String {
        time_text(self.now())
    }

    /// A fresh random (version 4) uid.
    pub fn uid(&self) -> String {
        let bits = self.rng.lock().u128(..);
        uuid::Builder::from_random_bytes(bits.to_be_bytes()).into_uuid().to_string()
    }

    /// A name made from a `generateName` prefix.
    pub fn name(&self, prefix: &str) -> String {
        let mut name: String = prefix.chars().take(MAX_PREFIX_CHARS).collect();
        let mut rng = self.rng.lock();
        for _ in 0..5 {
            name.push(char::from(NAME_ALPHABET[rng.usize(..NAME_ALPHABET.len())]));
        }
        name
    }

    /// A random number below `bound`.
    pub fn below(&self, bound: u64) -> u64 {
        self.rng.lock().u64(..bound)
    }
}

/// A time as API objects hold it: whole seconds, UTC.
pub fn time_text(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_keep_a_valid_length() {
        let env = Environment::new(Arc::new(SystemClock), Some(1));
        let name = env.name(&"x".repeat(80));
        assert_eq!(name.len(), 63);
        assert!(name[58..].bytes().all(|b| NAME_ALPHABET.contains(&b)));
    }

    #[test]
    fn a_seed_repeats_uids() {
        let make = || Environment::new(Arc::new(SystemClock), Some(7)).uid();
        assert_eq!(make(), make());
        assert_eq!(make().len(), 36);
    }
}
