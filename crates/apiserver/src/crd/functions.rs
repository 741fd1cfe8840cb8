//! The functions that rules can call, and what they give.

use kube_cel::cel::common::ast::CallExpr;

use super::typing::{Fault, Ty, Typed, no_overload};

/// What a function gives.
pub(super) fn function<'a>(name: &str, call: &CallExpr, types: &[Ty<'a>]) -> Typed<'a> {
    let scalar =
        |ty: &Ty<'a>| ty.is_number() || matches!(ty, Ty::Bool | Ty::Timestamp | Ty::Duration);
    match name {
        "size" => match types.first() {
            Some(ty) if scalar(ty) => Err(no_overload(call, types)),
            _ => Ok(Ty::Int),
        },
        "int" | "indexOf" | "lastIndexOf" | "getFullYear" | "getMonth" | "getDate" | "getHours"
        | "getMinutes" | "getSeconds" | "getMilliseconds" | "getDayOfMonth" | "getDayOfWeek"
        | "getDayOfYear" | "prefixLength" | "family" => Ok(Ty::Int),
        "startsWith" | "endsWith" | "contains" | "matches" => match types.first() {
            Some(ty) if scalar(ty) => Err(no_overload(call, types)),
            _ => Ok(Ty::Bool),
        },
        "bool"
        | "isSorted"
        | "isQuantity"
        | "isURL"
        | "isIP"
        | "isCIDR"
        | "isSemver"
        | "hasValue"
        | "containsIP"
        | "containsCIDR"
        | "isInteger"
        | "isLessThan"
        | "isGreaterThan"
        | "isCanonical"
        | "isUnspecified"
        | "isLoopback"
        | "isLinkLocalMulticast"
        | "isLinkLocalUnicast"
        | "isGlobalUnicast"
        | "intersects"
        | "equivalent" => Ok(Ty::Bool),
        "string" | "lowerAscii" | "upperAscii" | "replace" | "substring" | "trim" | "charAt"
        | "format" | "reverse" => Ok(if name == "reverse" { Ty::Dyn } else { Ty::Str }),
        "join" => Ok(Ty::Str),
        "split" => Ok(Ty::List(Box::new(Ty::Str))),
        "uint" => Ok(Ty::Uint),
        "double" => Ok(Ty::Double),
        "bytes" => Ok(Ty::Bytes),
        "timestamp" => Ok(Ty::Timestamp),
        "duration" => Ok(Ty::Duration),
        known if is_known(known) => Ok(Ty::Dyn),
        unknown => {
            let why = format!("undeclared reference to '{unknown}' (in container '')");
            Err(Fault { why, at: (format!("{unknown}("), unknown.len()) })
        }
    }
}

fn is_known(name: &str) -> bool {
    const OTHERS: &str = "type dyn sum min max find findAll quantity sign add sub asInteger asApproximateFloat \
         compareTo url getScheme getHost getHostname getPort getEscapedPath getQuery ip cidr \
         masked semver major minor patch value orValue or optMap optFlatMap of ofNonZeroValue \
         none greatest least ceil floor round trunc abs isNaN isInf isFinite bitAnd bitOr \
         bitXor bitNot bitShiftLeft bitShiftRight encode decode quote range flatten distinct \
         slice sort sortBy first last named getObjectValue validate unwrap unwrapOpt bind \
         jsonpatch escapeKey";
    OTHERS.split(' ').any(|known| known == name) || name.starts_with(['@', '_', '!', '-'])
}
