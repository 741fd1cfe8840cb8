//! Templates and what kubectl 1.32 made of them.

use serde_json::{Value, json};

use super::{Template, go_text};

fn pod() -> Value {
    json!({
        "kind": "Pod",
        "metadata": {
            "name": "web", "namespace": "default", "labels": {"app": "web"},
            "annotations": {"a.b/c": "x<y>&z"},
        },
        "spec": {
            "containers": [
                {"name": "main", "image": "host",
                 "ports": [{"containerPort": 80}, {"containerPort": 8080, "name": "alt"}]},
                {"name": "side", "image": "host"},
            ],
            "enableServiceLinks": true, "grace": 1, "half": 0.5, "nothing": null,
        },
    })
}

fn rendered(template: &str) -> Result<String, String> {
    let template = Template::parse(template).map_err(|error| error.to_string())?;
    template.render(&pod()).map_err(|error| error.to_string())
}

#[test]
fn templates_are_rendered_as_by_kubectl() {
    for (template, text) in [
        ("{.metadata.name}", "web"),
        ("{.}", ""),
        (".metadata.name", ".metadata.name"),
        ("a {.kind} b", "a Pod b"),
        ("{.spec.containers[*].name}", "main side"),
        ("{.spec.containers[0].name} {.spec.containers[-1].name}", "main side"),
        ("{.spec.containers[0:1].name}", "main"),
        ("{.spec.containers[1:].name}", "side"),
        ("{.spec.containers[::2].name}", "main"),
        ("{.spec.containers[0,1].name}", "main side"),
        (r#"{.spec.containers[?(@.name=="side")].image}"#, "host"),
        ("{.spec.containers[?(@.name=='side')].image}", "host"),
        ("{.spec.containers[?(@.ports)].name}", "main"),
        (r#"{.spec.containers[?(@.name!="side")].name}"#, "main"),
        ("{.spec.containers[0].ports[?(@.containerPort>100)].name}", "alt"),
        ("{.spec.containers[0].ports[?(@.containerPort<=80)].containerPort}", "80"),
        ("{..containerPort}", "80 8080"),
        (r#"{range .spec.containers[*]}{.name}{"\n"}{end}"#, "main\nside\n"),
        (
            "{range .spec.containers[*]}{.name}:{range .ports[*]}{.containerPort},{end};{end}done",
            "main:80,8080,;side:;done",
        ),
        ("{range .spec.containers[*]}{.name}", "mainside"),
        ("{range .missing[*]}x{end}y", "y"),
        ("{.metadata['name','namespace']}", "web default"),
        ("{.metadata['name']}", "web"),
        ("{.metadata.labels}", r#"{"app":"web"}"#),
        ("{.metadata.labels.*}", "web"),
        (r"{.metadata.annotations.a\.b/c}", "x<y>&z"),
        (r"{.metadata.annotations['a\.b/c']}", "x<y>&z"),
        ("{.metadata.annotations}", r#"{"a.b/c":"x\u003cy\u003e\u0026z"}"#),
        ("{.missing.x}", ""),
        ("{.spec.grace}{.spec.half}{.spec.enableServiceLinks}", "10.5true"),
        (r#"{"a\tb"}{'c'}"#, "a\tbc"),
        ("{@.metadata.name}{$.kind}", "webPod"),
        ("{.metadata.name .x}", ""),
        ("{.spec.nothing[*].x}", ""),
    ] {
        assert_eq!(rendered(template).as_deref(), Ok(text), "{template}");
    }
}

#[test]
fn what_kubectl_refuses_is_refused() {
    for (template, why) in [
        ("{.spec.containers[5].name}", "array index out of bounds: index 5, length 2"),
        ("{.spec.containers[-3].name}", "array index out of bounds: index -1, length 2"),
        ("{.spec.containers[a].name}", "invalid array index a"),
        (r#"{.metadata["name"]}"#, r#"invalid array index "name""#),
        ("{.metadata.name[0]}", "a string is not array or slice"),
        (
            r#"{.spec.containers[0].ports[?(@.containerPort=="80")]}"#,
            "incompatible types for comparison",
        ),
        (r#"{.spec.containers[?(@.name=~"x")]}"#, "unrecognized character `~` in action"),
        ("{end}", "not in range, nothing to end"),
        ("{.metadata.name", "unclosed action: a `}` is missing"),
        ("{foo}", "unrecognized identifier foo"),
        ("{.a[0}", "unterminated array"),
        ("{.a[?(@.b}", "unterminated filter"),
        ("{.a[?(@.b)}", "unclosed array: a `]` is missing after the filter"),
        ("{\"a}", "unterminated quoted string"),
        ("{.spec.containers[0:2:0]}", "step must be > 0"),
    ] {
        assert_eq!(rendered(template), Err(why.to_owned()), "{template}");
    }
}

#[test]
fn paths_may_lack_braces_and_dot() {
    for path in ["metadata.name", ".metadata.name", "{.metadata.name}", "{metadata.name}"] {
        assert_eq!(Template::relaxed(path).unwrap().render(&pod()).as_deref(), Ok("web"), "{path}");
    }
    for path in ["", "{.a}{.b}", "{", "a{b}"] {
        assert!(Template::relaxed(path).is_err(), "{path}");
    }
}

#[test]
fn columns_show_values_as_go_does() {
    for (value, text) in [
        (json!({"b": 1, "a": [true, null]}), "map[a:[true <nil>] b:1]"),
        (json!("text"), "text"),
        (json!(1.5), "1.5"),
    ] {
        assert_eq!(go_text(&value), text);
    }
}
