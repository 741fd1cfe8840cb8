//! The command line of Longshore.
//!
//! * [`flags`]: Go's flag syntax, values and shared flag groups; turns text into checked values.
//! * [`cli`]: the programs of the binary, each as `Flags` (what was typed) and `Config` (what can be run), and the dispatcher.
//! * [`client`]: `apply`, `get`, `describe`, `delete` and `logs`, for people without kubectl.
//! * [`plain`]: the provisioners that make directories, on the library `longshore-provisioner`.
//! * [`run`]: starts the parts of Longshore from a `Config`.
//!
//! Exit codes: 0 done, 1 failed, 2 wrong usage.

pub mod cli;
pub mod client;
pub mod flags;
pub mod plain;
pub mod run;
