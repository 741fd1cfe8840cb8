//! What users look up: exit codes, reasons of events, and from the table of programs their flags.
//!
//! `longshore man` and the pages of `docs/reference` are made from it; tests compare the pages with it, and it with the
//! code.

pub(crate) mod events;
pub(crate) mod exit_codes;
#[cfg(test)]
mod exit_codes_in_code;
#[cfg(test)]
mod markdown;
#[cfg(test)]
mod reasons_in_code;
