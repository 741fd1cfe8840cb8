//! Secrets and tokens: canaries in everything that can carry one, and a look at everything that is shown.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on shall stop")]

mod common;

use std::fs;

use common::*;
use longshore_testing::report;

const CANARY: &str = "canary-4711-in-the-coal-mine";

/// Kinds of secrets that a class can name for a driver's calls.
const CALLS: [&str; 5] =
    ["provisioner", "controller-publish", "node-stage", "node-publish", "controller-expand"];

#[test]
fn neither_secrets_nor_tokens_reach_a_log_an_event_or_an_object() {
    if !can_run("a-secret") {
        return;
    }
    let home = Home::new("a-secret");
    let up = Instance::start(&home, "data", &["up", "-v=10"]);
    let drivers = ["local", "shared"];
    for driver in drivers {
        let name = format!("{driver}.csi.longshore.dev");
        let mut object = up.json("csidriver", &name);
        object["metadata"] = serde_json::json!({"name": name});
        object["spec"]["tokenRequests"] =
            serde_json::json!([{"audience": "vault"}, {"audience": ""}]);
        object["spec"]["requiresRepublish"] = true.into();
        up.apply(&object.to_string());
    }
    up.apply(&format!(
        "apiVersion: v1\nkind: Secret\nmetadata: {{name: s, namespace: default}}\nstringData: {{key: {CANARY}}}\n"
    ));
    let mut parameters = String::new();
    for call in CALLS {
        parameters += &format!("  csi.storage.k8s.io/{call}-secret-name: s\n");
        parameters += &format!("  csi.storage.k8s.io/{call}-secret-namespace: default\n");
    }
    for driver in drivers {
        let provisioner = format!("{driver}.csi.longshore.dev");
        up.apply(&class(driver, &provisioner, &format!("parameters:\n{parameters}")));
        up.apply(&claim(driver, driver));
        let yaml = pod(driver, driver, "cat /data/f; echo $FROM_SECRET > /data/f; sleep 1000");
        let yaml = yaml.replace(
            "    volumeMounts: [",
            "    env: [{name: FROM_SECRET, valueFrom: {secretKeyRef: {name: s, key: key}}}]\n    \
             volumeMounts: [{name: s, mountPath: /s}, ",
        ) + "  - {name: s, secret: {secretName: s}}\n";
        up.apply(&yaml);
    }
    for driver in drivers {
        up.wait("pod", driver, "ran", |pod| pod["status"]["phase"] == "Running");
    }
    let mut shown = Vec::new();
    for kind in
        ["events", "pv", "pvc", "configmaps", "volumeattachments", "nodes", "pods", "csinodes"]
    {
        shown.push((kind.to_owned(), text(&up.cli(&["get", kind, "-A", "-o", "json"]))));
    }
    for driver in drivers {
        shown.push((format!("describe {driver}"), text(&up.cli(&["describe", "pod", driver]))));
        up.delete("pod", driver);
        up.delete("pvc", driver);
    }
    assert_eq!(up.stop(), Some(0));
    let log = fs::read_to_string(home.path().join("data.log")).unwrap();
    assert!(log.contains("serviceAccount.tokens"), "the tokens were asked for and logged by name");
    assert!(log.contains("***stripped***"));
    shown.push(("the log".to_owned(), log));
    for (what, text) in &shown {
        for word in [CANARY, "eyJ"] {
            let at =
                text.find(word).map(|at| &text[at.saturating_sub(200)..(at + 60).min(text.len())]);
            assert_eq!(at, None, "{what} shows {word}");
        }
    }
    report(&format!("secrets: {} places looked at, {} clean", shown.len(), shown.len()));
}
