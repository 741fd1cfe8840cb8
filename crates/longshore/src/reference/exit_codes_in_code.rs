//! Compares the exit codes in the sources with the table of exit codes.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use syn::visit::{self, Visit};

use super::exit_codes::EXIT_CODES;
use super::reasons_in_code::{is_test, sources};

/// The crates whose code ends a program that users start.
const CRATES: [&str; 4] = ["longshore", "flags", "cluster", "csi"];

/// Calls whose argument is an exit code.
const ENDING: [&str; 3] = ["ExitWith", "ExitCode::from", "process::exit"];

/// Names under which a code is handed on that was chosen elsewhere.
const HANDED_ON: [&str; 2] = ["code", "exit_code"];

#[test]
fn every_exit_code_in_the_sources_is_listed_and_every_listed_one_is_there() {
    // What the runtime ends with: the main function returns `ExitCode::SUCCESS`.
    let mut found = BTreeSet::from([0]);
    for name in CRATES {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name).join("src");
        for file in sources(&dir) {
            let text = std::fs::read_to_string(&file).unwrap();
            let codes = codes(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
            found.extend(codes);
        }
    }
    let listed: BTreeSet<u8> = EXIT_CODES.iter().map(|(code, _)| *code).collect();
    assert_eq!(listed.len(), EXIT_CODES.len(), "a code is listed twice");
    assert_eq!(found, listed, "left: in the sources; right: in reference/exit_codes.rs");
}

/// The exit codes that a source file chooses.
fn codes(text: &str) -> Result<BTreeSet<u8>, String> {
    let file = syn::parse_file(text).map_err(|error| error.to_string())?;
    let mut collector = Collector::default();
    collector.visit_file(&file);
    let Collector { mut found, constants, by_constant, unclear } = collector;
    for name in by_constant {
        let code = constants.get(&name).ok_or(format!("{name} is no constant of this file"))?;
        found.insert(*code);
    }
    match unclear.first() {
        Some(call) => Err(format!("the exit code of `{call}` is neither a number nor handed on")),
        None => Ok(found),
    }
}

#[derive(Default)]
struct Collector {
    found: BTreeSet<u8>,
    constants: BTreeMap<String, u8>,
    by_constant: BTreeSet<String>,
    unclear: Vec<&'static str>,
}

fn number(expr: &syn::Expr) -> Option<u8> {
    match expr {
        syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Int(number), .. }) => {
            number.base10_parse().ok()
        }
        _ => None,
    }
}

fn last(path: &syn::Path) -> String {
    path.segments.last().map(|part| part.ident.to_string()).unwrap_or_default()
}

/// What an argument is made of.
#[derive(Default)]
struct Parts {
    numbers: Vec<u8>,
    names: Vec<String>,
}

impl Visit<'_> for Parts {
    fn visit_expr(&mut self, expr: &syn::Expr) {
        self.numbers.extend(number(expr));
        match expr {
            syn::Expr::Path(path) => self.names.push(last(&path.path)),
            syn::Expr::MethodCall(call) => self.names.push(call.method.to_string()),
            _ => {}
        }
        visit::visit_expr(self, expr);
    }
}

impl<'ast> Visit<'ast> for Collector {
    fn visit_item_mod(&mut self, module: &'ast syn::ItemMod) {
        if !is_test(&module.attrs) {
            visit::visit_item_mod(self, module);
        }
    }

    fn visit_expr_call(&mut self, call: &'ast syn::ExprCall) {
        if let (syn::Expr::Path(path), Some(argument)) = (&*call.func, call.args.first()) {
            let all: Vec<String> =
                path.path.segments.iter().map(|part| part.ident.to_string()).collect();
            let all = all.join("::");
            if let Some(name) = ENDING.into_iter().find(|name| all.ends_with(name)) {
                let mut parts = Parts::default();
                parts.visit_expr(argument);
                let handed_on = parts.names.iter().any(|name| HANDED_ON.contains(&name.as_str()));
                let constant = |name: &String| name.chars().all(|c| c.is_uppercase() || c == '_');
                let constants: Vec<String> = parts.names.into_iter().filter(constant).collect();
                if parts.numbers.is_empty() && constants.is_empty() && !handed_on {
                    self.unclear.push(name);
                }
                self.found.extend(parts.numbers);
                self.by_constant.extend(constants);
            }
        }
        visit::visit_expr_call(self, call);
    }

    /// Where a refused command line gets its code.
    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        if function.sig.ident == "exit_code" {
            let mut parts = Parts::default();
            parts.visit_block(&function.block);
            self.found.extend(parts.numbers);
        }
        visit::visit_impl_item_fn(self, function);
    }

    fn visit_item_const(&mut self, constant: &'ast syn::ItemConst) {
        if let Some(code) = number(&constant.expr) {
            self.constants.insert(constant.ident.to_string(), code);
        }
    }
}

#[test]
fn codes_are_found_wherever_they_are_chosen() {
    let found = |text: &str| codes(text).map(|found| found.into_iter().collect::<Vec<_>>());
    for (text, want) in [
        ("fn f() { std::process::exit(3) }", &[3][..]),
        ("const FATAL: u8 = 255; fn f() -> E { ExitWith(FATAL) }", &[255]),
        ("fn f() -> E { ExitWith(u8::try_from(code).unwrap_or(1)).into() }", &[1]),
        ("impl E { fn exit_code(&self) -> u8 { match self { E::A => 4, _ => 2 } } }", &[2, 4]),
        ("fn f() -> ExitCode { ExitCode::from(refusal.exit_code()) }", &[]),
        ("#[cfg(test)] mod t { fn f() { std::process::exit(9) } }", &[]),
    ] {
        assert_eq!(found(text).unwrap(), want, "{text}");
    }
    assert!(found("fn f() { std::process::exit(choose()) }").is_err());
    assert!(found("fn f() -> E { ExitWith(ELSEWHERE) }").is_err());
}
