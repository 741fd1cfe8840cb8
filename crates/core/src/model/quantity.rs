//! Kubernetes quantities, exactly.
//!
//! A quantity is a fixed-point number with nine decimal places (finer input is rounded up, away
//! from zero, as the API does) and the suffix family it was written in, which decides how it prints.

use std::{cmp::Ordering, fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

const NANO: i128 = 1_000_000_000;

/// Which family of suffixes a quantity prints with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Format {
    /// `Ki`, `Mi`, `Gi` …
    BinarySi,
    /// `m`, none, `k`, `M`, `G` …
    DecimalSi,
    /// `e3`, `E6` …
    DecimalExponent,
}

/// An exact amount, for example a capacity.
///
/// ```
/// use longshore_core::model::Quantity;
/// let size: Quantity = "1.5Gi".parse().unwrap();
/// assert_eq!(size.bytes(), 1_610_612_736);
/// assert_eq!(size.to_string(), "1536Mi");
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Quantity {
    nanos: i128,
    format: Format,
}

/// A text that is not a quantity.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} is not a quantity: quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
)]
pub struct BadQuantity {
    /// What was given.
    pub text: String,
}

impl Quantity {
    /// Zero bytes.
    pub const ZERO: Self = Self { nanos: 0, format: Format::BinarySi };

    /// A whole number of bytes, printed with binary suffixes.
    #[must_use]
    pub fn from_bytes(bytes: i64) -> Self {
        Self { nanos: i128::from(bytes) * NANO, format: Format::BinarySi }
    }

    /// A plain count, printed with decimal suffixes.
    #[must_use]
    pub fn from_count(count: i64) -> Self {
        Self { nanos: i128::from(count) * NANO, format: Format::DecimalSi }
    }

    /// The amount as a whole number, rounded up and capped to what an `i64` holds.
    #[must_use]
    pub fn bytes(&self) -> i64 {
        let up = self.nanos.div_euclid(NANO) + i128::from(self.nanos.rem_euclid(NANO) != 0);
        i64::try_from(up).unwrap_or(if up < 0 { i64::MIN } else { i64::MAX })
    }

    /// The amount in thousandths, rounded up and capped to what an `i64` holds.
    #[must_use]
    pub fn millis(&self) -> i64 {
        const MICRO: i128 = NANO / 1000;
        let up = self.nanos.div_euclid(MICRO) + i128::from(self.nanos.rem_euclid(MICRO) != 0);
        i64::try_from(up).unwrap_or(if up < 0 { i64::MIN } else { i64::MAX })
    }

    /// True for an amount below zero.
    #[must_use]
    pub fn is_negative(&self) -> bool {
        self.nanos < 0
    }

    /// True for exactly zero.
    #[must_use]
    pub fn is_zero(&self) -> bool {
        self.nanos == 0
    }

    /// True when the amount has no fraction.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.nanos % NANO == 0
    }

    /// The suffix family of this quantity.
    #[must_use]
    pub fn format(&self) -> Format {
        self.format
    }
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        self.nanos == other.nanos
    }
}

impl Eq for Quantity {}

impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Quantity {
    fn cmp(&self, other: &Self) -> Ordering {
        self.nanos.cmp(&other.nanos)
    }
}

impl FromStr for Quantity {
    type Err = BadQuantity;

    fn from_str(text: &str) -> Result<Self, BadQuantity> {
        parse(text).ok_or_else(|| BadQuantity { text: text.to_owned() })
    }
}

fn parse(text: &str) -> Option<Quantity> {
    let (negative, rest) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
    let (number, suffix) = rest.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
        return None;
    }
    let (scale, format) = scale_of(suffix)?;
    let digits = format!("{whole}{fraction}");
    let mantissa = parse_capped(&digits);
    let places = i32::try_from(fraction.len()).ok()?;
    let nanos = match scale {
        Scale::Binary(power) => {
            let scaled = mantissa.saturating_mul(1 << (10 * power)).saturating_mul(NANO);
            div_up(scaled, places)
        }
        Scale::Decimal(exponent) => shift(mantissa, exponent + 9 - places),
    };
    Some(Quantity { nanos: if negative { -nanos } else { nanos }, format })
}

enum Scale {
    /// 1024 to this power.
    Binary(u32),
    /// Ten to this power.
    Decimal(i32),
}

fn scale_of(suffix: &str) -> Option<(Scale, Format)> {
    let binary = ["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
    if let Some(at) = binary.iter().position(|name| *name == suffix) {
        return Some((Scale::Binary(u32::try_from(at).ok()? + 1), Format::BinarySi));
    }
    let decimal: [(&str, i32); 10] = [
        ("n", -9),
        ("u", -6),
        ("m", -3),
        ("", 0),
        ("k", 3),
        ("M", 6),
        ("G", 9),
        ("T", 12),
        ("P", 15),
        ("E", 18),
    ];
    if let Some((_, exponent)) = decimal.iter().find(|(name, _)| *name == suffix) {
        return Some((Scale::Decimal(*exponent), Format::DecimalSi));
    }
    let exponent = suffix.strip_prefix(['e', 'E'])?;
    let exponent: i32 = exponent.strip_prefix('+').unwrap_or(exponent).parse().ok()?;
    Some((Scale::Decimal(exponent.clamp(-60, 60)), Format::DecimalExponent))
}

/// Digits to a number; absurdly long input saturates instead of failing.
fn parse_capped(digits: &str) -> i128 {
    digits
        .bytes()
        .fold(0_i128, |sum, digit| sum.saturating_mul(10).saturating_add(i128::from(digit - b'0')))
}

fn shift(value: i128, exponent: i32) -> i128 {
    if exponent < 0 {
        return div_up(value, -exponent);
    }
    let factor = 10_i128.checked_pow(exponent.unsigned_abs()).unwrap_or(i128::MAX);
    value.saturating_mul(factor)
}

fn div_up(value: i128, places: i32) -> i128 {
    match 10_i128.checked_pow(places.unsigned_abs()) {
        Some(divisor) => value / divisor + i128::from(value % divisor != 0),
        None => i128::from(value != 0),
    }
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.nanos == 0 {
            return f.write_str("0");
        }
        if self.format == Format::BinarySi
            && self.nanos.abs() >= 1024 * NANO
            && self.nanos % NANO == 0
        {
            return print_binary(self.nanos / NANO, f);
        }
        print_decimal(self.nanos, self.format, f)
    }
}

fn print_binary(mut value: i128, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let mut power = 0;
    while value % 1024 == 0 && power < 6 {
        value /= 1024;
        power += 1;
    }
    write!(f, "{value}{}", ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"][power])
}

fn print_decimal(mut value: i128, format: Format, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let mut step = 0;
    while value % 1000 == 0 && step < 9 {
        value /= 1000;
        step += 1;
    }
    if format == Format::DecimalExponent {
        let exponent = i32::try_from(step).unwrap_or(0) * 3 - 9;
        return if exponent == 0 { write!(f, "{value}") } else { write!(f, "{value}e{exponent}") };
    }
    write!(f, "{value}{}", ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"][step])
}

impl Serialize for Quantity {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Quantity {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = Quantity;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a quantity such as 10Mi, or a number")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Quantity, E> {
                text.parse().map_err(E::custom)
            }
            fn visit_i64<E: de::Error>(self, value: i64) -> Result<Quantity, E> {
                Ok(Quantity::from_count(value))
            }
            fn visit_u64<E: de::Error>(self, value: u64) -> Result<Quantity, E> {
                value.to_string().parse().map_err(E::custom)
            }
            fn visit_f64<E: de::Error>(self, value: f64) -> Result<Quantity, E> {
                value.to_string().parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_and_prints_as_the_api_does() {
        let cases: [(&str, i64, &str); 17] = [
            ("0", 0, "0"),
            ("10Mi", 10 << 20, "10Mi"),
            ("1024Mi", 1 << 30, "1Gi"),
            ("1.5Gi", 1_610_612_736, "1536Mi"),
            (".5Gi", 536_870_912, "512Mi"),
            ("1Ei", 1 << 60, "1Ei"),
            ("12E", i64::MAX, "12E"),
            ("1e3", 1000, "1e3"),
            ("1E3", 1000, "1e3"),
            ("1E", 1_000_000_000_000_000_000, "1E"),
            ("100m", 1, "100m"),
            ("1500", 1500, "1500"),
            ("1000", 1000, "1k"),
            ("9223372036854775807", i64::MAX, "9223372036854775807"),
            ("+5", 5, "5"),
            ("-1Gi", -(1 << 30), "-1Gi"),
            ("0.0000000001", 1, "1n"),
        ];
        for (text, bytes, printed) in cases {
            let got: Quantity = text.parse().unwrap();
            assert_eq!((got.bytes(), got.to_string().as_str()), (bytes, printed), "{text}");
        }
    }

    #[test]
    fn refuses_what_the_api_refuses() {
        for text in ["", "Gi", "1.2.3", "1gi", "1 Gi", "1Kib", "--1", "e3", "0x10", "1e", "."] {
            assert!(text.parse::<Quantity>().is_err(), "{text}");
        }
    }

    #[test]
    fn compares_across_formats() {
        let (a, b): (Quantity, Quantity) = ("1Ki".parse().unwrap(), "1024".parse().unwrap());
        assert_eq!(a, b);
        assert!("1Gi".parse::<Quantity>().unwrap() > "1G".parse().unwrap());
    }
}
