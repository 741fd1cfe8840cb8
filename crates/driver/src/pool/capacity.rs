//! How many bytes a pool may still promise. Pure arithmetic.

use super::dir::Space;

/// What the sum depends on.
#[derive(Debug, Clone, Copy)]
pub struct View {
    /// The filesystem below the pool.
    pub space: Space,
    /// Most bytes that volumes may reserve together, if the pool has such a limit.
    pub limit_bytes: Option<u64>,
    /// Sum of the sizes of all volumes.
    pub reserved_bytes: u64,
    /// Sum of what each of them may still write: its size less what its image occupies.
    pub owed_bytes: u64,
}

/// Below this share of free space a pool takes no new work, however much may be promised: those
/// who write to what they have come first.
const LEAST_FREE_SHARE: u64 = 50;
/// A large pool need not keep more than this.
const LEAST_FREE_BYTES: u64 = 1 << 30;

impl Space {
    /// Whether so little is left that writers will soon fail.
    #[must_use]
    pub fn is_nearly_full(self) -> bool {
        self.free_bytes < (self.total_bytes / LEAST_FREE_SHARE).min(LEAST_FREE_BYTES)
    }
}

/// `min(limit − reserved, free − owed)`, each room stretched by the ratio.
///
/// The second term keeps the promise of existing volumes: the bytes they have not written yet
/// are theirs already, however free they look.
#[must_use]
pub fn allocatable_bytes(view: &View, overcommit: f64) -> u64 {
    let limit = view.limit_bytes.unwrap_or(view.space.total_bytes);
    let by_limit = stretch(limit, overcommit).saturating_sub(view.reserved_bytes);
    let by_space = stretch(view.space.free_bytes, overcommit).saturating_sub(view.owed_bytes);
    // Clients carry sizes as signed numbers.
    by_limit.min(by_space).min(i64::MAX as u64)
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "sizes are far below 2^53 whenever the ratio is not 1, and the cast saturates"
)]
fn stretch(bytes: u64, ratio: f64) -> u64 {
    if ratio <= 1.0 { bytes } else { (bytes as f64 * ratio) as u64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EMPTY: View = View {
        space: Space { total_bytes: 1000, free_bytes: 800 },
        limit_bytes: None,
        reserved_bytes: 0,
        owed_bytes: 0,
    };

    #[test]
    fn capacity_is_what_was_not_promised() {
        let full = Space { total_bytes: 1000, free_bytes: 0 };
        let unwritten = View { reserved_bytes: 300, owed_bytes: 300, ..EMPTY };
        let cases = [
            ("empty pool: what is free", EMPTY, 1.0, 800),
            ("unwritten bytes are taken", unwritten, 1.0, 500),
            ("written bytes count once", View { owed_bytes: 0, ..unwritten }, 1.0, 700),
            ("a limit below free", View { limit_bytes: Some(100), ..EMPTY }, 1.0, 100),
            ("a limit used up", View { limit_bytes: Some(100), ..unwritten }, 1.0, 0),
            ("promised twice", unwritten, 2.0, 1300),
            ("owed more than free", View { reserved_bytes: 900, owed_bytes: 900, ..EMPTY }, 1.0, 0),
            ("disk full", View { space: full, ..EMPTY }, 1.0, 0),
        ];
        for (name, view, overcommit, want) in cases {
            assert_eq!(allocatable_bytes(&view, overcommit), want, "{name}: {view:?}");
        }
    }

    #[test]
    fn a_pool_is_nearly_full_below_two_percent_free() {
        let cases = [(1000, 20, false), (1000, 19, true), (1 << 40, 1 << 30, false), (0, 0, false)];
        for (total_bytes, free_bytes, want) in cases {
            let space = Space { total_bytes, free_bytes };
            assert_eq!(space.is_nearly_full(), want, "{space:?}");
        }
    }
}
