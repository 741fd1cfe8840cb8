//! The nouns: identities, sizes, durations, keys, and slim views of API objects.

pub mod age;
pub mod go_duration;
mod ids;
pub mod keys;
pub mod kinds;
mod quantity;
pub mod streams;
mod text;
mod tree;
mod words;

pub use ids::{DriverName, NodeName, Uid, VolumeHandle, VolumeName};
pub use kinds::{HasMeta, Kind, Meta, ObjectKey, ObjectRef};
pub use quantity::{BadQuantity, Format, Quantity};
pub(crate) use text::text_types;
pub use tree::{Tree, TreeWelcome};
pub use words::{
    AccessMode, ClaimPhase, DeletionPolicy, PodPhase, ReclaimPolicy, StorageHealthType,
    VolumeHealthType, VolumeMode, VolumePhase,
};
