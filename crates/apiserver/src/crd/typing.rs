//! The types of CEL rules: a rule that can never work is refused with its definition.
//!
//! Types come from the schema. Where nothing certain is known the answer is [`Ty::Dyn`], which fits
//! everything: a rule is refused only for what is surely wrong.

use std::sync::LazyLock;

use kube_cel::cel::IdedExpr;
use kube_cel::cel::common::ast::{CallExpr, ComprehensionExpr, Expr, LiteralValue, operators};
use serde_json::{Value, json};

use super::cel::parse;
use super::functions::function;

/// The type of an expression.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Ty<'a> {
    Bool,
    Int,
    Uint,
    Double,
    Str,
    Bytes,
    Null,
    Timestamp,
    Duration,
    List(Box<Ty<'a>>),
    Map(Box<Ty<'a>>),
    /// An object with the fields of a schema.
    Object(Fields<'a>),
    Dyn,
}

/// The fields of an object. Schemas are large and are looked at often: they are not copied.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fields<'a> {
    schema: &'a Value,
    /// The root and embedded objects have a kind and a name whatever the schema says.
    meta: bool,
}

impl PartialEq for Fields<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.meta == other.meta
            && (std::ptr::eq(self.schema, other.schema) || self.schema == other.schema)
    }
}

impl<'a> Ty<'a> {
    fn of_schema(schema: &'a Value, root: bool) -> Self {
        if schema["x-kubernetes-int-or-string"] == true {
            return Self::Dyn;
        }
        match (schema["type"].as_str(), schema["format"].as_str()) {
            (Some("integer"), _) => Self::Int,
            (Some("number"), _) => Self::Double,
            (Some("boolean"), _) => Self::Bool,
            (Some("string"), Some("date-time")) => Self::Timestamp,
            (Some("string"), Some("duration")) => Self::Duration,
            (Some("string"), Some("byte")) => Self::Bytes,
            (Some("string"), _) => Self::Str,
            (Some("array"), _) => Self::List(Box::new(Self::of_schema(&schema["items"], false))),
            (Some("object"), _) if schema["additionalProperties"].is_object() => {
                Self::Map(Box::new(Self::of_schema(&schema["additionalProperties"], false)))
            }
            (Some("object"), _) => {
                let meta = root || schema["x-kubernetes-embedded-resource"] == true;
                Self::Object(Fields { schema, meta })
            }
            _ => Self::Dyn,
        }
    }

    fn name(&self) -> String {
        match self {
            Self::Bool => "bool".into(),
            Self::Int => "int".into(),
            Self::Uint => "uint".into(),
            Self::Double => "double".into(),
            Self::Str => "string".into(),
            Self::Bytes => "bytes".into(),
            Self::Null => "null".into(),
            Self::Timestamp => "timestamp".into(),
            Self::Duration => "duration".into(),
            Self::List(inner) => format!("list({})", inner.name()),
            Self::Map(inner) => format!("map(string, {})", inner.name()),
            Self::Object(_) => "object".into(),
            Self::Dyn => "dyn".into(),
        }
    }

    /// Whether values of both types can be compared.
    fn meets(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Dyn | Self::Null, _) | (_, Self::Dyn | Self::Null) => true,
            (Self::List(a), Self::List(b)) => a.meets(b),
            (Self::Map(_) | Self::Object(_), Self::Map(_) | Self::Object(_)) => true,
            (a, b) => a == b,
        }
    }

    pub(super) fn is_number(&self) -> bool {
        matches!(self, Self::Int | Self::Uint | Self::Double)
    }

    fn fits(&self, wanted: &Self) -> bool {
        *self == Self::Dyn || self == wanted
    }
}

/// What is wrong, and the text it is wrong with.
pub(super) struct Fault {
    pub(super) why: String,
    /// Where the source has it: this text, at this offset from its start.
    pub(super) at: (String, usize),
}

pub(super) type Typed<'a> = Result<Ty<'a>, Fault>;

/// Why a rule cannot hold or fail, in the form compilers use; `wanted` says what it must be.
pub(super) fn fault(source: &str, schema: &Value, root: bool, wanted: Wanted) -> Option<String> {
    let program = match parse(source) {
        Ok(program) => program,
        Err(why) => return Some(wanted.failed(&why)),
    };
    let own = Ty::of_schema(schema, root);
    let mut known = Scope(vec![("self".into(), own.clone()), ("oldSelf".into(), own)]);
    match known.ty(program.expression()) {
        Err(fault) => {
            let offset = source.find(&fault.at.0).map_or(0, |found| found + fault.at.1);
            Some(wanted.failed(&shown(source, offset, &fault.why)))
        }
        Ok(ty) if ty.fits(&wanted.ty()) => None,
        Ok(_) => Some(wanted.other_type().to_owned()),
    }
}

/// What an expression has to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wanted {
    /// A rule holds or not.
    Rule,
    /// A message is a text.
    Message,
}

impl Wanted {
    fn ty(self) -> Ty<'static> {
        match self {
            Self::Rule => Ty::Bool,
            Self::Message => Ty::Str,
        }
    }

    fn failed(self, why: &str) -> String {
        match self {
            Self::Rule => format!("compilation failed: {why}"),
            Self::Message => format!("messageExpression compilation failed: {why}"),
        }
    }

    fn other_type(self) -> &'static str {
        match self {
            Self::Rule => "cel expression must evaluate to a bool",
            Self::Message => "messageExpression must evaluate to a string",
        }
    }
}

/// A fault with the line it is in and a mark below it.
fn shown(source: &str, offset: usize, why: &str) -> String {
    let before = &source[..offset];
    let line = before.matches('\n').count();
    let column = before.rsplit('\n').next().unwrap_or_default().chars().count();
    let text = source.lines().nth(line).unwrap_or_default();
    let dots = ".".repeat(column);
    format!("ERROR: <input>:{}:{}: {why}\n | {text}\n | {dots}^", line + 1, column + 1)
}

/// Names and their types; the last one of a name counts.
struct Scope<'a>(Vec<(String, Ty<'a>)>);

impl<'a> Scope<'a> {
    fn ty(&mut self, expr: &IdedExpr) -> Typed<'a> {
        match &expr.expr {
            Expr::Ident(name) => self.ident(name),
            Expr::Literal(literal) => Ok(of_literal(literal)),
            Expr::List(list) => {
                let mut inner: Option<Ty<'a>> = None;
                for element in &list.elements {
                    let ty = self.ty(element)?;
                    inner = Some(match inner {
                        None => ty,
                        Some(same) if same == ty => same,
                        Some(_) => Ty::Dyn,
                    });
                }
                Ok(Ty::List(Box::new(inner.unwrap_or(Ty::Dyn))))
            }
            Expr::Select(select) => {
                let operand = self.ty(&select.operand)?;
                let found = member(&operand, &select.field, select.test)?;
                Ok(if select.test { Ty::Bool } else { found })
            }
            Expr::Call(call) => self.call(call),
            Expr::Comprehension(loops) => self.comprehension(loops),
            Expr::Map(_) | Expr::Struct(_) | Expr::Unspecified => Ok(Ty::Dyn),
        }
    }

    fn ident(&self, name: &str) -> Typed<'a> {
        /// Types, and what stands before the names of functions.
        const OTHERS: &str = "int uint double string bytes bool list map type null_type dyn optional duration \
         timestamp google math strings sets lists base64 format ip cidr quantity url semver \
         regex cel";
        if let Some((_, ty)) = self.0.iter().rev().find(|(known, _)| known == name) {
            return Ok(ty.clone());
        }
        if OTHERS.split(' ').any(|known| known == name) || name.starts_with('@') {
            return Ok(Ty::Dyn);
        }
        let why = format!("undeclared reference to '{name}' (in container '')");
        Err(Fault { why, at: (name.to_owned(), 0) })
    }

    fn comprehension(&mut self, loops: &ComprehensionExpr) -> Typed<'a> {
        let range = self.ty(&loops.iter_range)?;
        let (first, second) = match range {
            Ty::List(inner) if loops.iter_var2.is_some() => (Ty::Int, *inner),
            Ty::List(inner) => (*inner, Ty::Dyn),
            Ty::Map(inner) => (Ty::Str, *inner),
            _ => (Ty::Dyn, Ty::Dyn),
        };
        let start = self.ty(&loops.accu_init)?;
        let depth = self.0.len();
        self.0.push((loops.accu_var.clone(), start));
        self.0.push((loops.iter_var.clone(), first));
        self.0.extend(loops.iter_var2.clone().map(|name| (name, second)));
        let inside = [&loops.loop_cond, &loops.loop_step]
            .into_iter()
            .try_for_each(|part| self.ty(part).map(drop));
        self.0.truncate(depth + 1);
        let result = inside.and_then(|()| self.ty(&loops.result));
        self.0.truncate(depth);
        result
    }

    fn call(&mut self, call: &CallExpr) -> Typed<'a> {
        let mut types = Vec::new();
        for argument in call.target.iter().map(AsRef::as_ref).chain(&call.args) {
            types.push(self.ty(argument)?);
        }
        match (call.func_name.as_str(), types.as_slice()) {
            (operators::EQUALS | operators::NOT_EQUALS, [a, b]) if !a.meets(b) => {
                Err(no_overload(call, &types))
            }
            (
                operators::LESS
                | operators::LESS_EQUALS
                | operators::GREATER
                | operators::GREATER_EQUALS,
                [a, b],
            ) if !(a.meets(b) || (a.is_number() && b.is_number())) => {
                Err(no_overload(call, &types))
            }
            (
                operators::EQUALS
                | operators::NOT_EQUALS
                | operators::LESS
                | operators::LESS_EQUALS
                | operators::GREATER
                | operators::GREATER_EQUALS,
                _,
            ) => Ok(Ty::Bool),
            (operators::LOGICAL_AND | operators::LOGICAL_OR | operators::LOGICAL_NOT, all) => {
                match all.iter().all(|ty| ty.fits(&Ty::Bool)) {
                    true => Ok(Ty::Bool),
                    false => Err(no_overload(call, &types)),
                }
            }
            (operators::CONDITIONAL, [condition, yes, no]) => {
                match condition.fits(&Ty::Bool) && yes.meets(no) {
                    true if yes == no => Ok(yes.clone()),
                    true => Ok(Ty::Dyn),
                    false => Err(no_overload(call, &types)),
                }
            }
            (operators::IN, [one, Ty::List(of)]) if !one.meets(of) => {
                Err(no_overload(call, &types))
            }
            (operators::IN, [one, Ty::Map(_)]) if !one.fits(&Ty::Str) => {
                Err(no_overload(call, &types))
            }
            (operators::IN, _) => Ok(Ty::Bool),
            (operators::INDEX, [Ty::List(inner) | Ty::Map(inner), _]) => Ok((**inner).clone()),
            (operators::ADD | operators::SUBSTRACT, [a, b]) => arithmetic(call, a, b, &types),
            (operators::MULTIPLY | operators::DIVIDE | operators::MODULO, [a, b]) => {
                arithmetic(call, a, b, &types)
            }
            (operators::NEGATE, [one]) => Ok(one.clone()),
            (name, _) => function(name, call, &types),
        }
    }
}

fn arithmetic<'a>(call: &CallExpr, a: &Ty<'a>, b: &Ty<'a>, types: &[Ty<'a>]) -> Typed<'a> {
    let timed = |ty: &Ty<'a>| matches!(ty, Ty::Timestamp | Ty::Duration | Ty::Dyn);
    match (a, b) {
        (Ty::List(_), Ty::List(_)) => {
            Ok(if a == b { a.clone() } else { Ty::List(Box::new(Ty::Dyn)) })
        }
        (a, b) if a == b && !matches!(a, Ty::Bool | Ty::Null | Ty::Timestamp) => Ok(a.clone()),
        (a, b) if timed(a) && timed(b) => Ok(Ty::Dyn),
        (Ty::Dyn, _) | (_, Ty::Dyn) => Ok(Ty::Dyn),
        _ => Err(no_overload(call, types)),
    }
}

fn of_literal(literal: &LiteralValue) -> Ty<'static> {
    match literal {
        LiteralValue::Boolean(_) => Ty::Bool,
        LiteralValue::Bytes(_) => Ty::Bytes,
        LiteralValue::Double(_) => Ty::Double,
        LiteralValue::Int(_) => Ty::Int,
        LiteralValue::Null => Ty::Null,
        LiteralValue::String(_) => Ty::Str,
        LiteralValue::UInt(_) => Ty::Uint,
    }
}

/// The field of a value; `test` when it stands in `has()`.
fn member<'a>(of: &Ty<'a>, field: &str, test: bool) -> Typed<'a> {
    static META: LazyLock<Value> = LazyLock::new(|| {
        let text = json!({"type": "string"});
        json!({"type": "object", "properties": {"name": text, "generateName": text}})
    });
    let at = if test { ("has(".to_owned(), 3) } else { (format!(".{field}"), 0) };
    match of {
        Ty::Object(Fields { meta: true, .. }) if matches!(field, "apiVersion" | "kind") => {
            Ok(Ty::Str)
        }
        Ty::Object(Fields { meta: true, .. }) if field == "metadata" => {
            Ok(Ty::Object(Fields { schema: &META, meta: false }))
        }
        Ty::Object(Fields { schema, .. }) => {
            let known = &schema["properties"];
            let by_other_name = || {
                let mut known = known.as_object().into_iter().flatten();
                known.find(|(name, _)| escaped(name) == field).map(|(_, schema)| schema)
            };
            // Only names with this in them stand for others.
            let other = || field.contains("__").then(by_other_name).flatten();
            match known.get(field).or_else(other) {
                Some(schema) => Ok(Ty::of_schema(schema, false)),
                None => Err(Fault { why: format!("undefined field '{field}'"), at }),
            }
        }
        Ty::Map(inner) => Ok((**inner).clone()),
        Ty::Dyn => Ok(Ty::Dyn),
        other => {
            let why = format!("type '{}' does not support field selection", other.name());
            Err(Fault { why, at })
        }
    }
}

/// A property's name as rules write it.
pub(super) fn escaped(name: &str) -> String {
    const RESERVED: &str = "true false null in as break const continue else for function if import let loop \
         package namespace return var void while";
    if RESERVED.split(' ').any(|word| word == name) {
        return format!("__{name}__");
    }
    name.replace("__", "__underscores__")
        .replace('.', "__dot__")
        .replace('-', "__dash__")
        .replace('/', "__slash__")
}

/// Types that an operator or function does not take.
pub(super) fn no_overload(call: &CallExpr, types: &[Ty<'_>]) -> Fault {
    let name = &call.func_name;
    let shown = types.iter().map(Ty::name).collect::<Vec<_>>().join(", ");
    let why = format!("found no matching overload for '{name}' applied to '({shown})'");
    let at = match name.as_str() {
        operators::CONDITIONAL => ("?".to_owned(), 0),
        operators::IN => (" in ".to_owned(), 1),
        operators::LOGICAL_NOT => ("!".to_owned(), 0),
        name if name.starts_with('_') => (name.trim_matches('_').to_owned(), 0),
        name => (format!("{name}("), name.len()),
    };
    Fault { why, at }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schema() -> Value {
        json!({"type": "object", "properties": {
            "a": {"type": "integer"}, "s": {"type": "string"}, "namespace": {"type": "string"},
            "l": {"type": "array", "items": {"type": "string"}},
            "m": {"type": "object", "additionalProperties": {"type": "string"}},
            "o": {"type": "object", "properties": {"x": {"type": "integer"}}},
            "q": {"x-kubernetes-int-or-string": true},
            "d": {"type": "string", "format": "date-time"},
        }})
    }

    #[test]
    fn rules_that_can_work_pass() {
        for rule in [
            "self.a > 0",
            "self == oldSelf",
            "!has(oldSelf.a) || has(self.a)",
            "has(self.a) != has(self.s)",
            "self.s.startsWith('a') && size(self.s) > 1",
            "self.l.all(x, x.size() > 0)",
            "self.l.exists_one(x, x == 'a')",
            "self.l.map(x, x + 'b').filter(y, y != 'ab').size() == 0",
            "self.m['a'] == 'b' && self.m.all(k, k.startsWith('x'))",
            "self.m.key == 'b'",
            "self.o.x + 1 > 2",
            "self.__namespace__ == 'a'",
            "self.q == 1 || self.q == 'a'",
            "self.d > timestamp('2020-01-01T00:00:00Z')",
            "duration('1s') < duration('2s')",
            "self.a in [1, 2] ? true : self.s == 'x'",
            "self.a < 1.5",
            "quantity('1Gi').isGreaterThan(quantity('1Mi'))",
            "type(self.a) == int",
        ] {
            assert_eq!(fault(rule, &schema(), false, Wanted::Rule), None, "{rule}");
        }
        assert_eq!(fault("self.metadata.name == self.kind", &schema(), true, Wanted::Rule), None);
        assert_eq!(fault("'was ' + oldSelf.s", &schema(), false, Wanted::Message), None);
    }

    #[test]
    fn rules_that_cannot_work_are_refused_as_upstream_does() {
        let rows = [
            ("self.nope > 0", "1:5: undefined field 'nope'\n | self.nope > 0\n | ....^"),
            ("has(self.nope)", "1:4: undefined field 'nope'\n | has(self.nope)\n | ...^"),
            ("self.a.x > 0", "1:7: type 'int' does not support field selection"),
            (
                "self.s == 1",
                "1:8: found no matching overload for '_==_' applied to '(string, int)'",
            ),
            (
                "self.l.all(x, x > 0)",
                "1:17: found no matching overload for '_>_' applied to '(string, int)'",
            ),
            ("self.o.y > 0", "1:7: undefined field 'y'"),
            ("foo > 0", "1:1: undeclared reference to 'foo' (in container '')"),
            ("nope(self)", "1:5: undeclared reference to 'nope' (in container '')"),
            ("self.s.nope('a')", "1:12: undeclared reference to 'nope' (in container '')"),
            ("size(self.a) > 0", "1:5: found no matching overload for 'size' applied to '(int)'"),
            (
                "self.a in ['x']",
                "1:8: found no matching overload for '@in' applied to '(int, list(string))'",
            ),
            (
                "self.a == 1 ? true : 'x'",
                "1:13: found no matching overload for '_?_:_' applied to '(bool, bool, string)'",
            ),
        ];
        for (rule, wanted) in rows {
            let found = fault(rule, &schema(), false, Wanted::Rule).unwrap_or_default();
            let start = format!("compilation failed: ERROR: <input>:{wanted}");
            assert!(found.starts_with(&start), "{rule}: {found}");
        }
        let other = |rule: &str, wanted| fault(rule, &schema(), false, wanted);
        let text = "cel expression must evaluate to a bool";
        assert_eq!(other("self.a + 1", Wanted::Rule).as_deref(), Some(text));
        let text = "messageExpression must evaluate to a string";
        assert_eq!(other("self.a", Wanted::Message).as_deref(), Some(text));
        let syntax = other("self.a >", Wanted::Rule).unwrap_or_default();
        assert!(
            syntax.starts_with("compilation failed: ERROR: <input>:1:9: Syntax error"),
            "{syntax}"
        );
    }
}
