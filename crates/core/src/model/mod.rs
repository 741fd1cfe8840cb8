//! The nouns: identities, sizes, durations, keys, and slim views of API objects.

pub mod age;
pub mod godur;
pub mod keys;
pub mod kinds;
mod quantity;

pub use kinds::{HasMeta, Kind, Meta, ObjectKey, ObjectRef};
pub use quantity::{BadQuantity, Format, Quantity};

/// What is known of something outside this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Seen {
    /// It is certainly not there.
    Absent,
    /// It is certainly there.
    Present,
    /// A call was sent and no verdict came back: it may have happened, it may happen yet.
    Unknown,
}
