//! Help: the programs as clap sees them.

use crate::flags::goify;
use crate::programs::PROGRAMS;

use super::program::{Entry, Row};
use super::upstream;

/// Rows of all programs that users start, in the order of the help.
fn entries() -> impl Iterator<Item = (&'static Row, &'static Entry)> {
    PROGRAMS.iter().filter_map(|row| row.entry().map(|entry| (row, entry)))
}

/// Names of all programs that users start.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    entries().map(|(row, _)| row.name)
}

/// The program `entry`, called `name`.
pub(crate) fn command(name: &'static str, entry: &Entry) -> clap::Command {
    let named = |row: &&Row| row.name == name || row.official.contains(&name);
    let matched = PROGRAMS.iter().find(named).and_then(|row| upstream::sentence(row.official));
    let matched = matched.map(|text| format!("\n\n{text}")).unwrap_or_default();
    let command = clap::Command::new(name)
        .disable_version_flag(true)
        .disable_help_flag(true)
        .arg(help_flag())
        .after_help(format!("Examples:\n  {}{matched}", entry.examples));
    // The summary comes last: flag groups bring their own, which describe the group.
    goify((entry.augment)(command)).about(entry.summary).long_about(None)
}

/// One form of help, the compact one.
fn help_flag() -> clap::Arg {
    clap::Arg::new("help")
        .short('h')
        .long("help")
        .help("Print help")
        .action(clap::ArgAction::HelpShort)
        .display_order(1000)
}

/// The whole binary, for help and completions.
pub(crate) fn tree() -> clap::Command {
    let official: Vec<&str> = entries().flat_map(|(row, _)| row.official).copied().collect();
    clap::Command::new("longshore")
        .about("Kubernetes storage, end to end, in one binary.")
        .version(super::VERSION)
        .disable_help_subcommand(true)
        .disable_help_flag(true)
        .arg(help_flag())
        .subcommand_required(true)
        .subcommands(entries().map(|(row, entry)| command(row.name, entry)))
        .after_help(format!(
            "Start with `longshore demo`, then `longshore up`.\n\
             Started through a link named {}, the binary behaves as that program.\n\
             Flags are written as in Go: --flag=value, -flag value, --switch=false, durations as 1m30s.\n\
             Matched: {}; Kubernetes {} and CSI {}.\n\
             Exit codes: 0 done, 1 failed, 2 wrong usage.",
            official.join(" or "),
            upstream::list(),
            upstream::KUBERNETES,
            upstream::CSI
        ))
}
