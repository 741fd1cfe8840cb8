//! Values and costs of expressions.

use std::sync::Arc;

use kube_cel::cel::Value;
use serde_json::json;

use super::super::meter::Meter;
use super::super::parse;
use super::super::values::Kind;
use super::{Eval, Stop};

fn run(source: &str) -> (Result<Value, String>, u64) {
    let schema = json!({"type": "object", "properties": {
        "s": {"type": "string"}, "n": {"type": "integer"},
        "l": {"type": "array", "items": {"type": "string"}},
        "m": {"type": "object", "additionalProperties": {"type": "integer"}},
        "a-b": {"type": "integer"}, "t": {"type": "string", "format": "date-time"},
        "d": {"type": "string", "format": "duration"},
    }});
    let object = json!({"s": "hello world", "n": 3, "l": ["a", "b", "c"], "m": {"x": 1, "y": 2},
        "a-b": 7, "t": "2026-01-01T00:00:00Z", "d": "1h30m"});
    let value = Kind::of(&schema).read(&object);
    let program = parse(source).unwrap();
    let mut meter = Meter::default();
    let result = Eval::new(&mut meter, vec![("self", value)]).value(program.expression());
    let result = result.map_err(|stop| match stop {
        Stop::Exhausted => "exhausted".to_owned(),
        Stop::Failed(error) => error.to_string(),
    });
    (result, meter.cost())
}

#[test]
fn expressions_have_their_values() {
    let truths = [
        "self.n + 1 == 4 && self.n * 2 == 6 && self.n - 4 == -1 && self.n / 2 == 1 && self.n % 2 == 1",
        "self.s.startsWith('hello') && self.s.endsWith('world') && self.s.contains('o w')",
        "size(self.s) == 11 && self.l.size() == 3 && size(self.m) == 2",
        "self.l.all(x, x.size() == 1) && self.l.exists(x, x == 'b') && self.l.exists_one(x, x == 'c')",
        "self.l.map(x, x + x) == ['aa', 'bb', 'cc'] && self.l.filter(x, x != 'b') == ['a', 'c']",
        "self.l.map(x, x != 'b', x + '1') == ['a1', 'c1']",
        "self.m.all(k, self.m[k] > 0) && 'x' in self.m && !('z' in self.m) && 'a' in self.l",
        "self.l[1] == 'b' && self.m['y'] == 2 && self.m.x == 1",
        "has(self.n) && !has(self.nope) && self.__a__dash__b__ == 7 || self.a__dash__b == 7",
        "self.t > timestamp('2025-01-01T00:00:00Z') && self.d == duration('90m')",
        "self.n > 2 ? true : false",
        "true || self.nope == 1",
        "self.nope == 1 || true",
        "!(false && self.nope == 1)",
        "self.s.matches('^h.*d$') && self.s.find('o') == 'o' && self.s.findAll('o') == ['o', 'o']",
        "self.s.replace('o', '0') == 'hell0 w0rld' && self.s.replace('o', '0', 1) == 'hell0 world'",
        "self.s.split(' ') == ['hello', 'world'] && 'abc'.split('') == ['a', 'b', 'c']",
        "'a,b,c'.split(',', 2) == ['a', 'b,c'] && self.l.join('-') == 'a-b-c' && self.l.join() == 'abc'",
        "lists.range(3) == [0, 1, 2] && [1, 1, 2].distinct() == [1, 2]",
        "sets.contains([1, 2, 3], [2]) && sets.intersects([1], [1, 2]) && sets.equivalent([1, 1], [1])",
        "'%s is %d'.format(['x', 3]) == 'x is 3' && self.s.upperAscii() == 'HELLO WORLD'",
        "quantity('1Gi').isGreaterThan(quantity('1Mi')) && isIP('10.0.0.1') && ip('10.0.0.1').family() == 4",
        "{'a': 1}['a'] == 1 && [1, 2] + [3] == [1, 2, 3] && 1.5 < 2.0 && 1 == 1.0",
        "optional.of(1).hasValue() && optional.none().orValue(5) == 5 && [1].first().value() == 1",
        "math.greatest(1, 3, 2) == 3 && [3, 1, 2].max() == 3 && [1, 2].sum() == 3",
        "url('https://a.example/x').getHost() == 'a.example' && 'a'.lowerAscii() == 'a'",
        "string(1) == '1' && int('5') == 5 && type(1) == type(1) || true",
    ];
    for source in truths {
        assert_eq!(run(source).0, Ok(Value::Bool(true)), "{source}");
    }
    let faults = [
        "self.nope == 1",
        "self.l[9] == 'a'",
        "1 / 0 == 1",
        "self.s + 1 == 'a'",
        "nope(1)",
        "A{b: 1}",
    ];
    for source in faults {
        let found = run(source).0;
        assert!(found.is_err(), "{source}: {found:?}");
    }
    assert_eq!(
        run("self.l.map(x, x)").0,
        Ok(Value::List(Arc::new(vec!["a".into(), "b".into(), "c".into()])))
    );
}

/// After cel-go's `runtimecost.go` and Kubernetes' `library/cost.go`.
#[test]
fn expressions_cost_what_upstream_counts() {
    let rows = [
        ("true", 0),
        ("self.n", 2),
        ("self.n == 3", 3),
        ("self.n == 3 && self.n > 1", 6),
        ("self.n == 4 && self.n > 1", 3),
        ("has(self.n)", 1),
        ("!has(self.n)", 2),
        ("self.l[0] == 'a'", 4),
        ("self.m.x", 3),
        ("self.m['x']", 3),
        ("[1, 2]", 0),
        ("{'a': 1}", 0),
        ("self.n > 1 ? self.n : 0", 4),
        ("self.l.all(x, true)", 12),
        ("self.l.exists(x, x == 'a')", 12),
        ("self.l.map(x, x)", 2 + 3 * 13 + 1),
        ("'a' in self.l", 5),
        ("self.s.startsWith('he')", 3),
        ("self.s.contains('o w')", 4),
        ("self.s.matches('^h.*d$')", 2 + 2 * 2),
        ("self.s + self.s", 4 + 3),
        ("size(self.s)", 3),
        ("self.s.size()", 3),
        ("self.s == 'hello world'", 4),
        ("1 + 2", 1),
        ("-self.n", 3),
        ("self.s.upperAscii()", 4),
        ("self.s.replace('o', '0')", 5),
        ("self.s.split(' ')", 5),
        ("self.s.find('o')", 4),
        ("quantity('1Gi')", 1),
        ("isIP('10.0.0.1')", 1),
        ("timestamp('2026-01-01T00:00:00Z')", 0),
        ("duration('1h')", 0),
        ("string(self.n)", 3),
        ("int('1')", 0),
        ("[3, 1].max()", 2),
        ("[1, 2].isSorted()", 2),
        ("sets.contains([1, 2], [1])", 3),
        ("self.n < 5 || self.n > 9", 3),
        ("self.l + ['d']", 3),
    ];
    let found = rows.map(|(source, _)| (source, run(source).1));
    assert_eq!(found, rows);
}

/// What upstream's validator found and charged; `costs.json` says how that was recorded.
#[test]
fn recorded_expressions_have_the_results_and_costs_of_upstream() {
    let recorded: serde_json::Value = serde_json::from_str(include_str!("costs.json")).unwrap();
    let kind = Kind::of(&recorded["schema"]);
    let rows = recorded["rows"].as_array().unwrap();
    assert!(rows.len() >= 40);
    let mut others = Vec::new();
    for row in rows {
        let (rule, object) = (row[0].as_str().unwrap(), row[1].as_str().unwrap());
        let wanted = (row[2].as_str().unwrap(), row[3].as_u64().unwrap());
        let names = [("self", object), ("oldSelf", "old")];
        let names = names.map(|(name, object)| (name, kind.read(&recorded["objects"][object])));
        let mut meter = Meter::default();
        let result = parse(rule).map(|program| {
            match Eval::new(&mut meter, names.to_vec()).value(program.expression()) {
                Ok(Value::Bool(true)) => "true".to_owned(),
                Ok(Value::Bool(false)) => "false".to_owned(),
                Err(Stop::Failed(_)) => "error".to_owned(),
                other => format!("{other:?}"),
            }
        });
        let found = (result.unwrap_or_else(|why| why), meter.cost());
        if (found.0.as_str(), found.1) != wanted {
            others.push(format!("{rule} of {object}: {found:?}, upstream {wanted:?}"));
        }
    }
    assert!(others.is_empty(), "{} of {}:\n{}", others.len(), rows.len(), others.join("\n"));
}
