//! The command line of Longshore.
//!
//! * `cli`: the way from `argv` to a program: what a program declares, dispatch, help.
//! * `programs`: the programs, each with its flags, its configuration and what it runs, and the table of them.
//! * `flags`: groups of flags that several programs share.
//! * `client`: what `apply`, `get`, `describe`, `delete` and `logs` do, for people without kubectl.
//! * `directory_provisioners`: provisioners that make directories, on the library `longshore-provisioner`.
//! * `process`: log, limits and memory of the process.
//! * `reference`: exit codes and reasons of events, for manual pages and `docs/reference`.
//!
//! Exit codes: 0 done, 1 failed, 2 wrong usage.

#![warn(unreachable_pub)]

mod cli;
mod client;
mod directory_provisioners;
mod flags;
mod process;
#[deny(dead_code, reason = "a program that nothing uses has no row in the table of programs")]
mod programs;
mod reference;

pub use cli::main;
