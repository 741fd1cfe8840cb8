//! A table of pods, and what Pod Security admission says of them on either server.

use std::time::Duration;

use serde_json::{Value, json};

use crate::{Answer, Attempt, Pair, ask, pod_table};

const VERSIONS: &[&str] = &["v1.7", "v1.18", "v1.22", "v1.24", "v1.29", "v1.34", "latest"];

fn request(method: &'static str, path: String, kind: &'static str, body: Value) -> Attempt {
    Attempt { method, path, kind, body, headers: Vec::new(), loose: false }
}

/// The message, with a generated name cut to what was asked for.
fn comparable(answer: &Answer) -> String {
    match answer.message().split_once("pods \"p-") {
        Some((before, rest)) => format!("{before}pods \"p-{}", rest.get(5..).unwrap_or_default()),
        None => answer.message().to_owned(),
    }
}

/// The warnings of this admission; others are not its business.
fn warnings(answer: &Answer) -> Vec<&String> {
    answer.warnings.iter().filter(|w| w.contains("PodSecurity") || w.contains("policy")).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_are_judged_the_same_on_both_servers() {
    let Some(pair) = Pair::start().await else { return };
    let pods = pod_table::all();
    let mut namespaces =
        vec![("warned".to_owned(), json!({"pod-security.kubernetes.io/warn": "restricted"}))];
    for level in ["baseline", "restricted"] {
        for version in VERSIONS {
            let name = format!("{level}-{}", version.replace('.', "-"));
            let labels = json!({"pod-security.kubernetes.io/enforce": level, "pod-security.kubernetes.io/enforce-version": version});
            namespaces.push((name, labels));
        }
    }
    let (mut tried, mut forbidden, mut invalid, mut differ) = (0, 0, Vec::new(), Vec::new());
    for (namespace, labels) in &namespaces {
        pair.create(
            "/api/v1/namespaces",
            &json!({"metadata": {"name": namespace, "labels": labels}}),
        )
        .await;
        for (name, pod) in &pods {
            let path = format!("/api/v1/namespaces/{namespace}/pods?dryRun=All");
            let attempt = request("POST", path, "application/json", pod.clone());
            let ours = ask(&pair.admins[0], &attempt).await;
            let real = ask(&pair.admins[1], &attempt).await;
            if real.code == 422 {
                // Not valid in itself: admission never saw it.
                invalid.push(name);
                continue;
            }
            tried += 1;
            forbidden += usize::from(real.code == 403);
            let same = ours.code == real.code
                && comparable(&ours) == comparable(&real)
                && warnings(&ours) == warnings(&real);
            if !same {
                differ.push(format!(
                    "{namespace}, {name}:\n  ours {} {} {:?}\n  real {} {} {:?}",
                    ours.code,
                    ours.message(),
                    warnings(&ours),
                    real.code,
                    real.message(),
                    warnings(&real)
                ));
            }
        }
    }
    invalid.sort();
    invalid.dedup();
    longshore_testing::report(&format!(
        "differential pods: {} pods in {} namespaces, {tried} compared, {forbidden} forbidden, {} differ; invalid in themselves: {invalid:?}",
        pods.len(),
        namespaces.len(),
        differ.len()
    ));
    assert!(differ.is_empty(), "{}", differ.join("\n"));
    assert!(pods.len() - invalid.len() >= 80);
    labels_are_judged_the_same(&pair).await;
    changes_are_judged_the_same(&pair).await;
    pair.real.stop().unwrap();
}

async fn labels_are_judged_the_same(pair: &Pair) {
    pair.create("/api/v1/namespaces", &json!({"metadata": {"name": "lived-in"}})).await;
    let path = "/api/v1/namespaces/lived-in/pods";
    for (name, spec) in [
        ("b", json!({"hostPID": true})),
        ("a", json!({"hostPID": true})),
        ("c", json!({"hostIPC": true})),
        ("d", json!({})),
    ] {
        let mut pod = json!({"metadata": {"name": name}, "spec": spec});
        pod["spec"]["containers"] = json!([{"name": "c", "image": "i"}]);
        pair.create(path, &pod).await;
    }
    let rows = [
        json!({"enforce": "baseline"}),
        json!({"enforce": "restricted", "enforce-version": "v1.20"}),
        json!({"enforce": "privileged"}),
        json!({"enforce": "strict"}),
        json!({"enforce": "", "warn": "x", "audit": "y"}),
        json!({"enforce-version": "1.2", "audit-version": "v1.02", "warn-version": "v2.1"}),
        json!({"enforce-version": "v1.99"}),
        json!({"warn": "restricted", "audit": "baseline"}),
    ];
    for row in rows {
        let labels: serde_json::Map<String, Value> = row
            .as_object()
            .unwrap()
            .iter()
            .map(|(k, v)| (format!("pod-security.kubernetes.io/{k}"), v.clone()))
            .collect();
        let change = request(
            "PATCH",
            "/api/v1/namespaces/lived-in?dryRun=All".into(),
            "application/merge-patch+json",
            json!({"metadata": {"labels": labels}}),
        );
        let new = request(
            "POST",
            "/api/v1/namespaces?dryRun=All".into(),
            "application/json",
            json!({"metadata": {"name": "new", "labels": labels}}),
        );
        for attempt in [change, new] {
            let ours = ask(&pair.admins[0], &attempt).await;
            let mut real = ask(&pair.admins[1], &attempt).await;
            // The real server's list of pods lags a little.
            for _ in 0..50 {
                if ours.warnings == real.warnings {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
                real = ask(&pair.admins[1], &attempt).await;
            }
            assert_eq!(
                (ours.code, ours.message(), &ours.warnings),
                (real.code, real.message(), &real.warnings),
                "{row}"
            );
        }
    }
}

/// Changes of pods that were there before their namespace became strict.
async fn changes_are_judged_the_same(pair: &Pair) {
    let strict =
        json!({"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "baseline"}}});
    let path = "/api/v1/namespaces/lived-in";
    for admin in &pair.admins {
        let change = request("PATCH", path.into(), "application/merge-patch+json", strict.clone());
        assert_eq!(ask(admin, &change).await.code, 200);
    }
    let replace = |path: &str, value: Value| json!([{"op": "add", "path": path, "value": value}]);
    let rows = [
        ("a", replace("/spec/containers/0/image", json!("j"))),
        ("a", replace("/spec/containers/0/image", json!("i"))),
        ("a", replace("/metadata/labels", json!({"a": "b"}))),
        ("a", replace("/spec/activeDeadlineSeconds", json!(100))),
        ("a", replace("/spec/tolerations/-", json!({"key": "k", "operator": "Exists"}))),
        ("d", replace("/spec/containers/0/image", json!("j"))),
    ];
    for (pod, change) in rows {
        let path = format!("{path}/pods/{pod}?dryRun=All");
        let attempt = request("PATCH", path, "application/json-patch+json", change.clone());
        let ours = ask(&pair.admins[0], &attempt).await;
        let mut real = ask(&pair.admins[1], &attempt).await;
        for _ in 0..50 {
            if ours.code == real.code {
                break;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
            real = ask(&pair.admins[1], &attempt).await;
        }
        assert_eq!((ours.code, ours.message()), (real.code, real.message()), "{pod}: {change}");
    }
}
