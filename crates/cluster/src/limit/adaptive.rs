//! Limits requests in flight by the latency and the refusals of the server.
//!
//! Additive increase, multiplicative decrease: responses at steady latency let the limit grow while
//! it is the bottleneck; refusals halve it; rising latency lowers it a little at a time.

use std::time::Duration;

use tokio::time::Instant;

pub(crate) const MIN: usize = 4;
pub(crate) const MAX: usize = 32;
const START: f64 = 8.0;
/// Latency counts as risen when it is this many times the usual one …
const RISEN_FACTOR: f64 = 3.0;
/// … and at least this much above it: below, it is noise.
const RISEN_FLOOR_SECONDS: f64 = 0.05;

#[derive(Debug)]
pub(crate) struct Adaptive {
    limit: f64,
    /// Up to here the limit grows quickly: nothing has spoken against it yet.
    trusted: f64,
    /// What an unloaded response takes, in seconds: falls at once, rises slowly.
    usual: Option<f64>,
    /// What responses take now, in seconds, smoothed.
    current: f64,
    responses_since_shrink: f64,
    refused_at: Option<Instant>,
}

impl Adaptive {
    pub(crate) fn new() -> Self {
        Self {
            limit: START,
            trusted: MAX as f64,
            usual: None,
            current: 0.0,
            responses_since_shrink: 0.0,
            refused_at: None,
        }
    }

    pub(crate) fn limit(&self) -> usize {
        // In range by construction, so the cast is exact.
        self.limit as usize
    }

    /// Takes a normal response into account: its latency and how many requests were in flight.
    pub(crate) fn completed(&mut self, latency: Duration, in_flight: usize) {
        self.observe(latency.as_secs_f64());
        self.responses_since_shrink += 1.0;
        if self.has_risen() {
            // Once per round of responses, or those of one slow moment would shrink to the end.
            if self.responses_since_shrink >= self.limit {
                self.shrink(0.9);
            }
        } else if in_flight + 1 >= self.limit() {
            let step = if self.limit < self.trusted { 0.5 } else { 1.0 / self.limit };
            self.limit = (self.limit + step).min(MAX as f64);
        }
    }

    /// The server refused (429 or 503) a request that was sent at `sent`.
    pub(crate) fn refused(&mut self, sent: Instant) {
        // Requests that were sent before the last cut say nothing about the limit after it.
        if self.refused_at.is_none_or(|at| sent > at) {
            self.refused_at = Some(Instant::now());
            self.shrink(0.5);
            self.trusted = self.limit;
        }
    }

    fn shrink(&mut self, factor: f64) {
        self.limit = (self.limit * factor).max(MIN as f64);
        self.responses_since_shrink = 0.0;
    }

    fn observe(&mut self, seconds: f64) {
        let usual = self.usual.get_or_insert(seconds);
        if self.current == 0.0 {
            self.current = seconds;
        }
        *usual = if seconds < *usual { seconds } else { *usual + 0.001 * (seconds - *usual) };
        self.current += 0.2 * (seconds - self.current);
    }

    fn has_risen(&self) -> bool {
        let usual = self.usual.unwrap_or(0.0);
        self.current > usual * RISEN_FACTOR && self.current > usual + RISEN_FLOOR_SECONDS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn responses(adaptive: &mut Adaptive, count: usize, millis: u64) {
        for _ in 0..count {
            adaptive.completed(Duration::from_millis(millis), adaptive.limit());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn grows_to_the_maximum_at_steady_latency_but_only_when_it_is_the_bottleneck() {
        let mut adaptive = Adaptive::new();
        for _ in 0..1000 {
            adaptive.completed(Duration::from_millis(5), 2);
        }
        assert_eq!(adaptive.limit(), 8);
        responses(&mut adaptive, 1000, 5);
        assert_eq!(adaptive.limit(), MAX);
    }

    #[tokio::test(start_paused = true)]
    async fn refusals_halve_it_once_per_round_and_never_below_the_minimum() {
        let mut adaptive = Adaptive::new();
        responses(&mut adaptive, 1000, 5);
        let sent = Instant::now();
        tokio::time::advance(Duration::from_millis(5)).await;
        for _ in 0..32 {
            adaptive.refused(sent);
        }
        assert_eq!(adaptive.limit(), 16, "one round of requests is one sign");
        for _ in 0..10 {
            tokio::time::advance(Duration::from_secs(1)).await;
            adaptive.refused(Instant::now());
        }
        assert_eq!(adaptive.limit(), MIN);
    }

    #[tokio::test(start_paused = true)]
    async fn rising_latency_shrinks_it_and_normal_latency_lets_it_grow_again() {
        let mut adaptive = Adaptive::new();
        responses(&mut adaptive, 1000, 5);
        responses(&mut adaptive, 100, 500);
        let slow = adaptive.limit();
        assert!(slow < 24, "{slow}");
        responses(&mut adaptive, 1000, 5);
        assert_eq!(adaptive.limit(), MAX);
    }
}
