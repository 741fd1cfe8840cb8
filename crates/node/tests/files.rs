//! Volumes whose files come from the API, in real pods.
#![expect(clippy::unwrap_used, reason = "helpers of tests may panic")]

mod rig;

use std::path::Path;
use std::time::Duration;

use longshore_cluster::Patch;
use longshore_core::model::ObjectKey;
use longshore_core::model::kinds::{ConfigMap, Pod, Secret};
use longshore_node::ApiAddress;
use longshore_testing::{Need, need};
use rig::Rig;
use serde_json::{Value, json};

/// A pod with one volume at `/files`.
fn pod(name: &str, script: &str, volume: &Value, extra: &Value) -> Value {
    let mut files = json!({"name": "files"});
    for (key, value) in volume.as_object().unwrap() {
        files[key] = value.clone();
    }
    let mut pod = json!({"metadata": {"name": name, "namespace": "default", "labels": {"app": "web"}},
        "spec": {"nodeName": "n1", "terminationGracePeriodSeconds": 0, "restartPolicy": "Never", "volumes": [files],
            "containers": [{"name": "main", "image": "host", "command": ["sh", "-c", script],
                "resources": {"limits": {"cpu": "1500m"}},
                "volumeMounts": [{"name": "files", "mountPath": "/files"}]}]}});
    for (key, value) in extra.as_object().unwrap() {
        pod["spec"][key] = value.clone();
    }
    pod
}

fn everything() -> Value {
    let downward = json!([
        {"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}},
        {"path": "deep/cpu", "resourceFieldRef": {"containerName": "main", "resource": "limits.cpu", "divisor": "1m"}},
    ]);
    json!({"projected": {"defaultMode": 0o440, "sources": [
        {"serviceAccountToken": {"path": "token", "expirationSeconds": 600}},
        {"configMap": {"name": "settings", "items": [{"key": "color", "path": "deep/color", "mode": 0o400}]}},
        {"configMap": {"name": "absent", "optional": true}},
        {"secret": {"name": "key"}},
        {"downwardAPI": {"items": downward}},
    ]}})
}

async fn secret(rig: &Rig) {
    let object = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "key", "namespace": "default"},
        "stringData": {"password": "hush"}});
    rig.api.create::<Secret>(&object).await.unwrap();
}

#[tokio::test]
async fn a_projected_volume_has_files_of_every_source() {
    if !need("a_projected_volume_has_files_of_every_source", &[Need::Root]) {
        return;
    }
    let rig = Rig::start(false).await;
    rig.config_map("settings", json!({"color": "blue"})).await;
    secret(&rig).await;
    let script = "cd /files; cat deep/color password labels deep/cpu | tr '\\n' ' '; echo; \
        stat -L -c '%n %a %u:%g' deep/color password token; readlink deep; cut -c 1-3 token; \
        echo x 2>/dev/null > /files/new || echo read-only; grep -c ' /files .*tmpfs' /proc/self/mountinfo";
    let uid = rig.create_pod(pod("p", script, &everything(), &json!({}))).await;
    rig.wait_phase("p", "Succeeded").await;
    let expected = "bluehush app=\"web\"1500\ndeep/color 400 0:0\npassword 440 0:0\ntoken 440 0:0\n..data/deep\neyJ\n\
        read-only\n1\n";
    let said = rig.log(&uid).replace("bluehush", "bluehush ").replace("  ", " ");
    assert_eq!(said, expected);
    rig.end("p").await;
    rig.stop(true).await;
}

/// When a token ends, as it says itself.
fn end_of(token: &str) -> i64 {
    use base64::Engine as _;
    let claims = token.split('.').nth(1).unwrap();
    let claims = base64::engine::general_purpose::URL_SAFE_NO_PAD.decode(claims).unwrap();
    serde_json::from_slice::<Value>(&claims).unwrap()["exp"].as_i64().unwrap()
}

/// Lets seconds pass at once for the agent, one by one so that no request in flight comes too late.
async fn pass(seconds: u32) {
    for _ in 0..seconds {
        tokio::time::pause();
        tokio::time::advance(Duration::from_secs(1)).await;
        tokio::time::resume();
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_token_in_a_running_pod_is_replaced_before_it_ends() {
    if !need("a_token_in_a_running_pod_is_replaced_before_it_ends", &[Need::Root]) {
        return;
    }
    let rig = Rig::start(false).await;
    rig.config_map("beside", json!({"step": "0"})).await;
    let volume = json!({"projected": {"sources": [
        {"serviceAccountToken": {"path": "token", "expirationSeconds": 600}},
        {"configMap": {"name": "beside"}},
    ]}});
    // Says the token whenever it is another one, and every step. A file may be missed while all are
    // replaced at once.
    let look = |file: &str| {
        format!(
            "new=$(cat /files/{file} 2>/dev/null); [ -z \"$new\" ] || [ \"$new\" = \"${file}\" ] || \
             {{ {file}=$new; echo {file} $new; }}"
        )
    };
    let script = format!("while true; do {}; {}; sleep 0.05; done", look("token"), look("step"));
    let uid = rig.create_pod(pod("p", &script, &volume, &json!({}))).await;
    let said = |file: &str| -> Vec<String> {
        let log = rig.log(&uid);
        let mut values = Vec::new();
        for line in log.lines().filter_map(|line| line.strip_prefix(file)) {
            values.push(line.trim().to_owned());
        }
        values
    };
    rig.until("the first token", async || said("token ").len() == 1).await;
    // A look after three of its ten minutes changes other files, and keeps it.
    let step = json!({"data": {"step": "1"}});
    let key = ObjectKey::new("default", "beside");
    rig.api.patch::<ConfigMap>(&key, Patch::Merge(&step)).await.unwrap();
    pass(180).await;
    rig.until("looked at", async || said("step ") == ["0", "1"]).await;
    assert_eq!(said("token ").len(), 1);
    // After eight, while the first one still holds, there is another.
    pass(310).await;
    rig.until("the second token", async || said("token ").len() == 2).await;
    let end = end_of(&said("token ")[0]);
    assert!(longshore_cluster::clock::now().as_second() < end, "replaced in time");
    rig.end("p").await;
    rig.stop(true).await;
}

#[tokio::test]
async fn a_token_can_be_read_by_the_user_of_the_pod_alone() {
    if !need("a_token_can_be_read_by_the_user_of_the_pod_alone", &[Need::Root]) {
        return;
    }
    let rig = Rig::start(false).await;
    let token = json!({"projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}});
    let script = "stat -L -c '%a %u:%g' /files/token; head -c 3 /files/token";
    for (name, context, expected) in [
        ("user", json!({"runAsUser": 1234}), "600 1234:0\neyJ"),
        ("group", json!({"fsGroup": 3000, "runAsUser": 1234}), "640 1234:3000\neyJ"),
        ("both", json!({}), "644 0:0\neyJ"),
    ] {
        let extra = json!({"securityContext": context});
        let uid = rig.create_pod(pod(name, script, &token, &extra)).await;
        rig.wait_phase(name, "Succeeded").await;
        assert_eq!(rig.log(&uid).trim_end(), expected, "{name}");
        rig.end(name).await;
    }
    rig.stop(true).await;
}

// case: workloads/W145
#[tokio::test]
async fn files_change_together_while_the_pod_runs() {
    if !need("files_change_together_while_the_pod_runs", &[Need::Root]) {
        return;
    }
    let quick = |settings: &mut longshore_node::Settings| {
        settings.files_period = Duration::from_millis(200);
    };
    let rig = Rig::start_tweaked(false, json!({}), quick).await;
    rig.config_map("settings", json!({"a": "1", "b": "1"})).await;
    let volume = json!({"projected": {"sources": [{"configMap": {"name": "settings"}},
        {"downwardAPI": {"items": [{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]}}]}});
    let script = "while :; do cd /files/..data/ || continue; a=$(cat a) && b=$(cat b) || continue; \
        [ $a = $b ] || echo torn; [ $a = 9 ] && grep -q new /files/labels && break; done 2>/dev/null; echo seen";
    let uid = rig.create_pod(pod("p", script, &volume, &json!({}))).await;
    rig.wait_phase("p", "Running").await;
    let map = ObjectKey::new("default", "settings");
    for n in 2..10 {
        let data = json!({"data": {"a": n.to_string(), "b": n.to_string()}});
        rig.api.patch::<ConfigMap>(&map, Patch::Merge(&data)).await.unwrap();
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let labels = json!({"metadata": {"labels": {"app": "new"}}});
    rig.api.patch::<Pod>(&ObjectKey::new("default", "p"), Patch::Merge(&labels)).await.unwrap();
    rig.wait_phase("p", "Succeeded").await;
    assert_eq!(rig.log(&uid), "seen\n");
    rig.end("p").await;
    rig.stop(true).await;
}

#[tokio::test]
async fn what_is_missing_is_named_and_waited_for() {
    if !need("what_is_missing_is_named_and_waited_for", &[Need::Root]) {
        return;
    }
    let rig = Rig::start(false).await;
    let uid = rig.create_pod(pod("p", "cat /files/deep/color", &everything(), &json!({}))).await;
    rig.until("the missing object is named", async || {
        rig.has_event("FailedMount", "configmap \"settings\" not found").await
    })
    .await;
    rig.config_map("settings", json!({"other": "1"})).await;
    rig.until("the missing key is named", async || {
        rig.has_event("FailedMount", "key \"color\" of configmap \"settings\" not found").await
    })
    .await;
    let key = ObjectKey::new("default", "settings");
    let data = json!({"data": {"color": "blue"}});
    rig.api.patch::<ConfigMap>(&key, Patch::Merge(&data)).await.unwrap();
    secret(&rig).await;
    rig.wait_phase("p", "Succeeded").await;
    assert_eq!(rig.log(&uid).trim_end(), "blue");
    rig.end("p").await;
    rig.stop(true).await;
}

#[tokio::test]
async fn what_a_variable_lacks_is_named_and_waited_for() {
    if !need("what_a_variable_lacks_is_named_and_waited_for", &[Need::Root]) {
        return;
    }
    let rig = Rig::start(false).await;
    let from = |kind: &str, name: &str, key: &str| json!({kind: {"name": name, "key": key}});
    let env = json!([
        {"name": "A", "valueFrom": from("configMapKeyRef", "settings", "color")},
        {"name": "B", "valueFrom": from("secretKeyRef", "key", "password")},
    ]);
    rig.create_pod(json!({"metadata": {"name": "p", "namespace": "default"}, "spec": {
        "nodeName": "n1", "terminationGracePeriodSeconds": 0, "restartPolicy": "Never",
        "containers": [{"name": "main", "image": "host", "command": ["sh", "-c", "[ $A$B = bluehush ]"], "env": env}]}}))
        .await;
    let named = async |why: &str| {
        let what = format!("the pod says: {why}");
        rig.until(&what, async || rig.has_event("Failed", &format!("Error: {why}")).await).await;
    };
    named("configmap \"settings\" not found").await;
    rig.config_map("settings", json!({"other": "1"})).await;
    named("couldn't find key color in ConfigMap default/settings").await;
    let key = ObjectKey::new("default", "settings");
    let data = json!({"data": {"color": "blue"}});
    rig.api.patch::<ConfigMap>(&key, Patch::Merge(&data)).await.unwrap();
    named("secret \"key\" not found").await;
    secret(&rig).await;
    rig.wait_phase("p", "Succeeded").await;
    rig.end("p").await;
    rig.stop(true).await;
}

#[tokio::test]
async fn pods_are_told_where_the_api_is_unless_they_say_otherwise() {
    if !need("pods_are_told_where_the_api_is_unless_they_say_otherwise", &[Need::Root]) {
        return;
    }
    let told = |settings: &mut longshore_node::Settings| {
        settings.api_address = Some(ApiAddress { host: "127.0.0.1".into(), port: 6443 });
    };
    let rig = Rig::start_tweaked(false, json!({}), told).await;
    let script = "echo $KUBERNETES_SERVICE_HOST:$KUBERNETES_SERVICE_PORT $CPU";
    let mut object = pod("p", script, &json!({"emptyDir": {}}), &json!({}));
    object["spec"]["containers"][0]["env"] = json!([{"name": "KUBERNETES_SERVICE_PORT", "value": "1"},
        {"name": "CPU", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}}]);
    let uid = rig.create_pod(object).await;
    rig.wait_phase("p", "Succeeded").await;
    assert_eq!(rig.log(&uid), "127.0.0.1:1 2\n");
    rig.end("p").await;
    assert!(!Path::new(&rig.root().join("pods").join(&uid)).exists());
    rig.stop(true).await;
}
