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

/// Why there is no value.
#[derive(Debug)]
pub(in super::super) enum Stop {
    /// The expression fails.
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

/// An evaluation.
pub(in super::super) struct Eval<'a> {
    /// Names and their values; the last one of a name counts.
    pub(super) names: Vec<(&'a str, Value)>,
    pub(super) meter: &'a mut Meter,
}

impl<'a> Eval<'a> {
    /// With these names.
    pub(in super::super) fn new(meter: &'a mut Meter, names: Vec<(&'a str, Value)>) -> Self {
        Self { names, meter }
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
            Expr::Ident(name) => {
                self.meter.charge(1)?;
                self.name(name).ok_or_else(|| ExecutionError::undeclared_reference(name).into())
            }
            Expr::Select(select) => self.select(select),
            Expr::List(list) => self.list(list),
            Expr::Map(map) => self.map(map),
            Expr::Call(call) => self.call(call),
            Expr::Comprehension(fold) => self.fold(fold),
            Expr::Struct(_) | Expr::Unspecified => Err(ExecutionError::NoSuchOverload.into()),
        }
    }

    pub(super) fn name(&self, name: &str) -> Option<Value> {
        self.names.iter().rev().find(|(known, _)| *known == name).map(|(_, value)| value.clone())
    }

    fn select(&mut self, select: &'a SelectExpr) -> Evaluated {
        let operand = self.value(&select.operand)?;
        if !select.test {
            self.meter.charge(1)?;
        }
        let optional =
            <&OptionalValue>::try_from(&operand).ok().map(|found| found.value().cloned());
        let inside = match &optional {
            Some(Some(inside)) => inside,
            Some(None) if select.test => return Ok(Value::Bool(false)),
            Some(None) => return Ok(none()),
            None => &operand,
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
        self.meter.charge(10)?;
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
        self.meter.charge(30)?;
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
            (operators::CONDITIONAL, [condition, yes, no], None) => {
                let chosen = if self.truth(condition)? { yes } else { no };
                self.value(chosen)
            }
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
                let truth = self.truth(one)?;
                self.meter.charge(1)?;
                Ok(Value::Bool(!truth))
            }
            (operators::NEGATE, [one], None) => {
                let value = self.value(one)?;
                self.meter.charge(1)?;
                match value {
                    Value::Int(int) => int.checked_neg().map(Value::Int).ok_or_else(|| {
                        ExecutionError::function_error("-", "integer overflow").into()
                    }),
                    Value::Float(float) => Ok(Value::Float(-float)),
                    _ => Err(ExecutionError::NoSuchOverload.into()),
                }
            }
            (operator, [left, right], None) if is_operator(operator) => {
                let (left, right) = (self.value(left)?, self.value(right)?);
                self.operate(operator, left, right)
            }
            _ => calls::call(self, call),
        }
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
                let order = left.partial_cmp(&right).ok_or(ExecutionError::NoSuchOverload)?;
                Ok(Value::Bool(match operator {
                    operators::LESS => order == Ordering::Less,
                    operators::LESS_EQUALS => order != Ordering::Greater,
                    operators::GREATER => order == Ordering::Greater,
                    _ => order != Ordering::Less,
                }))
            }
            operators::IN => self.contains(&left, &right),
            operators::INDEX | operators::OPT_INDEX => {
                self.meter.charge(1)?;
                index(&left, &right, operator == operators::OPT_INDEX)
            }
            operators::OPT_SELECT => {
                self.meter.charge(1)?;
                index(&left, &right, true)
            }
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
        if let Some(next) = next? {
            self.names[depth].1 = next;
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
            self.meter.charge(1)?;
            return Ok(None);
        }
        let Expr::Call(call) = &step.expr else { return self.value(step).map(Some) };
        match (call.func_name.as_str(), call.args.as_slice()) {
            (operators::CONDITIONAL, [condition, yes, no]) => {
                let chosen = if self.truth(condition)? { yes } else { no };
                self.step(fold, chosen, depth)
            }
            (operators::ADD, [own, more])
                if is_own(own) && matches!(self.names[depth].1, Value::List(_)) =>
            {
                self.meter.charge(1)?;
                let Value::List(more) = self.value(more)? else {
                    return Err(ExecutionError::NoSuchOverload.into());
                };
                self.meter.charge(1)?;
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
        operators::INDEX,
        operators::OPT_INDEX,
        operators::OPT_SELECT,
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
