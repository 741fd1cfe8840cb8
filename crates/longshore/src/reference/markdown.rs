//! The pages of `docs/reference`, from the table of programs and the tables beside this file.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;

use super::events::REASONS;
use super::exit_codes::{EXCEPTION, EXIT_CODES};
use crate::cli::help;

/// With this variable, the pages are written again.
const BLESS: &str = "LONGSHORE_BLESS";

const HEAD: &str = "<!-- Written by `LONGSHORE_BLESS=1 cargo test -p longshore --lib reference`; do not edit. -->\n";

/// Text that may stand in a cell of a table.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ").replace('<', "&lt;")
}

/// The name of a flag as it is typed, with the word for its value.
fn typed(arg: &clap::Arg) -> String {
    let mut text = String::new();
    match (arg.get_short(), arg.get_long()) {
        (Some(short), Some(long)) if long.len() == 1 => write!(text, "-{short}"),
        (Some(short), Some(long)) => write!(text, "-{short}, --{long}"),
        (Some(short), None) => write!(text, "-{short}"),
        (None, Some(long)) => write!(text, "--{long}"),
        (None, None) => Ok(()),
    }
    .expect("writing to a string");
    if takes_value(arg) {
        let names = arg.get_value_names().unwrap_or_default();
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        let names = if names.is_empty() {
            arg.get_id().to_string().to_uppercase()
        } else {
            names.join(" ")
        };
        if !text.is_empty() {
            text.push(' ');
        }
        text += &names;
    }
    text
}

fn takes_value(arg: &clap::Arg) -> bool {
    let values = arg.get_possible_values();
    let switch = values.len() == 2 && values.iter().any(|value| value.get_name() == "true");
    arg.get_action().takes_values() && !switch
}

fn default(arg: &clap::Arg) -> String {
    if arg.is_required_set() {
        return "(required)".to_owned();
    }
    let values: Vec<String> = arg
        .get_default_values()
        .iter()
        .map(|value| value.to_string_lossy().into_owned())
        .filter(|value| !value.is_empty())
        .collect();
    match (values.is_empty(), takes_value(arg)) {
        (true, false) => "`false`".to_owned(),
        (true, true) => String::new(),
        (false, _) => format!("`{}`", values.join(",")),
    }
}

fn meaning(arg: &clap::Arg) -> String {
    let mut text = arg.get_help().map(ToString::to_string).unwrap_or_default();
    let values: Vec<String> = arg
        .get_possible_values()
        .iter()
        .filter(|value| !value.is_hide_set())
        .map(|value| format!("`{}`", value.get_name()))
        .collect();
    if takes_value(arg) && !values.is_empty() {
        text += &format!("; one of {}", values.join(", "));
    }
    if let Some(variable) = arg.get_env() {
        text += &format!("; from `{}` when it is not given", variable.to_string_lossy());
    }
    cell(text.trim())
}

/// The page of one program.
fn page(command: &clap::Command) -> String {
    let mut command = command.clone();
    let name = command.get_name().to_owned();
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    let usage = command.render_usage().to_string();
    let usage = usage.trim_start_matches("Usage: ");
    let mut text =
        format!("{HEAD}# longshore {name}\n\n{}.\n\n```text sketch\n{usage}\n```\n", cell(&about));
    // In the order of the help; flags without a heading come first.
    let mut groups: Vec<(String, Vec<&clap::Arg>)> = vec![("Flags".to_owned(), Vec::new())];
    for arg in command.get_arguments().filter(|arg| !arg.is_hide_set()) {
        let heading = match (arg.is_positional(), arg.get_help_heading()) {
            (true, _) => "Arguments",
            (false, heading) => heading.unwrap_or("Flags"),
        };
        match groups.iter_mut().find(|(name, _)| name == heading) {
            Some((_, args)) => args.push(arg),
            None => groups.push((heading.to_owned(), vec![arg])),
        }
    }
    for (heading, args) in groups.into_iter().filter(|(_, args)| !args.is_empty()) {
        _ = write!(text, "\n## {heading}\n\n| flag | default | meaning |\n|---|---|---|\n");
        for arg in args {
            _ = writeln!(text, "| `{}` | {} | {} |", typed(arg), default(arg), meaning(arg));
        }
    }
    if let Some(examples) = command.get_after_help() {
        let examples = examples.to_string();
        let examples = examples.trim_start_matches("Examples:").lines().map(str::trim);
        let examples: Vec<&str> = examples.filter(|line| !line.is_empty()).collect();
        _ = write!(text, "\n## Examples\n\n```text sketch\n{}\n```\n", examples.join("\n"));
    }
    text
}

fn exit_codes() -> String {
    let rows = EXIT_CODES.iter().map(|(code, means)| format!("| {code} | {} |\n", cell(means)));
    format!(
        "{HEAD}# Exit codes\n\nOf every program. {EXCEPTION}\n\n| code | means |\n|---|---|\n{}",
        rows.collect::<String>()
    )
}

fn events() -> String {
    let rows = REASONS.iter().map(|reason| {
        let means = cell(reason.means);
        format!("| `{}` | {} | {} | {means} |\n", reason.name, reason.about, reason.level)
    });
    format!(
        "{HEAD}# Reasons of events\n\nWhat `kubectl describe` and `kubectl events` show in the column Reason, in the order of a \
         volume's life. Where Kubernetes has\na word for it, the word is Kubernetes'.\n\n\
         | reason | about | type | means |\n|---|---|---|---|\n{}",
        rows.collect::<String>()
    )
}

fn index(programs: &[clap::Command]) -> String {
    let rows = programs.iter().map(|command| {
        let about = command.get_about().map(ToString::to_string).unwrap_or_default();
        format!("| [`{0}`]({0}.md) | {1} |\n", command.get_name(), cell(&about))
    });
    format!(
        "{HEAD}# Reference\n\nMade from the programs themselves; a test compares it with them. The same is in the manual \
         pages that\n`longshore man DIR` writes.\n\n* [Exit codes](exit-codes.md)\n* [Reasons of events](event-reasons.md)\n\n\
         | program | what it does |\n|---|---|\n{}",
        rows.collect::<String>()
    )
}

/// Every page, by its file name.
fn pages() -> BTreeMap<String, String> {
    let tree = help::tree();
    let programs: Vec<clap::Command> = tree.get_subcommands().cloned().collect();
    let mut pages: BTreeMap<String, String> = programs
        .iter()
        .map(|command| {
            let named = command.clone().bin_name(format!("longshore {}", command.get_name()));
            (format!("{}.md", command.get_name()), page(&named))
        })
        .collect();
    let others = [
        ("README.md", index(&programs)),
        ("exit-codes.md", exit_codes()),
        ("event-reasons.md", events()),
    ];
    for (name, text) in others {
        assert_eq!(pages.insert(name.to_owned(), text), None, "a program has the page {name}");
    }
    pages
}

#[test]
fn the_reference_is_what_the_programs_say() {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference");
    let want = pages();
    if std::env::var_os(BLESS).is_some() {
        _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).unwrap();
        for (name, text) in &want {
            std::fs::write(dir.join(name), text).unwrap();
        }
    }
    let old = "is old: run `LONGSHORE_BLESS=1 cargo test -p longshore --lib reference`";
    for (name, text) in &want {
        let found = std::fs::read_to_string(dir.join(name)).unwrap_or_default();
        assert!(found == *text, "docs/reference/{name} {old}");
    }
    for entry in std::fs::read_dir(&dir).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(want.contains_key(&name), "docs/reference/{name} {old}");
    }
}

#[test]
fn every_flag_is_explained() {
    for command in help::tree().get_subcommands() {
        for arg in command.get_arguments().filter(|arg| !arg.is_hide_set()) {
            assert!(!meaning(arg).is_empty(), "{}: {}", command.get_name(), typed(arg));
        }
    }
}
