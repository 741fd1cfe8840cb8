//! Definitions of custom resources, and objects to be judged by them.

use serde_json::{Value, json};

use crate::input::Input;
use crate::soup::Soup;
use crate::world::World;

const PATH: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

const RULES: &[&str] = &[
    "self == oldSelf",
    "has(self.a)",
    "!has(oldSelf.a) || has(self.a)",
    "self.all(x, x > 1)",
    "self.size() < 3",
    "self.a in self.b",
    "self.matches('^a+$')",
    "self >= oldSelf",
    "1/0 == 1",
    "self.map(x, self.map(y, x + y)).size() > 0",
    "quantity(self) > quantity('1Gi')",
    "((((1))))",
    "self.a.b.c.d == ''",
    "'a' + self.a",
    "duration('1h') > duration(self)",
    "",
    "&&",
    "self[0]",
    "self.exists_one(x, x == self)",
    "-9223372036854775808 - 1 < 0",
    "timestamp(self) > timestamp(0)",
    "type(self) == string",
    "dyn(self).a",
    "self.startsWith(oldSelf)",
    "optional.of(1)",
    "[1,2][5] == 1",
    "url(self).getHost() == 'x'",
    "self.split(',').size() > 0",
    "9223372036854775807 + 1 > 0",
    "-self",
];

const FORMATS: &[&str] = &[
    "date-time",
    "date",
    "int32",
    "int64",
    "byte",
    "uuid",
    "ipv4",
    "email",
    "uri",
    "duration",
    "x",
    "double",
    "hostname",
    "cidr",
    "k8s-short-name",
];

fn schema(soup: &mut Soup, depth: usize) -> Value {
    let types = ["object", "array", "string", "integer", "number", "boolean", "null", "x"];
    let known = if soup.chance(90) { 6 } else { 8 };
    let kind = *soup.pick(&types[..known]);
    let mut schema = json!({"type": kind});
    match kind {
        "object" if depth > 0 && soup.chance(70) => {
            let mut properties = json!({});
            for _ in 0..soup.below(4) {
                properties[["a", "b", "c", "é", "metadata"][soup.below(5)]] =
                    self::schema(soup, depth - 1);
            }
            schema["properties"] = properties;
            schema["required"] = json!((0..soup.below(2)).map(|_| soup.word()).collect::<Vec<_>>());
        }
        "object" if depth > 0 => schema["additionalProperties"] = self::schema(soup, depth - 1),
        "array" if depth > 0 => {
            schema["items"] = self::schema(soup, depth - 1);
            if soup.chance(40) {
                schema["x-kubernetes-list-type"] =
                    json!(["map", "set", "atomic", "x"][soup.below(4)]);
                schema["x-kubernetes-list-map-keys"] = json!(["a"]);
            }
        }
        _ => {}
    }
    decorate(soup, &mut schema, depth);
    schema
}

fn decorate(soup: &mut Soup, schema: &mut Value, depth: usize) {
    for _ in 0..soup.below(3) {
        let (name, value) = match soup.below(14) {
            0 => ("default", soup.value(2)),
            1 => ("enum", json!([soup.value(1), soup.value(1)])),
            2 => (
                "pattern",
                json!(["^a+$", "(((", "[", "(a*)*b", "\\d{1000000}", "(?=x)", ""][soup.below(7)]),
            ),
            3 => ("format", json!(soup.pick(FORMATS))),
            4 => ("minimum", serde_json::from_str(soup.number()).unwrap_or(json!(0))),
            5 => ("maximum", serde_json::from_str(soup.number()).unwrap_or(json!(0))),
            6 => ("multipleOf", serde_json::from_str(soup.number()).unwrap_or(json!(0))),
            7 => ("maxLength", serde_json::from_str(soup.number()).unwrap_or(json!(0))),
            8 => ("nullable", json!(soup.chance(70))),
            9 => ("x-kubernetes-preserve-unknown-fields", json!(true)),
            10 => ("x-kubernetes-int-or-string", json!(true)),
            11 => ("x-kubernetes-embedded-resource", json!(true)),
            12 if depth > 0 => {
                let one = [json!({"required": ["a"]}), json!({"not": {}}), schema_part(soup)];
                (["oneOf", "anyOf", "allOf"][soup.below(3)], json!(one))
            }
            _ => {
                let rule = *soup.pick(RULES);
                let mut rule = json!({"rule": rule, "message": soup.word()});
                if soup.chance(30) {
                    rule["messageExpression"] = json!(soup.pick(RULES));
                    rule["reason"] = json!(["FieldValueForbidden", "x"][soup.below(2)]);
                    rule["fieldPath"] = json!([".a", "..", ".a[0]", ""][soup.below(4)]);
                }
                ("x-kubernetes-validations", json!([rule]))
            }
        };
        schema[name] = value;
    }
}

fn schema_part(soup: &mut Soup) -> Value {
    json!({"properties": {"a": {"minimum": soup.below(5)}}})
}

/// A schema that is accepted, so that its objects are judged by all that stands in it.
fn tidy(soup: &mut Soup, depth: usize) -> Value {
    let kinds = ["string", "integer", "boolean", "number", "object", "array", "object", "array"];
    let known = if depth == 0 { 4 } else { kinds.len() };
    let kind = *soup.pick(&kinds[..known]);
    let mut schema = json!({"type": kind});
    let (pieces, rules): (Vec<Value>, &[&str]) = match kind {
        "string" => (
            vec![
                json!({"maxLength": 3}),
                json!({"pattern": "^a+$"}),
                json!({"enum": ["a", "b", ""]}),
                json!({"format": "date-time"}),
                json!({"default": "a"}),
                json!({"nullable": true}),
                json!({"minLength": 1}),
                json!({"format": "byte"}),
                json!({"format": "duration"}),
            ],
            &[
                "self == oldSelf",
                "self.startsWith('a')",
                "self.matches('^(a|b)*$')",
                "int(self) > 1",
                "self.size() > 1 || self.charAt(7) == 'x'",
                "self.split('')[3] == 'a'",
            ],
        ),
        "integer" | "number" => (
            vec![
                json!({"minimum": 0}),
                json!({"maximum": 3, "exclusiveMaximum": true}),
                json!({"multipleOf": 2}),
                json!({"default": 1}),
                json!({"enum": [1, 2]}),
                json!({"format": "int32"}),
                json!({"nullable": true}),
            ],
            &[
                "self >= oldSelf",
                "10 / self > 0",
                "self * 9223372036854775807 > self",
                "10 % self == 0",
                "self - oldSelf < 5",
                "[1, 2, 3][self] > 1",
                "string(self) == '1'",
            ],
        ),
        "boolean" => (vec![json!({"default": true})], &["self || !oldSelf"]),
        "array" => {
            schema["items"] = match soup.below(3) {
                0 => {
                    schema["x-kubernetes-list-type"] = json!("map");
                    schema["x-kubernetes-list-map-keys"] = json!(["k"]);
                    json!({"type": "object", "required": ["k"], "properties": {
                        "k": {"type": "string"}, "v": tidy(soup, depth - 1)}})
                }
                1 => {
                    schema["x-kubernetes-list-type"] = json!("set");
                    json!({"type": "string"})
                }
                _ => tidy(soup, depth - 1),
            };
            schema["maxItems"] = json!(5);
            (
                vec![json!({"minItems": 1}), json!({"nullable": true})],
                &[
                    "self.size() < 3",
                    "self[1] == self[0]",
                    "self.all(x, x == x)",
                    "self == oldSelf",
                    "self.exists(x, self.exists_one(y, x == y))",
                ],
            )
        }
        _ if soup.chance(25) => {
            schema["additionalProperties"] = tidy(soup, depth - 1);
            (Vec::new(), &["self.all(k, k.size() < 3)", "self == oldSelf", "'a' in self"])
        }
        _ => {
            let mut properties = json!({});
            for key in ["a", "b", "c"] {
                properties[key] = tidy(soup, depth - 1);
            }
            schema["properties"] = properties;
            (
                vec![
                    json!({"required": ["a"]}),
                    json!({"x-kubernetes-preserve-unknown-fields": true}),
                    json!({"x-kubernetes-map-type": "atomic"}),
                    json!({"default": {}}),
                    json!({"oneOf": [{"required": ["a"]}, {"required": ["b"]}]}),
                ],
                &[
                    "has(self.a)",
                    "!has(oldSelf.b) || has(self.b)",
                    "self == oldSelf",
                    "self.a == self.a",
                ],
            )
        }
    };
    if !pieces.is_empty() && soup.chance(40) {
        for (key, value) in soup.pick(&pieces).as_object().cloned().unwrap_or_default() {
            schema[key] = value;
        }
    }
    if soup.chance(25) {
        schema["x-kubernetes-validations"] =
            json!([{"rule": soup.pick(rules), "messageExpression": "'it is ' + string(1)"}]);
    }
    schema
}

/// Values that such schemas are about.
fn fitting(soup: &mut Soup, depth: usize) -> Value {
    match soup.below(if depth == 0 { 4 } else { 7 }) {
        0 => json!(["a", "aa", "", "b", "2026-01-01T00:00:00Z", "1h"][soup.below(6)]),
        1 => json!([0, 1, 2, 3, -1, i64::MAX][soup.below(6)]),
        2 => json!(soup.chance(50)),
        3 => [json!(null), json!(0.5), json!(1e300)][soup.below(3)].clone(),
        4 => json!((0..soup.below(3)).map(|_| fitting(soup, depth - 1)).collect::<Vec<_>>()),
        5 => json!([{"k": "a", "v": fitting(soup, depth - 1)}, {"k": (["a", "b"][soup.below(2)])}]),
        _ => {
            let mut object = json!({});
            for key in ["a", "b", "c"] {
                if soup.chance(70) {
                    object[key] = fitting(soup, depth - 1);
                }
            }
            object
        }
    }
}

/// A definition, mostly of the kind that the world's own objects have.
pub fn definition(soup: &mut Soup) -> Input {
    let plural = *soup.pick(&["walks", "fuzzes", "fuzzes", "fuzzes"]);
    let name = format!("{plural}.example.com");
    let in_order = soup.chance(65);
    let root = match in_order {
        true => json!({"type": "object", "properties": {
            "spec": tidy(soup, 3), "status": tidy(soup, 2)}}),
        false => json!({"type": "object", "properties": {
            "spec": schema(soup, 4), "status": schema(soup, 3)}}),
    };
    let paths = [
        ".spec.a",
        ".status.b[0]",
        ".spec['x']",
        "..",
        ".a[?(@.b==\"c\")].d",
        "",
        "[",
        ".spec.a[*].b",
    ];
    let mut version = json!({"name": "v1", "served": true, "storage": true,
        "schema": {"openAPIV3Schema": root},
        "additionalPrinterColumns": [{"name": "A", "type": (*soup.pick(&["string", "integer", "date", "boolean", "number", "x"])),
            "jsonPath": soup.pick(&paths)}]});
    if in_order {
        version["additionalPrinterColumns"] = json!([{"name": "A", "type": "date", "jsonPath": ".spec.a"},
            {"name": "B", "type": "integer", "jsonPath": ".spec.b[0].k"}, {"name": "C", "type": "string", "jsonPath": ".spec"}]);
    } else if soup.chance(30) {
        version["subresources"] = json!({"status": {}, "scale": {
            "specReplicasPath": soup.pick(&paths), "statusReplicasPath": soup.pick(&paths)}});
    }
    if !in_order && soup.chance(30) {
        version["selectableFields"] = json!([{"jsonPath": soup.pick(&paths)}]);
    }
    let kind = if plural == "walks" { "Walk" } else { "Fuzz" };
    let mut body = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": name}, "spec": {"group": "example.com", "scope": "Namespaced",
        "names": {"plural": plural, "kind": kind}, "versions": [version]}});
    if !in_order && soup.chance(50) {
        soup.bend(&mut body);
    }
    let body = body.to_string().into_bytes();
    if soup.chance(50) {
        let content_type = "application/json".into();
        return Input {
            method: "POST".into(),
            path: PATH.into(),
            content_type,
            body,
            ..Input::default()
        };
    }
    Input {
        method: "PATCH".into(),
        path: format!("{PATH}/{name}"),
        content_type: "application/merge-patch+json".into(),
        body,
        ..Input::default()
    }
}

/// An object of a custom kind.
pub fn object(soup: &mut Soup, world: &World) -> Input {
    let (plural, kind) = *soup.pick(&[("walks", "Walk"), ("fuzzes", "Fuzz"), ("fuzzes", "Fuzz")]);
    let place = format!("/apis/example.com/v1/namespaces/default/{plural}");
    let name = *soup.pick(&["x", "y", "z"]);
    let mut body = json!({"apiVersion": "example.com/v1", "kind": kind, "metadata": {"name": name},
        "spec": soup.value(4), "status": soup.value(3)});
    if soup.chance(80) {
        body["spec"] = fitting(soup, 3);
        body["status"] = fitting(soup, 2);
    }
    let (method, path, content_type) = match soup.below(4) {
        0 | 1 => ("POST", place, "application/json"),
        2 => ("PATCH", format!("{place}/{name}"), "application/merge-patch+json"),
        _ => (
            "PATCH",
            format!("{place}/{name}?fieldManager=f&force=true"),
            "application/apply-patch+yaml",
        ),
    };
    if soup.chance(10)
        && let Some(known) = world.objects.values().next()
    {
        body = known.clone();
    }
    Input {
        method: method.into(),
        path,
        content_type: content_type.into(),
        body: body.to_string().into_bytes(),
        ..Input::default()
    }
}
