//! How large a volume becomes. Pure.

use longshore_csi::v1::CapacityRange;

use crate::refusal::Refusal;

/// Size when a request names none.
const DEFAULT_BYTES: u64 = 1 << 30;
/// Sizes are whole MiB where the limit allows it.
const STEP_BYTES: u64 = 1 << 20;
/// The least step that every filesystem and device is happy with.
const SMALL_STEP_BYTES: u64 = 4096;

/// Bounds of a request; a limit of zero is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Range {
    /// At least this.
    pub required_bytes: u64,
    /// At most this, unless zero.
    pub limit_bytes: u64,
}

impl Range {
    /// Checks the range of a request; an absent one asks for nothing in particular.
    pub(crate) fn parse(range: Option<&CapacityRange>) -> Result<Self, Refusal> {
        let Some(range) = range else { return Ok(Self { required_bytes: 0, limit_bytes: 0 }) };
        let positive = |field: &str, value: i64| {
            u64::try_from(value)
                .map_err(|_| Refusal::Invalid(format!("capacity_range.{field} is negative")))
        };
        let required_bytes = positive("required_bytes", range.required_bytes)?;
        let limit_bytes = positive("limit_bytes", range.limit_bytes)?;
        if required_bytes == 0 && limit_bytes == 0 {
            return Err(Refusal::Invalid("capacity_range is empty".to_owned()));
        }
        if limit_bytes != 0 && required_bytes > limit_bytes {
            return Err(Refusal::OutOfRange(format!(
                "capacity_range requires {required_bytes} bytes but limits to {limit_bytes}"
            )));
        }
        Ok(Self { required_bytes, limit_bytes })
    }

    /// Whether an existing size satisfies the range.
    #[must_use]
    pub(crate) fn admits(self, bytes: u64) -> bool {
        bytes >= self.required_bytes && (self.limit_bytes == 0 || bytes <= self.limit_bytes)
    }

    /// The size to which a volume of `current` bytes grows; never less than it has.
    pub(crate) fn grow(self, current: u64) -> Result<u64, Refusal> {
        if self.required_bytes <= current {
            if self.limit_bytes != 0 && current > self.limit_bytes {
                return Err(Refusal::OutOfRange(format!(
                    "the volume has {current} bytes, more than limit_bytes {}; volumes do not shrink",
                    self.limit_bytes
                )));
            }
            return Ok(current);
        }
        self.choose(current)
    }

    /// The size of a new volume that must have at least `minimum_bytes`.
    pub(crate) fn choose(self, minimum_bytes: u64) -> Result<u64, Refusal> {
        let wanted = match (self.required_bytes, self.limit_bytes) {
            (0, 0) => DEFAULT_BYTES,
            (0, limit) => DEFAULT_BYTES.min(limit),
            (required, _) => required,
        };
        let wanted = wanted.max(minimum_bytes);
        for step in [STEP_BYTES, SMALL_STEP_BYTES] {
            let rounded = wanted.checked_next_multiple_of(step);
            if let Some(rounded) =
                rounded.filter(|&bytes| bytes <= i64::MAX as u64 && self.admits(bytes))
            {
                return Ok(rounded);
            }
        }
        // Only a limit asks for less than it takes: round down if that is still enough.
        let down = self.limit_bytes / SMALL_STEP_BYTES * SMALL_STEP_BYTES;
        if down >= minimum_bytes && self.admits(down) && down > 0 {
            return Ok(down);
        }
        Err(Refusal::OutOfRange(format!(
            "no size between {} and {} bytes is possible; the least is {minimum_bytes}, in steps of {SMALL_STEP_BYTES}",
            self.required_bytes, self.limit_bytes
        )))
    }
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::*;

    #[test]
    fn growth() {
        const MIB: i64 = 1 << 20;
        let cases = [
            ("more", (20 * MIB, 0), Ok(20 * MIB)),
            ("rounded up", (20 * MIB + 1, 0), Ok(21 * MIB)),
            ("what it has", (10 * MIB, 0), Ok(10 * MIB)),
            ("less than it has", (MIB, 0), Ok(10 * MIB)),
            ("a limit above", (0, 40 * MIB), Ok(10 * MIB)),
            ("a limit below", (MIB, 9 * MIB), Err(Code::OutOfRange)),
            ("no whole step below the limit", (20 * MIB + 1, 20 * MIB + 2), Err(Code::OutOfRange)),
        ];
        for (name, (required_bytes, limit_bytes), want) in cases {
            let range = CapacityRange { required_bytes, limit_bytes };
            let got = Range::parse(Some(&range)).and_then(|range| range.grow(10 << 20));
            let got = got.map(|bytes| bytes.cast_signed()).map_err(|refusal| refusal.code());
            assert_eq!(got, want, "{name}");
        }
    }

    #[test]
    fn sizes() {
        const MIB: i64 = 1 << 20;
        type Bounds = Option<(i64, i64)>;
        let cases: [(&str, Bounds, Result<i64, Code>); 14] = [
            ("none", None, Ok(1 << 30)),
            ("exact", Some((10 * MIB, 0)), Ok(10 * MIB)),
            ("rounded up", Some((10 * MIB + 1, 0)), Ok(11 * MIB)),
            ("least", Some((1, 0)), Ok(2 * MIB)),
            ("limit only", Some((0, 50 * MIB)), Ok(50 * MIB)),
            ("limit far away", Some((0, 1 << 40)), Ok(1 << 30)),
            ("limit below a MiB step", Some((10 * MIB + 1, 10 * MIB + 5000)), Ok(10 * MIB + 4096)),
            ("odd limit only", Some((0, 10 * MIB + 5)), Ok(10 * MIB)),
            ("exact and odd", Some((10 * MIB + 1, 10 * MIB + 1)), Err(Code::OutOfRange)),
            ("limit below the least", Some((1, MIB)), Err(Code::OutOfRange)),
            ("upside down", Some((2, 1)), Err(Code::OutOfRange)),
            ("negative", Some((-1, 0)), Err(Code::InvalidArgument)),
            ("empty", Some((0, 0)), Err(Code::InvalidArgument)),
            ("too large to round", Some((i64::MAX, 0)), Err(Code::OutOfRange)),
        ];
        for (name, range, want) in cases {
            let range = range
                .map(|(required_bytes, limit_bytes)| CapacityRange { required_bytes, limit_bytes });
            let got = Range::parse(range.as_ref()).and_then(|range| range.choose(2 << 20));
            let got = got.map(|bytes| bytes.cast_signed()).map_err(|refusal| refusal.code());
            assert_eq!(got, want, "{name}");
        }
    }
}
