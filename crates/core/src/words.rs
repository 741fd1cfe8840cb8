//! Sizes, times and errors in words for people.
//!
//! Events with the same text are counted, events with another text are new objects. So what moves on its own, such as
//! the room in a pool, is rounded until small moves do not show.

use std::error::Error;
use std::fmt::Display;
use std::time::Duration;

const UNITS: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];

/// Writes a size that was asked for: at most three digits and a unit, rounded up.
///
/// ```
/// use longshore_core::words::size;
/// assert_eq!(size(900 << 40), "900Ti");
/// assert_eq!(size((3 << 30) / 2), "1.5Gi");
/// ```
#[must_use]
pub fn size(bytes: u64) -> String {
    let (whole, unit) = unit_of(bytes);
    scaled(bytes, unit, 3_u32.saturating_sub(digits(whole)), true)
}

/// Writes how much room there is: two digits and a unit, rounded down, so that small moves leave the text as it is.
///
/// ```
/// use longshore_core::words::room;
/// assert_eq!(room(75_785_424_896), "70Gi");
/// assert_eq!(room(75_685_424_896), "70Gi");
/// ```
#[must_use]
pub fn room(bytes: u64) -> String {
    let (whole, unit) = unit_of(bytes);
    let surplus = digits(whole).saturating_sub(2);
    match surplus {
        0 => scaled(bytes, unit, 2 - digits(whole), false),
        _ => {
            let step = 10_u64.pow(surplus);
            format!("{}{}", whole / step * step, UNITS[unit])
        }
    }
}

/// The number of whole units in `bytes`, and which unit: the largest that fits.
fn unit_of(bytes: u64) -> (u64, usize) {
    let unit = (0..UNITS.len()).rev().find(|unit| bytes >> (10 * unit) > 0).unwrap_or(0);
    (bytes >> (10 * unit), unit)
}

fn digits(number: u64) -> u32 {
    number.checked_ilog10().unwrap_or(0) + 1
}

fn scaled(bytes: u64, unit: usize, decimals: u32, up: bool) -> String {
    // Bytes have no parts.
    let decimals = if unit == 0 { 0 } else { decimals };
    let (scale, one) = (10_u128.pow(decimals), 1_u128 << (10 * unit));
    let parts = u128::from(bytes) * scale;
    let parts = if up { parts.div_ceil(one) } else { parts / one };
    let (whole, rest) = (parts / scale, parts % scale);
    let rest = match rest {
        0 => String::new(),
        rest => format!(".{rest:0width$}", width = decimals as usize),
    };
    let rest = if rest.is_empty() { "" } else { rest.trim_end_matches('0') };
    format!("{whole}{rest}{}", UNITS[unit])
}

/// Writes a time as Go's flags have it, without digits that nobody needs: `250ms`, `1.5s`, `5m`, `1h30m`.
#[must_use]
pub fn time(time: Duration) -> String {
    let millis = time.as_millis();
    match millis {
        0 if time.is_zero() => "0s".to_owned(),
        0 => format!("{}µs", time.as_micros().max(1)),
        1..1_000 => format!("{millis}ms"),
        1_000..60_000 => match (millis / 1_000, millis % 1_000 / 100) {
            (seconds, 0) => format!("{seconds}s"),
            (seconds, tenths) => format!("{seconds}.{tenths}s"),
        },
        _ => {
            let seconds = time.as_secs();
            let parts = [(seconds / 3600, "h"), (seconds / 60 % 60, "m"), (seconds % 60, "s")];
            let parts = parts.iter().filter(|(number, _)| *number > 0);
            parts.map(|(number, unit)| format!("{number}{unit}")).collect()
        }
    }
}

/// Writes a list as people do: `a, b, c`.
#[must_use]
pub fn list(items: impl IntoIterator<Item = impl Display>) -> String {
    items.into_iter().map(|item| item.to_string()).collect::<Vec<_>>().join(", ")
}

/// Writes an error with its causes, each once. Many errors have their cause in their own text already.
#[must_use]
pub fn causes(error: &(dyn Error + 'static)) -> String {
    causes_of(std::iter::successors(Some(error), |&error| error.source()))
}

/// As [`causes`], for a chain that begins with the outermost error.
#[must_use]
pub fn causes_of<'a>(chain: impl Iterator<Item = &'a (dyn Error + 'static)>) -> String {
    let mut text = String::new();
    for error in chain {
        let cause = error.to_string();
        if text.is_empty() {
            text = cause;
        } else if !cause.is_empty() && !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_three_digits_and_are_never_too_small() {
        for (bytes, want) in [
            (0, "0"),
            (1, "1"),
            (1023, "1023"),
            (1 << 10, "1Ki"),
            (64 << 20, "64Mi"),
            (989_560_464_998_400, "900Ti"),
            ((1 << 30) + 1, "1.01Gi"),
            ((16 << 30) + (1 << 29), "16.5Gi"),
            (1000 << 20, "1000Mi"),
            (u64::MAX, "16Ei"),
        ] {
            assert_eq!(size(bytes), want, "{bytes}");
        }
    }

    #[test]
    fn room_is_rounded_down_so_that_small_moves_do_not_show() {
        for (bytes, want) in [
            (0, "0"),
            (9, "9"),
            (999, "990"),
            (75_785_424_896, "70Gi"),
            (75_785_424_896 - (200 << 20), "70Gi"),
            ((7 << 30) + (700 << 20), "7.6Gi"),
            (756 << 20, "750Mi"),
            (1 << 30, "1Gi"),
        ] {
            assert_eq!(room(bytes), want, "{bytes}");
        }
    }

    #[test]
    fn room_is_never_more_than_a_size_that_does_not_fit() {
        for needed in [1_u64, 1 << 20, (70 << 30) + 1, 71 << 30, u64::MAX] {
            assert_ne!(room(needed - 1), size(needed), "{needed}");
        }
    }

    #[test]
    fn times_are_short() {
        let micros = Duration::from_micros;
        for (spent, want) in [
            (Duration::ZERO, "0s"),
            (micros(20), "20µs"),
            (micros(4_999), "4ms"),
            (micros(1_500_000), "1.5s"),
            (micros(30_001_427), "30s"),
            (Duration::from_secs(300), "5m"),
            (Duration::from_secs(90), "1m30s"),
            (Duration::from_secs(5400), "1h30m"),
        ] {
            assert_eq!(time(spent), want);
        }
    }

    #[derive(Debug, thiserror::Error)]
    enum Sample {
        #[error("transport error: {0}")]
        Told(#[source] std::io::Error),
        #[error("cannot start")]
        Bare(#[source] Box<Sample>),
    }

    #[test]
    fn every_cause_is_said_once() {
        let missing = || std::io::Error::from(std::io::ErrorKind::NotFound);
        let told = Sample::Told(missing());
        assert_eq!(causes(&told), "transport error: entity not found");
        let outer = Sample::Bare(Box::new(Sample::Told(missing())));
        assert_eq!(causes(&outer), "cannot start: transport error: entity not found");
    }
}
