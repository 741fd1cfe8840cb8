//! Flags: from what was typed to values that cannot be wrong.
//!
//! The official sidecars are Go programs, so their manifests use Go's flag syntax: one dash or two, `--flag=value` or
//! `--flag value`, switches as `--flag` or `--flag=false`. [`normalize()`] rewrites such arguments into the one form
//! that clap reads, and [`values`] reads the values as Go does.
//!
//! A loop declares its flags where it declares its settings: its `Config` derives [`clap::Args`], the program of that
//! loop flattens it, and [`defaults`] gives the same settings to whoever starts the loop without a command line.

#![warn(unreachable_pub)]

mod environment;
mod error;
mod gates;
mod nearest;
mod normalize;
mod throttle;
pub mod values;

pub use environment::Environment;
pub use error::UsageError;
pub use gates::{Gate, Gates, Stage, gates_help};
pub use nearest::nearest;
pub use normalize::{HELP, Normalized, Typed, goify, is_switch, normalize, typed};
pub use throttle::Throttle;

use std::time::Duration;

/// Checks a pair of delays after failures, which sidecars call `--retry-interval-start` and `--retry-interval-max`.
///
/// # Errors
/// When the first delay is longer than the longest.
pub fn check_backoff(start: Duration, max: Duration) -> Result<(), UsageError> {
    if start > max {
        return Err(UsageError::Together(
            "--retry-interval-start may not be longer than --retry-interval-max".into(),
        ));
    }
    Ok(())
}

/// Returns the settings of an empty command line.
///
/// # Panics
/// When a flag of `A` is required or its declared default cannot be read; a test of each group finds that.
#[must_use]
pub fn defaults<A: clap::Args>() -> A {
    let command = goify(A::augment_args(clap::Command::new("defaults")));
    let matches = command.no_binary_name(true).try_get_matches_from(std::iter::empty::<&str>());
    matches.and_then(|matches| A::from_arg_matches(&matches)).expect("every flag has a default")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, clap::Args)]
    struct Settings {
        #[arg(long, default_value = "15s", value_parser = values::positive_duration)]
        timeout: Duration,
        #[arg(long, default_value_t = true)]
        topology: bool,
        #[arg(long, default_value = "10", value_parser = workers)]
        worker_threads: u32,
        #[arg(skip = true)]
        gate: bool,
    }

    fn workers(text: &str) -> Result<u32, UsageError> {
        match text.parse() {
            Ok(number) if number > 0 => Ok(number),
            _ => Err(UsageError::AsOfficial("--worker-threads must be greater than zero".into())),
        }
    }

    #[test]
    fn defaults_are_the_declared_ones() {
        let want = Settings {
            timeout: Duration::from_secs(15),
            topology: true,
            worker_threads: 10,
            gate: true,
        };
        assert_eq!(defaults::<Settings>(), want);
    }

    #[test]
    fn refusal_of_a_value_parser_keeps_its_sentence_and_exit_code() {
        let command = <Settings as clap::Args>::augment_args(clap::Command::new("test"));
        let line = ["--worker-threads=0"];
        let error = command.no_binary_name(true).try_get_matches_from(line).unwrap_err();
        let refused = UsageError::from_clap(&error);
        assert_eq!(refused.to_string(), "--worker-threads must be greater than zero");
        assert_eq!(refused.exit_code(), 1);
    }
}
