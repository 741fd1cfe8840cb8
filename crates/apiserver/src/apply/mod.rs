//! Who manages which fields, and server-side apply.
//!
//! ```text
//! configuration ──► named fields ─┐
//! object + configuration ─► merge ├─► compare with the object ─► conflicts? ─► managers
//! fields no longer named ─► remove┘
//! ```
//!
//! A plain write is compared too: what it changed becomes the writer's. `shape` knows how a kind's
//! lists and maps are divided among managers; `registry::facts` holds what built-in types do not say.

mod managers;
mod merge;
mod set;
mod shape;

pub(crate) use managers::{Managers, Writer, conflict, strip};
pub(crate) use merge::{Changes, compare, merge, named, remove};
pub(crate) use set::FieldSet;
pub(crate) use shape::Shape;
