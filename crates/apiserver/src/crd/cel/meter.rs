//! What an evaluation costs.
//!
//! Costs are those of cel-go's `interpreter/runtimecost.go` and of Kubernetes' `cel/library/cost.go`.

use kube_cel::cel::Value;
use kube_cel::cel::objects::OptionalValue;

use super::Stop;

/// What one expression may cost, and all of them for one object.
const PER_EXPRESSION: u64 = 1_000_000;
const PER_OBJECT: u64 = 10_000_000;
/// Bytes that the expressions for one object may look at beyond what they are charged for.
const TOUCHED: u64 = 1 << 29;
/// Bytes that one expression may make.
const MADE: u64 = 64 << 20;

/// What a step through a text costs.
const PER_CHAR: f64 = 0.1;
/// What a letter of a pattern costs.
const PER_PATTERN_CHAR: f64 = 0.25;

/// About what an element of a list takes in memory.
pub(super) const ELEMENT: u64 = 64;

/// Counts what the expressions for one object cost.
#[derive(Debug)]
pub(in super::super) struct Meter {
    object: u64,
    expression: u64,
    touched: u64,
    made: u64,
}

impl Default for Meter {
    fn default() -> Self {
        Self { object: PER_OBJECT, expression: PER_EXPRESSION, touched: TOUCHED, made: MADE }
    }
}

impl Meter {
    /// Begins with the next expression.
    pub(in super::super) fn begin(&mut self) {
        self.expression = PER_EXPRESSION;
        self.made = MADE;
    }

    /// What the current expression has cost so far.
    #[cfg(test)]
    pub(super) fn cost(&self) -> u64 {
        PER_EXPRESSION - self.expression
    }

    /// Whether nothing is left for further expressions.
    pub(in super::super) fn is_exhausted(&self) -> bool {
        self.object == 0 || self.touched == 0
    }

    pub(super) fn charge(&mut self, cost: u64) -> Result<(), Stop> {
        let left = (self.expression.checked_sub(cost), self.object.checked_sub(cost));
        let (Some(expression), Some(object)) = left else {
            if self.object < cost {
                self.object = 0;
            }
            return Err(Stop::Exhausted);
        };
        (self.expression, self.object) = (expression, object);
        Ok(())
    }

    /// Notes bytes that are looked at.
    pub(super) fn touch(&mut self, bytes: u64) -> Result<(), Stop> {
        self.touched = self.touched.saturating_sub(bytes);
        if self.touched == 0 { Err(Stop::Exhausted) } else { Ok(()) }
    }

    /// Notes bytes that are made, before they are.
    pub(super) fn make(&mut self, bytes: u64) -> Result<(), Stop> {
        self.made = self.made.checked_sub(bytes).ok_or(Stop::Exhausted)?;
        self.touch(bytes)
    }

    /// The size of a value as costs count it: characters, elements, or one.
    pub(super) fn size(&mut self, value: &Value) -> Result<u64, Stop> {
        Ok(match value {
            Value::String(text) => {
                self.touch(text.len() as u64)?;
                text.chars().count() as u64
            }
            Value::Bytes(bytes) => bytes.len() as u64,
            Value::List(list) => list.len() as u64,
            Value::Map(map) => map.map.len() as u64,
            Value::Opaque(_) => match <&OptionalValue>::try_from(value).map(OptionalValue::value) {
                Ok(Some(inside)) => self.size(inside)?,
                _ => 1,
            },
            _ => 1,
        })
    }

    /// What it costs to look at all that is in a value; a text costs one for each ten bytes.
    pub(super) fn walk(&mut self, value: &Value) -> Result<u64, Stop> {
        self.touch(8)?;
        Ok(match value {
            Value::String(text) => text.len() as u64 / 10,
            Value::Bytes(bytes) => bytes.len() as u64 / 10,
            Value::List(list) => {
                let mut cost = 0;
                for item in list.iter() {
                    cost += self.walk(item)?;
                }
                cost
            }
            Value::Map(map) => {
                let mut cost = 0;
                for (key, item) in map.map.iter() {
                    cost += self.walk(&Value::from(key))? + self.walk(item)?;
                }
                cost
            }
            _ => 1,
        })
    }

    /// What a value holds, everything below it included. Values share parts, so what is small in memory
    /// can be without end to walk through.
    pub(super) fn weigh(&mut self, value: &Value) -> Result<u64, Stop> {
        let mut sum = ELEMENT;
        self.touch(ELEMENT / 8)?;
        match value {
            Value::String(text) => sum += text.len() as u64,
            Value::Bytes(bytes) => sum += bytes.len() as u64,
            Value::List(list) => {
                for item in list.iter() {
                    sum += self.weigh(item)?;
                }
            }
            Value::Map(map) => {
                for item in map.map.values() {
                    sum += ELEMENT + self.weigh(item)?;
                }
            }
            _ => {}
        }
        Ok(sum)
    }
}

/// What it costs to walk through a text of this size.
pub(super) fn traversal(size: u64) -> u64 {
    part(size, PER_CHAR)
}

/// What it costs to match a text of this size with a pattern of that size.
pub(super) fn matching(text: u64, pattern: u64) -> u64 {
    part(text + 1, PER_CHAR).saturating_mul(part(pattern, PER_PATTERN_CHAR))
}

#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "sizes are small and positive, and a cost need not be exact beyond"
)]
fn part(size: u64, factor: f64) -> u64 {
    (size as f64 * factor).ceil() as u64
}
