//! Files of the host that root handles for others, and what else driver and node agent share.
//!
//! A pod may rename what it owns at any moment, so a path that was looked at is not the path that is
//! acted on. Everything here therefore goes by descriptors: links are never followed, mount points
//! are never crossed, and the object that was looked at is the object that is changed.

#![warn(missing_docs, unreachable_pub)]

pub mod fault;
pub mod holders;
pub mod mounts;
mod place;
mod private;
mod remove;
mod swap;
mod tail;
mod walk;

pub use place::{NewFile, write_below};
pub use private::{make_private_dir, open_private, write_private};
pub use remove::{fresh_name, remove_tree, remove_within};
pub use swap::write_together;
pub use tail::read_end;
pub use walk::{Entry, Tree, names};
