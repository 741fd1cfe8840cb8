//! Compares the reasons that the sources give to events with the table of reasons.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use syn::visit::{self, Visit};

use super::events::REASONS;

/// Functions that take the reason of an event.
const TELLING: [&str; 16] = [
    "event",
    "normal",
    "warning",
    "say",
    "tell",
    "record_event",
    "reject",
    "tell_claim",
    "warn_claim",
    "tell_volume",
    "warn_volume",
    "failed",
    "lost",
    "refused",
    "unready",
    "not_bound",
];

/// Those of the recorder itself.
const RECORDING: [&str; 3] = ["event", "normal", "warning"];

/// Values that carry a reason to such a function.
const CARRYING: [&str; 5] = ["Note", "Refusal", "Failure", "Blocked", "Invalid"];

/// The crates that write events.
const CRATES: [&str; 6] = ["core", "cluster", "controllers", "node", "provisioner", "longshore"];

#[test]
fn every_reason_in_the_sources_is_listed_and_every_listed_one_is_there() {
    let mut found: BTreeMap<String, PathBuf> = BTreeMap::new();
    for name in CRATES {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name).join("src");
        for file in sources(&dir) {
            let text = std::fs::read_to_string(&file).unwrap();
            let reasons =
                reasons(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
            found.extend(reasons.into_iter().map(|reason| (reason, file.clone())));
        }
    }
    let listed: BTreeSet<&str> = REASONS.iter().map(|reason| reason.name).collect();
    assert_eq!(listed.len(), REASONS.len(), "a reason is listed twice");
    for (reason, file) in &found {
        let file = file.display();
        assert!(
            listed.contains(reason.as_str()),
            "{reason} in {file} is not in reference/events.rs"
        );
    }
    for reason in listed {
        assert!(
            found.contains_key(reason),
            "{reason} in reference/events.rs is not in the sources"
        );
    }
}

/// The sources below a directory, without those of tests.
pub(super) fn sources(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        // The recorder itself hands on what it is given.
        let left_out = ["tests", "testing", "bench", "events", "reference", "fixtures"];
        if name.ends_with("_tests") || left_out.contains(&name.as_str()) {
            continue;
        }
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found
}

/// The reasons that a source file gives to events.
fn reasons(text: &str) -> Result<BTreeSet<String>, String> {
    let file = syn::parse_file(text).map_err(|error| error.to_string())?;
    let mut collector = Collector::default();
    collector.visit_file(&file);
    for name in &collector.by_constant {
        collector.found.extend(collector.constants.get(name).cloned());
    }
    match collector.unclear.first() {
        Some(call) => {
            Err(format!("the reason of `{call}` is neither a literal nor called `reason`"))
        }
        None => Ok(collector.found),
    }
}

#[derive(Default)]
struct Collector {
    found: BTreeSet<String>,
    constants: BTreeMap<String, String>,
    /// Constants that were given as a reason.
    by_constant: BTreeSet<String>,
    unclear: Vec<String>,
}

impl Collector {
    fn call<'a>(&mut self, name: &str, arguments: impl Iterator<Item = &'a syn::Expr>) {
        let mut clear = false;
        for argument in arguments {
            match argument {
                syn::Expr::Lit(literal) => clear |= self.literal(&literal.lit),
                syn::Expr::Path(path) => {
                    let last = path.path.segments.last().map(|part| part.ident.to_string());
                    let last = last.unwrap_or_default();
                    clear |= last == "reason" || last.chars().all(|c| c.is_uppercase() || c == '_');
                    self.by_constant.insert(last);
                }
                syn::Expr::Field(field) => {
                    clear |= matches!(&field.member, syn::Member::Named(name) if name == "reason");
                }
                _ => {}
            }
        }
        if RECORDING.contains(&name) && !clear {
            self.unclear.push(name.to_owned());
        }
    }

    /// Takes a literal that reads like a reason: one word of letters that begins with a capital.
    fn literal(&mut self, literal: &syn::Lit) -> bool {
        let syn::Lit::Str(text) = literal else { return false };
        let text = text.value();
        let word = text.starts_with(|c: char| c.is_ascii_uppercase())
            && text.len() > 3
            && text.chars().all(|c| c.is_ascii_alphabetic());
        if word {
            self.found.insert(text);
        }
        word
    }
}

/// All literals of an expression.
struct Literals<'a>(&'a mut Collector);

impl Visit<'_> for Literals<'_> {
    fn visit_lit(&mut self, literal: &syn::Lit) {
        self.0.literal(literal);
    }
}

pub(super) fn is_test(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("cfg")
            && attribute.parse_args::<syn::Ident>().is_ok_and(|name| name == "test")
    })
}

impl<'ast> Visit<'ast> for Collector {
    fn visit_item_mod(&mut self, module: &'ast syn::ItemMod) {
        if !is_test(&module.attrs) {
            visit::visit_item_mod(self, module);
        }
    }

    fn visit_expr_method_call(&mut self, call: &'ast syn::ExprMethodCall) {
        let name = call.method.to_string();
        if TELLING.contains(&name.as_str()) && call.args.len() > 1 {
            self.call(&name, call.args.iter());
        }
        visit::visit_expr_method_call(self, call);
    }

    fn visit_expr_call(&mut self, call: &'ast syn::ExprCall) {
        if let syn::Expr::Path(path) = &*call.func {
            let name = path.path.segments.last().map(|part| part.ident.to_string());
            let name = name.unwrap_or_default();
            if TELLING.contains(&name.as_str()) && call.args.len() > 1 {
                self.call(&name, call.args.iter());
            }
        }
        visit::visit_expr_call(self, call);
    }

    fn visit_expr_struct(&mut self, value: &'ast syn::ExprStruct) {
        let name = value.path.segments.last().map(|part| part.ident.to_string());
        if CARRYING.contains(&name.unwrap_or_default().as_str()) {
            for field in &value.fields {
                if matches!(&field.member, syn::Member::Named(name) if name == "reason") {
                    Literals(self).visit_expr(&field.expr);
                }
            }
        }
        visit::visit_expr_struct(self, value);
    }

    fn visit_local(&mut self, local: &'ast syn::Local) {
        let named =
            |pattern: &syn::Pat| matches!(pattern, syn::Pat::Ident(name) if name.ident == "reason");
        let binds = match &local.pat {
            syn::Pat::Tuple(tuple) => tuple.elems.iter().any(named),
            pattern => named(pattern),
        };
        if let (true, Some(init)) = (binds, &local.init) {
            Literals(self).visit_expr(&init.expr);
        }
        visit::visit_local(self, local);
    }

    fn visit_item_const(&mut self, constant: &'ast syn::ItemConst) {
        if let syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(text), .. }) = &*constant.expr {
            self.constants.insert(constant.ident.to_string(), text.value());
        }
    }
}

#[test]
fn reasons_are_found_wherever_they_are_written() {
    let found = |text: &str| reasons(text).map(|found| found.into_iter().collect::<Vec<_>>());
    for (text, want) in [
        (
            r#"fn f() { recorder.event(&about, EventType::Normal, "FailedMount", text); }"#,
            "FailedMount",
        ),
        (r#"fn f() { Action::warn_claim("ClaimLost", "the volume is gone") }"#, "ClaimLost"),
        (r#"const WHY: &str = "AppArmor"; fn f() { refused(WHY, "spec.x", why) }"#, "AppArmor"),
        (
            r#"fn f() { let reason = "NodeFenced"; recorder.event(&a, kind, reason, b); }"#,
            "NodeFenced",
        ),
        (r#"fn f() -> R { Refusal { reason: "SysctlForbidden", text } }"#, "SysctlForbidden"),
        (r#"fn f() { let (reason, head) = match x { _ => ("Scheduled", "a b") }; }"#, "Scheduled"),
    ] {
        assert_eq!(found(text).unwrap(), [want], "{text}");
    }
    assert!(
        found(r#"#[cfg(test)] mod t { fn f() { x.event(a, b, "NotThis", c); } }"#)
            .unwrap()
            .is_empty()
    );
    assert!(found("fn f() { recorder.event(&about, kind, choose(), text); }").is_err());
}
