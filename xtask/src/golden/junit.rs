//! JUnit XML.

use std::{fmt::Write as _, fs, path::Path};

use anyhow::{Context as _, Result};

use super::ratchet::{Case, Outcome};

/// Writes a report. Known failures are marked as skipped, so that only news is red.
pub fn write(file: &Path, name: &str, cases: &[Case], known: &dyn Fn(&Case) -> bool) -> Result<()> {
    if let Some(dir) = file.parent() {
        fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    }
    let text = report(name, cases, known);
    fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
}

fn report(name: &str, cases: &[Case], known: &dyn Fn(&Case) -> bool) -> String {
    let bodies: Vec<(&Case, Option<(&str, String)>)> =
        cases.iter().map(|case| (case, body(case, known(case)))).collect();
    let count = |tag| bodies.iter().filter(|(_, b)| b.as_ref().is_some_and(|b| b.0 == tag)).count();
    let (tests, failures, skipped) = (cases.len(), count("failure"), count("skipped"));
    let name = escape(name);
    let mut out = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuite name=\"{name}\" tests=\"{tests}\" \
         failures=\"{failures}\" skipped=\"{skipped}\">\n"
    );
    for (case, body) in &bodies {
        let (suite, name) = (escape(&case.suite), escape(&case.name));
        let seconds = case.seconds;
        let _ =
            write!(out, "  <testcase classname=\"{suite}\" name=\"{name}\" time=\"{seconds:.3}\"");
        let _ = match body {
            None => writeln!(out, "/>"),
            Some((tag, text)) => {
                let text = escape(text);
                writeln!(out, "><{tag} message=\"{text}\"/></testcase>")
            }
        };
    }
    out.push_str("</testsuite>\n");
    out
}

fn body(case: &Case, known: bool) -> Option<(&'static str, String)> {
    match (case.outcome, known) {
        (Outcome::Passed, false) => None,
        (Outcome::Passed, true) => {
            Some(("failure", "passes, but is on the list of known failures: remove it".to_owned()))
        }
        (_, true) => Some(("skipped", format!("known failure: {}", case.detail))),
        (_, false) => Some(("failure", case.detail.clone())),
    }
}

fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\n' => out.push_str("&#10;"),
            // XML has no way to write the other control characters.
            c if c.is_control() => out.push(' '),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_says_what_is_new() {
        let case = |name: &str, outcome, detail: &str| Case {
            suite: "s".to_owned(),
            name: name.to_owned(),
            outcome,
            seconds: 1.5,
            detail: detail.to_owned(),
        };
        let cases = [
            case("ok", Outcome::Passed, ""),
            case("old", Outcome::Failed, "x"),
            case("new", Outcome::Failed, "a < \"b\"\u{1b}\nc"),
        ];
        let text = report("corpus", &cases, &|case| case.name == "old");
        assert!(text.contains("tests=\"3\" failures=\"1\" skipped=\"1\""), "{text}");
        assert!(text.contains("name=\"ok\" time=\"1.500\"/>"), "{text}");
        assert!(text.contains("<skipped message=\"known failure: x\"/>"), "{text}");
        assert!(text.contains("<failure message=\"a &lt; &quot;b&quot; &#10;c\"/>"), "{text}");
    }
}
