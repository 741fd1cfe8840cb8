//! The limit on requests to the API server.

/// The limit on API requests, as Go clients write it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Throttle {
    /// Requests in flight, grown and shrunk by how the server answers.
    Adaptive,
    /// Requests per second, as upstream.
    Fixed {
        /// Sustained rate.
        qps: f32,
        /// Requests that may exceed it at once.
        burst: u32,
    },
    /// No limit, which Go clients write as a negative rate.
    Unlimited,
}

impl Throttle {
    /// Upstream's defaults stand in for whichever of the two is unset; Go clients also read zero as unset.
    #[must_use]
    pub fn new(qps: Option<f32>, burst: Option<u32>) -> Self {
        let or_default = burst.filter(|burst| *burst > 0).unwrap_or(10);
        match (qps, burst) {
            (None, None) => Self::Adaptive,
            (Some(qps), _) if qps < 0.0 => Self::Unlimited,
            (Some(qps), _) if qps > 0.0 => Self::Fixed { qps, burst: or_default },
            _ => Self::Fixed { qps: 5.0, burst: or_default },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn throttle_is_adaptive_until_a_rate_is_set() {
        for (qps, burst, throttle) in [
            (None, None, Throttle::Adaptive),
            (Some(20.0), None, Throttle::Fixed { qps: 20.0, burst: 10 }),
            (None, Some(40), Throttle::Fixed { qps: 5.0, burst: 40 }),
            (Some(20.0), Some(40), Throttle::Fixed { qps: 20.0, burst: 40 }),
            (Some(0.0), Some(0), Throttle::Fixed { qps: 5.0, burst: 10 }),
            (Some(-1.0), Some(40), Throttle::Unlimited),
        ] {
            assert_eq!(Throttle::new(qps, burst), throttle, "{qps:?} {burst:?}");
        }
    }
}
