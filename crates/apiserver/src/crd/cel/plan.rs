//! What upstream knows of an expression before it runs.
//!
//! Upstream plans a program once and evaluates constants while it does so: those cost nothing afterwards.
//! Names with all that is selected from them are one attribute, which is charged once.

use kube_cel::cel::IdedExpr;
use kube_cel::cel::common::ast::{CallExpr, EntryExpr, Expr, operators};

/// Functions that make a value of one type from a value of another.
const CONVERSIONS: &[&str] =
    &["bool", "bytes", "double", "duration", "dyn", "int", "string", "timestamp", "type", "uint"];

/// Whether an expression has the same value always, as upstream's planner sees it.
pub(super) fn is_constant(expr: &IdedExpr) -> bool {
    match &expr.expr {
        Expr::Literal(_) => true,
        Expr::List(list) => {
            list.optional_indices.is_empty() && list.elements.iter().all(is_constant)
        }
        Expr::Map(map) => map.entries.iter().all(|entry| match &entry.expr {
            EntryExpr::MapEntry(entry) => is_constant(&entry.key) && is_constant(&entry.value),
            EntryExpr::StructField(_) => false,
        }),
        Expr::Call(call) => is_constant_call(call),
        _ => false,
    }
}

/// Whether a call is a conversion of a constant, or the sign of a number.
pub(super) fn is_constant_call(call: &CallExpr) -> bool {
    match (call.args.as_slice(), &call.target) {
        ([one], None) if call.func_name == operators::NEGATE => {
            matches!(one.expr, Expr::Literal(_))
        }
        ([one], None) => CONVERSIONS.contains(&call.func_name.as_str()) && is_constant(one),
        _ => false,
    }
}

/// The elements of a list that upstream makes a set of: constants, none of them with parts.
pub(super) fn as_set(expr: &IdedExpr) -> Option<&[IdedExpr]> {
    let Expr::List(list) = &expr.expr else { return None };
    let plain = |element: &IdedExpr| matches!(element.expr, Expr::Literal(_));
    (list.optional_indices.is_empty() && list.elements.iter().all(plain))
        .then_some(list.elements.as_slice())
}

/// Whether an expression is a name, or something selected from a value.
pub(super) fn is_attribute(expr: &IdedExpr) -> bool {
    match &expr.expr {
        Expr::Ident(_) => true,
        Expr::Select(select) => !select.test,
        Expr::Call(call) => {
            call.target.is_none()
                && matches!(
                    call.func_name.as_str(),
                    operators::INDEX
                        | operators::OPT_INDEX
                        | operators::OPT_SELECT
                        | operators::CONDITIONAL
                )
        }
        _ => false,
    }
}
