//! The `longshore` binary: everything lives in the library of the same name.

use std::process::ExitCode;

fn main() -> ExitCode {
    longshore::main(std::env::args_os().collect())
}
