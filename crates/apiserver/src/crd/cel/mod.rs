//! CEL: parsing and evaluation with a bound on everything.
//!
//! Expressions are a definition's, values are a tenant's, and a short expression can ask for any amount
//! of time and memory. What is evaluated is counted as upstream counts it (`meter`); what the count does
//! not cover, such as copies that this implementation makes, is counted beside it.

mod calls;
mod eval;
mod meter;
mod parse;
mod plan;
mod types;
mod values;

pub(super) use eval::{Eval, Stop};
pub(super) use meter::Meter;
pub(super) use parse::{MAX_TOGETHER, parse};
pub(super) use values::Kind;
