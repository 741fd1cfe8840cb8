//! How large files and functions are, as a row that can be compared with other projects and with
//! yesterday, a limit that they may not pass, and a recorded row that may only fall.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt, fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail};
use serde::{Deserialize, Serialize};
use syn::{ItemFn, spanned::Spanned as _, visit::Visit};

use crate::run;

/// No production file has more lines.
const MOST_FILE_LINES: usize = 650;
/// No production function has more lines.
const MOST_FUNCTION_LINES: usize = 90;
/// The numbers that may fall but not rise, in the checkout.
const RECORD: &str = "xtask/sizes.json";
/// It has the tools of the simulator's world and is measured beside the others.
const SIMULATOR: &str = "sim";

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

    fn tail(&self) -> Tail {
        Tail {
            files: Quantiles::of(self.files.iter().map(|(lines, _)| *lines)),
            functions: Quantiles::of(self.functions.iter().map(|(lines, ..)| *lines)),
        }
    }

    fn show(&self, name: &str) -> String {
        let Tail { files, functions } = self.tail();
        let longest = self.files.iter().max().map(|(_, path)| path.display().to_string());
        format!(
            "| {name} | {} | {} | {} | {} ({}) | {}% | `{}` |",
            self.files.len(),
            self.lines(),
            files,
            functions,
            self.functions.len(),
            (100 * self.comments).checked_div(self.lines()).unwrap_or(0),
            longest.unwrap_or_default()
        )
    }
}

/// The median, the 90th percentile and the longest, in lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Quantiles {
    median: usize,
    ninetieth: usize,
    longest: usize,
}

impl Quantiles {
    fn of(values: impl Iterator<Item = usize>) -> Self {
        let mut values: Vec<usize> = values.collect();
        values.sort_unstable();
        let at = |percent: usize| values.get(values.len() * percent / 100).copied().unwrap_or(0);
        Self { median: at(50), ninetieth: at(90), longest: values.last().copied().unwrap_or(0) }
    }

    const fn numbers(self) -> [(&'static str, usize); 3] {
        [("median", self.median), ("90th percentile", self.ninetieth), ("longest", self.longest)]
    }

    fn least(self, other: Self) -> Self {
        Self {
            median: self.median.min(other.median),
            ninetieth: self.ninetieth.min(other.ninetieth),
            longest: self.longest.min(other.longest),
        }
    }
}

impl fmt::Display for Quantiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.median, self.ninetieth, self.longest)
    }
}

/// The numbers of a row that the record holds down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Tail {
    files: Quantiles,
    functions: Quantiles,
}

impl Tail {
    /// What is larger than in the record.
    fn risen(&self, record: &Self) -> Vec<String> {
        let mut risen = Vec::new();
        for (what, now, was) in [
            ("lines of files", self.files, record.files),
            ("lines of functions", self.functions, record.functions),
        ] {
            for ((number, now), (_, was)) in now.numbers().into_iter().zip(was.numbers()) {
                if now > was {
                    risen.push(format!("{what}, {number}: {now}, recorded {was}"));
                }
            }
        }
        risen
    }

    fn least(&self, other: &Self) -> Self {
        Self {
            files: self.files.least(other.files),
            functions: self.functions.least(other.functions),
        }
    }

    fn recorded() -> Result<Self> {
        let text =
            fs::read(run::root().join(RECORD)).with_context(|| format!("reading {RECORD}"))?;
        serde_json::from_slice(&text).with_context(|| format!("parsing {RECORD}"))
    }

    /// Lowers the record to these numbers. What has risen stays as it was: to raise it is a
    /// decision, made by editing the file and defended in the commit.
    fn record(&self) -> Result<()> {
        let least = self.least(&Self::recorded()?);
        let text = serde_json::to_string_pretty(&least)? + "\n";
        fs::write(run::root().join(RECORD), text).with_context(|| format!("writing {RECORD}"))
    }
}

/// Prints the rows; with `--check` says nothing unless something is too large or has grown; with
/// `--record` lowers the record to what is measured.
pub fn task(args: &[String]) -> Result<()> {
    let rows = measure()?;
    let has = |flag: &str| args.iter().any(|arg| arg == flag);
    if has("--record") {
        return together(rows).tail().record();
    }
    if has("--check") {
        check(&rows)?;
        return check_record(&together(rows).tail(), &Tail::recorded()?);
    }
    println!(
        "| measured | files | lines | file lines 50/90/max | function lines 50/90/max (count) | comments | longest file |"
    );
    println!("|---|---|---|---|---|---|---|");
    for (name, row) in &rows {
        println!("{}", row.show(name));
    }
    println!("{}", together(rows).show("**crates without sim**"));
    Ok(())
}

/// One row for all crates but the simulator.
fn together(rows: BTreeMap<String, Row>) -> Row {
    let mut all = Row::default();
    for (_, row) in rows.into_iter().filter(|(name, _)| name != SIMULATOR) {
        all.files.extend(row.files);
        all.functions.extend(row.functions);
        all.comments += row.comments;
    }
    all
}

/// Fails when a number is above the record.
fn check_record(now: &Tail, record: &Tail) -> Result<()> {
    let risen = now.risen(record);
    if !risen.is_empty() {
        bail!(
            "the numbers of {RECORD} may only fall; split what has grown (`cargo xtask sizes` names \
             the longest files), or raise the record and say why:\n  {}",
            risen.join("\n  ")
        );
    }
    if now != record {
        eprintln!("sizes: better than {RECORD}; `cargo xtask sizes --record` keeps it so");
    }
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
    let mut sources = Vec::new();
    let mut tests = BTreeSet::new();
    let listed = run::output("git", &["ls-files", "crates"])?;
    for path in listed.lines().map(Path::new).filter(|path| is_production(path)) {
        let text = fs::read_to_string(run::root().join(path))
            .with_context(|| format!("cannot read {}", path.display()))?;
        let parsed =
            syn::parse_file(&text).with_context(|| format!("cannot parse {}", path.display()))?;
        let mut found = Functions::default();
        found.visit_file(&parsed);
        tests.extend(found.test_files.iter().map(|name| children(path).join(name)));
        sources.push((path, text, found));
    }
    let mut rows: BTreeMap<String, Row> = BTreeMap::new();
    for (path, text, found) in sources.iter().filter(|(path, ..)| !is_within(path, &tests)) {
        let name = path.iter().nth(1).map(|part| part.to_string_lossy().into_owned());
        add(rows.entry(name.unwrap_or_default()).or_default(), path, text, found);
    }
    Ok(rows)
}

/// Where the modules of a file have theirs: `a/mod.rs` and `a.rs` both in `a`.
fn children(path: &Path) -> PathBuf {
    let dir = path.parent().unwrap_or(path);
    match path.file_stem().and_then(|stem| stem.to_str()) {
        Some("mod" | "lib" | "main") | None => dir.to_owned(),
        Some(stem) => dir.join(stem),
    }
}

/// Whether the file is one of these modules, or inside one.
fn is_within(path: &Path, modules: &BTreeSet<PathBuf>) -> bool {
    path.with_extension("").ancestors().any(|part| modules.contains(part))
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

fn add(row: &mut Row, path: &Path, text: &str, found: &Functions) {
    let in_tests = |line: usize| found.tests.iter().any(|(from, to)| (*from..=*to).contains(&line));
    let lines = (1..=text.lines().count()).filter(|line| !in_tests(*line)).count();
    let is_comment = |line: &str| line.trim_start().starts_with("//");
    let comments = text.lines().enumerate();
    row.comments += comments.filter(|(at, line)| is_comment(line) && !in_tests(at + 1)).count();
    row.files.push((lines, path.to_owned()));
    let own = found.found.iter().filter(|(from, ..)| !in_tests(*from));
    row.functions
        .extend(own.map(|(from, to, name)| (to - from + 1, path.to_owned(), name.clone())));
}

/// Functions with a body, and modules of tests, by their lines.
#[derive(Debug, Default)]
struct Functions {
    found: Vec<(usize, usize, String)>,
    tests: Vec<(usize, usize)>,
    /// Modules of tests that are files of their own.
    test_files: Vec<String>,
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
        if item.attrs.iter().any(is_test_switch) {
            if item.content.is_some() {
                let from = item.attrs.first().map_or(item.span(), |attr| attr.span()).start().line;
                self.tests.push((from, item.span().end().line));
            } else {
                self.test_files.push(item.ident.to_string());
            }
        }
        syn::visit::visit_item_mod(self, item);
    }
}

/// `#[cfg(test)]` and its relatives, but not `#[cfg(not(test))]`.
fn is_test_switch(attribute: &syn::Attribute) -> bool {
    let of_tests = |list: &syn::MetaList| {
        let condition = list.tokens.to_string();
        condition.contains("test") && !condition.starts_with("not")
    };
    attribute.path().is_ident("cfg") && attribute.meta.require_list().is_ok_and(of_tests)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_and_files_are_counted_without_their_tests() {
        let text = "//! A file.\nfn one() {\n    two();\n}\n\n#[cfg(test)]\nmod tests {\n    fn three() {}\n}\n";
        let mut found = Functions::default();
        found.visit_file(&syn::parse_file(text).unwrap());
        let mut row = Row::default();
        add(&mut row, Path::new("a.rs"), text, &found);
        assert_eq!(row.files, [(5, PathBuf::from("a.rs"))]);
        assert_eq!(row.functions, [(3, PathBuf::from("a.rs"), "one".to_owned())]);
        assert_eq!(row.comments, 1);
    }

    #[test]
    fn files_of_modules_for_tests_are_left_out() {
        let text = "#[cfg(test)]\nmod scale_tests;\nmod other;\n\
            #[cfg(all(test, unix))]\nmod cases;\n#[cfg(not(test))]\nmod real;\n";
        let mut found = Functions::default();
        found.visit_file(&syn::parse_file(text).unwrap());
        assert_eq!(found.test_files, ["scale_tests", "cases"]);
        for (from, path, left_out) in [
            ("crates/a/src/lib.rs", "crates/a/src/scale_tests/store.rs", true),
            ("crates/a/src/lib.rs", "crates/a/src/scale_tests/mod.rs", true),
            ("crates/a/src/lib.rs", "crates/a/src/cases.rs", true),
            ("crates/a/src/lib.rs", "crates/a/src/other/cases.rs", false),
            ("crates/a/src/lib.rs", "crates/a/src/other.rs", false),
            ("crates/a/src/b/mod.rs", "crates/a/src/b/cases.rs", true),
            ("crates/a/src/b.rs", "crates/a/src/b/cases.rs", true),
            ("crates/a/src/b.rs", "crates/a/src/cases.rs", false),
        ] {
            let base = children(Path::new(from));
            let tests = found.test_files.iter().map(|name| base.join(name)).collect();
            assert_eq!(is_within(Path::new(path), &tests), left_out, "{path} by {from}");
        }
    }

    #[test]
    fn a_number_above_the_record_is_named_and_recording_only_lowers() {
        let quantiles = |median, ninetieth, longest| Quantiles { median, ninetieth, longest };
        assert_eq!(Quantiles::of([4, 1, 3, 2].into_iter()), quantiles(3, 4, 4));
        let record = Tail { files: quantiles(131, 304, 629), functions: quantiles(8, 25, 84) };
        assert!(check_record(&record, &record).is_ok());
        let grown = Tail { files: quantiles(130, 310, 629), functions: quantiles(8, 25, 85) };
        let error = check_record(&grown, &record).unwrap_err().to_string();
        assert!(error.contains("lines of files, 90th percentile: 310, recorded 304"), "{error}");
        assert!(error.contains("lines of functions, longest: 85, recorded 84"), "{error}");
        assert!(!error.contains("median"), "{error}");
        let lowered = Tail { files: quantiles(130, 304, 629), ..record };
        assert_eq!(grown.least(&record), lowered);
        assert!(check_record(&lowered, &record).is_ok());
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
