//! `longshore completions`.

use clap::{Arg, ArgAction, Command};

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
    Powershell,
}

impl From<Shell> for clap_complete::Shell {
    fn from(shell: Shell) -> Self {
        match shell {
            Shell::Bash => Self::Bash,
            Shell::Zsh => Self::Zsh,
            Shell::Fish => Self::Fish,
            Shell::Powershell => Self::PowerShell,
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
        let mut tree = with_plain_switches(cli::help::tree());
        clap_complete::generate(shell, &mut tree, "longshore", &mut script);
        let script = String::from_utf8_lossy(&script).into_owned();
        match self.shell {
            Shell::Bash => format!("{script}\n{BASH}"),
            Shell::Zsh => with_zsh_words(&script),
            Shell::Fish => format!("{script}\n{}", fish_words()),
            Shell::Powershell => script,
        }
    }
}

/// A switch is completed without the value that it may have.
fn with_plain_switches(command: Command) -> Command {
    let may_be_bare = |arg: &Arg| arg.get_num_args().is_some_and(|range| range.min_values() == 0);
    let plain = |arg: Arg| {
        let mut new = Arg::new(arg.get_id().clone()).action(ArgAction::SetTrue);
        new = new.hide(arg.is_hide_set()).short(arg.get_short());
        if let Some(long) = arg.get_long() {
            new = new.long(long.to_owned());
        }
        match arg.get_help() {
            Some(help) => new.help(help.clone()),
            None => new,
        }
    };
    let command = command.mut_args(|arg| if may_be_bare(&arg) { plain(arg) } else { arg });
    command.mut_subcommands(with_plain_switches)
}

/// Asks the server first; what it has no candidates for is completed by the static part.
const BASH: &str = r#"_longshore_words() {
    local IFS=$' \t\n' cur=${COMP_WORDS[COMP_CWORD]} found
    local words=("${COMP_WORDS[@]:1:COMP_CWORD}")
    if [[ $COMP_CWORD -ge 2 ]]; then
        found=$("${COMP_WORDS[0]}" complete-words "${words[@]}" 2>/dev/null)
        if [[ -n $found ]]; then
            COMPREPLY=($(compgen -W "$found" -- "$cur"))
            return 0
        fi
    fi
    _longshore "$@"
}
complete -F _longshore_words -o nosort -o bashdefault -o default longshore
"#;

const ZSH: &str = r#"_longshore_words() {
    if (( CURRENT >= 3 )); then
        local -a found
        found=(${(f)"$(${words[1]} complete-words "${(@)words[2,CURRENT]}" 2>/dev/null)"})
        if (( ${#found} )); then
            compadd -- $found
            return 0
        fi
    fi
    _longshore "$@"
}
"#;

/// Puts our function before the call, or the registration, that ends clap's script.
fn with_zsh_words(script: &str) -> String {
    let ours = script
        .replace("    _longshore \"$@\"\n", "    _longshore_words \"$@\"\n")
        .replace("compdef _longshore longshore", "compdef _longshore_words longshore");
    match ours.rfind("if [ \"$funcstack[1]\"") {
        Some(end) => format!("{}{ZSH}\n{}", &ours[..end], &ours[end..]),
        None => format!("{ours}\n{ZSH}"),
    }
}

fn fish_words() -> String {
    let commands = super::client::complete::commands().join(" ");
    let found = "(longshore complete-words (commandline -opc)[2..] (commandline -ct) 2>/dev/null)";
    let ours = format!("complete -c longshore -n '__fish_seen_subcommand_from {commands}'");
    // The value of a flag is completed by the flag's own line.
    format!("{ours} -f -a '{found}'\n{ours} -x -s n -l namespace -a '{found}'\n")
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
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish, Shell::Powershell] {
            let script = Completions { shell }.script();
            assert!(script.contains("provisioner") && script.contains("csi-address"), "{shell:?}");
            assert_eq!(script.contains("complete-words"), shell != Shell::Powershell, "{shell:?}");
        }
    }

    #[test]
    fn zsh_calls_our_function_however_the_script_is_loaded() {
        let script = Completions { shell: Shell::Zsh }.script();
        assert!(script.contains("    _longshore_words \"$@\"\n"), "as a file of fpath");
        assert!(script.contains("compdef _longshore_words longshore"), "as a sourced file");
        let (defined, called) =
            (script.find("_longshore_words() {"), script.find("if [ \"$funcstack[1]\""));
        assert!(defined.is_some() && defined < called, "defined before it is called");
    }
}
