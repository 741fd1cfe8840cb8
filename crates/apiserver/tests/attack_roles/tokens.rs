//! Tokens of service accounts.

use serde_json::{Value, json};

use crate::*;

const TOKEN: &str = "/api/v1/namespaces/default/serviceaccounts/bot/token";

fn ask_for(spec: Value, code: u16) -> Step {
    post(
        TOKEN,
        json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}),
        code,
    )
}

pub fn all() -> Vec<Attack> {
    let right = || json!([on_core(&["create"], &["serviceaccounts/token"])]);
    let lasting = |seconds: Value, code| ask_for(json!({"expirationSeconds": seconds}), code);
    let bound = |kind: &str, name: &str, code| {
        ask_for(json!({"boundObjectRef": {"apiVersion": "v1", "kind": kind, "name": name}}), code)
    };
    let accounts = "/api/v1/namespaces/default/serviceaccounts";
    let pod = |name: &str, account: &str| {
        json!({"metadata": {"name": name},
            "spec": {"serviceAccountName": account, "containers": [{"name": "c", "image": "i"}]}})
    };
    let mut all = vec![
        attack(
            "a token that lasts for what is no number",
            right(),
            vec![
                lasting(json!("x"), 400),
                lasting(json!("3600"), 400),
                lasting(json!(1e300), 400),
                lasting(json!(1000.5), 400),
                lasting(json!([3600]), 400),
                lasting(json!({}), 400),
                lasting(json!(true), 400),
                lasting(json!(u64::MAX), 400),
            ],
        ),
        attack(
            "a token that lasts too short or too long",
            right(),
            vec![
                lasting(json!(599), 422),
                lasting(json!(0), 422),
                lasting(json!(-1), 422),
                lasting(json!((1_i64 << 32) + 1), 422),
                lasting(json!(i64::MAX), 422),
                lasting(json!(600), 201),
                lasting(json!(null), 201),
            ],
        ),
        attack(
            "a request of another shape",
            right(),
            vec![
                ask_for(json!({"audiences": "a"}), 400),
                ask_for(json!({"audiences": [1]}), 400),
                ask_for(json!("x"), 400),
                post(TOKEN, json!({"apiVersion": "v1", "kind": "Pod"}), 400),
                post(TOKEN, json!([]), 400),
                post(TOKEN, json!({"metadata": {"name": "other"}}), 422),
                post(TOKEN, json!({"metadata": {"uid": "other"}}), 409),
            ],
        ),
        attack(
            "a token bound to what is not there, or to others",
            right(),
            vec![
                bound("Pod", "none", 404),
                bound("Secret", "none", 404),
                bound("Node", "none", 404),
                bound("ConfigMap", "x", 400),
                bound("Pod", "foreign", 400),
                bound("Pod", "own", 201),
            ],
        )
        .with("/api/v1/namespaces/default/pods", pod("foreign", "default"))
        .with("/api/v1/namespaces/default/pods", pod("own", "bot")),
        attack(
            "a token without the right to it",
            json!([on_core(&["*"], &["serviceaccounts", "secrets/token"])]),
            vec![ask_for(json!({}), 403)],
        ),
        attack(
            "a token of another account",
            json!([{"apiGroups": [""], "resources": ["serviceaccounts/token"], "verbs": ["create"], "resourceNames": ["other"]}]),
            vec![ask_for(json!({}), 403)],
        ),
    ];
    for attack in &mut all {
        attack.there.insert(0, (accounts.to_owned(), json!({"metadata": {"name": "bot"}})));
    }
    let claims = json!([on_core(&["create"], &["persistentvolumeclaims"])]);
    let claim = |size: &str, code| {
        post(
            "/api/v1/namespaces/default/persistentvolumeclaims",
            json!({"metadata": {"generateName": "c"}, "spec": {"accessModes": ["ReadWriteOnce"],
                "resources": {"requests": {"storage": size}}}}),
            code,
        )
    };
    all.push(attack(
        "sizes with more than a size",
        claims,
        vec![
            claim("5 ", 400),
            claim(" 5", 400),
            claim("5\n", 400),
            claim("5 Gi", 400),
            claim("\u{a0}5Gi", 400),
            claim("", 400),
            claim("5Gi", 201),
        ],
    ));
    let pods = json!([on_core(&["create"], &["pods"])]);
    let sized = |mut spec: Value, code| {
        let container = json!({"name": "c", "image": "i"});
        let containers = spec["containers"].as_array_mut();
        if containers.is_none() {
            spec["containers"] = json!([container]);
        }
        let body = json!({"metadata": {"generateName": "p"}, "spec": spec});
        post("/api/v1/namespaces/default/pods", body, code)
    };
    let named = |more: Value| {
        let mut container = json!({"name": "c", "image": "i"});
        container.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({"containers": [container]})
    };
    all.push(attack(
        "sizes of pods with more than a size",
        pods,
        vec![
            sized(named(json!({"resources": {"limits": {"memory": "5 "}}})), 400),
            sized(named(json!({"resources": {"requests": {"cpu": " 1"}}})), 400),
            sized(named(json!({"env": [{"name": "A", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu", "divisor": "1 "}}}]})), 400),
            sized(json!({"volumes": [{"name": "v", "emptyDir": {"sizeLimit": "5 "}}]}), 400),
            sized(json!({"volumes": [{"name": "v", "downwardAPI": {"items": [{"path": "a", "resourceFieldRef": {"containerName": "c", "resource": "limits.cpu", "divisor": " 1"}}]}}]}), 400),
            sized(json!({"overhead": {"cpu": "1 "}}), 400),
            sized(json!({"resources": {"limits": {"cpu": "1 "}}}), 400),
            sized(named(json!({"resources": {"limits": {"memory": "5"}}})), 201),
        ],
    ));
    all
}
