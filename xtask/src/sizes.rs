//! How large files and functions are, as a row that can be compared with other projects and with
//! yesterday, and a limit that they may not pass.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail};
use syn::{ItemFn, spanned::Spanned as _, visit::Visit};

use crate::run;

/// No production file has more lines.
const MOST_FILE_LINES: usize = 650;
/// No production function has more lines.
const MOST_FUNCTION_LINES: usize = 90;

/// The sizes of one set of files.
#[derive(Debug, Default)]
struct Row {
    files: Vec<(usize, PathBuf)>,
    functions: Vec<(usize, PathBuf, String)>,
    comments: usize,
}

impl Row {
    fn lines(&self) -> usize {
        self.files.iter().map(|(lines, _)| lines).sum()
    }

    fn show(&self, name: &str) -> String {
        let files: Vec<usize> = self.files.iter().map(|(lines, _)| *lines).collect();
        let functions: Vec<usize> = self.functions.iter().map(|(lines, ..)| *lines).collect();
        let longest = self.files.iter().max().map(|(_, path)| path.display().to_string());
        format!(
            "| {name} | {} | {} | {} | {} ({}) | {}% | `{}` |",
            files.len(),
            self.lines(),
            quantiles(files),
            quantiles(functions),
            self.functions.len(),
            (100 * self.comments).checked_div(self.lines()).unwrap_or(0),
            longest.unwrap_or_default()
        )
    }
}

fn quantiles(mut values: Vec<usize>) -> String {
    values.sort_unstable();
    let at = |percent: usize| values.get(values.len() * percent / 100).copied().unwrap_or(0);
    format!("{}/{}/{}", at(50), at(90), values.last().copied().unwrap_or(0))
}

/// Prints the rows; with `--check` says nothing unless something is too large.
pub fn task(args: &[String]) -> Result<()> {
    let rows = measure()?;
    if args.iter().any(|arg| arg == "--check") {
        return check(&rows);
    }
    println!(
        "| measured | files | lines | file lines 50/90/max | function lines 50/90/max (count) | comments | longest file |"
    );
    println!("|---|---|---|---|---|---|---|");
    let mut all = Row::default();
    for (name, row) in rows {
        println!("{}", row.show(&name));
        if name != "sim" {
            all.files.extend(row.files);
            all.functions.extend(row.functions);
            all.comments += row.comments;
        }
    }
    println!("{}", all.show("**crates without sim**"));
    Ok(())
}

/// Fails when a production file or function is over its limit.
fn check(rows: &BTreeMap<String, Row>) -> Result<()> {
    let mut over = Vec::new();
    for row in rows.values() {
        for (lines, path) in row.files.iter().filter(|(lines, _)| *lines > MOST_FILE_LINES) {
            over.push(format!("{}: {lines} lines, at most {MOST_FILE_LINES}", path.display()));
        }
        for (lines, path, name) in &row.functions {
            if *lines > MOST_FUNCTION_LINES {
                let path = path.display();
                over.push(format!(
                    "{path}: {name} has {lines} lines, at most {MOST_FUNCTION_LINES}"
                ));
            }
        }
    }
    if over.is_empty() {
        eprintln!(
            "sizes: no file over {MOST_FILE_LINES} lines, no function over {MOST_FUNCTION_LINES}"
        );
        return Ok(());
    }
    bail!("too large; ask what second subject has moved in:\n  {}", over.join("\n  "))
}

fn measure() -> Result<BTreeMap<String, Row>> {
    let mut rows: BTreeMap<String, Row> = BTreeMap::new();
    let listed = run::output("git", &["ls-files", "crates"])?;
    for path in listed.lines().map(Path::new).filter(|path| is_production(path)) {
        let text = fs::read_to_string(run::root().join(path))
            .with_context(|| format!("cannot read {}", path.display()))?;
        let parts: Vec<_> = path.iter().collect();
        let name = parts.get(1).map(|part| part.to_string_lossy().into_owned());
        let row = rows.entry(name.unwrap_or_default()).or_default();
        add(row, path, &text).with_context(|| format!("cannot parse {}", path.display()))?;
    }
    Ok(rows)
}

/// Sources that ship: no tests, no fixtures, no fake driver.
fn is_production(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let within = |part: &str| path.iter().any(|one| one == part);
    let test = name.ends_with("_tests.rs")
        || ["tests.rs", "testing.rs", "fixtures.rs"].contains(&name.as_ref())
        || within("tests")
        || within("examples");
    let support = ["crates/csi/src/fake", "crates/testing"].iter().any(|dir| path.starts_with(dir));
    name.ends_with(".rs") && within("src") && !test && !support
}

fn add(row: &mut Row, path: &Path, text: &str) -> Result<()> {
    let parsed = syn::parse_file(text)?;
    let mut found = Functions { found: Vec::new(), tests: Vec::new() };
    found.visit_file(&parsed);
    let in_tests = |line: usize| found.tests.iter().any(|(from, to)| (*from..=*to).contains(&line));
    let lines = (1..=text.lines().count()).filter(|line| !in_tests(*line)).count();
    let is_comment = |line: &str| line.trim_start().starts_with("//");
    let comments = text.lines().enumerate();
    row.comments += comments.filter(|(at, line)| is_comment(line) && !in_tests(at + 1)).count();
    row.files.push((lines, path.to_owned()));
    let own = found.found.iter().filter(|(from, ..)| !in_tests(*from));
    row.functions
        .extend(own.map(|(from, to, name)| (to - from + 1, path.to_owned(), name.clone())));
    Ok(())
}

/// Functions with a body, and modules of tests, by their lines.
struct Functions {
    found: Vec<(usize, usize, String)>,
    tests: Vec<(usize, usize)>,
}

impl Functions {
    fn add(&mut self, signature: &syn::Signature, block: &syn::Block) {
        let (from, to) = (signature.span().start().line, block.span().end().line);
        self.found.push((from, to, signature.ident.to_string()));
    }
}

impl<'ast> Visit<'ast> for Functions {
    fn visit_item_fn(&mut self, item: &'ast ItemFn) {
        self.add(&item.sig, &item.block);
        syn::visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.add(&item.sig, &item.block);
        syn::visit::visit_impl_item_fn(self, item);
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        if let Some(block) = &item.default {
            self.add(&item.sig, block);
        }
        syn::visit::visit_trait_item_fn(self, item);
    }

    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if item.attrs.iter().any(is_test_switch) && item.content.is_some() {
            let from = item.attrs.first().map_or(item.span(), |attr| attr.span()).start().line;
            self.tests.push((from, item.span().end().line));
        }
        syn::visit::visit_item_mod(self, item);
    }
}

/// `#[cfg(test)]` and its relatives.
fn is_test_switch(attribute: &syn::Attribute) -> bool {
    attribute.path().is_ident("cfg")
        && attribute.meta.require_list().is_ok_and(|list| list.tokens.to_string().contains("test"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_and_files_are_counted_without_their_tests() {
        let text = "//! A file.\nfn one() {\n    two();\n}\n\n#[cfg(test)]\nmod tests {\n    fn three() {}\n}\n";
        let mut row = Row::default();
        add(&mut row, Path::new("a.rs"), text).unwrap();
        assert_eq!(row.files, [(5, PathBuf::from("a.rs"))]);
        assert_eq!(row.functions, [(3, PathBuf::from("a.rs"), "one".to_owned())]);
        assert_eq!(row.comments, 1);
        assert_eq!(quantiles(vec![1, 2, 3, 4]), "3/4/4");
    }

    #[test]
    fn tests_fixtures_and_the_fake_driver_are_left_out() {
        for (path, production) in [
            ("crates/core/src/bind/claim.rs", true),
            ("crates/core/src/bind/claim_tests.rs", false),
            ("crates/cluster/src/testing.rs", false),
            ("crates/csi/src/fake/node.rs", false),
            ("crates/testing/src/lib.rs", false),
            ("crates/node/tests/shim.rs", false),
            ("crates/node/examples/shim.rs", false),
            ("crates/controllers/src/attach/tests/rig.rs", false),
        ] {
            assert_eq!(is_production(Path::new(path)), production, "{path}");
        }
    }
}
