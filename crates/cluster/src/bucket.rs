//! A token bucket on tokio's clock.

use std::time::Duration;

use tokio::time::Instant;

/// Lets `burst` through at once and `per_second` on average.
#[derive(Debug)]
pub(crate) struct TokenBucket {
    per_second: f64,
    burst: f64,
    /// May be negative: reservations already handed out.
    tokens: f64,
    updated: Instant,
}

impl TokenBucket {
    pub(crate) fn new(per_second: f64, burst: u32) -> Self {
        let burst = f64::from(burst.max(1));
        Self { per_second, burst, tokens: burst, updated: Instant::now() }
    }

    /// Takes one token and returns how long to wait before using it.
    pub(crate) fn reserve(&mut self) -> Duration {
        self.refill();
        self.tokens -= 1.0;
        if self.tokens >= 0.0 {
            return Duration::ZERO;
        }
        Duration::from_secs_f64((-self.tokens / self.per_second).min(1e9))
    }

    /// Takes one token if there is one.
    pub(crate) fn try_take(&mut self) -> bool {
        self.refill();
        let take = self.tokens >= 1.0;
        if take {
            self.tokens -= 1.0;
        }
        take
    }

    fn refill(&mut self) {
        let now = Instant::now();
        let elapsed = now.saturating_duration_since(self.updated).as_secs_f64();
        self.tokens = (self.tokens + elapsed * self.per_second).min(self.burst);
        self.updated = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_bucket_allows_its_burst_and_then_its_rate() {
        let mut bucket = TokenBucket::new(5.0, 2);
        assert_eq!(bucket.reserve(), Duration::ZERO);
        assert_eq!(bucket.reserve(), Duration::ZERO);
        assert_eq!(bucket.reserve(), Duration::from_millis(200));
        assert_eq!(bucket.reserve(), Duration::from_millis(400));
        assert!(!bucket.try_take());
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(bucket.try_take());
    }
}
