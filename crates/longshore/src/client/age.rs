//! How long ago something was, as kubectl writes it.

use jiff::Timestamp;

/// The time since an RFC 3339 timestamp, or `<unknown>`.
pub(super) fn since(text: &str, now: Timestamp) -> String {
    match text.parse::<Timestamp>() {
        Ok(then) => short(now.as_second().saturating_sub(then.as_second())),
        Err(_) => "<unknown>".into(),
    }
}

/// Seconds as kubectl shortens them: two units at most, fewer the longer it is.
fn short(seconds: i64) -> String {
    let seconds = seconds.max(0);
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    let two = |big: i64, unit: &str, small: i64, rest: &str| match small {
        0 => format!("{big}{unit}"),
        _ => format!("{big}{unit}{small}{rest}"),
    };
    match () {
        () if seconds < 120 => format!("{seconds}s"),
        () if minutes < 10 => two(minutes, "m", seconds % 60, "s"),
        () if minutes < 180 => format!("{minutes}m"),
        () if hours < 8 => two(hours, "h", minutes % 60, "m"),
        () if hours < 48 => format!("{hours}h"),
        () if days < 8 => two(days, "d", hours % 24, "h"),
        () if days < 730 => format!("{days}d"),
        () if days < 2920 => two(days / 365, "y", days % 365, "d"),
        () => format!("{}y", days / 365),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_short() {
        for (seconds, text) in [
            (-5, "0s"),
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (125, "2m5s"),
            (600, "10m"),
            (10_800, "3h"),
            (12_000, "3h20m"),
            (86_400, "24h"),
            (172_800, "2d"),
            (176_400, "2d1h"),
            (864_000, "10d"),
            (63_072_000, "2y"),
        ] {
            assert_eq!(short(seconds), text, "{seconds}");
        }
        let now = "2026-01-01T00:01:00Z".parse().unwrap();
        assert_eq!(since("2026-01-01T00:00:00Z", now), "60s");
        assert_eq!(since("", now), "<unknown>");
    }
}
