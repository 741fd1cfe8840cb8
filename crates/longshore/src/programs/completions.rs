//! `longshore completions`.

use crate::cli::{self, Program, Syntax, Threads};
use crate::flags::{Logging, UsageError};

/// Flags of `longshore completions`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Flags {
    /// The shell.
    #[arg(value_enum)]
    shell: Shell,
}

/// A shell that completions exist for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Shell {
    Bash,
    Zsh,
    Fish,
}

impl From<Shell> for clap_complete::Shell {
    fn from(shell: Shell) -> Self {
        match shell {
            Shell::Bash => Self::Bash,
            Shell::Zsh => Self::Zsh,
            Shell::Fish => Self::Fish,
        }
    }
}

/// What `longshore completions` runs on.
pub(crate) struct Completions {
    shell: Shell,
}

impl Completions {
    fn script(&self) -> String {
        let mut script = Vec::new();
        let shell = clap_complete::Shell::from(self.shell);
        clap_complete::generate(shell, &mut cli::help::tree(), "longshore", &mut script);
        String::from_utf8_lossy(&script).into_owned()
    }
}

impl Program for Completions {
    const NAME: &'static str = "completions";
    const OFFICIAL: &'static [&'static str] = &[];
    const SUMMARY: &'static str = "Print completions for a shell";
    const EXAMPLES: &'static str = "longshore completions bash > /etc/bash_completion.d/longshore";
    const SYNTAX: Syntax = Syntax::Kubectl;
    const THREADS: Threads = Threads::One;
    const RBAC: &'static [&'static str] = &[];

    type Flags = Flags;

    fn from_flags(flags: Flags) -> Result<Self, UsageError> {
        let Flags { shell } = flags;
        Ok(Self { shell })
    }

    fn logging(&self) -> Option<&Logging> {
        None
    }

    async fn run(self) -> anyhow::Result<()> {
        cli::print(&self.script())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_name_programs_and_flags() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let script = Completions { shell }.script();
            assert!(script.contains("provisioner") && script.contains("csi-address"), "{shell:?}");
        }
    }
}
