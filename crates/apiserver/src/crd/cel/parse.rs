//! From text to expression, of bounded length and depth.

use kube_cel::cel::common::ast::{EntryExpr, Expr};
use kube_cel::cel::{IdedExpr, Program};

/// Longest expression, as upstream has it.
const MAX_SOURCE: usize = 100_000;
/// Signs that can make an expression deeper.
const MAX_SIGNS: usize = 4_000;
/// With fewer signs any stack will do.
const FEW_SIGNS: usize = 150;
/// Levels of an expression, as upstream has it: whoever walks through one calls itself for each.
const MAX_DEPTH: usize = 250;
/// For the parser, which calls itself several times for each level.
const STACK: usize = 256 << 20;
/// Text of all rules of a definition's version.
pub(in super::super) const MAX_TOGETHER: usize = 256 << 10;

/// Parses an expression.
/// The error says why it is none, in the form compilers use.
pub(in super::super) fn parse(source: &str) -> Result<Program, String> {
    if source.len() > MAX_SOURCE {
        return Err(format!(
            "ERROR: <input>:-1:0: expression code point size exceeds limit: size: {}, limit {MAX_SOURCE}",
            source.len()
        ));
    }
    let signs = source.bytes().filter(|c| b".([{?+-*/%<>=!&|".contains(c)).count();
    if signs > MAX_SIGNS {
        return Err(format!("ERROR: <input>:-1:0: expression has more than {MAX_SIGNS} operators"));
    }
    if signs <= FEW_SIGNS {
        return compile(source);
    }
    // An expression that is too deep has to go where it was made: that takes a stack, too.
    std::thread::scope(|scope| {
        let parser = std::thread::Builder::new().name("cel-parser".into()).stack_size(STACK);
        let parser = parser.spawn_scoped(scope, || {
            let program = compile(source)?;
            if depth(program.expression()) > MAX_DEPTH {
                return Err(format!(
                    "ERROR: <input>:-1:0: expression recursion limit exceeded: {MAX_DEPTH}"
                ));
            }
            Ok(program)
        });
        parser.map_err(|error| error.to_string()).and_then(|parser| {
            parser.join().unwrap_or_else(|_| Err("the parser failed".to_owned()))
        })
    })
}

fn compile(source: &str) -> Result<Program, String> {
    // The parser does not hold out against everything.
    let compiled = std::panic::catch_unwind(|| Program::compile(source));
    let compiled = compiled.map_err(|_| "ERROR: <input>:-1:0: the parser failed".to_owned())?;
    compiled.map_err(|errors| errors.to_string().replace("\n| ", "\n | "))
}

fn depth(expr: &IdedExpr) -> usize {
    let deepest = |parts: &mut dyn Iterator<Item = &IdedExpr>| parts.map(depth).max().unwrap_or(0);
    1 + match &expr.expr {
        Expr::Call(call) => {
            deepest(&mut call.target.iter().map(AsRef::as_ref).chain(call.args.iter()))
        }
        Expr::Comprehension(fold) => deepest(
            &mut [
                &fold.iter_range,
                &fold.accu_init,
                &fold.loop_cond,
                &fold.loop_step,
                &fold.result,
            ]
            .into_iter(),
        ),
        Expr::List(list) => deepest(&mut list.elements.iter()),
        Expr::Map(map) => deepest(&mut map.entries.iter().flat_map(|entry| match &entry.expr {
            EntryExpr::MapEntry(entry) => vec![&entry.key, &entry.value],
            EntryExpr::StructField(field) => vec![&field.value],
        })),
        Expr::Struct(object) => {
            deepest(&mut object.entries.iter().filter_map(|entry| match &entry.expr {
                EntryExpr::StructField(field) => Some(&field.value),
                EntryExpr::MapEntry(_) => None,
            }))
        }
        Expr::Select(select) => depth(&select.operand),
        Expr::Ident(_) | Expr::Literal(_) | Expr::Unspecified => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_without_end_are_refused() {
        let bombs = [
            "(".repeat(50_000),
            format!("{}1{}", "(".repeat(1500), ")".repeat(1500)),
            format!("1{}", "+1".repeat(3_900)),
            format!("1{}", "+1".repeat(20_000)),
            format!("self{}", ".a".repeat(3_900)),
            format!("{}1{}", "[".repeat(1900), "]".repeat(1900)),
            format!("{}1", "true ? 1 : ".repeat(1900)),
            format!("'{}'", "x".repeat(200_000)),
        ];
        for bomb in bombs {
            assert!(parse(&bomb).is_err(), "{}", &bomb[..20]);
        }
        // Signs that take each other back are not counted as levels.
        let _ = parse(&format!("{}true", "!".repeat(3_900)));
        let _ = parse(&format!("{}1", "-".repeat(3_900)));
        let long = vec!["self.a == 1"; 200].join(" || ");
        assert!(parse(&long).is_ok());
        assert!(parse(&format!("1{}", "+1".repeat(100))).is_ok());
    }
}
