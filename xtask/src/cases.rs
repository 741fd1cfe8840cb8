//! Which case of the specifications has a test.
//!
//! `tests/cases/<spec>.txt` lists every case id. A case is covered when a Rust source holds the
//! text `case: <spec>/<id>` beside the test row or function that checks it; several ids of one
//! specification may share a line: `case: node/N1, node/N2`. A case that cannot apply is listed as
//! `<id> n/a: <reason>`.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use anyhow::{Context as _, Result, bail};

use crate::run;

struct Case {
    id: String,
    not_applicable: Option<String>,
}

impl Case {
    /// Whether it could have a test and has none.
    fn is_open(&self, spec: &str, marks: &BTreeMap<String, String>) -> bool {
        self.not_applicable.is_none() && !marks.contains_key(&format!("{spec}/{}", self.id))
    }
}

fn refuse_open<'a>(spec: &str, open: impl Iterator<Item = &'a Case>) -> Result<()> {
    let open: Vec<&str> = open.map(|case| case.id.as_str()).collect();
    if !open.is_empty() {
        bail!(
            "cases of {spec} without a test: {}; write one with `case: {spec}/ID` beside it, or say in \
             tests/cases/{spec}.txt why it cannot apply",
            open.join(", ")
        );
    }
    Ok(())
}

/// Prints a table of all specifications, or the cases of one.
///
/// # Errors
/// When a case of the one that is named has no test.
pub fn show(spec: Option<&str>) -> Result<()> {
    let (lists, marks) = (lists()?, marks()?);
    if let Some(spec) = spec {
        let cases = lists.get(spec).with_context(|| format!("no list tests/cases/{spec}.txt"))?;
        let open = |case: &&Case| case.is_open(spec, &marks);
        for case in cases {
            let state = match &case.not_applicable {
                Some(reason) => format!("n/a: {reason}"),
                None if open(&case) => "open".to_owned(),
                None => "tested".to_owned(),
            };
            println!("{:<16} {state}", case.id);
        }
        return refuse_open(spec, cases.iter().filter(open));
    }
    println!("{:<28} {:>6} {:>7} {:>5} {:>6}", "specification", "cases", "tested", "n/a", "open");
    for (spec, cases) in &lists {
        let na = cases.iter().filter(|case| case.not_applicable.is_some()).count();
        let open = cases.iter().filter(|case| case.is_open(spec, &marks)).count();
        let tested = cases.len() - na - open;
        println!("{spec:<28} {:>6} {tested:>7} {na:>5} {open:>6}", cases.len());
    }
    check()
}

/// Fails when a test claims a case that no list knows.
pub fn check() -> Result<()> {
    let lists = lists()?;
    let known: BTreeSet<String> = lists
        .iter()
        .flat_map(|(spec, cases)| cases.iter().map(move |case| format!("{spec}/{}", case.id)))
        .collect();
    let strange: Vec<String> = marks()?
        .into_iter()
        .filter(|(mark, _)| !known.contains(mark))
        .map(|(mark, file)| format!("{mark} in {file}"))
        .collect();
    if !strange.is_empty() {
        bail!("marked as tested, but in no list under tests/cases:\n  {}", strange.join("\n  "));
    }
    Ok(())
}

fn lists() -> Result<BTreeMap<String, Vec<Case>>> {
    let mut lists = BTreeMap::new();
    let dir = run::root().join("tests/cases");
    for entry in fs::read_dir(&dir).context("cannot read tests/cases")? {
        let path = entry?.path();
        if path.extension().is_none_or(|extension| extension != "txt") {
            continue;
        }
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        lists.insert(name, parse(&fs::read_to_string(&path)?));
    }
    Ok(lists)
}

fn parse(text: &str) -> Vec<Case> {
    let lines =
        text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|line| match line.split_once(" n/a: ") {
            Some((id, reason)) => {
                Case { id: id.trim().to_owned(), not_applicable: Some(reason.to_owned()) }
            }
            None => Case { id: line.to_owned(), not_applicable: None },
        })
        .collect()
}

/// Every mark in the Rust sources, with the file that holds it.
fn marks() -> Result<BTreeMap<String, String>> {
    let mut marks = BTreeMap::new();
    for dir in ["crates", "tests"] {
        collect(&run::root().join(dir), &mut marks)?;
    }
    Ok(marks)
}

fn collect(dir: &Path, marks: &mut BTreeMap<String, String>) -> Result<()> {
    for entry in fs::read_dir(dir).with_context(|| format!("cannot read {}", dir.display()))? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, marks)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path)?;
            for line in text.lines() {
                for mark in marks_of(line) {
                    marks.insert(mark, path.display().to_string());
                }
            }
        }
    }
    Ok(())
}

/// The marks on one line: after each `case: `, ids separated by commas, each with its specification.
fn marks_of(line: &str) -> Vec<String> {
    let stop = |c: char| !(c.is_ascii_alphanumeric() || "-/.".contains(c));
    line.split("case: ")
        .skip(1)
        .flat_map(|rest| {
            rest.split(", ")
                .map(move |part| part.split(stop).next().unwrap_or_default().trim_end_matches('.'))
                .take_while(|part| part.contains('/'))
        })
        .map(str::to_owned)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_found_where_they_stand() {
        let rows: [(&str, &[&str]); 6] = [
            ("// case: node/N1", &["node/N1"]),
            ("// case: node/N1, node/N2 (paths)", &["node/N1", "node/N2"]),
            (
                "(\"case: pv-controller/1-5, pv-controller/1-6\", x),",
                &["pv-controller/1-5", "pv-controller/1-6"],
            ),
            (
                "// case: csi-protocol/14.1, case: csi-protocol/14.2.",
                &["csi-protocol/14.1", "csi-protocol/14.2"],
            ),
            ("// in this case: nothing", &[]),
            ("no mark", &[]),
        ];
        for (line, want) in rows {
            assert_eq!(marks_of(line), want, "{line}");
        }
    }

    #[test]
    fn an_open_case_fails_the_specification() {
        let cases = parse("A1\nA2\nA3 n/a: no such thing\n");
        let marks = |ids: &[&str]| -> BTreeMap<String, String> {
            ids.iter().map(|id| (format!("demo/{id}"), "file.rs".to_owned())).collect()
        };
        let judge = |marks: &BTreeMap<String, String>| {
            refuse_open("demo", cases.iter().filter(|case| case.is_open("demo", marks)))
        };
        assert!(judge(&marks(&["A1", "A2"])).is_ok());
        let said = judge(&marks(&["A1"])).unwrap_err().to_string();
        assert!(said.starts_with("cases of demo without a test: A2; "), "{said}");
    }

    #[test]
    fn lists_keep_reasons() {
        let cases = parse("# head\n1\n2 n/a: the kernel has no such thing\n");
        assert_eq!(cases.len(), 2);
        assert_eq!(cases[1].not_applicable.as_deref(), Some("the kernel has no such thing"));
    }
}
