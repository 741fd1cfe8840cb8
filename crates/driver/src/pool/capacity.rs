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
    /// Sum of what their images already occupy on disk.
    pub allocated_bytes: u64,
    /// How often free space may be promised.
    pub overcommit: f64,
}

/// `min(limit − reserved, free − (reserved − allocated))`, each room stretched by the ratio.
///
/// The second term keeps the promise of existing volumes: the bytes they have not written yet
/// are theirs already, however free they look.
#[must_use]
pub fn allocatable_bytes(view: &View) -> u64 {
    let limit = view.limit_bytes.unwrap_or(view.space.total_bytes);
    let owed = view.reserved_bytes.saturating_sub(view.allocated_bytes);
    let by_limit = stretch(limit, view.overcommit).saturating_sub(view.reserved_bytes);
    let by_space = stretch(view.space.free_bytes, view.overcommit).saturating_sub(owed);
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
        allocated_bytes: 0,
        overcommit: 1.0,
    };

    #[test]
    fn promises() {
        let full = Space { total_bytes: 1000, free_bytes: 0 };
        let cases = [
            ("empty pool: what is free", EMPTY, 800),
            ("unwritten bytes are taken", View { reserved_bytes: 300, ..EMPTY }, 500),
            (
                "written bytes count once",
                View { reserved_bytes: 300, allocated_bytes: 300, ..EMPTY },
                700,
            ),
            ("a limit below free", View { limit_bytes: Some(100), ..EMPTY }, 100),
            ("a limit used up", View { limit_bytes: Some(100), reserved_bytes: 200, ..EMPTY }, 0),
            ("promised twice", View { overcommit: 2.0, reserved_bytes: 300, ..EMPTY }, 1300),
            ("owed more than free", View { reserved_bytes: 900, ..EMPTY }, 0),
            ("disk full", View { space: full, ..EMPTY }, 0),
            (
                "filesystem overhead in images",
                View { reserved_bytes: 10, allocated_bytes: 12, ..EMPTY },
                800,
            ),
        ];
        for (name, view, want) in cases {
            assert_eq!(allocatable_bytes(&view), want, "{name}: {view:?}");
        }
    }
}
