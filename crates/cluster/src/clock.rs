//! Wall-clock time that follows tokio's clock, so that paused time moves timestamps too.

use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};

/// Now, shifted by as much as tokio's clock differs from the real one.
#[must_use]
pub fn now() -> Timestamp {
    let (virtual_now, real_now) = (tokio::time::Instant::now().into_std(), Instant::now());
    let ahead = virtual_now.saturating_duration_since(real_now);
    let behind = real_now.saturating_duration_since(virtual_now);
    // Without a paused clock the two readings differ by nanoseconds only.
    let shift = signed(ahead) - signed(behind);
    Timestamp::now().saturating_add(shift).unwrap_or(Timestamp::MAX)
}

fn signed(duration: Duration) -> SignedDuration {
    SignedDuration::try_from(duration).unwrap_or(SignedDuration::MAX)
}

/// RFC 3339 in whole seconds, as `metav1.Time` is written.
#[must_use]
pub fn seconds(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// RFC 3339 with six digits, as `metav1.MicroTime` is written.
#[must_use]
pub fn micros(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn paused_time_moves_timestamps() {
        let before = now();
        tokio::time::advance(Duration::from_secs(3600)).await;
        let passed = now().duration_since(before);
        assert!(passed >= SignedDuration::from_secs(3599), "{passed:?}");
        assert!(passed < SignedDuration::from_secs(3700), "{passed:?}");
    }

    #[test]
    fn micro_time_has_six_digits() {
        let at: Timestamp = "2026-11-15T22:05:23.0000015Z".parse().expect("valid");
        assert_eq!(micros(at), "2026-11-15T22:05:23.000001Z");
        assert_eq!(seconds(at), "2026-11-15T22:05:23Z");
    }
}
