//! CEL rules (`x-kubernetes-validations`).

use kube_cel::cel::{ExecutionError, Program, Value as CelValue};
use serde_json::Value;

use super::cel::{Eval, Kind, MAX_TOGETHER, Meter, Stop, parse};
use crate::error::{Cause, Causes, cut};
use crate::field_path::FieldPath;

/// The rules of one version, compiled once.
pub(super) struct Rules {
    kind: Kind,
    top: Node,
}

/// The rules of one place of a schema, and of those below it.
#[derive(Default)]
struct Node {
    rules: Vec<Rule>,
    fields: Vec<(String, Node)>,
    items: Option<Box<Node>>,
    others: Option<Box<Node>>,
    /// Parts of combinations: they are about the same value.
    parts: Vec<Node>,
}

struct Rule {
    source: String,
    program: Program,
    /// Whether it looks at the old object.
    transition: bool,
    message: Option<String>,
    message_program: Option<Program>,
    reason: String,
    field: Option<String>,
    optional_old: bool,
}

impl Rule {
    fn parse(rule: &Value) -> Result<Self, (&'static str, String)> {
        let text = |name: &str| rule[name].as_str().filter(|text| !text.is_empty());
        let source = text("rule").unwrap_or_default();
        let program = parse(source).map_err(|why| ("rule", why))?;
        let message_program = text("messageExpression").map(parse).transpose();
        Ok(Self {
            transition: program.references().has_variable("oldSelf"),
            program,
            source: source.to_owned(),
            message: text("message").map(str::to_owned),
            message_program: message_program.map_err(|why| ("messageExpression", why))?,
            reason: text("reason").unwrap_or_default().to_owned(),
            field: text("fieldPath").map(str::to_owned),
            optional_old: rule["optionalOldSelf"] == true,
        })
    }
}

/// Why the rules of a schema cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum RulesError {
    #[error("the rules of a version may have {} bytes together", MAX_TOGETHER)]
    TooLong,
    /// In the words of the compiler.
    #[error("{0}")]
    Rule(String),
}

impl Node {
    fn parse(schema: &Value) -> Result<Self, RulesError> {
        let mut node = Self::default();
        for rule in schema["x-kubernetes-validations"].as_array().into_iter().flatten() {
            node.rules.push(Rule::parse(rule).map_err(|(_, why)| RulesError::Rule(why))?);
        }
        let below = |name: &str| -> Result<Option<Box<Self>>, RulesError> {
            let node = schema.get(name).filter(|below| below.is_object()).map(Self::parse);
            Ok(node.transpose()?.filter(|node| !node.is_empty()).map(Box::new))
        };
        for (name, schema) in schema["properties"].as_object().into_iter().flatten() {
            let field = Self::parse(schema)?;
            if !field.is_empty() {
                node.fields.push((name.clone(), field));
            }
        }
        node.items = below("items")?;
        if schema["x-kubernetes-preserve-unknown-fields"] != true {
            node.others = below("additionalProperties")?;
        }
        for part in ["allOf", "oneOf", "anyOf"].into_iter().flat_map(|name| schema[name].as_array())
        {
            for part in part {
                let part = Self::parse(part)?;
                if !part.is_empty() {
                    node.parts.push(part);
                }
            }
        }
        Ok(node)
    }

    fn is_empty(&self) -> bool {
        self.rules.is_empty()
            && self.fields.is_empty()
            && self.items.is_none()
            && self.others.is_none()
            && self.parts.is_empty()
    }
}

impl Rules {
    /// Compiles the rules of a schema; `None` when it has none.
    ///
    /// # Errors
    /// They cannot be used; definitions are judged before they are stored, so this is about those that
    /// an older version stored.
    pub(super) fn parse(schema: &Value) -> Result<Option<Self>, RulesError> {
        if source_bytes(schema) > MAX_TOGETHER {
            return Err(RulesError::TooLong);
        }
        let top = Node::parse(schema)?;
        Ok((!top.is_empty()).then(|| Self { kind: Kind::of(schema), top }))
    }

    /// Runs the rules. Those that look at the old object run only when there is one.
    pub(super) fn check(&self, object: &Value, old: Option<&Value>) -> Causes {
        let mut run = Run { meter: Meter::default(), causes: Causes::new(), over: false };
        let value = self.kind.read(object);
        let before = old.map(|old| self.kind.read(old));
        let at = At { json: object, value: &value, old: before.as_ref() };
        run.walk(&self.top, &self.kind, at, FieldPath::Top(""));
        run.causes
    }
}

/// A value, and what was there before.
#[derive(Clone, Copy)]
struct At<'a> {
    json: &'a Value,
    value: &'a CelValue,
    old: Option<&'a CelValue>,
}

/// The rules at work on one object.
struct Run {
    meter: Meter,
    causes: Causes,
    /// Whether no further rules run.
    over: bool,
}

impl Run {
    fn walk(&mut self, node: &Node, kind: &Kind, at: At<'_>, place: FieldPath<'_>) {
        for rule in &node.rules {
            if self.over || self.causes.is_full() {
                return;
            }
            self.rule(rule, at, place);
        }
        match (at.json, at.value) {
            (Value::Object(map), CelValue::Map(values)) => {
                let get = |of: &CelValue, name: &str| match of {
                    CelValue::Map(map) => map.get(&key(name)).cloned(),
                    _ => None,
                };
                for (name, below) in &node.fields {
                    let Some((called, kind)) = kind.fields.get(name) else { continue };
                    let Some(json) = map.get(name) else { continue };
                    let Some(value) = values.get(&key(called)) else { continue };
                    let old = at.old.and_then(|old| get(old, called));
                    let at = At { json, value, old: old.as_ref() };
                    self.walk(below, kind, at, FieldPath::Field(&place, name));
                }
                let others = node.others.as_deref().zip(kind.others.as_deref());
                for (name, json) in map.iter().filter(|_| others.is_some()) {
                    let Some((below, inner)) = others else { break };
                    if self.over || kind.fields.contains_key(name) {
                        continue;
                    }
                    let Some(value) = values.get(&key(name)) else { continue };
                    let old = at.old.and_then(|old| get(old, name));
                    let at = At { json, value, old: old.as_ref() };
                    self.walk(below, inner, at, FieldPath::Field(&place, name));
                }
            }
            (Value::Array(list), CelValue::List(values)) => {
                let Some((below, kind)) = node.items.as_deref().zip(kind.items.as_deref()) else {
                    return;
                };
                let before = match at.old {
                    Some(CelValue::List(before)) => before.as_slice(),
                    _ => &[],
                };
                for (index, (json, value)) in list.iter().zip(values.iter()).enumerate() {
                    if self.over {
                        return;
                    }
                    let at = At { json, value, old: before.get(index) };
                    self.walk(below, kind, at, FieldPath::Element(&place, index));
                }
            }
            _ => {}
        }
        for part in &node.parts {
            self.walk(part, kind, at, place);
        }
    }

    fn rule(&mut self, rule: &Rule, at: At<'_>, place: FieldPath<'_>) {
        if rule.transition && at.old.is_none() && !rule.optional_old {
            return;
        }
        self.meter.begin();
        if self.meter.is_exhausted() {
            return self.exhausted(place);
        }
        let path = || match rule.field.as_deref() {
            Some(field) if field.starts_with('.') => format!("{}{field}", place.text()),
            Some(field) => format!("{}.{field}", place.text()).trim_start_matches('.').to_owned(),
            None => place.text(),
        };
        let shown = |path: &str| match rule.field {
            Some(_) => find(at.json, path.strip_prefix(&place.text()).unwrap_or(path)),
            None => Some(at.json),
        };
        let cause = |reason: &str, why: &str| {
            let path = path();
            let value = shown(&path);
            Cause::of_rule(reason, &path, value, why)
        };
        match self.eval(&rule.program, at) {
            Ok(CelValue::Bool(true)) => {}
            Ok(CelValue::Bool(false)) => {
                let why = self.message(rule, at);
                self.causes.push(cause(&rule.reason, &why));
            }
            Ok(_) => {
                let why = format!("rule \"{}\" did not evaluate to bool", cut(&rule.source));
                self.causes.push(cause("", &why));
            }
            Err(Stop::Exhausted) if self.meter.is_exhausted() => self.exhausted(place),
            Err(Stop::Exhausted) => {
                self.over = true;
                let why = format!(
                    "'operation cancelled: actual cost limit exceeded': no further validation rules will be run due to call cost exceeds limit for rule: {}",
                    cut(&rule.source)
                );
                self.causes.push(cause("", &why));
            }
            Err(Stop::Failed(ExecutionError::UndeclaredReference(name))) => {
                let why = format!("rule references '{name}', which is not supported here");
                self.causes.push(cause("", &why));
            }
            Err(Stop::Failed(error)) => {
                self.causes.push(cause("", &format!("rule evaluation error: {error}")));
            }
        }
    }

    fn exhausted(&mut self, place: FieldPath<'_>) {
        self.over = true;
        let why = "validation failed due to running out of cost budget, no further validation rules will be run";
        self.causes.push(Cause::of_rule("", &place.text(), None, why));
    }

    fn eval(&mut self, program: &Program, at: At<'_>) -> Result<CelValue, Stop> {
        let old = at.old.cloned().unwrap_or(CelValue::Null);
        let names = vec![("self", at.value.clone()), ("oldSelf", old)];
        Eval::new(&mut self.meter, names).value(program.expression())
    }

    /// What is said when a rule does not hold.
    fn message(&mut self, rule: &Rule, at: At<'_>) -> String {
        if let Some(program) = &rule.message_program
            && let Ok(CelValue::String(text)) = self.eval(program, at)
        {
            return cut(&text).into_owned();
        }
        rule.message.clone().unwrap_or_else(|| format!("failed rule: {}", rule.source))
    }
}

fn key(name: &str) -> kube_cel::cel::objects::KeyRef<'_> {
    kube_cel::cel::objects::KeyRef::String(name)
}

/// Why a rule cannot be used although it is well typed: the part at fault, and what is wrong with it.
pub(super) fn refusal(rule: &Value) -> Option<(&'static str, String)> {
    Rule::parse(rule).err()
}

/// The text of all rules of a schema.
pub(super) fn source_bytes(schema: &Value) -> usize {
    let own = schema["x-kubernetes-validations"].as_array().into_iter().flatten();
    let own = own.flat_map(|rule| [&rule["rule"], &rule["messageExpression"]]);
    let own: usize = own.filter_map(Value::as_str).map(str::len).sum();
    own + children(schema).map(source_bytes).sum::<usize>()
}

fn children(schema: &Value) -> impl Iterator<Item = &Value> {
    let named = schema["properties"].as_object().into_iter().flat_map(|map| map.values());
    let rest = ["items", "additionalProperties"].into_iter().map(|name| &schema[name]);
    let parts = ["allOf", "oneOf", "anyOf"].into_iter();
    let parts = parts.flat_map(|name| schema[name].as_array().into_iter().flatten());
    named.chain(rest.filter(|child| child.is_object())).chain(parts)
}

/// The value at a path such as `spec.list[0].name`.
fn find<'a>(object: &'a Value, path: &str) -> Option<&'a Value> {
    let pointer: String = path
        .split('.')
        .filter(|part| !part.is_empty())
        .map(|part| format!("/{}", part.replace('[', "/").replace(']', "")))
        .collect();
    object.pointer(&pointer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn rules() -> Rules {
        Rules::parse(&json!({"type": "object", "properties": {"spec": {
            "type": "object",
            "x-kubernetes-validations": [
                {"rule": "has(self.handle) != has(self.claim)", "message": "exactly one"},
                {"rule": "!has(oldSelf.claim) || has(self.claim)", "message": "required once set"},
            ],
            "properties": {
                "handle": {"type": "string"},
                "claim": {"type": "string", "x-kubernetes-validations": [
                    {"rule": "self == oldSelf", "messageExpression": "'was ' + oldSelf"}]},
                "size": {"type": "integer", "x-kubernetes-validations": [
                    {"rule": "self >= oldSelf", "reason": "FieldValueForbidden", "message": "may only grow"}]},
            },
        }}}))
        .unwrap()
        .unwrap()
    }

    #[test]
    fn rules_say_where_and_why() {
        let spec = |spec: Value| json!({"spec": spec});
        let old = spec(json!({"claim": "c", "size": 2}));
        let rows = [
            (json!({}), None, vec![("FieldValueInvalid", "spec", "exactly one")]),
            (json!({"claim": "c"}), None, vec![]),
            (json!({"claim": "c", "size": 3}), Some(&old), vec![]),
            (json!({"claim": "d"}), Some(&old), vec![("FieldValueInvalid", "spec.claim", "was c")]),
            (
                json!({"handle": "h"}),
                Some(&old),
                vec![("FieldValueInvalid", "spec", "required once set")],
            ),
            (
                json!({"claim": "c", "size": 1}),
                Some(&old),
                vec![("FieldValueForbidden", "spec.size", "may only grow")],
            ),
        ];
        for (new, old, wanted) in rows {
            let found = rules().check(&spec(new.clone()), old);
            assert_eq!(found.len(), wanted.len(), "{new}: {found:?}");
            for (cause, (reason, field, why)) in found.iter().zip(wanted) {
                assert_eq!((cause.reason, cause.field.as_str()), (reason, field), "{new}");
                assert!(cause.message.ends_with(why), "{}", cause.message);
            }
        }
    }

    #[test]
    fn rules_that_do_not_compile_are_named() {
        assert_eq!(refusal(&json!({"rule": "self == oldSelf"})), None);
        assert_eq!(refusal(&json!({"rule": "self =="})).unwrap().0, "rule");
        let message = json!({"rule": "true", "messageExpression": "'a' +"});
        assert_eq!(refusal(&message).unwrap().0, "messageExpression");
    }

    /// What each of these asks for would take hours, or more memory than there is.
    #[test]
    fn rules_that_ask_for_too_much_end_soon() {
        let doubled =
            |part: &str, times: usize| format!("{}{}", part, ".map(s, s + s)".repeat(times));
        let bombs = [
            "lists.range(300000000).size() == 1".to_owned(),
            "lists.range(9223372036854775807).size() == 1".to_owned(),
            "lists.range(30000).all(x, lists.range(30000).all(y, x >= 0))".to_owned(),
            "lists.range(900).all(x, lists.range(900).all(y, lists.range(900).all(z, true)))".to_owned(),
            format!("{} == []", doubled("['x']", 33)),
            format!("{} == []", doubled("[[1]]", 33)),
            "self.big.map(s, s.split('')).size() == 1".to_owned(),
            "self.big.all(s, s.replace('x', s).size() == 1)".to_owned(),
            "self.big.all(s, s.matches('(x+x+)+y'))".to_owned(),
            "self.many.all(x, x in self.many)".to_owned(),
            "self.many.all(x, self.many.exists(y, y == x + 1))".to_owned(),
            "sets.contains(self.many, self.many.map(x, x + 1))".to_owned(),
            "self.many.distinct().size() == 1".to_owned(),
            // Rounds that cost nothing.
            "self.many.exists_one(x, self.many.exists_one(y, false))".to_owned(),
            "self.many.all(x, self.many.filter(y, false).size() == 0)".to_owned(),
            "'%.999999999f'.format([1.0]).size() == 1".to_owned(),
            "lists.range(20000).map(x, self.big[0]).join('').size() == 1".to_owned(),
            "lists.range(20000).all(x, self.big[0].contains('yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy') || true)".to_owned(),
            {
                let twice = |inner: String, i: usize| format!("[{inner}].map(v{i}, [v{i}, v{i}])");
                let deep = (0..40).fold("self.big".to_owned(), twice);
                format!("{deep} == {deep} && '%s'.format([{deep}]).size() == 1")
            },
            "lists.range(60000).all(x, '%s'.format([self.many]).size() > 0)".to_owned(),
            "lists.range(60000).all(x, self.many.isSorted())".to_owned(),
        ];
        let many: Vec<i32> = (0..200_000).collect();
        let object = json!({"big": ["x".repeat(1_000_000)], "many": many});
        for bomb in bombs {
            let schema = json!({"type": "object", "properties": {
                "big": {"type": "array", "items": {"type": "string"}},
                "many": {"type": "array", "items": {"type": "integer"}},
            }, "x-kubernetes-validations": [{"rule": bomb}]});
            let began = std::time::Instant::now();
            let found = Rules::parse(&schema).unwrap().unwrap().check(&object, None);
            assert!(!found.is_empty(), "{bomb}");
            assert!(began.elapsed().as_secs() < 60, "{bomb}: {:?}", began.elapsed());
        }
    }

    /// Upstream's `PerCallLimit` and `RuntimeCELCostBudget`: this `all` costs three for each element of the
    /// list and three beside.
    #[test]
    fn limits_are_those_of_upstream_and_are_named_in_its_words() {
        let check = |count: usize, rules: usize| {
            let rule = json!({"rule": "self.l.all(x, true)"});
            let schema = json!({"type": "object", "properties": {
                "l": {"type": "array", "items": {"type": "integer"}}},
                "x-kubernetes-validations": vec![rule; rules]});
            let object = json!({"l": vec![1; count]});
            let found = Rules::parse(&schema).unwrap().unwrap().check(&object, None);
            found.iter().map(|cause| cause.message.clone()).collect::<Vec<_>>()
        };
        assert_eq!(check(333_332, 1), Vec::<String>::new());
        let found = check(333_333, 2);
        assert_eq!(found.len(), 1, "{found:?}");
        let wanted = "'operation cancelled: actual cost limit exceeded': no further validation rules will \
            be run due to call cost exceeds limit for rule: self.l.all(x, true)";
        assert!(found[0].ends_with(wanted), "{found:?}");
        assert_eq!(check(333_332, 10), Vec::<String>::new());
        let found = check(333_332, 12);
        assert_eq!(found.len(), 1, "{found:?}");
        let wanted = "validation failed due to running out of cost budget, no further validation rules will be run";
        assert!(found[0].ends_with(wanted), "{found:?}");
    }

    #[test]
    fn when_one_rule_costs_too_much_no_others_run() {
        let schema = json!({"type": "object", "x-kubernetes-validations": [
            {"rule": "lists.range(30000).all(x, lists.range(30000).all(y, true))"},
            {"rule": "false"}]});
        let found = Rules::parse(&schema).unwrap().unwrap().check(&json!({}), None);
        assert_eq!(found.len(), 1);
        let text = &found.iter().next().unwrap().message;
        assert!(text.contains("no further validation rules will be run"), "{text}");
    }
}
