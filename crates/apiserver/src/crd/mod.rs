//! Custom resources: definitions, and the kinds they lead to.
//!
//! ```text
//! definition (stored) ──► housekeeping: names accepted? ──► registry with its versions
//!                                                              │
//!                     columns ◄── Custom ──► prune, default, validate, rules
//! ```
//!
//! A definition is read once per change: schema, patterns, rules and columns are compiled then.
//! Every served version becomes one entry of the registry; all of them share the stored objects.

mod cel;
mod columns;
mod cost;
mod custom;
pub(crate) mod definition;
mod functions;
mod group_contents;
mod naming;
mod pattern;
mod rules;
mod schema;
mod structural;
mod typing;
mod validate;

pub(crate) use custom::{Custom, resources, scale_of, unserved};
pub(crate) use naming::{Names, is_established, settle, version_rank};
pub(crate) use schema::{Additional, ListKind, Schema, Type};
