//! Go's flag syntax, rewritten into the one form that clap reads: `--name=value`.

use super::{UsageError, nearest};

/// Arguments in canonical form: each flag as `--name=value` (or `--help`).
pub type Normalized = Vec<String>;

/// Makes every switch of `command` take Go's forms: `--x`, `--x=true`, `--x=F`, and the last one given wins.
#[must_use]
pub fn goify(command: clap::Command) -> clap::Command {
    let is_duration = |arg: &clap::Arg| {
        arg.get_value_parser().type_id() == std::any::TypeId::of::<std::time::Duration>()
    };
    let is_optional_switch =
        |arg: &clap::Arg| arg.get_value_parser().type_id() == std::any::TypeId::of::<bool>();
    let switch = |arg: clap::Arg| {
        arg.action(clap::ArgAction::Set)
            .num_args(0..=1)
            .require_equals(true)
            .value_name("BOOL")
            .hide_possible_values(true)
            .value_parser(super::values::boolean)
            .default_missing_value("true")
    };
    command.args_override_self(true).mut_args(|arg| match arg.get_action() {
        clap::ArgAction::SetTrue => {
            let given = !arg.get_default_values().is_empty();
            let arg = switch(arg);
            if given { arg } else { arg.default_value("false").hide_default_value(true) }
        }
        _ if is_optional_switch(&arg) => switch(arg),
        _ if is_duration(&arg) => arg.value_name("DURATION"),
        _ => arg,
    })
}

/// A flag of a command line and its value. A question for help has none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Typed {
    /// The flag without its dashes.
    pub name: String,
    /// A switch without a value is `true`.
    pub value: String,
}

/// The name of the question for help, however it was asked.
pub const HELP: &str = "help";

/// Rewrites `args` (without the program's name) for `command`, which went through [`goify`].
///
/// `removed` lists flags that the official program once had, with what to write instead.
///
/// # Errors
/// On a flag that `command` does not know, a missing value, or a word that is no flag.
pub fn normalize(
    command: &clap::Command,
    args: &[String],
    removed: &[(&str, &'static str)],
) -> Result<Normalized, UsageError> {
    let given = typed(args, |flag, name| {
        let known = command.get_arguments().find(|known| known.get_long() == Some(name));
        known.map(is_switch).ok_or_else(|| unknown(command, flag, name, removed))
    })?;
    let canonical = given.into_iter().map(|Typed { name, value }| match name.as_str() {
        HELP => format!("--{HELP}"),
        _ => format!("--{name}={value}"),
    });
    Ok(canonical.collect())
}

/// Reads `args` as Go's flag package does. `is_switch` gets a flag as it was typed, and its name, and says whether it can
/// stand without a value.
///
/// # Errors
/// Those of `is_switch`, a missing value, or a word that is no flag.
pub fn typed(
    args: &[String],
    is_switch: impl Fn(&str, &str) -> Result<bool, UsageError>,
) -> Result<Vec<Typed>, UsageError> {
    let mut out = Vec::with_capacity(args.len());
    let mut add =
        |name: &str, value: &str| out.push(Typed { name: name.into(), value: value.into() });
    let mut rest = args.iter();
    let mut last_switch: Option<&str> = None;
    while let Some(arg) = rest.next() {
        if arg == "--" {
            if let Some(argument) = rest.next() {
                return Err(UsageError::UnexpectedArgument {
                    argument: argument.clone(),
                    advice: None,
                });
            }
            break;
        }
        let Some(body) = body(arg) else {
            return Err(stray_word(arg, last_switch));
        };
        let (name, value) = match body.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (body, None),
        };
        if matches!(name, HELP | "h") {
            add(HELP, "");
            continue;
        }
        let dashes = arg.len() - body.len();
        let switch = is_switch(&arg[..dashes + name.len()], name)?;
        last_switch = (switch && value.is_none()).then_some(name);
        let value = match value {
            Some(value) => value,
            None if switch => "true",
            None => {
                rest.next().ok_or_else(|| UsageError::MissingValue { flag: format!("--{name}") })?
            }
        };
        add(name, value);
    }
    Ok(out)
}

/// The flag without its dashes, or nothing when the argument is no flag.
fn body(arg: &str) -> Option<&str> {
    let body = arg.strip_prefix("--").or_else(|| arg.strip_prefix('-'))?;
    (!body.is_empty() && !body.starts_with(['-', '='])).then_some(body)
}

/// Whether a flag of a command that went through [`goify`] can stand without a value.
#[must_use]
pub fn is_switch(arg: &clap::Arg) -> bool {
    arg.get_num_args().is_some_and(|range| range.min_values() == 0)
}

/// Go reads `--x false` as the switch `--x` followed by a word; people mean `--x=false`.
fn stray_word(word: &str, last_switch: Option<&str>) -> UsageError {
    let advice = last_switch
        .filter(|_| super::values::boolean(word).is_ok())
        .map(|name| format!("write --{name}={word}"));
    UsageError::UnexpectedArgument { argument: word.to_owned(), advice }
}

fn unknown(
    command: &clap::Command,
    flag: &str,
    name: &str,
    removed: &[(&str, &'static str)],
) -> UsageError {
    let flag = flag.to_owned();
    if let Some((_, advice)) = removed.iter().find(|(gone, _)| *gone == name) {
        return UsageError::RemovedFlag { flag, advice };
    }
    let longs = command
        .get_arguments()
        .filter(|known| !known.is_hide_set())
        .filter_map(clap::Arg::get_long)
        .chain([HELP]);
    UsageError::UnknownFlag { flag, nearest: nearest(name, longs).map(|name| format!("--{name}")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{Arg, ArgAction, Command};

    fn command() -> Command {
        goify(
            Command::new("test")
                .arg(Arg::new("v").long("v").short('v'))
                .arg(Arg::new("timeout").long("timeout"))
                .arg(Arg::new("csi-address").long("csi-address"))
                .arg(Arg::new("feature-gates").long("feature-gates").action(ArgAction::Append))
                .arg(
                    Arg::new("leader-election").long("leader-election").action(ArgAction::SetTrue),
                ),
        )
    }

    fn run(line: &str) -> Result<String, String> {
        let args: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        normalize(&command(), &args, &[("provisioner", "ask the driver")])
            .map(|args| args.join(" "))
            .map_err(|error| error.to_string())
    }

    #[test]
    fn rewrites_go_syntax() {
        for (typed, canonical) in [
            ("", ""),
            ("-v=5", "--v=5"),
            ("-v 5", "--v=5"),
            ("--v 5", "--v=5"),
            ("--v=5", "--v=5"),
            ("-csi-address=/a=b", "--csi-address=/a=b"),
            ("-csi-address /a", "--csi-address=/a"),
            ("--timeout -5s", "--timeout=-5s"),
            ("--timeout=", "--timeout="),
            ("--timeout --v", "--timeout=--v"),
            ("--leader-election", "--leader-election=true"),
            ("-leader-election", "--leader-election=true"),
            ("--leader-election=false -v 1", "--leader-election=false --v=1"),
            ("--leader-election --v=1", "--leader-election=true --v=1"),
            ("--feature-gates=A=true,B=false", "--feature-gates=A=true,B=false"),
            ("-help", "--help"),
            ("-h", "--help"),
            ("--v=1 --", "--v=1"),
        ] {
            assert_eq!(run(typed).as_deref(), Ok(canonical), "{typed}");
        }
    }

    #[test]
    fn refuses_with_a_sentence() {
        for (typed, sentence) in [
            ("--timout=1s", "unknown flag --timout; did you mean --timeout?"),
            ("-leader-electoin", "unknown flag -leader-electoin; did you mean --leader-election?"),
            ("--qqqq", "unknown flag --qqqq"),
            ("--timeout", "--timeout needs a value: write --timeout=VALUE"),
            ("extra", "unexpected argument `extra`"),
            ("-- extra", "unexpected argument `extra`"),
            ("-", "unexpected argument `-`"),
            ("---v=1", "unexpected argument `---v=1`"),
            ("--=1", "unexpected argument `--=1`"),
            (
                "--leader-election false",
                "unexpected argument `false`; write --leader-election=false",
            ),
            ("--leader-election zebra", "unexpected argument `zebra`"),
            (
                "-provisioner=x",
                "-provisioner was removed from the official program; ask the driver",
            ),
        ] {
            assert_eq!(run(typed), Err(sentence.to_owned()), "{typed}");
        }
    }

    #[test]
    fn clap_reads_what_comes_out() {
        for (typed, on) in [
            ("", false),
            ("--leader-election", true),
            ("--leader-election=T", true),
            ("--leader-election=1", true),
            ("--leader-election=FALSE", false),
            ("--leader-election --leader-election=0", false),
        ] {
            let args = run(typed).unwrap();
            let line = std::iter::once("test").chain(args.split_whitespace());
            let matches = command().try_get_matches_from(line).unwrap();
            assert_eq!(matches.get_one::<bool>("leader-election"), Some(&on), "{typed}");
        }
    }
}
