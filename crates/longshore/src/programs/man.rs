//! `longshore man`.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

use crate::cli::{self, Program, Syntax, Threads};
use crate::flags::{Logging, UsageError};
use crate::reference::events::REASONS;
use crate::reference::exit_codes::{EXCEPTION, EXIT_CODES};

/// Flags of `longshore man`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Flags {
    /// Directory for the pages; it is made when it is not there.
    #[arg(value_name = "DIR")]
    dir: PathBuf,
}

/// What `longshore man` runs on.
pub(crate) struct Config {
    dir: PathBuf,
}

impl Program for Config {
    const NAME: &'static str = "man";
    const OFFICIAL: &'static [&'static str] = &[];
    const SUMMARY: &'static str = "Write manual pages of all programs into a directory";
    const EXAMPLES: &'static str = "longshore man /usr/local/share/man/man1";
    const SYNTAX: Syntax = Syntax::Kubectl;
    const THREADS: Threads = Threads::One;
    const RBAC: &'static [&'static str] = &[];

    type Flags = Flags;

    fn from_flags(flags: Flags) -> Result<Self, UsageError> {
        let Flags { dir } = flags;
        Ok(Self { dir })
    }

    fn logging(&self) -> Option<&Logging> {
        None
    }

    async fn run(self) -> anyhow::Result<()> {
        let pages = write_pages(&self.dir)?;
        cli::print(&format!("{} pages in {}\n", pages, self.dir.display()))
    }
}

/// Writes the page of the binary and one for each program; returns how many.
fn write_pages(dir: &Path) -> anyhow::Result<usize> {
    std::fs::create_dir_all(dir).with_context(|| format!("making {}", dir.display()))?;
    let tree = cli::help::tree();
    let mut pages = vec![("longshore".to_owned(), overview(&tree)?)];
    for program in tree.get_subcommands() {
        let name = format!("longshore-{}", program.get_name());
        let usage = format!("longshore {}", program.get_name());
        pages.push((name.clone(), page(program.clone().display_name(name).bin_name(usage))?));
    }
    for (name, text) in &pages {
        let file = dir.join(format!("{name}.1"));
        std::fs::write(&file, text).with_context(|| format!("writing {}", file.display()))?;
    }
    Ok(pages.len())
}

/// The page of one program.
fn page(command: clap::Command) -> anyhow::Result<Vec<u8>> {
    let mut text = Vec::new();
    Man::new(command).render(&mut text)?;
    exit_codes().to_writer(&mut text)?;
    see_also().to_writer(&mut text)?;
    Ok(text)
}

/// The page of the binary, with the reasons of events.
fn overview(tree: &clap::Command) -> anyhow::Result<Vec<u8>> {
    let mut text = Vec::new();
    Man::new(tree.clone().subcommand_help_heading("PROGRAMS")).render(&mut text)?;
    exit_codes().to_writer(&mut text)?;
    let mut events = Roff::new();
    events.control("SH", ["EVENTS"]);
    for reason in REASONS {
        events.control("TP", []);
        events.text([bold(reason.name)]);
        let mut means = String::new();
        _ = write!(means, "{}, about {}: {}.", reason.level, reason.about, reason.means);
        events.text([roman(means)]);
    }
    events.to_writer(&mut text)?;
    Ok(text)
}

fn exit_codes() -> Roff {
    let mut codes = Roff::new();
    codes.control("SH", ["EXIT STATUS"]);
    for (code, means) in EXIT_CODES {
        codes.control("TP", []);
        codes.text([bold(code.to_string())]);
        codes.text([roman(format!("{means}."))]);
    }
    codes.control("PP", []);
    codes.text([roman(EXCEPTION)]);
    codes
}

fn see_also() -> Roff {
    let mut also = Roff::new();
    also.control("SH", ["SEE ALSO"]);
    also.text([bold("longshore"), roman("(1)")]);
    also
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_program_has_a_page_with_its_flags_and_exit_codes() {
        let dir = tempfile::tempdir().unwrap();
        let into = dir.path().join("man1");
        let count = write_pages(&into).unwrap();
        assert_eq!(std::fs::read_dir(&into).unwrap().count(), count);
        let up = std::fs::read_to_string(into.join("longshore-up.1")).unwrap();
        for part in ["stop\\-timeout", "EXIT STATUS", "wrong usage", "longshore up"] {
            assert!(up.contains(part), "{part} is missing in\n{up}");
        }
        let all = std::fs::read_to_string(into.join("longshore.1")).unwrap();
        assert!(all.contains("EVENTS") && all.contains("FailedMount"), "{all}");
    }
}
