//! Counts the records that code looks at, so that tests can show that the cost of one event does not
//! grow with the number of objects.
//!
//! Programs count nothing: the functions do something only in tests and behind the feature `visits`.

#[cfg(any(test, feature = "visits"))]
mod counting {
    use std::cell::Cell;

    thread_local! {
        static VISITED: Cell<usize> = const { Cell::new(0) };
    }

    /// Notes that `records` were looked at.
    pub fn add(records: usize) {
        VISITED.set(VISITED.get() + records);
    }

    /// How many records this thread has looked at so far.
    #[must_use]
    pub fn total() -> usize {
        VISITED.get()
    }
}

#[cfg(any(test, feature = "visits"))]
pub use counting::{add, total};

/// Notes that `records` were looked at.
#[cfg(not(any(test, feature = "visits")))]
#[inline]
pub fn add(records: usize) {
    let _ = records;
}

/// Counts the records that an iterator yields.
pub fn each<I: IntoIterator>(records: I) -> impl Iterator<Item = I::Item> {
    records.into_iter().inspect(|_| add(1))
}
