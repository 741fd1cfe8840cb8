//! The hidden command that shells ask for candidates: `longshore complete-words COMMAND WORD… LAST`.
//!
//! It prints a candidate a line and never fails: without a server a shell completes commands, flags and files only.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use crate::cli::{Action, Start, Threads, block_on, print};
use crate::client::Access;
use crate::client::complete::{Wanted, candidates};
use crate::flags::UsageError;

/// Prints candidates for a shell; the scripts of `longshore completions` call it.
pub(crate) const NAME: &str = "complete-words";

/// Commands whose words are a kind and names.
const KIND_FIRST: &[&str] =
    &["get", "describe", "delete", "wait", "patch", "edit", "label", "annotate"];
/// Commands whose words are pods.
const PODS: &[&str] = &["logs", "exec", "attach"];
/// Flags of those commands with a value of their own, by their short and long names.
const WITH_VALUE: &[&str] = &[
    "-n",
    "--namespace",
    "-o",
    "--output",
    "-l",
    "--selector",
    "-L",
    "--label-columns",
    "-f",
    "--filename",
    "-c",
    "--container",
    "-p",
    "--patch",
    "--patch-file",
    "--field-selector",
    "--sort-by",
    "--for",
    "--timeout",
    "--grace-period",
    "--type",
    "--kubeconfig",
    "--types",
    "--subresource",
    "--field-manager",
    "--dry-run",
];

/// The commands whose words have candidates.
pub(crate) fn commands() -> Vec<&'static str> {
    [KIND_FIRST, PODS].concat()
}

pub(crate) fn read(args: &[OsString]) -> Result<Action, UsageError> {
    let words: Vec<String> = args.iter().map(|arg| arg.to_string_lossy().into_owned()).collect();
    Ok(Action::Run(Start::new(NAME, move || {
        let question = question(&words);
        block_on(Threads::One, async move {
            let Some((access, wanted)) = question else { return Ok(()) };
            let lines = candidates(access, wanted).await;
            print(&lines.iter().map(|line| format!("{line}\n")).collect::<String>())
        })?;
        Ok(ExitCode::SUCCESS)
    })))
}

/// What the words before the cursor ask for; the last one is being typed.
fn question(words: &[String]) -> Option<(Access, Wanted)> {
    let (typed, before) = words.split_last()?;
    let (command, rest) = before.split_first()?;
    let (mut access, mut namespace) = (Access::default(), None);
    let mut named = Vec::new();
    let mut open_flag = None;
    for word in rest {
        let (flag, value) = match word.split_once('=') {
            Some((flag, value)) if word.starts_with('-') => (flag, Some(value)),
            _ => (word.as_str(), None),
        };
        match (open_flag.take(), value) {
            (Some(flag), _) => keep(flag, word, &mut access, &mut namespace),
            (None, Some(value)) => keep(flag, value, &mut access, &mut namespace),
            (None, None) if WITH_VALUE.contains(&flag) => open_flag = Some(flag),
            (None, None) if flag.starts_with('-') => {}
            (None, None) => named.push(word.as_str()),
        }
    }
    match open_flag {
        Some("-n" | "--namespace") => return Some((access, Wanted::Namespaces)),
        Some(_) => return None,
        None if typed.starts_with('-') => return None,
        None => {}
    }
    let names = |kind: &str, prefix: String| Wanted::Names {
        kind: kind.to_owned(),
        prefix,
        namespace: namespace.clone(),
    };
    let wanted = match (typed.split_once('/'), named.first()) {
        _ if PODS.contains(&command.as_str()) && named.is_empty() => names("pods", String::new()),
        _ if !KIND_FIRST.contains(&command.as_str()) => return None,
        (Some((kind, _)), _) => names(kind, format!("{kind}/")),
        (None, None) => Wanted::Kinds,
        (None, Some(kind)) if !kind.contains(['/', ',']) => names(kind, String::new()),
        (None, Some(_)) => return None,
    };
    Some((access, wanted))
}

/// Remembers the flags that say where to look.
fn keep(flag: &str, value: &str, access: &mut Access, namespace: &mut Option<String>) {
    match flag {
        "-n" | "--namespace" => *namespace = Some(value.to_owned()),
        "--kubeconfig" => access.kubeconfig = Some(PathBuf::from(value)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_before_the_cursor_say_what_is_wanted() {
        let names = |kind: &str, prefix: &str, namespace: Option<&str>| Wanted::Names {
            kind: kind.into(),
            prefix: prefix.into(),
            namespace: namespace.map(str::to_owned),
        };
        for (line, wanted) in [
            ("get |", Some(Wanted::Kinds)),
            ("get po|", Some(Wanted::Kinds)),
            ("get -o yaml p|", Some(Wanted::Kinds)),
            ("get pvc |", Some(names("pvc", "", None))),
            ("get pvc -n demo da|", Some(names("pvc", "", Some("demo")))),
            ("get pvc --namespace=demo |", Some(names("pvc", "", Some("demo")))),
            ("get pod/w|", Some(names("pod", "pod/", None))),
            ("delete pvc a |", Some(names("pvc", "", None))),
            ("wait --for=delete pod/|", Some(names("pod", "pod/", None))),
            ("get -n |", Some(Wanted::Namespaces)),
            ("logs |", Some(names("pods", "", None))),
            ("logs web |", None),
            ("get pvc -o |", None),
            ("get pvc --sh|", None),
            ("apply |", None),
            ("up |", None),
            ("|", None),
        ] {
            let line = line.strip_suffix('|').unwrap();
            let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
            assert_eq!(question(&words).map(|(_, wanted)| wanted), wanted, "{line}");
        }
        let words = ["get", "--kubeconfig", "/k", ""].map(str::to_owned);
        assert_eq!(question(&words).unwrap().0.kubeconfig, Some(PathBuf::from("/k")));
    }
}
