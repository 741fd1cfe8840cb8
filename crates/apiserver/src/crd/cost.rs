//! What a rule may cost at worst: one that loops too much is refused with its definition.
//!
//! Costs are counted as upstream counts them, loops first of all; an operation on a text counts as
//! one. So a rule that is refused here is refused by upstream too, and what passes takes a time
//! that grows with the object, not with a power of it.

use kube_cel::cel::IdedExpr;
use kube_cel::cel::common::ast::{
    CallExpr, ComprehensionExpr, EntryExpr, Expr, LiteralValue, operators,
};
use serde_json::Value;

use super::cel::parse;

/// No object is larger, so no list has more elements than fit.
const LARGEST_OBJECT: u64 = 3 << 20;
/// What one rule may cost.
const RULE_BUDGET: u64 = 10_000_000;
/// What all rules of a version may cost together.
pub(super) const VERSION_BUDGET: u64 = 100_000_000;

/// How often a place of the schema can occur in one object.
#[derive(Debug, Clone, Copy)]
pub(super) enum Occurs {
    /// At most this often.
    Times(u64),
    /// As often as it fits into an object.
    Unbounded,
}

impl Occurs {
    /// The place below a node that holds many of them.
    pub(super) fn inside(self, node: &Value, limit: &str) -> Self {
        match (self, node[limit].as_u64()) {
            (Self::Times(times), Some(most)) => Self::Times(times.saturating_mul(most)),
            _ => Self::Unbounded,
        }
    }

    fn of(self, schema: &Value) -> u64 {
        match self {
            Self::Times(times) => times,
            Self::Unbounded => LARGEST_OBJECT / least_bytes(schema).max(1),
        }
    }
}

/// What a rule at a place can cost in one object.
pub(super) fn of_rule(source: &str, schema: &Value, occurs: Occurs) -> u64 {
    let Ok(program) = parse(source) else { return 0 };
    let mut names = Names(vec![("self".into(), Some(schema)), ("oldSelf".into(), Some(schema))]);
    names.cost(program.expression()).cost.saturating_mul(occurs.of(schema))
}

/// Why a cost is too high.
pub(super) fn refusal(cost: u64) -> Option<String> {
    exceeds("estimated rule cost", cost, RULE_BUDGET)
}

/// Why the cost of all rules together is too high.
pub(super) fn refusal_of_all(cost: u64) -> Option<String> {
    let name = "x-kubernetes-validations estimated rule cost total for entire OpenAPIv3 schema";
    exceeds(name, cost, VERSION_BUDGET)
}

fn exceeds(name: &str, cost: u64, budget: u64) -> Option<String> {
    if cost <= budget {
        return None;
    }
    #[expect(clippy::cast_precision_loss, reason = "shown with one digit")]
    let times = cost as f64 / budget as f64;
    let factor = match times {
        _ if times > 100.0 => "more than 100x".to_owned(),
        _ if times < 1.5 => format!("{times:.6}x"),
        _ => format!("{times:.1}x"),
    };
    Some(format!(
        "{name} exceeds budget by factor of {factor} (try simplifying the rule, or adding maxItems, \
         maxProperties, and maxLength where arrays, maps, and strings are declared)"
    ))
}

/// The fewest bytes of JSON that a value of a schema takes.
fn least_bytes(schema: &Value) -> u64 {
    match schema["type"].as_str() {
        Some("boolean") => 4,
        Some("integer" | "number") => 1,
        Some("object") => {
            let needed = schema["required"].as_array().into_iter().flatten();
            let fields = needed.filter_map(Value::as_str).filter_map(|name| {
                let field = schema["properties"].get(name)?;
                // With quotes, a colon and a comma.
                let bytes = || name.len() as u64 + 4 + least_bytes(field);
                field.get("default").is_none().then(bytes)
            });
            2 + fields.sum::<u64>()
        }
        _ if schema["x-kubernetes-int-or-string"] == true => 1,
        _ => 2,
    }
}

/// The most elements that a list or a map of a schema has.
fn most_elements(schema: &Value) -> u64 {
    let fit = |each: u64| (LARGEST_OBJECT - 2) / each;
    if schema["type"] == "array" {
        let fit = fit(least_bytes(&schema["items"]) + 1);
        return schema["maxItems"].as_u64().map_or(fit, |most| most.min(fit));
    }
    let fit = fit(least_bytes(&schema["additionalProperties"]) + 6);
    schema["maxProperties"].as_u64().map_or(fit, |most| most.min(fit))
}

/// What is known of an expression.
#[derive(Debug, Clone, Copy)]
struct Known<'a> {
    cost: u64,
    schema: Option<&'a Value>,
    /// Elements, where it is a list or a map.
    elements: u64,
}

impl<'a> Known<'a> {
    fn plain(cost: u64) -> Self {
        Self { cost, schema: None, elements: 1 }
    }

    fn is_map(&self) -> bool {
        self.schema.is_some_and(|schema| schema["type"] == "object")
    }

    fn of(cost: u64, schema: Option<&'a Value>) -> Self {
        Self { cost, schema, elements: schema.map_or(1, most_elements) }
    }
}

/// Names and the schemas of their values; the last one of a name counts.
struct Names<'a>(Vec<(String, Option<&'a Value>)>);

impl<'a> Names<'a> {
    fn cost(&mut self, expr: &IdedExpr) -> Known<'a> {
        match &expr.expr {
            Expr::Ident(name) => {
                let found = self.0.iter().rev().find(|(known, _)| known == name);
                Known::of(1, found.and_then(|(_, schema)| *schema))
            }
            Expr::Literal(_) | Expr::Unspecified => Known::plain(0),
            Expr::List(list) => {
                let cost = self.sum(list.elements.iter()).saturating_add(10);
                Known { elements: list.elements.len() as u64, ..Known::plain(cost) }
            }
            Expr::Map(map) => {
                let mut cost = 30_u64;
                for entry in &map.entries {
                    if let EntryExpr::MapEntry(entry) = &entry.expr {
                        cost = cost.saturating_add(self.sum([&entry.key, &entry.value]));
                    }
                }
                Known { elements: map.entries.len() as u64, ..Known::plain(cost) }
            }
            Expr::Struct(_) => Known::plain(40),
            Expr::Select(select) => {
                let operand = self.cost(&select.operand);
                if select.test {
                    return Known::plain(operand.cost);
                }
                let field = operand.schema.and_then(|schema| {
                    let inner = &schema["additionalProperties"];
                    schema["properties"]
                        .get(&select.field)
                        .or_else(|| inner.is_object().then_some(inner))
                });
                Known::of(operand.cost.saturating_add(1), field)
            }
            Expr::Call(call) => self.call(call),
            Expr::Comprehension(loops) => self.comprehension(loops),
        }
    }

    fn sum<'e>(&mut self, parts: impl IntoIterator<Item = &'e IdedExpr>) -> u64 {
        parts.into_iter().fold(0, |sum, part| sum.saturating_add(self.cost(part).cost))
    }

    fn call(&mut self, call: &CallExpr) -> Known<'a> {
        let parts: Vec<Known<'a>> = call
            .target
            .iter()
            .map(AsRef::as_ref)
            .chain(&call.args)
            .map(|part| self.cost(part))
            .collect();
        let sum = parts.iter().fold(0_u64, |sum, part| sum.saturating_add(part.cost));
        match (call.func_name.as_str(), parts.as_slice()) {
            (
                operators::LOGICAL_AND
                | operators::LOGICAL_OR
                | operators::EQUALS
                | operators::NOT_EQUALS,
                _,
            ) => Known::plain(sum),
            (operators::CONDITIONAL, [condition, yes, no]) => {
                let most = if yes.elements >= no.elements { yes } else { no };
                let cost = condition.cost.saturating_add(yes.cost.max(no.cost));
                Known { cost, ..*most }
            }
            (operators::IN, [_, list]) if !list.is_map() => {
                Known::plain(sum.saturating_add(list.elements))
            }
            (operators::INDEX, [list, _]) => {
                let inner = list.schema.and_then(|schema| {
                    ["items", "additionalProperties"].into_iter().find_map(|name| schema.get(name))
                });
                Known::of(sum.saturating_add(1), inner)
            }
            ("range", [_, _]) => {
                let literal = match call.args.first().map(|arg| &arg.expr) {
                    Some(Expr::Literal(LiteralValue::Int(most))) => Some(*most.inner()),
                    _ => None,
                };
                let most = literal.map_or(u64::MAX, |most| u64::try_from(most).unwrap_or(0));
                Known { elements: most, ..Known::plain(sum.saturating_add(most)) }
            }
            // A list that grows in a loop has at most the elements of the loop's range; the loop
            // itself says so.
            (operators::ADD, [one, other]) => Known {
                elements: one.elements.saturating_add(other.elements),
                ..Known::plain(sum.saturating_add(1))
            },
            _ => Known::plain(sum.saturating_add(1)),
        }
    }

    fn comprehension(&mut self, loops: &ComprehensionExpr) -> Known<'a> {
        let range = self.cost(&loops.iter_range);
        let start = self.cost(&loops.accu_init);
        let inner = range.schema.map(|schema| match schema["type"].as_str() {
            Some("array") => (&schema["items"], None),
            _ => (&Value::Null, Some(&schema["additionalProperties"])),
        });
        let (first, second) = match (inner, &loops.iter_var2) {
            (Some((item, None)), None) => (Some(item), None),
            (Some((item, None)), Some(_)) => (None, Some(item)),
            (Some((_, value)), _) => (None, value),
            (None, _) => (None, None),
        };
        let depth = self.0.len();
        self.0.push((loops.accu_var.clone(), None));
        self.0.push((loops.iter_var.clone(), first));
        self.0.extend(loops.iter_var2.clone().map(|name| (name, second)));
        let each = self.sum([&loops.loop_cond, &loops.loop_step]);
        self.0.truncate(depth + 1);
        let result = self.cost(&loops.result);
        self.0.truncate(depth);
        let cost = [range.cost, start.cost, range.elements.saturating_mul(each), result.cost]
            .into_iter()
            .fold(0, u64::saturating_add);
        Known { elements: range.elements, ..Known::plain(cost) }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn cost(rule: &str, schema: &Value) -> u64 {
        of_rule(rule, schema, Occurs::Times(1))
    }

    #[test]
    fn loops_cost_what_upstream_says_they_do() {
        let numbers = json!({"type": "array", "items": {"type": "integer"}});
        // As many numbers as fit, three steps each, and the two ends.
        assert_eq!(cost("self.all(x, true)", &numbers), 4_718_591);
        let few = json!({"type": "array", "maxItems": 10, "items": {"type": "integer"}});
        assert_eq!(cost("self.all(x, true)", &few), 32);
        assert_eq!(cost("self == oldSelf", &few), 2);
        let object = json!({"type": "object", "properties": {"a": few}});
        assert_eq!(cost("has(self.a) && self.a[0] > 1", &object), 5);
    }

    /// The factors are those of a real server.
    #[test]
    fn loops_in_loops_over_what_has_no_end_are_refused() {
        let texts = json!({"type": "array", "items": {"type": "string"}});
        let numbers = json!({"type": "array", "items": {"type": "integer"}});
        let up_to =
            |most: u64| json!({"type": "array", "maxItems": most, "items": {"type": "integer"}});
        let map = json!({"type": "object", "additionalProperties": {"type": "string"}});
        let twice = "self.all(x, self.exists(y, y == x))";
        let rows = [
            (twice, &texts, 1, "more than 100x"),
            ("self.map(x, x + 'b').all(y, self.all(z, z != y))", &texts, 1, "more than 100x"),
            ("self.all(x, x in self)", &texts, 1, "more than 100x"),
            ("self.all(x, x.startsWith('a'))", &texts, 1, ""),
            (twice, &up_to(1500), 1, "1.350750x"),
            (twice, &up_to(1000), 1, ""),
            (twice, &up_to(500), 100, "15.0x"),
            ("self.all(x, x > 0)", &numbers, 1, ""),
            ("self.all(x, x > 0 && x < 9 && x != 5)", &numbers, 1, "1.258291x"),
            ("self.all(k, k in self)", &map, 1, ""),
        ];
        for (rule, schema, times, wanted) in rows {
            let found = refusal(of_rule(rule, schema, Occurs::Times(times)));
            assert_eq!(found.is_some(), !wanted.is_empty(), "{rule}: {found:?}");
            let wanted = format!("factor of {wanted}");
            assert!(found.is_none_or(|found| found.contains(&wanted)), "{rule} {wanted}");
        }
    }

    #[test]
    fn a_rule_below_a_list_counts_once_for_each_element() {
        let item = json!({"type": "object", "required": ["name"],
            "properties": {"name": {"type": "string"}}});
        let list = json!({"type": "array", "maxItems": 7, "items": item});
        let seven = Occurs::Times(1).inside(&list, "maxItems");
        assert_eq!(of_rule("self.name == 'a'", &item, seven), 7 * 2);
        let without = json!({"type": "array", "items": item});
        let many = Occurs::Times(1).inside(&without, "maxItems");
        // {"name":"",} is the least.
        assert_eq!(of_rule("self.name == 'a'", &item, many), (3 << 20) / 12 * 2);
    }
}
