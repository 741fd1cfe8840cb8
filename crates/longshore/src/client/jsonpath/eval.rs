//! From the parts of a template and an object to values.

use std::borrow::Cow;
use std::cmp::Ordering;

use serde_json::Value;

use super::{Filter, Part, PathError, Slice, Step};

type Values<'a> = Vec<Cow<'a, Value>>;

/// Appends the values of each part.
pub(super) fn parts<'a>(
    parts: &[Part],
    object: Cow<'a, Value>,
    results: &mut Vec<Values<'a>>,
) -> Result<(), PathError> {
    for part in parts {
        match part {
            Part::Text(text) => results.push(vec![Cow::Owned(Value::String(text.clone()))]),
            Part::Action(steps) => results.push(walk(steps, vec![object.clone()])?),
            Part::Range(steps, body) => {
                for value in walk(steps, vec![object.clone()])? {
                    self::parts(body, value, results)?;
                }
            }
        }
    }
    Ok(())
}

/// Goes through all steps.
fn walk<'a>(steps: &[Step], mut values: Values<'a>) -> Result<Values<'a>, PathError> {
    for step in steps {
        values = match step {
            Step::Field(name) => flat(values, |value| field(value, name)),
            Step::Wildcard => flat(values, children),
            Step::Recursive => flat(values, descendants),
            Step::Slice(slice) => try_flat(values, |value| slice_of(value, *slice))?,
            Step::Filter(filter) => try_flat(values, |value| filtered(value, filter))?,
            Step::Union(members) => {
                let mut union = Vec::new();
                for member in members {
                    union.extend(walk(member, values.clone())?);
                }
                union
            }
            Step::Literal(value) => vec![Cow::Owned(value.clone())],
            Step::Range | Step::End => values,
        };
    }
    Ok(values)
}

fn flat<'a>(values: Values<'a>, of: impl Fn(Cow<'a, Value>) -> Values<'a>) -> Values<'a> {
    values.into_iter().flat_map(of).collect()
}

fn try_flat<'a>(
    values: Values<'a>,
    of: impl Fn(Cow<'a, Value>) -> Result<Values<'a>, PathError>,
) -> Result<Values<'a>, PathError> {
    let mut all = Vec::new();
    for value in values {
        all.extend(of(value)?);
    }
    Ok(all)
}

/// A member of an object; a missing one is nothing.
fn field<'a>(value: Cow<'a, Value>, name: &str) -> Values<'a> {
    match value {
        Cow::Borrowed(value) => value.get(name).map(Cow::Borrowed).into_iter().collect(),
        Cow::Owned(value) => value.get(name).cloned().map(Cow::Owned).into_iter().collect(),
    }
}

/// The values of an object or a list.
fn children(value: Cow<'_, Value>) -> Values<'_> {
    match value {
        Cow::Borrowed(Value::Array(items)) => items.iter().map(Cow::Borrowed).collect(),
        Cow::Borrowed(Value::Object(fields)) => fields.values().map(Cow::Borrowed).collect(),
        Cow::Owned(Value::Array(items)) => items.into_iter().map(Cow::Owned).collect(),
        Cow::Owned(Value::Object(fields)) => {
            fields.into_iter().map(|(_, value)| Cow::Owned(value)).collect()
        }
        _ => Vec::new(),
    }
}

/// The value and all below it, as far as they have values in them.
fn descendants(value: Cow<'_, Value>) -> Values<'_> {
    let below = children(value.clone());
    if below.is_empty() {
        return Vec::new();
    }
    let mut all = vec![value];
    all.extend(below.into_iter().flat_map(descendants));
    all
}

fn items(value: Cow<'_, Value>, what: &str) -> Result<Option<Vec<Value>>, PathError> {
    match value.into_owned() {
        Value::Null => Ok(None),
        Value::Array(items) => Ok(Some(items)),
        other => Err(PathError(format!("{} {what}", type_name(&other)))),
    }
}

fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

fn slice_of(value: Cow<'_, Value>, slice: Slice) -> Result<Values<'_>, PathError> {
    let Some(items) = items(value, "is not array or slice")? else { return Ok(Vec::new()) };
    let length = i64::try_from(items.len()).unwrap_or(i64::MAX);
    let from = match slice.from.unwrap_or(0) {
        from if from < 0 => from + length,
        from => from,
    };
    let to = match slice.to {
        None => length,
        Some(to) if to < 0 || (to == 0 && slice.single) => to + length,
        Some(to) => to,
    };
    if from == to {
        return Ok(Vec::new());
    }
    let outside = |index: i64| {
        PathError(format!("array index out of bounds: index {index}, length {length}"))
    };
    if from < 0 || from >= length {
        return Err(outside(from));
    }
    if to < 0 || to > length {
        return Err(outside(to - 1));
    }
    if from > to {
        let why = format!("starting index {from} is greater than ending index {to}");
        return Err(PathError(why));
    }
    let step = match slice.step.unwrap_or(1) {
        step if step > 0 => usize::try_from(step).unwrap_or(usize::MAX),
        _ => return Err(PathError("step must be > 0".into())),
    };
    let (from, to) = (usize::try_from(from).unwrap_or(0), usize::try_from(to).unwrap_or(0));
    Ok(items.into_iter().take(to).skip(from).step_by(step).map(Cow::Owned).collect())
}

fn filtered<'a>(value: Cow<'a, Value>, filter: &Filter) -> Result<Values<'a>, PathError> {
    let Some(items) = items(value, "is not array or slice and cannot be filtered")? else {
        return Ok(Vec::new());
    };
    let mut kept = Vec::new();
    for item in items {
        if passes(&item, filter)? {
            kept.push(Cow::Owned(item));
        }
    }
    Ok(kept)
}

fn passes(item: &Value, filter: &Filter) -> Result<bool, PathError> {
    let side = |steps: &[Step]| walk(steps, vec![Cow::Borrowed(item)]);
    let Some((operator, right)) = &filter.comparison else {
        return side(&filter.left).map(|found| !found.is_empty());
    };
    let (lefts, rights) = (side(&filter.left)?, side(right)?);
    if lefts.len() > 1 || rights.len() > 1 {
        return Err(PathError("can only compare one element at a time".into()));
    }
    let (Some(left), Some(right)) = (lefts.first(), rights.first()) else { return Ok(false) };
    let order = compare(left, right)
        .ok_or_else(|| PathError("incompatible types for comparison".into()))?;
    match operator.as_str() {
        "==" => Ok(order.is_eq()),
        "!=" => Ok(order.is_ne()),
        "<" => Ok(order.is_lt()),
        "<=" => Ok(order.is_le()),
        ">" => Ok(order.is_gt()),
        ">=" => Ok(order.is_ge()),
        other => Err(PathError(format!("unrecognized filter operator {other}"))),
    }
}

/// The order of two single values of one type.
fn compare(left: &Value, right: &Value) -> Option<Ordering> {
    match (left, right) {
        (Value::String(left), Value::String(right)) => Some(left.cmp(right)),
        (Value::Bool(left), Value::Bool(right)) => Some(left.cmp(right)),
        (Value::Number(left), Value::Number(right)) => match (left.as_i64(), right.as_i64()) {
            (Some(left), Some(right)) => Some(left.cmp(&right)),
            _ => left.as_f64()?.partial_cmp(&right.as_f64()?),
        },
        _ => None,
    }
}
