//! The functions that expressions call.
//!
//! Those that make more than they are given, or that take patterns, are here; the others are the library's,
//! which gets only what was weighed before.

use std::sync::{Arc, LazyLock};

use kube_cel::KubeCelExt as _;
use kube_cel::cel::common::ast::{CallExpr, Expr};
use kube_cel::cel::{Context, ExecutionError, IdedExpr, Value};

use super::eval::{Eval, Evaluated, Stop};
use super::meter::{ELEMENT, matching, traversal};
use super::plan::is_constant_call;
use super::types;
use crate::crd::pattern;

/// What stands before the names of functions without being a value.
const NAMESPACES: &[&str] =
    &["lists", "sets", "math", "strings", "base64", "format", "ip", "jsonpatch", "optional"];
/// Digits behind the point that a text may be formatted with.
const MAX_DIGITS: u64 = 1_000;

pub(super) fn call<'a>(eval: &mut Eval<'a>, call: &'a CallExpr) -> Evaluated {
    let mut name = call.func_name.clone();
    let mut target = None;
    if let Some(expr) = call.target.as_deref() {
        match &expr.expr {
            Expr::Ident(space)
                if NAMESPACES.contains(&space.as_str()) && eval.name(space).is_none() =>
            {
                name = format!("{space}.{name}");
            }
            _ => target = Some(expr),
        }
    }
    let many = usize::from(target.is_some()) + call.args.len() > 2;
    let mut values = Vec::with_capacity(call.args.len() + 1);
    let mut failure = None;
    let mut last = None;
    for expr in target.into_iter().chain(&call.args) {
        match eval.outcome(expr)? {
            Ok(value) if failure.is_some() => last = Some(value),
            Ok(value) => values.push(value),
            // Upstream evaluates two arguments before it looks at either, more one by one.
            Err(error) if many => return Err(error.into()),
            Err(error) => failure = failure.or(Some(error)),
        }
    }
    if let Some(error) = failure {
        let cost = match (name.as_str(), &last) {
            ("startsWith" | "endsWith", Some(part)) => traversal(eval.meter.size(part)?),
            _ => 1,
        };
        eval.meter.charge(cost)?;
        return Err(error.into());
    }
    let args = values.split_off(usize::from(target.is_some()));
    let target = values.pop();
    if is_constant_call(call) {
        return convert(&name, &args)
            .map_or_else(|| native(&name, target, args).map_err(Stop::from), Ok);
    }
    own(eval, &name, target.as_ref(), &args).unwrap_or_else(|| borrowed(eval, &name, target, args))
}

fn failed(function: &str, why: &str) -> Stop {
    ExecutionError::function_error(function, why).into()
}

/// The functions that are here; `None` for others, and for other types.
fn own(
    eval: &mut Eval<'_>,
    name: &str,
    target: Option<&Value>,
    args: &[Value],
) -> Option<Evaluated> {
    let all: Vec<&Value> = target.into_iter().chain(args).collect();
    Some(match (name, all.as_slice()) {
        (
            "size",
            [value @ (Value::String(_) | Value::Bytes(_) | Value::List(_) | Value::Map(_))],
        ) => size(eval, value),
        ("startsWith" | "endsWith", [Value::String(text), Value::String(part)]) => {
            let found = match name {
                "startsWith" => text.starts_with(part.as_str()),
                _ => text.ends_with(part.as_str()),
            };
            charge_text(eval, all[1]).map(|()| Value::Bool(found))
        }
        ("contains", [Value::String(text), Value::String(part)]) => {
            contains(eval, [all[0], all[1]]).map(|()| Value::Bool(text.contains(part.as_str())))
        }
        (
            "matches" | "find" | "findAll",
            [Value::String(text), Value::String(pattern), most @ ..],
        ) => matches(eval, name, text, pattern, most),
        ("dyn" | "string" | "type", [_]) => {
            let value = convert(name, args)?;
            eval.meter.charge(1).map(|()| value)
        }
        ("lists.range", [Value::Int(most)]) => range(eval, *most),
        ("replace", [Value::String(text), Value::String(from), Value::String(to), most @ ..]) => {
            replace(eval, text, from, to, most)
        }
        ("split", [Value::String(text), Value::String(at), most @ ..]) => {
            split(eval, text, at, most)
        }
        ("join", [Value::List(list), rest @ ..]) => join(eval, list, rest),
        ("distinct", [Value::List(list)]) => distinct(eval, list),
        (
            "sets.contains" | "sets.intersects" | "sets.equivalent",
            [Value::List(a), Value::List(b)],
        ) => sets(eval, name, a, b),
        _ => return None,
    })
}

/// The conversions that the library does not know, or that it writes otherwise.
fn convert(name: &str, args: &[Value]) -> Option<Value> {
    match (name, args) {
        ("dyn", [value]) => Some(value.clone()),
        ("type", [value]) => Some(types::of(value)),
        ("string", [Value::Bool(truth)]) => Some(Value::String(Arc::new(truth.to_string()))),
        ("string", [time @ Value::Timestamp(_)]) => {
            let text = native(name, None, vec![time.clone()]).ok()?;
            let Value::String(text) = &text else { return None };
            Some(Value::String(Arc::new(text.replace("+00:00", "Z"))))
        }
        _ => None,
    }
}

fn size(eval: &mut Eval<'_>, value: &Value) -> Evaluated {
    let size = eval.meter.size(value)?;
    eval.meter.charge(1)?;
    Ok(Value::Int(i64::try_from(size).unwrap_or(i64::MAX)))
}

fn charge_text(eval: &mut Eval<'_>, text: &Value) -> Result<(), Stop> {
    let size = eval.meter.size(text)?;
    eval.meter.charge(traversal(size))
}

fn contains(eval: &mut Eval<'_>, [text, part]: [&Value; 2]) -> Result<(), Stop> {
    let (text, part) = (eval.meter.size(text)?, eval.meter.size(part)?);
    eval.meter.charge(traversal(text).saturating_mul(traversal(part)))
}

fn matches(
    eval: &mut Eval<'_>,
    name: &str,
    text: &str,
    pattern: &str,
    most: &[&Value],
) -> Evaluated {
    let (chars, signs) = (text.chars().count() as u64, pattern.chars().count() as u64);
    eval.meter.charge(matching(chars, signs))?;
    eval.meter.touch((text.len() + pattern.len()) as u64)?;
    let compiled = pattern::compiled(pattern)
        .map_err(|why| failed(name, &format!("the pattern is not valid: {why}")))?;
    let part = |found: regex::Match<'_>| Value::String(Arc::new(found.as_str().to_owned()));
    Ok(match name {
        "matches" => Value::Bool(compiled.is_match(text)),
        "find" => compiled.find(text).map_or_else(|| Value::String(Arc::default()), part),
        _ => {
            let most = match most {
                [Value::Int(most)] if *most >= 0 => usize::try_from(*most).unwrap_or(usize::MAX),
                _ => usize::MAX,
            };
            let mut found = Vec::new();
            for one in compiled.find_iter(text).take(most) {
                eval.meter.make(2 * ELEMENT + one.len() as u64)?;
                found.push(part(one));
            }
            Value::List(Arc::new(found))
        }
    })
}

/// What a function costs that makes a list with this many steps.
fn listing(steps: u64) -> u64 {
    steps.saturating_add(11)
}

/// What it costs to compare the elements of a list with each other.
fn comparing(list: &[Value]) -> u64 {
    let count = list.len() as u64;
    let factor = match list.first() {
        Some(Value::String(_) | Value::Bytes(_)) => 21,
        _ => 20,
    };
    listing(count.saturating_mul(count).saturating_mul(factor) / 10)
}

fn range(eval: &mut Eval<'_>, most: i64) -> Evaluated {
    let count =
        u64::try_from(most).map_err(|_| failed("lists.range", "the argument is negative"))?;
    eval.meter.charge(listing(count))?;
    eval.meter.make(count * ELEMENT / 2)?;
    Ok(Value::List(Arc::new((0..most).map(Value::Int).collect())))
}

/// How often at most; the argument may be absent or negative for "all".
fn times(most: &[&Value]) -> usize {
    match most {
        [Value::Int(most), ..] => usize::try_from(*most).unwrap_or(usize::MAX),
        _ => usize::MAX,
    }
}

fn replace(eval: &mut Eval<'_>, text: &str, from: &str, to: &str, most: &[&Value]) -> Evaluated {
    eval.meter.charge(traversal(text.chars().count() as u64 * 2))?;
    eval.meter.touch(text.len() as u64 * 2)?;
    let count = text.matches(from).take(times(most)).count();
    eval.meter
        .make((text.len() as u64).saturating_add((count as u64).saturating_mul(to.len() as u64)))?;
    Ok(Value::String(Arc::new(text.replacen(from, to, count))))
}

fn split(eval: &mut Eval<'_>, text: &str, at: &str, most: &[&Value]) -> Evaluated {
    eval.meter.charge(traversal(text.chars().count() as u64 * 2))?;
    let most = times(most);
    let mut parts: Vec<Value> = Vec::new();
    let mut push = |eval: &mut Eval<'_>, part: &str| {
        eval.meter.make(2 * ELEMENT + part.len() as u64)?;
        parts.push(Value::String(Arc::new(part.to_owned())));
        Ok::<(), Stop>(())
    };
    if most == 0 {
        return Ok(Value::List(Arc::default()));
    }
    if at.is_empty() {
        // Into letters; the last part is what is left.
        let mut rest = text;
        let mut left = most;
        while let Some(letter) = rest.chars().next().filter(|_| left > 1) {
            push(eval, &rest[..letter.len_utf8()])?;
            rest = &rest[letter.len_utf8()..];
            left -= 1;
        }
        if !rest.is_empty() {
            push(eval, rest)?;
        }
    } else {
        for part in text.splitn(most, at) {
            push(eval, part)?;
        }
    }
    Ok(Value::List(Arc::new(parts)))
}

fn join(eval: &mut Eval<'_>, list: &[Value], rest: &[&Value]) -> Evaluated {
    let between = match rest {
        [] => "",
        [Value::String(between)] => between.as_str(),
        _ => return Err(ExecutionError::NoSuchOverload.into()),
    };
    let mut out = String::new();
    for (index, item) in list.iter().enumerate() {
        let Value::String(text) = item else { return Err(ExecutionError::NoSuchOverload.into()) };
        let between = if index == 0 { "" } else { between };
        eval.meter.make((between.len() + text.len() + 1) as u64)?;
        out.push_str(between);
        out.push_str(text);
    }
    eval.meter.charge(traversal(out.chars().count() as u64 * 2))?;
    Ok(Value::String(Arc::new(out)))
}

fn distinct(eval: &mut Eval<'_>, list: &[Value]) -> Evaluated {
    eval.meter.charge(comparing(list))?;
    let mut found: Vec<Value> = Vec::new();
    for item in list {
        let mut known = false;
        for other in &found {
            known = known || eval.equal(other, item)?;
        }
        if !known {
            eval.meter.make(ELEMENT)?;
            found.push(item.clone());
        }
    }
    Ok(Value::List(Arc::new(found)))
}

fn sets(eval: &mut Eval<'_>, name: &str, a: &[Value], b: &[Value]) -> Evaluated {
    let product = (a.len() as u64).saturating_mul(b.len() as u64);
    let twice = if name == "sets.equivalent" { 2 } else { 1 };
    eval.meter.charge(product.saturating_mul(twice).saturating_add(1))?;
    let mut holds = |of: &[Value], one: &Value| -> Result<bool, Stop> {
        for other in of {
            if eval.equal(other, one)? {
                return Ok(true);
            }
        }
        Ok(false)
    };
    let mut all = |within: &[Value], these: &[Value]| -> Result<bool, Stop> {
        for one in these {
            if !holds(within, one)? {
                return Ok(false);
            }
        }
        Ok(true)
    };
    Ok(Value::Bool(match name {
        "sets.contains" => all(a, b)?,
        "sets.equivalent" => all(a, b)? && all(b, a)?,
        _ => {
            for one in b {
                if all(a, std::slice::from_ref(one))? {
                    return Ok(Value::Bool(true));
                }
            }
            false
        }
    }))
}

/// What a function of the library costs.
fn cost(eval: &mut Eval<'_>, name: &str, all: &[&Value]) -> Result<u64, Stop> {
    let Some(first) = all.first() else { return Ok(1) };
    Ok(match name {
        "isSorted" | "sum" | "max" | "min" | "indexOf" | "lastIndexOf" | "includes" => {
            eval.meter.walk(first)?
        }
        "reverse" => listing(eval.meter.size(first)?),
        "flatten" => match (first, all.get(1)) {
            (_, Some(Value::Int(deep))) => {
                listing(eval.meter.size(first)?.saturating_mul(u64::try_from(*deep).unwrap_or(1)))
            }
            _ => listing(eval.meter.size(first)?),
        },
        "slice" => match all {
            [_, Value::Int(from), Value::Int(to)] => {
                listing(u64::try_from(to.saturating_sub(*from)).unwrap_or(0))
            }
            _ => 1,
        },
        "sort" => match first {
            Value::List(list) => comparing(list),
            _ => 1,
        },
        "url"
        | "lowerAscii"
        | "upperAscii"
        | "substring"
        | "trim"
        | "jsonpatch.escapeKey"
        | "cidr"
        | "isIP"
        | "isCIDR"
        | "quantity"
        | "isQuantity"
        | "semver"
        | "isSemver"
        | "bytes"
        | "strings.quote"
        | "format" => traversal(eval.meter.size(first)?),
        "ip" | "string" => match first {
            Value::String(_) | Value::Bytes(_) => traversal(eval.meter.size(first)?),
            _ => 1,
        },
        "ip.isCanonical" => traversal(eval.meter.size(first)? * 2),
        "containsIP" | "containsCIDR" => {
            let text = match all.get(1) {
                Some(text @ Value::String(_)) => traversal(eval.meter.size(text)?),
                _ => 0,
            };
            let prefix = native("prefixLength", Some((*first).clone()), Vec::new())?;
            let bytes = match prefix {
                Value::Int(bits) => u64::try_from(bits).unwrap_or(0).div_ceil(8),
                _ => 0,
            };
            // A block in a block is masked first, and its bits are compared.
            let masked = if name == "containsCIDR" { traversal(bytes) + 1 } else { 0 };
            traversal(bytes * 2) + masked + text
        }
        _ => 1,
    })
}

/// A function of the library. What it gets is copied on the way, all that is inside included.
fn borrowed(eval: &mut Eval<'_>, name: &str, target: Option<Value>, args: Vec<Value>) -> Evaluated {
    let all: Vec<&Value> = target.iter().chain(&args).collect();
    let cost = cost(eval, name, &all)?;
    eval.meter.charge(cost)?;
    let mut weight = 0;
    for value in &all {
        weight += eval.meter.weigh(value)?;
    }
    // The copy, what comes of it, and the copy of that.
    eval.meter.make(weight * 3)?;
    if let ("format", Some(Value::String(text))) = (name, all.first()) {
        check_digits(text)?;
    }
    native(name, target, args).map_err(Stop::from)
}

/// How many digits behind the point a format asks for.
fn check_digits(format: &str) -> Result<(), Stop> {
    for rest in format.split("%.").skip(1) {
        let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
        let digits = digits.parse().unwrap_or(if digits.is_empty() { 0 } else { u64::MAX });
        if digits > MAX_DIGITS {
            return Err(failed("format", &format!("a precision may be {MAX_DIGITS} at most")));
        }
    }
    Ok(())
}

/// Calls a function of the library with values.
pub(super) fn native(
    name: &str,
    target: Option<Value>,
    args: Vec<Value>,
) -> Result<Value, ExecutionError> {
    const NAMES: [&str; 8] = ["@0", "@1", "@2", "@3", "@4", "@5", "@6", "@7"];
    static LIBRARY: LazyLock<Context<'static>> = LazyLock::new(|| Context::default().with_all());
    if args.len() > NAMES.len() {
        return Err(ExecutionError::NoSuchOverload);
    }
    let ident = |name: &str| IdedExpr { id: 0, expr: Expr::Ident(name.to_owned()) };
    let mut context = LIBRARY.new_inner_scope();
    let call = CallExpr {
        func_name: name.to_owned(),
        target: target.is_some().then(|| Box::new(ident("@target"))),
        args: NAMES[..args.len()].iter().map(|name| ident(name)).collect(),
    };
    if let Some(target) = target {
        context.add_variable_from_value("@target", target);
    }
    for (name, value) in NAMES.iter().zip(args) {
        context.add_variable_from_value(*name, value);
    }
    Value::resolve(&IdedExpr { id: 0, expr: Expr::Call(call) }, &context)
}
