//! The pause between two tries: it doubles with each failure, up to a longest one.

use std::time::Duration;

/// How pauses grow. Pure: whoever sleeps brings the clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
}

impl Backoff {
    /// Pauses from `first`, doubling, never longer than `longest`.
    #[must_use]
    pub const fn new(first: Duration, longest: Duration) -> Self {
        Self { first, longest }
    }

    /// The pause after `failures` earlier failures in a row: `first` × 2^failures.
    #[must_use]
    pub fn after(self, failures: u32) -> Duration {
        let factor = 2f64.powi(i32::try_from(failures).unwrap_or(i32::MAX).min(1000));
        let seconds = self.first.as_secs_f64() * factor;
        if seconds >= self.longest.as_secs_f64() {
            self.longest
        } else {
            Duration::from_secs_f64(seconds)
        }
    }

    /// The pause that follows `last`; the first one if there was none.
    #[must_use]
    pub fn following(self, last: Option<Duration>) -> Duration {
        last.map_or(self.first, |last| last.saturating_mul(2).min(self.longest))
    }

    /// The pauses of one series of tries.
    #[must_use]
    pub const fn series(self) -> Series {
        Series { backoff: self, last: None }
    }
}

/// The pauses of one series of tries.
#[derive(Debug, Clone)]
pub struct Series {
    backoff: Backoff,
    last: Option<Duration>,
}

impl Series {
    /// The pause before the next try.
    pub fn pause(&mut self) -> Duration {
        let pause = self.backoff.following(self.last);
        self.last = Some(pause);
        pause
    }

    /// A try succeeded: the next failure pauses as the first did.
    pub fn reset(&mut self) {
        self.last = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    #[test]
    fn pauses_double_up_to_the_longest() {
        let cases: [(&str, u64, u64, u32, u64); 5] = [
            ("first failure", 5, 1000, 0, 5),
            ("doubled", 5, 1000, 3, 40),
            ("longest", 5, 1000, 8, 1000),
            ("far beyond", 5, 1000, u32::MAX, 1000),
            ("longest shorter than first", 50, 20, 0, 20),
        ];
        for (name, first, longest, failures, want) in cases {
            let backoff = Backoff::new(MS(first), MS(longest));
            assert_eq!(backoff.after(failures), MS(want), "{name}");
        }
    }

    #[test]
    fn a_series_starts_again_after_a_reset() {
        let mut series = Backoff::new(MS(500), MS(1500)).series();
        assert_eq!([series.pause(), series.pause(), series.pause()], [MS(500), MS(1000), MS(1500)]);
        series.reset();
        assert_eq!(series.pause(), MS(500));
    }
}
