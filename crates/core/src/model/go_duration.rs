//! Durations in Go's flag syntax (`15s`, `1h2m3.5s`, `100ms`).

use std::time::Duration;

/// A text that is not a duration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a duration: write for example 15s, 1m30s or 250ms")]
pub struct BadDuration {
    /// What was given.
    pub text: String,
}

const UNITS: [(&str, u128); 8] = [
    ("ns", 1),
    ("us", 1_000),
    ("µs", 1_000),
    ("μs", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

/// Parses a non-negative Go duration.
///
/// ```
/// use longshore_core::model::go_duration::parse_duration;
/// use std::time::Duration;
/// assert_eq!(parse_duration("1m1.5s").unwrap(), Duration::from_millis(61_500));
/// assert!(parse_duration("15").is_err(), "a number needs a unit");
/// ```
///
/// # Errors
/// When the text is empty, negative, has a number without a unit, or an unknown unit.
pub fn parse_duration(text: &str) -> Result<Duration, BadDuration> {
    let bad = || BadDuration { text: text.to_owned() };
    let mut rest = text.strip_prefix('+').unwrap_or(text);
    if rest == "0" {
        return Ok(Duration::ZERO);
    }
    if rest.is_empty() {
        return Err(bad());
    }
    let mut nanos: u128 = 0;
    while !rest.is_empty() {
        let (part, tail) = take_part(rest).ok_or_else(bad)?;
        nanos = nanos.checked_add(part).ok_or_else(bad)?;
        rest = tail;
    }
    // Go keeps durations in an i64 of nanoseconds.
    let nanos = i64::try_from(nanos).map_err(|_| bad())?;
    Ok(Duration::from_nanos(nanos.unsigned_abs()))
}

fn take_part(text: &str) -> Option<(u128, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.')?;
    let (number, tail) = text.split_at(end);
    let unit_end = tail.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(tail.len());
    let (unit, rest) = tail.split_at(unit_end);
    let scale = UNITS.iter().find(|(name, _)| *name == unit)?.1;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() || fraction.contains('.') {
        return None;
    }
    let whole: u128 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
    let mut nanos = whole.checked_mul(scale)?;
    let mut place = scale;
    for digit in fraction.bytes() {
        place /= 10;
        nanos += u128::from(digit - b'0') * place;
    }
    Some((nanos, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_parse_as_in_go() {
        let cases: [(&str, Option<u64>); 12] = [
            ("0", Some(0)),
            ("15s", Some(15_000_000_000)),
            ("1h", Some(3_600_000_000_000)),
            ("1m30s", Some(90_000_000_000)),
            ("1.5s", Some(1_500_000_000)),
            (".5s", Some(500_000_000)),
            ("100ms", Some(100_000_000)),
            ("7us", Some(7_000)),
            ("15", None),
            ("", None),
            ("-1s", None),
            ("3 s", None),
        ];
        for (text, want) in cases {
            assert_eq!(parse_duration(text).ok(), want.map(Duration::from_nanos), "{text}");
        }
    }
}
