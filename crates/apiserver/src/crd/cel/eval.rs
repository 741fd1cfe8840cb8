//! Walks through an expression.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::sync::Arc;

use kube_cel::cel::common::ast::{
    CallExpr, ComprehensionExpr, EntryExpr, Expr, ListExpr, MapExpr, SelectExpr, operators,
};
use kube_cel::cel::objects::{Key, KeyRef, Map, OptionalValue};
use kube_cel::cel::{ExecutionError, IdedExpr, Value};

use super::calls;
use super::meter::{ELEMENT, Meter, traversal};
use super::plan::{as_set, is_attribute, is_constant, is_constant_call};
use super::types;

/// Why there is no value.
#[derive(Debug)]
pub(in super::super) enum Stop {
    Failed(ExecutionError),
    /// It costs too much.
    Exhausted,
}

impl From<ExecutionError> for Stop {
    fn from(error: ExecutionError) -> Self {
        Self::Failed(error)
    }
}

pub(super) type Evaluated = Result<Value, Stop>;

pub(in super::super) struct Eval<'a> {
    /// Names and their values; the last one of a name counts.
    pub(super) names: Vec<(&'a str, Value)>,
    pub(super) meter: &'a mut Meter,
    /// Loops whose value is a failure so far, by the place of that value among the names: a later round
    /// may decide nevertheless.
    failed: Vec<(usize, ExecutionError)>,
}

impl<'a> Eval<'a> {
    /// With these names.
    pub(in super::super) fn new(meter: &'a mut Meter, names: Vec<(&'a str, Value)>) -> Self {
        Self { names, meter, failed: Vec::new() }
    }

    /// The value of an expression.
    pub(in super::super) fn value(&mut self, expr: &'a IdedExpr) -> Evaluated {
        match &expr.expr {
            Expr::Literal(literal) => {
                let value = Value::try_from(literal.to_val().as_ref())?;
                if let Value::String(text) = &value {
                    self.meter.touch(text.len() as u64)?;
                }
                Ok(value)
            }
            Expr::Ident(_) | Expr::Select(_) => self.attribute(expr, 1),
            Expr::List(list) => {
                self.meter.charge(if is_constant(expr) { 0 } else { 10 })?;
                self.list(list)
            }
            Expr::Map(map) => {
                self.meter.charge(if is_constant(expr) { 0 } else { 30 })?;
                self.map(map)
            }
            Expr::Call(_) if is_attribute(expr) => self.attribute(expr, 1),
            Expr::Call(call) => self.call(call),
            Expr::Comprehension(fold) => self.fold(fold),
            Expr::Struct(_) | Expr::Unspecified => Err(ExecutionError::NoSuchOverload.into()),
        }
    }

    pub(super) fn name(&self, name: &str) -> Option<Value> {
        self.names.iter().rev().find(|(known, _)| *known == name).map(|(_, value)| value.clone())
    }

    /// The value of a name, or of what is selected from a value. It costs `own` beside the selections:
    /// nothing where it is part of another attribute.
    fn attribute(&mut self, expr: &'a IdedExpr, own: u64) -> Evaluated {
        match &expr.expr {
            Expr::Ident(name) => {
                let place = self.names.iter().rposition(|(known, _)| known == name);
                let Some(place) = place else {
                    let named = types::named(name);
                    return named.ok_or_else(|| ExecutionError::undeclared_reference(name).into());
                };
                self.meter.charge(own)?;
                match self.failed.iter().find(|(failed, _)| *failed == place) {
                    Some((_, error)) => Err(error.clone().into()),
                    None => Ok(self.names[place].1.clone()),
                }
            }
            Expr::Select(select) => {
                let operand = self.operand(&select.operand, own)?;
                if !select.test {
                    self.meter.charge(1)?;
                }
                self.select(select, &operand)
            }
            Expr::Call(call) => match (call.func_name.as_str(), call.args.as_slice()) {
                (operators::CONDITIONAL, [condition, yes, no]) => {
                    let chosen = if self.truth(condition)? { yes } else { no };
                    self.attribute(chosen, 0)
                }
                (
                    operator @ (operators::INDEX | operators::OPT_INDEX | operators::OPT_SELECT),
                    [of, at],
                ) => {
                    let of = self.operand(of, own)?;
                    let at = if is_attribute(at) { self.attribute(at, 0) } else { self.value(at) };
                    self.meter.charge(1)?;
                    index(&of, &at?, operator != operators::INDEX)
                }
                _ => self.value(expr),
            },
            _ => self.value(expr),
        }
    }

    /// What an attribute selects from.
    fn operand(&mut self, expr: &'a IdedExpr, own: u64) -> Evaluated {
        if is_attribute(expr) {
            return self.attribute(expr, own);
        }
        let value = self.value(expr)?;
        self.meter.charge(own)?;
        Ok(value)
    }

    /// A value or its failure; the end of the evaluation is neither.
    pub(super) fn outcome(
        &mut self,
        expr: &'a IdedExpr,
    ) -> Result<Result<Value, ExecutionError>, Stop> {
        match self.value(expr) {
            Ok(value) => Ok(Ok(value)),
            Err(Stop::Failed(error)) => Ok(Err(error)),
            Err(Stop::Exhausted) => Err(Stop::Exhausted),
        }
    }

    fn select(&mut self, select: &'a SelectExpr, operand: &Value) -> Evaluated {
        let optional = <&OptionalValue>::try_from(operand).ok().map(|found| found.value().cloned());
        let inside = match &optional {
            Some(Some(inside)) => inside,
            Some(None) if select.test => return Ok(Value::Bool(false)),
            Some(None) => return Ok(none()),
            None => operand,
        };
        let Value::Map(map) = inside else { return Ok(Value::Bool(false)) };
        let found = map.get(&KeyRef::String(&select.field));
        match (found, optional.is_some()) {
            (found, _) if select.test => Ok(Value::Bool(found.is_some())),
            (Some(found), false) => Ok(found.clone()),
            (None, false) => Err(ExecutionError::no_such_key(&select.field).into()),
            (found, true) => Ok(found.map_or_else(none, |found| some(found.clone()))),
        }
    }

    fn list(&mut self, list: &'a ListExpr) -> Evaluated {
        let mut values = Vec::with_capacity(list.elements.len());
        for (index, element) in list.elements.iter().enumerate() {
            let value = self.value(element)?;
            let optional = list.optional_indices.contains(&index);
            match <&OptionalValue>::try_from(&value) {
                Ok(inside) if optional => values.extend(inside.value().cloned()),
                _ => values.push(value),
            }
        }
        self.meter.make(values.len() as u64 * ELEMENT)?;
        Ok(Value::List(Arc::new(values)))
    }

    fn map(&mut self, map: &'a MapExpr) -> Evaluated {
        let mut values: HashMap<Key, Value> = HashMap::with_capacity(map.entries.len());
        for entry in &map.entries {
            let EntryExpr::MapEntry(entry) = &entry.expr else {
                return Err(ExecutionError::NoSuchOverload.into());
            };
            let key = self.value(&entry.key)?;
            let key: Key = key.try_into().map_err(|_| ExecutionError::NoSuchOverload)?;
            let value = self.value(&entry.value)?;
            match <&OptionalValue>::try_from(&value) {
                Ok(inside) if entry.optional => {
                    if let Some(inside) = inside.value() {
                        values.insert(key, inside.clone());
                    }
                }
                _ => drop(values.insert(key, value)),
            }
        }
        self.meter.make(values.len() as u64 * 2 * ELEMENT)?;
        Ok(Value::Map(Map { map: Arc::new(values) }))
    }

    /// Holds or not; anything else is no answer.
    fn truth(&mut self, expr: &'a IdedExpr) -> Result<bool, Stop> {
        match self.value(expr)? {
            Value::Bool(truth) => Ok(truth),
            _ => Err(ExecutionError::NoSuchOverload.into()),
        }
    }

    /// And, or: one side may decide although the other fails.
    fn logic(&mut self, left: &'a IdedExpr, right: &'a IdedExpr, decides: bool) -> Evaluated {
        let left = match self.truth(left) {
            Ok(truth) if truth == decides => return Ok(Value::Bool(decides)),
            Err(Stop::Exhausted) => return Err(Stop::Exhausted),
            left => left,
        };
        let right = self.truth(right)?;
        if right == decides {
            return Ok(Value::Bool(decides));
        }
        left.map(|_| Value::Bool(!decides))
    }

    fn call(&mut self, call: &'a CallExpr) -> Evaluated {
        let name = call.func_name.as_str();
        match (name, call.args.as_slice(), &call.target) {
            (operators::LOGICAL_OR, [left, right], None) => self.logic(left, right, true),
            (operators::LOGICAL_AND, [left, right], None) => self.logic(left, right, false),
            (operators::NOT_STRICTLY_FALSE, [one], None) => {
                let value = match self.truth(one) {
                    Err(Stop::Exhausted) => return Err(Stop::Exhausted),
                    other => other.unwrap_or(true),
                };
                self.meter.charge(1)?;
                Ok(Value::Bool(value))
            }
            (operators::LOGICAL_NOT, [one], None) => {
                let truth = self.truth(one);
                self.meter.charge(1)?;
                Ok(Value::Bool(!truth?))
            }
            (operators::NEGATE, [one], None) => {
                let value = self.value(one);
                self.meter.charge(if is_constant_call(call) { 0 } else { 1 })?;
                match value? {
                    Value::Int(int) => int.checked_neg().map(Value::Int).ok_or_else(|| {
                        ExecutionError::function_error("-", "integer overflow").into()
                    }),
                    Value::Float(float) => Ok(Value::Float(-float)),
                    _ => Err(ExecutionError::NoSuchOverload.into()),
                }
            }
            (operators::IN, [one, all], None) if as_set(all).is_some() => self.within(one, all),
            (operator, [left, right], None) if is_operator(operator) => {
                match (self.outcome(left)?, self.outcome(right)?) {
                    (Ok(left), Ok(right)) => self.operate(operator, left, right),
                    (Err(error), other) | (other, Err(error)) => {
                        self.charge_failure(operator, other.ok().as_ref())?;
                        Err(error.into())
                    }
                }
            }
            _ => calls::call(self, call),
        }
    }

    /// Charges for an operator of which one side failed: the failure has the size one.
    fn charge_failure(&mut self, operator: &str, other: Option<&Value>) -> Result<(), Stop> {
        let cost = match (operator, other) {
            (operators::ADD, Some(text @ (Value::String(_) | Value::Bytes(_)))) => {
                traversal(self.meter.size(text)? + 1)
            }
            (operators::IN, Some(Value::List(list))) => list.len() as u64,
            (operators::EQUALS | operators::NOT_EQUALS, Some(other)) => {
                self.meter.size(other)?.min(1)
            }
            _ => 1,
        };
        self.meter.charge(cost)
    }

    /// Whether a value is in a set of constants.
    fn within(&mut self, one: &'a IdedExpr, all: &'a IdedExpr) -> Evaluated {
        let all = as_set(all).unwrap_or_default();
        if all.is_empty() {
            return Ok(Value::Bool(false));
        }
        let one = self.value(one)?;
        for other in all {
            let other = self.value(other)?;
            if self.equal(&one, &other)? {
                return Ok(Value::Bool(true));
            }
        }
        Ok(Value::Bool(false))
    }

    fn operate(&mut self, operator: &str, left: Value, right: Value) -> Evaluated {
        match operator {
            operators::EQUALS | operators::NOT_EQUALS => {
                let least = self.meter.size(&left)?.min(self.meter.size(&right)?);
                self.meter.charge(traversal(least))?;
                let equal = self.equal(&left, &right)?;
                Ok(Value::Bool(equal == (operator == operators::EQUALS)))
            }
            operators::LESS
            | operators::LESS_EQUALS
            | operators::GREATER
            | operators::GREATER_EQUALS => {
                let least = self.meter.size(&left)?.min(self.meter.size(&right)?);
                self.meter.charge(traversal(least))?;
                // Lists and maps have no order.
                let order = match (&left, &right) {
                    (Value::Bytes(left), Value::Bytes(right)) => Some(left.cmp(right)),
                    _ => left.partial_cmp(&right),
                };
                let order = order.ok_or(ExecutionError::NoSuchOverload)?;
                Ok(Value::Bool(match operator {
                    operators::LESS => order == Ordering::Less,
                    operators::LESS_EQUALS => order != Ordering::Greater,
                    operators::GREATER => order == Ordering::Greater,
                    _ => order != Ordering::Less,
                }))
            }
            operators::IN => self.contains(&left, &right),
            operators::ADD => self.add(left, right),
            _ => {
                self.meter.charge(1)?;
                let plain = |value: &Value| !matches!(value, Value::List(_) | Value::Map(_));
                if !plain(&left) || !plain(&right) {
                    return Err(ExecutionError::NoSuchOverload.into());
                }
                Ok(match operator {
                    operators::SUBSTRACT => left - right,
                    operators::MULTIPLY => left * right,
                    operators::DIVIDE => left / right,
                    _ => left % right,
                }?)
            }
        }
    }

    fn add(&mut self, left: Value, right: Value) -> Evaluated {
        match (&left, &right) {
            (Value::String(a), Value::String(b)) => {
                let size = self.meter.size(&left)? + self.meter.size(&right)?;
                self.meter.charge(traversal(size))?;
                self.meter.make((a.len() + b.len()) as u64)?;
            }
            (Value::Bytes(a), Value::Bytes(b)) => {
                let size = (a.len() + b.len()) as u64;
                self.meter.charge(traversal(size))?;
                self.meter.make(size)?;
                return Ok(Value::Bytes(Arc::new([a.as_slice(), b.as_slice()].concat())));
            }
            (Value::List(a), Value::List(b)) => {
                self.meter.charge(1)?;
                self.meter.make((a.len() + b.len()) as u64 * ELEMENT / 2)?;
            }
            (Value::List(_) | Value::Map(_), _) | (_, Value::List(_) | Value::Map(_)) => {
                return Err(ExecutionError::NoSuchOverload.into());
            }
            _ => self.meter.charge(1)?,
        }
        Ok((left + right)?)
    }

    fn contains(&mut self, one: &Value, all: &Value) -> Evaluated {
        match all {
            Value::List(list) => {
                self.meter.charge(list.len() as u64)?;
                for item in list.iter() {
                    if self.equal(one, item)? {
                        return Ok(Value::Bool(true));
                    }
                }
                Ok(Value::Bool(false))
            }
            Value::Map(map) => {
                self.meter.charge(1)?;
                let key = KeyRef::try_from(one).map_err(|_| ExecutionError::NoSuchOverload)?;
                Ok(Value::Bool(map.get(&key).is_some()))
            }
            _ => Err(ExecutionError::NoSuchOverload.into()),
        }
    }

    /// Whether two values are equal, all that is in them included.
    pub(super) fn equal(&mut self, a: &Value, b: &Value) -> Result<bool, Stop> {
        self.meter.touch(8)?;
        match (a, b) {
            (Value::List(a), Value::List(b)) => {
                if a.len() != b.len() {
                    return Ok(false);
                }
                for (a, b) in a.iter().zip(b.iter()) {
                    if !self.equal(a, b)? {
                        return Ok(false);
                    }
                }
                Ok(true)
            }
            (Value::Map(a), Value::Map(b)) => {
                if a.map.len() != b.map.len() {
                    return Ok(false);
                }
                for (key, a) in a.map.iter() {
                    let Some(b) = b.get(key) else { return Ok(false) };
                    if !self.equal(a, b)? {
                        return Ok(false);
                    }
                }
                Ok(true)
            }
            (Value::String(a), Value::String(b)) => {
                self.meter.touch(a.len().min(b.len()) as u64)?;
                Ok(a == b)
            }
            (Value::Opaque(_), Value::Opaque(_)) => {
                let (a_value, b_value) =
                    (<&OptionalValue>::try_from(a), <&OptionalValue>::try_from(b));
                match (a_value, b_value) {
                    (Ok(a), Ok(b)) => match (a.value(), b.value()) {
                        (Some(a), Some(b)) => self.equal(a, b),
                        (a, b) => Ok(a.is_none() && b.is_none()),
                    },
                    _ => Ok(a == b),
                }
            }
            (a, b) => Ok(a == b),
        }
    }

    /// The loops that `all`, `exists`, `map` and `filter` stand for.
    fn fold(&mut self, fold: &'a ComprehensionExpr) -> Evaluated {
        let range = self.value(&fold.iter_range)?;
        let start = self.value(&fold.accu_init)?;
        let depth = self.names.len();
        self.names.push((&fold.accu_var, start));
        let done = self.rounds(fold, &range, depth);
        self.names.truncate(depth + 1);
        let result = done.and_then(|()| self.value(&fold.result));
        self.names.truncate(depth);
        self.failed.retain(|(place, _)| *place < depth);
        result
    }

    fn rounds(
        &mut self,
        fold: &'a ComprehensionExpr,
        range: &Value,
        depth: usize,
    ) -> Result<(), Stop> {
        match range {
            Value::List(list) => {
                for (index, item) in list.iter().enumerate() {
                    let index = Value::Int(i64::try_from(index).unwrap_or(i64::MAX));
                    if !self.round(fold, index, item, item, depth)? {
                        break;
                    }
                }
                Ok(())
            }
            Value::Map(map) => {
                // In an order that is the same each time.
                self.meter.make(map.map.len() as u64 * 16)?;
                let mut entries: Vec<(&Key, &Value)> = map.map.iter().collect();
                entries.sort_by_key(|(key, _)| *key);
                for (key, item) in entries {
                    let key = Value::from(key);
                    if !self.round(fold, key.clone(), item, &key, depth)? {
                        break;
                    }
                }
                Ok(())
            }
            _ => Err(ExecutionError::NoSuchOverload.into()),
        }
    }

    /// One round: `first` and `second` for loops with two names, `only` for those with one. False when the
    /// loop is over.
    fn round(
        &mut self,
        fold: &'a ComprehensionExpr,
        first: Value,
        second: &Value,
        only: &Value,
        depth: usize,
    ) -> Result<bool, Stop> {
        // There are rounds that cost nothing.
        self.meter.touch(ELEMENT)?;
        if !self.truth(&fold.loop_cond)? {
            return Ok(false);
        }
        match &fold.iter_var2 {
            Some(name) => {
                self.names.push((&fold.iter_var, first));
                self.names.push((name, second.clone()));
            }
            None => self.names.push((&fold.iter_var, only.clone())),
        }
        let next = self.step(fold, &fold.loop_step, depth);
        self.names.truncate(depth + 1);
        match next {
            Ok(None) => {}
            Ok(Some(next)) => {
                self.failed.retain(|(place, _)| *place != depth);
                self.names[depth].1 = next;
            }
            Err(Stop::Failed(error)) => {
                self.failed.retain(|(place, _)| *place != depth);
                self.failed.push((depth, error));
            }
            Err(Stop::Exhausted) => return Err(Stop::Exhausted),
        }
        Ok(true)
    }

    /// What the loop's value becomes; `None` when it stays, or was changed in its place: a list that
    /// grows element by element is not copied for each.
    fn step(
        &mut self,
        fold: &'a ComprehensionExpr,
        step: &'a IdedExpr,
        depth: usize,
    ) -> Result<Option<Value>, Stop> {
        let is_own =
            |expr: &IdedExpr| matches!(&expr.expr, Expr::Ident(name) if *name == fold.accu_var);
        if is_own(step) {
            return Ok(None);
        }
        let Expr::Call(call) = &step.expr else { return self.value(step).map(Some) };
        match (call.func_name.as_str(), call.args.as_slice()) {
            (operators::CONDITIONAL, [condition, yes, no]) => {
                // A branch that is an attribute is part of the conditional.
                let chosen = if self.truth(condition)? { yes } else { no };
                self.step(fold, chosen, depth)
            }
            (operators::ADD, [own, more])
                if is_own(own) && matches!(self.names[depth].1, Value::List(_)) =>
            {
                self.meter.charge(1)?;
                let more = self.outcome(more)?;
                self.meter.charge(1)?;
                let Value::List(more) = more? else {
                    return Err(ExecutionError::NoSuchOverload.into());
                };
                self.meter.make(more.len() as u64 * ELEMENT)?;
                if let Value::List(list) = &mut self.names[depth].1 {
                    if Arc::strong_count(list) > 1 {
                        self.meter.make(list.len() as u64 * ELEMENT)?;
                    }
                    Arc::make_mut(list).extend(more.iter().cloned());
                }
                Ok(None)
            }
            _ => self.value(step).map(Some),
        }
    }
}

fn is_operator(name: &str) -> bool {
    const OPERATORS: &[&str] = &[
        operators::EQUALS,
        operators::NOT_EQUALS,
        operators::LESS,
        operators::LESS_EQUALS,
        operators::GREATER,
        operators::GREATER_EQUALS,
        operators::IN,
        operators::ADD,
        operators::SUBSTRACT,
        operators::MULTIPLY,
        operators::DIVIDE,
        operators::MODULO,
    ];
    OPERATORS.contains(&name)
}

fn some(value: Value) -> Value {
    Value::Opaque(Arc::new(OptionalValue::of(value)))
}

fn none() -> Value {
    Value::Opaque(Arc::new(OptionalValue::none()))
}

/// An element of a list or a map.
fn index(of: &Value, at: &Value, optional: bool) -> Evaluated {
    let inside = <&OptionalValue>::try_from(of).ok().map(|found| found.value().cloned());
    let optional = optional || inside.is_some();
    let of = match &inside {
        Some(Some(inside)) => inside,
        Some(None) => return Ok(none()),
        None => of,
    };
    let found = match (of, at) {
        (Value::List(list), Value::Int(at)) => {
            let found = usize::try_from(*at).ok().and_then(|at| list.get(at));
            found.ok_or_else(|| ExecutionError::IndexOutOfBounds(Value::Int(*at)))
        }
        (Value::List(list), Value::UInt(at)) => {
            let found = usize::try_from(*at).ok().and_then(|at| list.get(at));
            found.ok_or_else(|| ExecutionError::IndexOutOfBounds(Value::UInt(*at)))
        }
        (Value::Map(map), key) => {
            let key = KeyRef::try_from(key).map_err(|_| ExecutionError::NoSuchOverload)?;
            map.get(&key).ok_or_else(|| match key {
                KeyRef::String(key) => ExecutionError::no_such_key(key),
                other => ExecutionError::no_such_key(&format!("{other:?}")),
            })
        }
        _ => Err(ExecutionError::NoSuchOverload),
    };
    match found {
        Ok(found) if optional => Ok(some(found.clone())),
        Ok(found) => Ok(found.clone()),
        Err(ExecutionError::NoSuchOverload) => Err(ExecutionError::NoSuchOverload.into()),
        Err(_) if optional => Ok(none()),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
