//! Definitions and objects of custom kinds.

use std::time::Duration;

use longshore_apiserver::store::{DiskJournal, Expect, History, Key, Room, Store, Write};
use serde_json::{Value, json};

use crate::{Target, at_once, set_off};

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const BOMBS: &str = "/apis/example.com/v1/bombs";

fn definition(spec: &Value) -> Value {
    json!({"metadata": {"name": "bombs.example.com"}, "spec": {
        "group": "example.com", "scope": "Cluster", "names": {"plural": "bombs", "kind": "Bomb",
            "singular": "bomb", "listKind": "BombList"},
        "conversion": {"strategy": "None"},
        "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema":
            {"type": "object", "properties": {"spec": spec}}}}]}})
}

fn object(name: &str, spec: &Value) -> Value {
    json!({"apiVersion": "example.com/v1", "kind": "Bomb", "metadata": {"name": name}, "spec": spec})
}

/// Defines the kind; false when the definition is refused, which is fine for a bomb.
async fn define(target: &Target, spec: &Value) -> bool {
    let code = target.create(DEFINITIONS, &definition(spec)).await;
    if code != 201 {
        assert_eq!(code, 422);
        return false;
    }
    for _ in 0..2000 {
        if target.ask("GET", BOMBS, "application/json", String::new()).await.0 == 200 {
            return true;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the kind is not served");
}

/// Deletes the kind and waits until it is served no more: the next definition would be taken for it.
async fn forget(target: &Target) {
    let path = format!("{DEFINITIONS}/bombs.example.com");
    target.ask("DELETE", &path, "application/json", String::new()).await;
    for _ in 0..2000 {
        let gone = async |path: &str| {
            target.ask("GET", path, "application/json", String::new()).await.0 == 404
        };
        if gone(&path).await && gone(BOMBS).await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the definition does not go");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn combinations_in_combinations_are_judged_in_time() {
    set_off("nested combinations", async |target| {
        for name in ["anyOf", "oneOf", "allOf"] {
            let inner = json!({"required": ["never"]});
            let mut spec =
                (0..45).fold(inner, |inner, _| json!({name: [inner, {"required": ["nor"]}]}));
            spec["type"] = json!("object");
            spec["x-kubernetes-preserve-unknown-fields"] = json!(true);
            if define(target, &spec).await {
                let body = object("a", &json!({"x": 1})).to_string();
                let codes = at_once(target, 4, ("POST", BOMBS, "application/json", body)).await;
                assert!(codes.iter().all(|(code, _)| *code == 422), "{name} {codes:?}");
                forget(target).await;
            }
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn patterns_do_not_grow() {
    set_off("patterns", async |target| {
        for pattern in
            [r"^\w{180}$", r"^\pL{180}$", r"^(\pL{20}){20}$", "^((a{1,100}){1,100}){1,100}$"]
        {
            let fields: serde_json::Map<String, Value> = (0..1000)
                .map(|i| {
                    (
                        format!("f{i}"),
                        json!({"type": "string", "pattern": format!("{pattern}|{i}")}),
                    )
                })
                .collect();
            let values: serde_json::Map<String, Value> =
                (0..1000).map(|i| (format!("f{i}"), json!("a".repeat(180)))).collect();
            if define(target, &json!({"type": "object", "properties": fields})).await {
                let body = object("a", &Value::Object(values)).to_string();
                let codes = at_once(target, 2, ("POST", BOMBS, "application/json", body)).await;
                assert!(codes.iter().all(|(code, _)| matches!(code, 201 | 409 | 422)), "{codes:?}");
                forget(target).await;
            }
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rules_that_ask_for_too_much_are_stopped() {
    set_off("rules", async |target| {
        let doubled = |start: &str| format!("{start}{} == []", ".map(s, s + s)".repeat(33));
        let rules = [
            "lists.range(300000000).size() == 1".to_owned(),
            "self.n > 0 && lists.range(self.n * 300000000).size() == 1".to_owned(),
            "lists.range(30000).all(x, lists.range(30000).all(y, x >= 0))".to_owned(),
            doubled("['x']"),
            doubled("[[1]]"),
            "self.t.replace('x', self.t).size() == 1".to_owned(),
            "self.t.split('').map(a, self.t).size() == 1".to_owned(),
            "self.t.matches('(x+x+)+y')".to_owned(),
            "'%.999999999f'.format([1.0]).size() == 1".to_owned(),
        ];
        for rule in rules {
            let spec = json!({"type": "object", "properties": {
                "n": {"type": "integer"}, "t": {"type": "string", "maxLength": 1_000_000}},
                "x-kubernetes-validations": [{"rule": rule}]});
            if define(target, &spec).await {
                let body = object("a", &json!({"n": 1, "t": "x".repeat(900_000)})).to_string();
                let codes = at_once(target, 2, ("POST", BOMBS, "application/json", body)).await;
                assert!(codes.iter().all(|(code, _)| *code == 422), "{rule} {codes:?}");
                forget(target).await;
            }
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sets_and_defaults_stay_small() {
    set_off("sets and defaults", async |target| {
        let set = json!({"type": "object", "properties": {"l": {"type": "array",
            "x-kubernetes-list-type": "set", "items": {"type": "integer"}}}});
        assert!(define(target, &set).await);
        let many: Vec<u32> = (0..200_000).collect();
        let body = object("a", &json!({"l": many})).to_string();
        let codes = at_once(target, 2, ("POST", BOMBS, "application/json", body)).await;
        assert!(codes.iter().all(|(code, _)| matches!(code, 201 | 409 | 413)), "{codes:?}");
        forget(target).await;
        let defaults = json!({"type": "object", "properties": {"l": {"type": "array", "items": {
            "type": "object", "properties": {"p": {"type": "string", "default": "x".repeat(20_000)}}}}}});
        assert!(define(target, &defaults).await);
        let body = object("a", &json!({"l": vec![json!({}); 300_000]})).to_string();
        let codes = at_once(target, 2, ("POST", BOMBS, "application/json", body)).await;
        assert!(codes.iter().all(|(code, _)| matches!(code, 413 | 422)), "{codes:?}");
    })
    .await;
}

/// A store that an older version wrote, with definitions that it let through.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stored_definition_cannot_keep_the_server_from_starting() {
    let dir = tempfile::Builder::new().prefix("longshore-bombs-").tempdir().unwrap();
    let data = dir.path().join("data");
    crate::child::Server::start(dir.path(), crate::STORE).await.stop().await;
    let fields: serde_json::Map<String, Value> = (0..1000)
        .map(|i| {
            (format!("f{i}"), json!({"type": "string", "pattern": format!(r"^\pL{{180}}{i}$")}))
        })
        .collect();
    let deep = (0..20).fold(
        json!({"required": ["x"]}),
        |inner, _| json!({"anyOf": [inner, {"required": ["y"]}]}),
    );
    let rule = format!("{}true{}", "(".repeat(60_000), ")".repeat(60_000));
    let spec = json!({"type": "object", "properties": fields, "anyOf": [deep],
        "x-kubernetes-validations": [{"rule": rule}]});
    let mut stored = definition(&spec);
    stored["metadata"]["uid"] = json!("11111111-2222-3333-4444-555555555555");
    stored["metadata"]["creationTimestamp"] = json!("2026-01-01T00:00:00Z");
    let condition = |kind: &str| {
        json!({"type": kind, "status": "True", "reason": "x", "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z"})
    };
    stored["status"] = json!({"storedVersions": ["v1"], "acceptedNames": stored["spec"]["names"],
        "conditions": [condition("NamesAccepted"), condition("Established")]});
    {
        let journal = Box::new(DiskJournal::open(&data.join("store")).unwrap());
        let store = Store::open(journal, History { events: 100, bytes: 1 << 20 }).unwrap();
        let key = Key {
            resource: "apiextensions.k8s.io/customresourcedefinitions".into(),
            namespace: String::new(),
            name: "bombs.example.com".into(),
        };
        let write = Write {
            key,
            expect: Expect::Absent,
            object: stored,
            managers: None,
            delete: false,
            guards: Vec::new(),
            room: Room::Plain,
        };
        store.write(write).await.unwrap();
        store.close();
    }
    let target = Target::start(dir.path()).await;
    for _ in 0..2 {
        let (code, _, answer) = target
            .ask("POST", BOMBS, "application/json", object("a", &json!({})).to_string())
            .await;
        assert_eq!(code, 422, "{answer}");
        let text = answer["message"].as_str().unwrap();
        assert!(text.contains("bombs.example.com") || text.contains("anyOf"), "{text}");
    }
    assert!(target.server.peak() <= crate::CEILING, "{} MiB", target.server.peak() >> 20);
    forget(&target).await;
    target.server.stop().await;
    longshore_testing::report("bombs: 1 tried, 1 held (stored definition)");
}
